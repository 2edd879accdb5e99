# SPDX-License-Identifier: Apache-2.0
"""top-k, sort and arg-max.

Which positions of a row are chosen is one opaque function of the row (`moe_gate`). The elements at
these positions are looked up.
"""

from __future__ import annotations

from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms import assumptions, tables
from ..terms.graph import Graph
from ..terms.nodes import MOVES_HERE
from ..terms.positions import MOST_POSITIONS, moved
from ..terms.selection import choose
from ..terms.summands import less_than_one, summands
from ..terms.values import Filled, Hidden, Known, Named, Value, numel
from . import rows
from .layout import cast
from .table import lowering, require

MOST = 256  # length of a row that is chosen from


def chosen(g: Graph, x: Value, k: int, dim: int, largest: bool = True) -> tuple[Value, Value]:
    """(values, indices) of the k largest along a dimension, largest first."""
    require(getattr(x, "kind", "real") == "real", "a choice among integers")
    g.assume(assumptions.TIES)
    if isinstance(x, Hidden) and largest:
        return _chosen_of_seen(g, x, k, dim % len(x.shape))
    return _chosen(g, x, k, dim, largest)


def _chosen_of_seen(g: Graph, x: Hidden, k: int, dim: int) -> tuple[Value, Value]:
    """The k largest of scores of which some are minus infinity (groups of experts, say).

    In the place of minus infinity stands a number below all others of the row. All of these are
    equal, as minus infinities are. Where a row may have fewer than k others, minus infinities are
    among the values.
    """
    below = ar.binary(g, "sub", ar.reduce(g, "amin", x.source, [dim], True), 1)
    keep = g.expand(ar.cast_real(x.keep), x.shape)
    seen = choose(g, keep, x.source, g.expand(below, x.shape), x.shape)
    values, index = _chosen(g, seen, k, dim, True)
    if seen_at_least(g, keep, dim) >= k:
        return values, index
    return Hidden(values, gather_many(g, keep, index, dim)), index


def seen_at_least(g: Graph, keep: Value, dim: int) -> int:
    """How many elements of each row of a mask are 1 at least, as far as is known.

    Of a mask that repeats the positions of a choice (or all others), these are the classes that
    stand for the fewest places, as a choice names no class twice.
    """
    if isinstance(keep, (Known, Filled)):
        return int(g.data(keep).double().expand(keep.shape).sum(dim).min())
    if not isinstance(keep, Named):
        return 0
    name, others = keep.name, False
    order = torch.arange(numel(keep.shape)).reshape(keep.shape)
    while (node := g.producer(name)) is not None:
        if (inner := less_than_one(g, name)) is not None:
            name, others = inner, not others
        elif node["op"] in MOVES_HERE and len(node["in"]) == 1:
            source = torch.arange(numel(tuple(g.tensors[node["in"][0]]["shape"])))
            source = source.reshape(g.tensors[node["in"][0]]["shape"])
            order = moved(node, [source]).flatten()[order]
            name = node["in"][0]
        else:
            break
    found = summands(g, name)
    hot = g.producer(found[0]) if found is not None else None
    if found is None or hot is None or hot["op"] != "one_hot":
        return 0
    index = g.value_of(hot["in"][0], "int")
    classes = g.tensors[found[0]]["shape"][-1]
    if hot["attrs"]["start"] != 0 or not isinstance(index, Named):
        return 0
    chosen, known = index.shape[-1], _places(g, index.name)
    if known is None or known[1] != chosen or not is_choice(g, index, len(index.shape) - 1):
        return 0
    # [rows, places, n]: a choice's numbers, each a place of the index and a class
    at = found[1].reshape(-1, found[1].shape[-1])[order].movedim(dim, -2)
    at = at.reshape(-1, *at.shape[-2:])
    of, which = at // classes, at % classes
    row = of[:, :1, :1] // chosen
    if (
        at.shape[-1] != chosen
        or bool((of.sort(-1).values != row * chosen + torch.arange(chosen)).any())
        or bool((which != which[..., :1]).any())
    ):
        return 0
    counts = torch.nn.functional.one_hot(which[..., 0], classes).sum(1)
    ordered = counts.sort(-1).values
    least = (
        at.shape[1] - ordered[:, classes - chosen :].sum(-1)
        if others
        else ordered[:, :chosen].sum(-1)
    )
    return int(least.min())


def _chosen(g: Graph, x: Value, k: int, dim: int, largest: bool) -> tuple[Value, Value]:
    """The same of numbers of which no two are equal."""
    ar.check(x)
    dim %= len(x.shape)
    n = x.shape[dim]
    require(0 < n <= MOST, f"a choice among more than {MOST} numbers")
    rows, back = ar.rows_of(g, x, dim)
    lead = rows.shape[:-1]
    flat = g.named(g.reshape(rows, (numel(lead), n)))
    key = g.named(flat if largest else ar.negate(g, flat))
    index = _places_of_most(g, key, k)
    hot = tables.one_hot(g, index, 0, n)
    values = ar.taken(g, g.reshape(flat, (numel(lead), 1, n)), hot, [-1])
    return back(g.reshape(values, lead + (k,))), back(g.reshape(index, lead + (k,)))


def _places_of_most(g: Graph, rows: Named, k: int) -> Named:
    """[rows, k]: where the k largest numbers of each row are."""
    count, n = rows.shape
    index = g.emit(
        "moe_gate",
        [rows, Known(torch.eye(n, dtype=torch.float64))],
        [None, (count, k)],
        {"score_func": "softmax", "topk": k},
        "int",
    )[1]
    assert index is not None
    g.tensors[index.name]["dtype"] = "int64"
    g.integers.classes[index.name] = n
    return index


def as_index(g: Graph, v: Value, n: int) -> Value:
    """Integers below n that were computed (sums, products, casts) as an integer tensor.

    v is the position of the largest of 2 v c - c^2, over c from 0 up to n: there is one.
    """
    if getattr(v, "kind", "") != "real" or isinstance(v, (Filled, Known, Hidden)):
        return v
    require(n <= MOST, f"an index that was computed, among more than {MOST}")
    g.assume(assumptions.CLASSES)
    c = torch.arange(n, dtype=torch.float64)
    rows = ar.binary(
        g, "sub", ar.binary(g, "mul", g.reshape(v, (*v.shape, 1)), Known(2 * c)), Known(c * c)
    )
    index = _places_of_most(g, g.named(g.reshape(rows, (numel(v.shape), n))), 1)
    return g.reshape(index, v.shape)


@lowering("topk")
def topk(
    call: Any, g: Graph, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> list[Value]:
    return list(chosen(g, x, k, dim, largest))


@lowering("sort")
def sort(
    call: Any,
    g: Graph,
    x: Value,
    *args: Any,
    dim: int = -1,
    descending: bool = False,
    stable: Any = None,
) -> list[Value]:
    rest = list(args)
    if call.overload.startswith("stable"):
        rest = rest[1:]
    dim = rest[0] if rest else dim
    descending = rest[1] if len(rest) > 1 else descending
    if getattr(x, "kind", "") == "int" and not descending:
        return rows.sorted_rows(call, g, x)
    return list(chosen(g, x, x.shape[dim], dim, descending))


def _smallest(k: Any) -> Any:
    def f(call: Any, g: Graph, x: Value, *args: Any, **kwargs: Any) -> Any:
        """The k-th smallest of a row, or of all numbers."""
        rank, dim = k(args, kwargs)
        if dim is None:
            x, dim = g.reshape(x, (numel(x.shape),)), 0
        n = x.shape[dim]
        at = (n + 1) // 2 if rank is None else int(rank)
        values, indices = (g.slice(v, dim, at - 1, at) for v in chosen(g, x, at, dim, False))
        return [
            g.reshape(v, call.shape(i)) for i, v in enumerate((values, indices)[: len(call.outs)])
        ]

    return f


lowering("kthvalue")(
    _smallest(lambda args, kwargs: (args[0], args[1] if len(args) > 1 else kwargs.get("dim", -1)))
)
# of an even number the lower one; there are no not-a-numbers
lowering("median", "nanmedian")(
    _smallest(lambda args, kwargs: (None, args[0] if args else kwargs.get("dim")))
)


def _running(largest: bool) -> Any:
    def f(call: Any, g: Graph, x: Value, dim: int) -> list[Value]:
        """The extremum of each row up to each position, and its position.

        Later positions have less (for a minimum, more) than there is at it.
        """
        rows, back = ar.rows_of(g, x, dim)
        lead, n = rows.shape[:-1], rows.shape[-1]
        require(n <= MOST, f"a running extremum of more than {MOST} numbers")
        behind = ar.binary(g, "sub" if largest else "add", g.reshape(rows, (*lead, n, 1)), 1)
        seen = choose(
            g,
            Known(torch.ones(n, n, dtype=torch.bool).tril()),
            g.reshape(rows, (*lead, 1, n)),
            behind,
            (*lead, n, n),
        )
        index = chosen(g, seen, 1, -1, largest)[1]
        return [
            back(ar.reduce(g, "amax" if largest else "amin", seen, [-1])),
            back(g.reshape(index, rows.shape)),
        ]

    return f


lowering("cummax")(_running(True))
lowering("cummin")(_running(False))


def _first(g: Graph, x: Value, dim: int, largest: bool) -> Value:
    """The first position of the largest (smallest) integer along a dimension.

    With n positions it is that of the largest of n v - i (of -n v - i), and there is one such i.
    """
    dim %= len(x.shape)
    n = x.shape[dim]
    place = torch.arange(n, dtype=torch.float64).reshape(
        [n if d == dim else 1 for d in range(len(x.shape))]
    )
    numbers = ar.binary(g, "mul", cast(g, x, torch.float64), n if largest else -n)
    return _chosen(g, ar.binary(g, "sub", numbers, Known(place)), 1, dim, True)[1]


def _arg(largest: bool) -> Any:
    def f(call: Any, g: Graph, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        require(dim is not None, "the position of an extremum of a whole tensor")
        if not call.given[0].dtype.is_floating_point:  # many are equal, as in a mask
            return g.reshape(_first(g, x, dim, largest), call.shape())
        return g.reshape(chosen(g, x, 1, dim, largest)[1], call.shape())

    return f


lowering("argmax")(_arg(True))
lowering("argmin")(_arg(False))


def is_choice(g: Graph, v: Value, dim: int) -> bool:
    """Whether these are chosen positions, none twice along a line of the dimension.

    Each is of one row that was chosen from, at other places.
    """
    found = (
        _places(g, v.name)
        if isinstance(v, Named) and v.kind == "int" and numel(v.shape) <= MOST_POSITIONS
        else None
    )
    if found is None:
        return False
    places, k = found
    lines = places.reshape(v.shape).movedim(dim, -1).reshape(-1, v.shape[dim])
    ordered = lines.sort(-1).values
    return bool((lines // k == lines[:, :1] // k).all()) and bool(
        (ordered[:, 1:] > ordered[:, :-1]).all()
    )


def _places(g: Graph, name: str) -> tuple[torch.Tensor, int] | None:
    """For each element of a rearrangement of what `chosen` found, its position there.

    Rows follow each other. Elements may be moved, repeated, or gathered from ranks that do the
    same. None for anything else.
    """
    moves: list[dict[str, Any]] = []
    while (node := g.producer(name)) is not None and node["op"] != "moe_gate":
        if (
            node["op"] not in (*MOVES_HERE, "all_gather")
            or len(node["in"]) > 1
            or node["in"][0] is None
        ):
            return None
        moves.append(node)
        name = node["in"][0]
    if node is None:
        return None
    at = torch.arange(numel(tuple(g.tensors[name]["shape"]))).reshape(g.tensors[name]["shape"])
    k, total = at.shape[-1], at.numel()
    for node in reversed(moves):
        if node["op"] == "all_gather":
            dim = node["attrs"]["dim"]
            n = g.tensors[node["out"][0]]["shape"][dim] // at.shape[dim]
            at, total = torch.cat([at + i * total for i in range(n)], dim), n * total
        else:
            at = moved(node, [at])
    return at, k


def gather_many(g: Graph, x: Value, index: Value, dim: int) -> Value:
    """x's elements at the positions along the dimension, for integers of one range."""
    (rows, back), (places, _) = ar.rows_of(g, x, dim), ar.rows_of(g, index, dim)
    require(rows.shape[:-1] == places.shape[:-1], "gather of fewer rows than there are")
    n = rows.shape[-1]
    hot = tables.one_hot(g, places, 0, n)
    return back(ar.taken(g, g.reshape(rows, rows.shape[:-1] + (1, n)), hot, [-1]))


def scatter_many(
    g: Graph, x: Value, index: Value, source: Value, dim: int, accumulate: bool
) -> Value:
    """x with the source at (or, accumulating, added to) the positions along the dimension."""
    dim %= len(x.shape)
    (rows, back), (places, _) = ar.rows_of(g, x, dim), ar.rows_of(g, index, dim)
    require(rows.shape[:-1] == places.shape[:-1], "scatter to fewer rows than there are")
    require(
        accumulate or is_choice(g, places, len(places.shape) - 1),
        "scatter to positions that may be the same",
    )
    n = rows.shape[-1]
    hot: Value = tables.one_hot(g, places, 0, n)
    if source.shape:
        s, _ = ar.rows_of(g, g.slice(source, dim, 0, index.shape[dim]), dim)
        require(s.shape == places.shape, "scatter of more elements than there are positions")
        placed = ar.taken(g, g.reshape(s, s.shape + (1,)), hot, [-2])
    else:
        placed = ar.binary(g, "mul", ar.reduce(g, "sum", hot, [-2]), source)
    if not (accumulate or isinstance(x, Filled) and x.fill == 0):
        named = ar.reduce(g, "sum", hot, [-2])
        rows = (
            ar.binary(g, "mul", rows, ar.binary(g, "sub", 1, named))
            if g.definedness.has_a_value(rows)
            else ar.one_of(g, named, Filled(0, ()), rows, rows.shape)
        )
    made = back(ar.binary(g, "add", rows, placed))
    ones = isinstance(source, Filled) and source.fill == 1 and not accumulate
    if isinstance(made, Named) and ones and isinstance(x, Filled) and x.fill == 0:
        g.masks.add((made.base or made).name)  # no place is named twice
    return made
