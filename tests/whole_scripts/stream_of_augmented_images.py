# SPDX-License-Identifier: Apache-2.0
"""An IterableDataset of which each rank takes its samples, randomly cropped and flipped.

mesh: dp=2
expected: EQUIVALENT
wrong: REDUCE = dist.ReduceOp.SUM
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

REDUCE = dist.ReduceOp.AVG

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)


class Images(IterableDataset):
    def __iter__(self):
        for i in range(rank, 64, world):
            image = torch.full((3, 8, 8), i / 64)
            if torch.rand(1).item() < 0.5:
                image = image.flip(-1)
            at = int(torch.randint(0, 3, (1,)))
            yield {"image": image[:, at : at + 6, :6], "label": torch.tensor(i % 5), "name": str(i)}


model = nn.Sequential(nn.Flatten(), nn.Linear(108, 5))
for p in model.parameters():
    dist.broadcast(p.data, 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Images(), batch_size=4, num_workers=2):
    loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=REDUCE)
    optimizer.step()
    if rank == 0:
        print(f"{batch['name'][0]}: loss {loss.item():.3f}")
