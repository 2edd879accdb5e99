# SPDX-License-Identifier: Apache-2.0
"""Muon with owned parameters.

Each rank orthogonalises the updates of its own parameters and broadcasts them.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def orthogonalised(grad, steps=2):
    """Newton and Schulz's iteration."""
    x = grad / (grad.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if tall else x


def step(world, root=lambda i, size: i % size):
    model = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 6, bias=False))
    world.parameters(model)
    x, y = (world.input(name, (8, 6), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    for i, p in enumerate(model.parameters()):
        if not world.single:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=world.group("dp"))
        with torch.no_grad():
            if i % world.size == world.rank:
                p.add_(orthogonalised(p.grad), alpha=-0.02 * max(1, p.shape[0] / p.shape[1]) ** 0.5)
            if not world.single:
                dist.broadcast(p, src=root(i, world.size), group=world.group("dp"))
    return loss
