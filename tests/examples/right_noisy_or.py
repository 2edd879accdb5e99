# SPDX-License-Identifier: Apache-2.0
"""Detectors that are cut over tp and combined by "noisy or".

The probabilities of having seen nothing are multiplied over ranks. A factor's gradient has the
others' factors.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_parallel import CopyToGroup
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"
DIM, DETECTORS = 16, 4


class ProductOverGroup(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        whole = x.clone()
        dist.all_reduce(whole, op=dist.ReduceOp.PRODUCT, group=group)
        ctx.save_for_backward(x)
        ctx.group = group
        return whole

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        factors = [torch.empty_like(x) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(factors, x, group=ctx.group)
        for rank, factor in enumerate(factors):  # no division, as one may be zero
            if rank != dist.get_rank(ctx.group):
                grad = grad * factor
        return grad, None


class Detectors(nn.Module):
    def __init__(self, count, group, combine):
        super().__init__()
        self.group, self.combine = group, combine
        self.norm, self.weight = nn.LayerNorm(DIM), nn.Parameter(torch.empty(count, DIM))

    def forward(self, x):
        x = self.norm(x)
        seen = (
            (x if self.group is None else CopyToGroup.apply(x, self.group)) @ self.weight.t()
        ).sigmoid()
        unseen = (1 - seen).unbind(-1)
        none = unseen[0]
        for factor in unseen[1:]:
            none = none * factor
        return 1 - (none if self.group is None else self.combine(none, self.group))


def step(world, combine=ProductOverGroup.apply):
    model = Detectors(
        DETECTORS // world.sizes["tp"], None if world.single else world.group("tp"), combine
    )
    world.parameters(model, {"weight": {"tp": 0}, "norm.*": {}})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = F.mse_loss(model(world.input("x", (8, DIM))), world.input("y", (8,)))
    loss.backward()
    optimizer.step()
    return loss
