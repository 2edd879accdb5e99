# SPDX-License-Identifier: Apache-2.0
"""Interleaved 1F1B with two stages on each rank.

The stages exchange their shapes, which the program does not give.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

MESH, EXPECT = {"pp": 2}, "EQUIVALENT"
BATCH, DIM, COUNT, STAGES = 8, 8, 4, 4


class Part(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleDict({str(i): nn.Linear(DIM, DIM) for i in layers})

    def forward(self, x):
        for layer in self.layers.values():
            x = x + torch.tanh(layer(x))
        return x


def single(world):
    model = Part(range(STAGES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.mse_loss(model(world.input("x", (BATCH, DIM))), world.input("y", (BATCH, DIM))).backward()
    optimizer.step()


def step(world, **options):
    parts = [Part([i]) for i in range(world.rank, STAGES, world.size)]
    for part in parts:
        world.parameters(part)
    stages = [
        PipelineStage(part, world.rank + k * world.size, STAGES, torch.device("cpu"))
        for k, part in enumerate(parts)
    ]
    schedule = ScheduleInterleaved1F1B(stages, COUNT, loss_fn=F.mse_loss, **options)
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)
    x, y = (world.input(name, (BATCH, DIM)) for name in "xy")
    schedule.step(
        *([x] if world.rank == 0 else []), target=y if world.rank == world.size - 1 else None
    )
    optimizer.step()
