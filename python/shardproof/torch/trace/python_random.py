# SPDX-License-Identifier: Apache-2.0
"""Random numbers of Python's `random` and of numpy, which a program draws by itself.

They are numbers, and what is decided by them makes the program. So it is noted whether any were
drawn outside of what reads batches (a flip of an image is data), and whether a seed leads to them.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

_OF_TORCH = ("random", "randint", "getrandbits", "choice", "shuffle", "sample")


def _python() -> Any:
    return random.getstate()


def _numpy() -> Any:
    numpy: Any = sys.modules["numpy"]
    kind, keys, *rest = numpy.random.get_state()
    return kind, keys.tobytes(), *rest


def _digest(state: Any) -> str:
    return hashlib.sha256(repr(state).encode()).hexdigest()


class PythonRandom:
    """Follows both generators on one side.

    drawn: those that were drawn from, by name, and a digest of their last state: equal on ranks
    that have drawn the same numbers. of_batches: those that were drawn from while batches were
    read, and a digest of the state before the first of them.
    """

    def __init__(self) -> None:
        self._states: dict[str, Callable[[], Any]] = {"random": _python}
        if "numpy" in sys.modules:
            self._states["numpy.random"] = _numpy
        self._clean: dict[str, Any] = {}
        self.drawn: dict[str, str] = {}
        self.of_batches: dict[str, str] = {}

    @contextlib.contextmanager
    def of_rank(self, rank: int, world: int) -> Iterator[None]:
        """Inside, numbers are those of no other rank.

        A process that seeds nothing begins with numbers of its own.
        """
        numpy: Any = sys.modules.get("numpy")
        before, theirs = random.getstate(), numpy.random.get_state() if numpy is not None else None
        replaced = [(random, name, getattr(random, name)) for name in ("seed", *_OF_TORCH)]
        if numpy is not None:
            replaced.append((numpy.random, "seed", numpy.random.seed))
        try:
            random.seed(f"rank {rank} of {world}")
            if numpy is not None:
                numpy.random.seed(random.getrandbits(32))
            self._note_clean()
            for module, name, original in replaced:
                make = self._seeding if name == "seed" else self._without_torch
                setattr(module, name, make(original))
            yield
        finally:
            for module, name, original in replaced:
                setattr(module, name, original)
            random.setstate(before)
            if numpy is not None:
                numpy.random.set_state(theirs)

    def _seeding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def seed(*args: Any, **kwargs: Any) -> Any:
            self.look()
            result = original(*args, **kwargs)
            self._note_clean()
            return result

        return seed

    def _without_torch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What PyTorch itself draws, for names and ports, decides nothing."""

        def draw(*args: Any, **kwargs: Any) -> Any:
            if not sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
                return original(*args, **kwargs)
            self.look()
            result = original(*args, **kwargs)
            self._note_clean()
            return result

        return draw

    def _note_clean(self) -> None:
        self._clean = {name: state() for name, state in self._states.items()}

    def look(self) -> None:
        """Notes what was drawn since the last look."""
        for name, state in self._states.items():
            now = state()
            if now != self._clean.get(name):
                self._clean[name] = now
                self.drawn[name] = _digest(now)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, what is drawn is data."""
        self.look()
        before = dict(self._clean)
        try:
            yield
        finally:
            self._note_clean()
            for name, state in before.items():
                if self._clean[name] != state:
                    self.of_batches.setdefault(name, _digest(state))
