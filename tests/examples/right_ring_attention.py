# SPDX-License-Identifier: Apache-2.0
"""Ring attention: keys and values go around, the softmax is put together from pieces."""

import torch
import torch.distributed as dist

MESH, EXPECT = {"cp": 2}, "EQUIVALENT"


def ring(q, k, v, world, rescale):
    rank, size, group = world.rank, world.size, world.group("cp")
    k, v = k.contiguous(), v.contiguous()
    for turn in range(size):
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        largest = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - largest)
        if turn == 0:
            top, total, out = largest, weights.sum(-1, keepdim=True), weights @ v
        else:
            new = torch.maximum(top, largest)
            old, mine = torch.exp(top - new), torch.exp(largest - new)
            if not rescale:
                old = torch.ones_like(old)
            top, total, out = (
                new,
                old * total + mine * weights.sum(-1, keepdim=True),
                old * out + mine * (weights @ v),
            )
        if turn < size - 1:
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
    return out / total


def step(world, rescale=True):
    q, k, v = (world.input(name, (2, 8, 4), shard={"cp": 1}) for name in "qkv")
    out = (
        torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v
        if world.single
        else ring(q, k, v, world, rescale)
    )
    world.output("attention", out, shard={"cp": 1})
