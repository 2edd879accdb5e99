# SPDX-License-Identifier: Apache-2.0
"""The weight of a block is the sigmoid of the difference of log-sum-exps with the wrong sign."""

import right_ring_attention_sigmoid

MESH, EXPECT, NAMES = {"cp": 2}, "NOT EQUIVALENT", "right_ring_attention_sigmoid.py"


def step(world):
    return right_ring_attention_sigmoid.step(world, sign=-1)
