# SPDX-License-Identifier: Apache-2.0
"""The first factor of the column-parallel layer is on all ranks; its gradient is not summed."""

import right_lora_tensor_parallel

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "right_lora_tensor_parallel.py"


def step(world):
    return right_lora_tensor_parallel.step(world, summed=("down.b",))
