# SPDX-License-Identifier: Apache-2.0
"""The columns that arrive are put side by side in another order than the single device's."""

import right_embedding_columns_uneven as tables

MESH, EXPECT, NAMES = {"mp": 3}, "NOT EQUIVALENT", "right_embedding_columns_uneven.py"


def step(world):
    return tables.step(world, order=(0, 2, 1))
