# SPDX-License-Identifier: Apache-2.0
"""Clipping by the largest gradient under FSDP2.

Parameters are sharded along their second dimension and stay gathered after forward. Accuracy is a
metric.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import MLP
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world, of_all=True):
    model = MLP()
    if not world.single:
        for layer in (model.up, model.down):
            fully_shard(
                layer,
                mesh=world.mesh("dp"),
                shard_placement_fn=lambda p: Shard(1),
                reshard_after_forward=False,
            )
        fully_shard(model, mesh=world.mesh("dp"))
    x, labels = (
        world.input("x", (8, 16), shard={"dp": 0}),
        world.input("labels", (8,), torch.long, shard={"dp": 0}, high=16),
    )
    logits = model(x)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    if of_all or world.single:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01, norm_type=float("inf"))
    else:
        largest = torch.stack([p.grad.to_local().abs().max() for p in model.parameters()]).max()
        for p in model.parameters():
            p.grad.to_local().mul_((0.01 / (largest + 1e-6)).clamp(max=1.0))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    accuracy = (logits.argmax(-1) == labels).float().mean()
    if not world.single:
        dist.all_reduce(accuracy, op=dist.ReduceOp.SUM)
        accuracy /= world.size
    world.output("accuracy", accuracy, mean=())
    return loss
