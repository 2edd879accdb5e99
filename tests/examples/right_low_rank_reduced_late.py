# SPDX-License-Identifier: Apache-2.0
"""A low-rank pair of layers of which the first is cut by its inputs.

The sum over ranks is taken behind the second one, so that what is between them is partial. The
recorder guesses cut points there, and some are wrong: that must not cost the verdict.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_parallel import ReduceFromGroup
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"


def step(world, summed=True):
    n = world.sizes["tp"]
    down, up = nn.Linear(12 // n, 3, bias=False), nn.Linear(3, 5, bias=False)
    world.parameters(down, name="down", shard={"weight": {"tp": 1}})
    world.parameters(up, name="up")
    x = world.input("x", (4, 12), shard={"tp": 1})
    partial = up(down(x))
    out = partial if world.single else ReduceFromGroup.apply(partial, world.group("tp"))
    loss = F.mse_loss(torch.sigmoid(out), world.input("y", (4, 5)))
    loss.backward()
    if summed and not world.single:
        dist.all_reduce(up.weight.grad, group=world.group("tp"))
    torch.optim.SGD([*down.parameters(), *up.parameters()], lr=0.1).step()
    world.output("loss", loss, mean=())
