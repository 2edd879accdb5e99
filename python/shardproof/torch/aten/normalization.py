# SPDX-License-Identifier: Apache-2.0
"""Layer normalisation, as its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..terms import arithmetic as ar
from ..terms.graph import Graph
from ..terms.values import Value
from .reductions import moments
from .table import lowering


def _dims(x: Value, shape: list[int]) -> list[int]:
    return list(range(len(x.shape) - len(shape), len(x.shape)))


@lowering("native_layer_norm")
def layer_norm(
    call: Any, g: Graph, x: Value, shape: list[int], w: Value | None, b: Value | None, eps: float
) -> list[Value]:
    dims = _dims(x, shape)
    v, m = moments(g, x, dims, 0, True)
    rstd = ar.unary(g, "rsqrt", ar.binary(g, "add", v, eps))
    y = ar.binary(g, "mul", ar.binary(g, "sub", x, m), rstd)
    if w is not None:
        y = ar.binary(g, "mul", y, w)
    if b is not None:
        y = ar.binary(g, "add", y, b)
    return [y, m, rstd]


def _sum_to(g: Graph, x: Value, shape: tuple[int, ...]) -> Value:
    lead = len(x.shape) - len(shape)
    return g.reshape(ar.reduce(g, "sum", x, list(range(lead))) if lead else x, shape)


@lowering("native_layer_norm_backward")
def layer_norm_backward(
    call: Any,
    g: Graph,
    grad: Value,
    x: Value,
    shape: list[int],
    mean: Value,
    rstd: Value,
    w: Value | None,
    b: Value | None,
    mask: list[bool],
) -> list[Value | None]:
    dims = _dims(x, shape)
    kept = tuple(1 if i in dims else n for i, n in enumerate(x.shape))
    mean, rstd = g.reshape(mean, kept), g.reshape(rstd, kept)
    xhat = ar.binary(g, "mul", ar.binary(g, "sub", x, mean), rstd)
    gw = ar.binary(g, "mul", grad, w) if w is not None else grad
    inner = ar.binary(g, "sub", gw, ar.reduce(g, "mean", gw, dims, True))
    inner = ar.binary(
        g,
        "sub",
        inner,
        ar.binary(g, "mul", xhat, ar.reduce(g, "mean", ar.binary(g, "mul", gw, xhat), dims, True)),
    )
    results: list[Value | None] = []
    makers: tuple[Callable[[], Value], ...] = (
        lambda: ar.binary(g, "mul", inner, rstd),
        lambda: _sum_to(g, ar.binary(g, "mul", grad, xhat), tuple(shape)),
        lambda: _sum_to(g, grad, tuple(shape)),
    )
    for wanted, make in zip(mask, makers):
        if wanted:
            results.append(make())
    return results


@lowering("_weight_norm_interface_backward")
def weight_norm_backward(
    call: Any, g: Graph, grad: Value, v: Value, gain: Value, norms: Value, dim: int
) -> list[Value]:
    """Of w = gain v / |v|, the norm over all dimensions but one."""
    dims = [d for d in range(len(v.shape)) if d != dim % len(v.shape)]
    unit = ar.binary(g, "div", v, norms)
    along = ar.reduce(g, "sum", ar.binary(g, "mul", grad, unit), dims, True)
    dv = ar.binary(
        g,
        "mul",
        ar.binary(g, "div", gain, norms),
        ar.binary(g, "sub", grad, ar.binary(g, "mul", unit, along)),
    )
    return [dv, g.reshape(along, gain.shape)]
