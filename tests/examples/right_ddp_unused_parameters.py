# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with find_unused_parameters.

Only the first microbatch uses one branch; nothing uses another.
"""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.sometimes, self.never, self.last = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, more):
        h = torch.relu(self.first(x))
        return self.last(h + self.sometimes(h) if more else h)


def step(world, parts=2):
    model = Branches()
    wrapped = model if world.single else DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for i in range(2):
        x, y = (world.input(f"{name}{i}", (8, 8), shard={"dp": 0}) for name in "xy")
        with contextlib.nullcontext() if world.single or i else wrapped.no_sync():
            (F.mse_loss(wrapped(x, i == 0), y) / (2 if world.single else parts)).backward()
    optimizer.step()
