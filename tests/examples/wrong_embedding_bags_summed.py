# SPDX-License-Identifier: Apache-2.0
"""The ranks add up what one device averages."""

import right_embedding_bags

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "0"


def step(world):
    return right_embedding_bags.step(world, mode="sum")
