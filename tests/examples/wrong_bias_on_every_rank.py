# SPDX-License-Identifier: Apache-2.0
"""A row-parallel layer by hand adds its bias before the all-reduce: it is counted tp times."""

import torch
import torch.nn.functional as F
from megatron_parallel import ColumnParallel, CopyToGroup, ReduceFromGroup  # noqa: F401
from models import MLP
from torch import nn

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "wrong_bias_on_every_rank.py"


class Parallel(nn.Module):
    def __init__(self, group, parts, right):
        super().__init__()
        self.group, self.right = group, right
        self.up = nn.Linear(16, 32 // parts)
        self.down = nn.Linear(32 // parts, 16)

    def forward(self, x):
        h = F.silu(self.up(CopyToGroup.apply(x, self.group)))
        if self.right:
            return ReduceFromGroup.apply(F.linear(h, self.down.weight), self.group) + self.down.bias
        return ReduceFromGroup.apply(self.down(h), self.group)


def train(world, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = world.input("x", (16, 16)), world.input("y", (16, 16))
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def single(world):
    return train(world, MLP(bias=True))


def step(world, right=False):
    model = Parallel(world.group("tp"), world.size, right)
    world.parameters(model, {r"up\..*": {"tp": 0}, r"down\.weight": {"tp": 1}, r"down\.bias": {}})
    return train(world, model)
