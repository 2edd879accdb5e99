# SPDX-License-Identifier: Apache-2.0
"""Each rank clips by the largest of its own parts of the gradients."""

import right_fsdp_infinity_norm

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_fsdp_infinity_norm.py"


def step(world):
    return right_fsdp_infinity_norm.step(world, of_all=False)
