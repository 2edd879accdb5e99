# SPDX-License-Identifier: Apache-2.0
"""Runs steps of classes and counts: campaign.py [CLASS ...] [--from SEED] [--count N] [--show]
[--numbers].

The truth by numbers beside the verdict. --show: the text of each step that is counted as wrong or
as a false alarm.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from shardproof.report import Agreement

from .truth import RAISES, Case, Judge, Truth
from .verdicts import DECIDED, verdicts

CLASSES = (
    "layers",
    "guards",
    "seeds",
    "identity",
    "returns",
    "labels",
    "reductions",
    "optimizers",
    "buffers",
)
DRAWS = {"guards": 3, "labels": 3}


def case(kind: str, seed: int) -> Case:
    """The step of that class and seed: the same one each time."""
    module = importlib.import_module(f".{kind}", __package__)
    step = module.make(random.Random(f"{kind} {seed}"))
    return Case(kind, seed, step.text(), step.mesh, ", ".join(step.notes), DRAWS.get(kind, 2))


@dataclasses.dataclass
class Result:
    case: Case
    truth: Truth
    verdict: str
    why: str
    numbers: Agreement | None = None

    @property
    def wrong(self) -> bool:
        """EQUIVALENT, and numbers differ."""
        return self.truth.same is False and self.verdict == "EQUIVALENT"

    @property
    def alarm(self) -> bool:
        """NOT EQUIVALENT, and no number differs. What is drawn may not lead to the way that is
        wrong, where the step decides by data.
        """
        decided = self.why.startswith(DECIDED)
        return self.truth.same is True and self.verdict == "NOT EQUIVALENT" and not decided

    @property
    def failure(self) -> bool:
        """It cannot be recorded, though it runs."""
        return (
            self.verdict == "Exception"
            and (self.truth.same is not False or not self.truth.where.startswith("rank "))
            and RAISES not in self.truth.where
        )


def run(cases: Sequence[Case], jobs: int = 2, numbers: bool = False) -> list[Result]:
    """Truth and verdict of each. numbers: recordings are compared with runs as well."""
    with Judge() as judge, verdicts(cases, jobs, numbers) as found:  # these are found meanwhile
        truths = [judge.truth(c) for c in cases]
        return [
            Result(c, t, v.verdict, v.why, v.numbers)
            for c, t, v in zip(cases, truths, found, strict=True)
        ]


def agreement(results: Iterable[Result]) -> list[str]:
    """How many recordings agree with runs, each that differs, and why others were not compared."""
    agree, tensors, lines = 0, 0, []
    reasons: collections.Counter[str] = collections.Counter()
    for r in results:
        if r.numbers is None:
            reasons[f"no verdict ({r.verdict})"] += 1
        elif r.numbers.differs:
            lines.append(f"THE RECORDING DIFFERS {r.case.name}: {r.numbers.differs}")
        elif r.numbers.because:
            reasons[r.numbers.because[:100]] += 1
        else:
            agree, tensors = agree + 1, tensors + r.numbers.compared
    lines.append(f"recordings that agree with runs: {agree} steps, {tensors} tensors")
    return lines + [f"not compared: {n} ({why})" for why, n in reasons.most_common()]


def table(results: Iterable[Result]) -> list[str]:
    """Counts by class."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for r in results:
        truth = {True: "right", False: "wrong", None: "unclear"}[r.truth.same]
        counts[r.case.kind][f"{truth} {r.verdict}"] += 1
    columns = [
        f"{t} {v}"
        for t in ("right", "wrong", "unclear")
        for v in (
            "EQUIVALENT",
            "CONDITIONAL",
            "NOT EQUIVALENT",
            "UNDECIDED",
            "CaptureError",
            "Exception",
        )
    ]
    used = [c for c in columns if any(counts[k][c] for k in counts)]
    return ["| class | " + " | ".join(used) + " |"] + [
        f"| {k} | " + " | ".join(str(n[c]) for c in used) + " |" for k, n in counts.items()
    ]


def main(write: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("classes", nargs="*")
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument(
        "--numbers", action="store_true", help="compare recordings with runs on gloo processes"
    )
    parser.add_argument(
        "--log", help="append what was found to this file, one JSON object for each step"
    )
    given = parser.parse_args()
    results: list[Result] = []
    for kind in given.classes or CLASSES:
        start, used = time.monotonic(), sum(os.times()[:4])
        found = run(
            [case(kind, s) for s in range(given.first, given.first + given.count)],
            given.jobs,
            given.numbers,
        )
        results += found
        write(
            f"{kind}: {time.monotonic() - start:.0f} s, processors"
            f" {sum(os.times()[:4]) - used:.0f} s"
        )
        if given.log:
            with open(given.log, "a", encoding="utf-8") as log:
                for r in found:
                    log.write(
                        json.dumps(
                            {
                                "case": r.case.name,
                                "note": r.case.note,
                                "truth": r.truth.same,
                                "where": r.truth.where,
                                "verdict": r.verdict,
                                "why": r.why,
                            }
                        )
                        + "\n"
                    )
        for r in found:
            if given.list or r.wrong or r.alarm or r.failure:
                write(
                    f"{'WRONG VERDICT' if r.wrong else 'FALSE ALARM' if r.alarm else '-'}"
                    f" {r.case.name} ({r.case.note}): truth {r.truth}, {r.verdict}: {r.why[:500]}"
                )
                if given.show:
                    write(r.case.source.split("\n\n", 1)[-1])
        sys.stdout.flush()
    for line in [*table(results), *(agreement(results) if given.numbers else ())]:
        write(line)
    return int(any(r.wrong or (r.numbers is not None and r.numbers.differs != "") for r in results))


if __name__ == "__main__":
    sys.exit(main())
