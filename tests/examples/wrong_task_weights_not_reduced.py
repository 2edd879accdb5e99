# SPDX-License-Identifier: Apache-2.0
"""Learned variances of two losses are outside of the module that DistributedDataParallel wraps.

Nothing averages their gradient, so they drift apart.
"""

import right_task_weights

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "optimizer0.0"


def step(world):
    return right_task_weights.step(world, averaged=False)
