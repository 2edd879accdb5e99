# SPDX-License-Identifier: Apache-2.0
"""Sums, means, extrema, norms, and products of matrices."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms import assumptions
from ..terms.graph import Graph
from ..terms.selection import choose
from ..terms.values import Filled, Hidden, Known, Named, Value, numel
from . import choices
from .layout import cast
from .table import lowering, require, scalar


def _summed(call: Any, g: Graph, a: Value, dtype: Any) -> Value:
    """What is summed or multiplied, in the requested dtype.

    Reals are cut off first for an integer dtype.
    """
    return (
        cast(g, a, dtype, call.given[0].dtype)
        if dtype is not None
        and not dtype.is_floating_point
        and call.given[0].dtype.is_floating_point
        else a
    )


@lowering("sum")
def total(
    call: Any, g: Graph, a: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    return ar.reduce(g, "sum", _summed(call, g, a, dtype), dim, keepdim)


@lowering("mean")
def mean(
    call: Any, g: Graph, a: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    return ar.reduce(g, "mean", a, dim, keepdim)


@lowering("amax")
def amax(call: Any, g: Graph, a: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return ar.reduce(g, "amax", a, dim, keepdim)


@lowering("amin")
def amin(call: Any, g: Graph, a: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return ar.reduce(g, "amin", a, dim, keepdim)


def _extremum(op: str) -> Any:
    def f(call: Any, g: Graph, a: Value, dim: Any = None, keepdim: bool = False) -> Any:
        """Over all elements, or along a dimension with the indices.

        A row has to be short enough to choose from.
        """
        if isinstance(dim, Value):
            return (ar.maximum if op == "amax" else ar.minimum)(g, a, dim)
        largest = ar.reduce(g, op, a, dim, keepdim)
        if dim is None or a.shape[dim] > choices.MOST or getattr(a, "kind", "real") != "real":
            return [largest, None]
        return [largest, g.reshape(choices.chosen(g, a, 1, dim, op == "amax")[1], call.shape(1))]

    return f


lowering("max")(_extremum("amax"))
lowering("min")(_extremum("amin"))


def moments(g: Graph, a: Value, dims: Any, correction: float, keepdim: bool) -> tuple[Value, Value]:
    """(variance, mean)."""
    where = ar.reduced_dims(a.shape, dims)
    count = 1
    for d in where:
        count *= a.shape[d]
    m = ar.reduce(g, "mean", a, where, True)
    c = ar.binary(g, "sub", a, m)
    square = ar.binary(g, "mul", c, c)
    v = (
        ar.reduce(g, "mean", square, where, True)
        if correction == 0
        else ar.binary(g, "div", ar.reduce(g, "sum", square, where, True), count - correction)
    )
    if not keepdim:
        shape = tuple(n for i, n in enumerate(a.shape) if i not in where)
        m, v = g.reshape(m, shape), g.reshape(v, shape)
    return v, m


@lowering("var_mean")
def var_mean(
    call: Any,
    g: Graph,
    a: Value,
    dim: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    *,
    correction: Any = 1,
) -> list[Value]:
    if isinstance(unbiased, bool) and call.overload in ("default", "dim"):
        correction = int(unbiased)
    elif unbiased is not None and call.overload not in ("default", "dim"):
        keepdim = bool(unbiased)
    v, m = moments(
        g,
        a,
        None if isinstance(dim, bool) else dim,
        int(dim) if isinstance(dim, bool) else 1 if correction is None else correction,
        keepdim,
    )
    return [v, m]


@lowering("var")
def var(call: Any, g: Graph, a: Value, *args: Any, **kwargs: Any) -> Value:
    return var_mean(call, g, a, *args, **kwargs)[0]


@lowering("linalg_vector_norm", "norm")
def norm(
    call: Any,
    g: Graph,
    a: Value,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Value:
    ord = 2 if ord is None else scalar(ord)
    if ord == 2:
        if isinstance(a, Named) and a.square is not None:
            squares: Value = a.square
        else:
            squares = ar.binary(g, "mul", a, a)
        return g.root(ar.reduce(g, "sum", squares, dim, keepdim))
    absolute = ar.absolute(g, a)
    if math.isinf(ord):
        return ar.reduce(g, "amax" if ord > 0 else "amin", absolute, dim, keepdim)
    if ord == 0:
        return ar.reduce(g, "sum", ar.step(g, absolute), dim, keepdim)
    require(ord > 0, f"a norm of order {ord}")
    powers = ar.reduce(g, "sum", ar.power(g, a if ord % 2 == 0 else absolute, ord), dim, keepdim)
    return powers if ord == 1 else ar.power(g, powers, 1 / ord)


@lowering("logsumexp")
def logsumexp(call: Any, g: Graph, a: Value, dim: Any, keepdim: bool = False) -> Value:
    if a.shape == ():
        return a
    dims = ar.reduced_dims(a.shape, dim)
    return g.one("logsumexp", [a], call.shape(), {"dim": dims, "keepdim": bool(keepdim)})


@lowering("_softmax")
def softmax(call: Any, g: Graph, a: Value, dim: int, half: bool) -> Value:
    return ar.softmax(g, a, dim)


@lowering("_safe_softmax")
def safe_softmax(call: Any, g: Graph, a: Value, dim: int, dtype: Any = None) -> Value:
    """Zeros where all of a row is masked. Where data says what is masked, each row sees something:
    that is assumed.
    """
    if isinstance(a, Hidden) and isinstance(a.keep, (Filled, Known)):
        seen = (g.data(a.keep).expand(a.shape) != 0).any(dim, True)
        p = ar.softmax(g, a, dim)
        return p if bool(seen.all()) else ar.one_of(g, Known(seen), p, Filled(0, ()), a.shape)
    if isinstance(a, Hidden):
        g.assume(assumptions.EACH_ROW_SEEN)
    elif not (
        isinstance(a, Named)
        and a.node is not None
        and a.node["op"] == "apply_mask"
        and a.name not in g.definedness.closed
        and dim % len(a.shape) >= len(a.shape) - 2
    ):
        a = g.definedness.finite(a)
    return ar.softmax(g, a, dim)


@lowering("_log_softmax")
def log_softmax(call: Any, g: Graph, a: Value, dim: int, half: bool) -> Value:
    return ar.softmax(g, a, dim, log=True)


@lowering("_softmax_backward_data")
def softmax_backward(call: Any, g: Graph, grad: Value, y: Value, dim: int, dtype: Any) -> Value:
    return ar.softmax_gradient(g, grad, y, dim)


@lowering("_log_softmax_backward_data")
def log_softmax_backward(call: Any, g: Graph, grad: Value, y: Value, dim: int, dtype: Any) -> Value:
    last = dim % len(y.shape) == len(y.shape) - 1
    sums = grad.row_sums if isinstance(grad, Named) and grad.row_sums is not None and last else None
    rows = (
        g.reshape(sums, y.shape[:-1] + (1,))
        if sums is not None
        else ar.reduce(g, "sum", grad, [dim], True)
    )
    result = ar.binary(g, "sub", grad, ar.binary(g, "mul", ar.unary(g, "exp", y), rows))
    return result


@lowering("mm", "bmm", "matmul", "dot", "mv")
def matmul(call: Any, g: Graph, a: Value, b: Value) -> Value:
    return ar.matmul(g, a, b)


@lowering("_trilinear")
def trilinear(
    call: Any,
    g: Graph,
    a: Value,
    b: Value,
    c: Value,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Value:
    """The product of the three, with dimensions of size 1 inserted, summed over some (bilinear
    layers).
    """
    total: Value | None = None
    for v, dims in ((a, expand1), (b, expand2), (c, expand3)):
        shape = list(v.shape)
        for d in sorted(dims):
            shape.insert(d, 1)
        v = g.reshape(v, shape)
        total = v if total is None else ar.binary(g, "mul", total, v)
    assert total is not None
    return ar.reduce(g, "sum", total, sumdim) if sumdim else total


# times 0, what is there does not matter: it may be memory that was never written
@lowering("addmm", "baddbmm", "addmv", selective=True)
def addmm(
    call: Any, g: Graph, c: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    ar.check(a, b, *([] if scalar(beta) == 0 else [c]))
    product = ar.matmul(g, a, b)
    if scalar(alpha) != 1:
        product = ar.binary(g, "mul", product, scalar(alpha))
    if scalar(beta) == 0:
        return product
    return ar.binary(
        g, "add", product, ar.binary(g, "mul", c, scalar(beta)) if scalar(beta) != 1 else c
    )


@lowering("prod", "prims.prod")
def prod(
    call: Any,
    g: Graph,
    a: Value,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
    **kwargs: Any,
) -> Value:
    """Products of halves, repeatedly."""
    dims = ar.reduced_dims(a.shape, dim)
    rest = [i for i in range(len(a.shape)) if i not in dims]
    a, n = _summed(call, g, a, dtype), numel(tuple(a.shape[d] for d in dims))
    require(n > 0, "a product of no numbers")
    rows = g.reshape(g.permute(a, [*rest, *dims]), (*(a.shape[i] for i in rest), n))
    while n > 1:
        half = n // 2
        product = ar.binary(g, "mul", g.slice(rows, -1, 0, half), g.slice(rows, -1, half, 2 * half))
        rows = product if n % 2 == 0 else g.cat([product, g.slice(rows, -1, n - 1, n)], len(rest))
        n = rows.shape[-1]
    return g.reshape(rows, call.shape())


@lowering("cumprod")
def cumprod(call: Any, g: Graph, a: Value, dim: int, dtype: Any = None) -> Value:
    """Products of stretches of 2, 4, 8, ... numbers that end at each."""
    a = _summed(call, g, a, dtype)
    if a.shape == ():
        return a
    rows, back = ar.rows_of(g, a, dim)
    n, at, done = rows.shape[-1], len(rows.shape) - 1, 1
    while done < n:
        longer = ar.binary(g, "mul", g.slice(rows, at, done, n), g.slice(rows, at, 0, n - done))
        rows = g.cat([g.slice(rows, at, 0, done), longer], at)
        done *= 2
    return back(rows)


@lowering("logcumsumexp", "_logcumsumexp")
def logcumsumexp(call: Any, g: Graph, a: Value, dim: int) -> Value:
    return a if a.shape == () else ar.unary(g, "log", cumsum(call, g, ar.unary(g, "exp", a), dim))


@lowering("_cdist_forward")
def cdist(call: Any, g: Graph, a: Value, b: Value, p: float, mode: Any = None) -> Value:
    """Norms of the differences of each row with each."""
    return norm(call, g, _differences(g, a, b), p, [-1])


def _differences(g: Graph, a: Value, b: Value) -> Value:
    return ar.binary(
        g,
        "sub",
        g.reshape(a, (*a.shape[:-1], 1, a.shape[-1])),
        g.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:])),
    )


@lowering("_cdist_backward")
def cdist_backward(
    call: Any, g: Graph, grad: Value, a: Value, b: Value, p: float, distances: Value
) -> Value:
    """The gradient of the first operand.

    Where the distance is 0 there is none, nor from differences that are 0 where p is below 2.
    """
    d = _differences(g, a, b)
    grad, distances = (g.reshape(v, (*v.shape, 1)) for v in (grad, distances))
    if p == 0:
        return Filled(0, call.shape())
    signs = ar.binary(g, "sub", ar.step(g, d), ar.step(g, ar.negate(g, d)))
    absolute = ar.absolute(g, d)
    if p == 1:
        each = ar.binary(g, "mul", grad, signs)
    elif math.isinf(p):  # where a difference is the greatest
        least = ar.binary(g, "sub", 1, ar.step(g, ar.binary(g, "sub", distances, absolute)))
        each = ar.binary(g, "mul", grad, ar.binary(g, "mul", signs, least))
    else:
        slope = d if p == 2 else ar.binary(g, "mul", signs, ar.power(g, absolute, p - 1))
        if p < 1:
            slope = choose(g, ar.step(g, absolute), slope, Filled(0, ()), d.shape)
        scale = distances if p == 2 else ar.power(g, distances, p - 1)
        each = choose(
            g,
            ar.step(g, distances),
            ar.binary(g, "mul", grad, ar.binary(g, "div", slope, scale)),
            Filled(0, ()),
            d.shape,
        )
    total = ar.reduce(g, "sum", each, [-2])
    lead = len(total.shape) - len(call.shape())
    total = ar.reduce(g, "sum", total, list(range(lead))) if lead else total
    over = [i for i, (n, m) in enumerate(zip(total.shape, call.shape())) if n != m]
    return ar.reduce(g, "sum", total, over, True) if over else total


@lowering("cumsum")
def cumsum(call: Any, g: Graph, a: Value, dim: int, dtype: Any = None) -> Value:
    """Along a dimension: the product with a triangle of ones."""
    a = ar.numbers(g, _summed(call, g, a, dtype))
    d = dim % len(a.shape)
    n = a.shape[d]
    require(n <= 4096, "a running sum along a dimension of more than 4096")
    order = [i for i in range(len(a.shape)) if i != d] + [d]
    g.definedness.both_have_values(a)
    r = ar.matmul(g, g.permute(a, order), Known(torch.ones(n, n, dtype=torch.float64).triu()))
    back = [order.index(i) for i in range(len(order))]
    return g.permute(r, back)
