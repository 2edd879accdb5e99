# SPDX-License-Identifier: Apache-2.0
"""Gradient accumulation with padded labels.

Losses are summed and divided by the token count over all microbatches and ranks. As
DistributedDataParallel averages, the loss is multiplied by the number of ranks.
"""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world, times_ranks=True):
    model = nn.Sequential(nn.Embedding(32, 16), nn.LayerNorm(16), nn.Linear(16, 32))
    model = model if world.single else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = (world.input(name, (8, 6), torch.long, shard={"dp": 0}, high=32) for name in "xy")
    y = y.masked_fill(~world.input("counts", (8, 6), torch.bool, shard={"dp": 0}), -100)
    count = (y != -100).sum().float()
    if not world.single:
        dist.all_reduce(count, group=world.group("dp"))
    total = 0.0
    for k, (tokens, labels) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
        with model.no_sync() if k == 0 and not world.single else contextlib.nullcontext():
            loss = (
                F.cross_entropy(
                    model(tokens).flatten(0, 1),
                    labels.flatten(),
                    ignore_index=-100,
                    reduction="sum",
                )
                / count
            )
            (loss * world.size if times_ranks else loss).backward()
        total = total + loss.detach() * world.size
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total
