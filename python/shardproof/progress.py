# SPDX-License-Identifier: Apache-2.0
"""A sign of life on standard error, as the program gives it (src/commands/progress.cpp).

On a terminal one line that is written over; elsewhere, in a log, a line every 30 s, so that a long
run does not look like one that hangs. That line is written by a thread, as one phase may take long.
Processes are forked while it exists: they have no such thread, and it takes no lock that they need.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

BETWEEN_LINES = 30.0  # seconds, in a log


class Progress:
    """What is being done. stream: where it is written; None: sys.stderr."""

    def __init__(self, stream: Any = None) -> None:
        self.stream: Any = sys.stderr if stream is None else stream
        try:
            self.terminal = bool(self.stream.isatty())
        except (AttributeError, ValueError):
            self.terminal = False
        self.start = time.monotonic()
        self.doing = ""
        self.shown = False  # on the terminal
        self._ended = threading.Event()
        self._process = os.getpid()
        if not self.terminal:
            threading.Thread(target=self._lines, daemon=True).start()

    def phase(self, doing: str) -> None:
        """Something else is being done from here on."""
        self.doing = doing
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            self._put("\r" + f"shardproof: {doing}"[:width] + "\x1b[K")
            self.shown = True

    def line(self, text: str) -> None:
        """A line of the program's own, in place of those of this process."""
        if self.terminal:
            self.phase(text.removeprefix("shardproof: "))
        else:
            self.doing = ""
            self._put(text + "\n")

    def clear(self) -> None:
        """Something else is written to the terminal."""
        if self.shown:
            self._put("\r\x1b[K")
            self.shown = False

    def end(self) -> None:
        self._ended.set()
        if os.getpid() == self._process:
            self.clear()

    def _lines(self) -> None:
        while not self._ended.wait(BETWEEN_LINES):
            if self.doing:
                elapsed = duration(time.monotonic() - self.start)
                self._put(f"shardproof: {elapsed}: {self.doing}\n")

    def _put(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a lost line is no loss
            try:
                os.write(self.stream.fileno(), text.encode())  # without the stream's lock
            except (AttributeError, OSError):  # of a notebook, or a test
                self.stream.write(text)
                self.stream.flush()


_shown: list[Progress] = []  # the one that is shown


@contextlib.contextmanager
def showing() -> Iterator[Progress]:
    """Inside, progress is shown: by the outermost of these."""
    if _shown:
        yield _shown[0]
        return
    _shown.append(Progress())
    try:
        yield _shown[0]
    finally:
        _shown.pop().end()


def phase(doing: str) -> None:
    """What is being done now, if progress is shown."""
    if _shown:
        _shown[0].phase(doing)


def clear() -> None:
    """Something else is about to be written to the terminal."""
    if _shown:
        _shown[0].clear()


def duration(seconds: float) -> str:
    """As the program writes it: "40.0 s", "1 min 30 s"."""
    n = round(seconds)
    return f"{seconds:.1f} s" if n < 60 else f"{n // 60} min {n % 60:02d} s"


__all__ = ["Progress", "clear", "duration", "phase", "showing"]
