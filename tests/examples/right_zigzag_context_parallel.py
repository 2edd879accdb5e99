# SPDX-License-Identifier: Apache-2.0
"""Context parallelism, zigzag.

Each rank has an early and a late piece of the sequence. Keys and values are gathered. Rotary tables
go by position.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"cp": 2}, "EQUIVALENT"
BATCH, LENGTH, DIM, HEADS = 2, 8, 16, 2


class Gather(torch.autograd.Function):
    """Along the sequence; its gradient is summed where the piece came from."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, x.contiguous(), group=group)
        return torch.cat(pieces, 2)

    @staticmethod
    def backward(ctx, grad):
        pieces = [p.contiguous() for p in grad.chunk(dist.get_world_size(ctx.group), 2)]
        mine = torch.empty_like(pieces[0])
        dist.reduce_scatter(mine, pieces, group=ctx.group)
        return mine, None


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x, cos, sin, mask, gather):
        q, k, v = (
            t.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)
            for t in self.qkv(x).chunk(3, -1)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, gather(k), gather(v), attn_mask=mask)
        return self.out(out.transpose(1, 2).reshape(x.shape))


def positions(rank, size):
    piece = LENGTH // (2 * size)
    return torch.cat(
        [torch.arange(k * piece, (k + 1) * piece) for k in (rank, 2 * size - 1 - rank)]
    )


def step(world, local_positions=False):
    model = Attention()
    world.parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (world.input(name, (BATCH, LENGTH, DIM)) for name in "xy")
    frequencies = 1 / 100 ** (torch.arange(0, DIM // HEADS, 2).float() / (DIM // HEADS))
    angles = torch.outer(torch.arange(LENGTH).float(), frequencies).repeat(1, 2)
    mine = torch.arange(LENGTH) if world.single else positions(world.rank, world.size)
    everyone = (
        torch.cat([positions(r, world.size) for r in range(world.size)])
        if not world.single
        else mine
    )
    group = None if world.single else world.group("cp")
    rotary = angles[torch.arange(len(mine)) if local_positions else mine]
    out = model(
        x[:, mine],
        rotary.cos(),
        rotary.sin(),
        mine[:, None] >= everyone[None],
        (lambda t: t) if world.single else lambda t: Gather.apply(t, group),
    )
    F.mse_loss(out, y[:, mine]).backward()
    if not world.single:
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM, group=group)
            p.grad /= world.size
    optimizer.step()
