# SPDX-License-Identifier: Apache-2.0
"""Vocabulary-parallel embedding whose windows are off by one: the first token is on no rank."""

import megatron_parallel as megatron
from megatron_parallel import single  # noqa: F401

MESH, EXPECT, NAMES = {"tp": 2}, "NOT EQUIVALENT", "tok_embeddings"


def step(world):
    return megatron.step(world, shift=1)
