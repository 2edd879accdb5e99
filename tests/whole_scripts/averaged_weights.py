# SPDX-License-Identifier: Apache-2.0
"""After the step: a scheduler, averaged weights, and the loss of all ranks, which is printed.

mesh: dp=2
expected: EQUIVALENT
wrong: RANKS = 1
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
RANKS = world
device = torch.device("cuda", rank)
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 6), torch.randint(0, 4, (32,)))
loader = DataLoader(data, batch_size=8 // world, sampler=DistributedSampler(data))
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
wrapped = DistributedDataParallel(model, device_ids=[rank])
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 10))
for x, y in loader:
    loss = F.cross_entropy(wrapped(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    averaged.update_parameters(model)
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    if rank == 0:
        print(f"loss {shown.item() / RANKS:.4f}, of this rank {loss:.4f}")
