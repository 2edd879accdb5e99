# SPDX-License-Identifier: Apache-2.0
"""Every bug of `shardproof mutate` in generated plans of every architecture.

The plan is equivalent, the plan with the bug is not. The report names a node that the bug touched,
one that reads its results, or, for communication, one that produces what it sends.

`--write docs/bugs.md` (behind the program's path) writes the outcomes into the table of that file,
from whatever was run.
"""

import collections
import pathlib
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from document import write_between
from plan_edit import (
    DOES_NOT_APPLY,
    EQUIVALENT,
    NOT_EQUIVALENT,
    SLOW,
    UNDECIDED,
    Failure,
    Plan,
    Runner,
    expect_code,
    operands,
    plan_pointers,
)

DEFECTS_LOOKED_AT = 3
SEEDS = 6 if SLOW else 1
MOST_OPEN = 1 if SLOW else 0  # undecided, or not in time; only ever lowered
# Where a whole layer is one lemma a report cannot always name the node: it lists the nearest 32 of
# a hundred. The table has how often it does.
COARSE = "--cut-points layers"

LLAMA = "--layers 2 --dim 16 --hidden 24 --heads 4 --kv-heads 2 --seq 8 --vocab 32"
MANY = "--dp 2 --tp 2 --pp 2 --microbatches 2"
GPT = "--layers 2 --dim 16 --heads 4 --seq 8 --vocab 32"
DEEPSEEK = (
    "--size 671B --layers 2 --dense-layers 1 --dim 16 --hidden 24 --heads 4 --seq 4 --vocab 32 "
    "--experts 8 --active-experts 2 --expert-hidden 12 --expert-groups 4 --active-groups 2 "
    "--query-rank 12 --kv-rank 8 --nope-dim 4 --rope-dim 2 --value-dim 6 --balance-loss 0.01"
)
SPARSE = f"{LLAMA} --head-dim 4 --experts 4 --active-experts 2 --expert-hidden 6"
ARCHITECTURES = {
    "mlp": "",
    "llama3": LLAMA,
    "gpt": GPT,
    "deepseek-v3": DEEPSEEK,
    "mixtral": SPARSE,
    "gpt-oss": SPARSE,
}

# What a combination is for. `*` marks those of every run; the others need SHARDPROOF_SLOW_TESTS=1.
COMBINATIONS = {
    "mlp": {
        "all*": MANY,
        "dp": "--dp 2",
        "tp_clipped*": "--tp 2 --clip 1.0 --optimizer adamw",
        "pp3": "--layers 3 --pp 3 --microbatches 3",
        "zero1*": "--dp 4 --microbatches 2 --zero 1 --clip 1.0",
        "zero2": "--dp 4 --pp 2 --microbatches 2 --zero 2",
        "zero3*": f"{MANY} --zero 3 --schedule 1f1b",
        "interleaved": (
            "--layers 4 --pp 2 --virtual-stages 2 --tp 2 --microbatches 4 --schedule interleaved"
        ),
        "recompute*": f"{MANY} --recompute",
        "dp8": "--dp 8 --tp 2",
    },
    "llama3": {
        "all*": MANY,
        "ring*": "--layers 1 --dp 2 --cp 2 --cp-ring",
        "balanced_ring": f"{MANY} --cp 2 --cp-ring --cp-balanced",
        "sequence_parallel*": (
            f"{MANY} --vocab-parallel --sequence-parallel --zero 1 --schedule 1f1b --recompute"
        ),
        "dp": "--dp 2",
        "tp4": "--tp 4 --kv-heads 4 --heads 8 --vocab-parallel",
        "vocabulary_parallel": f"{MANY} --vocab-parallel",
        "zero2": f"{MANY} --zero 2",
        "zero3": f"{MANY} --zero 3 --vocab-parallel --sequence-parallel",
        "interleaved": "--layers 4 --pp 2 --virtual-stages 2 --dp 2 --tp 2 --vocab-parallel "
        "--sequence-parallel --microbatches 4 --schedule interleaved",
        "layers_only": f"{MANY} --vocab-parallel --sequence-parallel --cut-points layers",
    },
    "gpt": {
        "all": MANY,
        "tied_zero1*": f"{MANY} --vocab-parallel --sequence-parallel --zero 1 --schedule 1f1b",
        "dp": "--dp 2",
        "zero2": f"{MANY} --zero 2 --vocab-parallel",
        "zero3": f"{MANY} --zero 3 --recompute",
        "interleaved": (
            "--layers 4 --pp 2 --virtual-stages 2 --dp 2 --microbatches 4 --schedule interleaved"
        ),
        "no_dropout": f"{MANY} --dropout 0 --recompute --pp 4 --layers 4",
    },
    "mixtral": {
        "experts_over_both": f"{MANY} --dp 4 --ep 4",
        "context": "--dp 2 --tp 2 --ep 2 --cp 2 --cp-balanced",
    },
    "gpt-oss": {"experts_over_tp": f"{MANY} --ep 2"},
    "deepseek-v3": {
        "experts_over_tp*": f"{MANY} --ep 2",
        "experts_over_dp*": "--dp 4 --ep 2 --microbatches 2",
        "experts_over_both": f"{MANY} --dp 4 --ep 4 --mtp 1",
        "hidden_over_tp": "--dp 4 --tp 2 --ep 2 --expert-tp 2 --microbatches 2 --zero 1",
        "sequence_parallel": (
            f"{MANY} --dp 4 --ep 4 --vocab-parallel --sequence-parallel --zero 2 --schedule 1f1b"
        ),
    },
}


class Outcomes:
    """What became of each bug, for the table."""

    def __init__(self):
        self._lock = threading.Lock()
        self.of = collections.defaultdict(list)  # bug: [(combination, outcome, named)]

    def add(self, bug, combination, outcome, named):
        with self._lock:
            self.of[bug].append((combination, outcome, named))


def options(*texts):
    """Options of several texts; a later one replaces an earlier one."""
    found = {}
    for text in texts:
        for option in text.replace(" --", "\n--").splitlines():
            name, _, value = option.strip().partition(" ")
            found[name] = value
    return [word for name, value in found.items() for word in (name, value) if word]


def run(runner, *arguments):
    return subprocess.run(
        [runner.program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def known_bugs(runner):
    """Name, what it does, whose it was."""
    bugs = []
    for line in run(runner, "mutate", "--list").stdout.splitlines():
        name, rest = line.split("  ", 1)
        does, source = rest.strip().rstrip("]").rsplit(" [", 1)
        bugs.append((name, does, source))
    return bugs


def places(runner, plan):
    """How many places of the plan each bug applies to."""
    found = {}
    for line in run(runner, "mutate", "--list", plan).stdout.splitlines():
        name, count = line.split()[:2]
        found[name] = int(count)
    return found


def producers(plan, pointers):
    """Nodes that make what the touched communication nodes send."""
    found = set()
    for pointer in pointers:
        program = int(pointer.split("/")[2])
        node = plan.at(pointer)
        if "comm" not in node:
            continue
        wanted = set(operands(node))
        found |= {
            f"/programs/{program}/nodes/{i}"
            for i, n in enumerate(plan.programs[program]["nodes"])
            if wanted & {t for t in n["out"] if t}
        }
    return found


def unmutated(runner, files, command):
    prefix = runner.path("g")
    done = run(runner, "generate", *command, "-o", prefix)
    if done.returncode != 0:
        raise Failure(f"generate: exit {done.returncode}: {done.stderr.strip()}")
    model, plan = done.stdout.split()
    files["coarse"] = COARSE in " ".join(command)
    result = runner.verify(plan, model)
    expect_code(result, EQUIVALENT)
    files["model"], files["plan"], files["places"] = model, plan, places(runner, plan)


def mutated(runner, files, outcomes, combination, bug, seed):
    plan_file = runner.path("plan.json")
    done = run(runner, "mutate", files["plan"], "--bug", bug, "--seed", seed, "-o", plan_file)
    if done.returncode != 0:
        raise Failure(f"mutate: exit {done.returncode}: {done.stderr.strip()}")
    first, *lines = done.stdout.splitlines()
    touched = [line.split()[0] for line in lines]
    plan = Plan(plan_file)
    plan.touch(*map(plan.at, touched))
    accepted = plan.accepted() | producers(plan, touched)
    # A wrong stage that is too large for a check of its own goes to the end-to-end evaluation when
    # its time is up.
    try:
        result = runner.verify(plan_file, files["model"], "--stage-timeout", 5)
    except Failure:
        outcomes.add(bug, combination, "not in time", False)
        raise
    if result.code == NOT_EQUIVALENT:
        named = next(
            (
                i
                for i, defect in enumerate(result.report["defects"][:DEFECTS_LOOKED_AT])
                if accepted & set(plan_pointers(defect))
            ),
            None,
        )
        outcomes.add(bug, combination, "refuted", named is not None)
        pathlib.Path(plan_file).unlink()
        if named is None and files["coarse"]:
            return f"{first}; not named, a layer is one lemma"
        if named is None:
            raise Failure(
                f"{first}: none of the first {DEFECTS_LOOKED_AT} defects names one of "
                f"{' '.join(sorted(accepted)[:10])}: {result.summary()}"
            )
        return f"{first}; defect {named} ({result.report['defects'][named]['kind']}) names it"
    outcomes.add(
        bug, combination, "undecided" if result.code == UNDECIDED else f"exit {result.code}", False
    )
    raise Failure(f"{first}; expected exit {NOT_EQUIVALENT}: {result.summary()}")


def refused(runner, files, bug):
    """A bug that applies nowhere says so."""
    done = run(runner, "mutate", files["plan"], "--bug", bug, "-o", runner.path("none.json"))
    if done.returncode != DOES_NOT_APPLY or "does not apply anywhere" not in done.stderr:
        raise Failure(f"mutate: exit {done.returncode}: {done.stderr.strip()}")


def summary(combinations):
    """mlp.dp, mlp.pp3, ...: those of one architecture together."""
    text = []
    for architecture, known in COMBINATIONS.items():
        own = [
            name.rstrip("*")
            for name in known
            if f"{architecture}.{name.rstrip('*')}" in combinations
        ]
        if own:
            text.append(
                f"{architecture}: "
                + (f"all {len(own)}" if len(own) == len(known) else ", ".join(own))
            )
    return "; ".join(text)


def write_table(path, bugs, outcomes):
    lines = [
        "| bug | what it does | whose it was | plans | outcome | named |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, does, source in bugs:
        results = outcomes.of[name]
        combinations = {r[0] for r in results}
        kinds = collections.Counter(r[1] for r in results)
        outcome = (
            ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
            or "applies to none of the plans"
        )
        named = f"{sum(r[2] for r in results)} of {len(results)}" if results else ""
        lines.append(
            f"| `{name}` | {does} | {source} | {summary(combinations)} | {outcome} | {named} |"
        )
    write_between(path, "outcomes", lines)


def document_to_write():
    """The file after --write, which is taken out of the command line; None without."""
    if "--write" not in sys.argv:
        return None
    at = sys.argv.index("--write")
    file = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    return file


def main():
    table = document_to_write()
    runner = Runner(sys.argv[1])
    bugs = known_bugs(runner)
    outcomes = Outcomes()
    for architecture, combinations in COMBINATIONS.items():
        for name, chosen in combinations.items():
            if not SLOW and not name.endswith("*"):
                continue
            combination = f"{architecture}.{name.rstrip('*')}"
            files = {}
            try:
                unmutated(
                    runner, files, [architecture, *options(ARCHITECTURES[architecture], chosen)]
                )
            except Failure as failure:
                print(f"FAILED {combination}: {failure}")
                return 1
            for bug, _, _ in bugs:
                if files["places"][bug] == 0:
                    runner.case(f"mutation.{bug}.{combination}.refused", refused, files, bug)
                for seed in range(min(SEEDS, files["places"][bug])):
                    runner.case(
                        f"mutation.{bug}.{combination}.{seed}",
                        mutated,
                        files,
                        outcomes,
                        combination,
                        bug,
                        seed,
                    )
    code = runner.run(most_open=MOST_OPEN)
    if table is not None:
        write_table(table, bugs, outcomes)
    return code


if __name__ == "__main__":
    sys.exit(main())
