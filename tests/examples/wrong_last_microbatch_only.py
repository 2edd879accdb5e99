# SPDX-License-Identifier: Apache-2.0
"""Gradients are cleared between microbatches: only the last one trains. I1: NeMo Automodel 3530."""

import torch
import torch.nn.functional as F
from models import MLP
from right_accumulation_ddp import single  # noqa: F401
from torch.distributed.fsdp import fully_shard

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "grad"


def step(world, clear=True, count=2):
    model = MLP()
    fully_shard(model, mesh=world.mesh("dp"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (16, 16), shard={"dp": 0}) for name in "xy")
    total = 0
    for a, b in zip(x.chunk(count), y.chunk(count), strict=True):
        if clear:
            optimizer.zero_grad()
        loss = F.mse_loss(model(a), b) / count
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total
