# SPDX-License-Identifier: Apache-2.0
"""A batch is one graph of many, whose edges are numbered through: no rank's is a part of it.

mesh: dp=2
expected: CONDITIONAL
wrong: MEAN = "sum"
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MEAN = "mean"


class Graphs(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        nodes, edges = torch.randn(5, 4, generator=g), torch.randint(0, 5, (2, 8), generator=g)
        return nodes, edges, torch.randn(1, generator=g)


def collate(items):
    first, graph, edges = 0, [], []
    for i, (x, e, _) in enumerate(items):
        edges.append(e + first)
        graph += [i] * len(x)
        first += len(x)
    nodes, _, targets = zip(*items)
    return torch.cat(nodes), torch.cat(edges, 1), torch.tensor(graph), torch.cat(targets)


class Convolution(nn.Module):
    def __init__(self, width_in, width_out):
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, x, edges):
        h = self.linear(x)
        return torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]])


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Convolution(4, 6), Convolution(6, 6)
        self.last = nn.Linear(6, 1)

    def forward(self, x, edges, graph, count):
        h = F.relu(self.second(F.relu(self.first(x, edges)), edges))
        return self.last(torch.zeros(count, 6).index_add_(0, graph, h)).squeeze(-1)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Network())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
dataset = Graphs()
loader = DataLoader(dataset, 2, sampler=DistributedSampler(dataset), collate_fn=collate)
for x, edges, graph, y in loader:
    optimizer.zero_grad()
    F.mse_loss(model(x, edges, graph, len(y)), y, reduction=MEAN).backward()
    optimizer.step()
