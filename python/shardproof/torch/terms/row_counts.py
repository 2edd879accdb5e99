# SPDX-License-Identifier: Apache-2.0
"""Numbers of rows with each key, as the program counts them.

A call that cuts sorted rows at offsets is right only if the offsets are the numbers of rows with
each key. So of each element of such a tensor it is known which rows it counts: a set of keys. Sums,
differences, running sums and pieces of such tensors are unions and pieces. What is not recognised
counts nothing that is known, and nothing can be cut by it.

Of rows that a mask chooses (`MaskOf`), a key is a position in the mask: its sums count rows. A mask
that marks the positions of a choice counts the rows with each chosen class, too, as a choice names
no class twice.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch

from . import tables
from .graph import Graph
from .nodes import MOVES_HERE
from .positions import MOST_POSITIONS, moved
from .summands import less_than_one, summands
from .values import Filled, Named, Shape, Table, Value, numel

MOST_MARKS = 1 << 16  # elements of a mask of which each is a key


class Each(tuple[Any, ...]):
    """Whose rows each element counts, where these differ."""


@dataclasses.dataclass(frozen=True)
class MaskOf:
    """The rows that a mask chooses. name: the tensor of ones and zeros."""

    name: str


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
            if len(self.shape) != 1 or sums[-1] & k or isinstance(self.rows, Each):
                return None
            sums.append(sums[-1] | k)
        return Counts(self.rows, tuple(sums[1:]), self.shape, self.size)

    def of(self, i: int) -> Any:
        """Whose rows an element counts."""
        return self.rows[i] if isinstance(self.rows, Each) else self.rows


def signature(g: Graph, keys: Table, keep: Any) -> Any:
    """What tells the rows with these keys from others; keep: which slots are rows."""
    name = (keys.source.base or keys.source).name
    while (node := g.producer(name)) is not None and node["op"] == "view":
        name = node["in"][0]
    return name, tuple(keys.entries.tolist()), keys.low, keep


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
        return _sum(g, node, v)
    if node["op"] in ("add", "sub") and len(node["in"]) == 2:
        return _two(g, node, v)
    if node["op"] not in MOVES_HERE:
        return None
    return _moved(g, node, v)


def _moved(g: Graph, node: Any, v: Named) -> Counts | None:
    parts = [counts_of(g, g.value_of(name, v.kind)) for name in node["in"]]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    each = [(p.of(i), keys) for p in known for i, keys in enumerate(p.keys)]
    starts = itertools.accumulate([0, *(len(p.keys) for p in known[:-1])])
    at = moved(
        node,
        [torch.arange(n, n + len(p.keys)).reshape(p.shape) for n, p in zip(starts, known)],
    )
    given = [each[int(i)] for i in at.flatten().tolist()]
    rows = {r for r, _ in given if r is not None}
    return Counts(
        next(iter(rows), None) if len(rows) < 2 else Each(r for r, _ in given),
        tuple(keys for _, keys in given),
        tuple(at.shape),
        max(p.size for p in known),
    )


def _two(g: Graph, node: Any, v: Named) -> Counts | None:
    """A sum of what is counted apart; a difference of what is counted, and a part of that."""
    a, b = (counts_of(g, g.value_of(name, v.kind)) for name in node["in"])
    if a is None or b is None or not a.shape == b.shape == v.shape:
        return None
    rows = {r for r in (a.rows, b.rows) if r is not None}
    if len(rows) > 1 or any(isinstance(r, Each) for r in rows):
        return None
    made = []
    for x, y in zip(a.keys, b.keys):
        if node["op"] == "sub" and y <= x:
            made.append(x - y)
        elif node["op"] == "add" and not x & y:
            made.append(x | y)
        else:
            return None
    return Counts(next(iter(rows), None), tuple(made), v.shape, max(a.size, b.size))


def _sum(g: Graph, node: Any, v: Named) -> Counts | None:
    name = node["in"][0]
    size = tuple(g.tensors[name]["shape"])
    dims = node.get("attrs", {}).get("dim")
    dims = list(range(len(size))) if dims is None else [d % len(size) for d in dims]
    # of a whole sum it is known that it counts all rows with a key, where it is not of its parts
    if (marks := _of_marks(g, v)) is not None and not isinstance(marks.rows, MaskOf):
        return marks
    inner = counts_of(g, g.value_of(name, "real"))
    if inner is None or isinstance(inner.rows, MaskOf):
        return marks
    if isinstance(inner.rows, Each):
        return None
    at = torch.arange(len(inner.keys)).reshape(size)
    lines = at.movedim(dims, list(range(-len(dims), 0))).reshape(numel(v.shape), -1)
    made = []
    for line in lines.tolist():
        parts = [inner.keys[i] for i in line]
        union = frozenset[Any]().union(*parts)
        if len(union) != sum(map(len, parts)):
            return None
        made.append(union)
    return Counts(inner.rows, tuple(made), v.shape, inner.size)


def _of_marks(g: Graph, v: Named) -> Counts | None:
    """Sums of all rows' indicators of one key each, or of elements of a mask."""
    found = summands(g, v.name)
    if found is None:
        return None
    name, at = found
    lines = at.reshape(numel(v.shape), -1)
    if lines.numel() > MOST_POSITIONS:
        return None
    if (keys := keys_of_lines(g, name, lines)) is not None:
        sign, made, size = keys
        return Counts(sign, tuple(frozenset([k]) for k in made), v.shape, size)
    node = g.producer(name)
    if node is None or lines.numel() > MOST_MARKS or not is_mark(g, name):
        return None
    if any(len(line.unique()) != len(line) for line in lines):
        return None
    marks = tuple(frozenset(line.tolist()) for line in lines)
    return Counts(MaskOf(name), marks, v.shape, numel(tuple(g.tensors[name]["shape"])))


def keys_of_lines(g: Graph, name: str, lines: torch.Tensor) -> tuple[Any, list[int], int] | None:
    """Whose keys an indicator tensor has, the key of each line, and the number of rows, where each
    line (positions in it) has the indicators of all rows for one key.
    """
    node = g.producer(name)
    if node is None or node["op"] != "one_hot":
        return None
    of = tuple(g.tensors[name]["shape"])
    classes, rows = of[-1], numel(of[:-1])
    if lines.shape[1] != rows:
        return None
    which = lines % classes
    if bool((which != which[:, :1]).any()):
        return None
    if bool(((lines // classes).sort(-1).values != torch.arange(rows)).any()):
        return None
    keys = tables.table_of(g, g.value_of(node["in"][0], "int"))
    if keys is None:
        return None
    start = node["attrs"]["start"]
    return signature(g, keys, None), [start + int(k) for k in which[:, 0]], rows


def cells_of_mask(
    g: Graph, mask: Value, chosen: Any
) -> tuple[dict[Any, list[frozenset[Any]]], int]:
    """How the rows that a mask chooses are counted, which are in the order of its first dimension:
    for each number of that dimension, what an element counts that counts its rows; and how many
    rows such numbers count at most (0: as many as there are elements).

    chosen: whether integers, along the last dimension, are positions of which none is twice.
    """
    if not isinstance(mask, Named) or not mask.shape:
        return {}, 0
    found: dict[Any, list[frozenset[Any]]] = {}
    most = 0
    # the way back to what is counted may pass a sum over choices, or end there
    for stop in (mask_root(g, mask), ""):
        marks = summands(g, mask.name, stop) if stop is not None else None
        if marks is None:
            continue
        name, at = marks
        lines = at.reshape(mask.shape[0], -1)
        if name == stop and at.shape[-1] == 1:
            if lines.numel() <= MOST_MARKS and len(lines.unique()) == lines.numel():
                found[MaskOf(name)] = [frozenset(line.tolist()) for line in lines]
                g.masks.add(name)
            continue
        keys = keys_of_lines(g, name, lines)
        node = g.producer(name)
        if keys is None or node is None:
            continue
        if at.shape[-1] > 1 and not chosen(g.value_of(node["in"][0], "int")):
            continue
        found[keys[0]] = [frozenset([k]) for k in keys[1]]
        most = keys[2]
    return found, most


def is_mark(g: Graph, name: str, depth: int = 8) -> bool:
    """Whether all elements of a tensor are known to be 0 or 1."""
    if name in g.masks:
        return True
    node = g.producer(name)
    if node is None or depth == 0:
        return False
    if node["op"] == "one_hot":
        return True
    if node["op"] == "relu_backward":
        return getattr(g.value_of(node["in"][0], "real"), "fill", None) == 1
    if node["op"] == "mul" and len(node["in"]) == 2 or node["op"] in MOVES_HERE:
        return all(is_mark(g, x, depth - 1) for x in node["in"])
    inner = less_than_one(g, name)
    return inner is not None and is_mark(g, inner, depth - 1)


def mask_root(g: Graph, mask: Named) -> str:
    """The tensor whose elements a mask has, moved."""
    name = mask.name
    while (node := g.producer(name)) is not None:
        if node["op"] not in MOVES_HERE or len(node["in"]) != 1:
            break
        name = node["in"][0]
    return name


def disjoint(parts: Sequence[frozenset[Any]]) -> bool:
    return len(frozenset[Any]().union(*parts)) == sum(map(len, parts))
