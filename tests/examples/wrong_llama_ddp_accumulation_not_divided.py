# SPDX-License-Identifier: Apache-2.0
"""Gradients of microbatches are added up and not divided by their number."""

import right_llama_ddp_accumulation

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_llama_ddp_accumulation.step(world, divide=False)
