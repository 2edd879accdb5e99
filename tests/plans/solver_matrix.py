# SPDX-License-Identifier: Apache-2.0
"""Three checkers on the same obligations: `--checker auto`, `--checker z3`, cvc5 on `--smt2` files.

Right plans (the first real plan where it exists, generated ones) and plans with the bugs of
`shardproof mutate`. No two checkers may contradict each other: one proves what another refutes.
What one could not decide, or not in its time, is counted as such. docs/solvers.md defines what is
comparable.

`--write docs/solvers.md` (behind the program's path) writes the tables of that file, from whatever
was run. SHARDPROOF_SLOW_TESTS=1: more plans and all bugs. SHARDPROOF_QUERY_SECONDS: how long a
solver may take for one obligation.
"""

import collections
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import mutation_matrix as matrix
from document import write_between
from plan_edit import (
    EQUIVALENT,
    LLAMA,
    NOT_EQUIVALENT,
    PLANS,
    SLOW,
    UNDECIDED,
    Failure,
    Runner,
    expect_code,
)

# For cvc5, one obligation.
QUERY_SECONDS = int(os.environ.get("SHARDPROOF_QUERY_SECONDS", 10 if SLOW else 1))
STAGE_SECONDS = max(QUERY_SECONDS, 2)  # for Z3, one stage
RUN_SECONDS = max(6 * QUERY_SECONDS, 30)  # for a run of `verify --checker z3`

# As small as the architecture allows: the question is whether solvers agree, and they need time.
PLANS_OF = {
    "mlp.all": ["mlp", "--dp", "2", "--tp", "2", "--pp", "2", "--microbatches", "2"],
    "mlp.zero1_clipped": [
        "mlp",
        *shlex.split("--dp 4 --microbatches 2 --zero 1 --clip 1.0"),
    ],
    "llama3.all": [
        "llama3",
        *shlex.split(
            "--layers 2 --dim 16 --hidden 24 --heads 4 --kv-heads 2 --seq 8 --vocab 32 --dp 2 "
            "--tp 2 --pp 2 --microbatches 2"
        ),
    ],
}
SLOW_PLANS = {
    "mlp.zero3": [
        "mlp",
        *shlex.split("--dp 2 --tp 2 --pp 2 --microbatches 2 --zero 3 --schedule 1f1b"),
    ],
    "llama3.sequence_parallel": [
        *PLANS_OF["llama3.all"],
        *shlex.split("--sequence-parallel --zero 1 --schedule 1f1b"),
    ],
    "llama3.vocabulary_parallel": [*PLANS_OF["llama3.all"], "--vocab-parallel"],
    "gpt.all": [
        "gpt",
        *shlex.split(
            "--layers 2 --dim 16 --heads 4 --seq 8 --vocab 32 --dp 2 --tp 2 --pp 2 --microbatches 2"
        ),
    ],
}
# A few bugs of the larger plan in every run: those of operators and of their order, which the small
# plans have fewer of.
LLAMA_BUGS = (
    "rope_offset",
    "norm_weight_not_reduced",
    "wrong_operand",
    "missing_all_reduce",
    "constant_on_one_rank",
)

CHECKERS = ("auto", "z3", "cvc5")


class Tally:
    """What became of plans and of obligations, for the tables and for the end of the run."""

    def __init__(self):
        self.lock = threading.Lock()
        # Row: checker: outcome.
        self.plans = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
        self.obligations = collections.Counter()  # (verdict of auto, comparable, answer of cvc5)
        self.seconds = []
        self.missing = collections.Counter()


class Cvc5:
    """Answers by content: mutated plans share most obligations with the plan they come from."""

    def __init__(self, program):
        self.program = program
        self._answers, self._locks, self._lock = (
            {},
            collections.defaultdict(threading.Lock),
            threading.Lock(),
        )

    def answer(self, file, tally):
        """sat, unsat, unknown or time-out.

        Scripts that differ only in comments and expectations share it.
        """
        kept = [
            line.split("  ;")[0]
            for line in file.read_text().splitlines()
            if not line.startswith((";", "(set-info :status"))
        ]
        key = hashlib.sha256("\n".join(kept).encode()).digest()
        with self._lock:
            lock = self._locks[key]
        with lock:
            if key not in self._answers:
                self._answers[key] = self._ask(file, tally)
            return self._answers[key]

    def _ask(self, file, tally):
        start = time.monotonic()
        done = subprocess.run(
            [self.program, f"--tlimit={QUERY_SECONDS * 1000}", str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=QUERY_SECONDS + 60,
        )
        seconds = time.monotonic() - start
        first = (done.stdout.split() or [""])[0]
        if first in ("sat", "unsat", "unknown"):
            with tally.lock:
                tally.seconds.append(seconds)
            return first
        if "interrupted by timeout" in done.stdout + done.stderr or seconds >= QUERY_SECONDS:
            return "time-out"
        raise Failure(
            f"{file.name}: cvc5 does not understand it: {(done.stdout + done.stderr).strip()[:300]}"
        )


def contradiction(obligation, answer):
    """Why cvc5's answer contradicts our checker's verdict on an obligation; None if it does not.

    sat contradicts a proof only where the script states every law that normal forms know of its
    functions. unsat contradicts a refutation in numbers that are defined on both sides.
    """
    if (
        obligation["verdict"] == "proved"
        and answer == "sat"
        and not obligation["functions_with_more_laws"]
    ):
        return "proved by us, sat for cvc5"
    if obligation["verdict"] == "refuted" and answer == "unsat" and obligation["status"] == "sat":
        return "refuted by us, unsat for cvc5"
    return None


def ask_cvc5(cvc5, directory, tally):
    """cvc5's verdict on a plan by its obligations.

    Refuted, proved, undecided, time-out, or none where the plan has no obligations.
    """
    index = json.loads((directory / "index.json").read_text())
    if not index["complete"]:
        raise Failure("the index is not complete")
    listed = {o["file"] for o in index["obligations"] if o["file"]}
    there = {f.name for f in directory.iterdir()} - {"index.json"}
    if listed != there:
        raise Failure(f"files and index differ: {sorted(listed ^ there)[:5]}")
    outcome = collections.Counter()
    for o in index["obligations"]:
        if o["file"] is None:
            with tally.lock:
                tally.missing[o["missing"]] += 1
            outcome["undecided"] += o["final"]
            continue
        answer = cvc5.answer(directory / o["file"], tally)
        wrong = contradiction(o, answer)
        if wrong is not None:
            kept = (
                pathlib.Path(os.environ.get("TMPDIR", "/tmp"))
                / f"shardproof-disagreement-{o['file']}"
            )
            shutil.copy(directory / o["file"], kept)
            raise Failure(f"DISAGREEMENT: {o['file']} is {wrong} ({kept}); {o['stages'][0]}")
        laws = bool(o["functions_with_more_laws"])
        with tally.lock:
            tally.obligations[(o["verdict"], laws, answer)] += 1
        if not o["final"]:  # cut again: the plan's verdict does not rest on it
            continue
        outcome[
            "refuted"
            if answer == "sat" and not laws
            else "proved"
            if answer == "unsat" and o["conclusive"]
            else "time-out"
            if answer == "time-out"
            else "undecided"
        ] += 1
    for first in (
        "refuted",
        "time-out",
        "undecided",
        "proved",
    ):
        # One stage that differs is a plan that differs from its lineage.
        if outcome[first]:
            return first
    return None


VERDICTS = {EQUIVALENT: "proved", NOT_EQUIVALENT: "refuted", UNDECIDED: "undecided"}


def compare(runner, cvc5, tally, row, plan, model, expected):
    """All three on one plan."""
    directory = pathlib.Path(runner.path("obligations"))
    auto = runner.verify(plan, model, "--smt2", directory, "--stage-timeout", 20)
    expect_code(auto, expected)
    said = {"auto": VERDICTS[auto.code]}
    structural = not json.loads((directory / "index.json").read_text())["obligations"]
    try:
        z3 = runner.verify(
            plan, model, "--checker", "z3", "--stage-timeout", STAGE_SECONDS, limit=RUN_SECONDS
        )
        expect_code(z3, *VERDICTS)
        said["z3"] = VERDICTS[z3.code]
        others = z3.stages()
        for entry, stage in auto.stages().items():
            if {stage["verdict"], others.get(entry, stage)["verdict"]} == {"proved", "refuted"}:
                raise Failure(
                    f"DISAGREEMENT: /lineage/{entry} is {stage['verdict']} by auto, "
                    f"{others[entry]['verdict']} by z3"
                )
    except Failure as failure:
        if "did not end within" not in str(failure):
            raise
        said["z3"] = "time-out"
    if {said["auto"], said["z3"]} == {"proved", "refuted"}:
        raise Failure(f"DISAGREEMENT: the plan is {said['auto']} by auto, {said['z3']} by z3")
    said["cvc5"] = ask_cvc5(cvc5, directory, tally)
    if expected == EQUIVALENT and said["cvc5"] == "refuted":
        raise Failure("DISAGREEMENT: an obligation of a plan that is right is sat")
    with tally.lock:
        for checker in CHECKERS:
            tally.plans[row][checker]["before any proof" if structural else said[checker]] += 1
    shutil.rmtree(directory)
    return "before any proof" if structural else ", ".join(f"{c} {said[c]}" for c in CHECKERS)


def mutated(runner, cvc5, tally, files, bug, seed):
    plan = runner.path("plan.json")
    done = matrix.run(runner, "mutate", files["plan"], "--bug", bug, "--seed", seed, "-o", plan)
    if done.returncode != 0:
        raise Failure(f"mutate: exit {done.returncode}: {done.stderr.strip()}")
    text = compare(runner, cvc5, tally, bug, plan, files["model"], NOT_EQUIVALENT)
    pathlib.Path(plan).unlink()
    return text


def counts(counter):
    return ", ".join(f"{n} {what}" for what, n in sorted(counter.items()))


def write_tables(path, tally, bugs):
    lines = ["| plans | auto | z3 | cvc5 |", "| --- | --- | --- | --- |"]
    order = sorted(row for row in tally.plans if row.startswith("right: ")) + [
        b for b, _, _ in bugs if b in tally.plans
    ]
    for row in order:
        lines.append(
            f"| {row if row.startswith('right: ') else f'`{row}`'} | "
            + " | ".join(counts(tally.plans[row][c]) for c in CHECKERS)
            + " |"
        )
    write_between(path, "plans", lines)
    lines = [
        "| our verdict | all laws stated | unsat | sat | unknown | time-out |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for verdict in ("proved", "refuted", "undecided"):
        for laws in (False, True):
            row = {
                a: tally.obligations[(verdict, laws, a)]
                for a in ("unsat", "sat", "unknown", "time-out")
            }
            if any(row.values()):
                lines.append(
                    f"| {verdict} | {'no' if laws else 'yes'} | "
                    + " | ".join(map(str, row.values()))
                    + " |"
                )
    lines += [
        "",
        f"{len(tally.seconds)} different obligations were answered, in "
        f"{statistics.median(tally.seconds):.3f} s in the median and {max(tally.seconds):.1f} s "
        f"at most; "
        f"the limit was {QUERY_SECONDS} s. Not written: {counts(tally.missing) or 'none'}.",
    ]
    write_between(path, "obligations", lines)


def main():
    table = matrix.document_to_write()
    program = shutil.which("cvc5")
    if program is None:
        print("no cvc5 on the path: scripts/setup installs it")
        return 1
    runner, tally, cvc5 = Runner(sys.argv[1]), Tally(), Cvc5(program)
    bugs = matrix.known_bugs(runner)
    if (PLANS / LLAMA).is_file():
        runner.case(
            "right_first_real_plan",
            compare,
            cvc5,
            tally,
            "right: the first real plan",
            PLANS / LLAMA,
            None,
            EQUIVALENT,
        )
    else:
        print(f"{PLANS} does not hold {LLAMA}: a generated plan of the same kind stands for it")
    for name, command in {**PLANS_OF, **(SLOW_PLANS if SLOW else {})}.items():
        prefix = runner.path("g")
        done = matrix.run(runner, "generate", *command, "-o", prefix)
        if done.returncode != 0:
            print(f"FAILED {name}: generate: exit {done.returncode}: {done.stderr.strip()}")
            return 1
        model, plan = done.stdout.split()
        files = {"model": model, "plan": plan}
        runner.case(
            f"right_{name}", compare, cvc5, tally, f"right: {name}", plan, model, EQUIVALENT
        )
        applies = matrix.places(runner, plan)
        for bug, _, _ in bugs:
            if applies[bug] and (SLOW or not name.startswith("llama3") or bug in LLAMA_BUGS):
                runner.case(f"mutation.{bug}.{name}", mutated, cvc5, tally, files, bug, 0)
    code = runner.run()
    for key, n in sorted(tally.obligations.items(), key=str):
        print(
            f"{n} obligations: {key[0]} by auto, {key[2]} for "
            f"cvc5{' (more laws)' if key[1] else ''}"
        )
    everything = len(sys.argv) == 2
    if (
        everything
        and code == 0
        and not (
            tally.obligations[("proved", False, "unsat")] > 100
            and tally.obligations[("refuted", False, "sat")] > 20
        )
    ):
        print("FAILED: too few obligations were compared for this to say anything")
        code = 1
    if table is not None:
        write_tables(table, tally, bugs)
    return code


if __name__ == "__main__":
    sys.exit(main())
