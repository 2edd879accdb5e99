# SPDX-License-Identifier: Apache-2.0
"""The values of tensors while a step is recorded, their graph of operators, and arithmetic."""

from . import (
    indicators,  # noqa: F401  # enters how tables are written into graph.WRITERS
    permutations,  # noqa: F401  # the same of permutations
)
