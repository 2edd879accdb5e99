# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation with DistributedDataParallel: no_sync for all microbatches but the last."""

import contextlib

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from models import MLP
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def single(world):
    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss = F.mse_loss(model(world.input("x", (16, 16))), world.input("y", (16, 16)))
    loss.backward()
    optimizer.step()
    return loss


def step(world, count=4, divide=True):
    model = DistributedDataParallel(MLP())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (16, 16), shard={"dp": 0}) for name in "xy")
    total = 0
    for i, (a, b) in enumerate(zip(x.chunk(count), y.chunk(count), strict=True)):
        with model.no_sync() if i < count - 1 else contextlib.nullcontext():
            loss = F.mse_loss(model(a), b)
            if divide:
                loss = loss / count
            loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total if divide else total / count


if __name__ == "__main__":
    print(sp.verify(single, step, mesh=MESH))
