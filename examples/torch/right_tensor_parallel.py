# SPDX-License-Identifier: Apache-2.0
"""Column- and row-wise parallel linear layers by parallelize_module."""

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from models import MLP
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"


def step(world):
    model = MLP()
    if not world.single:
        parallelize_module(
            model, world.mesh("tp"), {"up": ColwiseParallel(), "down": RowwiseParallel()}
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = world.input("x", (16, 16)), world.input("y", (16, 16))
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
