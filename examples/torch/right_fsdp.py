# SPDX-License-Identifier: Apache-2.0
"""FSDP2: parameters, gradients and optimizer states are cut over dp."""

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from models import MLP
from torch.distributed.fsdp import fully_shard

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world):
    model = MLP(bias=True)
    fully_shard(model, mesh=world.mesh("dp"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (16, 16), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
