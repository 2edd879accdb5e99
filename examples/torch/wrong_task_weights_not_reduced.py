# SPDX-License-Identifier: Apache-2.0
"""Learned variances of two losses outside of the module that DistributedDataParallel wraps: nobody averages their gradient, and they drift apart."""

import right_task_weights

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "optimizer0.0"


def step(world):
    return right_task_weights.step(world, averaged=False)
