# SPDX-License-Identifier: Apache-2.0
"""Processes by mp.spawn, and GPUs by their numbers.

mesh: dp=2
expected: EQUIVALENT
wrong: REDUCES = False
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

REDUCES = True


def train(rank: int, world_size: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 5)).to(rank)
    wrapped = DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    x, y = torch.randn(20, 10, device=rank), torch.randn(20, 5).to(rank)
    loss = nn.functional.mse_loss((wrapped if REDUCES else model)(x), y)
    loss.backward()
    if not REDUCES:
        for p in model.parameters():
            dist.all_reduce(p.grad)  # the sum of means, not their mean
    optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    count = torch.cuda.device_count()
    assert count == torch.accelerator.device_count()
    assert count >= 2, f"at least 2 GPUs, but there are {count}"
    mp.spawn(train, args=(count,), nprocs=count, join=True)
