# SPDX-License-Identifier: Apache-2.0
"""BatchNorm2d under DistributedDataParallel uses the statistics of each rank's own samples."""

import right_convolutions
from torch import nn

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_convolutions.py"


def step(world):
    return right_convolutions.step(world, lambda: nn.BatchNorm2d(8, track_running_stats=False))
