# SPDX-License-Identifier: Apache-2.0
"""torch's own TransformerEncoder in DistributedDataParallel; padding is masked out of attention."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MESH, EXPECT = {"dp": 2}, "EQUIVALENT"
VOCABULARY, DIM, BATCH, LENGTH, PADDING = 16, 16, 4, 6, 0


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.position = nn.Parameter(torch.zeros(LENGTH, DIM))
        layer = nn.TransformerEncoderLayer(
            DIM, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, VOCABULARY)

    def forward(self, tokens):
        hidden = self.encoder(
            self.embedding(tokens) + self.position, src_key_padding_mask=tokens == PADDING
        )
        return self.head(hidden)


def step(world, factor=1.0):
    model = Encoder()
    wrapped = model if world.single else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tokens = world.input("tokens", (BATCH, LENGTH), torch.long, shard={"dp": 0}, high=VOCABULARY)
    labels = world.input("labels", (BATCH, LENGTH), torch.long, shard={"dp": 0}, high=VOCABULARY)
    loss = F.cross_entropy(wrapped(tokens).flatten(0, 1), labels.flatten())
    (loss if world.single else loss * factor).backward()
    optimizer.step()
    return loss
