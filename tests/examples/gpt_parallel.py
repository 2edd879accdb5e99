# SPDX-License-Identifier: Apache-2.0
"""A GPT cut by hand over tp, with sequence parallelism.

The vocabulary-parallel embedding is tied. Attention has grouped keys and rotary positions. The loss
uses scatter_add_.
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

VOCAB, DIM, HEADS, KEYS, SEQ, BATCH = 32, 16, 4, 2, 8, 4


class Gather(torch.autograd.Function):
    """Along the sequence, dimension 0; backward adds up and keeps the own part."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = torch.empty((x.shape[0] * group.size(), *x.shape[1:]), dtype=x.dtype)
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty((grad.shape[0] // ctx.group.size(), *grad.shape[1:]), dtype=grad.dtype)
        dist.reduce_scatter_tensor(out, grad.contiguous(), group=ctx.group)
        return out, None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = torch.empty((x.shape[0] // group.size(), *x.shape[1:]), dtype=x.dtype)
        dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty((grad.shape[0] * ctx.group.size(), *grad.shape[1:]), dtype=grad.dtype)
        dist.all_gather_into_tensor(out, grad.contiguous(), group=ctx.group)
        return out, None


class VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, group):
        top = logits.amax(-1)
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
        logits = logits - top[..., None]
        part = logits.shape[-1]
        low = group.rank() * part
        outside = (labels < low) | (labels >= low + part)
        local = (labels - low).masked_fill(outside, 0)
        own = logits.gather(-1, local[..., None]).squeeze(-1).masked_fill(outside, 0.0)
        exp = logits.exp()
        total = exp.sum(-1)
        dist.all_reduce(own, group=group)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(exp / total[..., None], outside, local)
        return total.log() - own

    @staticmethod
    def backward(ctx, grad):
        softmax, outside, local = ctx.saved_tensors
        result = softmax.clone()
        result.scatter_add_(-1, local[..., None], (outside.to(result.dtype) - 1.0)[..., None])
        return result * grad[..., None], None, None


def rotate(x):
    """x: [sequence, batch, heads, size]"""
    frequencies = 10000.0 ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float32) / x.shape[-1])
    angles = torch.outer(torch.arange(x.shape[0], dtype=torch.float32), frequencies)
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention(nn.Module):
    def __init__(self, ranks):
        super().__init__()
        self.heads, self.keys, self.size = HEADS // ranks, KEYS // ranks, DIM // HEADS
        self.q, self.k, self.v = (
            nn.Linear(DIM, n * self.size, bias=False) for n in (self.heads, self.keys, self.keys)
        )
        self.out = nn.Linear(self.heads * self.size, DIM, bias=False)

    def forward(self, x):
        s, b, _ = x.shape
        q, k, v = (w(x).reshape(s, b, -1, self.size) for w in (self.q, self.k, self.v))
        q, k = rotate(q), rotate(k)
        q, k, v = (
            t.repeat_interleave(self.heads // t.shape[2], 2).permute(1, 2, 0, 3) for t in (q, k, v)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.size) + torch.full(
            (s, s), float("-inf")
        ).triu(1)
        return self.out((scores.softmax(-1) @ v).permute(2, 0, 1, 3).reshape(s, b, -1))


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.norm1, self.norm2, self.attention = (
            nn.LayerNorm(DIM),
            nn.LayerNorm(DIM),
            Attention(group.size()),
        )
        self.up, self.down = (
            nn.Linear(DIM, 4 * DIM // group.size()),
            nn.Linear(4 * DIM // group.size(), DIM, bias=False),
        )
        self.down_bias = nn.Parameter(torch.zeros(DIM))

    def forward(self, x):
        x = x + Scatter.apply(self.attention(Gather.apply(self.norm1(x), self.group)), self.group)
        return (
            x
            + Scatter.apply(
                self.down(F.gelu(self.up(Gather.apply(self.norm2(x), self.group)))), self.group
            )
            + self.down_bias
        )


class GPT(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group, self.part = group, VOCAB // group.size()
        self.low = group.rank() * self.part
        self.embedding = nn.Embedding(self.part, DIM)
        self.blocks = nn.ModuleList([Block(group)])
        self.norm = nn.LayerNorm(DIM)

    def forward(self, tokens):
        outside = (tokens < self.low) | (tokens >= self.low + self.part)
        h = (
            F.embedding((tokens - self.low).masked_fill(outside, 0), self.embedding.weight)
            * (~outside)[..., None]
        )
        h = Scatter.apply(h, self.group)
        for block in self.blocks:
            h = block(h)
        return F.linear(Gather.apply(self.norm(h), self.group), self.embedding.weight)


SHARD = {
    r"embedding\.weight|.*\.(q|k|v)\.weight|.*up\.(weight|bias)": {"tp": 0},
    r".*(down|out)\.weight": {"tp": 1},
}


def step(world, summed=("norm", "bias")):
    """`summed`: names of parameters whose gradients are summed.

    Each rank saw a part of the sequence only.
    """
    group = world.group("tp")
    model = world.parameters(GPT(group), SHARD)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, labels = (
        world.input(name, (BATCH, SEQ), torch.long, high=VOCAB).t() for name in ("tokens", "labels")
    )
    loss = VocabularyLoss.apply(model(tokens), labels, group).mean()
    loss.backward()
    works = [
        dist.all_reduce(p.grad, group=group, async_op=True)
        for name, p in model.named_parameters()
        if "up.bias" not in name and any(s in name for s in summed)
    ]
    for work in works:
        work.wait()
    optimizer.step()
    return loss
