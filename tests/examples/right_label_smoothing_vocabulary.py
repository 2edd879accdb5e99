# SPDX-License-Identifier: Apache-2.0
"""Label smoothing over logits that are cut along the vocabulary.

The largest logit, the sum of exponentials, the label's logit and the mean logit are reduced over
tp.
"""

import torch
import torch.distributed as dist
from megatron_parallel import CopyToGroup, ReduceFromGroup
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"
DIM, VOCAB, SMOOTHING = 16, 24, 0.1


class Head(nn.Module):
    def __init__(self, part, group):
        super().__init__()
        self.group, self.norm = group, nn.LayerNorm(DIM)
        self.weight = nn.Parameter(torch.empty(part, DIM))

    def total(self, x):
        return x if self.group is None else ReduceFromGroup.apply(x, self.group)

    def forward(self, x, labels, low, classes):
        part = self.weight.shape[0]
        x = self.norm(x)
        logits = (x if self.group is None else CopyToGroup.apply(x, self.group)) @ self.weight.t()
        top = logits.detach().amax(-1, keepdim=True)
        if self.group is not None:
            dist.all_reduce(top, op=dist.ReduceOp.MAX, group=self.group)
        logits = logits - top
        inside = (labels >= low) & (labels < low + part)
        picked = logits.gather(-1, torch.where(inside, labels - low, 0)[:, None])[:, 0] * inside
        log_sum = self.total(logits.exp().sum(-1)).log()
        return (
            log_sum
            - (1 - SMOOTHING) * self.total(picked)
            - SMOOTHING * self.total(logits.sum(-1)) / classes
        ).mean()


def step(world, classes=VOCAB):
    part = VOCAB // world.sizes["tp"]
    model = Head(part, None if world.single else world.group("tp"))
    world.parameters(model, {"weight": {"tp": 0}, "norm.*": {}})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, labels = world.input("x", (8, DIM)), world.input("labels", (8,), torch.long, high=VOCAB)
    loss = model(x, labels, world.coordinates["tp"] * part, classes)
    loss.backward()
    optimizer.step()
    return loss
