# SPDX-License-Identifier: Apache-2.0
"""Attention with a latent for keys and values (DeepSeek's MLA), tensor parallel by hand.

The latent and the key that carries positions are whole on each rank; heads are cut.
"""

import math

import torch
import torch.nn.functional as F
from megatron_parallel import CopyToGroup, ReduceFromGroup
from torch import nn

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"
BATCH, LENGTH, DIM, HEADS, RANK, PLAIN, ROTARY = 2, 4, 8, 4, 6, 4, 2


def rotate(x):
    """Interleaved pairs."""
    angles = torch.outer(
        torch.arange(x.shape[-2]).float(),
        100.0 ** (-torch.arange(0, x.shape[-1], 2).float() / x.shape[-1]),
    )
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack(
        [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], -1
    ).flatten(-2)


class LatentAttention(nn.Module):
    def __init__(self, world, key_summed):
        super().__init__()
        self.group = None if world.single else world.group("tp")
        self.key_summed, self.heads = key_summed, HEADS // world.size
        self.q = nn.Linear(DIM, self.heads * (PLAIN + ROTARY), bias=False)
        self.kv_down = nn.Linear(DIM, RANK + ROTARY, bias=False)
        self.norm = nn.RMSNorm(RANK, eps=1e-5)
        self.kv_up = nn.Linear(RANK, self.heads * 2 * PLAIN, bias=False)
        self.out = nn.Linear(self.heads * PLAIN, DIM, bias=False)

    def enter(self, x):
        """Each rank's heads have a part of its gradient."""
        return x if self.group is None else CopyToGroup.apply(x, self.group)

    def forward(self, x):
        batch, length, _ = x.shape
        q, q_rotary = (
            self.q(self.enter(x))
            .view(batch, length, self.heads, -1)
            .transpose(1, 2)
            .split([PLAIN, ROTARY], -1)
        )
        latent, key = self.kv_down(x).split([RANK, ROTARY], -1)
        k, v = (
            self.kv_up(self.enter(self.norm(latent)))
            .view(batch, length, self.heads, -1)
            .transpose(1, 2)
            .chunk(2, -1)
        )
        key = rotate(self.enter(key) if self.key_summed else key)[:, None].expand(
            -1, self.heads, -1, -1
        )
        q, k = torch.cat([q, rotate(q_rotary)], -1), torch.cat([k, key], -1)
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=1 / math.sqrt(PLAIN + ROTARY)
        )
        y = self.out(y.transpose(1, 2).reshape(batch, length, -1))
        return y if self.group is None else ReduceFromGroup.apply(y, self.group)


def step(world, key_summed=True):
    model = world.parameters(
        LatentAttention(world, key_summed),
        {"(q|kv_up).weight": {"tp": 0}, "out.weight": {"tp": 1}, ".*": {}},
    )
    x, y = (world.input(name, (BATCH, LENGTH, DIM)) for name in "xy")
    loss = F.mse_loss(x + model(x), y)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss
