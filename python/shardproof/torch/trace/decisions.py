# SPDX-License-Identifier: Apache-2.0
"""What the program decides by numbers that depend on data.

A script compares a loss with the best one so far, to save the model or to print. Nothing of the
step may depend on the answer: so each question gets an answer, and the step is recorded again with
every other combination of answers. All recordings have to be the same program. Where an answer
makes the program raise an error, it is no training step, and the others count.

Where an answer makes another program (gradients are clipped if their norm is large), the step is
verified with each answer as a program of its own (session/each_way.py), and the number that decides
is compared as a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .recording import CaptureError, DecidedByData, Decision, Recording

MOST_RECORDINGS = 16  # with other answers, of one side


class Raised(Exception):
    """With these answers the program raises an error."""


def check_decisions(
    who: str,
    side: Recording,
    record: Callable[[tuple[bool, ...]], Recording],
    same: Callable[[Recording], bool],
) -> list[str]:
    """Where the program raises an error for some answers.

    record: the recording with these answers to the first questions; raises Raised. same: whether
    it is the same program. Raises CaptureError where some answer makes another program.
    """
    raising: dict[str, None] = {}
    todo = _others(side.decisions, 0)
    for _ in range(MOST_RECORDINGS):
        if not todo:
            return list(raising)
        answers, loc = todo.pop()
        try:
            other = record(answers)
        except Raised:
            raising[loc] = None
            continue
        except CaptureError as e:
            raise _decides(who, loc, f"it cannot be followed ({e})", side) from None
        if not same(other) or _left(other) != _left(side):
            raise _decides(who, loc, "it is another one", side)
        todo += _others(other.decisions, len(answers))
    loc = side.decisions[0].loc
    raise DecidedByData(
        f"{loc}: {who}: what the program does next depends on data: it asks more questions of this "
        f"kind than {MOST_RECORDINGS} recordings can answer in all ways",
        any(d.own for d in side.decisions),
    )


def _left(side: Recording) -> tuple[Any, ...]:
    """What a step leaves beside its program: numbers and texts that it returns, say."""
    return (
        side.plain,
        side.no_gradient,
        side.changed,
        side.beside,
        side.left_alone,
        side.as_made,
        side.groups_made,
    )


def _others(decisions: Sequence[Decision], first: int) -> list[tuple[tuple[bool, ...], str]]:
    """The other answers to each question from the first one on, after the answers before it."""
    given = [d.answer for d in decisions]
    return [((*given[:i], not given[i]), decisions[i].loc) for i in range(first, len(given))]


def _decides(who: str, loc: str, what: str, side: Recording) -> CaptureError:
    return DecidedByData(
        f"{loc}: {who}: what the program does next depends on data: a number that Tensor.item() "
        f"gave is compared (or a tensor is asked whether it is true), and with the other answer "
        f"{what} (what depends on data can be written with tensors: torch.where, torch.clamp)",
        any(d.own for d in side.decisions if d.loc == loc),
        (d.asked for d in side.decisions if d.loc == loc),
    )
