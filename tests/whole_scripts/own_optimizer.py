# SPDX-License-Identifier: Apache-2.0
"""A loop without an optimizer of PyTorch: momentum and weight decay as a few lines of its own.

mesh: dp=2
expected: EQUIVALENT
wrong: OPERATION = dist.ReduceOp.MAX
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

OPERATION = dist.ReduceOp.SUM


class Momentum:
    def __init__(self, model, rate=0.05, momentum=0.9, decay=0.01):
        self.model, self.rate, self.momentum, self.decay = model, rate, momentum, decay
        self.velocity = {n: torch.zeros_like(p) for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self):
        for name, p in self.model.named_parameters():
            dist.all_reduce(p.grad, op=OPERATION)
            gradient = p.grad / dist.get_world_size() + self.decay * p
            self.velocity[name].mul_(self.momentum).add_(gradient)
            p -= self.rate * self.velocity[name]
            p.grad = None


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3))
    update = Momentum(model)
    samples = TensorDataset(torch.randn(40, 5), torch.randn(40, 3))
    loader = DataLoader(samples, batch_size=4, sampler=DistributedSampler(samples))
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            update.update()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
