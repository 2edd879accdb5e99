# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation does not divide a microbatch's loss by their number.

A11: transformers 34191.
"""

import right_accumulation_ddp
from right_accumulation_ddp import single  # noqa: F401

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_accumulation_ddp.step(world, divide=False)
