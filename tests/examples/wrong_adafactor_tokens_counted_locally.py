# SPDX-License-Identifier: Apache-2.0
"""Each rank divides by its own token count, and gradients are summed.

A11: transformers 34191 and others.
"""

import right_adafactor_tokens_counted

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_adafactor_tokens_counted.py"


def step(world):
    return right_adafactor_tokens_counted.step(world, counted=False)
