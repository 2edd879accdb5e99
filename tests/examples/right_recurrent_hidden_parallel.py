# SPDX-License-Identifier: Apache-2.0
"""A recurrent network whose hidden units are cut over ranks.

They are gathered after each step, with the gradient of a gather.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"
STEPS, BATCH, HIDDEN = 3, 4, 16


class Recurrent(nn.Module):
    def __init__(self, ranks):
        super().__init__()
        self.x, self.h, self.out = (
            nn.Linear(8, HIDDEN // ranks),
            nn.Linear(HIDDEN, HIDDEN // ranks, bias=False),
            nn.Linear(HIDDEN, 4),
        )


def step(world, gather=None):
    model = Recurrent(world.size)
    world.parameters(model, shard={r"[xh]\..*": {"tp": 0}})
    x, y = world.input("x", (STEPS, BATCH, 8)), world.input("y", (BATCH, 4))
    gather = gather or (lambda mine: torch.cat(torch.distributed.nn.all_gather(mine), 1))
    h = torch.zeros(BATCH, HIDDEN)
    for t in range(STEPS):
        mine = torch.tanh(model.x(x[t]) + model.h(h))
        h = mine if world.single else gather(mine)
    loss = F.mse_loss(model.out(h), y)
    (
        loss / world.size
    ).backward()  # a gather's gradient adds up those of all ranks, which have the same loss
    if not world.single:
        for p in model.out.parameters():
            dist.all_reduce(p.grad)
    world.output("loss of all", loss.detach(), mean=())
