# SPDX-License-Identifier: Apache-2.0
"""The pipeline schedule does not divide gradients by the microbatch count. A9: torchtitan 2972."""

import right_pipeline_1f1b
import shardproof.torch as sp
from right_pipeline_1f1b import single

MESH, EXPECT, NAMES = {"pp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_pipeline_1f1b.step(world, scale_grads=False)


if __name__ == "__main__":
    print(sp.verify(single, step, mesh=MESH))
