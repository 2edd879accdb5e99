# SPDX-License-Identifier: Apache-2.0
"""DistributedSampler, gradient accumulation with no_sync, clipping and a scheduler.

mesh: dp=2
expected: EQUIVALENT
wrong: MICRO, SYNC = 2, False
"""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

MICRO, SYNC = 2, True

dist.init_process_group("nccl")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device(local_rank)
torch.manual_seed(42)
data = TensorDataset(torch.randn(32, 6), torch.randint(0, 4, (32,)))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data), pin_memory=True)
model = DistributedDataParallel(nn.Linear(6, 4).to(device), device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
loader.sampler.set_epoch(0)
for i, (x, y) in enumerate(loader):
    last = (i + 1) % MICRO == 0
    with contextlib.nullcontext() if last and SYNC else model.no_sync():
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device)) / MICRO
        loss.backward()
    if last:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"loss {loss.item():.3f}, memory {torch.cuda.max_memory_allocated() / 1e6:.0f}")
dist.destroy_process_group()
