# SPDX-License-Identifier: Apache-2.0
"""Megatron's tensor parallelism by hand.

Column- and row-parallel layers, vocabulary-parallel embedding and loss, clipping by the norm over
tp.
"""

import megatron_parallel as megatron
import shardproof.torch as sp
from megatron_parallel import single

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"


def step(world):
    return megatron.step(world)


if __name__ == "__main__":
    print(sp.verify(single, step, mesh=MESH))
