# SPDX-License-Identifier: Apache-2.0
"""FSDP1 with its defaults: the optimizer sees one flat parameter.

Sharded within a node, replicated over nodes, with gradient accumulation.
"""

import contextlib

import torch
import torch.nn.functional as F
from models import MLP
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

MESH, EXPECT = {"node": 2, "gpu": 2}, "EQUIVALENT"


def step(world, scale=0.5):
    model = MLP(dim=6, hidden=10, bias=True)
    if not world.single:
        model = FullyShardedDataParallel(
            model,
            process_group=(world.group("gpu"), world.group("node")),
            device_id=torch.device("cpu"),
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (16, 6), shard={"node": 0, "gpu": 0}) for name in "xy")
    total = 0
    for i, (part, target) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
        with model.no_sync() if i == 0 and not world.single else contextlib.nullcontext():
            loss = F.mse_loss(model(part), target)
            (loss * (0.5 if world.single else scale)).backward()
        total = total + loss.detach() / 2
    optimizer.step()
    return total
