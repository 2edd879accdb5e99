# SPDX-License-Identifier: Apache-2.0
"""A layer norm over features that are cut.

Sums and squares of the parts are all-reduced, forward and backward.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"
BATCH, DIM, FEATURES = 4, 8, 16


def step(world, backward=True):
    model = nn.Linear(DIM, FEATURES // world.size)
    world.parameters(model, shard={".*": {"tp": 0}})
    x, y = world.input("x", (BATCH, DIM)), world.input("y", (BATCH, FEATURES), shard={"tp": 1})
    h = model(x)
    sums = torch.stack([h.sum(-1), h.square().sum(-1)])
    if not world.single and backward:
        sums = torch.distributed.nn.functional.all_reduce(sums)
    elif not world.single:
        whole = sums.detach().clone()
        dist.all_reduce(whole)
        sums = sums + (whole - sums.detach())  # the right numbers, the gradient of the own part
    mean = sums[0] / FEATURES
    variance = sums[1] / FEATURES - mean**2
    loss = ((h - mean[:, None]) * torch.rsqrt(variance + 1e-5)[:, None] - y).square().sum()
    loss.backward()
    world.output("loss", loss, sum=["tp"])
