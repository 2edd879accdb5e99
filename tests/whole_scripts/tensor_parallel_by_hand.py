# SPDX-License-Identifier: Apache-2.0
"""Columns and rows of two matrices by hand, on a mesh whose two axes have the same size.

mesh: dp=2,tp=2
expected: EQUIVALENT
wrong: MEAN_OVER = 1
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MEAN_OVER = 2  # ranks along dp, of which gradients are the mean


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


class MLP(nn.Module):
    def __init__(self, group, width=16):
        super().__init__()
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        up, down = torch.randn(width, 6) / 6, torch.randn(4, width) / width
        self.up = nn.Parameter(up.chunk(size, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(size, 1)[rank].clone())
        self.group = group

    def forward(self, x):
        hidden = F.silu(F.linear(Enter.apply(x, self.group), self.up))
        return Leave.apply(F.linear(hidden, self.down), self.group)


def groups(tp):
    """This rank's group of tensor parallelism, and that of data parallelism."""
    world, rank = dist.get_world_size(), dist.get_rank()
    found = {}
    for kind, lists in (
        ("tp", [list(range(i, i + tp)) for i in range(0, world, tp)]),
        ("dp", [list(range(i, world, tp)) for i in range(tp)]),
    ):
        for ranks in lists:
            group = dist.new_group(ranks)
            if rank in ranks:
                found[kind] = group
    return found["tp"], found["dp"]


def main():
    dist.init_process_group("gloo")
    tp = min(2, dist.get_world_size())
    tensor, data = groups(tp)
    torch.manual_seed(3)
    model = MLP(tensor)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    samples = TensorDataset(torch.randn(48, 6), torch.randn(48, 4))
    sampler = DistributedSampler(samples, dist.get_world_size(data), dist.get_rank() // tp)
    for x, y in DataLoader(samples, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=data)
            p.grad /= MEAN_OVER if dist.get_world_size(data) > 1 else 1
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
