# SPDX-License-Identifier: Apache-2.0
"""Sequence parallel: the gradient of the bias behind the row-parallel layer is of the rank's own part of the sequence, and is not summed as the norm's is."""

import right_sequence_parallel_overlapped as overlapped

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "bias.grad"


def step(world):
    return overlapped.step(world, summed=("norm.weight", "norm.bias"))
