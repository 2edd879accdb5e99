# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation with statistics of all ranks, and its gradient, by an autograd function."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


class SyncNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, size, local_backward):
        sums = torch.stack([x.sum(0), (x * x).sum(0)])
        if size > 1:
            dist.all_reduce(sums)
        count = x.shape[0] * size
        mean = sums[0] / count
        scale = torch.rsqrt(sums[1] / count - mean * mean + 1e-5)
        normal = (x - mean) * scale
        ctx.save_for_backward(normal, scale, weight)
        ctx.count, ctx.size, ctx.local = count, size, local_backward
        return normal * weight + bias

    @staticmethod
    def backward(ctx, grad):
        normal, scale, weight = ctx.saved_tensors
        own = torch.stack([grad.sum(0), (grad * normal).sum(0)])
        sums, count = own.clone(), ctx.count
        if ctx.local:
            count //= ctx.size
        elif ctx.size > 1:
            dist.all_reduce(sums)
        return (
            weight * scale * (grad - sums[0] / count - normal * sums[1] / count),
            own[1],
            own[0],
            None,
            None,
        )


class Net(nn.Module):
    def __init__(self, size, local_backward):
        super().__init__()
        self.size, self.local_backward = size, local_backward
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 4)
        self.weight, self.bias = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return self.second(
            F.relu(
                SyncNorm.apply(
                    self.first(x), self.weight, self.bias, self.size, self.local_backward
                )
            )
        )


def step(world, local_backward=False):
    model = Net(world.size, local_backward and not world.single)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (
        world.input("x", (8, 8), shard={"dp": 0}),
        world.input("y", (8,), torch.long, shard={"dp": 0}, high=4),
    )
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if not world.single:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world.size
    optimizer.step()
    return loss
