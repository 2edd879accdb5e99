# SPDX-License-Identifier: Apache-2.0
"""DiLoCo with two inner steps between outer ones.

It differs from two steps of the single device on the whole batch. Each rank takes its second
gradient at its own weights.
"""

import right_diloco_outer_step as diloco

MESH, EXPECT, NAMES = {"dp": 4}, "NOT EQUIVALENT", "right_diloco_outer_step.py"


def step(world):
    return diloco.step(world, inner_steps=2)
