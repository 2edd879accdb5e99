# SPDX-License-Identifier: Apache-2.0
"""A small convolutional network with group normalisation and pooling in DistributedDataParallel."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), norm
        self.second, self.head = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2), nn.Linear(8, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.head(F.adaptive_avg_pool2d(F.relu(self.second(x)), 1).flatten(1))


def step(world, norm=lambda: nn.GroupNorm(2, 8)):
    model = Net(norm())
    wrapped = model if world.single else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (
        world.input("x", (4, 3, 8, 8), shard={"dp": 0}),
        world.input("y", (4,), torch.long, shard={"dp": 0}, high=10),
    )
    loss = F.cross_entropy(wrapped(x), y)
    loss.backward()
    optimizer.step()
    return loss
