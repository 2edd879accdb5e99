# SPDX-License-Identifier: Apache-2.0
"""Plans with another layout than the model's: transposed, halves exchanged, multiplied, padded.

Their lineage describes the parts (docs/format.md, "Parts of local tensors"). Right plans stay
equivalent, and are refuted when that lineage is wrong.
"""

import pathlib
import random
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import (
    EQUIVALENT,
    NOT_EQUIVALENT,
    Failure,
    Runner,
    expect_code,
    read_json,
    write_json,
)

PLANS = {
    "mlp": "mlp --dp 2 --tp 2 --microbatches 2",
    "gpt": "gpt --layers 1 --dim 16 --hidden 32 --heads 4 --seq 8 --vocab 32 --dp 2 --tp 2 "
    "--sequence-parallel --vocab-parallel --dropout 0",
    "llama3, pipeline in issue order": (
        "llama3 --layers 2 --dim 16 --hidden 32 --heads 4 --kv-heads 2 --seq 8 --vocab 32 --dp 2 "
        "--tp 2 --pp 2 --microbatches 2 --schedule 1f1b"
    ),
    "llama3, ZeRO 1": (
        "llama3 --layers 1 --dim 16 --hidden 32 --heads 4 --kv-heads 2 --seq 8 --vocab 32 --dp 4 "
        "--zero 1"
    ),
}
WAYS = ("transposed", "exchanged", "multiplied", "padded")
NO_REALS = ("int64", "int32", "bool", "complex64", "complex128")


def no_reals(tensor):
    return tensor.get("dtype") in NO_REALS


def can(way, tensor, given):
    shape = tensor["shape"]
    if way == "transposed":
        return len(shape) >= 2
    if way == "exchanged":
        return len(shape) >= 1 and shape[0] % 2 == 0
    return (given or way != "padded") and len(shape) >= 1 and not no_reals(tensor)


def laid_shape(way, shape):
    if way == "transposed":
        return [shape[1], shape[0], *shape[2:]]
    return [shape[0] + 3, *shape[1:]] if way == "padded" else shape


def node(op, source, result, attributes, more):
    return {
        "op": op,
        "in": source if isinstance(source, list) else [source],
        "out": [result],
        "attrs": attributes,
        **more,
    }


def moves(way, source, result, shape, back, more):
    """Nodes from one layout to the other, and tensors between them.

    `back`: from the layout to the tensor.
    """
    if way == "transposed":
        return [node("transpose", source, result, {"dim0": 0, "dim1": 1}, more)], {}
    if way == "multiplied":
        return [node("mul", source, result, {"scalar": 0.5 if back else 2}, more)], {}
    if way == "padded":
        return [node("slice", source, result, {"dim": 0, "start": 0, "stop": shape[0]}, more)], {}
    half = shape[0] // 2
    names = [f"{result}.{i}" for i in (0, 1)]
    return [
        node("slice", source, names[0], {"dim": 0, "start": 0, "stop": half}, more),
        node("slice", source, names[1], {"dim": 0, "start": half, "stop": 2 * half}, more),
        node("cat", [names[1], names[0]], result, {"dim": 0}, more),
    ], {n: [half, *shape[1:]] for n in names}


def part(way, shape):
    """Fields of the part, or those of both and what they are of the box."""
    if way == "transposed":
        return {"permute": [1, 0, *range(2, len(shape))]}
    if way == "multiplied":
        return {"scale": 0.5}
    if way == "padded":
        return {"local_box": [[0, n] for n in shape], "padding": 0}
    return None


def lay(plan, choose):
    """Gives every local tensor of one-part lineage the layout `choose`.

    Returns the changed shards.
    """
    issue = any(p.get("order") == "issue" for p in plan["programs"])
    single = {}
    for entry in plan["lineage"]:
        for shard in entry["shards"]:
            for p in shard["parts"]:
                single.setdefault(p["local"], []).append((entry, shard))
    changed = []
    for name, places in sorted(single.items()):
        holders = [p for p in plan["programs"] if name in p["tensors"]]
        tensors = [p["tensors"][name] for p in holders]
        given = tensors[0].get("kind") in ("input", "parameter")
        roles = {entry["role"] for entry, _ in places}
        alike = all(t == tensors[0] for t in tensors)
        if (
            not alike
            or any(len(shard["parts"]) > 1 or "mb" in shard["parts"][0] for _, shard in places)
            or (given and roles != {"input"})
        ):
            continue
        way = choose(tensors[0], given)
        if way is None or (issue and tensors[0].get("per_mb")):
            continue
        shape, laid = tensors[0]["shape"], f"{name}.laid"
        for program in holders:
            tensor = program["tensors"][name]
            more = {"mb": "*"} if tensor.get("per_mb") else {}
            nodes, between = moves(
                way, *((laid, name) if given else (name, laid)), shape, given, more
            )
            extra = {key: tensor[key] for key in ("per_mb", "dtype") if key in tensor}
            program["tensors"].update({n: {"shape": s, **extra} for n, s in between.items()})
            program["tensors"][laid] = {**tensor, "shape": laid_shape(way, shape)}
            if given:
                tensor.pop("kind")
                program["nodes"][:0] = nodes
            else:
                made = [i for i, n in enumerate(program["nodes"]) if name in n["out"]]
                for i in reversed(made):
                    program["nodes"][i + 1 : i + 1] = [
                        {
                            **n,
                            **(
                                {"mb": program["nodes"][i]["mb"]}
                                if "mb" in program["nodes"][i]
                                else {}
                            ),
                        }
                        for n in nodes
                    ]
        for entry, shard in places:
            one, fields = shard["parts"][0], part(way, shape)
            one["local"] = laid
            if fields is not None:
                one.update(fields)
            else:
                half = shape[0] // 2
                low, high = shard["box"][0]
                other = {
                    **shard,
                    "box": [[low, low + half], *shard["box"][1:]],
                    "parts": [
                        {**one, "local_box": [[half, 2 * half], *([0, n] for n in shape[1:])]}
                    ],
                }
                shard["box"] = [[low + half, high], *shard["box"][1:]]
                shard["parts"] = [{**one, "local_box": [[0, half], *([0, n] for n in shape[1:])]}]
                entry["shards"].append(other)
            changed.append((entry, shard))
    plan["version"] = 2
    return changed


def generated(runner, arguments):
    prefix = runner.path("g")
    subprocess.run(
        [runner.program, "generate", *arguments.split(), "-o", str(prefix)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return read_json(f"{prefix}.plan.json"), f"{prefix}.model.json"


def right(runner, arguments, seed):
    plan, model = generated(runner, arguments)
    draw = random.Random(seed)
    count = len(
        lay(
            plan,
            lambda tensor, given: draw.choice([w for w in WAYS if can(w, tensor, given)] + [None]),
        )
    )
    if count < 5:
        raise Failure(f"only {count} shards changed")
    file = write_json(runner.path("p.plan.json"), plan)
    result = runner.verify(file, pathlib.Path(model), "--infer", "never")
    expect_code(result, EQUIVALENT)
    if any(stage["verdict"] != "proved" for stage in result.report["stages"]):
        raise Failure("a stage is not proved: " + result.summary())
    return f"{count} shards, {result.seconds:.1f} s"


def wrong(runner, arguments, way):
    """The lineage of one output says otherwise."""
    plan, model = generated(runner, arguments)
    changed = lay(plan, lambda tensor, given: way if can(way, tensor, given) else None)
    of_outputs = [
        shard
        for entry, shard in changed
        if entry["role"] == "output" and shard["parts"][0].get("local_box") != []
    ]
    if way == "padded":
        of_outputs = [shard for entry, shard in changed if entry["role"] == "input"]
    if not of_outputs:
        return "no such output"
    one = of_outputs[-1]["parts"][0]
    if way == "multiplied":
        one["scale"] = [1, 3]
    elif way == "exchanged":
        box = one["local_box"][0]
        of = next(
            s
            for entry, _ in changed
            for s in entry["shards"]
            if s["parts"][0]["local"] == one["local"] and s["parts"][0]["local_box"][0] != box
        )
        one["local_box"][0], of["parts"][0]["local_box"][0] = of["parts"][0]["local_box"][0], box
    elif way == "padded":
        one["local_box"][0] = [one["local_box"][0][0] + 1, one["local_box"][0][1] + 1]
    else:
        return "shapes tell"
    file = write_json(runner.path("p.plan.json"), plan)
    result = runner.verify(file, pathlib.Path(model), "--infer", "never")
    expect_code(result, NOT_EQUIVALENT)
    return "refuted"


def main():
    runner = Runner(sys.argv[1])
    for name, arguments in PLANS.items():
        for seed in range(3):
            runner.case(f"right_{name}_{seed}", right, arguments, seed)
        for way in WAYS:
            runner.case(f"wrong_{name}_{way}", wrong, arguments, way)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
