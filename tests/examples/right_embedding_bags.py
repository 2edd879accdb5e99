# SPDX-License-Identifier: Apache-2.0
"""Bags of embeddings, averaged, with DistributedDataParallel."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"


def step(world, mode="mean"):
    model = nn.Sequential(
        nn.EmbeddingBag(16, 8, mode="mean" if world.single else mode), nn.Linear(8, 4)
    )
    wrapped = model if world.single else DistributedDataParallel(model)
    ids, y = (
        world.input("ids", (8, 4), torch.long, shard={"dp": 0}, high=16),
        world.input("y", (8, 4), shard={"dp": 0}),
    )
    loss = F.mse_loss(wrapped(ids), y)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss
