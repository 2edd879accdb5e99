# SPDX-License-Identifier: Apache-2.0
"""All parameters are sent by the first rank, also those that another one has updated."""

import right_muon_owned_parameters

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_muon_owned_parameters.py"


def step(world):
    return right_muon_owned_parameters.step(world, root=lambda i, size: 0)
