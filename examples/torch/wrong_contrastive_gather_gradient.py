# SPDX-License-Identifier: Apache-2.0
"""The gather's gradient is each rank's own share: what other ranks' losses say about its features is missing."""

import right_contrastive_gathered

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "image.out.grad"


def step(world):
    return right_contrastive_gathered.step(world, summed=False)
