# SPDX-License-Identifier: Apache-2.0
"""Averaged weights in a dictionary of tensors, which no module has.

mesh: dp=2
expected: EQUIVALENT
wrong: DECAY = (0.9, 0.95)[dist.get_rank()]
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
DECAY = 0.9


class Averaged:
    def __init__(self, model):
        self.shadow = {name: p.data.clone() for name, p in model.named_parameters()}

    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name] = (1.0 - DECAY) * p.data + DECAY * self.shadow[name]


def main():
    world = dist.get_world_size()
    data = TensorDataset(torch.randn(32, 6), torch.randn(32, 2))
    loader = DataLoader(data, batch_size=8 // world, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Linear(6, 2))
    averaged = Averaged(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averaged.update(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
