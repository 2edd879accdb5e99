# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with a communication hook.

Gradients are views of buckets, the graph is static. The model has convolutions, group normalisation
and smoothed labels.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second, self.out = nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Linear(8 * 2 * 2, 10)

    def forward(self, x):
        x = F.relu(self.second(F.gelu(self.norm(self.first(x)))))
        return self.out(F.adaptive_avg_pool2d(x, 2).flatten(1))


def step(world, hook=allreduce_hook):
    model = Net()
    if not world.single:
        model = DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    x, y = (
        world.input("x", (4, 3, 8, 8), shard={"dp": 0}),
        world.input("y", (4,), torch.long, shard={"dp": 0}, high=10),
    )
    loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
    loss.backward()
    optimizer.step()
    return loss
