"""Losses."""

from __future__ import annotations

from typing import Any

import torch

from .. import arithmetic as ar
from .. import tables
from ..graph import Graph
from ..values import Filled, Named, Table, Unsupported, Value, numel
from .table import line, require

NONE, MEAN, SUM = 0, 1, 2


@line("mse_loss")
def mse(call: Any, g: Graph, a: Value, b: Value, reduction: int = MEAN) -> Value:
    d = ar.binary(g, "sub", a, b)
    square = ar.binary(g, "mul", d, d)
    return square if reduction == NONE else ar.reduce(g, "mean" if reduction == MEAN else "sum", square)


@line("mse_loss_backward")
def mse_backward(call: Any, g: Graph, grad: Value, a: Value, b: Value, reduction: int) -> Value:
    d = ar.binary(g, "mul", ar.binary(g, "sub", a, b), 2)
    if reduction == MEAN:
        d = ar.binary(g, "div", d, numel(d.shape))
    return ar.binary(g, "mul", d, grad)


def _labels(g: Graph, labels: Value, classes: int, ignore: int) -> Named:
    """The labels as one tensor of classes; a table that changes none of them is its source."""
    tables.note_classes(g, labels, classes)
    if isinstance(labels, Table):
        if labels.low == 0 and torch.equal(labels.entries, torch.arange(len(labels.entries))):
            return g.named(g.expand(labels.source, labels.shape))
        raise Unsupported("labels that were computed from others")
    n = g.named(labels)
    require(n.kind == "int", "labels that are no integers")
    g.assume(tables.CLASSES)
    return n


@line("nll_loss_forward", "nll_loss2d_forward")
def nll(call: Any, g: Graph, x: Value, labels: Value, weight: Value | None, reduction: int, ignore: int) -> list[Value]:
    require(len(x.shape) in (1, 2), "a loss over images")
    n = _labels(g, labels, x.shape[-1], ignore)
    hot = tables.one_hot(g, n, 0, x.shape[-1])
    loss = ar.negate(g, ar.reduce(g, "sum", ar.binary(g, "mul", x, hot), [-1]))
    if isinstance(loss, Named):
        loss.of_class = n
    if weight is None:
        count: Value = Filled(numel(n.shape), ())
        if reduction == NONE:
            return [loss, Filled(0, ())]
        return [ar.reduce(g, "mean" if reduction == MEAN else "sum", loss), count]
    w = ar.reduce(g, "sum", ar.binary(g, "mul", hot, weight), [-1])
    loss = ar.binary(g, "mul", loss, w)
    count = ar.reduce(g, "sum", w)
    if reduction == NONE:
        return [loss, Filled(0, ())]
    sum_ = ar.reduce(g, "sum", loss)
    return [sum_ if reduction == SUM else ar.binary(g, "div", sum_, count), count]


@line("nll_loss_backward")
def nll_backward(call: Any, g: Graph, grad: Value, x: Value, labels: Value, weight: Value | None, reduction: int, ignore: int, total: Value) -> Value:
    n = _labels(g, labels, x.shape[-1], ignore)
    hot = tables.one_hot(g, n, 0, x.shape[-1])
    row: Value = g.reshape(grad, grad.shape + (1,)) if reduction == NONE and grad.shape else grad
    if weight is not None:
        w = g.reshape(ar.reduce(g, "sum", ar.binary(g, "mul", hot, weight), [-1]), n.shape + (1,))
        row = ar.binary(g, "mul", row, w)
        if reduction == MEAN:
            row = ar.binary(g, "div", row, total)
    elif reduction == MEAN:
        row = ar.binary(g, "div", row, numel(n.shape))
    row = ar.negate(g, row)
    result = ar.binary(g, "mul", hot, row)
    if isinstance(result, Named) and result.row_sums is None:
        result.row_sums = g.expand(row, n.shape + (1,))  # each row of the one-hot matrix sums to 1: labels are classes
    return result

