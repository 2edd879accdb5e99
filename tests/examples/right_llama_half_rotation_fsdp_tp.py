# SPDX-License-Identifier: Apache-2.0
"""A Llama that rotates halves, as transformers does.

FSDP2 over dp; tensor, sequence and loss parallelism over tp; with clipping.
"""

import models
import torch
from llama_parallel import CONFIG, batch, tensor_parallel, train
from models import Llama
from torch.distributed.fsdp import fully_shard

MESH, EXPECT = {"dp": 2, "tp": 2}, "EQUIVALENT"


def half_table(head_dim, seq, theta):
    """Cosines and sines of every position, one after the other, each twice."""
    frequencies = 1.0 / (theta ** (torch.arange(0, head_dim, 2).float() / head_dim))
    angles = torch.outer(torch.arange(seq).float(), frequencies)
    angles = torch.cat([angles, angles], -1)
    return torch.stack([angles.cos(), angles.sin()])


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def rotate(x, table):
    cos, sin = (t[None, :, None, :] for t in table)
    return x * cos + rotate_half(x) * sin


def step(world, rotation=rotate, parallel=tensor_parallel):
    before = models.rotary_table, models.rotate
    models.rotary_table, models.rotate = half_table, rotation if not world.single else rotate
    try:
        model = Llama(CONFIG)
        if not world.single:
            parallel(model, world.mesh("tp"), loss_is_parallel=True)
            for block in model.layers.values():
                fully_shard(block, mesh=world.mesh("dp"))
            fully_shard(model, mesh=world.mesh("dp"))
        return train(world, model, *batch(world, dp=0), loss_is_parallel=True)
    finally:
        models.rotary_table, models.rotate = before
