# SPDX-License-Identifier: Apache-2.0
"""Sequence parallel attention as in Ulysses.

All-to-all from sequence shards to head shards and back.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"sp": 2}, "EQUIVALENT"
DIM, HEADS = 16, 4


class Exchange(torch.autograd.Function):
    """Cuts one dimension and joins the other over the group."""

    @staticmethod
    def forward(ctx, x, cut, join, group):
        ctx.back = join, cut, group
        sent = [t.contiguous() for t in x.chunk(dist.get_world_size(group), cut)]
        received = [torch.empty_like(t) for t in sent]
        dist.all_to_all(received, sent, group=group)
        return torch.cat(received, join)

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad, *ctx.back), None, None, None


def step(world, reduced=True):
    model = nn.ModuleDict({"qkv": nn.Linear(DIM, 3 * DIM), "out": nn.Linear(DIM, DIM)})
    world.parameters(model)
    x, y = (world.input(name, (2, 8, DIM), shard={"sp": 1}) for name in "xy")
    q, k, v = (t.unflatten(-1, (HEADS, DIM // HEADS)) for t in model["qkv"](x).chunk(3, -1))
    if not world.single:
        q, k, v = (Exchange.apply(t, 2, 1, world.group("sp")) for t in (q, k, v))
    attended = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    ).transpose(1, 2)
    if not world.single:
        attended = Exchange.apply(attended, 1, 2, world.group("sp"))
    loss = F.mse_loss(model["out"](attended.flatten(2)), y)
    loss.backward()
    if not world.single and reduced:
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=world.group("sp"))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss
