# SPDX-License-Identifier: Apache-2.0
"""Tensor and sequence parallel Llama, the loss on whole logits."""

import shardproof.torch as sp
from llama_parallel import batch, llama, tensor_parallel, train

MESH, EXPECT = {"tp": 2}, "EQUIVALENT"


def step(world):
    model = llama()
    if not world.single:
        tensor_parallel(model, world.mesh("tp"))
    return train(world, model, *batch(world))


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
