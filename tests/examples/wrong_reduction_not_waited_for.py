# SPDX-License-Identifier: Apache-2.0
"""Gradients are divided while they are still being reduced.

On a busy machine the reduction may have ended in time, so numbers alone show nothing.
"""

import time

import right_asynchronous_reduction

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_asynchronous_reduction.py"
RACE = True  # real processes may be right


def step(world):
    if world.rank == 1:
        # This rank is late, as real ones are now and then: the other one's gradients are not
        # reduced yet when it divides them.
        time.sleep(0.5)
    return right_asynchronous_reduction.step(world, waits=False)
