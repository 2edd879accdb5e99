# SPDX-License-Identifier: Apache-2.0
"""The same input gives the same report, for every number of jobs.

Text and JSON are compared whole, but for times and memory.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import (
    EQUIVALENT,
    LLAMA,
    LLAMA_TP8,
    MOE,
    NOT_EQUIVALENT,
    PLANS,
    ROOT,
    SLOW,
    UNDECIDED,
    Failure,
    Runner,
    model_of,
    read_json,
)

JOBS = (1, 2, 5)
GPT = (
    "gpt",
    *shlex.split("--layers 2 --dim 16 --heads 2 --seq 4 --vocab 16 --dp 2 --tp 2 --microbatches 2"),
)
LLAMA3 = (
    "llama3",
    *shlex.split(
        "--layers 2 --dim 8 --hidden 16 --heads 2 --kv-heads 2 --seq 4 --vocab 16 --dp 2 --pp 2 "
        "--microbatches 2 --zero 1"
    ),
)


def run(runner, *arguments):
    done = subprocess.run(
        [runner.program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode < 0 or "internal" in done.stderr:
        raise Failure(f"exit {done.returncode}: {done.stderr[:300]}")
    return done


def without_times(value):
    """A report without what may differ from run to run."""
    if isinstance(value, dict):
        return {
            k: without_times(v)
            for k, v in value.items()
            if k not in ("seconds", "seconds_by_phase", "peak_memory_bytes")
        }
    return [without_times(v) for v in value] if isinstance(value, list) else value


def first_difference(a, b, place=""):
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next((d for k in a if (d := first_difference(a[k], b[k], f"{place}/{k}"))), None)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next(
            (d for i in range(len(a)) if (d := first_difference(a[i], b[i], f"{place}/{i}"))), None
        )
    return None if a == b else f"{place or '/'}: {str(a)[:150]} and {str(b)[:150]}"


def agree(runner, expected, plans, options, jobs=JOBS):
    """Also run after run: the last number of jobs is tried twice."""
    first = None
    for j in (*jobs, jobs[-1]):
        report = runner.path("report.json")
        # How far it comes depends on the time.
        done = run(
            runner,
            "verify",
            *[a for p in plans for a in ("--plan", p)],
            "--json",
            report,
            "--jobs",
            j,
            "--confirm",
            "off",
            *options,
        )
        if done.returncode != expected:
            raise Failure(
                f"expected exit {expected}, got {done.returncode} with {j} jobs: "
                f"{done.stdout[:300]} {done.stderr[:300]}"
            )
        text = re.sub(
            r"^(Time|Memory): .*$|; [\d.,]+( min \d+)? s$|(?<=\()[\d.,]+ s(?=: )",
            "",
            done.stdout,
            flags=re.MULTILINE,
        )
        made = json.loads(report.read_text())
        report.unlink()
        this = (text.splitlines(), without_times(made), done.stderr)
        first = first or this
        if difference := first_difference(list(first), list(this)):
            raise Failure(f"{jobs[0]} and {j} jobs differ at {difference}")
    defects = made.get("defects", [])
    if expected == NOT_EQUIVALENT and len(plans) == 1 and not defects:
        raise Failure("there are no defects to compare")
    return (
        f"{len(made['stages']) if 'stages' in made else len(made['plans'])} "
        f"{'stages' if 'stages' in made else 'plans'}, {len(defects)} defects"
    )


def demo(runner, name, expected, *options):
    directory = runner.path("demo")
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "make_demo_plan.py", directory],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return agree(runner, expected, [directory / f"{name}.plan.json"], options)


def generated(runner, what, *options):
    plan = runner.path("g")
    run(runner, "generate", *what, "-o", plan)
    return agree(runner, EQUIVALENT, [f"{plan}.plan.json"], options)


def wrong(runner, what, *bugs):
    plan = runner.path("g")
    run(runner, "generate", *what, "-o", plan)
    file = f"{plan}.plan.json"
    for bug in bugs:
        right, file = file, f"{plan}.{bug}.plan.json"
        if run(runner, "mutate", right, "--bug", bug, "--seed", 3, "-o", file).returncode != 0:
            raise Failure(f"{bug} does not apply")
    return agree(runner, NOT_EQUIVALENT, [file], ())


def undecided(runner):
    """x x / x in the place of x: as many stages as copies, none of which can be decided."""
    names = [f"x{i}" for i in range(9)]
    model, plan = runner.path("m.json"), runner.path("p.json")
    shape = {"shape": [4, 2]}
    given = {n: {**shape, "kind": "input"} for n in names}
    model.write_text(
        json.dumps(
            {
                "format": "shardproof-model",
                "version": 1,
                "tensors": {**given, **{n + "y": shape for n in names}},
                "nodes": [{"op": "identity", "in": [n], "out": [n + "y"]} for n in names],
                "outputs": [n + "y" for n in names],
            }
        )
    )
    nodes = [
        m
        for n in names
        for m in (
            {"op": "mul", "in": [n, n], "out": [n + "s"]},
            {"op": "div", "in": [n + "s", n], "out": [n + "y"]},
        )
    ]
    lineage = [
        {
            "tensor": n + s,
            "role": role,
            "shards": [{"box": [[0, 4], [0, 2]], "parts": [{"local": n + s}]}],
        }
        for n in names
        for s, role in (("", "input"), ("y", "output"))
    ]
    plan.write_text(
        json.dumps(
            {
                "format": "shardproof-plan",
                "version": 1,
                "mesh": [],
                "lineage": lineage,
                "programs": [
                    {
                        "at": {},
                        "tensors": {**given, **{n + s: shape for n in names for s in "sy"}},
                        "nodes": nodes,
                    }
                ],
            }
        )
    )
    return agree(runner, UNDECIDED, [plan], ("--model", model, "--no-classes"))


def several(runner):
    files = []
    for i, bug in enumerate((None, "missing_all_reduce", None)):
        plan = runner.path(f"s{i}")
        run(runner, "generate", *GPT, "-o", plan)
        file = f"{plan}.plan.json"
        if bug:
            right, file = file, f"{plan}.{bug}.plan.json"
            run(runner, "mutate", right, "--bug", bug, "-o", file)
        files.append(file)
    return agree(runner, NOT_EQUIVALENT, files, ())


def wrong_shared(runner):
    """A lemma in the middle is wrong, which many others rely on."""
    plan = read_json(PLANS / LLAMA)
    next(n for n in plan["programs"][0]["nodes"] if n["op"] == "pow")["attrs"]["scalar"] = 3
    file = runner.path("plan.json")
    file.write_text(json.dumps(plan))
    return agree(runner, NOT_EQUIVALENT, [file], ("--model", model_of(LLAMA)))


def main():
    runner = Runner(sys.argv[1])
    runner.case("demo.right", demo, "mlp", EQUIVALENT)
    runner.case("demo_wrong.dropped_all_reduce", demo, "mlp_dropped_all_reduce", NOT_EQUIVALENT)
    runner.case("demo_z3.right", demo, "mlp", EQUIVALENT, "--checker", "z3")
    runner.case("gpt.classes", generated, GPT)
    runner.case("gpt_alone.no_classes", generated, GPT, "--no-classes")
    runner.case("llama3.classes", generated, LLAMA3)
    runner.case("wrong_once.gpt", wrong, GPT, "missing_all_reduce")
    runner.case(
        "wrong_thrice.gpt",
        wrong,
        GPT,
        "gradient_scaled_wrongly",
        "wrong_operand",
        "parameter_not_updated",
    )
    runner.case("undecided.no_classes", undecided)
    runner.case("several.plans", several)
    for name in (LLAMA, MOE, *([LLAMA_TP8] if SLOW else [])):
        if (PLANS / name).is_file():
            runner.case(
                f"shared_{name.split('.')[0]}.as_it_is", agree, EQUIVALENT, [PLANS / name], ()
            )
    if (PLANS / LLAMA).is_file():
        if SLOW:
            runner.case("shared_wrong.pow", wrong_shared)
        runner.case(
            "shared_no_classes.llama", agree, EQUIVALENT, [PLANS / LLAMA], ("--no-classes",)
        )
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
