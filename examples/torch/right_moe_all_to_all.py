# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts with expert parallelism.

Top-2 routing, every expert sees every token, static all-to-all.
"""

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"ep": 2}, "EQUIVALENT"
DIM, EXPERTS, TOKENS = 8, 4, 8


class MoE(nn.Module):
    def __init__(self, size, group, swapped):
        super().__init__()
        self.size, self.group, self.swapped, self.local = size, group, swapped, EXPERTS // size
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(self.local, DIM, 2 * DIM))
        self.down = nn.Parameter(torch.randn(self.local, 2 * DIM, DIM))

    def exchange(self, x):
        """Sends the n-th part of x to rank n."""
        if self.size == 1:
            return x
        return collectives.all_to_all_single_autograd(x.contiguous(), None, None, self.group)

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        combine = torch.zeros(x.shape[0], EXPERTS).scatter(
            1, chosen, weights / weights.sum(-1, keepdim=True)
        )
        # [rank, expert, token, dim] as received; experts take [expert, all ranks' tokens, dim].
        received = self.exchange(x.expand(EXPERTS, *x.shape))
        received = received.view(self.size, self.local, *x.shape).transpose(0, 1)
        hidden = F.silu(torch.bmm(received.reshape(self.local, -1, DIM), self.up))
        results = torch.bmm(hidden, self.down).view(self.local, self.size, *x.shape)
        if not self.swapped:
            results = results.transpose(0, 1)
        back = self.exchange(results.reshape(EXPERTS, *x.shape))
        return torch.einsum("te,etd->td", combine, back)


def step(world, divide=True, swapped=False):
    group = None if world.single else world.group("ep")
    model = MoE(world.size, group, swapped)
    world.parameters(model, shard={"up|down": {"ep": 0}})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (world.input(name, (TOKENS, DIM), shard={"ep": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    if not world.single:
        dist.all_reduce(model.gate.weight.grad, op=dist.ReduceOp.SUM, group=group)
        model.gate.weight.grad /= world.size
        if divide:
            # Experts have the tokens of all ranks already, whose losses are local means.
            for p in (model.up, model.down):
                p.grad /= world.size
    optimizer.step()
    return loss


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
