"""Sums, means, extrema, norms, and products of matrices."""

from __future__ import annotations

from typing import Any

from .. import arithmetic as ar
from ..graph import Graph
from ..values import Filled, Hidden, Known, Named, Table, Value
from . import choices
from .table import line, require, scalar


@line("sum")
def total(call: Any, g: Graph, a: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return ar.reduce(g, "sum", a, dim, keepdim)


@line("mean")
def mean(call: Any, g: Graph, a: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return ar.reduce(g, "mean", a, dim, keepdim)


@line("amax")
def amax(call: Any, g: Graph, a: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return ar.reduce(g, "amax", a, dim, keepdim)


@line("amin")
def amin(call: Any, g: Graph, a: Value, dim: Any = (), keepdim: bool = False) -> Value:
    return ar.reduce(g, "amin", a, dim, keepdim)


def _extremum(op: str) -> Any:
    def f(call: Any, g: Graph, a: Value, dim: Any = None, keepdim: bool = False) -> Any:
        """Over all elements; along a dimension with the indices, where the row is short enough to choose from."""
        if isinstance(dim, Value):
            return (ar.maximum if op == "amax" else ar.minimum)(g, a, dim)
        largest = ar.reduce(g, op, a, dim, keepdim)
        if dim is None or a.shape[dim] > choices.MOST or getattr(a, "kind", "real") != "real":
            return [largest, None]
        return [largest, g.reshape(choices.chosen(g, a, 1, dim, op == "amax")[1], call.shape(1))]

    return f


line("max")(_extremum("amax"))
line("min")(_extremum("amin"))


def moments(g: Graph, a: Value, dims: Any, correction: float, keepdim: bool) -> tuple[Value, Value]:
    """(variance, mean)."""
    where = ar.reduced_dims(a.shape, dims)
    count = 1
    for d in where:
        count *= a.shape[d]
    m = ar.reduce(g, "mean", a, where, True)
    c = ar.binary(g, "sub", a, m)
    square = ar.binary(g, "mul", c, c)
    v = ar.reduce(g, "mean", square, where, True) if correction == 0 else ar.binary(g, "div", ar.reduce(g, "sum", square, where, True), count - correction)
    if not keepdim:
        shape = tuple(n for i, n in enumerate(a.shape) if i not in where)
        m, v = g.reshape(m, shape), g.reshape(v, shape)
    return v, m


@line("var_mean")
def var_mean(call: Any, g: Graph, a: Value, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = 1) -> list[Value]:
    if isinstance(unbiased, bool) and call.overload in ("default", "dim"):
        correction = int(unbiased)
    elif unbiased is not None and call.overload not in ("default", "dim"):
        keepdim = bool(unbiased)
    v, m = moments(g, a, None if isinstance(dim, bool) else dim, int(dim) if isinstance(dim, bool) else 1 if correction is None else correction, keepdim)
    return [v, m]


@line("var")
def var(call: Any, g: Graph, a: Value, *args: Any, **kwargs: Any) -> Value:
    return var_mean(call, g, a, *args, **kwargs)[0]


@line("linalg_vector_norm", "norm")
def norm(call: Any, g: Graph, a: Value, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    ord = 2 if ord is None else scalar(ord)
    if ord == 2:
        if isinstance(a, Named) and a.square is not None:
            squares: Value = a.square
        else:
            squares = ar.binary(g, "mul", a, a)
        return g.root(ar.reduce(g, "sum", squares, dim, keepdim)) if not isinstance(squares, Known) else Known(ar.reduce(g, "sum", squares, dim, keepdim).data.sqrt())  # type: ignore[attr-defined]
    absolute = ar.absolute(g, a)
    if ord == 1:
        return ar.reduce(g, "sum", absolute, dim, keepdim)
    require(ord == float("inf"), f"a norm of order {ord}")
    return ar.reduce(g, "amax", absolute, dim, keepdim)


@line("logsumexp")
def logsumexp(call: Any, g: Graph, a: Value, dim: Any, keepdim: bool = False) -> Value:
    return g.one("logsumexp", [a], call.shape(), {"dim": ar.reduced_dims(a.shape, dim), "keepdim": bool(keepdim)})


@line("_softmax")
def softmax(call: Any, g: Graph, a: Value, dim: int, half: bool) -> Value:
    return ar.softmax(g, a, dim)


@line("_safe_softmax")
def safe_softmax(call: Any, g: Graph, a: Value, dim: int, dtype: Any = None) -> Value:
    """Zeros where all of a row is masked; only scores of which something is seen in each row are followed."""
    if isinstance(a, Hidden):
        require(isinstance(a.keep, (Filled, Known)) and bool((g.data(a.keep).expand(a.shape) != 0).any(dim).all()), "rows of which all, or data says which, are masked")
    elif not (isinstance(a, Named) and a.node is not None and a.node["op"] == "apply_mask" and a.name not in g.closed and dim % len(a.shape) >= len(a.shape) - 2):
        a = g.finite(a)
    return ar.softmax(g, a, dim)


@line("_log_softmax")
def log_softmax(call: Any, g: Graph, a: Value, dim: int, half: bool) -> Value:
    return ar.softmax(g, a, dim, log=True)


@line("_softmax_backward_data")
def softmax_backward(call: Any, g: Graph, grad: Value, y: Value, dim: int, dtype: Any) -> Value:
    return ar.softmax_gradient(g, grad, y, dim)


@line("_log_softmax_backward_data")
def log_softmax_backward(call: Any, g: Graph, grad: Value, y: Value, dim: int, dtype: Any) -> Value:
    last = dim % len(y.shape) == len(y.shape) - 1
    sums = grad.row_sums if isinstance(grad, Named) and grad.row_sums is not None and last else None
    rows = g.reshape(sums, y.shape[:-1] + (1,)) if sums is not None else ar.reduce(g, "sum", grad, [dim], True)
    result = ar.binary(g, "sub", grad, ar.binary(g, "mul", ar.unary(g, "exp", y), rows))
    return result


@line("mm", "bmm", "matmul", "dot", "mv")
def matmul(call: Any, g: Graph, a: Value, b: Value) -> Value:
    return ar.matmul(g, a, b)


@line("_trilinear")
def trilinear(call: Any, g: Graph, a: Value, b: Value, c: Value, expand1: list[int], expand2: list[int], expand3: list[int], sumdim: list[int], unroll_dim: int = 1) -> Value:
    """The product of the three, each with dimensions of size 1 put in, summed over some (bilinear layers)."""
    total: Value | None = None
    for v, dims in ((a, expand1), (b, expand2), (c, expand3)):
        shape = list(v.shape)
        for d in sorted(dims):
            shape.insert(d, 1)
        v = g.reshape(v, shape)
        total = v if total is None else ar.binary(g, "mul", total, v)
    assert total is not None
    return ar.reduce(g, "sum", total, sumdim) if sumdim else total


@line("addmm", "baddbmm", "addmv", selective=True)  # times 0, what is there does not matter: it may be memory that was never written
def addmm(call: Any, g: Graph, c: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    ar.check(a, b, *([] if scalar(beta) == 0 else [c]))
    product = ar.matmul(g, a, b)
    if scalar(alpha) != 1:
        product = ar.binary(g, "mul", product, scalar(alpha))
    if scalar(beta) == 0:
        return product
    return ar.binary(g, "add", product, ar.binary(g, "mul", c, scalar(beta)) if scalar(beta) != 1 else c)


@line("cumsum")
def cumsum(call: Any, g: Graph, a: Value, dim: int, dtype: Any = None) -> Value:
    """Along a dimension: the product with a triangle of ones."""
    require(not isinstance(a, Table) and getattr(a, "kind", "real") == "real", "a running sum of integers")
    d = dim % len(a.shape)
    n = a.shape[d]
    require(n <= 4096, "a running sum along a dimension of more than 4096")
    import torch

    order = [i for i in range(len(a.shape)) if i != d] + [d]
    g.both_have_values(a)
    r = ar.matmul(g, g.permute(a, order), Known(torch.ones(n, n, dtype=torch.float64).triu()))
    back = [order.index(i) for i in range(len(order))]
    return g.permute(r, back)

