# SPDX-License-Identifier: Apache-2.0
"""Expert gradients are too large by the number of ranks.

They come from the tokens of all ranks, each with a local mean.
"""

import right_moe_all_to_all
import shardproof.torch as sp

MESH, EXPECT, NAMES = {"ep": 2}, "NOT EQUIVALENT", "right_moe_all_to_all.py"


def step(world):
    return right_moe_all_to_all.step(world, divide=False)


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
