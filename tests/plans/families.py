# SPDX-License-Identifier: Apache-2.0
"""`shardproof family`: plans that differ in one size, proved for all sizes at once.

Right families are compared with plans of many other sizes. Of wrong ones the smallest size that is
wrong is named, also where the sizes that the family is read off are right.
"""

import json
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import EQUIVALENT, NOT_EQUIVALENT, RUN_LIMIT, UNDECIDED, USAGE, Failure, Runner

MLP = ["mlp"]
LLAMA = ["llama3", "--dim=16", "--hidden=24", "--heads=4", "--kv-heads=2"]
LLAMA += ["--vocab=32"]
EXPERTS = ["mixtral", "--layers=1", "--dim=8", "--expert-hidden=16", "--heads=2", "--kv-heads=2"]
EXPERTS += ["--seq=4", "--vocab=16", "--experts=4", "--active-experts=2"]

# The size, the values that are read, the generator's options, the least size, and other sizes.
RIGHT = {
    "mlp dp": ("dp", [4, 5, 7], MLP, 4, range(4, 204)),
    "mlp batch": ("batch", [4, 8, 12], MLP, 4, range(4, 204)),
    "mlp hidden": ("hidden", [8, 16, 24], [*MLP, "--tp=2"], 8, range(8, 408, 8)),
    "llama dp": (
        "dp",
        [4, 5, 7],
        [*LLAMA, "--layers=1", "--seq=8"],
        4,
        [*range(4, 24), 64, 257, 1024],
    ),
    "llama batch": (
        "batch",
        [4, 8, 12],
        [*LLAMA, "--layers=1", "--seq=8", "--dp=2"],
        8,
        range(8, 60, 4),
    ),
    "llama pipeline": (
        "dp",
        [4, 8, 16],
        [*LLAMA, "--layers=2", "--seq=8", "--tp=2", "--pp=2", "--microbatches=2"],
        4,
        [5, 6, 7, 32, 100],
    ),
    "experts batch": ("batch", [4, 8, 12], [*EXPERTS, "--dp=2", "--ep=2"], 8, [16, 20, 100]),
}


def expect(condition, message):
    if not condition:
        raise Failure(message)


def family(runner, *arguments):
    report = runner.path("family.json")
    done = subprocess.run(
        [runner.program, "family", "--json", report, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT,
        check=False,
    )
    found = json.loads(report.read_text()) if report.exists() else None
    return done.returncode, found, done.stdout + done.stderr


def right(runner, name):
    parameter, sizes, options, least, others = RIGHT[name]
    code, report, text = family(
        runner,
        f"--any={parameter}={','.join(map(str, sizes))}",
        f"--also={','.join(map(str, others))}",
        *options,
    )
    expect(code == EQUIVALENT and report["verdict"] == "equivalent", text[:2000])
    expect(report["least"] == least, f"from {report['least']} on")
    expect(report["outputs_proved"] == report["outputs"] > 0, "not all outputs")
    expect(report["compared"] == sorted(others), f"not all sizes: {report['not_of_the_family']}")
    expect(all(one["verdict"] == "equivalent" for one in report["one_by_one"]), text)
    return f"{report['proofs_with_size']} of {report['proofs']} proofs with the size"


def generated(runner, size, parameter, options):
    prefix = runner.path(f"{parameter}{size}")
    subprocess.run(
        [runner.program, "generate", *options, f"--{parameter}={size}", "-o", prefix],
        check=True,
        capture_output=True,
    )
    return pathlib.Path(f"{prefix}.plan.json")


def nodes(plan, op):
    return [n for p in plan["programs"] for n in p["nodes"] if n["op"] == op]


def set_scalar(op, value):
    def edit(plan, size):
        found = [n for n in nodes(plan, op) if "scalar" in n.get("attrs", {})]
        found[0]["attrs"]["scalar"] = value(size, found[0]["attrs"]["scalar"])

    return edit


def drop_reduction(plan, size):
    reduction = nodes(plan, "all_reduce")[0]
    reduction["op"] = "identity"
    for key in ("comm", "group", "attrs"):
        reduction.pop(key, None)


def mean_for_sum(plan, size):
    nodes(plan, "all_reduce")[0].setdefault("attrs", {})["reduce"] = "mean"


def only_at(sizes, edit):
    def edited(plan, size):
        if size in sizes:
            edit(plan, size)

    return edited


def moved_rows(plan, size):
    """Ranks have the rows of the one after them."""
    entry = next(e for e in plan["lineage"] if e["tensor"] == "x" and e["role"] == "input")
    shard = entry["shards"][0]
    rows = shard["step"]["dp"][0]
    shard["box"][0] = [rows * (size - 1), rows * size]
    shard["step"]["dp"][0] = -rows


# What is done to each plan, the sizes that are read, and the smallest that is wrong.
WRONG = {
    "frozen at 4": (set_scalar("div", lambda n, value: value / n * 4), [4, 5, 7], 5),
    "frozen at 7": (set_scalar("div", lambda n, value: value / n * 7), [4, 5, 7], 4),
    "one too many": (set_scalar("div", lambda n, value: value / n * (n + 1)), [4, 5, 7], 4),
    "twice": (set_scalar("div", lambda n, value: 2 * value), [4, 5, 7], 4),
    "squared": (set_scalar("div", lambda n, value: n * value), [4, 5, 7], 4),
    "from 6 on": (set_scalar("div", lambda n, value: value * (1 if n < 6 else 2)), [4, 5, 7], 7),
    "no reduction": (drop_reduction, [4, 5, 7], 4),
    "no reduction at 5": (only_at({5}, drop_reduction), [4, 5, 7], 5),
    "mean for sum": (mean_for_sum, [4, 5, 7], 4),
    "mean for sum at 7": (only_at({7}, mean_for_sum), [4, 5, 7], 7),
}


def wrong(runner, name):
    edit, sizes, smallest = WRONG[name]
    options = []
    for size in sizes:
        file = generated(runner, size, "dp", MLP)
        plan = json.loads(file.read_text())
        edit(plan, size)
        file.write_text(json.dumps(plan))
        options.append(f"--plan={size}={file}")
    code, report, text = family(runner, "--any=dp", *options)
    expect(code == NOT_EQUIVALENT and report["verdict"] == "not-equivalent", text[:2000])
    expect(f"NOT EQUIVALENT at dp {smallest}, the smallest" in text, text[:500])
    return report["one_by_one"][-1]["cause"][:100]


def right_where_read(runner):
    """The plans that are read are right, another one is not: it is no plan of the family."""
    options = []
    for size in (4, 5, 7, 9):
        file = generated(runner, size, "dp", MLP)
        if size == 9:
            plan = json.loads(file.read_text())
            set_scalar("div", lambda n, value: 2 * value)(plan, size)
            file.write_text(json.dumps(plan))
        options.append(f"--plan={size}={file}")
    code, report, text = family(runner, "--any=dp", "--also=9", *options)
    expect(code == UNDECIDED, text)
    expect(report["verdict"] == "equivalent" and report["least"] == 4, text)
    expect([one["size"] for one in report["not_of_the_family"]] == [9], text)
    expect("dp 9 is no plan of the family: the stage of" in text, text)


def other_order_of_rows(runner):
    """Rows that are in another order on all ranks are another sum of the same."""
    options = []
    for size in (4, 5, 7):
        file = generated(runner, size, "dp", [*MLP, "--cut-points=none"])
        plan = json.loads(file.read_text())
        moved_rows(plan, size)
        file.write_text(json.dumps(plan))
        options.append(f"--plan={size}={file}")
    code, report, text = family(runner, "--any=dp", *options)
    # The target of each row is where it was: x and target do not go together any more.
    expect(code in (NOT_EQUIVALENT, UNDECIDED), text)
    expect(report["verdict"] != "equivalent", text)


X = {"shape": [2, 3], "kind": "input"}
SAME = {"shape": [2, 3]}


def node(op, operands, results, **attrs):
    return {"op": op, "in": operands, "out": results, **({"attrs": attrs} if attrs else {})}


def one_rank(inputs, results, model, plan, cuts=()):
    """A model and a plan of one rank that read the same inputs and make y."""

    def entry(name, role, shape):
        box = [[0, extent] for extent in shape]
        parts = [{"local": name}]
        return {"tensor": name, "role": role, "shards": [{"box": box, "parts": parts}]}

    tensors = {**inputs, **dict.fromkeys(results, SAME)}
    given = {name: t for name, t in inputs.items() if t["kind"] == "input"}
    lineage = [entry(name, "input", tensor["shape"]) for name, tensor in given.items()]
    lineage += [entry(name, "cut_point", SAME["shape"]) for name in cuts]
    lineage += [entry("y", "output", SAME["shape"])]
    return (
        {"format": "shardproof-model", "version": 1, "tensors": tensors, "nodes": model,
         "outputs": ["y"]},
        {"format": "shardproof-plan", "version": 1, "model": "m", "mesh": [["dp", 1]],
         "programs": [{"tensors": tensors, "nodes": plan}], "lineage": lineage},
    )  # fmt: skip


def rate_of_zero(n):
    """The rate of a dropout is 0 at 6, where nothing is dropped."""
    mask = {"shape": [2, 3], "kind": "input", "dtype": "int64"}
    zero = {"shape": [], "kind": "constant", "value": 0}
    return one_rank(
        {"x": X, "mask": mask, "zero": zero},
        "aby",
        [node("dropout", ["x", "mask"], ["y"], p=(n - 6) / n)],
        [
            node("where", ["mask", "x", "zero"], ["a"]),
            node("mul", ["a"], ["b"], scalar=n),
            node("div", ["b"], ["y"], scalar=6),
        ],
    )


def odd_powers(n):
    """A power is a square at odd sizes only; so are both primes."""
    power = node("pow", ["x"], ["p"], scalar=n + 1)
    return one_rank(
        {"x": X},
        "py",
        [power, node("relu", ["p"], ["y"])],
        [power, node("mul", ["p"], ["y"], scalar=1)],
    )


def sign_of_a_summand(n):
    """What is known of h at the sizes that are read does not hold from 21 on."""
    before = [node("exp", ["x"], ["e"]), node("add", ["e"], ["h"], scalar=20 - n)]
    return one_rank(
        {"x": X},
        "ehy",
        [*before, node("relu", ["h"], ["y"])],
        [*before, node("mul", ["h"], ["y"], scalar=1)],
        cuts="h",
    )


# Families that are right at the sizes that are read, and wrong at another one of theirs.
HIDDEN = {
    "rate of zero": (rate_of_zero, [8, 10, 16], 6),
    "odd powers": (odd_powers, [3, 5, 7], 4),
    "sign of a summand": (sign_of_a_summand, [7, 8, 10], 21),
}


def hidden(runner, name):
    make, sizes, wrong_at = HIDDEN[name]
    options = []
    for size in sizes:
        model, plan = make(size)
        prefix = runner.path(f"n{size}")
        pathlib.Path(f"{prefix}.model.json").write_text(json.dumps(model))
        plan["model"] = f"{prefix.name}.model.json"
        pathlib.Path(f"{prefix}.plan.json").write_text(json.dumps(plan))
        options.append(f"--plan={size}={prefix}.plan.json")
    code, report, text = family(runner, "--any=n", *options)
    expect(code == UNDECIDED and report["verdict"] == "undecided", text[:2000])
    expect("depends on the size" in report["reason"], report["reason"])
    return report["reason"]


def no_variable(runner):
    """Sizes at which plans have other operators: the reason, and what holds one by one."""
    code, report, text = family(runner, "--any=microbatches=4,5,6", *MLP)
    expect(code == UNDECIDED, text)
    expect("made of other operators" in text and "1, 2, 3, 4, 5, 6 equivalent" in text, text)
    code, report, text = family(runner, "--any=tp=2,4,8", *MLP)
    expect(code != EQUIVALENT and report is None or report["verdict"] != "equivalent", text)


def wrong_usage(runner):
    for arguments, message in (
        (["--any=dp=4,5", *MLP], "expected three or more"),
        (["--any=dp=4,5,x", *MLP], "found the size 'x'"),
        (["--any=dp=4,5,7"], "expected either an architecture"),
        (["--any=colour=4,5,7", *MLP], "found 'colour'"),
        (["--any=hidden=8,9,10", *MLP, "--tp=2"], "there is no plan of hidden 9"),
        (["--any=dp=4,5,7", "--dp=3", *MLP], "found --dp beside --any dp"),
        (["--any=dp", *["--plan=4=a.plan.json"] * 2], "two plans of the size 4"),
        (["--any=dp", "--plan=4"], "expected SIZE=FILE"),
        (["--any=dp", "--plan=a.plan.json"], "--plan: found the size 'a.plan.json'"),
    ):
        code, report, text = family(runner, *arguments)
        expect(code == USAGE and message in text and report is None, f"{arguments}: {text}")


def main():
    runner = Runner(sys.argv[1])
    for name in RIGHT:
        runner.case(f"right_{name.replace(' ', '_')}", right, name)
    for name in WRONG:
        runner.case(f"wrong_{name.replace(' ', '_')}", wrong, name)
    for name in HIDDEN:
        runner.case(f"hidden_{name.replace(' ', '_')}", hidden, name)
    runner.case("right_where_read", right_where_read)
    runner.case("other_order_of_rows", other_order_of_rows)
    runner.case("no_variable", no_variable)
    runner.case("wrong_usage", wrong_usage)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
