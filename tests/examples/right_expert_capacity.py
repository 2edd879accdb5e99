# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts with a capacity (GShard).

One-hot matrices keep the first tokens of each expert. Single device and ranks run different code.
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"ep": 2}, "EQUIVALENT"
DIM, EXPERTS, CAPACITY = 8, 4, 4


class Experts(nn.Module):
    def __init__(self, group=None):
        super().__init__()
        self.group, self.size = group, group.size() if group is not None else 1
        self.local = EXPERTS // self.size
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(self.local, DIM, 2 * DIM))
        self.down = nn.Parameter(torch.randn(self.local, 2 * DIM, DIM))

    def exchange(self, x):
        return collectives.all_to_all_single_autograd(x.contiguous(), None, None, self.group)

    def forward(self, x):
        weight, chosen = F.softmax(self.gate(x), -1).max(-1)
        hot = F.one_hot(chosen, EXPERTS).to(x.dtype)
        place = (hot.cumsum(0) - 1) * hot
        kept = (place < CAPACITY).to(x.dtype) * hot
        sent = kept.unsqueeze(-1) * (place.unsqueeze(-1) == torch.arange(CAPACITY)).to(x.dtype)
        h = torch.einsum("tec,td->ecd", sent, x)
        if self.size > 1:
            h = (
                self.exchange(h)
                .view(self.size, self.local, CAPACITY, DIM)
                .transpose(0, 1)
                .flatten(1, 2)
            )
        h = torch.bmm(F.relu(torch.bmm(h, self.up)), self.down)
        if self.size > 1:
            h = self.exchange(
                h.view(self.local, self.size, CAPACITY, DIM)
                .transpose(0, 1)
                .reshape(EXPERTS, CAPACITY, DIM)
            )
        return torch.einsum("tec,ecd->td", sent * weight[:, None, None], h)


def single(world):
    """The capacity is that of a rank's share, so each share is routed by itself."""
    model = Experts()
    x, y = (world.input(name, (16, DIM)) for name in "xy")
    loss = F.mse_loss(torch.cat([model(share) for share in x.chunk(2)]), y)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss


def step(world, divided=True):
    model = Experts(world.group("ep"))
    world.parameters(model, shard={"up|down": {"ep": 0}})
    x, y = (world.input(name, (16, DIM), shard={"ep": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    dist.all_reduce(model.gate.weight.grad, op=dist.ReduceOp.AVG, group=world.group("ep"))
    if divided:  # experts have seen the tokens of all ranks, whose losses are means of their own
        model.up.grad /= world.size
        model.down.grad /= world.size
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss
