"""Megatron style by hand, with sequence parallelism."""

import megatron
from megatron import single  # noqa: F401

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"


def step(world):
    return megatron.step(world, sequence=True)
