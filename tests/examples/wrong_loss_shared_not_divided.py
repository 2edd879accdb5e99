# SPDX-License-Identifier: Apache-2.0
"""Two pipeline stages share the loss during backward.

A microbatch's loss is not divided by their number.
"""

import right_loss_shared_during_backward

MESH, EXPECT, NAMES = {"pp": 2}, "NOT EQUIVALENT", "right_loss_shared_during_backward.py"


def step(world):
    right_loss_shared_during_backward.step(world, divide=False)
