# SPDX-License-Identifier: Apache-2.0
"""The bias that is added after the scatter sees a part of the sequence only, as the norms do; its gradient is not summed over tp (the class of G1)."""

import gpt_parallel

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "down_bias"


def step(world):
    return gpt_parallel.step(world, summed=("norm",))
