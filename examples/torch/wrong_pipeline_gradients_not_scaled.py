# SPDX-License-Identifier: Apache-2.0
"""The pipeline schedule does not divide gradients by the microbatch count. A9: torchtitan 2972."""

import right_pipeline_1f1b
from right_pipeline_1f1b import single  # noqa: F401

MESH, EXPECT, NAMES = {"pp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_pipeline_1f1b.step(world, scale_grads=False)
