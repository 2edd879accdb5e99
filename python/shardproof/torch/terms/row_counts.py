# SPDX-License-Identifier: Apache-2.0
"""Numbers of rows with each key, as the program counts them.

A call that cuts sorted rows at offsets is right only if the offsets are the numbers of rows with
each key. So of each element of such a tensor it is known which rows it counts: a set of keys. Sums,
running sums and pieces of such tensors are unions and pieces. What is not recognised counts nothing
that is known, and nothing can be cut by it.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import torch

from . import tables
from .graph import Graph
from .nodes import MOVES_HERE
from .positions import MOST_POSITIONS, moved
from .values import Filled, Named, Shape, Table, Value, numel


@dataclasses.dataclass(frozen=True)
class Counts:
    """rows: whose rows are counted (`signature`); None where nothing is counted.

    keys: of each element of a tensor of this shape, the keys that it counts. size: how many rows
    there are at most.
    """

    rows: Any
    keys: tuple[frozenset[Any], ...]
    shape: Shape
    size: int = 0

    def running(self) -> Counts | None:
        """Of the sums of the first elements, along the only dimension."""
        sums = [frozenset[Any]()]
        for k in self.keys:
            if len(self.shape) != 1 or sums[-1] & k:
                return None
            sums.append(sums[-1] | k)
        return Counts(self.rows, tuple(sums[1:]), self.shape, self.size)


def signature(g: Graph, keys: Table, keep: Any) -> Any:
    """What tells the rows with these keys from others; keep: which slots are rows."""
    base = keys.source.base or keys.source
    return base.name, tuple(keys.entries.tolist()), keys.low, keep


def counts_of(g: Graph, v: Value) -> Counts | None:
    """What a tensor counts; None where that is not known."""
    if isinstance(v, Filled):
        nothing = (frozenset[Any](),) * numel(v.shape)
        return Counts(None, nothing, v.shape) if v.fill == 0 and numel(v.shape) < 1 << 12 else None
    if not isinstance(v, Named) or numel(v.shape) > 1 << 12:
        return None
    if v.name in g.row_counts:
        found: Counts = g.row_counts[v.name]
        return found
    node = g.producer(v.name)
    if node is None or None in node["in"]:
        return None
    if node["op"] == "sum":
        return _sum(g, node, v.shape)
    if node["op"] not in MOVES_HERE:
        return None
    parts = [counts_of(g, g.value_of(name, v.kind)) for name in node["in"]]
    known = [p for p in parts if p is not None]
    rows = {p.rows for p in known if p.rows is not None}
    if len(known) < len(parts) or len(rows) > 1:
        return None
    keys = list(itertools.chain.from_iterable(p.keys for p in known))
    starts = itertools.accumulate([0, *(len(p.keys) for p in known[:-1])])
    at = moved(
        node,
        [torch.arange(n, n + len(p.keys)).reshape(p.shape) for n, p in zip(starts, known)],
    )
    return Counts(
        next(iter(rows), None),
        tuple(keys[int(i)] for i in at.flatten().tolist()),
        tuple(at.shape),
        max(p.size for p in known),
    )


def _summed_dims(node: Any, rank: int) -> list[int]:
    dims = node.get("attrs", {}).get("dim")
    return list(range(rank)) if dims is None else [d % rank for d in dims]


def _sum(g: Graph, node: Any, shape: Shape) -> Counts | None:
    name = node["in"][0]
    size = tuple(g.tensors[name]["shape"])
    dims = _summed_dims(node, len(size))
    inner = counts_of(g, g.value_of(name, "real"))
    if inner is not None:
        at = torch.arange(len(inner.keys)).reshape(size)
        lines = at.movedim(dims, list(range(-len(dims), 0))).reshape(numel(shape), -1)
        made = []
        for line in lines.tolist():
            parts = [inner.keys[i] for i in line]
            union = frozenset[Any]().union(*parts)
            if len(union) != sum(map(len, parts)):
                return None
            made.append(union)
        return Counts(inner.rows, tuple(made), shape, inner.size)
    return _of_indicators(g, name, size, dims, shape)


def _of_indicators(
    g: Graph, name: str, size: Shape, dims: list[int], shape: Shape
) -> Counts | None:
    """Sums of all rows' indicators of one key each."""
    chain = []
    node = g.producer(name)
    while node is not None and node["op"] in MOVES_HERE and len(node["in"]) == 1:
        chain.append(node)
        node = g.producer(node["in"][0])
    if node is None or node["op"] != "one_hot" or numel(size) > MOST_POSITIONS:
        return None
    of = g.tensors[node["out"][0]]["shape"]
    at = torch.arange(numel(tuple(of))).reshape(of)
    for step in reversed(chain):
        at = moved(step, [at])
    lines = at.movedim(dims, list(range(-len(dims), 0))).reshape(numel(shape), -1)
    classes, rows = of[-1], numel(tuple(of[:-1]))
    start = node["attrs"]["start"]
    made = []
    for line in lines:
        which = line % classes
        if len(line) != rows or len(line.unique()) != rows or bool((which != which[0]).any()):
            return None
        made.append(frozenset([start + int(which[0])]))
    source = g.value_of(node["in"][0], "int")
    keys = tables.table_of(g, source)
    if keys is None:
        return None
    return Counts(signature(g, keys, None), tuple(made), shape, rows)
