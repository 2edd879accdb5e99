# SPDX-License-Identifier: Apache-2.0
"""The hook copies into the buffer what it should add: only the last microbatch counts."""

import right_main_gradients

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_main_gradients.step(world, add=False)
