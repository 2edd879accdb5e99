# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with shapes that the ranks do not divide.

The last rank's pieces are shorter, one is empty.
"""

import torch
import torch.nn.functional as F
from models import MLP
from torch.distributed.fsdp import fully_shard

MESH, EXPECT = {"dp": 4}, "EQUIVALENT"


def step(world):
    model = MLP(dim=6, hidden=10, bias=True)
    fully_shard(model, mesh=world.mesh("dp"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (16, 6), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
