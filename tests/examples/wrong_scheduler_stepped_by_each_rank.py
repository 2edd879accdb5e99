# SPDX-License-Identifier: Apache-2.0
"""Two steps with a schedule of the learning rate that is stepped once for each rank."""

import torch
import torch.nn.functional as F
from models import MLP
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", ".new"


def step(world):
    model = MLP()
    wrapped = model if world.single else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    x, y = (world.input(name, (8, 16), shard={"dp": 0}) for name in "xy")
    for _ in range(2):
        optimizer.zero_grad()
        loss = F.mse_loss(wrapped(x), y)
        loss.backward()
        optimizer.step()
        for _ in range(world.size):
            schedule.step()
    return loss
