# SPDX-License-Identifier: Apache-2.0
"""FSDP2 divides gradients by 1 instead of by the number of ranks: they are summed. J6, A9."""

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from models import MLP
from torch.distributed.fsdp import fully_shard

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    model = MLP()
    fully_shard(model, mesh=world.mesh("dp"))
    model.set_gradient_divide_factor(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (16, 16), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
