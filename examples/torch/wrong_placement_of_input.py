# SPDX-License-Identifier: Apache-2.0
"""The input is declared as cut over tp (Shard(0)), but every rank gives the whole batch.

Outputs and loss are right, gradients twice too large.
"""

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from models import MLP
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    model = MLP()
    if not world.single:
        parallelize_module(
            model,
            world.mesh("tp"),
            {
                "up": ColwiseParallel(input_layouts=Shard(0)),
                "down": RowwiseParallel(output_layouts=Shard(0)),
            },
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = world.input("x", (16, 16)), world.input("y", (16, 16))
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
