# SPDX-License-Identifier: Apache-2.0
"""The executor, `shardproof run`, on whole plans.

It gives the truth of each small plan, of generated plans and of these with bugs. The command itself
is tested, too.
"""

import json
import pathlib
import shlex
import struct
import subprocess
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from lineage import is_cut_point
from plan_edit import (
    EQUIVALENT,
    INPUT_ERROR,
    INTERNAL,
    NOT_EQUIVALENT,
    ROOT,
    UNDECIDED,
    USAGE,
    Failure,
    Runner,
)

SMALL = ROOT / "tests" / "plans" / "small"
# What a verdict allows the executor to find. "undecided" says nothing about the plan.
ALLOWED = {
    "equivalent": {EQUIVALENT},
    "not-equivalent": {NOT_EQUIVALENT},
    "undecided": {EQUIVALENT, NOT_EQUIVALENT, UNDECIDED},
    "input-error": {INPUT_ERROR},
}
# "executed" in a case, one of these:
#   * numbers that a double cannot hold leave it open;
#   * none of the drawn inputs shows the difference (a logarithm's argument is positive);
#   * memory is used too early (the executor has values only);
#   * the difference is approved, and `run` executes it.
EXECUTED = {"open": {UNDECIDED}, "agrees": {EQUIVALENT}, "differs": {NOT_EQUIVALENT}}
SIZES = ("--layers", "2", "--dim", "16", "--heads", "4", "--seq", "8", "--vocab", "16")
LLAMA = ("llama3", *SIZES, "--hidden", "24", "--kv-heads", "2")
GPT = ("gpt", *SIZES, "--hidden", "24")
PLANS = {
    "llama_tp": (*LLAMA, "--dp", "2", "--tp", "2", "--vocab-parallel", "--sequence-parallel"),
    "llama_pp": (
        *LLAMA,
        *shlex.split("--pp 2 --microbatches 4 --schedule 1f1b --dp 2 --zero 1"),
    ),
    "llama_zero3": (*LLAMA, "--dp", "4", "--zero", "3", "--recompute", "--cut-points", "none"),
    "gpt": (*GPT, "--dp", "2", "--tp", "2", "--pp", "2", "--microbatches", "2", "--dropout", "0.3"),
    "mlp": (
        "mlp",
        *shlex.split("--layers 2 --dim 8 --hidden 12 --dp 2 --tp 2 --microbatches 2"),
    ),
}
BUGS = {
    "llama_tp": [
        "missing_all_reduce",
        "rope_offset",
        "norm_weight_not_reduced",
        "data_parallel_loss_scale",
    ],
    "llama_pp": [
        "wrong_microbatch_gradient",
        "exchanged_pipeline_peers",
        "reduced_before_last_microbatch",
        "parameter_not_updated",
    ],
    "gpt": ["wrong_operand", "gradient_scaled_wrongly"],
    "mlp": ["missing_all_reduce", "gradients_reversed"],
}


def expect(condition, message):
    if not condition:
        raise Failure(message)


def run(runner, *arguments, expected=None):
    done = subprocess.run(
        [runner.program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if expected is not None:
        expect(
            done.returncode in expected,
            f"exit {done.returncode}, expected {sorted(expected)}: "
            f"{done.stdout[:500]}{done.stderr[:500]}",
        )
    return done


def small(runner, file):
    case = json.loads(file.read_text())
    directory = runner.path(file.stem)
    directory.mkdir()
    plan, model = directory / "p.plan.json", directory / case["plan"]["model"]
    plan.write_text(json.dumps(case["plan"]))
    model.write_text(json.dumps(case["model"]))
    done = run(
        runner,
        "run",
        "-p",
        plan,
        "-m",
        model,
        expected=EXECUTED[case["executed"]] if "executed" in case else ALLOWED[case["expected"]],
    )
    # Modulo a prime agreement means something, and what cannot run cannot run.
    run(
        runner,
        "run",
        "-p",
        plan,
        "-m",
        model,
        "--field",
        "prime",
        expected=ALLOWED[case["expected"]]
        | {UNDECIDED}
        | EXECUTED.get(case.get("executed"), set()),
    )
    return f"{case['expected']}, executed: {done.returncode}"


def all_small(runner):
    """One case, as the runner takes the first of each family only."""
    files = sorted(SMALL.glob("*.json"))
    for file in files:
        try:
            small(runner, file)
        except Failure as failure:
            raise Failure(f"{file.stem}: {failure}") from None
    return f"{len(files)} plans"


def generated(runner, name):
    prefix = runner.path(name)
    run(runner, "generate", *PLANS[name], "-o", prefix, expected={0})
    plan, model = f"{prefix}.plan.json", f"{prefix}.model.json"
    for options in (["--trials", "2"], ["--no-cut-points", "--seed", "9"]):
        run(runner, "run", "-p", plan, *options, expected={EQUIVALENT})
    # Norms are squared roots, and vocabulary-parallel cross entropy moves a maximum out of an
    # exponential: these laws do not hold modulo a prime.
    run(
        runner,
        "run",
        "-p",
        plan,
        "--field",
        "prime",
        expected={EQUIVALENT} if name == "mlp" else {EQUIVALENT, UNDECIDED},
    )
    for bug in BUGS.get(name, []):
        wrong = f"{prefix}.{bug}.plan.json"
        run(runner, "mutate", plan, "--bug", bug, "-o", wrong, expected={0})
        done = run(runner, "run", "-p", wrong, "-m", model)
        expect(
            done.returncode == NOT_EQUIVALENT, f"{bug}: exit {done.returncode}: {done.stdout[:300]}"
        )
        expect(done.stdout.startswith(("DIFFERS: ", "CANNOT RUN: ")), f"{bug}: {done.stdout[:300]}")
    return f"and {len(BUGS.get(name, []))} bugs"


def demo(runner):
    directory = runner.path("demo")
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "make_demo_plan.py"), str(directory)],
        check=True,
        capture_output=True,
    )
    return (
        directory / "mlp.plan.json",
        directory / "mlp.model.json",
        directory / "mlp_dropped_all_reduce.plan.json",
    )


def npy(file, name):
    """Shape and numbers, read without the project's code."""
    with zipfile.ZipFile(file) as archive:
        expect(archive.testzip() is None, "a check sum in the archive is wrong")
        data = archive.read(name + ".npy")
    (length,) = struct.unpack("<H", data[8:10])
    header = eval(data[10 : 10 + length].decode(), {"__builtins__": {}})
    body = data[10 + length :]
    return header["shape"], list(
        struct.unpack(f"<{len(body) // 8}{'q' if header['descr'] == '<i8' else 'd'}", body)
    )


def report(runner):
    plan, model, wrong = demo(runner)
    file = runner.path("report.json")
    run(runner, "run", "-p", plan, "--json", file, "--trials", "3", expected={EQUIVALENT})
    made = json.loads(file.read_text())
    expect(
        made["format"] == "shardproof-run" and made["outputs"] == "agrees" and made["trials"] == 3,
        made,
    )
    expect(
        all(e["agreement"] == "agrees" and e["compared"] > 0 for e in made["entries"]),
        "an entry was not compared",
    )
    done = run(runner, "run", "-p", wrong, "-m", model, "--json", file, expected={NOT_EQUIVALENT})
    made = json.loads(file.read_text())
    different = [e for e in made["entries"] if e["agreement"] == "differs"]
    expect(any(e["role"] == "output" for e in different), "no output differs")
    expect(
        all(e["difference"]["model"] != e["difference"]["plan"] for e in different),
        "a difference without one",
    )
    expect("on rank" in done.stdout and "Cut points that do not hold:" in done.stdout, done.stdout)


def wrong_cut_point(runner):
    plan, model, _ = demo(runner)
    edited = json.loads(plan.read_text())
    entry = next(
        e for e in edited["lineage"] if is_cut_point(e) and any(s.get("step") for s in e["shards"])
    )
    for shard in entry["shards"]:
        shard.pop("step", None)
    file = runner.path("p.plan.json")
    file.write_text(json.dumps(edited))
    done = run(runner, "run", "-p", file, "-m", model, expected={EQUIVALENT})
    expect("Cut points that do not hold:" in done.stdout, done.stdout)


def arrays(runner):
    plan, model, _ = demo(runner)
    first, second = runner.path("first.npz"), runner.path("second.npz")
    run(runner, "run", "-p", plan, "--outputs", first, expected={EQUIVALENT})
    with zipfile.ZipFile(first) as archive:
        names = [n.removesuffix(".npy") for n in archive.namelist()]
    tensors = json.loads(model.read_text())["tensors"]
    expect({f"model/{t}" for t in tensors} <= set(names), "a tensor of the model is missing")
    expect(
        any(n.startswith("rank3/mb1/") for n in names)
        and any(n.startswith("rank0/") for n in names),
        sorted(names),
    )
    for name, tensor in tensors.items():
        shape, numbers = npy(first, "model/" + name)
        expect(list(shape) == tensor["shape"], f"{name}: {shape}")
    # What was written can be given: the same run again, with another seed.
    given = runner.path("given.npz")
    with zipfile.ZipFile(first) as source, zipfile.ZipFile(given, "w") as target:
        for name, tensor in tensors.items():
            if tensor.get("kind") in ("input", "parameter"):
                target.writestr(name + ".npy", source.read(f"model/{name}.npy"))
    run(
        runner,
        "run",
        "-p",
        plan,
        "--inputs",
        given,
        "--outputs",
        second,
        "--seed",
        "77",
        expected={EQUIVALENT},
    )
    for name in names:
        expect(npy(first, name) == npy(second, name), f"{name} is another")
    run(runner, "run", "-p", plan, "--outputs", second, "--seed", "77", expected={EQUIVALENT})
    expect(npy(first, "model/w1") != npy(second, "model/w1"), "another seed draws the same")


def refusals(runner):
    plan, model, _ = demo(runner)
    run(runner, "run", expected={USAGE})
    run(runner, "run", "-p", plan, "--trials", "0", expected={USAGE})
    run(runner, "run", "-p", plan, "--field", "other", expected={USAGE})
    run(runner, "run", "-p", str(plan) + ".missing", expected={INPUT_ERROR})
    run(runner, "run", "-p", plan, "--inputs", plan, expected={INPUT_ERROR})
    strange = runner.path("strange.npz")
    with zipfile.ZipFile(strange, "w") as archive:
        header = "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }"
        header += " " * (-(len(header) + 11) % 64) + "\n"
        archive.writestr(
            "nobody.npy",
            b"\x93NUMPY\x01\x00"
            + struct.pack("<H", len(header))
            + header.encode()
            + struct.pack("<d", 1.0),
        )
    done = run(runner, "run", "-p", plan, "--inputs", strange, expected={INPUT_ERROR})
    expect("nobody" in done.stderr, done.stderr)
    run(runner, "run", "-p", plan, "--json", "/nonexistent/x.json", expected={INTERNAL})
    run(runner, "run", "-p", plan, "--outputs", "/nonexistent/x.npz", expected={INTERNAL})
    prefix = runner.path("large")
    run(runner, "generate", "llama3", "--size", "8B", "--dp", "2", "-o", prefix, expected={0})
    done = run(runner, "run", "-p", f"{prefix}.plan.json", expected={UNDECIDED})
    expect("more than the limit" in done.stdout, done.stdout)


def main():
    runner = Runner(sys.argv[1])
    runner.case("small", all_small)
    for name in PLANS:
        runner.case(name, generated, name)
    for case in (report, wrong_cut_point, arrays, refusals):
        runner.case(case.__name__, case)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
