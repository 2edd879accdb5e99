# SPDX-License-Identifier: Apache-2.0
"""What shardproof says of many steps: recorded in forked processes, a few at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import multiprocessing
import signal
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import shardproof.torch as sp
import torch
from shardproof.report import Agreement

from .steps import HEAD
from .truth import Case

ARGUMENTS = ("--confirm", "off", "--diagnose", "off", "--stage-timeout", "5", "-j", "1")
_BATCH = 20  # cases of one process: what they leave in memory ends with it
_SECONDS = 120  # of one case

DECIDED = "Decided by data:"  # what the report begins with where each way was verified


class _Overtime(BaseException):
    """Not an Exception: no step catches it."""


def _overtime(*_: Any) -> None:
    raise _Overtime


@dataclasses.dataclass
class Verdict:
    """verdict: or the kind of error. numbers: what the comparison of the recording with a run on
    gloo processes found, where it was asked for.
    """

    verdict: str
    why: str
    numbers: Agreement | None = None


def verdict(case: Case, numbers: bool = False) -> Verdict:
    """What shardproof finds. numbers: the step also runs, and is compared with its recording."""
    space: dict[str, Any] = {"watch": _Nothing()}
    exec(compile(case.source, f"{case.name}.py", "exec"), space)  # pylint: disable=exec-used
    signal.signal(signal.SIGALRM, _overtime)
    signal.alarm(_SECONDS)
    try:
        report = sp.verify(space["step"], mesh=case.mesh, arguments=ARGUMENTS, numbers=numbers)
    except sp.CaptureError as e:
        return Verdict("CaptureError", str(e))
    except _Overtime:
        return Verdict("UNDECIDED", "no time")
    except Exception as e:  # pylint: disable=broad-exception-caught
        return Verdict("Exception", f"{type(e).__name__}: {e}\n{traceback.format_exc(limit=-4)}")
    finally:
        signal.alarm(0)
    why = report.reason or (report.defects[0].text if report.defects else "")
    if DECIDED in report.text:
        why = f"{DECIDED} {why}"
    return Verdict(report.verdict, why, report.numbers)


class _Nothing:
    """The judge's `watch` while a step is recorded."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Nothing is kept."""

    def optimizer(self, *_: Any) -> None:
        """Nothing is kept."""


def _several(cases: Sequence[Case], numbers: bool) -> list[Verdict]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    gc.freeze()  # what torch is made of is not looked at again after each rank
    gc.unfreeze = lambda: None
    return [verdict(case, numbers) for case in cases]


@contextlib.contextmanager
def verdicts(
    cases: Sequence[Case], jobs: int, numbers: bool = False
) -> Iterator[Iterator[Verdict]]:
    """Of all cases, in their order."""
    batches = [cases[i : i + _BATCH] for i in range(0, len(cases), _BATCH)]
    _warm()
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield itertools.chain.from_iterable(
            pool.imap(functools.partial(_several, numbers=numbers), batches)
        )


@functools.cache
def _warm() -> None:
    """What torch imports at its first use the forked processes have then."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for lines in ("m = F.linear", "m = fully_shard(nn.Linear(4, 4), mesh=world.mesh('dp'))"):
            verdict(
                Case(
                    "warm",
                    0,
                    f"{HEAD}\ndef step(world):\n    {lines}\n    return world.input('x', (8,"
                    " 4)).sum()\n",
                    {"dp": 2},
                )
            )
