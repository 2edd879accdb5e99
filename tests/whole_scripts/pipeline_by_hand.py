# SPDX-License-Identifier: Apache-2.0
"""A pipeline of two stages by hand: all microbatches forward, then backward, for several steps. The
second stage begins each step by receiving what the first one sends.

mesh: pp=2
expected: EQUIVALENT
wrong: MEAN_OVER = 1
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

LAYERS, MICROBATCHES, ROWS, WIDTH = 4, 4, 2, 8
MEAN_OVER = MICROBATCHES  # of which the loss is the mean


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world - 1
    torch.manual_seed(0)
    layers = {str(i): nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for i in range(LAYERS)}
    own = {k: m for k, m in layers.items() if int(k) * world // LAYERS == rank}
    model = nn.ModuleDict(own)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    for _ in range(3):
        samples = torch.randn(MICROBATCHES * ROWS, WIDTH, generator=data)
        targets = torch.randn(MICROBATCHES * ROWS, WIDTH, generator=data)
        under_way = []
        for x in samples.split(ROWS):
            if not first:
                x = torch.empty(ROWS, WIDTH)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            out = x
            for layer in model.values():
                out = layer(out)
            if not last:
                dist.send(out.detach(), rank + 1)
            under_way.append((x, out))
        for (x, out), y in zip(under_way, targets.split(ROWS)):
            if last:
                loss = F.mse_loss(out, y) / (MEAN_OVER if world > 1 else MICROBATCHES)
                loss.backward()
            else:
                gradient = torch.empty(ROWS, WIDTH)
                dist.recv(gradient, rank + 1)
                out.backward(gradient)
            if not first:
                dist.send(x.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()


main()
