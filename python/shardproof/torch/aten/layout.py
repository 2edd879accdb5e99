# SPDX-License-Identifier: Apache-2.0
"""What only moves, copies or fills elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..terms import tables
from ..terms.arithmetic import binary, check, lift, numbers, reduce, unary
from ..terms.graph import Graph
from ..terms.selection import choose, nonzero
from ..terms.values import (
    Complex,
    Filled,
    Known,
    Named,
    Replaced,
    Table,
    Unsupported,
    Value,
    kind_of,
)
from .table import lowering, require, scalar


@lowering(
    "clone",
    "contiguous",
    "alias",
    "detach",
    "lift_fresh",
    "lift_fresh_copy",
    "lift",
    "view_copy",
    "_to_dtype",
    "prims.device_put",
    "prims.convert_element_type",
    "_conj_copy",
    "_wrap_tensor_autograd",
    "prims.clone",
    "_unsafe_view",
    "reshape",
    "_reshape_copy",
    "_reshape_alias",
    "expand_copy",
    "slice_copy",
    "select_copy",
)
def copy(call: Any, g: Graph, x: Value, *args: Any, **kwargs: Any) -> Value:
    return g.reshape(cast(g, x, call.outs[0].dtype, call.given[0].dtype), call.shape())


def cast(g: Graph, x: Value, dtype: torch.dtype, of: torch.dtype | None = None) -> Value:
    """To another dtype, from `of` (None: not known): the identity on numbers.

    Reals that become integers are cut off. Integers that were computed are real numbers here.
    """
    check(x)
    kind = kind_of(dtype)
    have = getattr(x, "kind", "real")
    if kind == have or isinstance(x, Filled):
        if isinstance(x, Filled) and kind != have:
            return Filled(
                x.fill if kind == "real" else int(x.fill != 0) if kind == "bool" else int(x.fill),
                x.shape,
                kind if kind != "complex" else "real",
            )
        return x
    if isinstance(x, Table):
        return Table(
            x.source, x.entries.to(torch.float64 if kind == "real" else dtype), x.low, x.shape
        )
    if (
        kind == "real"
        and isinstance(x, Named)
        and x.kind == "int"
        and (t := tables.table_of(g, x)) is not None
    ):
        return Table(t.source, t.entries.to(torch.float64), t.low, x.shape)
    if kind == "real" and isinstance(x, Replaced):
        return numbers(g, x)
    if kind == "real" and have in ("int", "bool"):
        return Known(x.data.double(), x.host) if isinstance(x, Known) else x
    if isinstance(x, Known):
        return Known(x.data.to(dtype), x.host)
    if (
        kind in ("int", "bool")
        and isinstance(x, Named)
        and x.node is not None
        and x.node["op"] == "one_hot"
    ):
        return x  # zeros and ones
    if kind == "bool" and have == "real":
        return nonzero(g, x)
    if kind == "int" and have == "real" and of is not None:
        return unary(g, "trunc", x) if of.is_floating_point else x
    if kind == "bool" and isinstance(x, Named) and x.kind == "int":
        table = tables.apply(g, lambda n: n != 0, [x], x.shape)
        if table is not None:
            return table
    if kind in ("int", "bool") and isinstance(x, Named) and x.kind == "int":
        require(kind == "int", "an integer tensor as booleans")
        return x
    if kind == "complex":
        return Complex(x, Filled(0, x.shape))
    raise Unsupported(f"a cast of {have} to {dtype}")


@lowering("_to_copy", "to")
def to_copy(call: Any, g: Graph, x: Value, *args: Any, **kwargs: Any) -> Value:
    return cast(g, x, call.outs[0].dtype, call.given[0].dtype)


@lowering("copy", "copy_", "prims.copy_to", selective=True)
def copy_into(call: Any, g: Graph, x: Value, source: Value, *args: Any) -> Value:
    check(source)  # what was there before does not matter
    return g.expand(cast(g, source, call.outs[0].dtype, call.given[1].dtype), call.shape())


@lowering("fill", "fill_", "full_like", "new_full", selective=True)
def fill(call: Any, g: Graph, x: Value, value: Any, *args: Any, **kwargs: Any) -> Value:
    v = lift((args[0] if args else kwargs["fill_value"]) if call.name == "aten.new_full" else value)
    check(v)
    return g.expand(cast(g, v, call.outs[0].dtype), call.shape())


@lowering("zero", "zero_", "zeros_like", "new_zeros", "zeros", selective=True)
def zero(call: Any, g: Graph, *args: Any, **kwargs: Any) -> list[Value]:
    return [Filled(0, t.shape, _kind(t.dtype)) for t in call.outs]


@lowering("_foreach_zero_", selective=True)
def foreach_zero(call: Any, g: Graph, tensors: list[Value]) -> list[Value]:
    return [
        Filled(
            0,
            v.shape,
            getattr(v, "kind", "real") if getattr(v, "kind", "real") != "poison" else "real",
        )
        for v in tensors
    ]


@lowering("ones_like", "new_ones", "ones", selective=True)
def ones(call: Any, g: Graph, *args: Any, **kwargs: Any) -> Value:
    return Filled(1, call.shape(), _kind(call.outs[0].dtype))


def _kind(dtype: torch.dtype) -> str:
    kind = kind_of(dtype)
    return "real" if kind == "complex" else kind


@lowering("full", "scalar_tensor")
def full(call: Any, g: Graph, *args: Any, **kwargs: Any) -> Value:
    x = args[1] if call.name == "aten.full" else args[0]
    return g.expand(cast(g, lift(scalar(x)), call.outs[0].dtype), call.shape())


@lowering("_foreach_copy", "_foreach_copy_", selective=True)
def foreach_copy(
    call: Any, g: Graph, targets: list[Value], sources: list[Value], *args: Any
) -> list[Value]:
    to, of = (
        [t.dtype for t in call.given[i * len(targets) : (i + 1) * len(targets)]] for i in (0, 1)
    )
    return [
        g.expand(s if kind_of(a) == kind_of(b) else cast(g, s, a, b), t.shape)
        for t, s, a, b in zip(targets, sources, to, of)
    ]


@lowering("cat", "concat")
def cat(call: Any, g: Graph, tensors: list[Value], dim: int = 0) -> Value:
    check(*tensors)
    return g.reshape(g.cat(tensors, dim % max(len(call.shape()), 1)), call.shape())


@lowering("stack")
def stack(call: Any, g: Graph, tensors: list[Value], dim: int = 0) -> Value:
    check(*tensors)
    dim %= len(call.shape())
    return g.cat([g.reshape(t, t.shape[:dim] + (1,) + t.shape[dim:]) for t in tensors], dim)


@lowering("repeat")
def repeat(call: Any, g: Graph, x: Value, repeats: list[int]) -> Value:
    lead = len(repeats) - len(x.shape)
    v = g.reshape(x, (1,) * lead + x.shape)
    for dim, n in enumerate(repeats):
        require(n > 0, "a repetition of 0 times")
        if n > 1:
            v = g.cat([v] * n, dim)
    return v


@lowering("constant_pad_nd")
def pad(call: Any, g: Graph, x: Value, pads: list[int], value: Any = 0) -> Value:
    v = x
    for i in range(0, len(pads), 2):
        dim = len(x.shape) - 1 - i // 2
        left, right = pads[i], pads[i + 1]
        if left < 0 or right < 0:
            v = g.slice(v, dim, max(-left, 0), v.shape[dim] - max(-right, 0))
        parts: list[Value] = [v]
        fill = cast(g, lift(scalar(value)), call.outs[0].dtype)
        for n, front in ((left, True), (right, False)):
            if n > 0:
                piece = g.expand(fill, v.shape[:dim] + (n,) + v.shape[dim + 1 :])
                parts = [piece, *parts] if front else [*parts, piece]
        v = g.cat(parts, dim)
    return v


@lowering("slice_backward")
def slice_backward(
    call: Any, g: Graph, grad: Value, sizes: list[int], dim: int, start: int, stop: int, step: int
) -> Value:
    dim %= len(sizes)
    start, stop, _ = slice(start, stop, step).indices(sizes[dim])
    if step > 1 and grad.shape[dim]:  # each element, with the step's zeros behind it
        before, count, after = grad.shape[:dim], grad.shape[dim], grad.shape[dim + 1 :]
        spread = g.cat(
            [
                g.reshape(grad, (*before, count, 1, *after)),
                Filled(0, (*before, count, step - 1, *after)),
            ],
            dim + 1,
        )
        stop = min(start + count * step, sizes[dim])
        grad = g.slice(g.reshape(spread, (*before, count * step, *after)), dim, 0, stop - start)
    parts: list[Value] = [
        *([_zeros(sizes, dim, start)] if start else []),
        grad,
        *([_zeros(sizes, dim, sizes[dim] - stop)] if stop < sizes[dim] else []),
    ]
    return g.cat(parts, dim)


def _zeros(sizes: Sequence[int], dim: int, n: int) -> Value:
    """Zeros of these sizes, but n along one dimension."""
    return Filled(0, (*sizes[:dim], n, *sizes[dim + 1 :]))


@lowering("select_backward")
def select_backward(
    call: Any, g: Graph, grad: Value, sizes: list[int], dim: int, index: int
) -> Value:
    dim, index = dim % len(sizes), index % sizes[dim]
    row = g.reshape(grad, tuple(sizes[:dim]) + (1,) + tuple(sizes[dim + 1 :]))
    return slice_backward(call, g, row, sizes, dim, index, index + 1, 1)


@lowering("split_with_sizes_copy")
def split_copy(call: Any, g: Graph, x: Value, sizes: list[int], dim: int = 0) -> list[Value]:
    results, at = [], 0
    for n in sizes:
        results.append(g.slice(x, dim, at, at + n))
        at += n
    return results


@lowering("flip")
def flip(call: Any, g: Graph, x: Value, dims: list[int]) -> Value:
    v = x
    for dim in dims:
        n = v.shape[dim]
        require(n <= 256, "flip along a long dimension")
        v = g.cat([g.slice(v, dim, i, i + 1) for i in reversed(range(n))], dim % len(x.shape))
    return v


@lowering("roll")
def roll(call: Any, g: Graph, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Value:
    v = x if dims else g.reshape(x, (_count(x),))
    for shift, dim in zip(shifts, dims or [0]):
        n = v.shape[dim]
        k = shift % n
        if k:
            v = g.cat([g.slice(v, dim, n - k, n), g.slice(v, dim, 0, n - k)], dim % len(v.shape))
    return g.reshape(v, x.shape)


def taken_back(g: Graph, grad: Value, dim: int, positions: Sequence[int], n: int) -> Value:
    """The transpose of taking elements at constant positions along a dimension of n.

    What went to each position is summed, by runs of positions that go up, go down or stay.
    """
    dim %= len(grad.shape)
    shape = grad.shape[:dim] + (n,) + grad.shape[dim + 1 :]
    total: Value = Filled(0, shape)
    runs: list[list[int]] = []  # first, behind the last, step
    for i, p in enumerate(positions):
        step = p - positions[i - 1] if i else 0
        if runs and abs(step) <= 1 and runs[-1][2] in (step, 2):
            runs[-1][1:] = [i + 1, step]
        else:
            runs.append([i, i + 1, 2])
    require(len(runs) <= 4096, "an index of too many pieces")
    for a, b, step in runs:
        part, low = g.slice(grad, dim, a, b), min(positions[a], positions[b - 1])
        if step == 0:
            part = reduce(g, "sum", part, [dim], True)
        elif step == -1:
            part = g.cat([g.slice(part, dim, i, i + 1) for i in reversed(range(b - a))], dim)
        around = [
            Filled(0, grad.shape[:dim] + (m,) + grad.shape[dim + 1 :]) if m else None
            for m in (low, n - low - part.shape[dim])
        ]
        total = binary(
            g, "add", total, g.cat([v for v in (around[0], part, around[1]) if v is not None], dim)
        )
    return total


def _count(x: Value) -> int:
    n = 1
    for size in x.shape:
        n *= size
    return n


def triangle(g: Graph, x: Value, upper: bool, diagonal: int = 0) -> Value:
    """With zeros on the other side of a diagonal."""
    mask = torch.ones(x.shape[-2:], dtype=torch.bool)
    return choose(
        g, Known(mask.triu(diagonal) if upper else mask.tril(diagonal)), x, Filled(0, ()), x.shape
    )


def _triangle(upper: bool) -> Any:
    def f(call: Any, g: Graph, x: Value, diagonal: int = 0) -> Value:
        return triangle(g, x, upper, diagonal)

    return f


lowering("triu")(_triangle(True))
lowering("tril")(_triangle(False))
