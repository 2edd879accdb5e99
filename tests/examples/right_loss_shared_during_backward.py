# SPDX-License-Identifier: Apache-2.0
"""Two pipeline stages share the loss during backward.

The last stage begins the collective while the first one waits for its gradient and joins
afterwards.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

MESH, EXPECT = {"pp": 2}, "EQUIVALENT"


def step(world, microbatches=2, divide=True):
    stages = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
    stage = world.coordinates["pp"]
    model = world.parameters(
        torch.nn.ModuleDict({str(i): m for i, m in enumerate(stages) if world.single or stage == i})
    )
    x, y = (world.input(name, (8, 16)) for name in "xy")
    if world.single:
        loss = F.mse_loss(stages[1](stages[0](x).relu()), y)
        loss.backward()
    else:
        group = world.group("pp")
        loss = torch.zeros(())
        for part, labels in zip(x.chunk(microbatches), y.chunk(microbatches), strict=True):
            if stage == 0:
                h = stages[0](part).relu()
                dist.send(h.detach(), dst=1)
                grad, told = torch.empty_like(h), torch.zeros(())
                dist.recv(grad, src=1)
                h.backward(grad)
                dist.all_reduce(told, group=group)
            else:
                h = torch.empty(labels.shape)
                dist.recv(h, src=0)
                mine = F.mse_loss(stages[1](h.requires_grad_()), labels) / (
                    microbatches if divide else 1
                )
                mine.backward()
                told = mine.detach().clone()
                work = dist.all_reduce(told, group=group, async_op=True)
                dist.send(h.grad, dst=0)
                work.wait()
            loss += told
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    world.output("loss", loss, mean=())
