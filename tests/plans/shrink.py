# SPDX-License-Identifier: Apache-2.0
"""`shardproof shrink`: plans become smaller ones with the same verdict.

Generated plans, and the real ones beside the repository if they exist, stay equivalent. Plans with
a bug of `shardproof mutate` stay wrong. SHARDPROOF_SLOW_TESTS=1 takes every bug at several places,
and all real plans.
"""

import json
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import (
    EQUIVALENT,
    NOT_EQUIVALENT,
    PLANS,
    SLOW,
    UNDECIDED,
    USAGE,
    Failure,
    Runner,
    expect_code,
)

SEEDS = 4 if SLOW else 1
LLAMA = "llama3 --layers 2 --dim 64 --hidden 128 --heads 8 --kv-heads 4 --seq 32 --vocab 512"
GPT = "gpt --layers 2 --dim 64 --hidden 128 --heads 8 --seq 32 --vocab 512"

# The plan, and how many times fewer elements are left at least.
PLANS_MADE = {
    "mlp": ("mlp --dp 8 --tp 2 --microbatches 4", 20),
    "mlp_two_axes": ("mlp --dp 6 --tp 4 --pp 2 --microbatches 2", 10),
    "llama_dp": (f"{LLAMA} --dp 16 --tp 2 --microbatches 2", 50),
    "llama_shared_heads": (f"{LLAMA} --dp 8 --tp 8 --microbatches 2 --vocab-parallel", 50),
    "llama_sequence": (
        f"{LLAMA} --dp 8 --tp 4 --pp 2 --microbatches 4 --vocab-parallel --sequence-parallel "
        f"--zero 1",
        10,
    ),
    "llama_zero2": (f"{LLAMA} --dp 8 --tp 2 --microbatches 2 --zero 2", 30),
    "llama_zero3": (f"{LLAMA} --dp 8 --tp 2 --microbatches 2 --zero 3", 30),
    "llama_1f1b": (
        f"{LLAMA} --dp 8 --tp 2 --pp 2 --microbatches 4 --vocab-parallel --sequence-parallel "
        f"--zero 1 --schedule 1f1b",
        3,
    ),
    "gpt": (
        f"{GPT} --dp 8 --tp 4 --pp 2 --microbatches 2 --sequence-parallel --vocab-parallel "
        f"--zero 1",
        10,
    ),
    "llama_8B": (
        "llama3 --size 8B --layers 2 --dp 64 --tp 8 --pp 2 --microbatches 8 --zero 1",
        1e5,
    ),
    "gpt_175B": (
        "gpt --size 175B --layers 4 --dp 16 --tp 8 --pp 4 --microbatches 8 --sequence-parallel "
        "--vocab-parallel --zero 1",
        1e4,
    ),
}
# A few of each kind: forward, backward, groups, windows, scales, optimizer, pipeline.
BUGS = [
    "missing_all_reduce",
    "missing_all_reduce_backward",
    "wrong_group",
    "norm_weight_not_reduced",
    "vocabulary_window",
    "rope_offset",
    "loss_scaled_wrongly",
    "gradient_scaled_wrongly",
    "wrong_operand",
    "reduce_scatter_for_all_reduce",
    "constant_on_one_rank",
    "clip_leaves_out_shards",
    "wrong_microbatch_gradient",
    "data_parallel_loss_scale",
    "never_divided",
    "exchanged_pipeline_peers",
    "pad_slice_mismatch",
]
# Plans of pipelines take some ten seconds each at full size, so they get the bugs that others have
# no place for.
MUTATED = {
    "mlp": BUGS,
    "llama_zero2": BUGS,
    "llama_sequence": ["norm_weight_not_reduced", "vocabulary_window", "exchanged_pipeline_peers"],
    "gpt": ["vocabulary_window"],
}


def run(runner, *arguments):
    return subprocess.run(
        [runner.program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def shrunk(runner, plan, model=None):
    """The files of the smaller plan, and how many times fewer elements it has."""
    prefix = runner.path("small")
    done = run(runner, "shrink", "-p", plan, *(["-m", model] if model else []), "-o", prefix)
    if done.returncode != 0:
        raise Failure(f"shrink: exit {done.returncode}: {done.stderr.strip()}")
    *lines, small_model, small_plan = done.stdout.splitlines()
    before, after = next(
        re.fullmatch(r"elements of all tensors: (\S+) -> (\S+)", line).groups()
        for line in lines
        if line.startswith("elements")
    )
    return small_model, small_plan, float(before) / float(after)


def generate(runner, command):
    prefix = runner.path("full")
    done = run(runner, "generate", *command.split(), "-o", prefix)
    if done.returncode != 0:
        raise Failure(f"generate: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout.split()


def right(runner, command, times):
    model, plan = generate(runner, command)
    small_model, small_plan, fewer = shrunk(runner, plan)
    expect_code(runner.verify(small_plan, small_model), EQUIVALENT)
    if fewer < times:
        raise Failure(f"{fewer:.3g} times fewer elements, expected {times:g}")
    named = json.loads(pathlib.Path(small_plan).read_text())["model"]
    if named != pathlib.Path(small_model).name:
        raise Failure(f"the smaller plan names {named}")
    return f"{fewer:.3g} times fewer elements"


def wrong(runner, command, bug):
    model, plan = generate(runner, command)
    places = 0
    for seed in range(SEEDS):
        bad = runner.path("bad.plan.json")
        done = run(runner, "mutate", plan, "--bug", bug, "--seed", seed, "-o", bad)
        if done.returncode == USAGE:
            return "does not apply"
        before = runner.verify(bad, model, "--stage-timeout", 5)
        if before.code != NOT_EQUIVALENT:
            continue
        small_model, small_plan, _ = shrunk(runner, bad, model)
        result = runner.verify(small_plan, small_model, "--stage-timeout", 5)
        expect_code(result, NOT_EQUIVALENT, *([UNDECIDED] if SLOW else []))
        places += 1
    return f"{places} places"


def real(runner, plan):
    small_model, small_plan, fewer = shrunk(runner, plan)
    before = runner.verify(plan, None)
    after = runner.verify(small_plan, small_model)
    if after.code != before.code:
        raise Failure(f"exit {before.code} before, {after.code} after: {after.summary()}")
    return f"{fewer:.3g} times fewer elements"


def too_small(runner):
    """A limit that cannot be met is a refusal with its reason, and writes nothing."""
    _, plan = generate(runner, PLANS_MADE["mlp"][0])
    prefix = runner.path("none")
    done = run(runner, "shrink", "-p", plan, "-o", prefix, "--max-elements", 10)
    if done.returncode != UNDECIDED or "limit of 10" not in done.stderr or done.stdout:
        raise Failure(f"exit {done.returncode}: {done.stdout} {done.stderr}")
    if list(runner.directory.glob(prefix.name + "*")):
        raise Failure("wrote something")


def main():
    runner = Runner(sys.argv[1])
    for name, (command, times) in PLANS_MADE.items():
        runner.case(f"mutation.right.{name}", right, command, times)
    for name in PLANS_MADE if SLOW else MUTATED:
        for bug in BUGS if SLOW else MUTATED[name]:
            runner.case(f"mutation.{name}.{bug}", wrong, PLANS_MADE[name][0], bug)
    for plan in sorted(PLANS.glob("*.plan.json*")) + sorted(PLANS.glob("torch/*.plan.json*")):
        if SLOW or plan.stat().st_size < 300_000 and "megatron" not in plan.name:
            # That one takes a minute to be undecided.
            runner.case(f"mutation.real.{plan.name.split('.')[0]}", real, plan)
    runner.case("mutation.limit", too_small)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
