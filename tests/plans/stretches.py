# SPDX-License-Identifier: Apache-2.0
"""Plans whose programs and lineage name stretches of an axis.

Their verdict is that of the same plans with a program, and lineage, for each coordinate. The plans
are those of tests/plans/small, and small changes of them.
"""

import copy
import itertools
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import EQUIVALENT, INPUT_ERROR, NOT_EQUIVALENT, ROOT, SLOW, Failure, Runner

PLANS = ROOT / "tests" / "plans" / "small"


def stretches(at):
    return {a: c for a, c in at.items() if isinstance(c, list)}


def choices(at):
    """The same with single coordinates in the place of each stretch."""
    named = stretches(at)
    for c in itertools.product(*[range(low, high) for low, high in named.values()]):
        yield {**at, **dict(zip(named, c, strict=True))}


def moved(box, step, at):
    return [
        [
            a + sum(by[d] * at[axis] for axis, by in step.items() if axis in at),
            b + sum(by[d] * at[axis] for axis, by in step.items() if axis in at),
        ]
        for d, (a, b) in enumerate(box)
    ]


def single_shards(shard, sizes):
    parts = shard["parts"]
    named = {a for p in parts for a in stretches(p.get("at", {}))}
    if not named:
        return [shard]
    summed = named & set(shard.get("sum", []))
    rest = [a for a in shard.get("sum", []) if a not in summed]
    made = []
    for outer in choices({a: c for a, c in parts[0].get("at", {}).items() if a in named - summed}):
        step = {a: by for a, by in shard.get("step", {}).items() if a not in outer}
        own = {
            **shard,
            "box": moved(shard["box"], shard.get("step", {}), outer),
            "step": step,
            "sum": rest,
            "parts": [],
        }
        for part in parts:
            at = {a: [0, sizes[a]] for a in summed} | part.get("at", {})
            own["parts"] += [
                {**part, "at": {**c, **outer}}
                for c in choices({a: c for a, c in at.items() if a not in outer})
            ]
        made.append(own)
    return made


def single_coordinates(plan):
    plan = copy.deepcopy(plan)
    sizes = dict(map(tuple, plan["mesh"]))
    plan["programs"] = [
        {**p, "at": at} for p in plan["programs"] for at in choices(p.get("at", {}))
    ]
    for entry in plan["lineage"]:
        entry["shards"] = [s for shard in entry["shards"] for s in single_shards(shard, sizes)]
    return plan


def changes(plan):
    """Ends of stretches, boxes and steps that are one off, each alone."""

    def at_places(value, path=()):
        if isinstance(value, dict):
            for key, v in value.items():
                yield from at_places(v, path + (key,))
        elif isinstance(value, list) and not (path and path[-1] in ("nodes", "mesh")):
            for i, v in enumerate(value):
                yield from at_places(v, path + (i,))
        elif isinstance(value, int) and {"at", "box", "step"} & set(path) and "tensors" not in path:
            yield path

    for path in at_places(
        {
            "programs": [{"at": p.get("at", {})} for p in plan["programs"]],
            "lineage": plan["lineage"],
        }
    ):
        for by in (-1, 1):
            edited = copy.deepcopy(plan)
            where = edited
            for key in path[:-1]:
                where = where[key]
            where[path[-1]] += by
            yield f"{'.'.join(map(str, path))}{by:+d}", edited


def verdicts(runner, name, model, plan):
    codes = []
    for kind, made in (("stretches", plan), ("single", single_coordinates(plan))):
        directory = runner.path(f"{name}-{kind}")
        directory.mkdir()
        plan_file, model_file = directory / "p.plan.json", directory / plan["model"]
        plan_file.write_text(json.dumps(made))
        model_file.write_text(json.dumps(model))
        codes.append(runner.verify(plan_file, model_file).code)
    return codes


def check(runner, name, model, plan, seen):
    ours, theirs = verdicts(runner, name, model, plan)
    # A stretch that is outside of its axis, or empty, cannot be written with single coordinates.
    if ours != theirs and ours != INPUT_ERROR:
        raise Failure(f"exit code {ours} with stretches, {theirs} with single coordinates")
    if ours in (EQUIVALENT, NOT_EQUIVALENT) or theirs != EQUIVALENT:
        seen.append(ours)
        return str(ours)
    raise Failure(f"exit code {ours}, where the plan with single coordinates is equivalent")


def check_changes(runner, name, model, plan, seen):
    every = list(changes(plan))
    for what, edited in every if SLOW else every[::5]:
        try:
            check(runner, f"{name}-{what}", model, edited, seen)
        except Failure as failure:
            raise Failure(f"{what}: {failure}") from None
    return f"{len(every)} changes"


def main():
    runner = Runner(sys.argv[1])
    seen = []
    for file in sorted(PLANS.glob("stretches_*.json")):
        case = json.loads(file.read_text())
        runner.case(file.stem, check, file.stem, case["model"], case["plan"], seen)
        if case["expected"] == "equivalent":
            runner.case(
                f"{file.stem}_changed", check_changes, file.stem, case["model"], case["plan"], seen
            )
    code = runner.run()
    if not {EQUIVALENT, NOT_EQUIVALENT, INPUT_ERROR} <= set(seen):
        print(f"the changes led to too few verdicts: {sorted(set(seen))}")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
