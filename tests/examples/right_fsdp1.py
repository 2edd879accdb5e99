# SPDX-License-Identifier: Apache-2.0
"""FSDP1 with use_orig_params, each layer wrapped.

A rank's piece of a flat buffer ends in the middle of a row. Clipping uses FSDP1's own method.
"""

import torch
import torch.nn.functional as F
from models import MLP
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

MESH, EXPECT = {"dp": 4}, "EQUIVALENT"


def step(world, of_all=True):
    model = MLP(bias=True)
    if not world.single:
        model = FullyShardedDataParallel(
            model,
            process_group=world.group("dp"),
            use_orig_params=True,
            device_id=torch.device("cpu"),
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = (world.input(name, (8, 16), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    if world.single or not of_all:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    else:
        model.clip_grad_norm_(0.1)
    optimizer.step()
    return loss
