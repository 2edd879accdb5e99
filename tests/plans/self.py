# SPDX-License-Identifier: Apache-2.0
"""Each model against itself, as a plan of one rank.

It must be equivalent with any true lineage, and not after a change of one node.
"""

import copy
import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import (
    EQUIVALENT,
    NOT_EQUIVALENT,
    PLANS,
    SLOW,
    Failure,
    Runner,
    expect_code,
    read_json,
    write_json,
)
from self_plan import self_plan

SPARSE = shlex.split(
    "--layers 2 --dim 4 --heads 2 --kv-heads 1 --head-dim 2 --seq 3 --vocab 8 --experts 5 "
    "--active-experts 2 --expert-hidden 2"
)
TINY = {
    "mixtral": SPARSE,
    "qwen3-moe": SPARSE,
    "gpt-oss": SPARSE,
    "mlp": (),
    "gpt": ("--layers", "2", "--dim", "8", "--heads", "2", "--seq", "4", "--vocab", "16"),
    "llama3": (
        *shlex.split("--layers 2 --dim 8 --hidden 16 --heads 2 --kv-heads 2 --seq 4 --vocab 16"),
    ),
    "deepseek-v3": (
        *shlex.split("--size 671B --layers 1 --dense-layers 0 --dim 4 --heads 2 --seq 2 --vocab 8"),
        *shlex.split("--experts 4 --active-experts 2 --expert-groups 2 --active-groups 1"),
        *shlex.split("--expert-hidden 2 --query-rank 2 --kv-rank 2 --nope-dim 2 --rope-dim 2"),
        *shlex.split("--value-dim 2 --balance-loss 0.01"),
    ),
}


def architectures(program):
    """What `generate` says it knows: a new one must not be missed here."""
    text = subprocess.run(
        [program, "generate", "--help"], capture_output=True, text=True, check=True
    ).stdout
    names = re.search(r"ARCH *:\{([^}]*)\}", text)
    if not names:
        raise Failure(f"generate --help does not list architectures: {text[:300]}")
    return names.group(1).split(",")


def generated(runner, architecture):
    if architecture not in TINY:
        raise Failure(f"no sizes are given here for the architecture {architecture}")
    prefix = runner.path(architecture)
    subprocess.run(
        [runner.program, "generate", architecture, *TINY[architecture], "-o", prefix],
        capture_output=True,
        check=True,
    )
    return prefix.with_name(prefix.name + ".model.json")


def dropped_out(model):
    """Operands and results of dropout.

    Masks have positions only where lineage has them (docs/soundness.md, assumption 2).
    """
    return {
        t
        for n in model["nodes"]
        if n["op"].startswith("dropout")
        for t in (*n["in"], *n["out"])
        if t
    }


def verified(runner, plan, model_file, expected):
    file = write_json(runner.path("plan.json"), plan)
    result = runner.verify(file, model_file, limit=240 if SLOW else 60)
    file.unlink()
    expect_code(result, expected)
    return result


def itself(runner, model_file, with_cut_points):
    if callable(model_file):
        model_file = model_file(runner)
    model = read_json(model_file)
    positions = dropped_out(model)
    plan = self_plan(
        model,
        "m.json",
        (lambda name: True) if with_cut_points else (lambda name: name in positions),
    )
    result = verified(runner, plan, model_file, EQUIVALENT)
    # Two equal tensors of the model may be taken for each other: a guess that costs nothing.
    stages = [s for s in result.report["stages"] if s["verdict"] == "proved" or not s["inferred"]]
    proved = [s for s in stages if s["verdict"] == "proved"]
    if len(proved) != len(stages) or result.report["outputs_proved"] != len(model["outputs"]):
        raise Failure(
            f"{len(proved)} of {len(stages)} stages, "
            f"{result.report['outputs_proved']} of {len(model['outputs'])} outputs"
        )
    return f"{len(model['nodes'])} nodes, {len(proved)} stages"


def changed_node(runner, with_cut_points):
    """Plans that must not pass: a node reads the first of two operands of one shape twice."""
    model_file = generated(runner, "mlp")
    model = read_json(model_file)
    right = self_plan(model, "m.json", lambda name: with_cut_points)
    shape = lambda name: model["tensors"][name]["shape"]  # noqa: E731
    wrong = 0
    for i, node in enumerate(model["nodes"]):
        if (
            len(node["in"]) < 2
            or None in node["in"][:2]
            or node["in"][0] == node["in"][1]
            or shape(node["in"][0]) != shape(node["in"][1])
        ):
            continue
        if node["op"] == "sub_backward":  # of the second operand it reads the shape only
            continue
        plan = copy.deepcopy(right)
        plan["programs"][0]["nodes"][i]["in"][1] = node["in"][0]
        verified(runner, plan, model_file, NOT_EQUIVALENT)
        wrong += 1
    if wrong < 3:
        raise Failure(f"only {wrong} nodes were changed")
    return f"{wrong} nodes"


def main():
    runner = Runner(sys.argv[1])
    models = {
        name: (lambda r, name=name: generated(r, name)) for name in architectures(runner.program)
    }
    for path in (
        sorted({read_json(p)["model"] for p in PLANS.glob("*.plan.json*")})
        if PLANS.is_dir()
        else []
    ):
        models[path.split(".")[0]] = PLANS / path
    for name, model in models.items():
        runner.case(f"{name}_with_cut_points", itself, model, True)
        # A whole training step at once takes its time at real sizes: 4 to 10 seconds for the shared
        # models.
        if SLOW or callable(model) or name.endswith("_small"):
            runner.case(f"{name}_from_the_inputs", itself, model, False)
    runner.case("changed_node_with_cut_points", changed_node, True)
    runner.case("changed_node_from_the_inputs", changed_node, False)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
