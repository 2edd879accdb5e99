# SPDX-License-Identifier: Apache-2.0
"""Two pipeline stages with torch.distributed.pipelining: 1F1B, four microbatches."""

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MESH, EXPECT = {"pp": 2}, "EQUIVALENT"
BATCH, DIM, COUNT = 16, 16, 4


class Part(nn.Module):
    """Some of the layers, under the names that they have in the whole model."""

    def __init__(self, first, last):
        super().__init__()
        self.layers = nn.ModuleDict({str(i): nn.Linear(DIM, DIM) for i in range(first, last)})

    def forward(self, x):
        for layer in self.layers.values():
            x = F.silu(layer(x))
        return x


def single(world):
    model = Part(0, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = F.mse_loss(model(world.input("x", (BATCH, DIM))), world.input("y", (BATCH, DIM)))
    loss.backward()
    optimizer.step()
    return loss


def step(world, **options):
    model = Part(2 * world.rank, 2 * world.rank + 2)
    example = torch.empty(BATCH // COUNT, DIM)
    stage = PipelineStage(
        model,
        world.rank,
        world.size,
        torch.device("cpu"),
        input_args=example.clone().requires_grad_(world.rank > 0),
        output_args=example.clone().requires_grad_(),
    )
    schedule = Schedule1F1B(stage, COUNT, loss_fn=F.mse_loss, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    if world.rank == 0:
        schedule.step(world.input("x", (BATCH, DIM)))
    else:
        schedule.step(target=world.input("y", (BATCH, DIM)), losses=losses)
    optimizer.step()
    return torch.stack(losses).mean() if losses else None


if __name__ == "__main__":
    print(sp.verify(single, step, mesh=MESH))
