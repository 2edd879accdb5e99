# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention, as its definition."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms import assumptions
from ..terms.arithmetic import masked
from ..terms.causal_masks import causal
from ..terms.constants import FOLD_LIMIT
from ..terms.graph import Graph
from ..terms.selection import choose
from ..terms.values import Filled, Hidden, Known, Value
from .table import lowering, require


def _scores(
    g: Graph, q: Value, k: Value, is_causal: bool, mask: Value | None, scale: float | None
) -> tuple[Value, Any]:
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = ar.binary(g, "mul", ar.matmul(g, q, ar.transposed(g, k)), factor)
    if is_causal:
        rows, columns = s.shape[-2:]
        s = g.one("apply_mask", [s, causal(g, rows, columns, 0)], s.shape)
    if mask is not None:
        if isinstance(mask, (Known, Filled)):
            data = g.data(mask)
            if data.dtype == torch.bool:
                return masked(g, s, ~data, s.shape), factor
            hidden = torch.isinf(data) & (data < 0)
            rest = torch.where(hidden, torch.zeros_like(data), data)
            if bool((rest != 0).any()):
                s = ar.binary(g, "add", s, Known(rest))
            return masked(g, s, hidden, s.shape), factor
        if getattr(mask, "kind", "real") == "bool":
            return choose(g, mask, s, Filled(-math.inf, ()), s.shape), factor
        s = ar.binary(g, "add", s, mask)
    return s, factor


def _repeated(g: Graph, k: Value, heads: int) -> Value:
    """Grouped queries: each key head for several query heads."""
    if len(k.shape) != 4 or k.shape[1] == heads:
        return k
    b, h, s, d = k.shape
    n = heads // h
    return g.reshape(g.expand(g.reshape(k, (b, h, 1, s, d)), (b, h, n, s, d)), (b, heads, s, d))


def _grouped(g: Graph, grad: Value, heads: int) -> Value:
    if len(grad.shape) != 4 or grad.shape[1] == heads:
        return grad
    b, h, s, d = grad.shape
    return ar.reduce(g, "sum", g.reshape(grad, (b, heads, h // heads, s, d)), [2])


def _logsumexp(g: Graph, s: Value) -> Value:
    if isinstance(s, Hidden):
        return ar.unary(g, "log", ar.reduce(g, "sum", ar.exp_of_hidden(g, s), [-1]))
    return g.one("logsumexp", [s], s.shape[:-1], {"dim": len(s.shape) - 1})


def _weights(
    g: Graph,
    q: Value,
    k: Value,
    is_causal: bool,
    mask: Value | None,
    scale: float | None,
    lse: Value,
) -> Value:
    """exp(scores - lse), 0 where attention does not see.

    The lse of the backward need not be of these keys alone: ring attention gives that of all.
    """
    total = ar.of_logarithm(g, lse)
    if total is not None:  # which the sums of exponentials of these scores are among
        s, _ = _scores(g, q, k, is_causal, mask, scale)
        return ar.binary(g, "div", ar.unary(g, "exp", s), g.reshape(total, (*lse.shape, 1)))
    s, _ = _scores(g, q, k, False, None, scale)
    keep = torch.ones(s.shape[-2:], dtype=torch.bool)
    require(
        keep.numel() <= FOLD_LIMIT or not is_causal and mask is None,
        "a long causal mask, with a normalisation that is not its own",
    )
    if is_causal:
        keep = keep.tril()
    if isinstance(mask, (Known, Filled)):
        data = g.data(mask)
        hidden = ~data if data.dtype == torch.bool else torch.isinf(data) & (data < 0)
        if data.dtype != torch.bool:
            s = ar.binary(g, "add", s, Known(torch.where(hidden, torch.zeros_like(data), data)))
        keep = keep & ~hidden
    elif mask is not None:
        require(
            getattr(mask, "kind", "real") == "real",
            "a mask that depends on data, with a normalisation that is not its own",
        )
        s = ar.binary(g, "add", s, mask)
    p = ar.unary(g, "exp", ar.binary(g, "sub", s, g.reshape(lse, (*lse.shape, 1))))
    return (
        p
        if bool(keep.all())
        else ar.binary(
            g,
            "mul",
            p,
            Known(keep.double().reshape((1,) * (len(s.shape) - keep.dim()) + tuple(keep.shape))),
        )
    )


def _softmax(g: Graph, s: Value, is_causal: bool, mask: Value | None) -> Value:
    """Zeros where all of a row is masked, as ATen's kernels and its `_safe_softmax` have it."""
    p = ar.softmax(g, s, -1)
    if isinstance(s, Hidden) and not isinstance(s.keep, (Filled, Known)):
        g.assume(assumptions.EACH_ROW_SEEN)
    if not isinstance(mask, (Known, Filled)):
        return p
    data = g.data(mask)
    seen = data if data.dtype == torch.bool else ~(torch.isinf(data) & (data < 0))
    rows, columns = s.shape[-2:]
    if is_causal:
        seen = seen & torch.ones(rows, columns, dtype=torch.bool).tril()
    seen = seen.expand(torch.broadcast_shapes(seen.shape, (1, 1))).any(-1, True)
    return p if bool(seen.all()) else ar.one_of(g, Known(seen), p, Filled(0, ()), s.shape)


def _same(g: Graph, a: Value, b: Value) -> bool:
    return g.named(a).name == g.named(b).name


@lowering("_scaled_dot_product_flash_attention_for_cpu")
def forward(
    call: Any,
    g: Graph,
    q: Value,
    k: Value,
    v: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> list[Value]:
    require(dropout_p == 0, "dropout in attention")
    k, v = _repeated(g, k, q.shape[1]), _repeated(g, v, q.shape[1])
    s, _ = _scores(g, q, k, is_causal, attn_mask, scale)
    return [ar.matmul(g, _softmax(g, s, is_causal, attn_mask), v), _logsumexp(g, s)]


@lowering("_scaled_dot_product_flash_attention_for_cpu_backward")
def backward(
    call: Any,
    g: Graph,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    out: Value,
    lse: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> list[Value]:
    require(dropout_p == 0, "dropout in attention")
    heads = k.shape[1]
    k, v = _repeated(g, k, q.shape[1]), _repeated(g, v, q.shape[1])
    s, factor = _scores(g, q, k, is_causal, attn_mask, scale)
    p = _softmax(g, s, is_causal, attn_mask)
    dp = ar.matmul(g, grad, ar.transposed(g, v))
    if _same(g, lse, _logsumexp(g, s)) and _same(g, out, ar.matmul(g, p, v)):
        ds = ar.softmax_gradient(g, dp, p, -1)
    else:
        # not what the forward of these operands gave: ATen's kernel normalises by what it is given
        p = _weights(g, q, k, is_causal, attn_mask, scale, lse)
        ds = ar.binary(
            g,
            "mul",
            p,
            ar.binary(
                g, "sub", dp, ar.reduce(g, "sum", ar.binary(g, "mul", grad, out), [-1], True)
            ),
        )
    dq = ar.binary(g, "mul", ar.matmul(g, ds, k), factor)
    dk = ar.binary(g, "mul", ar.matmul(g, ar.transposed(g, ds), q), factor)
    dv = ar.matmul(g, ar.transposed(g, p), grad)
    return [dq, _grouped(g, dk, heads), _grouped(g, dv, heads)]
