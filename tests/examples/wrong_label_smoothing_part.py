# SPDX-License-Identifier: Apache-2.0
"""The mean of all logits is taken over one rank's classes.

Their sum over tp is divided by the size of a part of the vocabulary.
"""

import right_label_smoothing_vocabulary as smoothing

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "right_label_smoothing_vocabulary.py"


def step(world):
    return smoothing.step(world, classes=smoothing.VOCAB // world.size)
