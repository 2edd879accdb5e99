# SPDX-License-Identifier: Apache-2.0
"""Experts have the gradients of the tokens of all ranks, each of a local mean: they are too large by the number of ranks."""

import right_moe_all_to_all

MESH, EXPECT, NAMES = {"ep": 2}, "NOT EQUIVALENT", "right_moe_all_to_all.py"


def step(world):
    return right_moe_all_to_all.step(world, divide=False)
