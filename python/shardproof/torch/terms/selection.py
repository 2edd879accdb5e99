# SPDX-License-Identifier: Apache-2.0
"""Choices between two values by a mask, and comparisons.

A comparison is 1 where it holds and 0 elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from . import arithmetic as ar
from . import tables
from .graph import Graph
from .row_counts import is_mark
from .values import Filled, Hidden, Known, Named, Replaced, Table, Value


# ---- comparisons: tables of classes stay tables; of reals, 1 where they hold ----
def greater(g: Graph, a: Any, b: Any) -> Value:
    return ar.step(g, ar.binary(g, "sub", a, b))


def nonzero(g: Graph, a: Value) -> Value:
    """1 where a is not 0. What is 0 or 1 is itself."""
    if isinstance(a, Named) and (a.kind == "bool" or is_mark(g, a.name)):
        return a
    return ar.binary(g, "add", ar.step(g, a), ar.step(g, ar.negate(g, a)))


def complement(g: Graph, m: Value) -> Value:
    return ar.binary(g, "sub", 1, as_numbers(m))


def as_numbers(m: Value) -> Value:
    """A mask as ones and zeros."""
    if isinstance(m, Known):
        return Known(m.data.double())
    return (
        Table(m.source, m.entries.double(), m.low, m.shape)
        if isinstance(m, Table) and m.entries.dtype == torch.bool
        else m
    )


def at_least(g: Graph, a: Any, b: Any) -> Value:
    return complement(g, greater(g, b, a))


def choose(g: Graph, mask: Value, a: Value, b: Value, shape: tuple[int, ...]) -> Value:
    """a where the mask holds, else b."""
    if isinstance(mask, Filled):
        return g.expand(a if mask.fill else b, shape)
    t = tables.apply(g, lambda m, x, y: torch.where(m.bool(), x, y), [mask, a, b], shape)
    if t is not None:
        return t
    for x, y, flip in ((a, b, False), (b, a, True)):
        if isinstance(y, Filled) and math.isinf(y.fill) and y.fill < 0 and isinstance(mask, Known):
            hidden = mask.data.bool() if flip else ~mask.data.bool()
            return ar.masked(g, x, hidden, shape)
        if isinstance(y, Filled) and y.fill == -math.inf and not isinstance(x, Hidden):
            keep = complement(g, mask) if flip else mask
            return Hidden(
                g.expand(x, shape),
                g.reshape(keep, (1,) * (len(shape) - len(keep.shape)) + keep.shape),
            )
    ar.check(mask, a, b)
    condition = mask.once("condition", torch.Tensor.bool) if isinstance(mask, Known) else mask
    mask = as_numbers(mask)
    for x, y, flip in ((a, b, False), (b, a, True)):
        if isinstance(x, Replaced) and isinstance(y, Filled) and y.kind == "int":
            keep = g.expand(complement(g, mask) if flip else mask, shape)
            if (
                y.fill == 0
                and x.zeros
                and ar.is_constant(keep)
                and ar.is_constant(x.keep)
                and torch.equal(g.data(keep) != 0, g.data(x.keep) != 0)
            ):
                return g.expand(x.source, shape)
            if y.fill == x.other:
                return Replaced(
                    g.expand(x.source, shape),
                    ar.binary(g, "mul", g.expand(x.keep, shape), keep),
                    x.other,
                )
        if (
            isinstance(y, Filled)
            and y.kind == "int"
            and getattr(x, "kind", "") == "int"
            and isinstance(x, (Known, Named, Table, Replaced))
        ):
            return Replaced(
                g.expand(x, shape),
                g.expand(complement(g, mask) if flip else mask, shape),
                int(y.fill),
            )
    a, b = ar.numbers(g, a), ar.numbers(g, b)
    if not (g.definedness.has_a_value(a) and g.definedness.has_a_value(b)) and ar.are_real(a, b):
        one = ar.one_of(g, mask if isinstance(condition, Table) else condition, a, b, shape)
        if isinstance(b, Filled) and b.fill == 0:
            ar.note_masked_rows(g, one, a, mask)
        elif isinstance(a, Filled) and a.fill == 0 and isinstance(mask, Table):
            ar.note_masked_rows(g, one, b, complement(g, mask))
        return one
    # Both are numbers, so that products with ones and zeros are the same, of which more is known.
    g.definedness.both_have_values(a, b)
    if isinstance(b, Filled) and b.fill == 0:
        return g.expand(ar.binary(g, "mul", a, mask), shape)
    if isinstance(a, Filled) and a.fill == 0:
        return g.expand(ar.binary(g, "mul", b, complement(g, mask)), shape)
    return g.expand(
        ar.binary(
            g, "add", ar.binary(g, "mul", a, mask), ar.binary(g, "mul", b, complement(g, mask))
        ),
        shape,
    )
