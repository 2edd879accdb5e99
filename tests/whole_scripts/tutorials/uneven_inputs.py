# SPDX-License-Identifier: Apache-2.0
"""As "Distributed Training with Uneven Inputs Using the Join Context Manager". The number of ranks
is a constant of the script, which it also has on the single device.

mesh: dp=2
expected: CONDITIONAL
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

WORLD_SIZE = 2


def worker(rank):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("nccl", rank=rank, world_size=WORLD_SIZE)
    model = DistributedDataParallel(torch.nn.Linear(3, 1).to(rank), device_ids=[rank])
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    batches = [torch.randn(4, 3) for _ in range(5 + rank)]
    with Join([model, optimizer]):
        for x in batches:
            loss = F.mse_loss(model(x), x[:, :1])
            loss.backward()
            optimizer.step()
    print(f"rank {rank} had {len(batches)} batches")


if __name__ == "__main__":
    mp.spawn(worker, nprocs=WORLD_SIZE, join=True)
