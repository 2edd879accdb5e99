# SPDX-License-Identifier: Apache-2.0
"""Sharded attention in six forms (lib/attention_plans.py), without lineage inside.

Plans of real sizes must be proved in seconds. `--write` makes the small ones,
tests/plans/small/attention_*.json.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from attention_plans import MASKS, MISTAKES, SPELLINGS, make
from plan_edit import EQUIVALENT, NOT_EQUIVALENT, ROOT, Runner, expect_code, write_json

LARGE = {"h": 8, "s": 4096, "d": 128, "ranks": 4, "scale": 0.08838834764831845}
WHY = {
    "gathered": "keys and values are gathered",
    "maximum": "a ring with a running maximum",
    "lse": "a ring that merges results by their log-sum-exp",
    "sigmoid": "a ring that merges results by the sigmoid of the difference of their log-sum-exps",
    "largest": "a ring that merges results by weights from the larger log-sum-exp",
    "heads": "sequence is exchanged for heads and back",
}
WRONG = {
    "rescale": "one factor is left out",
    "step": "one block is used in the place of another",
    "mask": "the mask is another block's or transposed",
}


def small():
    """(name, case) of each small plan.

    Model and plan are fused or written out in turn, so each form meets all four combinations.
    """
    turn = 0
    for spelling in SPELLINGS:
        for backward in (False, True):
            for mistake in (None, None, *MISTAKES):
                model, plan = turn % 2 == 0, turn // 2 % 2 == 0 and spelling != "maximum"
                mask = "causal" if turn % 3 == 0 else "bias"
                turn += 1
                files = make(spelling, model, plan, mask, backward, mistake)
                sides = [("fused" if x else "written_out") for x in (model, plan)]
                name = "_".join(
                    [
                        "attention",
                        spelling,
                        "backward" if backward else "forward",
                        mask,
                        sides[0],
                        "as",
                        sides[1],
                        *([f"wrong_{mistake}"] if mistake else []),
                    ]
                )
                why = (
                    f"Attention, {sides[0].replace('_', ' ')} in the model and "
                    f"{sides[1].replace('_', ' ')} in the plan: {WHY[spelling]}, no lineage "
                    f"inside" + (f"; {WRONG[mistake]}" if mistake else "")
                )
                yield (
                    name,
                    {
                        "expected": "not-equivalent" if mistake else "equivalent",
                        "why": why,
                        "model": files[0],
                        "plan": files[1],
                    },
                )
            turn += 1


def proved():
    """All combinations of form, fused in the model, fused in the plan, mask, backward.

    With a running maximum a plan is written out.
    """
    for spelling in SPELLINGS:
        for backward in (False, True):
            for mask in MASKS:
                for model in (False, True):
                    for plan in (False,) if spelling == "maximum" else (False, True):
                        yield spelling, model, plan, mask, backward


def in_reach(spelling, model, plan, mask, backward):
    """Plans that must be proved at real sizes.

    The gradient of blocks that sigmoids merge multiplies too much in two cases, which are small
    here: where a block's own gradient is taken, and for positions of a causal mask.
    """
    return not (spelling == "sigmoid" and backward and (plan or mask == "causal"))


def large(runner, name, how, mistake=None):
    directory = runner.path(name)
    directory.mkdir()
    model, plan = make(*how, mistake, **(LARGE if in_reach(*how) else {}))
    write_json(directory / plan["model"], model)
    result = runner.verify(
        write_json(directory / "p.plan.json", plan),
        directory / plan["model"],
        "--infer",
        "never",
        "--diagnose",
        "off",
    )
    expect_code(result, NOT_EQUIVALENT if mistake else EQUIVALENT)
    return result.summary()


def main():
    if sys.argv[1:] == ["--write"]:
        for name, case in small():
            (ROOT / "tests" / "plans" / "small" / f"{name}.json").write_text(
                json.dumps(case) + "\n"
            )
        return 0
    runner = Runner(sys.argv[1])
    for how in proved():
        spelling, model, plan, mask, backward = how
        words = [
            spelling,
            "backward" if backward else "forward",
            mask,
            "fused" if model else "written out",
            "as",
            "fused" if plan else "written out",
        ]
        mistakes = MISTAKES if mask != "none" and model and not plan else ()
        for mistake in (None, *mistakes):
            name = " ".join(words + ([f"wrong {mistake}"] if mistake else []))
            runner.case(name, large, name.replace(" ", "_"), how, mistake)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
