# SPDX-License-Identifier: Apache-2.0
"""Each rank divides by the number of its own tokens, and gradients are added up (A11: transformers 34191 and others)."""

import right_adafactor_tokens_counted

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_adafactor_tokens_counted.py"


def step(world):
    return right_adafactor_tokens_counted.step(world, counted=False)
