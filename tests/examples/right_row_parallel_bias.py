# SPDX-License-Identifier: Apache-2.0
"""Row-parallel layer by hand whose bias is added after the all-reduce."""

import wrong_bias_on_every_rank
from wrong_bias_on_every_rank import single  # noqa: F401

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"


def step(world):
    return wrong_bias_on_every_rank.step(world, right=True)
