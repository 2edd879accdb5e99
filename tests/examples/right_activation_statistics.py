# SPDX-License-Identifier: Apache-2.0
"""Running statistics of activations in a buffer.

They do not change the loss. Their mean is that of all ranks' samples.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


class Statistics(nn.Module):
    def __init__(self, dim, averaged):
        super().__init__()
        self.averaged = averaged
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update(self, x):
        mean = x.mean(0)
        if self.averaged and dist.get_world_size() > 1:
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        self.mean.lerp_(mean, 0.1)
        self.count += 1

    def forward(self, x):
        self.update(x)
        return x


def step(world, averaged=True):
    model = nn.Sequential(nn.Linear(8, 16), Statistics(16, averaged), nn.GELU(), nn.Linear(16, 4))
    wrapped = model if world.single else DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (
        world.input("x", (8, 8), shard={"dp": 0}),
        world.input("y", (8,), torch.long, shard={"dp": 0}, high=4),
    )
    loss = F.cross_entropy(wrapped(x), y)
    loss.backward()
    optimizer.step()
    return loss
