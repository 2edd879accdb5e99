# SPDX-License-Identifier: Apache-2.0
"""The loss is divided by the world size although DistributedDataParallel averages."""

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from models import MLP
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    model = MLP()
    if not world.single:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (16, 16), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    (loss / world.size).backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
