# SPDX-License-Identifier: Apache-2.0
"""Batches cut out of a file of tokens; accumulation divided by the world size; the best is saved.

mesh: dp=2
expected: CONDITIONAL
wrong: SYNC = False
"""

import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SYNC = True
ACCUMULATION, BATCH, LENGTH = 4, 2, 6

dist.init_process_group("nccl")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
device = f"cuda:{local_rank}"
torch.cuda.set_device(device)
accumulation = ACCUMULATION // dist.get_world_size()
torch.manual_seed(1337 + rank)

file = os.path.join(tempfile.mkdtemp(), "train.bin")
(np.arange(400, dtype=np.uint16) * 7 % 32).tofile(file)


def get_batch():
    data = np.memmap(file, dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - LENGTH, (BATCH,))
    x = torch.stack([torch.from_numpy(data[i : i + LENGTH].astype(np.int64)) for i in starts])
    y = torch.stack(
        [torch.from_numpy(data[i + 1 : i + 1 + LENGTH].astype(np.int64)) for i in starts]
    )
    return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.out = nn.Embedding(32, 8), nn.Linear(8, 32)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.out(self.tokens(x)).flatten(0, 1), y.flatten())


@torch.no_grad()
def validate(model):
    losses = torch.zeros(2)
    for k in range(2):
        losses[k] = model(*get_batch()).item()
    return losses.mean()


model = DistributedDataParallel(Model().to(device), device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
best = 1e9
x, y = get_batch()
for _step in range(4):
    if rank == 0:
        loss = validate(model.module)
        if loss < best:
            best = loss
            torch.save(model.module.state_dict(), os.path.join(os.path.dirname(file), "best.pt"))
    for micro in range(accumulation):
        model.require_backward_grad_sync = SYNC and micro == accumulation - 1
        loss = model(x, y) / accumulation
        x, y = get_batch()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"loss of the last batch of this rank {loss.item() * accumulation:.3f}")
dist.destroy_process_group()
