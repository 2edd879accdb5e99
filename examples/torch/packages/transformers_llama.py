# SPDX-License-Identifier: Apache-2.0
"""transformers 5.23: LlamaForCausalLM with tensor parallelism, DistributedDataParallel and FSDP2.

Tensor parallelism follows the model's own plan.

usage: PYTHONPATH=python python examples/torch/packages/transformers_llama.py
"""

import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

CONFIG = LlamaConfig(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
    use_cache=False,
    attn_implementation="sdpa",
)


def train(world, mode, plan=lambda plan: plan, factor=1):
    model = LlamaForCausalLM(CONFIG)
    if mode == "tp" and not world.single:
        apply_tensor_parallelism(
            model, world.mesh("tp"), plan(model._expand_parallel_plan(model.tp_plan))
        )
    if mode == "fsdp":
        for layer in model.model.layers:
            fully_shard(layer, mesh=world.mesh("dp"))
        fully_shard(model, mesh=world.mesh("dp"))
    shard = {} if mode == "tp" else {"dp": 0}
    tokens, labels = (
        world.input(name, (4, 8), torch.long, shard=shard, high=32) for name in ("tokens", "labels")
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    wrapped = DistributedDataParallel(model) if mode == "ddp" and not world.single else model
    loss = wrapped(input_ids=tokens, labels=labels).loss * (1 if world.single else factor)
    loss.backward()
    if mode != "tp":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    world.output("loss", loss, mean=["dp"])


def summed(plan):
    return {**plan, "model.norm": "all_reduce"}


CASES = {
    "tensor parallel by its plan": (lambda world: train(world, "tp"), {"tp": 2}, "EQUIVALENT"),
    "the plan sums what all ranks have": (
        lambda world: train(world, "tp", summed),
        {"tp": 2},
        "NOT EQUIVALENT",
    ),
    "DistributedDataParallel": (lambda world: train(world, "ddp"), {"dp": 2}, "EQUIVALENT"),
    "the loss is multiplied by the ranks": (
        lambda world: train(world, "ddp", factor=2),
        {"dp": 2},
        "NOT EQUIVALENT",
    ),
    "FSDP2": (lambda world: train(world, "fsdp"), {"dp": 2}, "EQUIVALENT"),
}

if __name__ == "__main__":
    import shardproof.torch as sp

    for name, (step, mesh, expected, *options) in CASES.items():
        print(
            f"{name}: {sp.verify(step, mesh=mesh, **(options[0] if options else {})).verdict}, "
            f"expected {expected}"
        )
