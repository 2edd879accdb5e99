# SPDX-License-Identifier: Apache-2.0
"""What a script prints, once for each process that it would have.

A process may be recorded several times, here or in a forked process. What the first recording
prints is shown, with the process before each line. Of a recording that is stopped, the next one
shows what comes after. A warning that several processes give is shown once.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from ... import progress
from ..intercept.data_number import UNKNOWN
from ..step.world import World
from ..trace.recording import Step


class Shown:
    """A stream of the script's.

    It stays one object while processes are recorded one after another: loggers and bars of progress
    keep the stream that they find first.
    """

    def __init__(self) -> None:
        self.stream: Any = None  # None: what is written is left out
        self.kept: list[str] | None = None  # for another process to show
        self.label, self.begins = "", True
        self.known, self.written = 0, 0  # characters: that were written before, and now
        self.warned: set[str] = set()

    def show(self, stream: Any, label: str, known: int) -> None:
        self.stream, self.label, self.begins = stream, label, True
        self.known, self.written = known, 0

    def hide(self) -> int:
        """Returns how many characters of the process were written."""
        self.stream = None
        return max(self.written, self.known)

    def write(self, text: str) -> int:
        if self.kept is not None:
            self.kept.append(text)
        new = text[max(0, self.known - self.written) :]
        self.written += len(text)
        again = new in self.warned
        if _WARNING.match(new):
            self.warned.add(new)
        if self.stream is not None and not again:
            progress.clear()
            for line in _NO_NUMBER.sub(UNKNOWN, new).splitlines(keepends=True):
                self.stream.write(f"{self.label}{line}" if self.begins else line)
                self.begins = line.endswith("\n")
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def close(self) -> None:
        """The stream goes on: it is that of other processes, too."""

    def flush(self) -> None:
        if self.stream is not None:
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["stream"] or sys.__stdout__, name)


# as Python's `warnings` writes one, in one call
_WARNING = re.compile(r"\S+:\d+: \w*Warning: ")
# What `"%.4f" % loss.item()` makes: C reads such numbers as not-a-number (data_number.py).
_NO_NUMBER = re.compile(r"(?<![\w-])nan(?![\w-])")


Kept = tuple[list[str], list[str]]  # what was written to two streams, in pieces


class Prints:
    """The streams of a script's processes."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.process = quiet, os.getpid()
        self.out, self.errors = Shown(), Shown()
        self.done: set[tuple[int, int]] = set()  # world size, rank
        # characters of those that were stopped, to be recorded once more
        self.begun: dict[tuple[int, int], tuple[int, int]] = {}

    @contextlib.contextmanager
    def of(self, world: World) -> Iterator[None]:
        """What is written meanwhile is this process's."""
        with (
            self._shown(world.size, world.rank),
            contextlib.redirect_stdout(self.out),
            contextlib.redirect_stderr(self.errors),
        ):
            yield

    @contextlib.contextmanager
    def _shown(self, size: int, rank: int) -> Iterator[None]:
        who = size, rank
        label = "[single device] " if size == 1 else f"[rank {rank}] "
        if not self.quiet and who not in self.done and os.getpid() == self.process:
            before = self.begun.get(who, (0, 0))
            self.out.show(sys.stdout, label, before[0])
            self.errors.show(sys.stderr, "", before[1])
        try:
            yield
            self.done.add(who)
        finally:
            self.begun[who] = self.out.hide(), self.errors.hide()

    def keep(self) -> None:
        """In a forked process: what is written is kept instead."""
        if not self.quiet:
            self.out.kept, self.errors.kept = [], []

    def kept(self) -> Kept:
        """Standard output and standard error since `keep`."""
        return self.out.kept or [], self.errors.kept or []

    def replay(self, size: int, rank: int, kept: Kept, ended: bool) -> None:
        """Shows what a forked process has kept. ended: it was recorded to its end."""
        with contextlib.suppress(_Stopped), self._shown(size, rank):
            self.out.writelines(kept[0])
            self.errors.writelines(kept[1])
            if not ended:
                raise _Stopped


class _Stopped(Exception):
    pass


def prints_of(step: Step) -> Prints | None:
    """Of a step that is a script."""
    return getattr(step, "prints", None)


__all__ = ["Kept", "Prints", "prints_of"]
