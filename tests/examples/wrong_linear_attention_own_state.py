# SPDX-License-Identifier: Apache-2.0
"""Each rank adds the state that it ends with itself, too."""

import right_linear_attention_sequence

MESH, EXPECT, NAMES = {"sp": 2}, "NOT EQUIVALENT", "right_linear_attention_sequence.py"


def step(world):
    return right_linear_attention_sequence.step(world, own=1)
