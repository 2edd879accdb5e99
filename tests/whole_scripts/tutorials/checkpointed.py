# SPDX-License-Identifier: Apache-2.0
"""As "Getting Started with Distributed Checkpoint (DCP)": model and optimizer as one stateful
object, saved after the step.

mesh: dp=2
expected: EQUIVALENT
"""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard


class App(Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, found):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )


def save(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    model = fully_shard(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(rank))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer.zero_grad()
    y = model(torch.rand(8, 8, device="cuda"))
    nn.MSELoss()(y, torch.rand(8, 4, device="cuda")).backward()
    optimizer.step()
    dcp.save({"app": App(model, optimizer)}, checkpoint_id="checkpoint")
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = torch.cuda.device_count()
    mp.spawn(save, args=(world_size,), nprocs=world_size, join=True)
