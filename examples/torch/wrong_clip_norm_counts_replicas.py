"""Replicated parameters are counted on every tp rank in the gradient norm (C3: NeMo-RL 3788)."""

import megatron
from megatron import single  # noqa: F401

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "megatron.py"


def step(world):
    return megatron.step(world, counted=lambda name, rank: True)
