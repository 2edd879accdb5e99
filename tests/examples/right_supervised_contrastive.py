# SPDX-License-Identifier: Apache-2.0
"""A supervised contrastive loss over all ranks' batch: pairs of equal labels attract.

Embeddings and labels are gathered.
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn.functional as F
from torch import nn

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"
BATCH, DIM, CLASSES = 8, 8, 3


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.classify = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, CLASSES)

    def forward(self, x):
        z = F.normalize(self.embed(x), dim=-1)
        return z, self.classify(z)


def step(world, of_all=True):
    model = Model()
    world.parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = (
        world.input("x", (BATCH, DIM), shard={"dp": 0}),
        world.input("labels", (BATCH,), torch.long, shard={"dp": 0}, high=CLASSES),
    )
    z, logits = model(x)
    others, theirs = z, labels
    if not world.single and of_all:
        others = torch.cat(torch.distributed.nn.functional.all_gather(z))
        theirs = labels.new_empty(BATCH)
        dist.all_gather_into_tensor(theirs, labels)
    similar = (labels[:, None] == theirs[None, :]).float()
    scores = z @ others.T / 0.5
    contrast = (similar * (scores.logsumexp(-1, keepdim=True) - scores)).sum(-1).mean()
    loss = contrast + F.cross_entropy(logits, labels)
    loss.backward()
    if not world.single:
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world.size
    optimizer.step()
    return loss
