# SPDX-License-Identifier: Apache-2.0
"""Errors that the recorder raises into the program, and what happens where the program catches one.

A program may catch any error: `try: ... except Exception`, `contextlib.suppress`, a `finally` that
returns, a guard against spikes of the loss. On real devices there is no such error, so what is
recorded after it was caught is another program. Two things keep that from becoming a verdict:

* `Refusal` is no `Exception`, so that the usual handlers let it pass;
* each error is noted where it is made, or where it leaves PyTorch, and the recording looks at the
  notes when the step has ended. A bare `except:` and C++ (hooks of autograd) cannot hide it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from . import private

E = TypeVar("E", bound=BaseException)


class Notes:
    """The errors of one recording. where: the place in the program, now.

    refused: the first error of the recorder's own. failed: the first error of PyTorch's, and its
    place. PyTorch may raise that on real devices, too, so it counts only if the step ends as if
    there had been none.
    """

    def __init__(self, where: Callable[[], str]) -> None:
        self.where = where
        self.refused: BaseException | None = None
        self.failed: tuple[BaseException, str] | None = None


_notes: list[Notes] = []  # of the recordings that run, the innermost last


@contextlib.contextmanager
def noted(where: Callable[[], str]) -> Iterator[Notes]:
    """Errors are noted inside."""
    _notes.append(Notes(where))
    try:
        yield _notes[-1]
    finally:
        _notes.pop()


@contextlib.contextmanager
def tried() -> Iterator[None]:
    """Inside, the recorder tries what may fail: errors of torch's are its own business."""
    try:
        with noted(str) as notes:
            yield
    finally:
        if notes.refused is not None:
            refuse(notes.refused)


def refuse(error: E) -> E:
    """Notes an error of the recorder's own."""
    if _notes and _notes[-1].refused is None:
        _notes[-1].refused = error
    return error


def fail(error: E) -> E:
    """Notes an error that PyTorch raises while a step is recorded, and may not raise on real
    devices.

    The error that ends the recomputation of activation checkpointing is none.
    """
    if (
        _notes
        and _notes[-1].failed is None
        and not isinstance(error, private._StopRecomputationError)
    ):
        _notes[-1].failed = error, _notes[-1].where()
    return error


class Refusal(BaseException):
    """The program cannot be followed any further."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        refuse(self)
