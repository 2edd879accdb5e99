# SPDX-License-Identifier: Apache-2.0
"""ZeRO by hand: all weights are one vector, padded to a multiple of the ranks; each rank steps its
shard of it.

mesh: dp=4
expected: EQUIVALENT
wrong: MEAN = False
wrong: NEXT = 1
wrong: FRONT = True
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

MEAN = True  # of the ranks' gradients
NEXT = 0  # the shard that a rank begins with is that of a rank so far behind it
FRONT = False  # gradients are padded at the front


def padded(tensors, size, front=False):
    flat = torch.cat([t.flatten() for t in tensors])
    more = size - flat.numel()
    return F.pad(flat, (more, 0) if front else (0, more))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 7), nn.LayerNorm(7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3)
    )
    params = list(model.parameters())
    numel = sum(p.numel() for p in params)
    size = (numel + world - 1) // world * world
    own = (rank + NEXT) % world
    shard = padded([p.detach() for p in params], size).chunk(world)[own].clone()
    shard.requires_grad_(True)
    optimizer = torch.optim.AdamW([shard], lr=1e-3)
    torch.manual_seed(100 + rank)
    for step in range(2):
        x, y = torch.randn(4, 5), torch.randn(4, 3)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        gradients = padded([p.grad for p in params], size, FRONT)
        shard.grad = torch.empty(size // world)
        dist.reduce_scatter_tensor(shard.grad, gradients)
        if MEAN:
            shard.grad /= world
        optimizer.step()
        full = torch.empty(size)
        dist.all_gather_into_tensor(full, shard.detach())
        offset = 0
        for p in params:
            p.data.copy_(full[offset : offset + p.numel()].view_as(p))
            p.grad = None
            offset += p.numel()
        if rank == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
