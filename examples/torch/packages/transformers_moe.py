# SPDX-License-Identifier: Apache-2.0
"""transformers 5.23: mixtures of experts with FSDP2, and by tensor- and expert-parallel plans.

Mixtral (experts as grouped_mm) and DeepSeek-V3 (as batched_mm, with a router that limits the
choice to some groups of experts).

usage: PYTHONPATH=python python examples/torch/packages/transformers_moe.py
"""

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)
from transformers.distributed.configuration_utils import DistributedConfig

VOCABULARY, SEQUENCE = 16, 4
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 16,
    "use_cache": False,
}


def mixtral():
    config = MixtralConfig(**SIZES, num_local_experts=4, head_dim=8)
    return MixtralForCausalLM._from_config(config, experts_implementation="grouped_mm")


def deepseek():
    config = DeepseekV3Config(
        **SIZES,
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        kv_lora_rank=8,
        q_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        first_k_dense_replace=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    return DeepseekV3ForCausalLM._from_config(config, experts_implementation="batched_mm")


def train(world, build, distributed, change=lambda model: None):
    """distributed: the sizes and plans of a DistributedConfig."""
    model = build()
    if not world.single:
        config, _, mesh = model.prepare_distribute_model(DistributedConfig(**distributed))
        model = model.maybe_distribute_model(model, config, mesh)
        change(model)
    shard = {"dp": 0} if "dp" in world.sizes else {}
    tokens, labels = (
        world.input(name, (4, SEQUENCE), torch.long, shard=shard, high=VOCABULARY)
        for name in ("tokens", "labels")
    )
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    world.output("loss", loss, mean=[axis for axis in ("dp",) if axis in world.sizes])


TENSOR = {"tp_size": 2}
PRESENT = {"accept": ["rows-present"]}  # the experts of a rank may get no tokens
CASES = {
    "DeepSeek-V3, FSDP2": (
        lambda world: train(world, deepseek, {"fsdp_size": 2}),
        {"dp": 2},
        "EQUIVALENT",
    ),
    "Mixtral, tensor parallel": (
        lambda world: train(world, mixtral, TENSOR),
        {"tp": 2},
        "EQUIVALENT",
    ),
    "what each rank's parts of experts give is not added up": (
        lambda world: train(
            world, mixtral, {**TENSOR, "tp_plan": {"model.layers.*.mlp.experts": "local_params"}}
        ),
        {"tp": 2},
        "NOT EQUIVALENT",
    ),
    "Mixtral, tensor and expert parallel": (
        lambda world: train(world, mixtral, {**TENSOR, "ep_size": 2}),
        {"tp": 2},
        "EQUIVALENT",
        PRESENT,
    ),
}

if __name__ == "__main__":
    import shardproof.torch as sp

    for name, (step, mesh, expected, *options) in CASES.items():
        print(
            f"{name}: {sp.verify(step, mesh=mesh, **(options[0] if options else {})).verdict}, "
            f"expected {expected}"
        )
