# SPDX-License-Identifier: Apache-2.0
"""Operators on tensors whose rows are chosen or ordered by data (terms/rows.py).

Only what is listed here is followed: what is computed row by row, sums over rows, and lookups and
writes at positions that are known for each slot. Anything else raises Unsupported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms import assumptions, tables
from ..terms.graph import Graph
from ..terms.row_counts import Counts, counts_of, signature
from ..terms.rows import (
    Arranged,
    ByCell,
    Cell,
    Order,
    Place,
    Positions,
    Received,
    Rows,
    RowSet,
    constant_rows,
    known,
    received,
    same_set,
    spread,
)
from ..terms.selection import as_numbers, choose
from ..terms.values import Filled, Known, Named, Shape, Table, Unsupported, Value, numel
from .layout import cast
from .table import is_elementwise, require, scalar

# Operators that look at shapes only.
_OF_SHAPES = frozenset(
    f"aten.{name}"
    for name in (
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
    )
)
_ROW_BY_ROW = frozenset(
    f"aten.{name}"
    for name in (
        "_to_copy",
        "clone",
        "detach",
        "alias",
        "floor_divide",
        "remainder",
        "masked_fill",
    )
)
# Operators along some dimensions, by which operand these are.
_ALONG: dict[str, int] = {
    "aten._softmax": 1,
    "aten._log_softmax": 1,
    "aten._softmax_backward_data": 2,
    "aten._log_softmax_backward_data": 2,
    "aten.mean": 1,
    "aten.amax": 1,
    "aten.amin": 1,
    "aten.sum": 1,
    "aten.logsumexp": 1,
    "aten.linalg_vector_norm": 2,
}
_BY_PLACES = frozenset(
    f"aten.{name}"
    for name in ("index", "_unsafe_index", "index_put", "_index_put_impl", "_unsafe_index_put")
)
_BROADCAST = frozenset({"aten.add", "aten.sub", "aten.mul", "aten.div"})
_KEEP_SHAPE = frozenset(n for n in _ALONG if "softmax" in n)
_CONTRACTIONS = frozenset(f"aten.{name}" for name in ("mm", "addmm", "matmul", "mv"))


_IN_PARTS = frozenset(
    f"aten.{name}"
    for name in ("linear", "matmul", "reshape", "flatten", "chunk", "unflatten", "type_as", "to")
)


def works_in_parts(func: Any, name: str) -> bool:
    """Whether the operator's parts, as ATen decomposes it, read no size of its operands."""
    return name in _IN_PARTS or is_elementwise(func)


# ---- what counts ----
def hot_keys(g: Graph, rows: RowSet) -> Value:
    """[keys, slots]: 1 where the slot's key is that one."""
    assert rows.key is not None
    hot = tables.one_hot(g, rows.key, rows.first, rows.first + rows.classes)
    n = len(hot.shape)
    return g.permute(hot, [n - 1, *range(n - 1)])


def mask_of(g: Graph, rows: RowSet, by_key: bool) -> Value | None:
    """1 at slots that are rows, [keys or 1, slots] for rows with a key; None where all are."""
    keep = rows.keep
    if rows.key is None:
        return keep
    if keep is not None:
        keep = g.reshape(keep, (1, *keep.shape))
    if not by_key:
        return keep
    hot = hot_keys(g, rows)
    return hot if keep is None or rows.implied else ar.binary(g, "mul", hot, as_numbers(keep))


def _by_key(v: Rows) -> bool:
    return v.rows.pieces and v.held[0] != 1


def masked(g: Graph, v: Rows) -> Rows:
    """With zeros in slots that are no rows."""
    mask = mask_of(g, v.rows, _by_key(v))
    if mask is None or v.cleared:
        return v
    k = len(v.rows.slots)
    mask = g.reshape(mask, (*mask.shape, *(1 for _ in v.inner.shape[v.dim + k :])))
    shape = torch.broadcast_shapes(mask.shape, v.inner.shape)
    made = Rows(v.rows, choose(g, mask, v.inner, Filled(0, (), v.kind), tuple(shape)), v.dim)
    made.cleared = True
    return made


def _summed(g: Graph, v: Rows, dims: Sequence[int]) -> Value:
    """The sum of all rows' elements over some of the slots' dimensions, which stay with size 1."""
    kept = masked(g, v)
    times = math.prod(
        n
        for i, n in enumerate(v.rows.slots)
        if i in dims and kept.held[i] == 1 and not (i == 0 and v.rows.key is not None)
    )
    total = ar.reduce(g, "sum", kept.inner, [v.dim + i for i in dims], True) if dims else kept.inner
    return ar.binary(g, "mul", total, times) if times != 1 else total


def collapsed(g: Graph, v: Rows) -> Rows:
    """Without different elements for different keys: those of each row's own."""
    if v.rows.key is None or not _by_key(v):
        return v
    hot = hot_keys(g, v.rows)
    k = len(v.rows.slots)
    hot = g.reshape(hot, (*hot.shape, *(1 for _ in v.inner.shape[v.dim + k :])))
    shape = tuple(torch.broadcast_shapes(hot.shape, v.inner.shape))
    chosen = choose(g, hot, v.inner, Filled(0, (), v.kind), shape)
    made = Rows(v.rows, ar.reduce(g, "sum", chosen, [v.dim], True), v.dim)
    # a slot that is no row has none of the keys
    made.cleared = v.rows.implied
    return made


# ---- operators ----
def results(
    call: Any,
    g: Graph,
    func: Any,
    values: list[Any],
    keywords: dict[str, Any],
    compute: Callable[[list[Any], dict[str, Any], list[Shape]], list[Any]],
) -> list[Value | None]:
    """compute: the operator's results of dense operands, of these shapes."""
    name = call.name.removesuffix("_")
    if name.endswith("_like") and name in _OF_SHAPES and isinstance(values[0], Rows):
        return [_like(g, values[0], compute([Filled(0, ()), *values[1:]], keywords, [()])[0])]
    if name in _OF_SHAPES:
        dense = [Filled(0, v.shape, v.kind) if isinstance(v, Rows) else v for v in values]
        return compute(dense, keywords, [tuple(t.shape) for t in call.outs])
    if name == "aten.copy":
        return [_copied(call, g, values[0], values[1])]
    if name == "aten.sort":
        require(
            not keywords.get("descending") and not any(x is True for x in values[2:]),
            "a sort of integers from the largest on",
        )
        return list(_sorted_again(call, g, values[0]))
    if any(isinstance(v, Place) for v in values) and name in ("aten.add", "aten.sub"):
        return [_sum_of_places(values, keywords, -1 if name == "aten.sub" else 1)]
    if any(isinstance(v, (Positions, Order, Place)) for v in values) and name not in _BY_PLACES:
        require(
            name in _ROW_BY_ROW, "the places of rows in an order are used other than as an index"
        )
        return [values[0]]
    if name in _OPERATORS:
        return [_OPERATORS[name](call, g, *values, **keywords)]
    if name in _CONTRACTIONS:
        return [_product(call, g, name, values, keywords)]
    if name in _ALONG:
        return _along(call, g, name, values, keywords, compute)
    if is_elementwise(func) or name in _ROW_BY_ROW:
        return _elementwise(call, g, values, keywords, compute)
    what = next(v for v in _flat(values) if isinstance(v, Rows)).rows.what
    raise Unsupported(f"an operator that is not known to work row by row, of rows that {what}")


def _sum_of_places(values: list[Any], keywords: dict[str, Any], sign: int) -> Value:
    a, b = values[:2]
    require(
        isinstance(a, Place) and isinstance(b, Place) and a.rows is b.rows and len(values) == 2,
        "places of rows in an order, and other numbers",
    )
    made: Place = a.plus(b, sign * int(scalar(keywords.get("alpha", 1))))
    return made


def _flat(values: Any) -> list[Value]:
    if isinstance(values, (list, tuple)):
        return [v for x in values for v in _flat(x)]
    return [values] if isinstance(values, Value) else []


def _like(g: Graph, v: Rows, number: Any) -> Rows:
    """One number in each row."""
    require(isinstance(number, Filled) and v.of is None, "a tensor like one with rows")
    k = len(v.rows.slots)
    shape = (*v.inner.shape[: v.dim], *(1 for _ in v.rows.slots), *v.inner.shape[v.dim + k :])
    return Rows(v.rows, Filled(number.fill, shape, number.kind), v.dim)


def _copied(call: Any, g: Graph, x: Value, source: Value) -> Value:
    dtype, given = call.outs[0].dtype, call.given[1].dtype
    ar.check(source)
    if isinstance(source, Rows):
        require(x.shape == source.shape, f"a copy of rows that {source.rows.what} is repeated")
        return Rows(source.rows, cast(g, source.inner, dtype, given), source.dim)
    return g.expand(cast(g, source, dtype, given), x.shape)


def _elementwise(
    call: Any,
    g: Graph,
    values: list[Any],
    keywords: dict[str, Any],
    compute: Callable[..., list[Any]],
) -> list[Value | None]:
    given = [*_flat(values), *_flat(list(keywords.values()))]
    of_rows = [v for v in given if isinstance(v, Rows)]
    rows = same_set(of_rows)
    rank = max(len(v.shape) for v in given)
    places = {v.dim + rank - len(v.shape) for v in of_rows}
    require(len(places) == 1, f"rows that {rows.what} meet other dimensions")
    at = places.pop()

    # lowerings of other operators take operands of one shape
    held = (
        None
        if call.name.removesuffix("_") in _BROADCAST
        else tuple(
            torch.broadcast_shapes(
                *[v.held for v in of_rows if not isinstance(v.inner, Filled)],
                (1,) * len(rows.slots),
            )
        )
    )

    def dense(v: Any) -> Any:
        if isinstance(v, (list, tuple)):
            require(not _flat(v), f"a list of tensors with rows that {rows.what}")
            return v
        if isinstance(v, Rows) and held is not None and isinstance(v.inner, Filled):
            # one number in all slots: it asks for no slot of its own
            n = v.dim + len(held)
            return v.inner.in_shape((*v.inner.shape[: v.dim], *held, *v.inner.shape[n:]))
        if isinstance(v, Rows):
            return v.inner if held is None else spread(g, v, held)
        if isinstance(v, Value) and at - rank + len(v.shape) >= 0:
            return constant_rows(g, rows, v, at - rank + len(v.shape)).inner
        return v

    operands, others = [dense(v) for v in values], {k: dense(v) for k, v in keywords.items()}
    shape = tuple(
        torch.broadcast_shapes(
            *[v.shape for v in (*_flat(operands), *_flat(list(others.values())))]
        )
    )
    made = compute(operands, others, [shape for _ in call.outs])
    return [None if v is None else Rows(rows, g.expand(v, shape), at) for v in made]


def _along(
    call: Any,
    g: Graph,
    name: str,
    values: list[Any],
    keywords: dict[str, Any],
    compute: Callable[..., list[Any]],
) -> list[Value | None]:
    """Along other dimensions than the rows, and sums over rows."""
    x = values[0]
    of_rows = [v for v in values if isinstance(v, Rows)]
    rows = same_set(of_rows)
    require(isinstance(x, Rows) and all(v.dim == x.dim for v in of_rows), "rows of another tensor")
    which = _ALONG[name]
    given = values[which] if len(values) > which else keywords.get("dim")
    dims = ar.reduced_dims(x.shape, given)
    k = len(rows.slots)
    if x.dim in dims:
        require(name == "aten.sum", f"{name.removeprefix('aten.')} over rows that {rows.what}")
        # autograd would repeat the gradient as often as there are slots
        require(
            not (torch.is_grad_enabled() and call.given and call.given[0].requires_grad),
            f"a sum over rows that {rows.what}, of which the gradient is wanted (index_add_ to one "
            "row has one)",
        )
        total = _summed(g, x, range(k))
        inner = [d if d < x.dim else d + k - 1 for d in dims if d != x.dim]
        total = ar.reduce(g, "sum", total, inner, True) if inner else total
        return [g.reshape(total, call.shape())]
    held = tuple(torch.broadcast_shapes(*[v.held for v in of_rows]))

    def flat(v: Any) -> Any:
        if not isinstance(v, Rows):
            return v
        rest = v.shape[v.dim + 1 :]
        return g.reshape(spread(g, v, held), (*v.shape[: v.dim], numel(held), *rest))

    shapes, at = [], []
    for i in range(len(call.outs)):
        shape = list(call.shape(i))
        kept = name in _KEEP_SHAPE or len(shape) == len(x.shape)
        at.append(x.dim if kept else x.dim - sum(d < x.dim for d in dims))
        shape[at[-1]] = numel(held)
        shapes.append(tuple(shape))
    made = compute([flat(v) for v in values], keywords, shapes)
    return [
        None if v is None else Rows(rows, g.reshape(v, (*v.shape[:p], *held, *v.shape[p + 1 :])), p)
        for v, p in zip(made, at)
    ]


# ---- products of matrices ----
def _transposed(g: Graph, v: Value) -> Value:
    return g.permute(v, [1, 0])


def _product(call: Any, g: Graph, name: str, values: list[Any], keywords: dict[str, Any]) -> Value:
    if name == "aten.addmm":
        require(
            scalar(keywords.get("beta", 1)) == 1 and scalar(keywords.get("alpha", 1)) == 1,
            "addmm with factors",
        )
        bias, a, b = values[:3]
        made = _matrices(g, a, b)
        require(not isinstance(bias, Rows) and isinstance(made, Rows), "a bias of rows")
        assert isinstance(made, Rows)
        if len(bias.shape) == 2:
            bias = constant_rows(g, made.rows, bias, made.dim).inner
        return Rows(made.rows, ar.binary(g, "add", made.inner, bias), made.dim)
    a, b = values[:2]
    if len(b.shape) == 1:
        made = _matrices(g, a, g.reshape(b, (b.shape[0], 1)))
        return g.reshape(made, made.shape[:-1])
    return _matrices(g, a, b)


def _matrices(g: Graph, a: Value, b: Value) -> Value:
    require(len(a.shape) == len(b.shape) == 2, "a product of more than matrices of rows")
    if isinstance(a, Rows) and isinstance(b, Rows):
        require(a.dim == 1 and b.dim == 0, f"products of rows that {a.rows.what} with rows")
        return contracted(g, a, b)
    if isinstance(a, Rows):
        require(a.dim == 0, f"a sum over rows that {a.rows.what}, with a tensor of other rows")
        flat = g.reshape(a.inner, (numel(a.held), a.shape[1]))
        return Rows(a.rows, g.reshape(ar.matmul(g, flat, b), (*a.held, b.shape[1])), 0)
    assert isinstance(b, Rows)
    return g.permute(_matrices(g, _transposed(g, b), _transposed(g, a)), [1, 0])


def contracted(g: Graph, a: Rows, b: Rows, by_key: bool = False) -> Value:
    """[m, rows] times [rows, n]: a sum over rows. by_key: of those of each key, [keys, m, n]."""
    rows = same_set([a, b])
    if not by_key and numel(a.held) > numel(b.held):
        flipped = contracted(g, _turned(g, b), _turned(g, a))
        return _transposed(g, flipped)
    keyed = rows.pieces
    if keyed and (by_key or _by_key(a)) and not _by_key(b):
        b = Rows(rows, spread(g, b, (rows.classes, *b.held[1:])), 0)
    first = 1 if by_key else 0
    if not g.definedness.has_a_value(a.inner):
        # zeros of the other operand would not leave out what is no number
        if keyed and (by_key or _by_key(b)):
            a = Rows(rows, spread(g, a, (rows.classes, *a.held[1:])), 1)
        a = masked(g, a)
    alone = [i for i, n in enumerate(a.held) if n == 1 and i >= first]
    y = _summed(g, b, alone)
    n = len(rows.slots)
    sizes = y.shape[:n]
    shared = [i for i in range(n) if i not in alone and i >= first]
    x = a.inner
    held = tuple(
        max(a.held[i], sizes[i]) if i in shared else (sizes[i] if i < first else 1)
        for i in range(n)
    )
    y = g.expand(y, (*held, b.shape[1]))
    if by_key:
        x = g.expand(x, (a.shape[0], *held))
        x = g.permute(x, [1, 0, *range(2, n + 1)])
        x = g.reshape(x, (rows.classes, a.shape[0], numel(held[1:])))
        return ar.matmul(g, x, g.reshape(y, (rows.classes, numel(held[1:]), b.shape[1])))
    x = g.reshape(g.expand(x, (a.shape[0], *held)), (a.shape[0], numel(held)))
    return ar.matmul(g, x, g.reshape(y, (numel(held), b.shape[1])))


def _turned(g: Graph, v: Rows) -> Rows:
    turned = g.permute(v, [1, 0])
    assert isinstance(turned, Rows)
    return turned


# ---- lookups and writes at positions that each slot knows ----
class _Places:
    """The positions that rows name along one dimension, or several that are taken as one.

    numbers: over the slots, with size 1 along dimensions on which they do not depend.
    """

    def __init__(self, rows: RowSet, numbers: torch.Tensor) -> None:
        for d in range(numbers.dim()):
            first = numbers.narrow(d, 0, 1)
            if numbers.shape[d] > 1 and bool((numbers == first).all()):
                numbers = first
        self.rows, self.numbers = rows, numbers.contiguous()

    def order(self) -> list[int]:
        """The slots' dimensions, those along which positions move furthest first."""
        n, strides = self.numbers, []
        for d in range(n.dim()):
            strides.append(
                int(n.flatten()[0]) - 1
                if n.shape[d] == 1
                else int((n.select(d, 1) - n.select(d, 0)).flatten()[0])
            )
        return sorted(range(n.dim()), key=lambda d: (n.shape[d] == 1, -strides[d]))

    def first(self) -> int | None:
        """The first position, where they follow each other in `order`; else None."""
        flat = self.numbers.permute(self.order()).flatten()
        start = int(flat[0])
        return start if torch.equal(flat, torch.arange(start, start + len(flat))) else None


def places(g: Graph, indices: Sequence[Value], sizes: Sequence[int]) -> _Places:
    of_rows = [i for i in indices if isinstance(i, Rows)]
    rows = same_set(of_rows)
    total = torch.zeros((1,) * len(rows.slots), dtype=torch.int64)
    for index, n in zip(indices, sizes):
        if isinstance(index, Filled):
            numbers = torch.full((1,) * len(rows.slots), int(index.fill))
        else:
            require(
                isinstance(index, Rows) and index.shape == (rows.count,), "an index beside rows"
            )
            data = known(index)
            require(data is not None, f"an index that depends on data, of rows that {rows.what}")
            assert data is not None
            numbers = data.to(torch.int64)
        require(bool(((numbers >= -n) & (numbers < n)).all()), "an index outside of the tensor")
        total = total * n + numbers.remainder(n)
    return _Places(rows, total)


def looked_up(g: Graph, x: Value, dim: int, at: _Places) -> Rows:
    """The elements at these positions along a dimension."""
    held = tuple(at.numbers.shape)
    start, order = at.first(), at.order()
    lead, rest = x.shape[:dim], x.shape[dim + 1 :]
    if start is not None:
        part = g.slice(x, dim, start, start + numel(held))
        part = g.reshape(part, (*lead, *(held[d] for d in order), *rest))
        back = [dim + order.index(d) for d in range(len(order))]
        part = g.permute(part, [*range(dim), *back, *range(dim + len(held), len(part.shape))])
    else:
        part = tables.along(g, x, [int(i) for i in at.numbers.flatten()], dim)
        part = g.reshape(part, (*lead, *held, *rest))
    # what other slots have is multiplied by zero in the end
    g.definedness.taken_as_number(part)
    return Rows(at.rows, part, dim)


def added_up(g: Graph, y: Rows, at: _Places, n: int) -> Value:
    """For each of n positions along y's dimension of rows, the sum of the rows that name it."""
    same_set([y, Rows(at.rows, Known(at.numbers), 0)])
    dims = [d for d, m in enumerate(at.numbers.shape) if m == 1]
    total = _summed(g, y, dims)
    k, dim = len(at.rows.slots), y.dim
    held = tuple(at.numbers.shape)
    total = g.expand(total, (*total.shape[:dim], *held, *total.shape[dim + k :]))
    order, start = at.order(), at.first()
    lead, rest = total.shape[:dim], total.shape[dim + k :]
    if start is not None:
        total = g.permute(
            total,
            [*range(dim), *(dim + d for d in order), *range(dim + k, len(total.shape))],
        )
        total = g.reshape(total, (*lead, numel(held), *rest))
        before = [Filled(0, (*lead, start, *rest))] if start else []
        end = n - start - numel(held)
        after = [Filled(0, (*lead, end, *rest))] if end else []
        return g.cat([*before, total, *after], dim)
    total = g.reshape(total, (*lead, numel(held), *rest))
    hot = (torch.arange(n)[:, None] == at.numbers.flatten()[None]).double()
    return ar.along(g, total, dim, Known(hot.T.contiguous()))


def _distinct(at: _Places) -> bool:
    """Whether no two slots name one position."""
    full = at.rows.plain()
    numbers = at.numbers.reshape(at.numbers.shape[-len(full) :]) if full else at.numbers
    return tuple(numbers.shape) == full and len(numbers.unique()) == numbers.numel()


def _exclusive(g: Graph, at: _Places) -> bool:
    """Whether no two rows name one position, though slots do: they are chosen by one number among
    the positions of a choice, and a choice names none twice (the tokens of one expert).
    """
    from .choices import is_choice

    keep, numbers = at.rows.keep, at.numbers
    repeated = [d for d, n in enumerate(at.rows.slots) if n > 1 and numbers.shape[d] == 1]
    return (
        isinstance(keep, Table)
        and int(keep.entries.bool().sum()) == 1
        and keep.source.shape == keep.shape == at.rows.slots
        and len(repeated) == 1
        and len(numbers.unique()) == numbers.numel()
        and is_choice(g, keep.source, repeated[0])
    )


def written(g: Graph, x: Value, y: Rows, at: _Places, dim: int) -> Value:
    """x with the rows at their positions, of which no two are equal."""
    require(
        _distinct(at) or _exclusive(g, at),
        f"rows that {at.rows.what} are written to positions that may be the same "
        "(index_add_ adds them up)",
    )
    n = x.shape[dim]
    total = added_up(g, collapsed(g, y), at, n)
    there: Value = added_up(g, Rows(at.rows, Filled(1, (1,) * len(at.rows.slots)), 0), at, n)
    if isinstance(there, Filled) and there.fill == 1:
        return total
    ar.check(x)
    there = g.reshape(there, (n, *(1 for _ in x.shape[dim + 1 :])))
    if isinstance(x, Filled) and x.fill == 0:
        return total
    return choose(g, there, total, x, x.shape)


def _indices(x: Value, indices: Sequence[Value | None]) -> tuple[int, list[Value], list[int]]:
    """The first indexed dimension, the indices, and the sizes of their dimensions."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    first = given[0][0]
    require(
        [d for d, _ in given] == list(range(first, first + len(given))),
        "indices of rows along dimensions that are no neighbours",
    )
    return first, [i for _, i in given], [x.shape[d] for d, _ in given]


def _index(call: Any, g: Graph, x: Value, indices: list[Value | None]) -> Value:
    dim, given, sizes = _indices(x, indices)
    if isinstance(given[0], (Positions, Order)):
        require(len(given) == 1, "an order beside other indices")
        return reordered(g, x, given[0], dim)
    if isinstance(given[0], Place):
        place = given[0]
        require(
            isinstance(x, Rows)
            and len(given) == 1
            and dim == x.dim
            and received(place.rows) is not None
            and received(x.rows) is received(place.rows)
            and place.is_position_in(x.rows),  # type: ignore[arg-type]
            "numbers that are not known to be the positions of rows in their order",
        )
        return arranged(g, x, place.rows)  # type: ignore[arg-type]
    require(not isinstance(x, Rows), "an index into rows that data chooses")
    if len(given) == 1 and isinstance(given[0], Rows) and known(given[0]) is None:
        return _by_data(call, g, x, dim, given[0])
    at = places(g, given, sizes)
    x = g.reshape(x, (*x.shape[:dim], numel(tuple(sizes)), *x.shape[dim + len(sizes) :]))
    return looked_up(g, x, dim, at)


def _by_data(call: Any, g: Graph, x: Value, dim: int, index: Rows) -> Value:
    """The positions that data names, for each row."""
    from .indexing import index_select  # it has all families of integers

    require(index.shape == (index.rows.count,), "an index of more than one number for each row")
    if isinstance(index.inner, ByCell):
        return _by_cell(g, x, index)
    flat = g.reshape(index.inner, (numel(index.held),))
    shape = (*x.shape[:dim], numel(index.held), *x.shape[dim + 1 :])

    class _Shape:
        @staticmethod
        def shape(i: int = 0) -> Shape:
            return shape

    made = index_select(_Shape(), g, x, dim, flat)
    return Rows(
        index.rows, g.reshape(made, (*x.shape[:dim], *index.held, *x.shape[dim + 1 :])), dim
    )


def _by_cell(g: Graph, x: Value, index: Rows) -> Value:
    """A constant at the position that the rank and the key of each received row name."""
    rows, cells = index.rows, index.inner
    assert isinstance(rows, (Received, Arranged)) and isinstance(cells, ByCell)
    of = received(rows)
    assert of is not None
    if not isinstance(x, (Known, Filled)):
        return _counted_before(g, x, rows, of, cells)
    require(
        isinstance(x, (Known, Filled)) and len(x.shape) == 1,
        "numbers for each rank and key that depend on data",
    )
    numbers = g.data(x)[cells.numbers]
    if not bool((numbers == numbers[:1]).all()) or of.keys is None or isinstance(rows, Arranged):
        return Rows(rows, ByCell(rows, numbers), 0)
    assert isinstance(rows, Received) and rows.keys is not None
    first, n = rows.owned[rows.me]
    keys = tables.table_of(g, rows.keys)
    assert keys is not None
    entries = torch.full((len(keys.entries),), -1, dtype=numbers.dtype)
    entries[first : first + n] = numbers[0]
    return Rows(rows, Table(g.named(rows.keys), entries, 0, rows.slots), 0)


def _counted_before(
    g: Graph, x: Value, rows: Received | Arranged, of: Received, cells: ByCell
) -> Value:
    """Numbers of received rows, for each row by its rank and key."""
    found = counts_of(g, x)
    require(
        found is not None and len(found.shape) == 1 and found.rows in (of.own, None),
        "numbers for each rank and key that depend on data",
    )
    assert found is not None
    first, _ = of.owned[of.me]
    made = {}
    for r, k in of.order:
        counted = of.cells_of(found.rows, found.keys[int(cells.numbers[r, k - first])])
        require(counted is not None, "numbers of other rows than those of ranks with some keys")
        assert counted is not None
        made[r, k] = dict.fromkeys(counted, 1)
    return Place(rows, 0, made)


def _index_put(
    call: Any,
    g: Graph,
    x: Value,
    indices: list[Value | None],
    source: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    dim, given, sizes = _indices(x, indices)
    require(not isinstance(x, Rows), "a write into rows that data chooses")
    if isinstance(given[0], Place):
        place = given[0]
        require(
            len(given) == 1 and isinstance(source, Rows) and source.rows is place.rows,
            "rows that are written at the places of others",
        )
        require(
            not accumulate or isinstance(x, Filled) and x.fill == 0,
            "rows that are added to others in an order",
        )
        of = received(place.rows)
        require(of is not None, "rows that are written at places in their own order")
        assert of is not None and isinstance(source, Rows)
        orders = [r for r in (of, call.recorder.rows.arranged(of)) if place.is_position_in(r)]
        require(
            bool(orders) and source.dim == dim,
            "numbers that are not known to be the positions of rows in an order",
        )
        # every position is written once, as they are those of all rows in that order
        return arranged(g, source, orders[0])
    if isinstance(given[0], (Positions, Order)):
        # what is read in the other direction; every row is written once
        require(len(given) == 1, "an order beside other indices")
        require(
            not accumulate or isinstance(x, Filled) and x.fill == 0,
            "rows that are added to others in an order",
        )
        require(x.shape == source.shape, "rows that are written in an order, and repeated")
        rows = given[0].rows
        if isinstance(source, Place):
            require(
                isinstance(given[0], Order) and source.rows is rows and source.is_own_position(),
                "other places than those of the rows in that order",
            )
            return Positions(rows)
        back = Order(rows) if isinstance(given[0], Positions) else Positions(rows)
        return reordered(g, source, back, dim)
    if not accumulate and (found := _places_in_order(given, sizes, source)) is not None:
        return found
    at = places(g, given, sizes)
    flat = g.reshape(x, (*x.shape[:dim], numel(tuple(sizes)), *x.shape[dim + len(sizes) :]))
    if not isinstance(source, Rows):
        source = constant_rows(g, at.rows, source, len(source.shape) - len(flat.shape) + dim)
    while len(source.shape) < len(flat.shape):
        source = Rows(
            source.rows, g.reshape(source.inner, (1, *source.inner.shape)), source.dim + 1
        )
    require(source.dim == dim, "rows that are written along another dimension")
    if accumulate:
        made = ar.binary(g, "add", flat, added_up(g, source, at, flat.shape[dim]))
    else:
        made = written(g, flat, source, at, dim)
    return g.reshape(made, x.shape)


def _index_add(
    call: Any, g: Graph, x: Value, dim: int, index: Value, source: Value, *, alpha: Any = 1
) -> Value:
    dim %= len(x.shape)
    require(isinstance(index, Rows) and not isinstance(x, Rows), "rows that are added to rows")
    at = places(g, [index], [x.shape[dim]])
    if not isinstance(source, Rows):
        source = constant_rows(g, at.rows, source, dim)
    require(source.dim == dim, "rows that are added along another dimension")
    total = added_up(g, source, at, x.shape[dim])
    if scalar(alpha) != 1:
        total = ar.binary(g, "mul", total, scalar(alpha))
    return ar.binary(g, "add", x, total)


def _index_select(call: Any, g: Graph, x: Value, dim: int, index: Value) -> Value:
    dim %= len(x.shape)
    return _index(call, g, x, [None] * dim + [index])


def _one_index(g: Graph, index: Value, dim: int, shape: Shape) -> Rows:
    """An index that is repeated along all other dimensions (gather, scatter), as one of rows."""
    require(
        isinstance(index, Rows) and index.dim == dim and index.shape[dim + 1 :] == shape[dim + 1 :],
        "an index of other elements in each row",
    )
    assert isinstance(index, Rows)
    data = known(index)
    require(data is not None, "an index of other elements in each row")
    assert data is not None
    k = len(index.rows.slots)
    for d in [*range(dim), *range(dim + k, data.dim())]:
        require(
            bool((data == data.narrow(d, 0, 1)).all()), "an index of other elements in each row"
        )
        data = data.narrow(d, 0, 1)
    return Rows(index.rows, Known(data.reshape(index.held)), 0)


def _gather(call: Any, g: Graph, x: Value, dim: int, index: Value, **_: Any) -> Value:
    dim %= len(x.shape)
    return _index(call, g, x, [None] * dim + [_one_index(g, index, dim, x.shape)])


def _scatter_add(call: Any, g: Graph, x: Value, dim: int, index: Value, source: Value) -> Value:
    dim %= len(x.shape)
    return _index_add(call, g, x, dim, _one_index(g, index, dim, x.shape), source)


# ---- orders ----
def _window(entries: torch.Tensor) -> tuple[int, int]:
    """The first integer and the number of those that go to 0, 1, ... ; all others go elsewhere."""
    zeros = (entries == 0).nonzero().flatten().tolist()
    best = (0, 0)
    for start in zeros:
        n = 0
        while start + n < len(entries) and int(entries[start + n]) == n:
            n += 1
        best = max(best, (n, start))
    return best[1], best[0]


def _classes_of(g: Graph, rows: RowSet | None, table: Table) -> tuple[int, int, bool]:
    """The first integer and the number of those that go to 0, 1, ..., and whether these are the
    keys that a rank receives: no slot that is no row has such a key, so that others do not count.
    """
    owner = rows.of or rows if rows is not None else None
    if isinstance(owner, Received) and owner.keys is not None:
        first, n = owner.owned[owner.me]
        own = (table.source.base or table.source).name == _own_name(g, owner.keys)
        if own and torch.equal(table.entries[first : first + n].long(), torch.arange(n)):
            return first, n, True
    first, n = _window(table.entries)
    return first, n, False


def _own_name(g: Graph, v: Value) -> str:
    n = g.named(v)
    return (n.base or n).name


def sorted_rows(call: Any, g: Graph, keys: Value) -> list[Value]:
    """Integers in order, and where each comes from (sort). Which of equal ones comes first only
    changes the order of rows with one key.
    """
    require(len(keys.shape) == 1, "a sort of integers along one of several dimensions")
    of = keys.rows if isinstance(keys, Rows) else None
    inner = keys
    if isinstance(keys, Rows):
        require(keys.rows.key is None, f"rows that {keys.rows.what} are sorted once more")
        inner = spread(g, keys, keys.rows.slots)
    table = tables.table_of(g, inner)
    require(
        table is not None and table.low == 0,
        "a sort of integers that are not computed from one tensor of classes",
    )
    assert table is not None
    first, classes, received = _classes_of(g, of, table)
    require(
        classes > 0 and (received or (first, classes) == (0, len(table.entries))),
        "a sort of integers that are no classes from 0 on",
    )
    g.assume(assumptions.CLASSES)
    base = table.source.base or table.source
    # by what is no number nothing is sorted
    g.definedness.taken_as_number(base)
    counted: dict[Any, list[frozenset[Any]]]
    if of is None:
        sign = signature(g, table, None)
        slots = base.shape
        counted = {sign: [frozenset([k]) for k in range(classes)]}
    else:
        sign = signature(g, table, id(of))
        base = g.named(g.reshape(g.expand(table.source, of.slots), of.slots))
        slots = of.slots
        counted = {sign: [frozenset([k]) for k in range(classes)]}
        if isinstance(of, Received) and received:
            counted[of.own] = [of.of_key(first + k) for k in range(classes)]
    require(numel(slots) == keys.shape[0], "a sort of integers that are repeated")
    rows = call.recorder.rows.ordered(
        sign,
        lambda: RowSet(
            slots,
            of.keep if of is not None else None,
            f"are in an order by data at {g.loc}",
            base,
            classes,
            first,
            received,
            of,
            counted,
        ),
    )
    held = (1, *slots)
    integers = Rows(rows, g.reshape(inner, held), 0)
    if of is not None:
        return [integers, Order(rows)]
    return [integers, Rows(rows, Known(torch.arange(rows.count).reshape(held)), 0)]


def _is_order(v: Value, rows: RowSet) -> bool:
    """Whether the rows name their own slots, each its own."""
    data = known(v)
    return (
        rows.key is not None
        and rows.of is None
        and data is not None
        and torch.equal(data, torch.arange(rows.count).reshape(1, *rows.plain()))
    )


def _sorted_again(call: Any, g: Graph, v: Value) -> list[Value]:
    """A sort of rows; of where sorted rows come from it finds where each went."""
    if isinstance(v, Order) or isinstance(v, Rows) and _is_order(v, v.rows):
        return [Known(torch.arange(v.rows.count)), Positions(v.rows)]
    require(isinstance(v, Rows) and v.of is None, "a sort of the places of rows in an order")
    return sorted_rows(call, g, v)


def _places_in_order(indices: Sequence[Value], sizes: Sequence[int], source: Value) -> Value | None:
    """`inverse[perm] = arange(n)`; None for another write."""
    index = indices[0]
    if (
        len(indices) == 1
        and isinstance(index, Rows)
        and isinstance(source, Known)
        and source.shape == (sizes[0],) == (index.rows.count,)
        and torch.equal(source.data, torch.arange(sizes[0]))
        and _is_order(index, index.rows)
    ):
        return Positions(index.rows)
    return None


def reordered(g: Graph, x: Value, index: Positions | Order, dim: int) -> Value:
    """Rows in the order of a key, or back as they were before it."""
    rows = index.rows
    if isinstance(index, Order):
        if rows.of is None:
            require(
                not isinstance(x, (Rows, Positions, Order)),
                f"rows that {rows.what} are put in that order once more",
            )
            inner = g.reshape(x, (*x.shape[:dim], 1, *rows.plain(), *x.shape[dim + 1 :]))
            g.definedness.taken_as_number(inner)
            return Rows(rows, inner, dim)
        require(
            isinstance(x, Rows) and x.rows is rows.of and x.dim == dim,
            f"an order of other rows than those that {rows.of.what}",
        )
        assert isinstance(x, Rows)
        held = x.inner.shape
        return Rows(rows, g.reshape(x.inner, (*held[:dim], 1, *held[dim:])), dim)
    require(
        isinstance(x, Rows) and x.rows is rows and x.dim == dim,
        f"the inverse of an order is applied to what is not in that order ({rows.what})",
    )
    assert isinstance(x, Rows)
    y = collapsed(g, x)
    if rows.of is None:
        return g.reshape(spread(g, y, (1, *rows.plain())), x.shape)
    held = y.inner.shape
    made = Rows(rows.of, g.reshape(y.inner, (*held[:dim], *held[dim + 1 :])), dim)
    made.cleared = y.cleared
    return made


# ---- groups of rows with one key ----
def counted(g: Graph, keys: Value, n: int) -> Value:
    """[n]: how many rows have each key."""
    rows = keys.rows if isinstance(keys, Rows) else None
    if isinstance(keys, Rows):
        rows = keys.rows
        require(
            len(keys.shape) == 1 and (rows.key is None or keys.held[0] == 1),
            "a count of rows by more than one number each",
        )
        inner = g.reshape(keys.inner, keys.held if rows.key is None else keys.held[1:])
        inner = g.expand(inner, keys.rows.plain())
    else:
        inner = keys
    table = tables.table_of(g, inner)
    require(
        table is not None and table.low == 0,
        "a count of integers that are not computed from one tensor of classes",
    )
    assert table is not None
    g.assume(assumptions.CLASSES)
    base: Value = inner
    if rows is None and isinstance(inner, Named) and inner.base is not None:
        base = inner.base
    keep = rows.keep if rows is not None else None
    sign = signature(g, table, None if rows is None or keep is None else id(rows.of or rows))
    hot: Value
    first, classes, received = _classes_of(g, rows, table)
    require(
        classes == n if received else (first, classes) == (0, len(table.entries)) and classes <= n,
        "a count of integers that are no classes from 0 on, or of more than it has",
    )
    if received:
        base = g.named(g.reshape(g.expand(table.source, table.shape), table.shape))
    hot = tables.one_hot(g, base, first, first + n)
    if keep is not None:
        hot = ar.binary(g, "mul", hot, as_numbers(g.reshape(keep, (*keep.shape, 1))))
    total = ar.reduce(g, "sum", hot, list(range(len(base.shape))))
    if isinstance(total, Named):
        keys_of = tuple(frozenset([k]) for k in range(n))
        g.row_counts[total.name] = Counts(sign, keys_of, (n,), numel(base.shape))
    return total


def grouped(g: Graph, a: Value, b: Value, offsets: Value | None) -> Value:
    """The product of each sorted row with its key's matrix, or of the rows of each key."""
    require(isinstance(a, Rows) and offsets is not None, "groups of what is not sorted by data")
    assert isinstance(a, Rows) and offsets is not None
    rows = a.rows
    found = counts_of(g, offsets)
    if isinstance(rows, Received) and rows.owned[rows.me][1] == 1 and found is not None:
        return _one_group(g, a, b, found)
    require(
        rows.pieces
        and found is not None
        and found.rows in rows.counted
        and list(found.keys)
        == list(itertools.accumulate(rows.counted[found.rows], lambda a, b: a | b)),
        f"groups of rows that {rows.what}, and offsets of which it is not known that they are the "
        "numbers of rows with each key",
    )
    if isinstance(b, Rows):
        require(a.dim == 1 and b.dim == 0, "groups along other dimensions")
        return contracted(g, a, b, by_key=True)
    require(
        a.dim == 0 and len(b.shape) == 3 and b.shape[0] == rows.classes, "groups of other sizes"
    )
    held = (rows.classes, *a.held[1:])
    flat = g.reshape(spread(g, a, held), (rows.classes, numel(held[1:]), a.shape[1]))
    return Rows(rows, g.reshape(ar.matmul(g, flat, b), (*held, b.shape[2])), 0)


def _one_group(g: Graph, a: Rows, b: Value, offsets: Counts) -> Value:
    """Received rows, all with one key."""
    rows = a.rows
    assert isinstance(rows, Received)
    require(
        offsets.rows == rows.own and list(offsets.keys) == [rows.of_key(rows.owned[rows.me][0])],
        f"one group of rows that {rows.what}, and an offset that does not count all of them",
    )
    if isinstance(b, Rows):
        made = _matrices(g, a, b)
        return g.reshape(made, (1, *made.shape))
    return _matrices(g, a, g.reshape(b, b.shape[1:]))


def group_of(g: Graph, v: Rows, key: int, rows: RowSet) -> Rows:
    """The rows with one key."""
    inner = g.slice(v.inner, v.dim, key, key + 1) if _by_key(v) else v.inner
    return Rows(rows, g.reshape(inner, (*inner.shape[: v.dim], *inner.shape[v.dim + 1 :])), v.dim)


def _at(g: Graph, inner: Value, dim: int, i: int) -> Value:
    """One element along a dimension that may be repeated; it stays with size 1."""
    return g.slice(inner, dim, i, i + 1) if inner.shape[dim] != 1 else inner


def cell_of(g: Graph, v: Rows, of: Received, rows: Cell) -> Rows:
    """The received rows of one rank with one key."""
    r, k = rows.cell
    k -= of.owned[of.me][0]
    by_key = of.keys is None or isinstance(v.rows, Arranged)
    order = [k, r] if isinstance(v.rows, Arranged) else [r, k]
    inner = v.inner
    for i, at in enumerate(order if by_key else [r]):
        inner = _at(g, inner, v.dim + i, at)
    n = 2 if by_key else 1
    shape = (*inner.shape[: v.dim], *inner.shape[v.dim + n :])
    return Rows(rows, g.reshape(inner, shape), v.dim)


def of_cells(
    g: Graph, rows: Received | Arranged, by_key: Arranged, cells: dict[Any, Value], shape: Shape
) -> Rows:
    """Received rows from those of each rank with each key (a Filled of zeros where there is none).

    by_key: the same rows by key.
    """
    given = [v for v in cells.values() if isinstance(v, Rows)]
    held = tuple(torch.broadcast_shapes(*[v.held for v in given]))

    def part(v: Value) -> Value:
        inner = spread(g, v, held) if isinstance(v, Rows) else Filled(0, (*held, *shape[1:]))
        return g.reshape(inner, (1, 1, *inner.shape))

    of = received(rows)
    assert of is not None
    first, n = of.owned[of.me]
    whole = g.cat(
        [
            g.cat([part(cells[r, k]) for r in range(len(of.owned))], 1)
            for k in range(first, first + n)
        ],
        0,
    )
    return arranged(g, Rows(by_key, whole, 0), rows)


def arranged(g: Graph, v: Rows, to: Received | Arranged) -> Rows:
    """Received rows in another order of theirs."""
    if v.rows is to:
        return v
    of, dim = received(to), v.dim
    assert of is not None and received(v.rows) is of
    if of.keys is None:  # [ranks, keys, ...] and [keys, ranks, ...]
        order = list(range(len(v.inner.shape)))
        order[dim], order[dim + 1] = order[dim + 1], order[dim]
        return Rows(to, g.permute(v.inner, order), dim)
    if isinstance(to, Arranged):
        held = v.inner.shape
        return Rows(to, g.reshape(v.inner, (*held[:dim], 1, *held[dim:])), dim)
    y = collapsed(g, v)
    held = y.inner.shape
    made = Rows(to, g.reshape(y.inner, (*held[:dim], *held[dim + 1 :])), dim)
    made.cleared = y.cleared
    return made


def of_groups(g: Graph, rows: RowSet, groups: Sequence[Value], shape: Shape) -> Rows:
    """Sorted rows from those with each key (a Filled of zeros where there is none)."""
    given = [v for v in groups if isinstance(v, Rows)]
    held = tuple(torch.broadcast_shapes(*[v.held for v in given]))
    parts = []
    for v in groups:
        inner = spread(g, v, held) if isinstance(v, Rows) else Filled(0, (*held, *shape[1:]))
        parts.append(g.reshape(inner, (1, *inner.shape)))
    return Rows(rows, g.cat(parts, 0), 0)


def _masked_scatter(call: Any, g: Graph, x: Value, mask: Value, source: Value) -> Value:
    """x with rows, one after another, where a mask is true: those that the same mask chooses."""
    require(isinstance(source, Rows) and not isinstance(x, Rows), "a write into rows by a mask")
    assert isinstance(source, Rows)
    require(
        source.of is None
        and len(source.shape) == 1
        and call.recorder.rows.chosen(g.expand(mask, x.shape), x.shape) is source.rows,
        f"rows that {source.rows.what} are written where another mask is true",
    )
    made = spread(g, masked(g, source), source.rows.slots)
    if isinstance(x, Filled) and x.fill == 0:
        return made
    assert source.rows.keep is not None
    return choose(g, source.rows.keep, made, x, x.shape)


def _cat(call: Any, g: Graph, values: list[Value], dim: int = 0) -> Value:
    return g.cat(values, dim % len(values[0].shape))


def _slice_backward(
    call: Any, g: Graph, grad: Value, sizes: list[int], dim: int, start: int, end: int, step: int
) -> Value:
    """Zeros around what was cut, along another dimension than the rows."""
    dim %= len(sizes)
    start = slice(start, None).indices(int(sizes[dim]))[0]
    lead, rest = grad.shape[:dim], grad.shape[dim + 1 :]

    def zeros(n: int) -> list[Value]:
        return [Filled(0, (*lead, n, *rest))] if n else []

    if step > 1:  # each element with the zeros that follow it
        n = grad.shape[dim]
        spaced = g.cat(
            [g.reshape(grad, (*lead, n, 1, *rest)), Filled(0, (*lead, n, step - 1, *rest))],
            dim + 1,
        )
        spaced = g.reshape(spaced, (*lead, n * step, *rest))
        grad = g.slice(spaced, dim, 0, min(n * step, int(sizes[dim]) - start))
    end = int(sizes[dim]) - start - grad.shape[dim]
    return g.cat([*zeros(start), grad, *zeros(end)], dim)


def _select_backward(
    call: Any, g: Graph, grad: Value, sizes: list[int], dim: int, index: int
) -> Value:
    dim %= len(sizes)
    index %= int(sizes[dim])
    shape = (*grad.shape[:dim], 1, *grad.shape[dim:])
    return _slice_backward(call, g, g.reshape(grad, shape), sizes, dim, index, index + 1, 1)


_OPERATORS: dict[str, Callable[..., Value]] = {
    "aten.cat": _cat,
    "aten.masked_scatter": _masked_scatter,
    "aten.slice_backward": _slice_backward,
    "aten.select_backward": _select_backward,
    "aten.index": _index,
    "aten._unsafe_index": _index,
    "aten.index_select": _index_select,
    "aten.gather": _gather,
    "aten.index_put": _index_put,
    "aten._index_put_impl": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.index_add": _index_add,
    "aten.scatter_add": _scatter_add,
}


# ---- rows that ranks exchange ----
def part_of_keys(
    counts: dict[Any, list[frozenset[Any]]], sign: Any, keys: frozenset[Any]
) -> list[int]:
    """The keys whose rows a number counts; raises Unsupported where it counts others."""
    found = [k for k, cell in enumerate(counts.get(sign, ())) if cell <= keys]
    if not found or frozenset[Any]().union(*(counts[sign][k] for k in found)) != keys:
        raise Unsupported("numbers of rows that are not those of some keys")
    return found
