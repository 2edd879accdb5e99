# SPDX-License-Identifier: Apache-2.0
"""ZeRO-1 by hand: the gradients are summed over dp where they must be averaged."""

import right_zero1_by_hand
import shardproof.torch as sp
from right_zero1_by_hand import single

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_zero1_by_hand.py"


def step(world):
    return right_zero1_by_hand.step(world, scale=1)


if __name__ == "__main__":
    print(sp.verify(single, step, mesh=MESH))
