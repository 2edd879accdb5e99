# SPDX-License-Identifier: Apache-2.0
"""Momentum of a padded shard of all weights, in plain tensors, and an average of the shard.

mesh: dp=4
expected: EQUIVALENT
wrong: DECAY = 0.9 / dist.get_world_size()
wrong: SHARE = 1.0
wrong: AVERAGE = 0.01 * dist.get_world_size()
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
DECAY = 0.9  # shows in the second step
SHARE = 1 / world
AVERAGE = 0.01
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
flat = parameters_to_vector(model.parameters()).detach()
numel = flat.numel()
more = -numel % world
flat = torch.cat([flat, flat.new_zeros(more)])
n = flat.numel() // world
shard = flat[rank * n : (rank + 1) * n].clone()
momentum = torch.zeros_like(shard)
average = shard.clone()
torch.manual_seed(10 + rank)
for _ in range(40):
    x, y = torch.randn(4, 5), torch.randn(4, 3)
    for p in model.parameters():
        p.grad = None
    F.mse_loss(model(x), y).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()] + [torch.zeros(more)])
    mine = torch.empty(n)
    dist.reduce_scatter_tensor(mine, gradient)
    momentum.mul_(DECAY).add_(mine * SHARE)
    shard -= 0.1 * momentum
    average.mul_(1 - AVERAGE).add_(AVERAGE * shard)
    full = torch.empty(n * world)
    dist.all_gather_into_tensor(full, shard)
    vector_to_parameters(full[:numel], model.parameters())
dist.destroy_process_group()
