# SPDX-License-Identifier: Apache-2.0
"""Multi-query attention, tensor parallel by hand.

All ranks have the one key and value head, so its gradient is summed over them.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_parallel import CopyToGroup, ReduceFromGroup
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"
DIM, HEADS, HEAD = 16, 4, 4


def step(world, summed=True):
    heads = HEADS // world.sizes["tp"]
    model = nn.ModuleDict(
        {
            "q": nn.Linear(DIM, heads * HEAD, bias=False),
            "kv": nn.Linear(DIM, 2 * HEAD, bias=False),
            "out": nn.Linear(heads * HEAD, DIM, bias=False),
        }
    )
    world.parameters(model, shard={r"q\.weight": {"tp": 0}, r"out\.weight": {"tp": 1}})
    x, y = (world.input(name, (2, 6, DIM)) for name in "xy")
    h = x if world.single else CopyToGroup.apply(x, world.group("tp"))
    q = model["q"](h).unflatten(-1, (heads, HEAD)).transpose(1, 2)
    k, v = (t.unsqueeze(1) for t in model["kv"](h).chunk(2, -1))
    out = model["out"](
        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        .transpose(1, 2)
        .flatten(2)
    )
    out = out if world.single else ReduceFromGroup.apply(out, world.group("tp"))
    loss = F.mse_loss(out, y)
    loss.backward()
    if not world.single and summed:
        dist.all_reduce(model["kv"].weight.grad, group=world.group("tp"))
    torch.optim.AdamW(model.parameters(), lr=1e-3).step()
    world.output("loss", loss, mean=())
