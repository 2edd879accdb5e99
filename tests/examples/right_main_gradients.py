# SPDX-License-Identifier: Apache-2.0
"""Hooks add up the gradients of two microbatches in separate buffers (Megatron's main_grad).

A coalesced all-reduce reduces them.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import MLP
from torch.distributed.distributed_c10d import _coalescing_manager

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world, add=True):
    model = MLP()
    main = {p: torch.zeros_like(p) for p in model.parameters()}

    def keep(p):
        if add or world.single:
            main[p].add_(p.grad)
        else:
            main[p].copy_(p.grad)
        p.grad = None

    for p in main:
        p.register_post_accumulate_grad_hook(keep)
    x, y = (world.input(name, (8, 16), shard={"dp": 0}) for name in "xy")
    total = 0
    for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
        loss = F.mse_loss(model(part), target) / 2
        loss.backward()
        total = total + loss.detach()
    if not world.single:
        with _coalescing_manager(async_ops=True) as works:
            for grad in main.values():
                dist.all_reduce(grad)
        works.wait()
    for p, grad in main.items():
        p.grad = grad / world.size
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return total
