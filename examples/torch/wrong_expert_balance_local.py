# SPDX-License-Identifier: Apache-2.0
"""The loss for balance is made of each rank's own tokens: a mean of products, not the product of means."""

import right_expert_balance_global

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_expert_balance_global.py"


def step(world):
    return right_expert_balance_global.step(world, of_all=False)
