# SPDX-License-Identifier: Apache-2.0
"""Causal linear attention with the sequence cut over ranks.

Each rank starts from the states at the end of the ranks before it.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"sp": 2}, "EQUIVALENT"


class LinearAttention(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x, before):
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        state, norm = torch.cumsum(torch.einsum("sd,se->sde", k, v), 0), torch.cumsum(k, 0)
        state, norm = state + before(state[-1]), norm + before(norm[-1])
        return torch.einsum("sd,sde->se", q, state) / torch.einsum("sd,sd->s", q, norm)[:, None]


def step(world, own=0):
    model = LinearAttention()
    world.parameters(model)
    x, y = (world.input(name, (8, 8), shard={"sp": 0}) for name in "xy")

    def before(last):
        """The sum of the final states of the ranks before this one.

        All ranks gather, and take part in backward.
        """
        if world.single:
            return torch.zeros_like(last)
        every = torch.distributed.nn.all_gather(last.contiguous())
        return sum(t * (r < world.rank + own) for r, t in enumerate(every))

    loss = F.mse_loss(model(x, before), y)
    loss.backward()
    if not world.single:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world.size
    return loss
