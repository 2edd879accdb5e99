# SPDX-License-Identifier: Apache-2.0
"""Plans with input and output lineage only: what is between is found.

Right plans are proved nearly as quickly as with all lineage. Wrong ones are refuted as they are
with it. Every way to request it gives the same verdict.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from lineage import is_cut_point
from plan_edit import (
    DOES_NOT_APPLY,
    EQUIVALENT,
    LLAMA,
    LLAMA_TP8,
    MOE,
    MOE_128,
    NOT_EQUIVALENT,
    PLANS,
    REAL,
    USAGE,
    Failure,
    Plan,
    Runner,
    expect_code,
    model_of,
    write_json,
)

GENERATED = {
    "mlp of data and tensor parallel ranks": "mlp --dp 4 --tp 2",
    "gpt, sequence and vocabulary parallel": (
        "gpt --layers 2 --dim 64 --hidden 128 --heads 4 --seq 32 --vocab 512 --dp 2 --tp 2 "
        "--sequence-parallel --vocab-parallel"
    ),
    "llama3, pipeline of 1F1B": (
        "llama3 --layers 4 --dim 64 --hidden 128 --heads 4 --kv-heads 2 --seq 32 --vocab 512 "
        "--dp 2 --tp 2 --pp 2 --microbatches 4 --schedule 1f1b"
    ),
    "llama3, ZeRO 3": (
        "llama3 --layers 2 --dim 64 --hidden 128 --heads 4 --kv-heads 2 --seq 32 --vocab 512 "
        "--dp 4 --tp 2 --zero 3"
    ),
    "llama3, recomputation": (
        "llama3 --layers 2 --dim 64 --hidden 128 --heads 4 --kv-heads 2 --seq 32 --vocab 512 "
        "--dp 2 --tp 2 --recompute --microbatches 2"
    ),
}
# Thousands of ranks with all options. Rows that no token of the small image names, sums of some
# microbatches that look like the whole, and layers whose proofs are too large without lineage
# inside.
LARGE = {
    "4 microbatches": (
        "llama3 --size 405B --dp 64 --tp 8 --pp 4 --microbatches 4 --layers 4",
        "none",
    ),
    "16 microbatches": (
        "llama3 --size 405B --dp 64 --tp 8 --pp 8 --microbatches 16 --layers 8",
        "none",
    ),
    "borders of layers": (
        "llama3 --size 405B --dp 64 --tp 8 --pp 8 --microbatches 16 --layers 8",
        "layers",
    ),
}
ALL_OPTIONS = "--vocab-parallel --sequence-parallel --zero 1 --schedule 1f1b --recompute"

# Each is refuted without a lemma of the file.
BUGS = (
    "missing_all_reduce",
    "missing_all_reduce_backward",
    "wrong_group",
    "constant_on_one_rank",
    "rope_offset",
    "shuffled_microbatches",
    "wrong_microbatch_gradient",
    "divided_by_world_size_twice",
)


def thin(plan):
    plan.lineage[:] = [entry for entry in plan.lineage if not is_cut_point(entry)]
    return plan


def proved(runner, plan, *options):
    result = runner.verify_plan(plan, *options)
    expect_code(result, EQUIVALENT)
    report = result.report
    if (
        report["outputs_proved"] != report["outputs"]
        or not report["inference"]
        or report["inference"]["lemmas"] == 0
    ):
        raise Failure("no lemma was found: " + result.summary())
    return f"{report['inference']['lemmas']} lemmas, {report['statistics']['seconds']:.2f} s"


def shared(runner, name):
    return proved(runner, thin(Plan(name)))


def torch(runner, name):
    """Recorded from a script: every rank's program has names of its own."""
    directory = PLANS / "torch"
    file = write_json(runner.path("thin.plan.json"), thin(Plan(f"torch/{name}.plan.json")).json)
    result = runner.verify(file, directory / f"{name}.model.json")
    expect_code(result, EQUIVALENT)
    return f"{result.report['inference']['lemmas']} lemmas, {result.seconds:.2f} s"


def large(runner, arguments, cut_points):
    """Without options, and without evaluating the whole plan: wrong guesses are dropped."""
    prefix = runner.path("large")
    subprocess.run(
        [
            runner.program,
            "generate",
            *arguments.split(),
            *ALL_OPTIONS.split(),
            "--cut-points",
            cut_points,
            "-o",
            str(prefix),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    result = runner.verify(f"{prefix}.plan.json", f"{prefix}.model.json", "--confirm", "0")
    expect_code(result, EQUIVALENT)
    if "end-to-end" in result.report["statistics"]["seconds_by_phase"]:
        raise Failure("a guess made it evaluate the plan from end to end")
    return f"{result.report['inference']['lemmas']} lemmas, {result.seconds:.2f} s"


def generated(runner, arguments):
    with tempfile.TemporaryDirectory(prefix="shardproof-inference-") as directory:
        prefix = pathlib.Path(directory) / "made"
        subprocess.run(
            [
                runner.program,
                "generate",
                *arguments.split(),
                "--cut-points",
                "none",
                "-o",
                str(prefix),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        report = pathlib.Path(directory) / "report.json"
        done = subprocess.run(
            [
                runner.program,
                "verify",
                "-p",
                f"{prefix}.plan.json",
                "--infer",
                "always",
                "--json",
                str(report),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if done.returncode != EQUIVALENT:
            raise Failure(f"exit code {done.returncode}: {done.stdout[:300]}{done.stderr[:300]}")
        said = json.loads(report.read_text())
        if not said["inference"] or said["inference"]["lemmas"] == 0:
            raise Failure("no lemma was found")
        return f"{said['inference']['lemmas']} lemmas, {said['statistics']['seconds']:.2f} s"


def mutated(runner, bug):
    right = write_json(runner.path("right.plan.json"), thin(Plan(LLAMA)).json)
    wrong = runner.path("wrong.plan.json")
    made = subprocess.run(
        [runner.program, "mutate", str(right), "--bug", bug, "--seed", "1", "-o", str(wrong)],
        capture_output=True,
        text=True,
    )
    if made.returncode == DOES_NOT_APPLY:
        return "does not apply"
    if made.returncode != 0:
        raise Failure(made.stderr)
    result = runner.verify(wrong, model_of(LLAMA), "--diagnose", "0", "--confirm", "0")
    expect_code(result, NOT_EQUIVALENT)
    return f"{len(result.report['defects'])} defects, {result.seconds:.1f} s"


def without(runner):
    """Asked not to, nothing is found; a proof log is about what files say."""
    result = runner.verify_plan(thin(Plan(LLAMA)), "--infer", "never", "-t", "1")
    if result.report["inference"] is not None:
        raise Failure("something was inferred: " + result.summary())
    result = runner.verify_plan(
        thin(Plan(LLAMA)), "--infer", "always", "--certify", runner.path("log.json")
    )
    expect_code(result, USAGE)
    return "nothing was found"


def written(runner):
    """What `infer` writes is proved as it is, and can be certified."""
    plan, made = thin(Plan(LLAMA)), runner.path("made.plan.json")
    file = write_json(runner.path("thin.plan.json"), plan.json)
    done = subprocess.run(
        [runner.program, "infer", "-p", str(file), "-m", str(model_of(LLAMA)), "-o", str(made)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise Failure(done.stderr)
    log = runner.path("log.json")
    result = runner.verify(made, model_of(LLAMA), "--infer", "never", "--certify", log)
    expect_code(result, EQUIVALENT)
    checked = subprocess.run(
        [
            runner.program,
            "check-log",
            str(log),
            "--sample",
            "20",
            "--plan",
            str(made),
            "--model",
            str(model_of(LLAMA)),
        ],
        capture_output=True,
        text=True,
    )
    if checked.returncode != 0:
        raise Failure(checked.stdout + checked.stderr)
    return done.stdout.splitlines()[0]


def main():
    runner = Runner(sys.argv[1])
    for name in (LLAMA, LLAMA_TP8) + ((MOE, MOE_128) if REAL else ()):
        runner.case(f"shared_{name.split('.')[0]}", shared, name)
    if REAL:
        for name in ("llama_2layers_dp2_tp2", "torchtitan_llama_fsdp2_tp"):
            if (PLANS / "torch" / f"{name}.plan.json").is_file():
                runner.case(f"torch_{name}", torch, name)
    for name, arguments in GENERATED.items():
        runner.case(f"generated_{name}", generated, arguments)
    for name, (arguments, cut_points) in LARGE.items():
        runner.case(f"large_{name}", large, arguments, cut_points)
    for bug in BUGS:
        runner.case(f"mutated_{bug}", mutated, bug)
    runner.case("without", without)
    runner.case("written", written)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
