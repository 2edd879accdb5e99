# SPDX-License-Identifier: Apache-2.0
"""LAMB's trust ratio from the norms of a rank's own parts."""

import right_lamb_fsdp

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_lamb_fsdp.py"


def step(world):
    return right_lamb_fsdp.step(world, of_all=False)
