# SPDX-License-Identifier: Apache-2.0
"""The gradient of a gather is each rank's own share.

What the other ranks' losses add to its features is missing.
"""

import right_contrastive_gathered

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "image.out.grad"


def step(world):
    return right_contrastive_gathered.step(world, summed=False)
