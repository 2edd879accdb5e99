# SPDX-License-Identifier: Apache-2.0
"""The probabilities of having seen nothing are summed over ranks, not multiplied.

The sum is the default reduction.
"""

import right_noisy_or as noisy_or
from megatron_parallel import ReduceFromGroup

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "right_noisy_or.py"


def step(world):
    return noisy_or.step(world, combine=ReduceFromGroup.apply)
