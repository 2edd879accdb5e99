# SPDX-License-Identifier: Apache-2.0
"""context_parallel gives each rank an early and a late piece; targets are cut in rank order."""

import right_context_parallel_torch

MESH, EXPECT, NAMES = {"cp": 2}, "NOT EQUIVALENT", "right_context_parallel_torch.py"


def step(world):
    return right_context_parallel_torch.step(world, cut_targets=False)
