# SPDX-License-Identifier: Apache-2.0
"""Each rank has a seed of its own where all have to drop the same elements."""

import right_dropout_tensor_parallel

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "different random numbers"


def step(world):
    return right_dropout_tensor_parallel.step(world, seed=lambda rank: 7 + rank)
