# SPDX-License-Identifier: Apache-2.0
"""Functions of one integer, position by position: which classes a rank holds, ignored labels, windows of a vocabulary.

An integer tensor of classes (tokens, labels) is compared, shifted, masked and used as an index by vocabulary-parallel code. Such values are kept as tables over all
classes and become operators (`embedding` and `one_hot` with a window) where numbers are needed.
"""

from __future__ import annotations

from typing import Callable

import torch

from . import assumptions
from .graph import Graph
from .values import Filled, Known, Named, Pick, Poison, Shape, Table, Unsupported, Value, numel

Function = Callable[..., torch.Tensor]
MOST_COMPARED = 1 << 22  # classes times places of integers that are compared with constants
MOST_WINDOWS = 64  # a function of classes with more of them is looked up


def table_of(g: Graph, v: Value) -> Table | None:
    """An integer tensor as a table of itself; what is a table already; None for anything else."""
    if isinstance(v, Table):
        return v
    if isinstance(v, Named) and v.kind == "int":
        of = g.integers(v)
        if of is not None and of.origins and of.least >= 0:
            g.tabulated.update(of.origins)
            if all(name in g.classes for name in of.origins):
                return Table(v, torch.arange(max(of.most + 1, *(g.classes[name] for name in of.origins))), 0, v.shape)
    return None


def note_classes(g: Graph, v: Value, count: int) -> None:
    """An integer tensor is used to choose among `count` rows or classes."""
    of = g.integers(v) if isinstance(v, Named) else None
    for origin in of.origins if of is not None else [v.reason.asks] if isinstance(v, Poison) and v.reason.asks else ():
        g.chosen_from[origin] = min(count, g.chosen_from.get(origin, count))


def note_index(g: Graph, v: Value) -> None:
    """An integer tensor indexes a table as it is."""
    of = g.integers(v) if isinstance(v, Named) else None
    g.indexing.update(of.origins if of is not None else ())


def unknown_range(g: Graph, operands: list[Value]) -> str:
    """The integer input among the operands whose range was asked for and is not known, or nothing."""
    for v in operands:
        if isinstance(v, Named) and v.kind == "int":
            of = g.integers(v)
            for origin in of.origins if of is not None else ():
                if origin in g.tabulated and origin not in g.classes:
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
            source, low, classes = (t.source if source is None or len(t.source.shape) >= len(source.shape) else source), t.low, len(t.entries)
        elif not isinstance(v, Filled):
            return None
    if source is None:
        return None
    arguments = [t.entries if (t := table_of(g, v)) is not None else _scalar(v) for v in operands]
    entries = function(*arguments)
    return Table(source, entries.expand(classes).contiguous(), low, shape)


def with_constants(g: Graph, function: Function, a: Value, b: Value, shape: Shape) -> Value | None:
    """`function`, of two numbers that is 0 or 1, of a table and of constants that differ from place to place (positions that are compared with lengths), or None."""
    for x, y, flip in ((a, b, False), (b, a, True)):
        t = table_of(g, x)
        if t is None or not isinstance(y, Known) or len(t.entries) * numel(shape) > MOST_COMPARED:
            continue
        from . import arithmetic as ar

        g.assume(assumptions.CLASSES)
        constants = y.data.unsqueeze(-1)
        holds = function(constants, t.entries) if flip else function(t.entries, constants)
        hot = one_hot(g, g.named(g.expand(t.source, t.shape)), t.low, t.low + len(t.entries))
        return g.expand(ar.reduce(g, "sum", ar.binary(g, "mul", hot, Known(holds.to(torch.float64))), [-1]), shape)
    return None


def _scalar(v: Value) -> torch.Tensor:
    assert isinstance(v, Filled)
    return torch.tensor(v.fill, dtype=torch.float64 if isinstance(v.fill, float) else None)  # PyTorch's own choice would round it


def _root(g: Graph, source: Named) -> tuple[str, Shape]:
    """The tensor whose elements these are, and in which shape (before they were repeated): where both are equal, broadcasting puts equal elements at equal positions.

    The shape counts: labels[:, None] and labels[None] have the same elements, and not at the same places.
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
    return len(t.shape) == len(shape) > 1 and t.shape == shape[:-1] + (1,) and bool(((t.entries == 0) | (t.entries == 1)).all())


def same_source(g: Graph, a: Table, b: Table) -> bool:
    """Whether the tables are of the same integers, position by position, also where they are broadcast to one shape."""
    return _root(g, a.source) == _root(g, b.source)


def same_rows(g: Graph, a: Table, b: Table) -> bool:
    """Whether the tables are of the same integers, one after another in row-major order: for rows that are matched by their number, in whatever shape they are."""
    (one, shape), (other, _) = _root(g, a.source), _root(g, b.source)
    return one == other and numel(a.shape) == numel(b.shape) == numel(shape)


def every_class(g: Graph, ids: Named) -> Value | None:
    """1 for each integer, as the sum of the indicators of all classes; None where their number is not known (yet).

    The proof knows indicators as opaque numbers, so it cannot know that they sum to 1 over the windows of all ranks. What is added to a sum over
    classes is therefore written as one, too: a shift of all logits then cancels class by class.
    """
    t = table_of(g, ids)
    if t is None:
        return None
    g.assume(assumptions.CLASSES)
    from . import arithmetic as ar

    return ar.reduce(g, "sum", one_hot(g, ids, 0, len(t.entries)), [-1])


def _windows(entries: torch.Tensor) -> list[tuple[int, int, float]]:
    """Runs of equal entries that are not 0: start, stop, value."""
    runs: list[tuple[int, int, float]] = []
    values = entries.to(torch.float64)
    changes = (torch.nonzero(values[1:] != values[:-1]).flatten() + 1).tolist()
    bounds = [0, *changes, len(values)]
    for start, stop in zip(bounds[:-1], bounds[1:]):
        x = float(values[start])
        if x != 0:
            runs.append((start, stop, x))
    return runs


def one_hot(g: Graph, source: Value, start: int, stop: int) -> Named:
    n = g.named(source)
    return g.one("one_hot", [n], n.shape + (stop - start,), {"start": start, "stop": stop})


def real(g: Graph, v: Table | Pick) -> Value:
    """The value as a tensor of the graph."""
    if isinstance(v, Pick):
        return _real_pick(g, v)
    if v.kind == "int" and v.entries.dtype != torch.bool:
        if v.low == 0 and torch.equal(v.entries, torch.arange(len(v.entries))):
            return g.expand(v.source, v.shape)
        raise Unsupported("integers computed from classes are used as numbers")
    from . import arithmetic as ar

    total: Value | None = None
    runs = _windows(v.entries)
    numbers = v.entries.to(torch.float64)
    least, most = float(numbers.min()), float(numbers.max())
    if least == most:
        g.assume(assumptions.CLASSES)
        return Filled(least, v.shape)
    two_numbers = bool(((numbers == least) | (numbers == most)).all())
    if len(runs) > MOST_WINDOWS:
        if v.low < 0:
            raise Unsupported(f"a function of classes below 0 with more than {MOST_WINDOWS} windows")
        g.assume(assumptions.CLASSES)
        rows = torch.cat([torch.zeros(v.low, dtype=torch.float64), numbers]).reshape(-1, 1)
        ids = g.named(v.source)
        return g.expand(g.reshape(g.one("embedding", [ids, Known(rows)], ids.shape + (1,)), ids.shape), v.shape)
    outside = runs[0][0] == 0 or runs[-1][1] == len(v.entries)
    zero_runs = _windows((v.entries.to(torch.float64) == runs[0][2]).logical_not())
    if outside and len(zero_runs) < len(runs) and two_numbers:
        # a constant less some windows: classes sum to 1 over all windows
        g.assume(assumptions.CLASSES)
        background = runs[0][2]
        rest = Table(v.source, v.entries.to(torch.float64) - background, v.low, v.source.shape)
        return g.expand(ar.binary(g, "add", real(g, rest), background), v.shape)
    for start, stop, x in runs:
        inside = ar.reduce(g, "sum", one_hot(g, v.source, start + v.low, stop + v.low), [-1])
        term = ar.binary(g, "mul", inside, x)
        total = term if total is None else ar.binary(g, "add", total, term)
    assert total is not None
    return g.expand(total, v.shape)


def _line(index: torch.Tensor, scale: torch.Tensor) -> tuple[int, int, int]:
    """(start, stop, shift): where scale is not 0 the index is the class plus shift, on one window; raises Unsupported otherwise."""
    used = torch.nonzero(scale != 0).flatten()
    if len(used) == 0:
        return 0, 0, 0
    start, stop = int(used[0]), int(used[-1]) + 1
    window = index[start:stop].to(torch.int64)
    shift = int(window[0]) - start
    if len(used) != stop - start or not torch.equal(window, torch.arange(start, stop) + shift):
        raise Unsupported("an index into a vocabulary that is not one window of it")
    return start, stop, shift


def _parts(v: Pick) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The scale as a sum of windows on which the index is a line, and of constants on which it is one number."""
    index = v.index.entries.to(torch.int64)
    lines, rest = torch.zeros_like(v.scale), v.scale.clone()
    shift = index - torch.arange(len(index))
    used = v.scale != 0
    moved = shift[used]
    if len(moved):
        best = int(moved.mode().values) if int(moved.min()) != int(moved.max()) else int(moved[0])
        on = used & (shift == best)
        lines[on], rest[on] = v.scale[on], 0
    return [(lines, index), (rest, index)]


def _real_pick(g: Graph, v: Pick) -> Value:
    result = _sum_of_pick(g, v)
    if isinstance(result, Named) and not v.table and result.of_class is None:
        result.of_class = g.named(g.reshape(g.expand(v.index.source, v.index.shape), result.shape))
    return result


def _sum_of_pick(g: Graph, v: Pick) -> Value:
    from . import arithmetic as ar

    (scale, index), (rest, _) = _parts(v)
    start, stop, shift = _line(index, scale)
    factors = scale[start:stop]
    if stop > start and bool((factors != factors[0]).any()):
        raise Unsupported("elements of a vocabulary that are scaled differently")
    low, source, width = v.index.low, v.source, v.source.shape[0 if v.table else -1]
    shape = v.shape
    ids = g.reshape(g.expand(v.index.source, v.index.shape), v.index.shape)
    total: Value = Filled(0, shape)
    if stop > start:
        if not 0 <= start + shift and stop + shift <= width:
            raise Unsupported("an index outside of the table")
        g.assume(assumptions.CLASSES)
        if v.table:
            part = g.slice(source, 0, start + shift, stop + shift)
            attrs = {} if (start + low, stop + low) == (0, len(index)) and low == 0 else {"start": start + low, "stop": stop + low}
            total = g.one("embedding", [g.named(ids), g.named(part)], g.named(ids).shape + source.shape[1:], attrs or None)
        else:
            part = g.slice(source, -1, start + shift, stop + shift)
            total = ar.taken(g, part, one_hot(g, ids, start + low, stop + low), [-1])
        total = ar.binary(g, "mul", total, float(factors[0]))
    if bool((rest != 0).any()):
        places = torch.unique(index[rest != 0])
        if len(places) > 4:
            raise Unsupported("an index into a vocabulary that is not one window of it")
        for place in places.tolist():
            at = torch.where((index == place), rest, torch.zeros_like(rest))
            mask = Table(v.index.source, at, low, v.index.shape)
            row = g.slice(source, 0 if v.table else -1, place, place + 1)
            row = g.reshape(row, row.shape[1:] if v.table else row.shape[:-1])
            g.both_have_values(row)
            weight: Value = real(g, mask)
            if v.table:
                weight = g.reshape(weight, weight.shape + (1,))
            total = ar.binary(g, "add", total, ar.binary(g, "mul", weight, row))
    if bool((v.offset != 0).any()):
        total = ar.binary(g, "add", total, real(g, Table(v.index.source, v.offset, low, v.index.shape)))
    return g.expand(g.reshape(total, shape) if total.shape != shape else total, shape)


def binary(g: Graph, op: str, a: Value, b: Value, shape: Shape) -> Value | None:
    """Arithmetic that stays a table or a pick; None: it does not."""
    functions: dict[str, Function] = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
    integers = any(isinstance(v, Table) or (isinstance(v, Named) and v.kind == "int") for v in (a, b))
    if integers and not (isinstance(a, Pick) or isinstance(b, Pick)):
        if isinstance(a, Table) and not isinstance(b, (Table, Filled)) and not (isinstance(b, Named) and b.kind == "int"):
            return None
        if isinstance(b, Table) and not isinstance(a, (Table, Filled)) and not (isinstance(a, Named) and a.kind == "int"):
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
    """Whether the table has, once broadcast to the pick, one number for each thing that was picked."""
    if t.shape == v.index.shape + (1,) * (len(v.shape) - len(v.index.shape)) and same_rows(g, t, v.index):
        return True  # mask[..., None] of the very indices
    return same_source(g, v.index, t) and not (v.table and not _per_row(t, v))


def _per_row(t: Table, v: Pick) -> bool:
    """The table's value is one for each row that was picked: its last dimension is 1 and is broadcast."""
    return t.shape[-1:] == (1,) or len(t.shape) == 0 or t.shape == v.shape


def _pick_with(a: Pick, op: str, x: torch.Tensor, shape: Shape) -> Pick | None:
    if shape != a.shape:
        return None
    if op in ("add", "sub"):
        if a.table:
            return None
        return Pick(a.source, a.index, a.scale, a.offset + x if op == "add" else a.offset - x, a.table, shape)
    if op == "div":
        if bool((x == 0).any()):
            return None
        return Pick(a.source, a.index, a.scale / x, a.offset / x, a.table, shape)
    return Pick(a.source, a.index, a.scale * x, a.offset * x, a.table, shape)


def pick(g: Graph, source: Value, index: Value, table: bool) -> Value | None:
    """The elements (rows, with `table`) of source that a table of classes names; None if the index is no such thing."""
    note_index(g, index)
    t = table_of(g, index)
    if t is None:
        return None
    shape = t.shape + (source.shape[1:] if table else ())
    ones = torch.ones(len(t.entries), dtype=torch.float64)
    return Pick(source, t, ones, torch.zeros_like(ones), table, shape)


def constant_table(t: Table) -> Known | Filled | None:
    """The table as a constant if all classes have one entry."""
    if bool((t.entries == t.entries[0]).all()):
        x = t.entries[0].item()
        return Filled(x if not isinstance(x, bool) else int(x), t.shape, t.kind)
    return None
