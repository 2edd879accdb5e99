# SPDX-License-Identifier: Apache-2.0
"""Gradients are averaged over tp, whose ranks share a batch, not over dp.

B16: the wrong process group.
"""

import right_ddp_by_hand
from right_ddp_by_hand import single  # noqa: F401

MESH, EXPECT, NAMES = {"dp": 2, "tp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_ddp_by_hand.step(world, axis="tp")
