# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm in groups of two of four ranks.

Statistics come from half of the batch, where the single device takes all of it.
"""

import right_sync_batch_norm
import torch.distributed as dist
from torch import nn

MESH, EXPECT, NAMES = {"dp": 4}, "NOT EQUIVALENT", "right_sync_batch_norm.py"


def halves(model):
    own, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]])
    return nn.SyncBatchNorm.convert_sync_batchnorm(model, own)


def step(world):
    return right_sync_batch_norm.step(world, halves)
