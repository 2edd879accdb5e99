# SPDX-License-Identifier: Apache-2.0
"""ZeRO-1 by hand.

Flat gradients are reduce-scattered, each rank updates its half, parameters are all-gathered.
"""

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import MLP

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def single(world):
    model = MLP()
    x, y = world.input("x", (16, 16)), world.input("y", (16, 16))
    loss = F.mse_loss(model(x), y)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.sub_(p.grad, alpha=0.1)
            p.grad = None
    return loss


def step(world, scale=None):
    model = MLP()
    x, y = (world.input(name, (16, 16), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            n = p.numel() // world.size
            grad = torch.empty(n)
            dist.reduce_scatter_tensor(grad, p.grad.flatten())
            grad /= scale or world.size
            new = p.flatten()[world.rank * n : (world.rank + 1) * n] - 0.1 * grad
            whole = torch.empty(p.numel())
            dist.all_gather_into_tensor(whole, new)
            p.copy_(whole.view_as(p))
            p.grad = None
    return loss


if __name__ == "__main__":
    print(sp.verify(single, step, mesh=MESH))
