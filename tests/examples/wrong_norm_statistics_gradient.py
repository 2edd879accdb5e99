# SPDX-License-Identifier: Apache-2.0
"""The statistics of a layer norm over cut features are summed forward only."""

import right_norm_over_cut_features

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "grad"


def step(world):
    return right_norm_over_cut_features.step(world, backward=False)
