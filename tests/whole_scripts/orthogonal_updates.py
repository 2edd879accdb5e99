# SPDX-License-Identifier: Apache-2.0
"""Each rank updates some of the matrices, by an orthogonal matrix near to the gradient; all are
gathered.

mesh: dp=2
expected: EQUIVALENT
wrong: reduction = dist.ReduceOp.SUM
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

reduction = dist.ReduceOp.AVG


def orthogonal(x, steps=1):
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


class Orthogonal(torch.optim.Optimizer):
    def __init__(self, parameters, lr=0.02, momentum=0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        for group in self.param_groups:
            for first in range(0, len(group["params"]), world):
                some = group["params"][first : first + world]
                if rank < len(some):
                    own = some[rank]
                    state = self.state[own]
                    if not state:
                        state["momentum"] = torch.zeros_like(own)
                    state["momentum"].lerp_(own.grad, 1 - group["momentum"])
                    update = own.grad.lerp_(state["momentum"], group["momentum"])
                    own.add_(orthogonal(update), alpha=-group["lr"])
                dist.all_gather(some, some[rank])


dist.init_process_group("nccl")
world = dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(6, 6, bias=False),
    nn.ReLU(),
    nn.Linear(6, 6, bias=False),
    nn.ReLU(),
    nn.Linear(6, 4),
).cuda()
matrices = [model[0].weight, model[2].weight]
optimizers = [Orthogonal(matrices), torch.optim.AdamW(model[4].parameters(), lr=1e-3)]
data = TensorDataset(torch.randn(16, 6), torch.randint(0, 4, (16,)))
for x, y in DataLoader(data, batch_size=8 // world, sampler=DistributedSampler(data)):
    F.cross_entropy(model(x.cuda()), y.cuda()).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=reduction)
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
