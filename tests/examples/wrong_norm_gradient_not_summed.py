# SPDX-License-Identifier: Apache-2.0
"""Sequence parallelism by hand: weight gradients of norms are not summed over tp.

Each comes from a part of the sequence. G1: Megatron 1446.
"""

import megatron_parallel as megatron
from megatron_parallel import single  # noqa: F401

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "norm"


def step(world):
    return megatron.step(world, sequence=True, sync=False)
