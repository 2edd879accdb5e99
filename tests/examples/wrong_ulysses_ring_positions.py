# SPDX-License-Identifier: Apache-2.0
"""The causal mask counts positions from the start of the ring's own piece.

The second half of the sequence does not see its predecessors. E3.
"""

import right_ulysses_ring

MESH, EXPECT, NAMES = {"ring": 2, "ul": 2}, "NOT EQUIVALENT", "right_ulysses_ring.py"


def step(world):
    return right_ulysses_ring.step(world, own_positions=True)
