# SPDX-License-Identifier: Apache-2.0
"""Context parallelism with torch.distributed.tensor.experimental.context_parallel.

Causal ring attention with gathered keys and values. Each rank has an early and a late piece of the
sequence.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.experimental import context_parallel

MESH, EXPECT = {"cp": 2}, "EQUIVALENT"
BATCH, LENGTH, DIM, HEADS = 2, 8, 16, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            layer(x).view(x.shape[0], -1, HEADS, DIM // HEADS).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(x.shape))


def step(world, cut_targets=True):
    model = Attention()
    world.parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (world.input(name, (BATCH, LENGTH, DIM)) for name in "xy")
    if world.single:
        F.mse_loss(model(x), y).backward()
    else:
        buffers = [x, y] if cut_targets else [x]
        with context_parallel(
            world.mesh("cp"), buffers=buffers, buffer_seq_dims=[1] * len(buffers)
        ):
            mine = y if cut_targets else y.chunk(world.size, 1)[world.rank]
            F.mse_loss(model(x), mine).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=world.group("cp"))
            p.grad /= world.size
    optimizer.step()
