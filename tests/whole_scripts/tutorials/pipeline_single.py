# SPDX-License-Identifier: Apache-2.0
"""The single device of pipeline.py."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pipeline import MICROBATCHES, WORDS, Model, batch

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    x, y = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids, labels in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES)):
        loss = F.cross_entropy(model(ids).reshape(-1, WORDS), labels.reshape(-1)) / MICROBATCHES
        loss.backward()
    optimizer.step()
