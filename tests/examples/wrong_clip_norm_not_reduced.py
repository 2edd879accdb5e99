# SPDX-License-Identifier: Apache-2.0
"""The norm for clipping is not summed over tp: each rank clips by its own.

C7: NeMo Automodel 576.
"""

import megatron_parallel as megatron
from megatron_parallel import single  # noqa: F401

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "megatron_parallel.py"


def step(world):
    return megatron.step(world, reduce=False)
