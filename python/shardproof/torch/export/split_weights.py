# SPDX-License-Identifier: Apache-2.0
"""Where a program splits a weight, or what it computes with it, into the weights that are fused."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from ...operators import WithTrait
from ..terms.values import Shape, numel

_ELEMENTWISE = WithTrait("elementwise")
_MOST_TENSORS = 64  # that are followed of one weight


class Uses:
    """Which nodes read a tensor, and the shapes of tensors."""

    def __init__(
        self, nodes: Sequence[Mapping[str, Any]], tensors: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.tensors = tensors
        self.readers: dict[str, list[Mapping[str, Any]]] = collections.defaultdict(list)
        for n in nodes:
            for name in {i for i in n["in"] if i is not None}:
                self.readers[name].append(n)

    def shape(self, name: str) -> Shape:
        return tuple(self.tensors[name]["shape"])

    def parts(self, name: str, dim: int) -> tuple[int, ...]:
        """The sizes of the parts of a dimension that its slices tell apart, in order.

        The dimension is followed to results of operators that keep it, and to the outermost of
        several that it is viewed as. One size where nothing is split.
        """
        size = self.shape(name)[dim]
        ends = {0, size}
        # (tensor, its dimension, elements of the weight's dimension in each, where it begins)
        todo, seen = [(name, dim, 1, 0)], {(name, dim)}
        while todo and len(seen) <= _MOST_TENSORS:
            at, d, unit, low = todo.pop()
            for n in self.readers[at]:
                found = self._follow(n, at, d)
                if found is None or (n["out"][0], found[0]) in seen:
                    continue
                e, inner, start = found
                out = n["out"][0]
                if n["op"] == "slice" and self.shape(out)[e] != self.shape(at)[d]:
                    ends |= {low + start * unit, low + (start + self.shape(out)[e]) * unit}
                seen.add((out, e))
                todo.append((out, e, unit * inner, low + start * unit))
        ordered = sorted(ends)
        return tuple(b - a for a, b in zip(ordered, ordered[1:]))

    def _follow(self, n: Mapping[str, Any], at: str, d: int) -> tuple[int, int, int] | None:
        """The dimension of a node's result that dimension d of an operand is, how many elements of
        that one of it has, and at which it begins.
        """
        if len(n["out"]) != 1 or n["out"][0] is None:
            return None
        shape, out, attrs = self.shape(at), self.shape(n["out"][0]), n.get("attrs", {})
        if n["op"] == "slice":
            if attrs.get("step", 1) != 1:
                return None
            return d, 1, attrs["start"] if attrs["dim"] % len(shape) == d else 0
        if n["op"] == "permute":
            return list(attrs["dims"]).index(d), 1, 0
        if n["op"] == "view":
            before = numel(shape[:d])
            for e, size in enumerate(out):
                if numel(out[:e]) == before and size > 1 and shape[d] % size == 0:
                    return e, shape[d] // size, 0
            return None
        if n["op"] == "matmul":
            return self._multiplied(n["in"], at, d)
        if n["op"] == "identity" or n["op"] in _ELEMENTWISE or n["op"] == "expand":
            e = d + len(out) - len(shape)
            return (e, 1, 0) if e >= 0 and out[e] == shape[d] else None
        return None

    def _multiplied(self, operands: Sequence[str], at: str, d: int) -> tuple[int, int, int] | None:
        left, right = operands
        out = max(len(self.shape(left)), len(self.shape(right)))
        if left == right or len(self.shape(left)) < 2 or len(self.shape(right)) < 2:
            return None
        from_end = d - len(self.shape(at))
        contracted = -1 if at == left else -2
        return None if from_end == contracted else (out + from_end, 1, 0)
