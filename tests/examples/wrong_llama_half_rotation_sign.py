# SPDX-License-Identifier: Apache-2.0
"""The rotation by halves has the wrong sign.

Positions turn keys and queries apart instead of together.
"""

import right_llama_half_rotation_fsdp_tp as right
import torch

MESH, EXPECT, NAMES = right.MESH, "NOT EQUIVALENT", "wrong_llama_half_rotation_sign.py"


def rotate(x, table):
    cos, sin = (t[None, :, None, :] for t in table)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([second, -first], -1) * sin


def step(world):
    return right.step(world, rotation=rotate)
