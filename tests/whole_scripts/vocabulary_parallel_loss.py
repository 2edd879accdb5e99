# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy of logits whose vocabulary is cut into padded parts: padding is masked with minus
infinity, and the greatest logit is found by each rank's greatest and its place.

mesh: tp=4
expected: EQUIVALENT
wrong: MASKED = False
wrong: LESS = 1
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MASKED = True  # logits of padding do not count
LESS = 0  # so many of its last rows a rank does not look for
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


class Head(nn.Module):
    def __init__(self, dim):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.rows = -(-VOCABULARY // world)
        self.first = rank * self.rows
        whole = F.pad(torch.randn(VOCABULARY, dim), (0, 0, 0, self.rows * world - VOCABULARY))
        self.weight = nn.Parameter(whole[self.first : self.first + self.rows].clone())

    def forward(self, x):
        logits = F.linear(Copy.apply(x), self.weight)
        if MASKED:
            padding = self.first + torch.arange(self.rows) >= VOCABULARY
            logits = logits.masked_fill(padding, float("-inf"))
        return logits

    def loss(self, logits, y):
        most = logits.detach().max(-1).values
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        total = Reduce.apply((logits - most[:, None]).exp().sum(-1))
        others = (y < self.first) | (y >= self.first + self.rows - LESS)
        place = (y - self.first).masked_fill(others, 0)
        mine = logits.gather(1, place[:, None])[:, 0].masked_fill(others, 0.0)
        return (total.log() + most - Reduce.apply(mine)).mean()

    def right(self, logits, y):
        values, places = logits.detach().max(-1)
        world = dist.get_world_size()
        all_values = [torch.empty_like(values) for _ in range(world)]
        all_places = [torch.empty_like(places) for _ in range(world)]
        dist.all_gather(all_values, values)
        dist.all_gather(all_places, places + self.first)
        best = torch.stack(all_values, -1).argmax(-1, keepdim=True)
        return torch.stack(all_places, -1).gather(-1, best)[:, 0] == y


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    body, head = nn.Linear(6, 8), Head(8)
    optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3)
    for step in range(2):
        x, y = torch.randn(5, 6), torch.randint(0, VOCABULARY, (5,))
        logits = head(body(x).tanh())
        loss = head.loss(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = head.right(logits, y).float().mean()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f} right {right.item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
