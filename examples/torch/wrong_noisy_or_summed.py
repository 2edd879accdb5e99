# SPDX-License-Identifier: Apache-2.0
"""What no detector has seen is added up over the ranks, as the default reduction does, where it is a product."""

import right_noisy_or as noisy_or
from megatron_parallel import ReduceFromGroup

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "right_noisy_or.py"


def step(world):
    return noisy_or.step(world, combine=ReduceFromGroup.apply)
