# SPDX-License-Identifier: Apache-2.0
"""Megatron style by hand, with sequence parallelism."""

import megatron_parallel as megatron
from megatron_parallel import single  # noqa: F401

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"


def step(world):
    return megatron.step(world, sequence=True)
