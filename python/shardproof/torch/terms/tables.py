# SPDX-License-Identifier: Apache-2.0
"""Functions of one integer, position by position.

Vocabulary-parallel code compares, shifts and masks an integer tensor of classes (tokens, labels),
and indexes with it. Such values are kept as tables over all classes. They become operators
(`embedding` and `one_hot` with a window) where numbers are needed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import assumptions
from .graph import Graph
from .permutations import permuted
from .values import (
    Filled,
    Known,
    Named,
    Permuted,
    Pick,
    Poison,
    Shape,
    Table,
    Unsupported,
    Value,
    numel,
)

Function = Callable[..., torch.Tensor]
_FAR = 1 << 20  # beyond all classes
MOST_SLICES = 4096  # of a tensor that is looked up at known positions
MOST_COMPARED = 1 << 22  # classes times places of integers that are compared with constants


def table_of(g: Graph, v: Value) -> Table | None:
    """An integer tensor as a table of itself; what is a table already; None for anything else."""
    if isinstance(v, Table):
        return v
    if isinstance(v, Named) and v.kind == "int":
        of = g.integers.origins_of(v)
        if of is not None and of.origins and of.least >= 0:
            g.integers.tabulated.update(of.origins)
            if all(name in g.integers.classes for name in of.origins):
                n = max(of.most + 1, *(g.integers.classes[name] for name in of.origins))
                return Table(v, torch.arange(n), 0, v.shape)
    return None


def note_classes(g: Graph, v: Value, count: int) -> None:
    """An integer tensor is used to choose among `count` rows or classes."""
    of = g.integers.origins_of(v) if isinstance(v, Named) else None
    for origin in (
        of.origins
        if of is not None
        else [v.reason.range_of]
        if isinstance(v, Poison) and v.reason.range_of
        else ()
    ):
        g.integers.chosen_from[origin] = min(count, g.integers.chosen_from.get(origin, count))


def note_index(g: Graph, v: Value) -> None:
    """An integer tensor indexes a table as it is."""
    of = g.integers.origins_of(v) if isinstance(v, Named) else None
    g.integers.indexing.update(of.origins if of is not None else ())


def unknown_range(g: Graph, operands: list[Value]) -> str:
    """The integer input among the operands whose range was needed and is not known, or ""."""
    for v in operands:
        if isinstance(v, Named) and v.kind == "int":
            of = g.integers.origins_of(v)
            for origin in of.origins if of is not None else ():
                if origin in g.integers.tabulated and origin not in g.integers.classes:
                    return origin
    return ""


def apply(g: Graph, function: Function, operands: list[Value], shape: Shape) -> Table | None:
    """`function` of tables of one source and of single numbers, or None."""
    source: Named | None = None
    low, classes = 0, 0
    for v in operands:
        t = table_of(g, v)
        if t is not None:
            if source is not None and _root(g, t.source) != _root(g, source):
                return None
            source, low, classes = (
                (
                    t.source
                    if source is None or len(t.source.shape) >= len(source.shape)
                    else source
                ),
                t.low,
                len(t.entries),
            )
        elif not isinstance(v, Filled):
            return None
    if source is None:
        return None
    found = [table_of(g, v) for v in operands]
    arguments = [_scalar(v) if t is None else t.entries for t, v in zip(found, operands)]
    entries = function(*arguments)
    beyond = None
    if not any(isinstance(v, Table) for v in operands):  # integers as they are, and numbers
        further = [classes, classes + _FAR]
        for v in operands:
            if isinstance(v, Filled) and v.fill >= classes:
                further += [int(v.fill), int(v.fill) + 1]
        points = torch.tensor(further)
        beyond = function(
            *[_scalar(v) if t is None else points for t, v in zip(found, operands)]
        ).expand(len(further))
    return Table(source, entries.expand(classes).contiguous(), low, shape, beyond)


def _scalar(v: Value) -> torch.Tensor:
    assert isinstance(v, Filled)
    # PyTorch's own choice would round it
    return torch.tensor(v.fill, dtype=torch.float64 if isinstance(v.fill, float) else None)


def _root(g: Graph, source: Named) -> tuple[str, Shape]:
    """The tensor whose elements these are, and its shape before they were repeated.

    Where both are equal, broadcasting puts equal elements at equal positions. The shape counts:
    labels[:, None] and labels[None] have the same elements, and not at the same places.
    """
    name, shape = source.name, source.shape
    node = source.node
    if node is not None and node["op"] == "expand":
        name = node["in"][0]
        shape = tuple(g.tensors[name]["shape"])
        node = g.producer(name)
    if node is not None and node["op"] == "view":
        name = node["in"][0]
    while shape[:1] == (1,):
        shape = shape[1:]
    return name, shape


def keeps_rows(t: Table, shape: Shape) -> bool:
    """Whether the table keeps whole rows of a tensor of that shape and sets the others to zero."""
    return (
        len(t.shape) == len(shape) > 1
        and t.shape == shape[:-1] + (1,)
        and bool(((t.entries == 0) | (t.entries == 1)).all())
    )


def same_source(g: Graph, a: Table, b: Table) -> bool:
    """Whether the tables are of the same integers, position by position, also where they are
    broadcast.
    """
    return _root(g, a.source) == _root(g, b.source)


def same_rows(g: Graph, a: Table, b: Table) -> bool:
    """Whether the tables are of the same integers in row-major order, whatever their shapes.

    That is for rows that are matched by their number.
    """
    (one, shape), (other, _) = _root(g, a.source), _root(g, b.source)
    return one == other and numel(a.shape) == numel(b.shape) == numel(shape)


def one_hot(g: Graph, source: Value, start: int, stop: int) -> Named:
    if isinstance(source, Permuted):
        return g.named(permuted(g, one_hot(g, source.source, start, stop), source.by))
    n = g.named(source)
    return g.one("one_hot", [n], n.shape + (stop - start,), {"start": start, "stop": stop})


def binary(g: Graph, op: str, a: Value, b: Value, shape: Shape) -> Value | None:
    """Arithmetic that stays a table or a pick; None: it does not."""
    functions: dict[str, Function] = {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.div,
    }
    integers = any(
        isinstance(v, Table) or (isinstance(v, Named) and v.kind == "int") for v in (a, b)
    )
    if integers and not (isinstance(a, Pick) or isinstance(b, Pick)):
        if (
            isinstance(a, Table)
            and not isinstance(b, (Table, Filled))
            and not (isinstance(b, Named) and b.kind == "int")
        ):
            return None
        if (
            isinstance(b, Table)
            and not isinstance(a, (Table, Filled))
            and not (isinstance(a, Named) and a.kind == "int")
        ):
            return None
        return apply(g, functions[op], [a, b], shape)
    if isinstance(a, Pick) and isinstance(b, Filled):
        return _pick_with(a, op, torch.full_like(a.scale, float(b.fill)), shape)
    if isinstance(b, Pick) and isinstance(a, Filled) and op in ("add", "mul", "sub"):
        x = torch.full_like(b.scale, float(a.fill))
        if op == "sub":
            b, op = Pick(b.source, b.index, -b.scale, -b.offset, b.table, b.shape), "add"
        return _pick_with(b, op, x, shape)
    if isinstance(a, Pick) and isinstance(b, Table) and _scales(g, b, a):
        return _pick_with(a, op, b.entries.to(torch.float64), shape)
    if isinstance(b, Pick) and isinstance(a, Table) and op in ("add", "mul") and _scales(g, a, b):
        return _pick_with(b, op, a.entries.to(torch.float64), shape)
    return None


def _scales(g: Graph, t: Table, v: Pick) -> bool:
    """Whether the table, broadcast to the pick, has one number for each picked element."""
    if t.shape == v.index.shape + (1,) * (len(v.shape) - len(v.index.shape)) and same_rows(
        g, t, v.index
    ):
        return True  # mask[..., None] of the very indices
    return same_source(g, v.index, t) and not (v.table and not _per_row(t, v))


def _per_row(t: Table, v: Pick) -> bool:
    """Whether the table has one value for each picked row: its last dimension is 1 and is
    broadcast.
    """
    return t.shape[-1:] == (1,) or len(t.shape) == 0 or t.shape == v.shape


def _pick_with(a: Pick, op: str, x: torch.Tensor, shape: Shape) -> Pick | None:
    if shape != a.shape:
        return None
    if op in ("add", "sub"):
        if a.table:
            return None
        return Pick(
            a.source,
            a.index,
            a.scale,
            a.offset + x if op == "add" else a.offset - x,
            a.table,
            shape,
        )
    if op == "div":
        if bool((x == 0).any()):
            return None
        return Pick(a.source, a.index, a.scale / x, a.offset / x, a.table, shape)
    return Pick(a.source, a.index, a.scale * x, a.offset * x, a.table, shape)


def pick(g: Graph, source: Value, index: Value, table: bool) -> Value | None:
    """The elements (rows, with `table`) of source that a table of classes names; None: no such
    index.
    """
    note_index(g, index)
    t = table_of(g, index)
    if t is None:
        return None
    shape = t.shape + (source.shape[1:] if table else ())
    ones = torch.ones(len(t.entries), dtype=torch.float64)
    return Pick(source, t, ones, torch.zeros_like(ones), table, shape)


def along(g: Graph, x: Value, positions: list[int], dim: int) -> Value:
    """The parts of x at known positions along a dimension, as slices one after another."""
    runs: list[list[int]] = []
    for i in positions:
        if runs and i == runs[-1][1]:
            runs[-1][1] = i + 1
        else:
            runs.append([i, i + 1])
    if not 0 < len(runs) <= MOST_SLICES:
        raise Unsupported("an index of too many pieces")
    return g.cat([g.slice(x, dim, a, b) for a, b in runs], dim)


def constant_table(g: Graph, t: Table) -> Known | Filled | None:
    """The table as a constant if all classes have one entry."""
    if not bool((t.entries == t.entries[0]).all()):
        return None
    note_range(g, t)
    x = t.entries[0].item()
    return Filled(x if not isinstance(x, bool) else int(x), t.shape, t.kind)


def note_range(g: Graph, t: Table) -> None:
    """All classes have one entry. That rests on their range, unless larger ones have it, too."""
    if t.beyond is not None and bool((t.beyond == t.entries[0]).all()):
        return
    of = g.integers.origins_of(t.source)
    if of is not None and not g.integers.observed.isdisjoint(of.origins):
        g.assume(assumptions.integers_decide(g.loc, t.low + len(t.entries)))
