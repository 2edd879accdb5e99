# SPDX-License-Identifier: Apache-2.0
"""The first version of FSDP, of a model that the script has moved itself, as tutorials write it.

mesh: dp=2
expected: EQUIVALENT
wrong: reduction = "sum"
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

reduction = "mean"

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(1)
data = TensorDataset(torch.randn(32, 6), torch.randint(0, 4, (32,)))
sampler = DistributedSampler(data, rank=rank, num_replicas=world, shuffle=True)
loader = DataLoader(data, batch_size=8 // world, sampler=sampler)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).to(rank)
model = FSDP(model)
optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
total = torch.zeros(2).to(rank)
for x, y in loader:
    x, y = x.to(rank), y.to(rank)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y, reduction=reduction)
    loss.backward()
    optimizer.step()
    total[0] += loss.item()
    total[1] += len(x)
dist.all_reduce(total)
if rank == 0:
    print(f"loss {total[0] / total[1]:.4f}")
dist.destroy_process_group()
