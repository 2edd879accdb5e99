# SPDX-License-Identifier: Apache-2.0
"""As "Introduction to Distributed Pipeline Parallelism": a model that ranks cut by hand, GPipe.

mesh: pp=2
single: pipeline_single.py
expected: EQUIVALENT
wrong: SCALED = False
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

MICROBATCHES, WORDS, WIDTH = 4, 20, 8
SCALED = True


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict(
            {str(i): nn.TransformerDecoderLayer(WIDTH, 2, 16, dropout=0.0) for i in range(2)}
        )
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        h = self.words(x) if self.words else x
        for layer in self.layers.values():
            h = layer(h, h)
        h = self.norm(h) if self.norm else h
        return (self.output(h) if self.output else h).clone()


def batch():
    return torch.ones(8, 4, dtype=torch.long), torch.randint(0, WORDS, (8, 4))


def stage_of(model, rank, stages, device):
    if rank == 0:
        del model.layers["1"]
        model.norm = model.output = None
    else:
        del model.layers["0"]
        model.words = None
    return PipelineStage(model, rank, stages, device)


if __name__ == "__main__":
    rank, stages = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device(f"cuda:{rank}") if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group()
    torch.manual_seed(0)
    model = Model()
    x, y = batch()
    stage = stage_of(model, rank, stages, device)
    model.to(device)

    def loss_of(scores, labels):
        return F.cross_entropy(scores.reshape(-1, WORDS), labels.reshape(-1))

    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=loss_of, scale_grads=SCALED)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if rank == 0:
        schedule.step(x.to(device))
    else:
        losses = []
        schedule.step(target=y.to(device), losses=losses)
        print(f"losses: {losses}")
    optimizer.step()
    dist.destroy_process_group()
