# SPDX-License-Identifier: Apache-2.0
"""Which elements of which tensors are the same: each has a number.

Elements that are moved keep their numbers, so that these tell where a tensor has its elements from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .nodes import MOVES_HERE
from .values import Shape, numel

MOST_POSITIONS = 1 << 24  # of a tensor whose elements are followed


def moved(node: Mapping[str, Any], operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result of a node of MOVES_HERE for these tensors as its operands."""
    t, attrs = operands[0], node.get("attrs", {})
    if node["op"] == "cat":
        return torch.cat(list(operands), attrs["dim"])
    if node["op"] == "slice":
        return t[
            (slice(None),) * (attrs["dim"] % t.dim())
            + (slice(attrs.get("start", 0), attrs.get("stop"), attrs.get("step", 1)),)
        ]
    if node["op"] == "permute":
        return t.permute(attrs["dims"])
    if node["op"] == "identity":
        return t
    return t.reshape(attrs["size"]) if node["op"] == "view" else t.expand(attrs["size"])


def number_of(text: str) -> int:
    """62 bits of a digest."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2


def numbered(source: str, shape: Shape) -> torch.Tensor | None:
    """Numbers of the elements of a tensor that nothing is known of but which one it is.

    They follow each other. Where they begin is a digest's, of 62 bits. None where there are many.
    """
    if numel(shape) > MOST_POSITIONS:
        return None
    first = number_of(source)
    return torch.arange(first, first + numel(shape)).view(shape)


class Elements:
    """Numbers of the elements of tensors.

    nodes: of the program. given: the numbers of a tensor that no followed node makes; None where
    none are known. computed: the numbers of what other nodes make, of those of their operands, for
    the operators that it names.
    """

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        given: Callable[[str], torch.Tensor | None],
        computed: Mapping[str, Callable[..., torch.Tensor | None]] | None = None,
    ) -> None:
        self.computed = computed or {}
        self.producers = {
            n["out"][0]: n
            for n in nodes
            if n["op"] in MOVES_HERE or n["op"] in self.computed and len(n["out"]) == 1
        }
        self.given = given
        self.known: dict[str, torch.Tensor | None] = {}

    def of(self, name: str) -> torch.Tensor | None:
        todo = [name]
        while todo:
            at = todo[-1]
            node = self.producers.get(at)
            missing = (
                [n for n in node["in"] if n not in self.known]
                if node is not None and at not in self.known
                else []
            )
            if missing:
                todo += missing
                continue
            if at not in self.known:
                self.known[at] = (
                    self.given(at)
                    if node is None
                    else self._made(node, [self.known[n] for n in node["in"]])
                )
            todo.pop()
        return self.known[name]

    def _made(
        self, node: Mapping[str, Any], operands: list[torch.Tensor | None]
    ) -> torch.Tensor | None:
        known = [o for o in operands if o is not None]
        if (
            len(known) < len(operands)
            or math.prod(node.get("attrs", {}).get("size", ())) > MOST_POSITIONS
            or sum(o.numel() for o in known) > MOST_POSITIONS
        ):
            return None
        if node["op"] in MOVES_HERE:
            return moved(node, known)
        return self.computed[node["op"]](node, known)


# of a dimension: where each begins in a part and in the whole, and how long it is
Stretches = tuple[tuple[int, int, int], ...]


def box_of(shape: Sequence[int], low: Sequence[int]) -> tuple[slice, ...]:
    """Where a part of this shape lies that begins there."""
    return tuple(slice(a, a + n) for a, n in zip(low, shape))


def stretches_in(
    whole: torch.Tensor, part: torch.Tensor, low: Sequence[int]
) -> tuple[int, Stretches] | None:
    """The dimension of which `part` has several stretches of `whole`, or one that begins elsewhere.

    Both are numbers of elements. In the other dimensions it begins at `low`. None where there is no
    such dimension, or rows of `whole` are not told apart.
    """
    for d in range(part.dim()):
        at = tuple(slice(None) if e == d else s for e, s in enumerate(box_of(part.shape, low)))
        rows_there = whole[at].movedim(d, 0).reshape(whole.shape[d], -1)
        rows_here = part.movedim(d, 0).reshape(part.shape[d], -1)
        if not rows_here.numel() or rows_there.shape[1:] != rows_here.shape[1:]:
            continue
        ordered, order = rows_there[:, 0].sort()
        places = torch.searchsorted(ordered, rows_here[:, 0].contiguous())
        found = order[places.clamp(max=len(ordered) - 1)]
        if not bool((ordered[1:] == ordered[:-1]).any()) and torch.equal(
            rows_there[found], rows_here
        ):
            return d, runs(found.tolist())
    return None


def runs(rows: Sequence[int]) -> Stretches:
    """Rows as stretches that follow each other."""
    found: list[tuple[int, int, int]] = []
    for at, row in enumerate(rows):
        if found and row == found[-1][1] + found[-1][2]:
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((at, row, 1))
    return tuple(found)
