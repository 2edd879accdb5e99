# SPDX-License-Identifier: Apache-2.0
"""Megatron's linear layer with overlap.

Backward gathers the sequence again while it computes the input's gradient. It scatters that
gradient while it computes the weight's.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"
SEQ, BATCH, DIM, HIDDEN = 8, 2, 16, 32


def gather(x, group):
    out = x.new_empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
    return out, dist.all_gather_into_tensor(out, x.contiguous(), group=group, async_op=True)


def scatter(x, group):
    out = x.new_empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
    return out, dist.reduce_scatter_tensor(out, x.contiguous(), group=group, async_op=True)


class Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, group):
        ctx.save_for_backward(x, weight)
        ctx.group = group
        whole, work = gather(x, group)
        work.wait()
        return whole @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        whole, gathering = gather(x, ctx.group)
        whole_grad = grad @ weight
        gathering.wait()
        x_grad, scattering = scatter(whole_grad, ctx.group)
        weight_grad = grad.flatten(0, 1).t() @ whole.flatten(0, 1)
        scattering.wait()
        return x_grad, weight_grad, None


class Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out, work = scatter(x, group)
        work.wait()
        return out

    @staticmethod
    def backward(ctx, grad):
        whole, work = gather(grad, ctx.group)
        work.wait()
        return whole, None


class Block(nn.Module):
    def __init__(self, ranks, group):
        super().__init__()
        self.group, self.norm = group, nn.LayerNorm(DIM)
        self.up, self.down = (
            nn.Parameter(torch.empty(HIDDEN // ranks, DIM)),
            nn.Parameter(torch.empty(DIM, HIDDEN // ranks)),
        )
        self.bias = nn.Parameter(torch.zeros(DIM))

    def forward(self, x):
        h = self.norm(x)
        if self.group is None:
            return x + F.gelu(h @ self.up.t()) @ self.down.t() + self.bias
        return (
            x
            + Row.apply(F.gelu(Column.apply(h, self.up, self.group)) @ self.down.t(), self.group)
            + self.bias
        )


def step(world, summed=("norm.weight", "norm.bias", "bias")):
    model = Block(world.sizes["tp"], None if world.single else world.group("tp"))
    world.parameters(model, {"up": {"tp": 0}, "down": {"tp": 1}, ".*": {}})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = (world.input(name, (SEQ, BATCH, DIM), shard={"tp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y, reduction="sum") / (SEQ * BATCH * DIM)
    loss.backward()
    total = loss.detach().clone()
    if not world.single:
        for name, p in model.named_parameters():
            if name in summed:  # each rank saw its part of the sequence
                dist.all_reduce(p.grad)
        dist.all_reduce(total)
    optimizer.step()
    world.output("loss", total, mean=())
