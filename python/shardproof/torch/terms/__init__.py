# SPDX-License-Identifier: Apache-2.0
"""The values that tensors hold while a step is recorded, the graph of operators that computes them, and arithmetic on them."""

from . import indicators  # noqa: F401  # enters how tables are written into graph.WRITERS
