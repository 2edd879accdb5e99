# SPDX-License-Identifier: Apache-2.0
"""The gradient of a bias is not summed over tp.

The bias is added after the scatter and sees a part of the sequence only, as the norms do. The class
of G1.
"""

import gpt_parallel

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "down_bias"


def step(world):
    return gpt_parallel.step(world, summed=("norm",))
