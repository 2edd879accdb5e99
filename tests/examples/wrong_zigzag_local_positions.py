# SPDX-License-Identifier: Apache-2.0
"""Zigzag pieces are rotated as if they were the beginning of the sequence."""

import right_zigzag_context_parallel

MESH, EXPECT, NAMES = {"cp": 2}, "NOT EQUIVALENT", "right_zigzag_context_parallel.py"


def step(world):
    return right_zigzag_context_parallel.step(world, local_positions=True)
