# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation with FSDP2: every microbatch is reduced, gradients add up."""

import wrong_last_microbatch_only
from right_accumulation_ddp import single  # noqa: F401

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world):
    return wrong_last_microbatch_only.step(world, clear=False)
