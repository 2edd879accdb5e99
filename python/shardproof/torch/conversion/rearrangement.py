# SPDX-License-Identifier: Apache-2.0
"""A tensor whose elements are those of others, as a few slices, permutations and concatenations.

A conversion that only moves elements is known by the place that each element comes from. From that
this module finds operators that move them in the same way, in both directions. What it finds is
executed on the places before it is used, so that a mistake here is an error and never a wrong
arrangement.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

_MOST_PIECES = 4096  # of one tensor


class NotRegular(Exception):
    """The elements of a tensor lie in too many pieces."""


class Operators(Protocol):
    """What a rearrangement is made of: of symbolic values, or of numbers."""

    def reshape(self, v: Any, shape: Sequence[int]) -> Any: ...

    def permute(self, v: Any, dims: Sequence[int]) -> Any: ...

    def slice(self, v: Any, dim: int, start: int, stop: int) -> Any: ...

    def cat(self, values: Sequence[Any], dim: int) -> Any: ...


class OnTensors:
    """The operators on PyTorch's tensors."""

    def reshape(self, v: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return v.reshape(tuple(shape))

    def permute(self, v: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
        return v.permute(tuple(dims))

    def slice(self, v: torch.Tensor, dim: int, start: int, stop: int) -> torch.Tensor:
        return v.narrow(dim, start, stop - start)

    def cat(self, values: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
        return torch.cat([*values], dim)


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A block of one source.

    split: each dimension of the source, as a product. slices: begin and end in each of these
    dimensions. kept: those dimensions that the block has, in its order; of the others it has one
    place. shape: the block's.
    """

    source: str
    split: tuple[int, ...]
    slices: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The permutation of the dimensions that are kept."""
        return tuple(sorted(self.kept).index(k) for k in self.kept)

    def made(self, value: Any, run: Operators) -> Any:
        value = run.reshape(value, self.split)
        for dim, (start, stop) in enumerate(self.slices):
            if (start, stop) != (0, self.split[dim]):
                value = run.slice(value, dim, start, stop)
        if self.order != tuple(range(len(self.order))):
            lengths = [stop - start for start, stop in self.slices]
            value = run.reshape(value, [lengths[k] for k in sorted(self.kept)])
            value = run.permute(value, self.order)
        return run.reshape(value, self.shape)


@dataclasses.dataclass(frozen=True)
class Rearrangement:
    """How a tensor is made of its sources: its dimension `dim` seen as (repeats, length), in which
    the pieces follow each other.
    """

    shape: tuple[int, ...]
    dim: int
    repeats: int
    pieces: tuple[_Piece, ...]

    def sources(self) -> list[str]:
        return list(dict.fromkeys(piece.source for piece in self.pieces))

    def renames(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """The source that this is as a whole, in its own shape; None where it is not."""
        if len(self.pieces) != 1:
            return None
        piece = self.pieces[0]
        whole = all(s == (0, n) for s, n in zip(piece.slices, piece.split))
        in_order = list(piece.kept) == sorted(piece.kept)
        return piece.source if whole and in_order and shapes[piece.source] == self.shape else None

    def made(self, values: Mapping[str, Any], run: Operators) -> Any:
        """The tensor. values: of its sources."""
        parts = [piece.made(values[piece.source], run) for piece in self.pieces]
        return run.reshape(
            parts[0] if len(parts) == 1 else run.cat(parts, self.dim + 1), self.shape
        )


def rearrangement(places: torch.Tensor, sources: Mapping[str, torch.Tensor]) -> Rearrangement:
    """How the elements of `places` are made of sources.

    places: int64, of any shape; of each element a number that one element of the sources has.
    sources: by name, the numbers of their elements, all of them different.

    Raises NotRegular.
    """
    shape = tuple(places.shape)
    if not shape:
        places = places.reshape(1)
    names = list(sources)
    numbers = torch.cat([sources[n].reshape(-1) for n in names])
    order = numbers.argsort()
    at = order[torch.searchsorted(numbers[order], places.reshape(-1))].reshape(places.shape)
    starts = torch.tensor([0, *itertools.accumulate(sources[n].numel() for n in names)])
    owner = torch.bucketize(at, starts, right=True) - 1
    within = at - starts[owner]
    dim = next((d for d in range(places.dim()) if _along(owner, d)), None)
    if dim is None:
        raise NotRegular
    of_row = owner.movedim(dim, 0).reshape(places.shape[dim], -1)[:, 0]
    found = None
    for period in _divisors(places.shape[dim]):
        rows = of_row.view(-1, period)
        if not bool((rows == rows[0]).all()):
            continue
        found = _by_period(names, sources, within, of_row, dim, period)
        if found is not None:
            break
    if found is None or not torch.equal(found.made(sources, OnTensors()), places):
        raise NotRegular
    return dataclasses.replace(found, shape=shape)


def _along(owner: torch.Tensor, dim: int) -> bool:
    """Whether the owner of an element depends on its place in this dimension alone."""
    rows = owner.movedim(dim, 0).reshape(owner.shape[dim], -1)
    return bool((rows == rows[:, :1]).all())


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _by_period(
    names: Sequence[str],
    sources: Mapping[str, torch.Tensor],
    within: torch.Tensor,
    of_row: torch.Tensor,
    dim: int,
    period: int,
) -> Rearrangement | None:
    shape = tuple(within.shape)
    repeats = shape[dim] // period
    view = within.reshape(*shape[:dim], repeats, period, *shape[dim + 1 :])
    pieces: list[_Piece] = []
    start = 0
    while start < period:
        stop = start + 1
        while stop < period and of_row[stop] == of_row[start]:
            stop += 1
        source = names[int(of_row[start])]
        while True:  # the longest stretch that is one block
            piece = _block(
                source,
                tuple(sources[source].shape),
                view.narrow(dim + 1, start, stop - start),
            )
            if piece is not None or stop == start + 1:
                break
            stop = start + max(1, (stop - start) // 2)
        if piece is None or len(pieces) >= _MOST_PIECES:
            return None
        pieces.append(piece)
        start = stop
    return Rearrangement(shape, dim, repeats, tuple(pieces))


def _block(source: str, shape: tuple[int, ...], places: torch.Tensor) -> _Piece | None:
    """The piece of a source (of `shape`) whose elements have these places in row-major order."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    base = int(places.reshape(-1)[0])
    steps: list[tuple[int, int]] = []
    for d in range(places.dim()):
        for step, count in _steps(places.movedim(d, 0).reshape(places.shape[d], -1)[:, 0]):
            if steps and steps[-1][0] == step * count:  # one goes on where the other ends
                count *= steps.pop()[1]
            steps.append((step, count))
    # of the block, outer first: the source's dimension, the step in it, and how many
    digits: list[tuple[int, int, int]] = []
    for step, count in steps:
        found = _in_dimensions(step, count, shape, strides)
        if found is None:
            return None
        digits += found
    start = [(base // strides[d]) % shape[d] for d in range(len(shape))]
    split: list[int] = []
    slices: list[tuple[int, int]] = []
    position: dict[int, int] = {}  # digit -> dimension of the split source
    for d, n in enumerate(shape):
        own = sorted((i for i, g in enumerate(digits) if g[0] == d), key=lambda i: -digits[i][1])
        above, rest = n, start[d]
        for i in own:
            _, step, count = digits[i]
            if above % step:
                return None
            low = rest // step
            if low + count > above // step:
                return None
            position[i] = len(split)
            split.append(above // step)
            slices.append((low, low + count))
            above, rest = step, rest % step
        if above > 1 or not own:  # one element of each step
            split.append(above)
            slices.append((rest, rest + 1))
    kept = tuple(position[i] for i in range(len(digits)))
    piece = _Piece(source, tuple(split), tuple(slices), kept, tuple(places.shape))
    numbers = torch.arange(math.prod(shape), dtype=torch.int64).reshape(shape)
    return piece if torch.equal(piece.made(numbers, OnTensors()), places) else None


def _steps(line: torch.Tensor) -> list[tuple[int, int]]:
    """A sequence of places as digits, outer first: the step of each, and how many it has."""
    found: list[tuple[int, int]] = []
    while line.numel() > 1:
        step = int(line[1] - line[0])
        even = torch.arange(line.numel()) * step + line[0] == line
        count = int(even.long().cumprod(0).sum())
        count = math.gcd(count, line.numel())
        if count == 1 or step <= 0:
            return [(0, 0)]  # no digits: the caller finds none
        found.insert(0, (step, count))
        line = line[::count]
    return found


def _in_dimensions(
    step: int, count: int, shape: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int, int]] | None:
    """A digit as digits of single dimensions of the source, outer first."""
    if step <= 0:
        return None
    found: list[tuple[int, int, int]] = []
    for d in reversed(range(len(shape))):
        if count == 1:
            break
        if step % strides[d] or step >= strides[d] * shape[d]:
            continue
        own = step // strides[d]
        here = min(count, max(1, shape[d] // own))
        if here < count and (shape[d] % own or count % here):
            return None
        found.insert(0, (d, own, here))
        count //= here
        step = strides[d] * shape[d]
    return found if count == 1 else None
