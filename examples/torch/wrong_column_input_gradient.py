# SPDX-License-Identifier: Apache-2.0
"""Column-parallel layers do not sum their input's gradient over tp.

Below them every rank has a partial gradient. B4: torchtitan 4054.
"""

import megatron_parallel as megatron
import shardproof.torch as sp
from megatron_parallel import single

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "megatron_parallel.py"


def step(world):
    return megatron.step(world, copy=False)


if __name__ == "__main__":
    print(sp.verify(single, step, mesh=MESH))
