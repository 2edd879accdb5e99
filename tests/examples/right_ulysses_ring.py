# SPDX-License-Identifier: Apache-2.0
"""Sequences cut twice (USP).

Along `ul` all_to_all gives each rank some heads of its ring's piece. Along `ring` keys and values
are gathered.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"ring": 2, "ul": 2}, "EQUIVALENT"
BATCH, LENGTH, DIM, HEADS = 2, 8, 8, 4


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        x = x.contiguous()
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, ctx.group), None


class Gather(torch.autograd.Function):
    """Along the sequence; its gradient is summed where the piece came from."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        pieces = [torch.empty(x.shape) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, x.contiguous(), group=group)
        return torch.cat(pieces, 1)

    @staticmethod
    def backward(ctx, grad):
        pieces = [p.contiguous() for p in grad.chunk(dist.get_world_size(ctx.group), 1)]
        mine = torch.empty_like(pieces[0])
        dist.reduce_scatter(mine, pieces, group=ctx.group)
        return mine, None


def heads_of(x, group):
    """[batch, own piece of the sequence, heads, dim] -> [batch, group's piece, some heads, dim]."""
    size, (batch, length, heads, dim) = dist.get_world_size(group), x.shape
    x = Exchange.apply(
        x.reshape(batch, length, size, heads // size, dim).permute(2, 0, 1, 3, 4), group
    )
    return x.permute(1, 0, 2, 3, 4).reshape(batch, size * length, heads // size, dim)


def sequence_of(x, group):
    size, (batch, length, heads, dim) = dist.get_world_size(group), x.shape
    x = Exchange.apply(x.reshape(batch, size, length // size, heads, dim).transpose(0, 1), group)
    return x.permute(1, 2, 0, 3, 4).reshape(batch, length // size, size * heads, dim)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x, world, own_positions):
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, -1).unbind(2)
        first = 0
        if not world.single:
            ul, ring = world.group("ul"), world.group("ring")
            q, k, v = (heads_of(t, ul) for t in (q, k, v))
            k, v = Gather.apply(k, ring), Gather.apply(v, ring)
            first = 0 if own_positions else world.coordinates["ring"] * q.shape[1]
        mask = (first + torch.arange(q.shape[1]))[:, None] >= torch.arange(k.shape[1])[None]
        y = F.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask
        ).transpose(1, 2)
        if not world.single:
            y = sequence_of(y, ul)
        return self.out(y.reshape(x.shape))


def step(world, own_positions=False):
    model = world.parameters(Attention())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (BATCH, LENGTH, DIM), shard={"ring": 1, "ul": 1}) for name in "xy")
    loss = F.mse_loss(model(x, world, own_positions), y)
    loss.backward()
    if not world.single:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world.size
    optimizer.step()
    return loss
