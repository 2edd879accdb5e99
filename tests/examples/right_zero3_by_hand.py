# SPDX-License-Identifier: Apache-2.0
"""ZeRO-3 by hand.

Parameters are gathered where they are used and gradients reduce-scattered. The norm is summed over
ranks before clipping.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part, group):
        ctx.group = group
        whole = part.new_empty(part.numel() * dist.get_world_size(group))
        dist.all_gather_into_tensor(whole, part.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx, grad):
        size = dist.get_world_size(ctx.group)
        part = grad.new_empty(grad.numel() // size)
        dist.reduce_scatter_tensor(part, grad.contiguous(), group=ctx.group)
        return part / size, None


class Linear(nn.Module):
    def __init__(self, world, inputs, outputs):
        super().__init__()
        self.world, self.shape = world, (outputs, inputs)
        self.weight, self.bias = (
            nn.Parameter(torch.randn(outputs // world.size, inputs)),
            nn.Parameter(torch.randn(outputs // world.size)),
        )

    def forward(self, x):
        if self.world.single:
            return F.linear(x, self.weight, self.bias)
        group = self.world.group("dp")
        return F.linear(
            x,
            Gather.apply(self.weight.flatten(), group).view(self.shape),
            Gather.apply(self.bias, group),
        )


def step(world, norm_of_all=True):
    model = nn.Sequential(Linear(world, 8, 16), nn.ReLU(), Linear(world, 16, 8))
    world.parameters(model, shard={".*": {"dp": 0}})
    x, y = (world.input(name, (8, 8), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    square = sum((p.grad**2).sum() for p in model.parameters())
    if not world.single and norm_of_all:
        dist.all_reduce(square, group=world.group("dp"))
    factor = (0.1 / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for p in model.parameters():
        p.grad *= factor
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss
