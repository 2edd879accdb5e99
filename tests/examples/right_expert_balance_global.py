# SPDX-License-Identifier: Apache-2.0
"""Top-1 experts with a load-balancing loss.

Shares and probabilities are those of all ranks' tokens.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"
DIM, EXPERTS, TOKENS = 8, 4, 8


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.weight = (
            nn.Linear(DIM, EXPERTS, bias=False),
            nn.Parameter(torch.randn(EXPERTS, DIM, DIM)),
        )

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        top, chosen = p.max(-1)
        hot = F.one_hot(chosen, EXPERTS).to(x.dtype)
        return (
            (torch.einsum("td,edf->tef", x, self.weight) * (hot * top[:, None])[..., None]).sum(1),
            p,
            hot,
        )


def step(world, of_all=True):
    model = MoE()
    world.parameters(model)
    x, y = (world.input(name, (TOKENS, DIM), shard={"dp": 0}) for name in "xy")
    out, p, hot = model(x)
    share, probability = hot.mean(0), p.mean(0)
    if of_all and not world.single:
        dist.all_reduce(share)
        share = share / world.size
        probability = torch.distributed.nn.functional.all_reduce(probability) / world.size
    loss = F.mse_loss(out, y) + 0.01 * EXPERTS * (share * probability).sum()
    loss.backward()
    if not world.single:
        for q in model.parameters():
            dist.all_reduce(q.grad)
            q.grad /= world.size
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss
