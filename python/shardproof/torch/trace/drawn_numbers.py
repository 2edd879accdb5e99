# SPDX-License-Identifier: Apache-2.0
"""The numbers of small draws, for programs that decide something by them in Python.

A draw is an input, which has no number. Where Python asks for one all the same, to choose among
augmentations (`torch.rand(1) < 0.5`) or to cut a batch out of a file (`data[i : i + n] for i in
torch.randint(...)`), it gets the numbers that a generator in that state draws: the same for all
ranks that draw the same. They follow operators as far as all operands are such numbers or
constants. That the program is that of these numbers is an assumption.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..compat import private
from ..distributed.mailbox import Mailbox
from ..terms.geometry import Geometry
from ..terms.values import Filled, Known, Value

MOST = 4096  # elements of a tensor whose numbers are known
MOST_READ = 1 << 24  # of one that a data set holds
MOST_WRITTEN = 1 << 16  # of one of which parts are written, as its numbers are copied each time
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


@dataclasses.dataclass(frozen=True)
class _Known:
    """The numbers of a memory: as long as it holds these values, and several of them in the same
    places. keys: of the draws that they are made of.
    """

    storage: Any
    values: tuple[Value, ...]
    places: tuple[Geometry, ...]  # none where there is one value
    flat: torch.Tensor
    keys: frozenset[str]


@dataclasses.dataclass(frozen=True)
class _Write:
    """An operator that is to write into memory, on the numbers of all of its operands."""

    args: Any
    kwargs: Any
    flats: dict[int, torch.Tensor]  # all numbers of each memory
    keys: frozenset[str]


def _view(flat: torch.Tensor, t: torch.Tensor) -> torch.Tensor | None:
    """The part of the numbers of a memory that a tensor is; None where they do not reach."""
    with private.outside():
        last = t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
        if last >= flat.numel():
            return None
        return flat.as_strided(tuple(t.shape), t.stride(), t.storage_offset())


def _is_whole(t: torch.Tensor) -> bool:
    size: int = t.numel() * t.element_size()
    return bool(t.is_contiguous() and t.untyped_storage().nbytes() == size)


class DrawnNumbers:
    """By the memory of a tensor: its values as they were drawn or computed, and their numbers.

    Whatever is written there later is another value. It has numbers if all that is written has.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._known: dict[int, _Known] = {}
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
                keys = frozenset({later[3]})
                self._known[key] = _Known(later[0], (later[1],), (), found.reshape(-1), keys)
        return self._of(t)

    def keys_of(self, t: torch.Tensor) -> str:
        """Of the draws that a tensor with numbers is made of."""
        known = self._known.get(private.storage_key(t))
        return " ".join(sorted(known.keys)) if known is not None else ""

    def _put(
        self, t: torch.Tensor, value: Value | None, numbers: torch.Tensor, keys: frozenset[str]
    ) -> None:
        if value is not None and t.is_contiguous() and t.storage_offset() == 0:
            flat = numbers.to(t.dtype).reshape(-1)
            key = private.storage_key(t)
            self._known[key] = _Known(t.untyped_storage(), (value,), (), flat, keys)

    def _values(self, t: torch.Tensor) -> tuple[tuple[Value, ...], tuple[Geometry, ...]]:
        """What the memory of a tensor holds, and where, if it is several values."""
        storage = self._recorder.storages.get(private.storage_key(t))
        segments = storage.segments if storage is not None else []
        places = tuple(s.at for s in segments) if len(segments) > 1 else ()
        return tuple(s.value for s in segments), places

    def _value(self, t: torch.Tensor) -> Value | None:
        """What all of the memory of a tensor holds; None where that is not one value."""
        values, _ = self._values(t)
        return values[0] if len(values) == 1 else None

    def _now(self, t: torch.Tensor) -> _Known | None:
        """What is known of the memory of a tensor, if that still holds it."""
        known = self._known.get(private.storage_key(t))
        if known is None or known.flat.dtype != t.dtype:
            return None
        values, places = self._values(t)
        same = len(values) == len(known.values) and all(map(operator.is_, values, known.values))
        return known if same and places == known.places else None

    def of(self, t: Any) -> torch.Tensor | None:
        """The numbers of a tensor, or None."""
        return None if not self._known or t.numel() > MOST else self._of(t)

    def _of(self, t: torch.Tensor) -> torch.Tensor | None:
        known = self._now(t)
        return None if known is None else _view(known.flat, t)

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
        keys = [
            self._known[private.storage_key(t)].keys for t in tensors if found[id(t)] is not None
        ]
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

    def before_write(self, args: Any, kwargs: Any) -> _Write | None:
        """An operator is to write into some of its operands; None where one has no numbers, or all
        are constants.
        """
        if not self._known:
            return None
        flats: dict[int, torch.Tensor] = {}
        keys: set[str] = set()
        tensors = private.tensors(args, kwargs)
        if not any(private.storage_key(t) in self._known for t in tensors):
            return None
        for t in tensors:
            key = private.storage_key(t)
            if key in flats:
                continue
            known = self._now(t)
            flat = known.flat.clone() if known is not None else self._constants(t)
            if flat is None or flat.numel() > MOST_WRITTEN:
                return None
            flats[key] = flat
            keys |= known.keys if known is not None else set()
        if not keys:
            return None
        numbers_of, named = private.tree_map(
            lambda x: _view(flats[private.storage_key(x)], x) if isinstance(x, torch.Tensor) else x,
            (args, kwargs),
        )
        if any(_view(flats[private.storage_key(t)], t) is None for t in tensors):
            return None
        return _Write(numbers_of, named, flats, frozenset(keys))

    def wrote(self, func: Any, write: _Write, written: Sequence[torch.Tensor]) -> None:
        """The operator has written into these."""
        try:
            with private.outside():
                func(*write.args, **write.kwargs)
        except Exception:  # it has no numbers, then
            return
        for t in written:
            key = private.storage_key(t)
            flat = write.flats[key]
            self._known[key] = _Known(t.untyped_storage(), *self._values(t), flat, write.keys)

    def _constants(self, t: torch.Tensor) -> torch.Tensor | None:
        """The numbers of a memory that holds nothing but constants."""
        if not isinstance(t, private.FakeTensor):
            return t.detach().clone().reshape(-1) if _is_whole(t) else None
        if t.is_complex():
            return None
        storage = self._recorder.storages.get(private.storage_key(t))
        size = t.untyped_storage().nbytes() // t.element_size()
        if storage is None or size > MOST_WRITTEN:
            return None
        if not all(isinstance(s.value, (Filled, Known)) for s in storage.segments):
            return None
        flat = torch.zeros(size, dtype=t.dtype)
        for segment in storage.segments:
            v, at = segment.value, segment.at
            part = flat.as_strided(at.size, at.stride, at.offset)
            part.copy_(self._recorder.g.data(v).reshape(part.shape))
        return flat

    def give(self, t: torch.Tensor, mailbox: Mailbox, key: tuple[Any, ...]) -> None:
        """The root of a broadcast gives a tensor to the others."""
        known = self._now(t)
        if known is not None and _is_whole(t):
            mailbox[key] = known.flat.clone(), known.keys

    def take(self, t: torch.Tensor, mailbox: Mailbox, key: tuple[Any, ...]) -> None:
        """Another rank has what the root gave, if the root was recorded before."""
        numbers, keys = mailbox.get(key, (None, frozenset()))
        if numbers is not None and numbers.numel() == t.numel() and _is_whole(t):
            self._put(t, self._value(t), numbers.reshape(tuple(t.shape)), keys)

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
