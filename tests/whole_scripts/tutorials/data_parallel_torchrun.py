# SPDX-License-Identifier: Apache-2.0
"""As "Fault-tolerant Distributed Training with torchrun": a trainer that resumes from a snapshot.

mesh: dp=2
expected: EQUIVALENT
"""

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

SNAPSHOT = "snapshot.pt"


class Pairs(Dataset):
    def __init__(self, size):
        self.pairs = [(torch.rand(20), torch.rand(1)) for _ in range(size)]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return self.pairs[i]


class Trainer:
    def __init__(self, model, loader, optimizer):
        self.gpu = int(os.environ["LOCAL_RANK"])
        self.model, self.loader, self.optimizer = model.to(self.gpu), loader, optimizer
        self.epochs_run = 0
        if os.path.exists(SNAPSHOT):
            found = torch.load(SNAPSHOT, map_location=f"cuda:{self.gpu}")
            self.model.load_state_dict(found["model"])
            self.epochs_run = found["epochs"]
        self.model = DistributedDataParallel(self.model, device_ids=[self.gpu])

    def batch(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def train(self, epochs):
        for epoch in range(self.epochs_run, epochs):
            size = len(next(iter(self.loader))[0])
            print(f"[GPU{self.gpu}] epoch {epoch}, {size} samples, {len(self.loader)} steps")
            self.loader.sampler.set_epoch(epoch)
            for x, y in self.loader:
                self.batch(x.to(self.gpu), y.to(self.gpu))
            if self.gpu == 0:
                torch.save({"model": self.model.module.state_dict(), "epochs": epoch}, SNAPSHOT)


def main():
    if not torch.cuda.is_available():
        sys.exit("this script needs GPUs")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl")
    data = Pairs(256)
    loader = DataLoader(data, 16, pin_memory=True, sampler=DistributedSampler(data))
    model = nn.Linear(20, 1)
    Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-3)).train(2)
    destroy_process_group()


if __name__ == "__main__":
    main()
