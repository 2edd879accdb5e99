# SPDX-License-Identifier: Apache-2.0
"""Steps that decide by data what they do: each answer makes a program, and each is verified.

All answers of one line are the same in one program. Along each way the number that decides is a
result, so that ranks that would decide otherwise than the single device are not equivalent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...report import Report
from ..intercept.data_number import Question
from ..trace.recording import CaptureError, DecidedByData, Recording
from .wording import with_second_paragraph

# Of what numbers are compared with: what is computed in another order differs by less.
_SAME = 1e-12

Answers = tuple[tuple[str, bool], ...]  # lines that ask, and what they are answered
MOST_WAYS = 8
_WORST_FIRST = ("NOT EQUIVALENT", "UNDECIDED", "CONDITIONAL", "EQUIVALENT")


class QuestionsApart(CaptureError):
    """Ranks ask something else of data than the single device."""


def each_way(
    met: DecidedByData, judged: Callable[[Answers], tuple[Report, Any]]
) -> tuple[Report, Any]:
    """The worst report of all ways, with the answers that lead to it.

    met: what the step was refused for. judged: the report on the program with these answers, and
    its capture; raises DecidedByData for further questions. Raises `met`, or DecidedByData of one
    way, where answers do not help.
    """
    todo = _further((), met)
    found: list[tuple[Answers, Report, Any]] = []
    while todo:
        if len(todo) + len(found) > MOST_WAYS:
            raise met
        answers = todo.pop(0)
        try:
            report, made = judged(answers)
        except DecidedByData as e:
            todo = [*_further(answers, e), *todo]
            continue
        except QuestionsApart:
            raise
        except CaptureError:
            raise met from None  # says which answer leads to what cannot be followed
        found.append((answers, report, made))
        if report.verdict == _WORST_FIRST[0]:
            break
    answers, report, made = min(found, key=lambda f: _WORST_FIRST.index(f[1].verdict))
    report.text = _told(answers, report, len(found), bool(todo))
    return report, made


def check_questions(single: Recording, sides: Sequence[Recording]) -> None:
    """Whether ranks ask what the single device asks: that the number is the same, and the answer,
    makes them decide alike only then. A rank that asks nothing does the same whatever the answer.

    Raises QuestionsApart if a rank asks something else, elsewhere, or another number of times.
    """
    for side in sides:
        if not side.answered:
            continue
        ours, theirs = ([place for place, _ in s.answered] for s in (single, side))
        if ours != theirs:
            raise QuestionsApart(
                f"rank {side.rank} asks what depends on data at {', '.join(theirs)}, and the "
                f"single device at {', '.join(ours) or 'no line'}: which of it corresponds is not "
                "known"
            )
        for (place, here), (_, there) in zip(side.answered, single.answered):
            if not _same_question(here, there):
                raise QuestionsApart(
                    f"rank {side.rank}: {place} asks of a number that depends on data whether it "
                    f"is {_words(here)}, and the single device whether it is {_words(there)}: "
                    "whether both decide alike is not known"
                )


def _same_question(one: Question, other: Question) -> bool:
    return len(one) == len(other) and all(
        x == y
        or isinstance(x, float)
        and isinstance(y, float)
        and math.isclose(x, y, rel_tol=_SAME, abs_tol=0.0)
        for x, y in zip(one, other)
    )


def _words(question: Question) -> str:
    name, *others = question
    sign = _SIGNS.get(str(name), "true")
    return " ".join([sign, *("another such number" if x is None else f"{x:g}" for x in others)])


_SIGNS = {
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
    "__eq__": "==",
    "__ne__": "!=",
}


def _further(answers: Answers, met: DecidedByData) -> list[Answers]:
    """Both answers to the first question that has none."""
    known = {place for place, _ in answers}
    place = next((p for p in met.places if p not in known), None)
    if place is None:
        raise met
    return [(*answers, (place, answer)) for answer in (True, False)]


def _told(answers: Answers, report: Report, ways: int, more: bool) -> str:
    """The report's text, with a paragraph on the answers after its first one."""
    here = " and ".join(f"{'yes' if answer else 'no'} at {place}" for place, answer in answers)
    text = f"Decided by data: what the step does depends on numbers at {_places(answers)}. "
    if report.verdict in ("EQUIVALENT", "CONDITIONAL"):
        text += f"Each of the {ways} programs that the answers make was verified."
    else:
        rest = "others were not looked at" if more else f"one of {ways} that were verified"
        text += f"This is the program for {here}, {rest}."
    return with_second_paragraph(report.text, text)


def _places(answers: Answers) -> str:
    return ", ".join(place for place, _ in answers)


__all__ = ["MOST_WAYS", "Answers", "check_questions", "each_way"]
