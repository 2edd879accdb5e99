# SPDX-License-Identifier: Apache-2.0
"""The pairs of a supervised contrastive loss are those of a rank's own batch."""

import right_supervised_contrastive

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_supervised_contrastive.py"


def step(world):
    return right_supervised_contrastive.step(world, of_all=False)
