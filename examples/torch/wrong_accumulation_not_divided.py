# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation: the loss of a microbatch is not divided by their number (A11: transformers 34191)."""

import right_accumulation_ddp
from right_accumulation_ddp import single  # noqa: F401

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_accumulation_ddp.step(world, divide=False)
