#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Screens of ten failures, 80 columns wide, for docs/reading-reports.md.

    scripts/make_screens.py PROGRAM [--write FILE | --check FILE]

--write puts them between the two marks in FILE. --check compares them with the text there, but for
times and memory. Without either they are printed.
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- screens -->", "<!-- end of screens -->"
WIDTH = 80
PROSE = 100  # columns, as in all documents
LLAMA = [
    "generate",
    "llama3",
    *shlex.split(
        "--layers 2 --dim 16 --hidden 24 --heads 4 --kv-heads 2 --seq 8 --vocab 32 --dp 2 --tp 2 "
        "--pp 2 --microbatches 2 --sequence-parallel --zero 1 -o llama"
    ),
]


def edited(edit):
    def make(screens):
        plan = json.loads((screens.directory / "mlp.plan.json").read_text())
        edit(plan)
        (screens.directory / "wrong.plan.json").write_text(json.dumps(plan))
        return ["wrong.plan.json"]

    return make


def bug(name, *options):
    def make(screens):
        screens.run("mutate", "llama.plan.json", "--bug", name, *options, "-o", "wrong.plan.json")
        return ["wrong.plan.json", "--model", "llama.model.json"]

    return make


def small(name):
    """Of tests/plans/small/, model and plan in one file."""

    def make(screens):
        case = json.loads((ROOT / "tests" / "plans" / "small" / f"{name}.json").read_text())
        for which in ("model", "plan"):
            (screens.directory / f"{name}.{which}.json").write_text(json.dumps(case[which]))
        return [f"{name}.plan.json", "--model", f"{name}.model.json"]

    return make


def nodes(plan):
    return plan["programs"][0]["nodes"]


# Title, how the plan is made, what to read off the screen.
FAILURES = [
    (
        "A collective is missing",
        lambda screens: ["mlp_dropped_all_reduce.plan.json"],
        "The `Cause` is the mistake, in one sentence: which ranks, which tensor, after which "
        "node, and what is missing. `proved fix` was proved for the whole plan. The `Defect` "
        "below is the evidence: the equation that fails, one element of it, and inputs for which "
        "it fails. `Undecided` stages rely on the one that failed: they are consequences.",
    ),
    (
        "A factor is wrong",
        bug("gradient_scaled_wrongly"),
        "Ranks hold a multiple of what they have to. If the factor is a size of the plan, the "
        "sentence names it as the likeliest reason.",
    ),
    (
        "A collective runs over the wrong ranks",
        bug("wrong_group"),
        "The collective is there, but over another axis.",
    ),
    (
        "An operand is another tensor",
        bug("wrong_operand"),
        "The fix names what the node reads, and what it has to read.",
    ),
    (
        "Messages of the pipeline go to the wrong stage",
        bug("wrong_pipeline_peer"),
        "`send-receive`: found before any proof. No stage is proved of a plan that cannot run, "
        "so the list of stages is empty. Both ends of the message are named.",
    ),
    (
        "Microbatches are mixed up",
        bug("shuffled_microbatches"),
        "The sentence names the rows a rank holds, their microbatch, and the rows that belong "
        "there.",
    ),
    (
        "The gradient of a norm's weight is not reduced",
        bug("norm_weight_not_reduced"),
        "With sequence parallelism each tp rank has other rows, so the gradient is a partial sum. "
        "`loc` names the weight.",
    ),
    (
        "A shape does not fit",
        edited(lambda p: p["programs"][0]["tensors"]["y.square"].update(shape=[4, 7])),
        "`shape`: the node, the shape it produces and the shape that is declared.",
    ),
    (
        "Ranks wait for each other",
        small("both_send_first"),
        "`deadlock`: the shortest cycle of waiting, step by step: which node waits on which "
        "rank, and for what.",
    ),
    (
        "The files cannot be read",
        edited(
            lambda p: (
                nodes(p)[3].update(group="tp"),
                p["programs"][0]["tensors"]["h"].update(grad_of="w1"),
                p["lineage"][0].update(role="inputs"),
                nodes(p)[1].update(op="aten.silu.default"),
            )
        ),
        "Exit code 2: there is no verdict. All errors are listed at once, each with its "
        "place (a JSON pointer) and, for a known slip, the fix.",
    ),
]


class Screens:
    def __init__(self, program, directory):
        self.program, self.directory = program, pathlib.Path(directory)
        subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "make_demo_plan.py"), str(directory)],
            check=True,
            capture_output=True,
        )
        self.run(*LLAMA)

    def run(self, *arguments):
        return subprocess.run(
            [self.program, *arguments],
            cwd=self.directory,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def screen(self, arguments):
        command = [self.program, "verify", *arguments, "--width", str(WIDTH), "--jobs", "1"]
        done = subprocess.run(
            command, cwd=self.directory, capture_output=True, text=True, timeout=300
        )
        if done.returncode not in (10, 2):
            raise SystemExit(f"{arguments}: exit {done.returncode}: {done.stdout}{done.stderr}")
        text = done.stdout + done.stderr
        long = [line for line in text.splitlines() if len(line) > WIDTH]
        if long:
            raise SystemExit(f"{arguments}: wider than {WIDTH} columns: {long[0]}")
        shown = " ".join(a for a in arguments)
        return (
            "$ shardproof verify "
            + shown
            + "\n"
            + text.rstrip()
            + f"\n$ echo $?\n{done.returncode}"
        )

    def page(self):
        out = []
        for number, (title, make, reading) in enumerate(FAILURES, 1):
            reading = textwrap.fill(reading, PROSE, break_on_hyphens=False)
            out.append(
                f"## {number}. {title}\n\n{reading}\n\n```\n{self.screen(make(self))}\n```\n"
            )
        return "\n".join(out)


def without_times(text):
    return re.sub(r"^(Time:|Memory:).*(\n {8}.*)*", r"\1", text, flags=re.MULTILINE)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--check", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        page = Screens(str(pathlib.Path(arguments.program).resolve()), directory).page()
    file = arguments.write or arguments.check
    if file is None:
        print(page)
        return 0
    text = file.read_text()
    before, rest = text.split(BEGIN)
    old, behind = rest.split(END)
    if arguments.check:
        same = without_times(old.strip()) == without_times(page.strip())
        if not same:
            print(
                f"{file} is not what {arguments.program} shows; scripts/make_screens.py --write "
                f"{file} makes it anew"
            )
            for a, b in zip(
                without_times(old.strip()).splitlines(),
                without_times(page.strip()).splitlines(),
                strict=False,
            ):
                if a != b:
                    print(f"- {a}\n+ {b}")
                    break
        return 0 if same else 1
    file.write_text(f"{before}{BEGIN}\n{page}\n{END}{behind}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
