# SPDX-License-Identifier: Apache-2.0
"""FSDP1 with gradient accumulation: losses of microbatches are summed, not averaged."""

import right_fsdp1_flat_hybrid

MESH, EXPECT, NAMES = {"node": 2, "gpu": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_fsdp1_flat_hybrid.step(world, scale=1.0)
