# SPDX-License-Identifier: Apache-2.0
"""Context parallel: every rank counts the positions of its stretch from 0 (E6: speculators 871)."""

import right_context_parallel
import shardproof.torch as sp

MESH, EXPECT, NAMES = {"cp": 2}, "NOT EQUIVALENT", "models.py"


def step(world):
    return right_context_parallel.step(world, positions=0)


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
