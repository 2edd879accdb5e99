# SPDX-License-Identifier: Apache-2.0
"""Lookups and writes by index: of classes (tokens, labels) and of known positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms import assumptions, indicators, tables
from ..terms.graph import Graph
from ..terms.permutations import permutation_of, permuted
from ..terms.selection import as_numbers, choose, complement, nonzero
from ..terms.values import (
    Filled,
    Known,
    Named,
    Permuted,
    Pick,
    Replaced,
    Table,
    Unsupported,
    Value,
    numel,
)
from . import choices
from .layout import taken_back
from .reductions import norm
from .table import lowering, require, scalar


@lowering("embedding")
def embedding(
    call: Any,
    g: Graph,
    weight: Value,
    ids: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    if len(weight.shape) > 2:  # matrices that data chooses, as those of experts
        rows = embedding(
            call, g, g.reshape(weight, (weight.shape[0], numel(weight.shape[1:]))), ids
        )
        return g.reshape(rows, ids.shape + weight.shape[1:])
    ids = choices.as_index(g, ids, weight.shape[0])
    if isinstance(ids, Replaced):
        kept = embedding(call, g, weight, ids.source, padding_idx, scale_grad_by_freq)
        row = g.slice(weight, 0, *_position(ids.other, weight.shape[0]))
        return choose(
            g, _per_row(g, ids.keep, kept), kept, g.reshape(row, row.shape[1:]), kept.shape
        )
    tables.note_classes(g, ids, weight.shape[0])
    if isinstance(ids, (Known, Filled)):
        _within(g.data(ids), weight.shape[0], False)
        return _rows(g, weight, g.data(ids), 0, ids.shape + weight.shape[1:])
    if len(weight.shape) == 1:
        t = tables.table_of(g, ids)
        if t is not None and isinstance(weight, (Known, Filled)):
            positions = t.entries.to(torch.int64)
            require(
                int(positions.min()) >= 0 and int(positions.max()) < weight.shape[0],
                "an index outside of the table",
            )
            return Table(t.source, g.data(weight)[positions], t.low, t.shape)
        weight = g.reshape(weight, (weight.shape[0], 1))
        return g.reshape(g.expand(embedding(call, g, weight, ids), ids.shape + (1,)), ids.shape)
    if isinstance(ids, Named):
        require(ids.kind == "int", "indices that are no integers")
        tables.note_index(g, ids)
        return g.one("embedding", [ids, weight], ids.shape + weight.shape[1:])
    if isinstance(ids, Permuted):
        return permuted(g, embedding(call, g, weight, ids.source, padding_idx), ids.by)
    picked = tables.pick(g, weight, ids, table=True)
    require(picked is not None, "indices that are not computed from one tensor of classes")
    return picked  # type: ignore[return-value]


def _position(i: int, n: int) -> tuple[int, int]:
    """Where a number begins and ends among n positions."""
    require(0 <= i < n, "an index outside of the table")
    return i, i + 1


def _per_row(g: Graph, mask: Value, rows: Value) -> Value:
    """A mask of rows as one of their elements."""
    return g.reshape(mask, mask.shape + (1,) * (len(rows.shape) - len(mask.shape)))


def _rows(g: Graph, x: Value, index: torch.Tensor, dim: int, shape: tuple[int, ...]) -> Value:
    """The positions that a constant names along a dimension, as slices."""
    return g.reshape(tables.along(g, x, _within(index, x.shape[dim]), dim), shape)


def _within(index: torch.Tensor, n: int, negative: bool = True) -> list[int]:
    """The positions that a constant names among n. negative: they may be counted from the end."""
    found = [int(i) for i in index.reshape(-1).tolist()]
    require(all((-n if negative else 0) <= i < n for i in found), "an index outside of the tensor")
    return [i % n for i in found]


@lowering("embedding_dense_backward")
def embedding_backward(
    call: Any,
    g: Graph,
    grad: Value,
    ids: Value,
    rows: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    require(
        not scale_grad_by_freq,
        "an embedding with scale_grad_by_freq: its gradient depends on how often the batch names a "
        "row",
    )
    shape = (int(rows),) + grad.shape[-1:]
    ids = choices.as_index(g, ids, int(rows))
    if padding_idx >= 0:  # the row of the padding index gets nothing
        counts = complement(g, _equals(g, ids, int(padding_idx)))
        grad = ar.binary(g, "mul", grad, _per_row(g, counts, grad))
    if isinstance(ids, Replaced):
        keep = _per_row(g, g.expand(ids.keep, ids.shape), grad)
        of_kept = embedding_backward(
            call, g, ar.binary(g, "mul", grad, keep), ids.source, rows, -1, False
        )
        others = ar.binary(g, "mul", grad, complement(g, keep))
        total = ar.reduce(g, "sum", g.reshape(others, (numel(ids.shape), shape[1])), [0], True)
        start, _ = _position(ids.other, shape[0])
        return ar.binary(g, "add", of_kept, _placed(g, total, start, shape))
    tables.note_classes(g, ids, int(rows))
    if isinstance(ids, (Known, Filled)):
        return _rows_backward(g, grad, g.data(ids), int(rows))
    if isinstance(ids, Named):
        made = g.emit("embedding_backward", [grad, ids, Filled(0, shape)], [None, shape])[1]
        assert made is not None
        return made
    require(isinstance(ids, Table), "the gradient of an embedding whose indices are not classes")
    assert isinstance(ids, Table)
    return scatter_rows(g, grad, ids, shape)


def _equals(g: Graph, ids: Value, number: int) -> Value:
    """1 where integers are this number, 0 elsewhere."""
    if isinstance(ids, (Known, Filled)):
        return Known((g.data(ids) == number).double())
    if isinstance(ids, Replaced):
        other = Filled(int(ids.other == number), ids.shape)
        return choose(g, ids.keep, _equals(g, ids.source, number), other, ids.shape)
    if isinstance(ids, Named):
        hot = tables.one_hot(g, ids, number, number + 1)
        return g.reshape(hot, ids.shape)
    found = tables.apply(g, torch.eq, [ids, Filled(number, (), "int")], ids.shape)
    require(found is not None, "an embedding with a padding index, of indices that were computed")
    return as_numbers(found)  # type: ignore[arg-type]


def _rows_backward(g: Graph, grad: Value, ids: torch.Tensor, rows: int) -> Value:
    """The gradient of a lookup at known positions: what went to each row is summed."""
    width = grad.shape[-1]
    # the same for all of the leading dimension (a batch)
    while ids.dim() and bool((ids == ids[:1]).all()):
        ids = ids[0]
        grad = ar.reduce(g, "sum", grad, [0])
    d = ids.reshape(-1)
    grad = g.reshape(grad, (len(d) if ids.dim() else 1, width))
    if not ids.dim() or bool((d[1:] == d[:-1] + 1).all()):  # one row, or rows one after another
        return _placed(g, grad, int(d[0]), (rows, width))
    require(rows * len(d) <= 1 << 16, "the gradient of an embedding of many known positions")
    return ar.matmul(g, Known((torch.arange(rows)[:, None] == d[None]).double()), grad)


def _bags(offsets: Value, count: int, include_last: bool) -> list[tuple[int, int]]:
    """Where each bag begins and ends."""
    if not isinstance(offsets, (Known, Filled)):
        raise Unsupported("an embedding bag whose bags depend on data")
    numbers = (
        offsets.data if isinstance(offsets, Known) else torch.full(offsets.shape, offsets.fill)
    )
    starts = [int(x) for x in numbers.tolist()]
    return (
        list(zip(starts, (*starts[1:], count)))
        if not include_last
        else list(zip(starts[:-1], starts[1:]))
    )


def _sum_of_bags(g: Graph, rows: Value, bags: list[tuple[int, int]], mean: bool) -> Value:
    sizes = {b - a for a, b in bags}
    require(0 not in sizes, "an empty embedding bag")
    if (
        len(sizes) == 1
        and bags[0][0] == 0
        and all(a[1] == b[0] for a, b in zip(bags[:-1], bags[1:]))
    ):
        n = sizes.pop()
        return ar.reduce(
            g,
            "mean" if mean else "sum",
            g.reshape(g.slice(rows, 0, 0, n * len(bags)), (len(bags), n, rows.shape[-1])),
            [1],
        )
    require(len(bags) <= 4096, "more than 4096 embedding bags of different sizes")
    return g.cat(
        [
            ar.reduce(g, "mean" if mean else "sum", g.slice(rows, 0, a, b), [0], True)
            for a, b in bags
        ],
        0,
    )


@lowering("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    call: Any,
    g: Graph,
    weight: Value,
    ids: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample: Value | None = None,
    include_last: bool = False,
    padding_idx: int = -1,
) -> list[Value | None]:
    """Sums (mode 0) or means (1) of the rows that each bag names."""
    require(
        mode in (0, 1) and padding_idx < 0 and not sparse,
        "an embedding bag with a maximum, a padding index or a sparse gradient",
    )
    require(len(ids.shape) == 1, "an embedding bag of other than a list of indices")
    rows = (
        _rows(g, weight, g.data(ids), 0, ids.shape + weight.shape[1:])
        if isinstance(ids, (Known, Filled))
        else embedding(call, g, weight, ids)
    )
    if per_sample is not None:
        rows = ar.binary(g, "mul", rows, g.reshape(per_sample, per_sample.shape + (1,)))
    return [
        g.reshape(
            _sum_of_bags(g, rows, _bags(offsets, ids.shape[0], include_last), mode == 1),
            call.shape(),
        ),
        None,
        None,
        None,
    ]


@lowering("_embedding_bag_backward", selective=True)
def embedding_bag_backward(
    call: Any,
    g: Graph,
    grad: Value,
    ids: Value,
    offsets: Value,
    bag_of: Value,
    sizes: Value,
    maxima: Value,
    rows: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample: Value | None,
    padding_idx: int = -1,
) -> Value:
    """Each row that a bag names gets the bag's gradient.

    What ATen notes of the bags (bag_of, sizes, maxima) is not used.
    """
    ar.check(grad, ids, offsets, *([] if per_sample is None else [per_sample]))
    require(
        mode in (0, 1) and padding_idx < 0 and not sparse,
        "an embedding bag with a maximum, a padding index or a sparse gradient",
    )
    bags = _bags(offsets, ids.shape[0], offsets.shape[0] == grad.shape[0] + 1)
    require(
        bags[0][0] == 0
        and bags[-1][1] == ids.shape[0]
        and all(a[1] == b[0] for a, b in zip(bags[:-1], bags[1:])),
        "embedding bags that leave out indices",
    )
    width = grad.shape[-1]
    if len({b - a for a, b in bags}) == 1:
        n = bags[0][1]
        each = g.reshape(
            g.expand(g.reshape(grad, (len(bags), 1, width)), (len(bags), n, width)),
            (len(bags) * n, width),
        )
    else:
        each = g.cat(
            [g.expand(g.slice(grad, 0, i, i + 1), (b - a, width)) for i, (a, b) in enumerate(bags)],
            0,
        )
    if mode == 1:
        each = ar.binary(
            g,
            "div",
            each,
            Known(
                torch.tensor(
                    [float(b - a) for a, b in bags for _ in range(a, b)], dtype=torch.float64
                )[:, None]
            ),
        )
    if per_sample is not None:
        each = ar.binary(g, "mul", each, g.reshape(per_sample, per_sample.shape + (1,)))
    return embedding_backward(call, g, each, ids, rows, -1, scale_grad_by_freq)


def scatter_rows(g: Graph, grad: Value, ids: Table, shape: tuple[int, ...]) -> Value:
    """Sums of the gradient's rows over positions, by the row to which their class goes.

    Windows of classes that keep their distance go one by one. Classes that all go to one row are
    summed there.
    """
    index = ids.entries.to(torch.int64)
    used = torch.ones(len(index), dtype=torch.bool)  # classes whose rows are not zero anyway
    if (
        isinstance(grad, Named)
        and grad.masked is not None
        and tables.same_rows(g, grad.masked[1], ids)
        and len(grad.masked[1].entries) == len(index)
    ):
        used = grad.masked[1].entries.bool()
        grad = grad.masked[0]
    elif isinstance(grad, Named) and grad.masked is not None:
        grad = Named(grad.name, grad.shape, grad.kind, grad.node)
    index = torch.where(used, index, torch.full_like(index, -1))
    shift = index - torch.arange(len(index))
    differ = (shift[1:] != shift[:-1]) | (used[1:] != used[:-1])
    changes = (torch.nonzero(differ).flatten() + 1).tolist()
    bounds = [0, *changes, len(index)]
    windows = [(a, b, int(shift[a])) for a, b in zip(bounds[:-1], bounds[1:])]
    lines = [w for w in windows if w[1] - w[0] > 1 and bool(used[w[0] : w[1]].all())]
    single = used.clone()
    for a, b, _ in lines:
        single[a:b] = False
    total: Value = Filled(0, shape)
    source = g.expand(ids.source, ids.shape)
    for a, b, s in lines:
        size = (b - a,) + shape[1:]
        part = g.emit(
            "embedding_backward",
            [grad, source, Filled(0, size)],
            [None, size],
            {"start": a, "stop": b},
        )[1]
        total = ar.binary(g, "add", total, _placed(g, part, a + s, shape))  # type: ignore[arg-type]
    for place in torch.unique(index[single]).tolist():
        mask = Table(ids.source, (single & (index == place)), ids.low, ids.shape)
        factor = g.reshape(g.named(mask), ids.shape + (1,))
        flat = ar.reduce(g, "sum", ar.binary(g, "mul", grad, factor), list(range(len(ids.shape))))
        total = ar.binary(
            g, "add", total, _placed(g, g.reshape(flat, (1,) + shape[1:]), int(place), shape)
        )
    return total


def _placed(g: Graph, part: Value, at: int, shape: tuple[int, ...]) -> Value:
    """Rows in a larger tensor of zeros."""
    n = part.shape[0]
    pieces: list[Value] = [
        *([Filled(0, (at,) + shape[1:])] if at else []),
        part,
        *([Filled(0, (shape[0] - at - n,) + shape[1:])] if at + n < shape[0] else []),
    ]
    return g.cat(pieces, 0)


def _row_index(g: Graph, indices: list[Value | None], shape: tuple[int, ...]) -> Value | None:
    """The class index of x[arange, classes] or x[..., arange, classes]; None for other forms."""
    given = [i for i in indices if i is not None]
    if len(given) != 2 or len(shape) != 2 or len(indices) != 2:
        return None
    first = given[0]
    if not given[0].shape == given[1].shape == shape[:1]:
        return None
    if not isinstance(first, (Known, Filled)) or not torch.equal(
        g.data(first).reshape(-1), torch.arange(shape[0])
    ):
        return None
    return given[1]


def _of_rows(g: Graph, indices: list[Value | None], shape: tuple[int, ...]) -> Value | None:
    """The index of x[arange, index, ...], where data chooses the element (or vector) of each row.

    None for any other form.
    """
    if len(shape) < 2 or len(indices) < 2 or any(i is not None for i in indices[2:]):
        return None
    first, second = indices[:2]
    if (
        first is None
        or second is None
        or not first.shape == second.shape == shape[:1]
        or not isinstance(first, (Known, Filled))
        or isinstance(second, (Known, Filled))
    ):
        return None
    return (
        second
        if first.kind == "int" and torch.equal(g.data(first).reshape(-1), torch.arange(shape[0]))
        else None
    )


def _hot_of_rows(g: Graph, index: Value, x: Value) -> Value:
    """[rows, elements of a row, 1, ...]: 1 at the index."""
    index = choices.as_index(g, index, x.shape[1])
    tables.note_classes(g, index, x.shape[1])
    require(
        isinstance(index, (Named, Table)) and index.kind == "int",
        "an index that is not computed from one tensor of classes",
    )
    g.assume(assumptions.CLASSES)
    hot = hot_rows(g, index, None, x.shape[1])
    return g.reshape(hot, (*hot.shape, *(1 for _ in x.shape[2:])))


def _flattened(
    g: Graph, x: Value, indices: list[Value | None]
) -> tuple[Value, int, torch.Tensor, Callable[[Value], Value]] | None:
    """Constant indices along several dimensions as one index along one dimension.

    Returns x with these dimensions flattened, that dimension, the index, and the way back; None
    where they are not all constant integers. As in ATen, the dimensions of the result that are
    theirs stand where the indexed ones stood, if these are neighbours, else first.
    """
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) < 2 or not all(
        isinstance(i, (Known, Filled)) and i.kind == "int" for _, i in given
    ):
        return None
    dims = [d for d, _ in given]
    at = dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0
    rest = [d for d in range(len(x.shape)) if d not in dims]
    order = [*rest[:at], *dims, *rest[at:]]
    moved = g.permute(x, order)
    place = torch.zeros((), dtype=torch.int64)
    for d, i in given:
        _within(g.data(i), x.shape[d])
        place = place * x.shape[d] + g.data(i).remainder(x.shape[d])

    def back(y: Value) -> Value:
        return g.permute(g.reshape(y, moved.shape), [order.index(d) for d in range(len(order))])

    return (
        g.reshape(
            moved,
            moved.shape[:at]
            + (math.prod(x.shape[d] for d in dims),)
            + moved.shape[at + len(dims) :],
        ),
        at,
        place,
        back,
    )


@lowering("index")
def index(call: Any, g: Graph, x: Value, indices: list[Value | None]) -> Value:
    by = permutation_of(g, x, indices[0])
    if by is not None:
        require(all(i is None for i in indices[1:]), "a permutation beside other indices")
        return permuted(g, x, by)
    classes = _row_index(g, indices, x.shape)
    if classes is not None and not isinstance(classes, (Known, Filled)):
        picked = tables.pick(g, x, classes, table=False)
        require(picked is not None, "an index that is not computed from one tensor of classes")
        return picked  # type: ignore[return-value]
    row = _of_rows(g, indices, x.shape)
    if row is not None:
        return ar.taken(g, x, _hot_of_rows(g, row, x), [1])
    flat = _flattened(g, x, indices)
    if flat is not None:
        return _rows(g, flat[0], flat[2], flat[1], call.shape())
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    require(len(given) == 1, "an index along several dimensions that depends on data")
    dim, i = given[0]
    assert i is not None
    if isinstance(i, (Known, Filled)) and i.kind == "int":
        return _rows(g, x, g.data(i), dim, call.shape())
    return embedding(call, g, x, i) if dim == 0 else _along_classes(g, x, dim, i)


@lowering("index_select")
def index_select(call: Any, g: Graph, x: Value, dim: int, i: Value) -> Value:
    by = permutation_of(g, x, i)
    if by is not None and dim == 0:
        return permuted(g, x, by)
    if isinstance(i, (Known, Filled)):
        _within(g.data(i), x.shape[dim], False)
        return _rows(g, x, g.data(i), dim % len(x.shape), call.shape())
    return embedding(call, g, x, i) if dim == 0 else _along_classes(g, x, dim % len(x.shape), i)


def _along_classes(g: Graph, x: Value, dim: int, i: Value) -> Value:
    """The positions along a dimension that a tensor of classes names."""
    i = choices.as_index(g, i, x.shape[dim])
    tables.note_classes(g, i, x.shape[dim])
    require(
        isinstance(i, (Named, Table)) and i.kind == "int",
        "an index that is not computed from one tensor of classes",
    )
    g.assume(assumptions.CLASSES)
    g.definedness.both_have_values(x)
    hot = hot_rows(g, g.reshape(i, (numel(i.shape),)), None, x.shape[dim])
    return g.reshape(
        ar.along(g, x, dim, ar.transposed(g, hot)), x.shape[:dim] + i.shape + x.shape[dim + 1 :]
    )


def _same_in_rows(index: torch.Tensor, dim: int) -> list[int] | None:
    """Positions along a dimension that are the same wherever else; None where they are not."""
    rows = index.movedim(dim, -1).reshape(-1, index.shape[dim])
    return [int(i) for i in rows[0]] if bool((rows == rows[:1]).all()) else None


def _hot_of_known(index: torch.Tensor, dim: int, n: int) -> Known:
    """[..., positions that are named, n], the dimension at the end."""
    return Known(torch.nn.functional.one_hot(index.movedim(dim, -1).to(torch.int64), n).double())


def _part_of_others(g: Graph, x: Value, shape: Sequence[int], dim: int) -> Value:
    """What an index of that shape looks at: along other dimensions it may be shorter."""
    for d, n in enumerate(shape):
        x = g.slice(x, d, 0, n) if d != dim else x
    return x


def _gather_known(g: Graph, x: Value, dim: int, index: torch.Tensor) -> Value:
    _within(index, x.shape[dim], False)
    x = _part_of_others(g, x, index.shape, dim)
    same = _same_in_rows(index, dim)
    if same is not None:
        return _rows(g, x, torch.tensor(same), dim, tuple(index.shape))
    g.definedness.both_have_values(x)
    rows, back = ar.rows_of(g, x, dim)
    hot = _hot_of_known(index, dim, x.shape[dim])
    return back(
        ar.reduce(
            g,
            "sum",
            ar.binary(g, "mul", g.reshape(rows, (*rows.shape[:-1], 1, rows.shape[-1])), hot),
            [-1],
        )
    )


def _grown(g: Graph, x: Value, shape: Sequence[int], dim: int) -> Value:
    """With zeros up to the shape, along other dimensions."""
    for d, n in enumerate(shape):
        if d != dim and x.shape[d] < n:
            x = g.cat([x, Filled(0, (*x.shape[:d], n - x.shape[d], *x.shape[d + 1 :]))], d)
    return x


def _scatter_known(
    g: Graph, x: Value, dim: int, index: torch.Tensor, source: Value, accumulate: bool
) -> Value:
    _within(index, x.shape[dim], False)
    source = (
        _part_of_others(g, g.slice(source, dim, 0, index.shape[dim]), index.shape, dim)
        if source.shape
        else g.expand(source, tuple(index.shape))
    )
    same, n = _same_in_rows(index, dim), x.shape[dim]
    if isinstance(source, Filled) and not accumulate:  # one number, however often a place is named
        hot = _hot_of_known(index, dim, n).data.amax(-2).movedim(-1, dim)
        there = torch.zeros(x.shape, dtype=torch.bool)
        there[tuple(slice(m) for m in hot.shape)] = hot.bool()
        return choose(g, Known(there), Filled(source.fill, (), source.kind), x, x.shape)
    if not accumulate:
        ordered = index.sort(dim).values
        require(
            bool(
                (
                    ordered.narrow(dim, 1, index.shape[dim] - 1)
                    > ordered.narrow(dim, 0, index.shape[dim] - 1)
                ).all()
            ),
            "a write that names a place twice: which one stays is not said",
        )
    if same is not None:
        if accumulate:
            return ar.binary(
                g, "add", x, _grown(g, taken_back(g, source, dim, same, n), x.shape, dim)
            )
        if tuple(m for d, m in enumerate(index.shape) if d != dim) == tuple(
            m for d, m in enumerate(x.shape) if d != dim
        ):
            return _put_known(g, x, dim, Known(torch.tensor(same)), source, False)
    g.definedness.both_have_values(source, *([] if accumulate else [x]))
    rows, back = ar.rows_of(g, source, dim)
    hot = _hot_of_known(index, dim, n)
    placed = _grown(
        g,
        back(
            ar.reduce(g, "sum", ar.binary(g, "mul", g.reshape(rows, (*rows.shape, 1)), hot), [-2])
        ),
        x.shape,
        dim,
    )
    if not accumulate:
        kept = _grown(g, Known(hot.data.sum(-2).movedim(-1, dim)), x.shape, dim)
        x = ar.binary(g, "mul", x, ar.binary(g, "sub", 1, kept))
    return ar.binary(g, "add", x, placed)


_COMBINED = {
    "sum": lambda g, a, b: ar.binary(g, "add", a, b),
    "mean": lambda g, a, b: ar.binary(g, "add", a, b),
    "prod": lambda g, a, b: ar.binary(g, "mul", a, b),
    "amax": ar.maximum,
    "amin": ar.minimum,
}


@lowering("scatter_reduce")
def scatter_reduce(
    call: Any,
    g: Graph,
    x: Value,
    dim: int,
    i: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """Positions that are the same for all rows, or one of each row that depends on data."""
    dim %= len(x.shape)
    combine = _COMBINED[reduce]
    if not isinstance(i, (Known, Filled)):
        require(
            dim == len(x.shape) - 1 and i.shape == (*x.shape[:-1], 1) and source.shape == i.shape,
            "a reduction at more than one place of a row that data says",
        )
        hot = _hot_along(g, i, x.shape[-1])
        new = combine(g, x, source) if include_self else source
        return choose(
            g,
            hot,
            ar.binary(g, "div", new, 2)
            if reduce == "mean" and include_self
            else g.expand(new, x.shape),
            x,
            x.shape,
        )
    index = g.data(i)
    _within(index, x.shape[dim], False)
    same = _same_in_rows(index, dim)
    require(
        same is not None
        and tuple(m for d, m in enumerate(index.shape) if d != dim)
        == tuple(m for d, m in enumerate(x.shape) if d != dim),
        "a reduction at other places in each row",
    )
    assert same is not None
    rows: list[Value] = []
    for at in range(x.shape[dim]):
        named = [g.slice(source, dim, k, k + 1) for k, p in enumerate(same) if p == at]
        named = [_part_of_others(g, v, index.shape, dim) for v in named]
        parts = [g.slice(x, dim, at, at + 1), *named] if include_self or not named else named
        total = parts[0]
        for v in parts[1:]:
            total = combine(g, total, v)
        rows.append(
            ar.binary(g, "div", total, len(parts)) if reduce == "mean" and len(parts) > 1 else total
        )
    return g.cat(rows, dim)


def _hot_along(g: Graph, i: Value, n: int) -> Value:
    """[..., n]: 1 at the place that each row names."""
    i = choices.as_index(g, i, n)
    tables.note_classes(g, i, n)
    require(isinstance(i, (Named, Table)) and i.kind == "int", "indices that are no integers")
    g.assume(assumptions.CLASSES)
    return hot_rows(g, g.reshape(i, i.shape[:-1]), None, n)


@lowering("index_add")
def index_add(
    call: Any, g: Graph, x: Value, dim: int, i: Value, source: Value, *, alpha: Any = 1
) -> Value:
    dim %= len(x.shape)
    if scalar(alpha) != 1:
        source = ar.binary(g, "mul", source, scalar(alpha))
    if isinstance(i, (Known, Filled)):
        return ar.binary(
            g,
            "add",
            x,
            taken_back(g, source, dim, _within(g.data(i), x.shape[dim], False), x.shape[dim]),
        )
    if dim == 0 and len(x.shape) > 1:
        width = numel(x.shape[1:])
        flat = g.reshape(source, (source.shape[0], width))
        total = embedding_backward(call, g, flat, i, x.shape[0], -1, False)
        return ar.binary(g, "add", x, g.reshape(total, x.shape))
    rows, back = ar.rows_of(g, g.permute(source, [*range(len(source.shape))]), dim)
    width = numel(rows.shape[:-1])
    flat = g.permute(g.reshape(rows, (width, rows.shape[-1])), [1, 0])
    total = embedding_backward(call, g, flat, i, x.shape[dim], -1, False)
    return ar.binary(
        g, "add", x, back(g.reshape(g.permute(total, [1, 0]), (*rows.shape[:-1], x.shape[dim])))
    )


@lowering("segment_reduce")
def segment_reduce(
    call: Any,
    g: Graph,
    x: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    indices: Any = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Value:
    """Of stretches along an axis that are the same in all rows and none of which is empty."""
    return g.cat(
        [
            ar.reduce(
                g,
                {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}[reduce],
                g.slice(x, axis, a, b),
                [axis],
                True,
            )
            for a, b in _segments(g, reduce, lengths, offsets, initial)
        ],
        axis,
    )


def _segments(
    g: Graph, reduce: str, lengths: Value | None, offsets: Value | None, initial: Any
) -> list[tuple[int, int]]:
    require(
        reduce != "prod" and initial is None,
        "a reduction of segments to a product, or with a number to begin with",
    )
    given = lengths if lengths is not None else offsets
    require(isinstance(given, (Known, Filled)), "segments that depend on data")
    rows = g.data(given).reshape(-1, given.shape[-1])  # type: ignore[arg-type, union-attr]
    require(bool((rows == rows[:1]).all()), "segments of other lengths in each row")
    found = [int(i) for i in rows[0]]
    bounds = found if lengths is None else [sum(found[:i]) for i in range(len(found) + 1)]
    pairs = list(zip(bounds[:-1], bounds[1:]))
    require(all(a < b for a, b in pairs), "a segment of nothing")
    return pairs


@lowering("_segment_reduce_backward")
def segment_reduce_backward(
    call: Any,
    g: Graph,
    grad: Value,
    out: Value,
    x: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    initial: Any = None,
) -> Value:
    """That of an extremum goes in equal parts to where it is."""
    parts: list[Value] = []
    for k, (a, b) in enumerate(_segments(g, reduce, lengths, offsets, initial)):
        one, most, seen = (
            g.slice(grad, axis, k, k + 1),
            g.slice(out, axis, k, k + 1),
            g.slice(x, axis, a, b),
        )
        if reduce in ("max", "min"):
            there = ar.binary(g, "sub", 1, nonzero(g, ar.binary(g, "sub", most, seen)))
            parts.append(
                ar.binary(
                    g,
                    "mul",
                    there,
                    ar.binary(g, "div", one, ar.reduce(g, "sum", there, [axis], True)),
                )
            )
        else:
            parts.append(
                g.expand(ar.binary(g, "div", one, b - a) if reduce == "mean" else one, seen.shape)
            )
    end = x.shape[axis] - sum(v.shape[axis] for v in parts)
    return g.cat(
        [*parts, *([Filled(0, (*x.shape[:axis], end, *x.shape[axis + 1 :]))] if end else [])], axis
    )


@lowering("bucketize")
def bucketize(
    call: Any,
    g: Graph,
    x: Value,
    boundaries: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Value:
    """How many boundaries are below a number.

    It is the position of the greatest among the sums of what the number is above the first
    boundaries.
    """
    require(
        isinstance(boundaries, (Known, Filled)) and len(boundaries.shape) == 1,
        "boundaries that depend on data, or are others for each row",
    )
    b = g.data(boundaries).double()
    require(bool((b[1:] >= b[:-1]).all()), "boundaries that are not in order")
    g.assume(assumptions.BOUNDARIES)
    n = len(b)
    steps = ar.binary(
        g, "mul", g.reshape(x, (*x.shape, 1)), Known(torch.arange(n + 1, dtype=torch.float64))
    )
    sums = ar.binary(
        g, "sub", steps, Known(torch.cat([torch.zeros(1, dtype=torch.float64), b.cumsum(0)]))
    )
    return g.reshape(choices.chosen(g, sums, 1, -1)[1], x.shape)


@lowering("searchsorted")
def searchsorted(
    call: Any,
    g: Graph,
    boundaries: Value,
    x: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Any = None,
    sorter: Any = None,
) -> Value:
    require(sorter is None, "boundaries in an order of their own")
    return bucketize(call, g, ar.lift(x), boundaries)


@lowering("embedding_renorm", "embedding_renorm_")
def embedding_renorm(
    call: Any, g: Graph, weight: Value, ids: Value, most: float, order: float
) -> Value:
    """Named rows whose norm is above `most` get that norm (but for 1e-7 in the divisor)."""
    tables.note_classes(g, ids, weight.shape[0])
    require(
        isinstance(ids, Named) and ids.kind == "int", "an index that is not one tensor of classes"
    )
    hot = tables.one_hot(g, ids, 0, weight.shape[0])
    named = ar.step(
        g, ar.reduce(g, "sum", g.reshape(hot, (numel(ids.shape), weight.shape[0])), [0])
    )
    norms = norm(call, g, weight, order, [1], True)
    above = ar.binary(
        g,
        "mul",
        g.reshape(named, (weight.shape[0], 1)),
        ar.step(g, ar.binary(g, "sub", norms, most)),
    )
    return choose(
        g,
        above,
        ar.binary(g, "mul", weight, ar.binary(g, "div", most, ar.binary(g, "add", norms, 1e-7))),
        weight,
        weight.shape,
    )


@lowering("gather")
def gather(call: Any, g: Graph, x: Value, dim: int, i: Value, sparse_grad: bool = False) -> Value:
    if isinstance(i, (Known, Filled)):
        return _gather_known(g, x, dim % len(x.shape), g.data(i))
    i = choices.as_index(g, i, x.shape[dim])
    if (
        isinstance(i, Named)
        and i.kind == "int"
        and not (dim % len(x.shape) == len(x.shape) - 1 and i.shape[-1] == 1)
    ):
        tables.note_classes(g, i, x.shape[dim])
        return choices.gather_many(g, x, i, dim)
    require(
        dim % len(x.shape) == len(x.shape) - 1
        and i.shape[-1] == 1
        and i.shape[:-1] == x.shape[:-1],
        "gather of more than one element of the last dimension",
    )
    tables.note_classes(g, i, x.shape[-1])
    rows = g.reshape(i, i.shape[:-1])
    if isinstance(rows, Named):
        require(rows.kind == "int", "indices that are no integers")
        g.assume(assumptions.CLASSES)
        picked = ar.taken(g, x, tables.one_hot(g, rows, 0, x.shape[-1]), [-1])
        if isinstance(picked, Named):
            picked.of_class = rows
        return g.reshape(picked, call.shape())
    found = tables.pick(g, x, rows, table=False)
    if not isinstance(found, Pick):
        raise Unsupported("an index that is not computed from one tensor of classes")
    return Pick(found.source, found.index, found.scale, found.offset, False, call.shape())


@lowering("scatter", "scatter_add")
def scatter(
    call: Any, g: Graph, x: Value, dim: int, i: Value, source: Any, reduce: Any = None
) -> Value:
    if isinstance(i, (Known, Filled)) and reduce is None:
        return _scatter_known(
            g,
            x,
            dim % len(x.shape),
            g.data(i),
            ar.lift(source),
            call.name.rstrip("_") == "aten.scatter_add",
        )
    i = choices.as_index(g, i, x.shape[dim])
    if (
        isinstance(i, Named)
        and i.kind == "int"
        and reduce is None
        and not (dim % len(x.shape) == len(x.shape) - 1 and i.shape[-1] == 1)
    ):
        tables.note_classes(g, i, x.shape[dim])
        return choices.scatter_many(
            g, x, i, ar.lift(source), dim, call.name.rstrip("_") == "aten.scatter_add"
        )
    require(
        dim % len(x.shape) == len(x.shape) - 1
        and i.shape[-1] == 1
        and i.shape[:-1] == x.shape[:-1]
        and reduce is None,
        "scatter of more than one element of the last dimension",
    )
    tables.note_classes(g, i, x.shape[-1])
    rows = g.reshape(i, i.shape[:-1])
    value = ar.lift(source)
    value = g.reshape(value, rows.shape) if value.shape else value
    return place_in_rows(g, x, rows, value, accumulate=call.name.rstrip("_") == "aten.scatter_add")


def hot_rows(g: Graph, index: Value, scale: torch.Tensor | None, width: int) -> Value:
    """[..., width]: at the position that the class goes to the class's scale (None: 1), else 0."""
    if isinstance(index, Named):
        return tables.one_hot(g, index, 0, width)
    assert isinstance(index, Table)
    positions = index.entries.to(torch.int64)
    if scale is None:
        require(
            int(positions.min()) >= 0 and int(positions.max()) < width,
            "an index outside of the tensor",
        )
        # from classes to positions in any way
        if len(positions) <= indicators.MOST_WINDOWS and not torch.equal(
            positions, torch.arange(len(positions)) + positions[0]
        ):
            goes = (positions[:, None] == torch.arange(width)[None]).double()
            return ar.matmul(
                g,
                tables.one_hot(
                    g, g.expand(index.source, index.shape), index.low, index.low + len(positions)
                ),
                Known(goes),
            )
    scale = torch.ones(len(positions), dtype=torch.float64) if scale is None else scale
    start, stop, shift = indicators.window_of(positions, scale)
    factor = torch.unique(scale[start:stop])
    require(len(factor) <= 1, "classes that are scaled differently")
    shape = index.shape + (width,)
    if stop == start:
        return Filled(0, shape)
    hot: Value = tables.one_hot(
        g, g.expand(index.source, index.shape), start + index.low, stop + index.low
    )
    lead = len(index.shape)
    before, after = start + shift, width - (stop + shift)
    hot = g.cat(
        [
            *([Filled(0, index.shape + (before,))] if before else []),
            hot,
            *([Filled(0, index.shape + (after,))] if after else []),
        ],
        lead,
    )
    return ar.binary(g, "mul", hot, float(factor[0]))


def place_in_rows(g: Graph, x: Value, index: Value, value: Value, accumulate: bool) -> Value:
    """x with `value` at the position of each row that the index names.

    accumulate: it is added there.
    """
    width = x.shape[-1]
    if (
        isinstance(value, Pick)
        and isinstance(index, Table)
        and tables.same_rows(g, value.index, index)
        and torch.equal(value.index.entries, index.entries)
    ):
        same = (
            isinstance(value.source, Named)
            and isinstance(x, Named)
            and g.reshape(value.source, x.shape) is not None
            and (value.source.base or value.source).name == (x.base or x).name
        )
        if same and not accumulate and bool((value.scale == 1).all()):
            # x[i, c_i] += offset
            return ar.binary(g, "add", x, hot_rows(g, index, value.offset, width))
    if (
        isinstance(value, Table)
        and isinstance(index, Table)
        and tables.same_rows(g, value, index)
        and (accumulate or (isinstance(x, Filled) and x.fill == 0))
    ):
        return ar.binary(g, "add", x, hot_rows(g, index, value.entries.to(torch.float64), width))
    if (
        isinstance(value, Filled)
        and isinstance(x, Filled)
        and x.fill == 0
        or accumulate
        and isinstance(value, Filled)
    ):
        scale = (
            torch.full((len(index.entries),), float(value.fill), dtype=torch.float64)
            if isinstance(index, Table)
            else None
        )
        hot = hot_rows(g, index, scale, width)
        return ar.binary(
            g, "add", x, hot if isinstance(index, Table) else ar.binary(g, "mul", hot, value.fill)
        )
    hot = hot_rows(g, index, None, width)
    v = g.reshape(value, index.shape + (1,)) if value.shape else value
    if (
        not accumulate
        and not (g.definedness.has_a_value(x) and g.definedness.has_a_value(v))
        and ar.are_real(x, v)
    ):
        return ar.one_of(g, hot, v, x, x.shape)
    g.definedness.both_have_values(x, v)
    placed = ar.binary(g, "mul", hot, v)
    if accumulate or isinstance(x, Filled) and x.fill == 0:
        return ar.binary(g, "add", x, placed)
    return ar.binary(g, "add", ar.binary(g, "mul", x, ar.binary(g, "sub", 1, hot)), placed)


@lowering("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(
    call: Any,
    g: Graph,
    x: Value,
    indices: list[Value | None],
    value: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    # a mask; of reals' comparisons it has their kind, as integers have that were computed
    is_mask = len(call.given) < 2 or call.given[1].dtype in (torch.bool, torch.uint8)
    if len(given) == 1 and getattr(given[0][1], "kind", "int") != "int" and is_mask:
        return _where_mask(g, x, given[0][0], given[0][1], value, accumulate)
    classes = _row_index(g, indices, x.shape)
    if classes is not None and not isinstance(classes, (Known, Filled)):
        return place_in_rows(g, x, classes, value, accumulate)
    if len(given) == 1 and isinstance(given[0][1], (Known, Filled)) and len(x.shape) >= 1:
        return _put_known(g, x, given[0][0], given[0][1], value, accumulate)
    row = _of_rows(g, indices, x.shape)
    if row is not None:
        g.definedness.both_have_values(x, value)
        hot = _hot_of_rows(g, row, x)
        new = g.expand(value, x.shape[:1] + x.shape[2:])
        placed = ar.binary(g, "mul", hot, g.reshape(new, (x.shape[0], 1, *x.shape[2:])))
        return ar.binary(
            g,
            "add",
            x
            if accumulate or isinstance(x, Filled) and x.fill == 0
            else ar.binary(g, "mul", x, ar.binary(g, "sub", 1, hot)),
            placed,
        )
    flat = _flattened(g, x, indices)
    if flat is not None:
        whole, dim, place, back = flat
        return back(_put_known(g, whole, dim, Known(place), value, accumulate))
    if len(given) == 1 and accumulate:  # the gradient of x[classes]
        dim, i = given[0]
        assert i is not None
        before, after = x.shape[:dim], x.shape[dim + 1 :]
        source = g.reshape(
            g.expand(value, (*before, *i.shape, *after)), (*before, numel(i.shape), *after)
        )
        return index_add(call, g, x, dim, g.reshape(i, (numel(i.shape),)), source)
    raise Unsupported("a write by an index that depends on data")


def _where_mask(
    g: Graph, x: Value, first: int, mask: Value, value: Value, accumulate: bool
) -> Value:
    """x[mask] = value, where the mask covers dimensions from the first on."""
    require(not accumulate and value.shape in ((), (1,)), "a masked write of more than one number")
    value = g.reshape(value, ())
    if isinstance(mask, (Known, Filled, Named)):
        m: Value = g.reshape(mask, mask.shape + (1,) * (len(x.shape) - first - len(mask.shape)))
        return choose(g, m, value, x, x.shape)
    require(
        isinstance(mask, Table) and first == 0,
        "a mask of classes that covers not the first dimensions",
    )
    assert isinstance(mask, Table)
    if len(mask.shape) == len(x.shape):
        t = tables.apply(
            g, lambda m, a, v: torch.where(m.bool(), v.to(a.dtype), a), [mask, x, value], x.shape
        )
        if t is not None:
            return t
    require(isinstance(value, Filled), "a masked write of a number that depends on data")
    if (
        isinstance(x, Pick)
        and tables.same_rows(g, x.index, mask)
        and isinstance(value, Filled)
        and (value.fill == 0 or not x.table)
    ):
        keep = (~mask.entries).to(torch.float64)
        return Pick(
            x.source,
            x.index,
            x.scale * keep,
            x.offset * keep + value.fill * (1 - keep),
            x.table,
            x.shape,
        )
    keep_table = Table(mask.source, ~mask.entries, mask.low, mask.shape)
    factor = g.reshape(g.named(keep_table), mask.shape + (1,) * (len(x.shape) - len(mask.shape)))
    chosen = not g.definedness.has_a_value(x) and ar.are_real(x, value)
    if chosen:
        kept = ar.one_of(g, factor, x, value, x.shape)
    else:
        g.definedness.both_have_values(x)
        kept = ar.binary(g, "mul", x, factor)
    if (
        isinstance(kept, Named)
        and isinstance(x, Named)
        and len(mask.shape) == len(x.shape) - 1
        and isinstance(value, Filled)
        and value.fill == 0
    ):
        kept.masked = (x, keep_table)
    if chosen:
        return kept
    if isinstance(value, Filled) and value.fill == 0:
        return kept
    return ar.binary(g, "add", kept, ar.binary(g, "mul", ar.binary(g, "sub", 1, factor), value))


def _put_known(
    g: Graph, x: Value, dim: int, i: Known | Filled, value: Value, accumulate: bool
) -> Value:
    """Constant positions along one dimension, one slice after another.

    Each position is there once or, accumulating, any number of times.
    """
    positions = _within(g.data(i), x.shape[dim])
    require(len(positions) <= 256, "a write by a long index")
    require(
        accumulate or len(set(positions)) == len(positions),
        "a write that names a place twice: which one stays is not said",
    )
    shape = x.shape[:dim] + (len(positions),) + x.shape[dim + 1 :]
    value = g.reshape(g.expand(value, x.shape[:dim] + tuple(i.shape) + x.shape[dim + 1 :]), shape)
    rows = (
        [g.slice(x, dim, p, p + 1) for p in range(x.shape[dim])] if x.shape[dim] <= 4096 else None
    )
    require(rows is not None, "a write by index along a long dimension")
    assert rows is not None
    for k, p in enumerate(positions):
        new = g.slice(value, dim, k, k + 1)
        rows[p] = ar.binary(g, "add", rows[p], new) if accumulate else new
    return g.cat(rows, dim)
