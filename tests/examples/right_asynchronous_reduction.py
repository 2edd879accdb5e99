# SPDX-License-Identifier: Apache-2.0
"""Gradients are reduced asynchronously, waited for, and then divided."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import MLP

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world, waits=True):
    model = MLP()
    world.parameters(model)
    x, y = (world.input(name, (8, 16), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    if not world.single:
        works = [
            dist.all_reduce(p.grad, group=world.group("dp"), async_op=True)
            for p in model.parameters()
        ]
        for p, work in zip(model.parameters(), works, strict=True):
            if waits:
                work.wait()
            p.grad /= world.size
            work.wait()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss
