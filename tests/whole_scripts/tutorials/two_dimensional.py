# SPDX-License-Identifier: Apache-2.0
"""As "Large Scale Transformer model training with Tensor Parallel", FSDP with tensor and sequence
parallel: gradients that nothing clears, and seeds of step + rank, so that ranks see samples twice.

mesh: dp=2,tp=2
expected: CONDITIONAL
wrong: REDUCTION = torch.sum
"""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

REDUCTION = torch.mean
WORDS, WIDTH = 24, 16


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 32, bias=False) for _ in range(2))
        self.w2 = nn.Linear(32, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.feed_forward = nn.RMSNorm(WIDTH), FeedForward()

    def forward(self, x):
        return x + self.feed_forward(self.norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        h = self.words(ids)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


ranks = int(os.environ["WORLD_SIZE"])
tp = min(2, ranks)
mesh = init_device_mesh("cuda", (ranks // tp, tp), mesh_dim_names=("dp", "tp"))
model = parallelize_module(
    Model().to("cuda"),
    mesh["tp"],
    {
        "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
)
for layer in model.layers:
    plan = {
        "norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward.w3": ColwiseParallel(),
    }
    parallelize_module(layer, mesh["tp"], plan)
model = fully_shard(model, mesh=mesh["dp"])
print(f"{model=}")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
for step in range(10):
    torch.manual_seed(step + mesh["dp"].get_local_rank())  # one batch within a tp group
    ids = torch.randint(WORDS, (4, 8), device="cuda")
    REDUCTION(model(ids)).backward()
    optimizer.step()
