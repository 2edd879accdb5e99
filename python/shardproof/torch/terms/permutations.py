# SPDX-License-Identifier: Apache-2.0
"""Random permutations of a batch (`torch.randperm`), as mixup has them: `x[perm]`, `y[perm]`.

A rank permutes its own samples. What it draws is an input, and so is what each of the others
draws. The single device has the batches of all ranks one after another, and its permutation is
taken to be theirs: each permutes its own part (`parts`). Labels that are permuted stay what they
are, and are permuted as one-hot rows.
"""

from __future__ import annotations

from typing import NoReturn

from .graph import WRITERS, Graph
from .values import Filled, Known, Named, Permutation, Permuted, Unsupported, Value, numel


def permutation_of(g: Graph, x: Value, index: Value | None) -> Permutation | None:
    """An index as a permutation of the rows of x, where these are integers or the permutation is of
    parts. Other rows are looked up as by any index.
    """
    if isinstance(index, Permutation):
        return index
    if (
        isinstance(index, Named)
        and index.name in g.integers.permutations
        and getattr(x, "kind", "") == "int"
        and not isinstance(x, (Known, Filled))
        and x.shape[:1] == index.shape
    ):
        return Permutation(g.named(g.reshape(index, (1, *index.shape))))
    return None


def permuted(g: Graph, x: Value, by: Permutation) -> Value:
    """x[by]. Raises Unsupported."""
    if x.shape[:1] != by.shape:
        raise Unsupported("a permutation that is not of all rows of a tensor")
    return Permuted(x, by) if getattr(x, "kind", "") == "int" else _rows(g, x, by)


def _rows(g: Graph, x: Value, by: Permutation) -> Value:
    rows = g.reshape(x, (x.shape[0], numel(x.shape[1:])))
    count, size = by.parts.shape
    made = []
    for part in range(count):
        index = g.reshape(g.slice(by.parts, 0, part, part + 1), (size,))
        own = g.named(g.slice(rows, 0, part * size, (part + 1) * size))
        made.append(g.one("embedding", [index, own], own.shape))
    return g.reshape(made[0] if count == 1 else g.cat(made, 0), x.shape)


def _refused(g: Graph, v: Value) -> NoReturn:
    raise Unsupported("a random permutation is used other than as an index of all rows")


WRITERS[Permutation] = _refused
WRITERS[Permuted] = lambda g, v: _rows(g, g.named(v.source), v.by)
