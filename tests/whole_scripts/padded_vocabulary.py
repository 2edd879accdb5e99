# SPDX-License-Identifier: Apache-2.0
"""A vocabulary and hidden units that no number of ranks divides: parts are padded to one size.

Each rank draws its own rows of the vocabulary, more than there are; and it cuts its part of the
hidden units of what all draw, padded with zeros.

mesh: tp=4
expected: EQUIVALENT
wrong: CUT = False
wrong: FILL = 1.0
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

CUT = True  # logits of rows that are padding do not count
FILL = 0.0  # what hidden units are padded with
VOCABULARY = 11


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx, g):
        return g.chunk(dist.get_world_size(), -1)[dist.get_rank()].contiguous()


class Embedding(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.rows = -(-vocabulary // dist.get_world_size())
        self.first = self.rows * dist.get_rank()
        self.weight = nn.Parameter(torch.randn(self.rows, dim))

    def forward(self, x):
        others = (x < self.first) | (x >= self.first + self.rows)
        h = F.embedding((x - self.first).masked_fill(others, 0), self.weight)
        return Reduce.apply(h.masked_fill(others[..., None], 0.0))


class Mlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        n = -(-hidden // world)
        more, mine = n * world - hidden, slice(rank * n, (rank + 1) * n)
        generator = torch.Generator().manual_seed(3)
        up = torch.randn(hidden, dim, generator=generator)
        down = torch.randn(dim, hidden, generator=generator)
        bias = F.pad(torch.zeros(hidden), (0, more), value=FILL)
        self.up = nn.Parameter(F.pad(up, (0, 0, 0, more), value=FILL)[mine].clone())
        self.bias = nn.Parameter(bias[mine].clone())
        self.down = nn.Parameter(F.pad(down, (0, more), value=FILL)[:, mine].clone())

    def forward(self, x):
        return x + Reduce.apply(
            F.linear(F.gelu(F.linear(Copy.apply(x), self.up, self.bias)), self.down)
        )


class Head(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.vocabulary = vocabulary if CUT else None
        self.weight = nn.Parameter(torch.randn(-(-vocabulary // dist.get_world_size()), dim))

    def forward(self, x):
        return Gather.apply(F.linear(Copy.apply(x), self.weight))[..., : self.vocabulary]


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1 + dist.get_rank())
    model = nn.Sequential(
        Embedding(VOCABULARY, 8), nn.LayerNorm(8), Mlp(8, 10), Head(VOCABULARY, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(7)
    for step in range(2):
        ids = torch.randint(0, VOCABULARY, (2, 7))
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
