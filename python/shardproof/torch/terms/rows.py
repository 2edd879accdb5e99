# SPDX-License-Identifier: Apache-2.0
"""Tensors whose rows are chosen or ordered by data, as dense tensors over static slots.

`x[mask]` has a row for each true element of the mask, so its size depends on data. Here it is the
tensor over all elements of the mask, its slots, with what is known of which slots are rows: the
mask. Each row of the program's tensor is one slot, and no other slot counts. What is computed row
by row is computed in each slot. A sum over rows is the sum over slots of the rows' elements and
zeros.

A sort changes no row. `x[perm]` is x itself, and the set of rows says that the program has them in
the order of a key. Where each key has weights of its own, the slots get a dimension for the key: a
row is present at its own key only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .values import Filled, Known, Shape, Unsupported, Value, numel

if TYPE_CHECKING:
    from .graph import Graph


class RowSet:
    """The rows of some tensors, and their order. Tensors of one set correspond row by row.

    slots: static sizes. keep: 1 at slots that are rows; None: all are. key: integers, by which the
    rows are in order, from `first` on, `classes` of them; the first dimension of the slots is then
    the key's. implied: no slot that is no row has such a key. of: the set whose rows these are in
    another order; None where the rows without an order are a plain tensor. count: the size that
    PyTorch's fake tensors have along the rows. what: for messages. counted: how the rows with each
    key are counted: by whose rows (row_counts.py), what an element counts that counts those of
    each key. pieces: the first dimension of the slots tells pieces that follow each other, and
    `counted` has one for each: rows with one key, or those of a mask that is in row-major order.
    """

    def __init__(
        self,
        slots: Shape,
        keep: Value | None,
        what: str,
        key: Value | None = None,
        classes: int = 0,
        first: int = 0,
        implied: bool = False,
        of: RowSet | None = None,
        counted: dict[Any, list[frozenset[Any]]] | None = None,
    ) -> None:
        self.slots = slots if key is None else (classes, *slots)
        self.keep, self.what, self.key, self.classes = keep, what, key, classes
        self.first, self.implied, self.of = first, implied, of
        self.counted = counted or {}
        self.count = numel(slots)
        self.pieces = key is not None or bool(self.counted)
        if self.pieces and key is None:
            self.classes = slots[0]

    def plain(self) -> Shape:
        """The slots without the key's dimension."""
        return self.slots if self.key is None else self.slots[1:]


class Rows(Value):
    """One tensor over a set of rows.

    inner: the slots' dimensions stand at `dim`, where the program's tensor has its rows. One of
    them has size 1 where all its slots have the same elements. of: the tensor that this is in
    another shape, in which rows are no dimension any more. cleared: slots that are no rows are
    known to hold zeros.
    """

    __slots__ = ("rows", "inner", "dim", "of", "cleared")

    def __init__(
        self, rows: RowSet, inner: Value, dim: int, shape: Any = None, of: Rows | None = None
    ) -> None:
        n = len(rows.slots)
        super().__init__(
            shape
            if shape is not None
            else (*inner.shape[:dim], rows.count, *inner.shape[dim + n :])
        )
        self.rows, self.inner, self.dim, self.of = rows, inner, dim, of
        self.cleared = False

    @property
    def kind(self) -> str:
        return getattr(self.inner, "kind", "real")

    @property
    def held(self) -> Shape:
        """The slots' dimensions as `inner` has them."""
        return self.inner.shape[self.dim : self.dim + len(self.rows.slots)]

    def __repr__(self) -> str:
        return f"rows{list(self.shape)} of {self.inner}"


# whose rows are counted by numbers that ranks have exchanged or gathered: with what these count on
# each rank; what such a number counts is the rank and that
GATHERED = "of each rank"


class Received(RowSet):
    """Rows that the ranks of a group have sent to this one, first those of the first rank, and of
    each rank first those of the first key.

    source: the rows in pieces of which this rank sends parts. owned: the first key that each rank
    receives, and how many. keys: [ranks, slots]; None: the slots are [ranks, own keys, ...]. sign:
    by which the source's rows are counted. own: whose rows are counted, of those received.
    """

    def __init__(
        self,
        source: RowSet,
        owned: tuple[tuple[int, int], ...],
        me: int,
        keys: Value | None,
        keep: Value,
        sign: Any,
        ranks: tuple[int, ...],
        what: str,
    ) -> None:
        first, n = owned[me]
        slots = source.plain() if keys is not None else (n, *source.slots[1:])
        super().__init__((len(owned), *slots), keep, what)
        self.source, self.owned, self.me, self.keys = source, owned, me, keys
        self.count = len(owned) * source.count
        self.own = GATHERED, sign
        # the rank and the key of rows that follow each other
        self.order = [(r, k) for r in range(len(owned)) for k in range(first, first + n)]
        # what a number counts that counts these
        self.counts = {
            (r, k): frozenset((ranks[r], x) for x in source.counted[sign][k]) for r, k in self.order
        }

    def of_key(self, key: int) -> frozenset[Any]:
        """What a number counts that counts the rows with a key."""
        return frozenset[Any]().union(*(self.counts[r, key] for r in range(len(self.owned))))

    def cells(self, rank: int) -> frozenset[Any]:
        """What a number counts that counts the rows from a rank."""
        return frozenset[Any]().union(*(n for c, n in self.counts.items() if c[0] == rank))

    def cells_of(self, sign: Any, keys: frozenset[Any]) -> list[tuple[int, int]] | None:
        """The ranks and keys whose rows a number counts; None where it counts others."""
        found = [c for c, n in self.counts.items() if n <= keys]
        if not keys and sign is None:
            return []
        counted = frozenset[Any]().union(*(self.counts[c] for c in found))
        return found if sign == self.own and counted == keys else None


class Arranged(RowSet):
    """Received rows by key, and those with one key in the order of the ranks that sent them.

    of: the rows as they were received. order: as that of received rows.
    """

    def __init__(self, of: Received, key: Value | None, keep: Value | None, what: str) -> None:
        first, n = of.owned[of.me]
        ranks = range(len(of.owned))
        counted = {of.own: [of.of_key(k) for k in range(first, first + n)]}
        slots = of.slots if key is not None else (n, len(of.owned), *of.slots[2:])
        super().__init__(slots, keep, what, key, n, first, key is not None, of, counted)
        self.count = of.count
        self.order = [(r, k) for k in range(first, first + n) for r in ranks]


class Cell(RowSet):
    """The received rows of one rank with one key."""

    def __init__(self, of: Received, cell: tuple[int, int], keep: Value) -> None:
        super().__init__(of.slots[1:] if of.keys is not None else of.slots[2:], keep, of.what)
        self.of: Received = of
        self.cell = cell
        self.count = of.count


class Place(Value):
    """An integer for each row of rows in an order: `times` its position in that order and, of
    received rows, `cells` times the numbers of rows of each rank with each key.

    cells: for a row's rank and key, how often each rank's and key's rows are counted.
    """

    __slots__ = ("rows", "times", "cells")
    kind = "int"

    def __init__(self, rows: RowSet, times: int, cells: dict[Any, dict[Any, int]]) -> None:
        super().__init__((rows.count,))
        self.rows, self.times, self.cells = rows, times, cells

    def plus(self, other: Place, factor: int) -> Place:
        cells = {
            c: {
                k: m
                for k in (*here, *other.cells[c])
                if (m := here.get(k, 0) + factor * other.cells[c].get(k, 0))
            }
            for c, here in self.cells.items()
        }
        return Place(self.rows, self.times + factor * other.times, cells)

    def is_own_position(self) -> bool:
        """Whether it is each row's position in its own order."""
        return self.times == 1 and not any(self.cells.values())

    def is_position_in(self, other: Received | Arranged) -> bool:
        """Whether it is each row's position in another order of the same rows."""
        own = self.rows
        if self.times != 1 or not isinstance(own, (Received, Arranged)):
            return False
        for c, counts in self.cells.items():
            wanted = dict.fromkeys(other.order[: other.order.index(c)], 1)
            for k in own.order[: own.order.index(c)]:
                wanted[k] = wanted.get(k, 0) - 1
            if counts != {k: m for k, m in wanted.items() if m}:
                return False
        return True


def received(rows: RowSet | None) -> Received | None:
    """The received rows whose order a set is."""
    of = rows.of if isinstance(rows, Arranged) else rows
    return of if isinstance(of, Received) else None


class ByCell(Value):
    """An integer for each rank and key of received rows. numbers: [ranks, keys]."""

    __slots__ = ("numbers",)
    kind = "int"

    def __init__(self, rows: Received | Arranged, numbers: torch.Tensor) -> None:
        super().__init__(rows.slots)
        self.numbers = numbers


class Order(Value):
    """Where the rows of a set in another order come from: the positions in the other order."""

    __slots__ = ("rows",)
    kind = "int"

    def __init__(self, rows: RowSet) -> None:
        super().__init__((rows.count,))
        self.rows = rows


class Positions(Value):
    """For each slot of a set without a mask, where the program has its row: the inverse of the
    order.
    """

    __slots__ = ("rows",)
    kind = "int"

    def __init__(self, rows: RowSet) -> None:
        super().__init__((rows.count,))
        self.rows = rows


def _whole(v: Rows) -> Rows:
    if v.of is not None:
        raise Unsupported(f"rows that {v.rows.what} are no dimension of their own any more")
    return v


def reshape(g: Graph, v: Rows, to: Shape) -> Rows:
    if v.of is not None:
        return v.of if v.of.shape == to else reshape(g, v.of, to)
    before, after = numel(v.shape[: v.dim]), numel(v.shape[v.dim + 1 :])
    places = [
        p
        for p, n in enumerate(to)
        if n == v.rows.count and numel(to[:p]) == before and numel(to[p + 1 :]) == after
    ]
    if len(places) != 1:
        return Rows(v.rows, v.inner, v.dim, to, v)
    p = places[0]
    return Rows(v.rows, g.reshape(v.inner, (*to[:p], *v.held, *to[p + 1 :])), p)


def permute(g: Graph, v: Rows, dims: list[int]) -> Rows:
    v = _whole(v)
    k = len(v.rows.slots)
    order: list[int] = []
    for d in dims:
        order += range(d, d + k) if d == v.dim else [d if d < v.dim else d + k - 1]
    return Rows(v.rows, g.permute(v.inner, order), dims.index(v.dim))


def cut(g: Graph, v: Rows, dim: int, start: int, stop: int, step: int) -> Rows:
    v = _whole(v)
    if dim == v.dim:
        raise Unsupported(f"some of the rows that {v.rows.what}, by their position")
    at = dim if dim < v.dim else dim + len(v.rows.slots) - 1
    return Rows(v.rows, g.slice(v.inner, at, start, stop, step), v.dim)


def expand(g: Graph, v: Rows, to: Shape) -> Rows:
    v = _whole(v)
    p = v.dim + len(to) - len(v.shape)
    if to[p] != v.rows.count:
        raise Unsupported(f"rows that {v.rows.what}, repeated")
    inner = g.reshape(v.inner, (1,) * (len(to) - len(v.shape)) + v.inner.shape)
    return Rows(v.rows, g.expand(inner, (*to[:p], *v.held, *to[p + 1 :])), p)


def spread(g: Graph, v: Rows, held: Shape) -> Value:
    """`inner` with these sizes of slots."""
    n = len(held)
    return g.expand(v.inner, (*v.inner.shape[: v.dim], *held, *v.inner.shape[v.dim + n :]))


def same_set(values: list[Rows]) -> RowSet:
    rows = values[0].rows
    for v in values:
        _whole(v)
        if v.rows is not rows:
            raise Unsupported(
                f"rows that {rows.what} meet rows that {v.rows.what}: whether they are the same "
                "rows in the same order is not known"
            )
    return rows


def joined(g: Graph, values: list[Value], dim: int) -> Rows:
    """A concatenation of tensors of one set, along another dimension than the rows."""
    given = [v for v in values if isinstance(v, Rows)]
    rows = same_set(given)
    at = given[0].dim
    if dim == at or any(v.dim != at for v in given):
        raise Unsupported(f"rows that {rows.what} are put one after another")
    k = len(rows.slots)
    held = tuple(torch.broadcast_shapes(*[v.held for v in given]))
    parts = [
        spread(g, v, held)
        if isinstance(v, Rows)
        else spread(g, constant_rows(g, rows, v, at), held)
        for v in values
    ]
    return Rows(rows, g.cat(parts, dim if dim < at else dim + k - 1), at)


def constant_rows(g: Graph, rows: RowSet, v: Value, dim: int) -> Rows:
    """A tensor that has the same elements in each row as one of the set."""
    if dim < 0 or v.shape[dim] == 1 or isinstance(v, Filled):
        one = v.shape if dim < 0 else (*v.shape[:dim], 1, *v.shape[dim + 1 :])
        if isinstance(v, Filled):
            v = Filled(v.fill, one, v.kind)
    else:
        node = getattr(v, "node", None)
        source = g.value_of(node["in"][0], "real") if node and node["op"] == "expand" else None
        at = dim - len(v.shape) + len(source.shape) if source is not None else -1
        if source is None or at >= 0 and source.shape[at] != 1:
            raise Unsupported(
                f"rows that {rows.what} meet a tensor of {v.shape[dim]} rows: which of them "
                "correspond is not known"
            )
        v = g.slice(v, dim, 0, 1)
        one = v.shape
    k = len(rows.slots)
    at = max(dim, 0)
    lead = one[:at]
    rest = one[at + 1 :] if dim >= 0 else one
    return Rows(rows, g.reshape(v, (*lead, *(1,) * k, *rest)), at)


def known(v: Value) -> torch.Tensor | None:
    """The numbers of a tensor of rows in each slot, where they are constants."""
    if isinstance(v, Rows) and v.of is None:
        if isinstance(v.inner, Known):
            return v.inner.data
        if isinstance(v.inner, Filled):
            return torch.full(v.inner.shape, v.inner.fill)
    return None
