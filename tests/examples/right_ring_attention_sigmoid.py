# SPDX-License-Identifier: Apache-2.0
"""Ring attention merged by sigmoids, as in ring-flash-attention.

It uses each block's result and log-sum-exp, without a running maximum.
"""

import torch
import torch.distributed as dist

MESH, EXPECT = {"cp": 2}, "EQUIVALENT"


def block(q, k, v):
    """What a kernel gives for one block: its attention, and the logarithm of each row's sum."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1, keepdim=True)


def ring(q, k, v, world, sign):
    rank, size, group = world.rank, world.size, world.group("cp")
    k, v = k.contiguous(), v.contiguous()
    out, lse = block(q, k, v)
    for _ in range(size - 1):
        next_k, next_v = torch.empty_like(k), torch.empty_like(v)
        to, source = (rank + 1) % size, (rank - 1) % size
        messages = [
            dist.P2POp(dist.isend, k, to, group),
            dist.P2POp(dist.irecv, next_k, source, group),
            dist.P2POp(dist.isend, v, to, group),
            dist.P2POp(dist.irecv, next_v, source, group),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        k, v = next_k, next_v
        block_out, block_lse = block(q, k, v)
        out = out - torch.sigmoid(sign * (block_lse - lse)) * (out - block_out)
        lse = lse - torch.log(torch.sigmoid(lse - block_lse))
    return out, lse


def step(world, sign=1):
    q, k, v = (world.input(name, (2, 8, 4), shard={"cp": 1}) for name in "qkv")
    out, lse = block(q, k, v) if world.single else ring(q, k, v, world, sign)
    world.output("attention", out, shard={"cp": 1})
    world.output("lse", lse, shard={"cp": 1})
