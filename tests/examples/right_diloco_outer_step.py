# SPDX-License-Identifier: Apache-2.0
"""DiLoCo with one inner step.

The inner SGD step's difference is averaged over dp. It is the gradient of an outer step with
Nesterov momentum.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import MLP

MESH, EXPECT = {"dp": 4}, "EQUIVALENT"


def step(world, inner_steps=1):
    model = MLP()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    start = [p.detach().clone() for p in model.parameters()]
    for k in range(inner_steps):
        x, y = (world.input(f"{name}{k}", (8, 16), shard={"dp": 0}) for name in "xy")
        loss = F.mse_loss(model(x), y)
        loss.backward()
        inner.step()
        inner.zero_grad()
    with torch.no_grad():
        for p, old in zip(model.parameters(), start, strict=True):
            taken = old - p
            if not world.single:
                dist.all_reduce(taken)
                taken /= world.size
            p.copy_(old)
            p.grad = taken
    outer.step()
    return loss
