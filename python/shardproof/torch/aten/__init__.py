# SPDX-License-Identifier: Apache-2.0
"""The table of operators: ATen on the left, the operators of docs/operators.md on the right.

There is one module for each family of operators. Importing this package enters the lowerings of all
families into the table; `table.lookup` finds the one of an operator.
"""

from . import (
    attention,
    choices,
    fourier,
    images,
    indexing,
    layout,
    linear_algebra,
    losses,
    normalization,
    optimizer,
    pointwise,
    reductions,
    table,
)

__all__ = [
    "attention",
    "choices",
    "fourier",
    "images",
    "indexing",
    "layout",
    "linear_algebra",
    "losses",
    "normalization",
    "optimizer",
    "pointwise",
    "reductions",
    "table",
]
