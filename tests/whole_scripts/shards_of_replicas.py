# SPDX-License-Identifier: Apache-2.0
"""Weights in shards over data parallel ranks, gathered by hand, beside columns and rows of tensor
parallel ranks: two axes of one size, and only the first values tell which of them cuts what.

mesh: dp=2,tp=2
expected: EQUIVALENT
wrong: MEAN_OVER = 1
wrong: SHARD = 0
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

MEAN_OVER = 2  # ranks along dp, of which gradients are the mean
SHARD = None  # whose part of a matrix a rank holds; None: its own


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, group):
        ctx.group = group
        parts = [torch.empty_like(shard) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, shard.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        ways = dist.get_world_size(ctx.group)
        mine = torch.empty_like(gradient.chunk(ways)[0])
        dist.reduce_scatter(mine, [g.contiguous() for g in gradient.chunk(ways)], group=ctx.group)
        return mine / MEAN_OVER if ways > 1 else mine, None


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Net(nn.Module):
    def __init__(self, size, dp, tp):
        super().__init__()
        self.dp, self.tp = dp, tp
        up = torch.randn(4 * size, size) / size**0.5
        down = torch.randn(size, 4 * size) / size
        shard = dp.get_local_rank() if SHARD is None else SHARD
        # columns of the first and rows of the second over tp, and of these a shard over dp
        up = up.chunk(tp.size())[tp.get_local_rank()]
        self.up = nn.Parameter(up.chunk(dp.size())[shard].clone())
        down = down.chunk(tp.size(), dim=1)[tp.get_local_rank()]
        self.down = nn.Parameter(down.chunk(dp.size())[shard].clone())

    def forward(self, x):
        up = Gather.apply(self.up, self.dp.get_group())
        down = Gather.apply(self.down, self.dp.get_group())
        x = Enter.apply(x, self.tp.get_group())
        return Leave.apply(F.gelu(x @ up.T) @ down.T, self.tp.get_group())


def main():
    dist.init_process_group("gloo")
    ways = (2, 2) if dist.get_world_size() == 4 else (1, 1)
    mesh = init_device_mesh("cpu", ways, mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    net = Net(8, mesh["dp"], mesh["tp"])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    ways, mine = mesh["dp"].size(), mesh["dp"].get_local_rank()
    for _ in range(3):
        x = torch.randn(8, 8, generator=data).chunk(ways)[mine]
        loss = F.mse_loss(net(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
