# SPDX-License-Identifier: Apache-2.0
"""Data parallel by hand: gradients in one flat bucket, all-reduced and divided."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import MLP

MESH, EXPECT = {"dp": 2, "tp": 2}, "EQUIVALENT"


def single(world):
    model = MLP(bias=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = F.mse_loss(model(world.input("x", (16, 16))), world.input("y", (16, 16)))
    loss.backward()
    optimizer.step()
    return loss


def step(world, axis="dp", reduce=True):
    """The tp ranks are copies of each other."""
    model = MLP(bias=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (world.input(name, (16, 16), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    if reduce:
        bucket = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(bucket, group=world.group(axis))
        bucket /= world.sizes[axis]
        at = 0
        for p in model.parameters():
            p.grad.copy_(bucket[at : at + p.numel()].view_as(p))
            at += p.numel()
    optimizer.step()
    return loss
