# SPDX-License-Identifier: Apache-2.0
"""Views of memory: sizes, strides and an offset, in elements; and how one view is placed in
another.

A view is a box of a segment where each of its strides is one of the segment's, once dimensions are
divided in two. It is then slices, permutations and reshapes of what the segment holds.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import torch

from .values import Shape, Value, numel


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A view of a storage: sizes and strides for each dimension, and an offset, in elements."""

    size: Shape
    stride: Shape
    offset: int

    def packed(self) -> list[tuple[int, int, int]]:
        """(stride, size, dimension) of the dimensions that move, largest stride first."""
        known: list[tuple[int, int, int]] | None = self.__dict__.get("_packed")
        if known is None:
            known = self.__dict__["_packed"] = sorted(
                ((t, n, i) for i, (n, t) in enumerate(zip(self.size, self.stride)) if n != 1),
                key=lambda d: (-d[0], d[2]),
            )
        return known

    def span(self) -> tuple[int, int]:
        """The first element and one past the last."""
        known: tuple[int, int] | None = self.__dict__.get("_span")
        if known is None:
            end = (
                self.offset
                if 0 in self.size
                else self.offset + 1 + sum((n - 1) * t for n, t in zip(self.size, self.stride))
            )
            known = self.__dict__["_span"] = (self.offset, end)
        return known

    def is_dense(self) -> bool:
        """Every element of the span exactly once."""
        low, high = self.span()
        return numel(self.size) == high - low and all(t > 0 for t, _, _ in self.packed())


@functools.lru_cache(maxsize=1 << 16)
def view_of(size: Shape, stride: Shape, offset: int) -> Geometry:
    """One object for all tensors of equal layout, so that what is derived of it is derived once."""
    return Geometry(size, stride, offset)


def geometry_of(t: torch.Tensor) -> Geometry:
    """How a tensor sees its storage."""
    return view_of(tuple(t.shape), t.stride(), t.storage_offset())


def contiguous(shape: Iterable[int], offset: int = 0) -> Geometry:
    return _contiguous(tuple(int(n) for n in shape), offset)


@functools.lru_cache(maxsize=1 << 16)
def _contiguous(size: Shape, offset: int) -> Geometry:
    stride, step = [0] * len(size), 1
    for i in reversed(range(len(size))):
        stride[i] = step
        step *= max(size[i], 1)
    return view_of(size, tuple(stride), offset)


@dataclasses.dataclass(frozen=True)
class Segment:
    value: Value
    at: Geometry


@dataclasses.dataclass
class Place:
    """A view inside a segment.

    The segment's value is refined into `sizes` and cut to [starts, stops) in each dimension.
    """

    sizes: list[int]
    starts: list[int]
    stops: list[int]
    # refined dimensions in the order of the view's refined dimensions; those that are not listed
    # have extent 1
    order: list[int]
    expanded: list[int]  # positions (in the view's refined dimensions) that repeat (stride 0)
    view: list[int]  # sizes of the view's refined dimensions, repeats included


@functools.lru_cache(maxsize=1 << 16)
def locate(seg: Geometry, want: Geometry) -> Place | None:
    """The place of a view in a segment; None if it is not inside, or no box."""
    cells = [[t, n] for t, n, _ in seg.packed()]  # largest stride first
    lows, highs = seg.span(), want.span()
    if highs[0] < lows[0] or highs[1] > lows[1]:
        return None
    target: list[list[int]] = []  # [stride, size] in the order of the view's dimensions
    for n, t in zip(want.size, want.stride):
        if n == 1:
            continue
        target.append([t, n])
    # 1. refine: every stride of the view is one of the segment's, and no size of the view goes
    # beyond its cell
    i = 0
    while i < len(target):
        t, n = target[i]
        if t == 0:
            i += 1
            continue
        k = _cell(cells, t)
        if k is None:
            return None
        ct, cn = cells[k]
        if ct != t:  # split the cell: the view's stride is inside it
            if t % ct or cn % (t // ct):
                return None
            inner = t // ct
            cells[k : k + 1] = [[t, cn // inner], [ct, inner]]
            cn = cn // inner
        if n > cn:  # the view's dimension goes on in the next larger cell
            if k == 0 or cells[k - 1][0] != t * cn or n % cn:
                return None
            target[i : i + 1] = [[t * cn, n // cn], [t, cn]]
            continue
        i += 1
    # 2. where the view starts, in mixed radix
    rest = want.offset - seg.offset
    starts, stops, used = [], [], {t: n for t, n in target if t}
    if len(used) != sum(1 for t, _ in target if t):
        return None
    for t, n in cells:
        starts.append(rest // t if t else 0)
        rest -= starts[-1] * t
        stops.append(starts[-1] + used.get(t, 1))
        if stops[-1] > n:
            return None
    if rest:
        return None
    index = {t: k for k, (t, _) in enumerate(cells)}
    order = [index[t] for t, _ in target if t]
    return Place(
        [n for _, n in cells],
        starts,
        stops,
        order,
        [j for j, (t, _) in enumerate(target) if t == 0],
        [n for _, n in target],
    )


def _cell(cells: list[list[int]], stride: int) -> int | None:
    for k, (t, n) in enumerate(cells):
        if t <= stride < t * n:
            return k
    return None


def positions_of(at: Geometry, base: int) -> list[int]:
    positions = [at.offset - base]
    for n, t in zip(at.size, at.stride):
        positions = [p + k * t for p in positions for k in range(n)]
    return positions


def stretches_of(at: Geometry) -> tuple[Geometry, list[int]] | None:
    """The view with neighbouring strides merged into one dimension, and the dimensions by falling
    stride.

    None where there is nothing to merge.
    """
    packed = at.packed()
    if not packed or any(t <= 0 for t, _, _ in packed):
        return None
    cells: list[list[int]] = []
    for t, n, _ in packed:
        if cells and cells[-1][1] == t * n:
            cells[-1] = [cells[-1][0] * n, t]
        else:
            cells.append([n, t])
    if len(cells) == len(packed):
        return None
    return Geometry(tuple(n for n, _ in cells), tuple(t for _, t in cells), at.offset), [
        i for _, _, i in packed
    ]


def same_places(a: Geometry, b: Geometry) -> bool:
    return a.offset == b.offset and [d[:2] for d in a.packed()] == [d[:2] for d in b.packed()]


def interleaved(a: Geometry, b: Geometry) -> bool:
    """Whether two strided views share a span and no element, such as columns of one matrix.

    It compares the remainders of their positions modulo one of the strides.
    """
    pa, pb = a.packed(), b.packed()
    return any(
        _disjoint(_left(pa, a.offset, m), _left(pb, b.offset, m), m)
        for m in sorted({t for t, _, _ in (*pa, *pb) if t > 1}, reverse=True)
    )


def _left(packed: list[tuple[int, int, int]], offset: int, m: int) -> tuple[int, int]:
    """Where positions begin and end, modulo m (not wrapped around)."""
    low = offset % m
    return low, low + 1 + sum((n - 1) * t for t, n, _ in packed if t % m)


def _disjoint(a: tuple[int, int], b: tuple[int, int], m: int) -> bool:
    return a[1] <= m and b[1] <= m and (a[1] <= b[0] or b[1] <= a[0])


def as_real(at: Geometry) -> Geometry:
    """A complex view as a real one with a last dimension of 2."""
    return Geometry(at.size + (2,), tuple(2 * t for t in at.stride) + (1,), 2 * at.offset)
