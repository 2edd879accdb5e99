# SPDX-License-Identifier: Apache-2.0
"""Results of experts go back in the order in which they were computed, not in that in which tokens were sent."""

import right_moe_all_to_all

MESH, EXPECT, NAMES = {"ep": 2}, "NOT EQUIVALENT", "right_moe_all_to_all.py"


def step(world):
    return right_moe_all_to_all.step(world, swapped=True)
