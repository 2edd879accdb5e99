# SPDX-License-Identifier: Apache-2.0
"""The loss of a microbatch is not divided by their number."""

import right_ddp_unused_parameters

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_ddp_unused_parameters.py"


def step(world):
    return right_ddp_unused_parameters.step(world, parts=1)
