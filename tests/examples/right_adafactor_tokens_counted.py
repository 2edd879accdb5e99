# SPDX-License-Identifier: Apache-2.0
"""Adafactor, and a loss divided by the token count of all ranks.

The count is a Python number: `loss / count.item()`. Adafactor's step size depends on data, too.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world, counted=True):
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16))
    world.parameters(model)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (4, 6), torch.long, shard={"dp": 0}, high=16) for name in "xy")
    y = y.masked_fill(y == 3, -100)
    count = (y != -100).sum()
    if not world.single and counted:
        dist.all_reduce(count, group=world.group("dp"))
    loss = (
        F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
        / count.item()
    )
    loss.backward()
    if not world.single:
        for p in model.parameters():
            dist.all_reduce(p.grad, group=world.group("dp"))
    optimizer.step()
