# SPDX-License-Identifier: Apache-2.0
"""ZeRO's first stage by hand: each rank updates its part of one vector of all weights.

mesh: dp=2
expected: CONDITIONAL
wrong: SHARE = 1
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class ShardedAdamW:
    def __init__(self, parameters, lr):
        self.parameters = list(parameters)
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        flat = parameters_to_vector(self.parameters).detach()
        self.count = flat.numel()
        self.padding = -self.count % self.world
        flat = torch.cat([flat, flat.new_zeros(self.padding)])
        self.size = flat.numel() // self.world
        begin = self.rank * self.size
        self.master = flat[begin : begin + self.size].clone().requires_grad_()
        self.inner = torch.optim.AdamW([self.master], lr=lr)

    def step(self):
        gradient = torch.cat([p.grad.reshape(-1) for p in self.parameters])
        gradient = torch.cat([gradient, gradient.new_zeros(self.padding)])
        shard = torch.empty(self.size)
        dist.reduce_scatter_tensor(shard, gradient)
        shard /= SHARE
        square = (shard**2).sum()
        dist.all_reduce(square)
        self.master.grad = shard * torch.clamp(1.0 / (square.sqrt() + 1e-6), max=1.0)
        self.inner.step()
        new = torch.empty(self.size * self.world)
        dist.all_gather_into_tensor(new, self.master.detach())
        vector_to_parameters(new[: self.count], self.parameters)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


dist.init_process_group("gloo")
SHARE = dist.get_world_size()
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))
optimizer = ShardedAdamW(model.parameters(), 1e-2)
dataset = TensorDataset(torch.randn(24, 5), torch.randn(24, 3))
for x, y in DataLoader(dataset, 3, sampler=DistributedSampler(dataset)):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
