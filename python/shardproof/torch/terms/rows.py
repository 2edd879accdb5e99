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
    each key.
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

    def plain(self) -> Shape:
        """The slots without the key's dimension."""
        return self.slots if self.key is None else self.slots[1:]


class Rows(Value):
    """One tensor over a set of rows.

    inner: the slots' dimensions stand at `dim`, where the program's tensor has its rows. One of
    them has size 1 where all its slots have the same elements. of: the tensor that this is in
    another shape, in which rows are no dimension any more.
    """

    __slots__ = ("rows", "inner", "dim", "of")

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

    @property
    def kind(self) -> str:
        return getattr(self.inner, "kind", "real")

    @property
    def held(self) -> Shape:
        """The slots' dimensions as `inner` has them."""
        return self.inner.shape[self.dim : self.dim + len(self.rows.slots)]

    def __repr__(self) -> str:
        return f"rows{list(self.shape)} of {self.inner}"


class Received(RowSet):
    """Rows that the ranks of a group have sent to this one, first those of the first rank.

    source: the sorted rows of which this rank sends parts. owned: the first key that each rank
    receives, and how many. keys: [ranks, slots]. own: whose rows are counted, of those received.
    """

    def __init__(
        self,
        source: RowSet,
        owned: tuple[tuple[int, int], ...],
        me: int,
        keys: Value,
        keep: Value,
        own: Any,
        what: str,
    ) -> None:
        super().__init__((len(owned), *source.plain()), keep, what)
        self.source, self.owned, self.me, self.keys, self.own = source, owned, me, keys, own

    def cells(self, rank: int) -> frozenset[Any]:
        """What a number counts that counts the rows from a rank."""
        first, n = self.owned[self.me]
        return frozenset((rank, k) for k in range(first, first + n))


class ByCell(Value):
    """An integer for each rank and key of received rows. numbers: [ranks, keys]."""

    __slots__ = ("numbers",)
    kind = "int"

    def __init__(self, rows: Received, numbers: torch.Tensor) -> None:
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
