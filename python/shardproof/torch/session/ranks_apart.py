# SPDX-License-Identifier: Apache-2.0
"""Whether what follows a script's step cannot be followed because ranks differ.

An array of NumPy, or a decision by the loss, ends a recording wherever it is met: on the single
device and on all ranks in the same place. Such an error shows nothing about ranks. Any other error
may be the trace of a bug: a rank does what others do not, or the single device has nothing like it.
The verdict is then CONDITIONAL at best.
"""

from __future__ import annotations

import re

from ..distributed.mesh import Mesh
from ..export.model_file import tensor_of
from ..trace.initial_state import InitialState
from ..trace.recording import CaptureError, DecidedByData, Recording
from .isolated_processes import IsolatedRecorder, Overrun, Request

_WHO = re.compile(r"\b(?:ranks? \d+|the single device)\b")


def ranks_apart(
    e: Exception,
    single_followed: bool,
    mesh: Mesh,
    isolated: IsolatedRecorder,
    initial_state: InitialState,
    seconds: float,
) -> str:
    """How ranks differ from each other, or from the single device; empty where the error is the
    same everywhere.

    single_followed: the single device was recorded. seconds: what recordings took until now.
    """
    text = str(e) if isinstance(e, CaptureError) else f"{type(e).__name__}: {e}"
    if isinstance(e, DecidedByData):
        return f"ranks decide by numbers of their own: {text}" if e.own else ""
    if getattr(e, "on_all", False):
        return ""
    ranks = sorted({0, min(1, mesh.world - 1), mesh.world - 1})
    try:
        isolated.submit([Request(r, {}, {}, initial_state=initial_state) for r in ranks])
        found = {r: outcome.what for r, outcome in isolated.take(seconds).items()}
    except Overrun:
        return text
    same = {r: same_problem(problem(what), text) for r, what in found.items()}
    if all(same.values()) or not single_followed and any(same.values()):
        return ""
    others = [r for r, is_same in same.items() if not is_same]
    who = f"not on rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
    if not any(same.values()):
        return text
    return f"{text} ({who})"


def problem(what: Recording | Exception) -> str:
    """Why a recording is none, or why what it leaves cannot be followed; empty if it can."""
    if isinstance(what, Exception):
        return str(what)
    side = what.whole()
    for tracked in side.tracked:
        if tracked.role == "output" or tracked.role == "kept" and tracked.name in side.changed:
            try:
                tensor_of(side.graph, tracked)
            except CaptureError as e:
                return str(e)
    return ""


def same_problem(one: str, two: str) -> bool:
    """Whether two such are the same, whoever has them."""
    return bool(one) and _WHO.sub("", one) == _WHO.sub("", two)


__all__ = ["problem", "ranks_apart", "same_problem"]
