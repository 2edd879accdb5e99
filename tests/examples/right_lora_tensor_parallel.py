# SPDX-License-Identifier: Apache-2.0
"""LoRA on a column- and a row-parallel layer.

Factors that are on all ranks have partial gradients, which are summed.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_parallel import CopyToGroup, ReduceFromGroup
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"


class LoRA(nn.Module):
    def __init__(self, inputs, outputs, rank=2):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs), requires_grad=False)
        self.a, self.b = (
            nn.Parameter(torch.randn(rank, inputs)),
            nn.Parameter(torch.zeros(outputs, rank)),
        )

    def forward(self, x):
        return F.linear(x, self.weight) + 2.0 * F.linear(F.linear(x, self.a), self.b)


def step(world, summed=("up.a", "down.b")):
    n = world.sizes["tp"]
    model = nn.ModuleDict({"up": LoRA(8, 16 // n), "down": LoRA(16 // n, 8)})
    world.parameters(model, shard={r"up\.(weight|b)": {"tp": 0}, r"down\.(weight|a)": {"tp": 1}})
    x, y = (world.input(name, (4, 8)) for name in "xy")
    h = F.relu(model["up"](x if world.single else CopyToGroup.apply(x, world.group("tp"))))
    out = model["down"](h)
    out = out if world.single else ReduceFromGroup.apply(out, world.group("tp"))
    loss = F.mse_loss(out, y)
    loss.backward()
    for name, p in model.named_parameters():
        if not world.single and name in summed:
            dist.all_reduce(p.grad, group=world.group("tp"))
    torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3).step()
    world.output("loss", loss, mean=())
