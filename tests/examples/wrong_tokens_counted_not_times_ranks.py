# SPDX-License-Identifier: Apache-2.0
"""The loss is divided by all ranks' token count, and by the ranks once more.

The second division is DistributedDataParallel's. A11: transformers 34191 and others.
"""

import right_tokens_counted_over_accumulation

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_tokens_counted_over_accumulation.py"


def step(world):
    return right_tokens_counted_over_accumulation.step(world, times_ranks=False)
