# SPDX-License-Identifier: Apache-2.0
"""The complete plan of docs/format.md is equivalent; without its all_reduce it is not.

Its lint findings, and those of its mistakes, are the expected ones.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from lineage import is_cut_point  # noqa: E402


def main():
    program = sys.argv[1]
    page = (ROOT / "docs" / "format.md").read_text()
    section = page[page.index("## A complete plan") :]
    model, plan = (
        json.loads(text) for text in re.findall(r"```json\n(.*?)```", section, re.DOTALL)[:2]
    )
    assert model["format"] == "shardproof-model" and plan["format"] == "shardproof-plan"
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)

        def expect(what, command, changed, code, says):
            nonlocal failed
            (directory / plan["model"]).write_text(json.dumps(model))
            (directory / "two_layers.plan.json").write_text(json.dumps(changed))
            done = subprocess.run(
                [program, command, "two_layers.plan.json"],
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=60,
            )
            if done.returncode != code or says not in done.stdout + done.stderr:
                failed += 1
                print(
                    f"FAIL  {what}: exit {done.returncode}, expected {code} and {says!r}: "
                    f"{done.stdout[:400]} {done.stderr[:400]}"
                )
            else:
                print(f"ok  {what}")

        def edited(edit):
            changed = json.loads(json.dumps(plan))
            edit(changed)
            return changed

        nodes = lambda p: p["programs"][0]["nodes"]  # noqa: E731
        expect("the example", "verify", plan, 0, "EQUIVALENT: plan two_layers.plan.json")
        expect(
            "the example",
            "lint",
            plan,
            0,
            "FINE: plan two_layers.plan.json can be read, and can run; nothing is proved",
        )
        lost = edited(
            lambda p: (
                nodes(p)[3].update({"op": "identity"})
                or [nodes(p)[3].pop(k) for k in ("comm", "group")]
            )
        )
        expect("without its all_reduce", "verify", lost, 10, "an all_reduce over tp is missing")
        expect("without its all_reduce", "lint", lost, 0, "nothing is proved")
        expect(
            "a wrong shape",
            "lint",
            edited(lambda p: p["programs"][0]["tensors"]["a"].update(shape=[4, 7])),
            10,
            "/programs/0/nodes/1",
        )
        expect(
            "a tensor that nobody makes",
            "lint",
            edited(lambda p: nodes(p).pop(1)),
            10,
            "never produced",
        )
        expect(
            "two mistakes",
            "lint",
            edited(lambda p: (nodes(p)[3].update(group="tp"), nodes(p)[1].update(op="silou"))),
            2,
            "2 errors",
        )
        expect(
            "no cut points",
            "lint",
            edited(lambda p: p.update(lineage=[e for e in p["lineage"] if not is_cut_point(e)])),
            0,
            "no lineage of role `cut_point`",
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
