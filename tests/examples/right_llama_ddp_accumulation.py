# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with gradient accumulation under no_sync.

Rotary tables are buffers, embeddings are tied, layers use activation checkpointing.
"""

import contextlib

import torch
import torch.nn.functional as F
from models import Config, Llama
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"
BATCH, COUNT = 8, 2


class Checkpointed(Llama):
    def forward(self, tokens):
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            hidden = checkpoint(layer, hidden, self.table, use_reentrant=False)
        return self.output(self.norm(hidden))


def step(world, divide=True):
    config = Config(layers=1, vocab=32)
    model = Checkpointed(config)
    model.output.weight = model.tok_embeddings.weight
    wrapped = model if world.single else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, labels = (
        world.input(name, (BATCH, config.seq), torch.long, shard={"dp": 0}, high=config.vocab)
        for name in ("tokens", "labels")
    )
    total = 0
    for i, (x, y) in enumerate(zip(tokens.chunk(COUNT), labels.chunk(COUNT), strict=True)):
        with contextlib.nullcontext() if world.single or i == COUNT - 1 else wrapped.no_sync():
            loss = F.cross_entropy(wrapped(x).flatten(0, 1), y.flatten())
            (loss / COUNT if divide or world.single else loss).backward()
        total = total + loss.detach() / COUNT
    optimizer.step()
    return total
