# SPDX-License-Identifier: Apache-2.0
"""As the examples of "Large Scale Transformer model training with Tensor Parallel": columns and
rows, then sequence parallel, of a compiled model.

mesh: tp=2
expected: EQUIVALENT
wrong: SCALE = 0.5
"""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

SCALE = 1.0


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(10, 32), nn.Linear(32, 5)

    def forward(self, x):
        return self.out_proj(torch.relu(self.in_proj(x)))


assert torch.cuda.device_count() >= 2
ranks = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cuda", (ranks,))
plain = parallelize_module(
    Toy().to("cuda"), mesh, {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()}
)
by_sequence = parallelize_module(
    Toy().to("cuda"),
    mesh,
    {
        "in_proj": ColwiseParallel(input_layouts=Shard(0)),
        "out_proj": RowwiseParallel(output_layouts=Shard(0)),
    },
)
by_sequence = torch.compile(by_sequence)
optimizers = [
    torch.optim.AdamW(m.parameters(), lr=0.25, foreach=True) for m in (plain, by_sequence)
]
for step in range(3):
    torch.manual_seed(step)  # one batch on all ranks
    x = torch.rand(20, 10, device="cuda")
    mine = x.chunk(ranks)[mesh.get_local_rank()]
    for model, batch in ((plain, x), (by_sequence, mine)):
        (model(batch).sum() * (SCALE if ranks > 1 else 1.0)).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    print(f"step {step} of rank {mesh.get_rank()}")
