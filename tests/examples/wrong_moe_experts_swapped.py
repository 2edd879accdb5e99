# SPDX-License-Identifier: Apache-2.0
"""Expert results go back in the order of computation, not in that of the tokens sent."""

import right_moe_all_to_all

MESH, EXPECT, NAMES = {"ep": 2}, "NOT EQUIVALENT", "right_moe_all_to_all.py"


def step(world):
    return right_moe_all_to_all.step(world, swapped=True)
