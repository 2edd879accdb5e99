# SPDX-License-Identifier: Apache-2.0
"""As "Shard Optimizer States with ZeroRedundancyOptimizer". All ranks have one seed, and so one
batch.

mesh: dp=2
expected: CONDITIONAL
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def example(rank, world_size, sharded):
    torch.manual_seed(0)
    torch.cuda.manual_seed(0)
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    model = nn.Sequential(*[nn.Linear(20, 20).to(rank) for _ in range(3)])
    if rank == 0:
        print(f"{torch.cuda.max_memory_allocated(rank) // 1e6} MB")
    model = DistributedDataParallel(model, device_ids=[rank])
    if sharded:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    y = model(torch.randn(20, 20).to(rank))
    nn.MSELoss()(y, torch.randn(20, 20).to(rank)).backward()
    optimizer.step()
    print(f"sum of parameters: {sum(p.sum() for p in model.parameters())}")


if __name__ == "__main__":
    world_size = 2
    mp.spawn(example, args=(world_size, True), nprocs=world_size, join=True)
