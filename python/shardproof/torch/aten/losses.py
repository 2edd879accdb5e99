# SPDX-License-Identifier: Apache-2.0
"""Losses."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms import assumptions, tables
from ..terms.constants import number
from ..terms.graph import Graph
from ..terms.integer_inputs import IntegerOrigins
from ..terms.labels import note
from ..terms.permutations import permuted
from ..terms.values import Filled, Hidden, Known, Named, Permuted, Replaced, Table, Value, numel
from .table import lowering, require, scalar

NONE, MEAN, SUM = 0, 1, 2


@lowering("mse_loss")
def mse(call: Any, g: Graph, a: Value, b: Value, reduction: int = MEAN) -> Value:
    d = ar.binary(g, "sub", a, b)
    square = ar.binary(g, "mul", d, d)
    return (
        square
        if reduction == NONE
        else ar.reduce(g, "mean" if reduction == MEAN else "sum", square)
    )


@lowering("mse_loss_backward")
def mse_backward(call: Any, g: Graph, grad: Value, a: Value, b: Value, reduction: int) -> Value:
    d = ar.binary(g, "mul", ar.binary(g, "sub", a, b), 2)
    if reduction == MEAN:
        d = ar.binary(g, "div", d, numel(d.shape))
    return ar.binary(g, "mul", d, grad)


@dataclasses.dataclass
class _Labels:
    """Labels of a loss.

    hot: [..., classes]; the rows of labels that do not count are zero. keep: 1 where a label
    counts; None: all count. ids: the labels whose indicators hot sums, if it does. count: how many
    count; None: it depends on data.
    """

    hot: Value
    keep: Value | None
    ids: Named | None
    count: float | None


def _labels(g: Graph, labels: Value, classes: int, ignore: int | None) -> _Labels:
    """Labels as one-hot rows.

    Those that are `ignore` (None: no number) do not count; the others are classes.
    """
    if isinstance(labels, Permuted):
        rows = _labels(g, labels.source, classes, ignore)
        kept = None if rows.keep is None else permuted(g, rows.keep, labels.by)
        return _Labels(permuted(g, rows.hot, labels.by), kept, None, rows.count)
    tables.note_classes(g, labels, classes)
    if ignore is not None:
        note(g, labels, ignore)
    keep: Value | None = None
    if isinstance(labels, Replaced):
        require(
            labels.other == ignore,
            "labels that are replaced by a number that is not the ignored one",
        )
        keep, labels = labels.keep, labels.source
        tables.note_classes(g, labels, classes)
    if (
        isinstance(labels, Known)
        and ignore is not None
        and bool((counts := labels.data != ignore).logical_not().any())
    ):
        keep = _both(g, keep, Known(counts.double()))  # the numbers determine which count
        labels = Known(torch.where(counts, labels.data, 0))
    g.assume(assumptions.CLASSES)
    ignore = -1 if ignore is None else ignore  # which is no class
    if isinstance(labels, Table):
        counts = labels.entries != ignore
        positions = torch.arange(len(labels.entries)) + labels.low
        if labels.low == 0 and not bool((labels.entries == positions)[counts].all()):
            return _looked_up(g, labels, classes, counts)
        require(labels.low == 0, "labels that were computed from others")
        ids = g.named(g.expand(labels.source, labels.shape))
        if not bool(counts.all()):
            keep = _both(g, keep, Table(labels.source, counts.double(), labels.low, labels.shape))
    else:
        ids = g.named(labels)
        require(ids.kind == "int", "labels that are no integers")
        of = g.integers.origins_of(ids) or IntegerOrigins()
        require(of.least >= 0, "labels beside several numbers of which some are no classes")
        if (
            0
            <= ignore
            < max(classes, of.most + 1, *(g.integers.ranges.get(name, 0) for name in of.origins))
        ):
            ignored = ar.reduce(g, "sum", tables.one_hot(g, ids, ignore, ignore + 1), [-1])
            keep = _both(g, keep, ar.binary(g, "sub", 1, ignored))
    hot: Value = tables.one_hot(g, ids, 0, classes)
    count: float | None = numel(ids.shape)
    if keep is not None:
        count = number(float(keep.data.sum())) if isinstance(keep, Known) else None
        keep = _repeated(g, keep) if isinstance(keep, Known) else g.named(keep)
        hot = ar.binary(g, "mul", hot, g.reshape(keep, keep.shape + (1,)))
    return _Labels(hot, keep, ids, count)


def _looked_up(g: Graph, labels: Table, classes: int, counts: torch.Tensor) -> _Labels:
    """Labels that are looked up in a table of constants, such as coarser classes."""
    entries = torch.where(counts, labels.entries, 0).to(torch.int64)
    require(
        int(entries.min()) >= 0 and int(entries.max()) < classes,
        "labels that were computed from others, of which some are no classes",
    )
    hot = torch.nn.functional.one_hot(entries, classes).double() * counts.double()[:, None]
    ids = g.named(g.expand(labels.source, labels.shape))
    rows = g.one("embedding", [ids, g.named(Known(hot))], labels.shape + (classes,))
    if bool(counts.all()):
        return _Labels(rows, None, None, numel(labels.shape))
    keep = g.named(Table(labels.source, counts.double(), labels.low, labels.shape))
    return _Labels(rows, keep, None, None)


def _repeated(g: Graph, keep: Known) -> Value:
    """The shortest row of which these ones and zeros are repetitions.

    That is the one of each sequence of a batch, whichever part of the batch there is.
    """
    flat = keep.data.flatten()
    n = next(
        n
        for n in range(1, len(flat) + 1)
        if len(flat) % n == 0 and torch.equal(flat[n:], flat[:-n])
    )
    return g.reshape(g.expand(g.named(Known(flat[:n].clone())), (len(flat) // n, n)), keep.shape)


def _both(g: Graph, a: Value | None, b: Value) -> Value:
    return b if a is None else ar.binary(g, "mul", a, b)


def _weights(g: Graph, labels: _Labels, weight: Value | None) -> Value | None:
    """What each row counts; None: 1."""
    return (
        ar.reduce(g, "sum", ar.binary(g, "mul", labels.hot, weight), [-1])
        if weight is not None
        else labels.keep
    )


def _count(g: Graph, labels: _Labels, weight: Value | None) -> Value:
    """What all rows count together."""
    if weight is None and labels.count is not None:
        return Filled(labels.count, ())
    w = _weights(g, labels, weight)
    assert w is not None
    return ar.reduce(g, "sum", w)


def _seen_classes(x: Value) -> int:
    """How many classes there are without those at the end whose scores are minus infinity, as of
    rows with which a vocabulary is padded: no label names one of these.
    """
    if not isinstance(x, Hidden):
        return x.shape[-1]
    require(isinstance(x.keep, Known), "scores that data masks, in a loss")
    assert isinstance(x.keep, Known)
    seen = (x.keep.data != 0).expand(x.shape).reshape(-1, x.shape[-1])
    classes = int(seen[0].sum())
    prefix = torch.arange(x.shape[-1]) < classes
    require(bool((seen == prefix).all()), "scores some of which are masked, in a loss")
    return classes


def _classes_last(g: Graph, x: Value) -> Value:
    """Of images [batch, classes, height, width] each point is a row."""
    require(len(x.shape) in (1, 2, 4), "a loss of rows of another shape")
    return g.permute(x, (0, 2, 3, 1)) if len(x.shape) == 4 else x


@lowering("nll_loss_forward", "nll_loss2d_forward")
def nll(
    call: Any, g: Graph, x: Value, labels: Value, weight: Value | None, reduction: int, ignore: int
) -> list[Value]:
    x = _classes_last(g, x)
    classes = _seen_classes(x)
    if isinstance(x, Hidden):
        x = ar.seen(g.slice(x, len(x.shape) - 1, 0, classes))
    n = _labels(g, labels, classes, ignore)
    loss = ar.negate(g, ar.taken(g, x, n.hot, [-1]))
    if isinstance(loss, Named) and n.ids is not None:
        loss.of_class = n.ids
    if weight is not None:
        loss = ar.binary(
            g, "mul", loss, ar.reduce(g, "sum", ar.binary(g, "mul", n.hot, weight), [-1])
        )
    w = _weights(g, n, weight)
    if reduction == NONE:
        return [loss, Filled(0, ())]
    count = _count(g, n, weight)
    if w is None:
        return [ar.reduce(g, "mean" if reduction == MEAN else "sum", loss), count]
    total = ar.reduce(g, "sum", loss)
    return [total if reduction == SUM else ar.binary(g, "div", total, count), count]


@lowering("multi_margin_loss_backward")
def multi_margin_backward(
    call: Any,
    g: Graph,
    grad: Value,
    x: Value,
    labels: Value,
    p: Any,
    margin: Any,
    weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:
    """Of the mean over the classes of max(0, margin - x_label + x)^p, the label's own left out."""
    shape = x.shape
    x, labels = (
        g.reshape(x, (numel(shape[:-1]), shape[-1])),
        g.reshape(labels, (numel(shape[:-1]),)),
    )
    hot = _labels(g, labels, shape[-1], None).hot
    over = ar.binary(
        g,
        "add",
        ar.binary(g, "sub", x, ar.reduce(g, "sum", ar.binary(g, "mul", x, hot), [-1], True)),
        scalar(margin),
    )
    each = ar.binary(
        g,
        "mul",
        ar.step(g, over) if scalar(p) == 1 else ar.binary(g, "mul", ar.relu(g, over), 2),
        ar.binary(g, "sub", 1, hot),
    )
    if weight is not None:
        each = ar.binary(
            g, "mul", each, ar.reduce(g, "sum", ar.binary(g, "mul", hot, weight), [-1], True)
        )
    each = ar.binary(
        g, "sub", each, ar.binary(g, "mul", hot, ar.reduce(g, "sum", each, [-1], True))
    )
    each = ar.binary(g, "div", each, shape[-1] * (x.shape[0] if reduction == MEAN else 1))
    return g.reshape(
        ar.binary(g, "mul", each, g.reshape(grad, (*grad.shape, 1)) if grad.shape else grad), shape
    )


@lowering("nll_loss_backward", "nll_loss2d_backward")
def nll_backward(
    call: Any,
    g: Graph,
    grad: Value,
    x: Value,
    labels: Value,
    weight: Value | None,
    reduction: int,
    ignore: int,
    total: Value,
) -> Value:
    image = len(x.shape) == 4
    x = _classes_last(g, x)
    classes = _seen_classes(x)
    n = _labels(g, labels, classes, ignore)
    row: Value = g.reshape(grad, grad.shape + (1,)) if reduction == NONE and grad.shape else grad
    if weight is not None:
        w = ar.reduce(g, "sum", ar.binary(g, "mul", n.hot, weight), [-1])
        row = ar.binary(g, "mul", row, g.reshape(w, n.hot.shape[:-1] + (1,)))
    if reduction == MEAN:
        row = ar.binary(g, "div", row, _count(g, n, weight))
    row = ar.negate(g, row)
    result = ar.binary(g, "mul", n.hot, row)
    # each row of the one-hot matrix sums to 1 (to 0 where it does not count): labels are classes
    if isinstance(result, Named) and result.row_sums is None:
        sums = (
            row
            if n.keep is None
            else ar.binary(g, "mul", row, g.reshape(n.keep, n.hot.shape[:-1] + (1,)))
        )
        result.row_sums = g.expand(sums, n.hot.shape[:-1] + (1,))
    if classes < x.shape[-1]:
        row_sums = result.row_sums if isinstance(result, Named) else None
        more = Filled(0, (*x.shape[:-1], x.shape[-1] - classes))
        result = g.cat([result, more], len(x.shape) - 1)
        if isinstance(result, Named):
            result.row_sums = row_sums
    return g.permute(result, (0, 3, 1, 2)) if image else result
