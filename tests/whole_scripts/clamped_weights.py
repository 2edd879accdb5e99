# SPDX-License-Identifier: Apache-2.0
"""After the step the weights are clamped, and a slow copy of them follows.

mesh: dp=2
expected: EQUIVALENT
wrong: BOUND = (0.01, 0.05)[rank]
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
BOUND = 0.01
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 6))
loader = DataLoader(data, batch_size=8 // world, sampler=DistributedSampler(data))
critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
slow = copy.deepcopy(critic).requires_grad_(False)
wrapped = DistributedDataParallel(critic)
optimizer = torch.optim.RMSprop(wrapped.parameters(), lr=5e-5)
for (x,) in loader:
    optimizer.zero_grad()
    loss = wrapped(x.flip(-1)).mean() - wrapped(x).mean()
    loss.backward()
    optimizer.step()
    for p in wrapped.parameters():
        p.data.clamp_(-BOUND, BOUND)
    with torch.no_grad():
        for s, p in zip(slow.parameters(), critic.parameters()):
            s.mul_(0.9).add_(p, alpha=0.1)
    optimizer.zero_grad()
