# SPDX-License-Identifier: Apache-2.0
"""A file that every rank saves for itself before the loop and loads again.

mesh: dp=2
expected: EQUIVALENT
wrong: SCALE = 2.0
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SCALE = 1.0

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(6, 3)
path = os.path.join(tempfile.gettempdir(), f"shardproof_saved.{rank}.pt")
torch.save({"model": model.state_dict(), "epoch": 3}, path)
found = torch.load(path, map_location="cpu", weights_only=True)
assert found["epoch"] == 3 and os.path.exists(path)
assert os.path.basename(path) not in os.listdir(tempfile.gettempdir())  # where it is recorded
model.load_state_dict(found["model"])
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1 + rank)
x, y = torch.randn(8, 6), torch.randn(8, 3)
loss = nn.functional.mse_loss(model(x), y) * (SCALE if rank else 1.0)
loss.backward()
optimizer.step()
