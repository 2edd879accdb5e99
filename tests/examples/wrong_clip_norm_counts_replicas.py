# SPDX-License-Identifier: Apache-2.0
"""Replicated parameters are counted on every tp rank in the gradient norm (C3: NeMo-RL 3788)."""

import megatron_parallel as megatron
from megatron_parallel import single  # noqa: F401

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "megatron_parallel.py"


def step(world):
    return megatron.step(world, counted=lambda name, rank: True)
