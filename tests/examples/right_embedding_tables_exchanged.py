# SPDX-License-Identifier: Apache-2.0
"""A recommender with embedding tables spread over ranks.

Each rank has some tables for the whole batch. An all-to-all gives each rank all tables for its part
of the batch, and goes back in backward.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"
TABLES, ROWS, DIM, BATCH = 4, 10, 8, 8


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty(x.shape)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty(grad.shape)
        dist.all_to_all_single(out, grad.contiguous())
        return out


class Recommender(nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables = nn.Parameter(torch.randn(tables, ROWS, DIM))
        self.top = nn.Sequential(nn.Linear(TABLES * DIM, 16), nn.ReLU(), nn.Linear(16, 1))


def step(world, ordered=True):
    ranks = world.size
    model = Recommender(TABLES // ranks)
    world.parameters(model, shard={"tables": {"dp": 0}})
    ids = world.input("ids", (TABLES, BATCH), torch.long, high=ROWS)
    clicked = world.input("clicked", (BATCH, 1), torch.bool, shard={"dp": 0})
    first = world.rank * (TABLES // ranks)
    rows = torch.stack([F.embedding(ids[first + i], table) for i, table in enumerate(model.tables)])
    if not world.single:
        # First by whose part of the batch, then by whose tables.
        rows = Exchange.apply(rows.unflatten(1, (ranks, BATCH // ranks)).transpose(0, 1))
        rows = (rows if ordered else rows.flip(0)).flatten(0, 1)
    loss = F.binary_cross_entropy_with_logits(
        model.top(rows.transpose(0, 1).flatten(1)), clicked.to(rows.dtype)
    )
    loss.backward()
    if not world.single:
        model.tables.grad /= ranks  # the sum of what all parts of the batch sent back
        for p in model.top.parameters():
            dist.all_reduce(p.grad)
            p.grad /= ranks
    return loss
