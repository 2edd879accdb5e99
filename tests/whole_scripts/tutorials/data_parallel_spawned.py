# SPDX-License-Identifier: Apache-2.0
"""As "Getting Started with Distributed Data Parallel": processes that are spawned for each GPU, and
a checkpoint of the first rank that all load.

mesh: dp=2
expected: EQUIVALENT
wrong: REDUCTION = "sum"
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

REDUCTION = "mean"


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def setup(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    device = torch.accelerator.current_accelerator()
    backend = dist.get_default_backend_for_device(device) if device else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=world_size)


def demo(rank, world_size):
    print(f"rank {rank} of {world_size}")
    setup(rank, world_size)
    model = DDP(Toy().to(rank), device_ids=[rank])
    path = os.path.join(tempfile.gettempdir(), "shardproof_tutorial.checkpoint")
    if rank == 0:
        torch.save(model.state_dict(), path)
    dist.barrier()
    places = {"cuda:0": f"cuda:{rank}"}
    model.load_state_dict(torch.load(path, map_location=places, weights_only=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer.zero_grad()
    labels = torch.randn(20, 5).to(rank)
    nn.MSELoss(reduction=REDUCTION)(model(torch.randn(20, 10)), labels).backward()
    optimizer.step()
    dist.barrier()
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    gpus = torch.accelerator.device_count()
    assert gpus >= 2, f"needs two GPUs, found {gpus}"
    mp.spawn(demo, args=(gpus,), nprocs=gpus, join=True)
