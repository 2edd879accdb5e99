# SPDX-License-Identifier: Apache-2.0
"""Weights that are fused into one matrix, of which each rank cuts its part of each.

mesh: tp=2
expected: EQUIVALENT
wrong: EACH = False
wrong: OWN = False
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

EACH = True  # a rank has a part of each of the weights that are fused
OWN = True  # it is its own


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.head_dim = dim // heads
        self.wqkv = nn.Linear(dim, 3 * dim)
        self.wo = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.wqkv.bias)  # tells nothing: it is cut as the weight is
        self.tp = 1

    def forward(self, x):
        b, t, _ = x.shape
        x = Enter.apply(x)
        size = self.heads * self.head_dim
        q, k, v = self.wqkv(x).split([size, size, size], dim=-1)
        q, k, v = (z.view(b, t, self.heads, self.head_dim).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = self.wo(y.transpose(1, 2).reshape(b, t, size))
        return Leave.apply(y)


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class MLP(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w13 = nn.Linear(dim, 8 * dim, bias=False)
        self.w2 = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        x = Enter.apply(x)
        a, b = self.w13(x).chunk(2, dim=-1)
        return Leave.apply(self.w2(F.silu(a) * b))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.mlp = Attention(dim, heads), MLP(dim)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, vocab=64, dim=16, heads=4, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx):
        x = self.emb(idx)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def rows_of(t, rank, world, parts):
    if not EACH:
        return t.chunk(world)[rank].clone()
    return torch.cat([p.chunk(world)[rank if OWN else 0] for p in t.chunk(parts)])


def apply_tp(model, rank, world):
    for b in model.blocks:
        a = b.attn
        a.wqkv.weight = nn.Parameter(rows_of(a.wqkv.weight.data, rank, world, 3))
        a.wqkv.bias = nn.Parameter(rows_of(a.wqkv.bias.data, rank, world, 3))
        a.wo.weight = nn.Parameter(a.wo.weight.data.chunk(world, 1)[rank].contiguous())
        a.heads //= world
        m = b.mlp
        m.w13.weight = nn.Parameter(rows_of(m.w13.weight.data, rank, world, 2))
        m.w2.weight = nn.Parameter(m.w2.weight.data.chunk(world, 1)[rank].contiguous())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = GPT()
    apply_tp(model, rank, world)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    data = torch.randint(0, 64, (4, 4, 9))
    for step in range(2):
        batch = data[step]
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 64), batch[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(step, loss.item())
    dist.destroy_process_group()


main()
