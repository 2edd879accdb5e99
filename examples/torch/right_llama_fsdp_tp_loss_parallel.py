# SPDX-License-Identifier: Apache-2.0
"""torchtitan's two dimensions: FSDP2 over dp, tensor, sequence and loss parallel over tp."""

import shardproof.torch as sp
from llama_parallel import batch, llama, tensor_parallel, train
from torch.distributed.fsdp import fully_shard

MESH, EXPECT = {"dp": 2, "tp": 2}, "EQUIVALENT"


def step(world):
    model = llama()
    if not world.single:
        tensor_parallel(model, world.mesh("tp"), loss_is_parallel=True)
        for block in model.layers.values():
            fully_shard(block, mesh=world.mesh("dp"))
        fully_shard(model, mesh=world.mesh("dp"))
    return train(world, model, *batch(world, dp=0), loss_is_parallel=True)


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
