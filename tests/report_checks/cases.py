# SPDX-License-Identifier: Apache-2.0
"""Runs of the program that leave each kind of report.

Right and wrong plans, plans that cannot run, undecided ones, several, and unreadable files.
"""

import json
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Cases:
    def __init__(self, program, directory):
        self.program, self.directory = program, pathlib.Path(directory)
        subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "make_demo_plan.py"), str(directory)],
            check=True,
            capture_output=True,
        )
        self.run(
            "generate",
            "llama3",
            *shlex.split(
                "--layers 2 --dim 16 --hidden 24 --heads 4 --kv-heads 2 --seq 8 --vocab 32 --dp "
                "2 --tp 2 --pp 2 --microbatches 2 -o llama"
            ),
        )
        for bug in ("wrong_pipeline_peer", "loss_scaled_wrongly", "wrong_operand"):
            self.run("mutate", "llama.plan.json", "--bug", bug, "-o", bug + ".plan.json")
        broken = json.loads((self.directory / "mlp.plan.json").read_text())
        for tensor in broken["programs"][0]["tensors"].values():
            tensor["device"] = "<cuda>\u0001"
        (self.directory / "broken.plan.json").write_text(json.dumps(broken))
        shapes = json.loads((self.directory / "mlp.plan.json").read_text())
        shapes["programs"][0]["nodes"][1]["out"] = ["h"]
        (self.directory / "shapes & <co>.plan.json").write_text(json.dumps(shapes))

    def run(self, *arguments, code=0):
        done = subprocess.run(
            [self.program, *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if code is not None and done.returncode != code:
            raise SystemExit(
                f"{arguments}: exit {done.returncode}: {done.stdout[:300]} {done.stderr[:300]}"
            )
        return done

    def verdicts(self):
        """What to verify, and the exit code."""
        llama = ["--model", "llama.model.json"]
        return [
            (["mlp.plan.json"], 0),
            (["mlp_dropped_all_reduce.plan.json"], 10),
            (["llama.plan.json"], 0),
            (["wrong_pipeline_peer.plan.json", *llama], 10),
            (["loss_scaled_wrongly.plan.json", *llama], 10),
            (["wrong_operand.plan.json", *llama], 10),
            (["shapes & <co>.plan.json"], 10),
            (["broken.plan.json"], 2),
            (["none.plan.json"], 2),
            (
                [
                    "mlp.plan.json",
                    *shlex.split("--memory 16 --stage-timeout 0.001 --checker z3 --diagnose off"),
                ],
                5,
            ),
            (
                [
                    "mlp.plan.json",
                    "mlp_dropped_all_reduce.plan.json",
                    "broken.plan.json",
                    "none.plan.json",
                ],
                2,
            ),
        ]
