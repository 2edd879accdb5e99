# SPDX-License-Identifier: Apache-2.0
"""As "Writing Distributed Applications with PyTorch": processes started one by one, a data set that
is dealt out by hand, gradients that are averaged by hand. Dropout draws one mask on all ranks, as
they have one seed.

mesh: dp=2
expected: CONDITIONAL
wrong: DIVIDED = False
"""

import os
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing import Process, set_start_method
from torch.utils.data import DataLoader, Dataset

DIVIDED = True


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.drop = nn.Dropout2d()
        self.fc = nn.Linear(4 * 25, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.drop(self.conv(x)), 2))
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


class Part(Dataset):
    """One of `parts` parts of 256 images."""

    def __init__(self, part, parts):
        self.x, self.y = torch.randn(256, 1, 12, 12), torch.randint(0, 10, (256,))
        order = list(range(256))
        random.Random(1234).shuffle(order)
        self.mine = order[part * 256 // parts : (part + 1) * 256 // parts]

    def __len__(self):
        return len(self.mine)

    def __getitem__(self, i):
        return self.x[self.mine[i]], self.y[self.mine[i]]


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad.data, op=dist.ReduceOp.SUM)
        if DIVIDED:
            p.grad.data /= float(dist.get_world_size())


def run(rank, size):
    torch.manual_seed(1234)
    loader = DataLoader(Part(dist.get_rank(), dist.get_world_size()), 32 // size, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for epoch in range(2):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(x), y)
            total += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print("rank", dist.get_rank(), "epoch", epoch, total / len(loader))


def begin(rank, size, function, backend="gloo"):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29500"
    dist.init_process_group(backend, rank=rank, world_size=size)
    function(rank, size)


if __name__ == "__main__":
    size = 2
    set_start_method("spawn")
    processes = [Process(target=begin, args=(rank, size, run)) for rank in range(size)]
    for p in processes:
        p.start()
    for p in processes:
        p.join()
        assert p.exitcode == 0
