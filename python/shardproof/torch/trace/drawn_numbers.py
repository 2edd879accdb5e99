# SPDX-License-Identifier: Apache-2.0
"""The numbers of small draws, for programs that decide something by them in Python.

A draw is an input, which has no number. Where Python asks for one all the same, to choose among
augmentations (`torch.rand(1) < 0.5`) or to cut a batch out of a file (`data[i : i + n] for i in
torch.randint(...)`), it gets the numbers that a generator in that state draws: the same for all
ranks that draw the same. They follow operators as far as all operands are such numbers or
constants. That the program is that of these numbers is an assumption.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..compat import private
from ..terms.values import Value

MOST = 4096  # elements of a tensor whose numbers are known
MOST_READ = 1 << 24  # of one that a data set holds
_KEY_DIGITS = 14  # of a draw's key, which is hexadecimal: what seeds a generator


def seed_of(key: str) -> int:
    """The seed of a generator that makes the numbers of the draw with this key."""
    return int(key[:_KEY_DIGITS], 16)


def _drawn(distribution: str, shape: tuple[int, ...], limits: list[int], seed: int) -> Any:
    """Numbers of a distribution; None where it is not known."""
    generator = torch.Generator().manual_seed(seed)
    if distribution == "randperm":
        return torch.randperm(shape[0], generator=generator)
    if distribution == "randint":
        low, high = (0, limits[0]) if len(limits) == 1 else limits
        return torch.randint(low, high, shape, generator=generator)
    if distribution == "random":  # integers; without limits from 0 to the largest
        return torch.empty(shape, dtype=torch.int64).random_(*limits, generator=generator)
    if distribution == "uniform":
        return torch.rand(shape, generator=generator)
    if distribution == "normal":
        return torch.randn(shape, generator=generator)
    return None


class DrawnNumbers:
    """By the memory of a tensor: its value as it was drawn or computed, and that value's numbers.

    Whatever is written there later is another value, which has none.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._known: dict[int, tuple[Any, Value, torch.Tensor, frozenset[str]]] = {}
        # of large draws: what makes the numbers, once they are asked for
        self._later: dict[int, tuple[Any, Value, Callable[[], torch.Tensor | None], str]] = {}

    def forget(self) -> None:
        self._known.clear()
        self._later.clear()

    def draw(
        self,
        t: torch.Tensor,
        value: Value,
        distribution: str,
        numbers: list[float],
        limits: list[int],
        key: str,
    ) -> None:
        """A tensor becomes `value`, which is drawn. numbers: parameters of the distribution;
        limits: of integers; key: of the draw.
        """
        if not 0 < t.numel() <= MOST_READ:
            return
        shape = tuple(t.shape)

        def made() -> torch.Tensor | None:
            with private.outside():
                found = _drawn(distribution, shape, limits, seed_of(key))
                if found is None:
                    return None
                if distribution == "uniform":
                    low, high = numbers
                    found = found * (high - low) + low
                elif distribution == "normal":
                    mean, deviation = numbers
                    found = found * deviation + mean
                return found.to(t.dtype)

        if t.numel() > MOST:
            self._later[private.storage_key(t)] = t.untyped_storage(), value, made, key
        elif (found := made()) is not None:
            with private.outside():
                self._put(t, value, found, frozenset({key}))

    def all_of(self, t: torch.Tensor) -> torch.Tensor | None:
        """The numbers of a tensor, also of a large draw: for what reads batches."""
        key = private.storage_key(t)
        later = self._later.pop(key, None)
        if later is not None and (found := later[2]()) is not None:
            with private.outside():
                self._known[key] = later[0], later[1], found.reshape(-1), frozenset({later[3]})
        return self._of(t)

    def keys_of(self, t: torch.Tensor) -> str:
        """Of the draws that a tensor with numbers is made of."""
        known = self._known.get(private.storage_key(t))
        return " ".join(sorted(known[3])) if known is not None else ""

    def _put(
        self, t: torch.Tensor, value: Value | None, numbers: torch.Tensor, keys: frozenset[str]
    ) -> None:
        if value is not None and t.is_contiguous() and t.storage_offset() == 0:
            flat = numbers.to(t.dtype).reshape(-1)
            self._known[private.storage_key(t)] = t.untyped_storage(), value, flat, keys

    def _value(self, t: torch.Tensor) -> Value | None:
        """What all of the memory of a tensor holds; None where that is not one value."""
        storage = self._recorder.storages.get(private.storage_key(t))
        segments = storage.segments if storage is not None else []
        return segments[0].value if len(segments) == 1 else None

    def of(self, t: Any) -> torch.Tensor | None:
        """The numbers of a tensor, or None."""
        return None if not self._known or t.numel() > MOST else self._of(t)

    def _of(self, t: torch.Tensor) -> torch.Tensor | None:
        known = self._known.get(private.storage_key(t))
        if known is None or self._value(t) is not known[1] or known[2].dtype != t.dtype:
            return None
        with private.outside():
            last = t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
            if last >= known[2].numel():
                return None
            return known[2].as_strided(tuple(t.shape), t.stride(), t.storage_offset())

    def operands(self, args: Any, kwargs: Any) -> tuple[Any, Any, frozenset[str]] | None:
        """The operands with numbers in place of tensors, and the draws that they are made of; None
        where some have no numbers, or all are constants.
        """
        if not self._known:
            return None
        tensors = private.tensors(args, kwargs)
        found: dict[int, Any] = {id(t): self.of(t) for t in tensors}
        if all(numbers is None for numbers in found.values()):
            return None
        keys = [self._known[private.storage_key(t)][3] for t in tensors if found[id(t)] is not None]
        for t in tensors:
            if found[id(t)] is None:
                numbers = self._constant(t)
                if numbers is None:
                    return None
                found[id(t)] = numbers
        numbered: tuple[Any, Any] = private.tree_map(
            lambda x: found[id(x)] if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )
        return *numbered, frozenset().union(*keys)

    def _constant(self, t: torch.Tensor) -> torch.Tensor | None:
        """The numbers of a small constant. What is read of a tensor is a node of this line's."""
        if t.numel() > MOST:
            return None
        with self._recorder.here():
            numbers = self._recorder.numbers(t)
        return None if isinstance(numbers, private.FakeTensor) else numbers

    def follow(self, func: Any, operands: tuple[Any, Any, frozenset[str]], out: Any) -> None:
        """An operator gave `out`."""
        results = [t for t in private.tensors(out) if isinstance(t, private.FakeTensor)]
        if not results or any(t.numel() > MOST for t in results):
            return
        try:
            with private.outside():
                made = private.tensors(func(*operands[0], **operands[1]))
        except Exception:  # it has no numbers, then
            return
        for t, numbers in zip(results, made):
            if t.shape == numbers.shape:
                with private.outside():
                    self._put(t, self._value(t), numbers.detach(), operands[2])
