# SPDX-License-Identifier: Apache-2.0
"""DiLoCo with two inner steps between outer ones is another algorithm than the single device's two steps of the whole batch: the second local gradient is taken at weights of the rank's own."""

import right_diloco_outer_step as diloco

MESH, EXPECT, NAMES = {"dp": 4}, "NOT EQUIVALENT", "right_diloco_outer_step.py"


def step(world):
    return diloco.step(world, inner_steps=2)
