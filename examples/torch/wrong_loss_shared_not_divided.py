# SPDX-License-Identifier: Apache-2.0
"""Two pipeline stages that share the loss during backward: a microbatch's is not divided by their number."""

import right_loss_shared_during_backward

MESH, EXPECT, NAMES = {"pp": 2}, "NOT EQUIVALENT", "right_loss_shared_during_backward.py"


def step(world):
    right_loss_shared_during_backward.step(world, divide=False)
