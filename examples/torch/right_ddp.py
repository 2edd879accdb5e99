# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: each rank has half of the batch, gradients are averaged."""

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from models import MLP
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world):
    model = MLP()
    if not world.single:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = world.input("x", (16, 16), shard={"dp": 0})
    y = world.input("y", (16, 16), shard={"dp": 0})
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
