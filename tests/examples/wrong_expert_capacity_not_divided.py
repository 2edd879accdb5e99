# SPDX-License-Identifier: Apache-2.0
"""Gradients of experts, which have seen all ranks' tokens, are not divided."""

import right_expert_capacity
from right_expert_capacity import single  # noqa: F401

MESH, EXPECT, NAMES = {"ep": 2}, "NOT EQUIVALENT", "right_expert_capacity.py"


def step(world):
    return right_expert_capacity.step(world, divided=False)
