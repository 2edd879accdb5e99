# SPDX-License-Identifier: Apache-2.0
"""The gradient of the bias behind a row-parallel layer is not summed over tp.

With sequence parallelism it comes from the rank's own part of the sequence, as the norm's does.
"""

import right_sequence_parallel_overlapped as overlapped

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "bias.grad"


def step(world):
    return overlapped.step(world, summed=("norm.weight", "norm.bias"))
