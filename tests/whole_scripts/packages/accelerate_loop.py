# SPDX-License-Identifier: Apache-2.0
"""A loop with accelerate: prepare, accumulate, clip, schedule, reduce.

package: accelerate
mesh: dp=2
expected: EQUIVALENT
wrong: REDUCTION = "sum"
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

REDUCTION = "mean"

set_seed(42)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
data = TensorDataset(torch.randn(64, 6), torch.randint(0, 4, (64,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
model.train()
for x, y in loader:
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(x), y, reduction=REDUCTION)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    mean = accelerator.reduce(loss.detach(), "mean")
accelerator.print("done")
