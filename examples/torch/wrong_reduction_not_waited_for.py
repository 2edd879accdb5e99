"""Gradients are divided while they are still being reduced."""

import right_asynchronous_reduction

MESH, EXPECT, NAMES = {"dp": 2}, "NOT EQUIVALENT", "right_asynchronous_reduction.py"


def step(world):
    return right_asynchronous_reduction.step(world, waits=False)
