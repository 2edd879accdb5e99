# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation does not divide a microbatch's loss by their number.

A11: transformers 34191.
"""

import right_accumulation_ddp
import shardproof.torch as sp
from right_accumulation_ddp import single

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_accumulation_ddp.step(world, divide=False)


if __name__ == "__main__":
    print(sp.verify(single, step, mesh=MESH))
