# SPDX-License-Identifier: Apache-2.0
"""Contrastive loss over the whole batch (CLIP) under DistributedDataParallel.

Features of all ranks are gathered, with gradients.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


class Gather(torch.autograd.Function):
    """All ranks' rows.

    Each rank computes the whole loss, so the gradients add up to a multiple of the single device's.
    Averaging over the ranks removes the factor.
    """

    @staticmethod
    def forward(ctx, x, group, summed):
        ctx.group, ctx.summed = group, summed
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x, group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        if ctx.summed:
            dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None, None


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text, self.temperature = (
            nn.Linear(8, 4),
            nn.Linear(6, 4),
            nn.Parameter(torch.tensor(1.0)),
        )

    def forward(self, image, text):
        return (
            F.normalize(self.image(image), dim=-1),
            F.normalize(self.text(text), dim=-1),
            self.temperature.exp(),
        )


def step(world, summed=True):
    model = TwoTowers()
    wrapped = model if world.single else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    image, text, scale = wrapped(
        world.input("image", (8, 8), shard={"dp": 0}), world.input("text", (8, 6), shard={"dp": 0})
    )
    if not world.single:
        image, text = (Gather.apply(x, world.group("dp"), summed) for x in (image, text))
    logits, labels = scale * image @ text.T, torch.arange(len(image))
    loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
    loss.backward()
    optimizer.step()
    return loss
