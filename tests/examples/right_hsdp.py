# SPDX-License-Identifier: Apache-2.0
"""FSDP2 over two axes: replicated over one, cut over the other."""

import torch
import torch.nn.functional as F
from models import MLP
from torch.distributed.fsdp import fully_shard

MESH, EXPECT = {"replicate": 2, "shard": 2}, "EQUIVALENT"


def step(world):
    model = MLP()
    fully_shard(model, mesh=world.mesh("replicate", "shard"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (16, 16), shard={"replicate": 0, "shard": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
