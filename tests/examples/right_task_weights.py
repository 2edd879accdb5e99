# SPDX-License-Identifier: Apache-2.0
"""Two losses weighed by learned variances.

The variances are outside of the module that DistributedDataParallel wraps. Their gradient is
averaged by hand.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world, averaged=True):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 5))
    variances = torch.zeros(2, requires_grad=True)
    wrapped = model if world.single else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(
        [{"params": model.parameters()}, {"params": [variances], "lr": 1e-2, "weight_decay": 0.0}],
        lr=1e-3,
    )
    x, y = (
        world.input("x", (8, 8), shard={"dp": 0}),
        world.input("y", (8,), torch.long, shard={"dp": 0}, high=4),
    )
    out = wrapped(x)
    losses = torch.stack(
        [
            F.cross_entropy(out[:, :4], y),
            F.mse_loss(out[:, 4], world.input("z", (8,), shard={"dp": 0})),
        ]
    )
    loss = (torch.exp(-variances) * losses + variances).sum()
    loss.backward()
    if averaged and not world.single:
        dist.all_reduce(variances.grad)
        variances.grad /= world.size
    optimizer.step()
    return loss
