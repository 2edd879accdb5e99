# SPDX-License-Identifier: Apache-2.0
"""LAMB's trust ratio by hand under FSDP2.

Norms of whole parameters and gradients come from an all-reduce of the parts' squares.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import MLP
from torch.distributed.fsdp import fully_shard

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world, of_all=True):
    model = MLP()
    if not world.single:
        fully_shard(model, mesh=world.mesh("dp"))
    x, y = (world.input(name, (8, 16), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            weight, grad = (t if world.single else t.to_local() for t in (p, p.grad))
            squares = torch.stack([weight.square().sum(), grad.square().sum()])
            if not world.single and of_all:
                dist.all_reduce(squares)
            of_weight, of_grad = squares.sqrt()
            weight.sub_(0.1 * of_weight / (of_grad + 1e-6) * grad)
    return loss
