# SPDX-License-Identifier: Apache-2.0
"""Dropout behind a row-parallel layer.

All ranks draw from generators in one state, so they drop the same elements as the single device.
"""

import torch
import torch.nn.functional as F
from megatron_parallel import CopyToGroup, ReduceFromGroup
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"


def step(world, seed=lambda rank: 7):
    n = world.sizes["tp"]
    model = nn.ModuleDict(
        {"up": nn.Linear(8, 16 // n, bias=False), "down": nn.Linear(16 // n, 8, bias=False)}
    )
    world.parameters(model, shard={r"up\.weight": {"tp": 0}, r"down\.weight": {"tp": 1}})
    x, y = (world.input(name, (4, 8)) for name in "xy")
    out = model["down"](
        torch.relu(model["up"](x if world.single else CopyToGroup.apply(x, world.group("tp"))))
    )
    out = out if world.single else ReduceFromGroup.apply(out, world.group("tp"))
    torch.manual_seed(seed(world.rank))
    loss = F.mse_loss(F.dropout(out, 0.5), y)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    world.output("loss", loss, mean=())
