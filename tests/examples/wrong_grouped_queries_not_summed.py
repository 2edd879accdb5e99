# SPDX-License-Identifier: Apache-2.0
"""Each rank keeps what its own query heads say about the shared key and value head."""

import right_grouped_queries_replicated

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "kv"


def step(world):
    return right_grouped_queries_replicated.step(world, summed=False)
