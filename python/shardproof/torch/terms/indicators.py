# SPDX-License-Identifier: Apache-2.0
"""Tables and picked elements as nodes: sums of indicators of classes, and rows of an embedding."""

from __future__ import annotations

import torch

from . import arithmetic as ar
from . import assumptions, tables
from .graph import WRITERS, Graph
from .tables import MOST_COMPARED, Function
from .values import Filled, Known, Named, Pick, Shape, Table, Unsupported, Value, numel

MOST_WINDOWS = 64  # a function of classes with more of them is looked up


def with_constants(g: Graph, function: Function, a: Value, b: Value, shape: Shape) -> Value | None:
    """A comparison (0 or 1) of a table with constants that differ from place to place, or None.

    Positions are compared with lengths in that way.
    """
    for x, y, flip in ((a, b, False), (b, a, True)):
        t = tables.table_of(g, x)
        if t is None or not isinstance(y, Known) or len(t.entries) * numel(shape) > MOST_COMPARED:
            continue
        g.assume(assumptions.CLASSES)
        constants = y.data.unsqueeze(-1)
        holds = function(constants, t.entries) if flip else function(t.entries, constants)
        hot = tables.one_hot(g, g.named(g.expand(t.source, t.shape)), t.low, t.low + len(t.entries))
        return g.expand(
            ar.reduce(g, "sum", ar.binary(g, "mul", hot, Known(holds.to(torch.float64))), [-1]),
            shape,
        )
    return None


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


def real(g: Graph, v: Table | Pick) -> Value:
    """The value as a tensor of the graph."""
    if isinstance(v, Pick):
        return _real_pick(g, v)
    if v.kind == "int" and v.entries.dtype != torch.bool:
        if v.low == 0 and torch.equal(v.entries, torch.arange(len(v.entries))):
            return g.expand(v.source, v.shape)
        raise Unsupported("integers computed from classes are used as numbers")
    total: Value | None = None
    runs = _windows(v.entries)
    numbers = v.entries.to(torch.float64)
    least, most = float(numbers.min()), float(numbers.max())
    if least == most:
        g.assume(assumptions.CLASSES)
        tables.note_range(g, v)
        return Filled(least, v.shape)
    two_numbers = bool(((numbers == least) | (numbers == most)).all())
    if len(runs) > MOST_WINDOWS:
        if v.low < 0:
            raise Unsupported(
                f"a function of classes below 0 with more than {MOST_WINDOWS} windows"
            )
        g.assume(assumptions.CLASSES)
        rows = torch.cat([torch.zeros(v.low, dtype=torch.float64), numbers]).reshape(-1, 1)
        ids = g.named(v.source)
        return g.expand(
            g.reshape(g.one("embedding", [ids, Known(rows)], ids.shape + (1,)), ids.shape), v.shape
        )
    outside = runs[0][0] == 0 or runs[-1][1] == len(v.entries)
    zero_runs = _windows((v.entries.to(torch.float64) == runs[0][2]).logical_not())
    if outside and len(zero_runs) < len(runs) and two_numbers:
        # a constant less some windows: classes sum to 1 over all windows
        g.assume(assumptions.CLASSES)
        background = runs[0][2]
        rest = Table(v.source, v.entries.to(torch.float64) - background, v.low, v.source.shape)
        return g.expand(ar.binary(g, "add", real(g, rest), background), v.shape)
    for start, stop, x in runs:
        inside = ar.reduce(g, "sum", tables.one_hot(g, v.source, start + v.low, stop + v.low), [-1])
        term = ar.binary(g, "mul", inside, x)
        total = term if total is None else ar.binary(g, "add", total, term)
    assert total is not None
    return g.expand(total, v.shape)


def window_of(index: torch.Tensor, scale: torch.Tensor) -> tuple[int, int, int]:
    """(start, stop, shift): the one window where scale is not 0, and where the index is class +
    shift.

    Raises Unsupported where there is no such window.
    """
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
    """The scale as a sum of two: windows of one shift (index - class), and the other indices."""
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
    try:
        result = _sum_of_pick(g, v)
    except Unsupported:
        if not v.table:
            raise
        result = _of_rearranged_rows(g, v)
    if isinstance(result, Named) and not v.table and result.of_class is None:
        result.of_class = g.named(g.reshape(g.expand(v.index.source, v.index.shape), result.shape))
    return result


def _of_rearranged_rows(g: Graph, v: Pick) -> Value:
    """Rows of a table that any function of an integer names: the integer names rows of the table
    that the function has rearranged.
    """
    if v.index.low < 0:
        raise Unsupported("rows that integers below 0 name")
    g.assume(assumptions.CLASSES)
    used = v.scale != 0
    index = torch.where(used, v.index.entries.to(torch.int64), 0)
    if int(index.min()) < 0 or int(index.max()) >= v.source.shape[0]:
        raise Unsupported("an index outside of the table")
    rows = tables.along(g, v.source, index.tolist(), 0)
    rows = ar.binary(g, "mul", rows, Known(v.scale.reshape(-1, *[1] * (len(rows.shape) - 1))))
    if v.index.low:
        rows = g.cat([Filled(0, (v.index.low, *rows.shape[1:])), rows], 0)
    ids = g.named(g.expand(v.index.source, v.index.shape))
    return g.reshape(g.one("embedding", [ids, rows], ids.shape + rows.shape[1:]), v.shape)


def _sum_of_pick(g: Graph, v: Pick) -> Value:
    (scale, index), (rest, _) = _parts(v)
    start, stop, shift = window_of(index, scale)
    factors = scale[start:stop]
    if stop > start and bool((factors != factors[0]).any()):
        raise Unsupported("elements of a vocabulary that are scaled differently")
    low, source, width = v.index.low, v.source, v.source.shape[0 if v.table else -1]
    shape = v.shape
    ids = g.reshape(g.expand(v.index.source, v.index.shape), v.index.shape)
    total: Value = Filled(0, shape)
    if stop > start:
        if not (start + shift >= 0 and stop + shift <= width):
            raise Unsupported("an index outside of the table")
        g.assume(assumptions.CLASSES)
        if v.table:
            part = g.slice(source, 0, start + shift, stop + shift)
            attrs = (
                {}
                if (start + low, stop + low) == (0, len(index)) and low == 0
                else {"start": start + low, "stop": stop + low}
            )
            total = g.one(
                "embedding",
                [g.named(ids), g.named(part)],
                g.named(ids).shape + source.shape[1:],
                attrs or None,
            )
        else:
            part = ar.seen(g.slice(source, -1, start + shift, stop + shift))
            total = ar.taken(g, part, tables.one_hot(g, ids, start + low, stop + low), [-1])
        total = ar.binary(g, "mul", total, float(factors[0]))
    if bool((rest != 0).any()):
        places = torch.unique(index[rest != 0])
        if len(places) > 4:
            raise Unsupported("an index into a vocabulary that is not one window of it")
        for place in places.tolist():
            at = torch.where((index == place), rest, torch.zeros_like(rest))
            mask = Table(v.index.source, at, low, v.index.shape)
            row = ar.seen(g.slice(source, 0 if v.table else -1, place, place + 1))
            row = g.reshape(row, row.shape[1:] if v.table else row.shape[:-1])
            g.definedness.both_have_values(row)
            weight: Value = real(g, mask)
            if v.table:
                weight = g.reshape(weight, weight.shape + (1,))
            total = ar.binary(g, "add", total, ar.binary(g, "mul", weight, row))
    if bool((v.offset != 0).any()):
        total = ar.binary(
            g, "add", total, real(g, Table(v.index.source, v.offset, low, v.index.shape))
        )
    return g.expand(g.reshape(total, shape) if total.shape != shape else total, shape)


WRITERS[Table] = real
WRITERS[Pick] = real
