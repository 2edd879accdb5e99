# SPDX-License-Identifier: Apache-2.0
"""The key that carries positions is used by the heads of all ranks.

Its gradient is that of the rank's own heads. B7.
"""

import right_latent_attention

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "kv_down"


def step(world):
    return right_latent_attention.step(world, key_summed=False)
