# SPDX-License-Identifier: Apache-2.0
"""Labels of some tokens are ignored.

The sum of losses is divided by the label count of all ranks.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import Config, Llama
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"
BATCH, PROMPT, IGNORED = 4, 3, -100


def step(world, count="global"):
    config = Config(layers=1, vocab=16)
    model = Llama(config)
    wrapped = model if world.single else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, labels = (
        world.input(name, (BATCH, config.seq), torch.long, shard={"dp": 0}, high=config.vocab)
        for name in ("tokens", "labels")
    )
    labels = labels.masked_fill(tokens < PROMPT, IGNORED)
    total = F.cross_entropy(
        wrapped(tokens).flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    number = (labels != IGNORED).sum().float()
    if count == "global" and not world.single:
        dist.all_reduce(number)
        number = number / world.size  # gradients are averaged over ranks
    loss = total / number
    loss.backward()
    optimizer.step()
    return loss
