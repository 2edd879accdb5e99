# SPDX-License-Identifier: Apache-2.0
"""Embedding tables of unequal widths, one on each rank.

An all-to-all with unequal split sizes exchanges columns for rows of the batch.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"mp": 3}, "EQUIVALENT"
WIDTHS, ROWS, BATCH = (2, 4, 6), 16, 12  # of the tables, in the order of the ranks


class Exchange(torch.autograd.Function):
    """So many numbers to and from each rank; backward the way back."""

    @staticmethod
    def forward(ctx, x, given, taken, group):
        ctx.given, ctx.taken, ctx.group = given, taken, group
        out = x.new_empty(sum(taken))
        dist.all_to_all_single(out, x, taken, given, group=group)
        return out

    @staticmethod
    def backward(ctx, grad):
        return Exchange.apply(grad.contiguous(), ctx.taken, ctx.given, ctx.group), None, None, None


class Model(nn.Module):
    def __init__(self, owned):
        super().__init__()
        self.tables = nn.ModuleDict({str(i): nn.Embedding(ROWS, WIDTHS[i]) for i in owned})
        self.top = nn.Linear(sum(WIDTHS), 1)

    def forward(self, categories, order, group):
        columns = [table(categories[:, int(i)]) for i, table in self.tables.items()]
        if group is not None:  # this rank's columns of all samples for all columns of its samples
            ranks = dist.get_world_size(group)
            mine = BATCH // ranks
            taken = [mine * w for w in WIDTHS]
            got = Exchange.apply(
                columns[0].flatten(), [mine * columns[0].shape[1]] * ranks, taken, group
            ).split(taken)
            columns = [got[i].view(mine, WIDTHS[i]) for i in order]
        return self.top(torch.cat(columns, 1))


def step(world, order=(0, 1, 2)):
    model = Model(range(len(WIDTHS)) if world.single else [world.rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # Every rank looks up its table for the whole batch.
    categories = world.input("categories", (BATCH, len(WIDTHS)), torch.long, high=ROWS)
    clicks = world.input("clicks", (BATCH, 1), shard={"mp": 0})
    loss = F.mse_loss(model(categories, order, None if world.single else world.group("mp")), clicks)
    loss.backward()
    if not world.single:
        for p in model.tables.parameters():
            p.grad /= world.size  # of all samples already, whose losses are local means
        for p in model.top.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world.size
    optimizer.step()
    return loss
