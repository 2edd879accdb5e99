# SPDX-License-Identifier: Apache-2.0
"""Do boxes tile a box: is each element in exactly one of them?

The first dimension at which a box ends inside is cut at all such ends, and each slab is looked at
by itself, with the boxes that meet it. A box that fills its slab is alone there, or overlaps. So
the answer is exact, and a regular tiling of n boxes takes about n log n steps.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """Half-open: low to high in each dimension. label: whose box it is, for messages."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    label: str = ""

    @property
    def elements(self) -> int:
        n = 1
        for a, b in zip(self.low, self.high):
            n *= b - a
        return n


@dataclasses.dataclass(frozen=True)
class Fault:
    """The first elements that no box has, or two boxes have. count: elements of this fault."""

    index: tuple[int, ...]
    labels: tuple[str, ...]
    count: int


def box(offset: Sequence[int], shape: Sequence[int], label: str = "") -> Box:
    return Box(tuple(offset), tuple(o + n for o, n in zip(offset, shape)), label)


def faults(whole: Box, boxes: Sequence[Box]) -> list[Fault]:
    """Where the boxes, which lie inside of the whole, do not tile it; the first in row-major order
    first. Empty boxes have no elements."""
    found: list[Fault] = []
    pending = [(whole, [b for b in boxes if b.elements])]
    while pending:
        region, inside = pending.pop()
        if not region.elements:
            continue
        if not inside:
            found.append(Fault(region.low, (), region.elements))
            continue
        dim, cuts = _cuts(region, inside)
        if not cuts:  # each of them fills the region
            if len(inside) > 1:
                labels = tuple(b.label for b in inside)
                found.append(Fault(region.low, labels, region.elements))
            continue
        edges = [region.low[dim], *cuts, region.high[dim]]
        slabs: list[list[Box]] = [[] for _ in edges[1:]]
        for b in inside:
            first = bisect.bisect_right(edges, max(b.low[dim], region.low[dim])) - 1
            last = bisect.bisect_left(edges, min(b.high[dim], region.high[dim]))
            for i in range(first, last):
                slabs[i].append(b)
        for i, slab in enumerate(slabs):
            low, high = list(region.low), list(region.high)
            low[dim], high[dim] = edges[i], edges[i + 1]
            pending.append((Box(tuple(low), tuple(high)), slab))
    return sorted(found, key=lambda f: f.index)


def _cuts(region: Box, inside: Sequence[Box]) -> tuple[int, list[int]]:
    """The first dimension in which a box ends inside of the region, and all these ends."""
    for dim, (low, high) in enumerate(zip(region.low, region.high)):
        ends = {e for b in inside for e in (b.low[dim], b.high[dim]) if low < e < high}
        if ends:
            return dim, sorted(ends)
    return 0, []
