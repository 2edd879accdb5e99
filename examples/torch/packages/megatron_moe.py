# SPDX-License-Identifier: Apache-2.0
"""megatron-core 0.16.1: GPTModel with experts, expert parallelism and DistributedDataParallel.

Both dispatchers of tokens (alltoall, allgather), as a SequentialMLP. Transformer Engine is not
there: torch's layer norm replaces it, and the router's product of matrices, of which
megatron-core 0.16.1 defines no name without it, is torch's.

usage: PYTHONPATH=python python examples/torch/packages/megatron_moe.py
"""

from unittest import mock

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

VOCABULARY, SEQUENCE, EXPERTS = 16, 4, 4


class Norm(torch.nn.LayerNorm):
    def __init__(self, config, hidden_size, eps=1e-5, **options):
        super().__init__(hidden_size, eps)


class Numbered(torch.nn.ModuleList):
    """A rank's experts by their numbers among all."""

    def __init__(self, modules, first):
        super().__init__()
        for i, module in enumerate(modules):
            self.add_module(str(first + i), module)

    def __getitem__(self, i):
        return list(self)[i]


def train(world, dispatcher, finalize=True):
    size = world.size
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(expert_model_parallel_size=size)
    torch.manual_seed(1)  # parameters are drawn on the CPU
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=16,
        num_attention_heads=2,
        ffn_hidden_size=16,
        expert_model_parallel_size=size,
        num_moe_experts=EXPERTS,
        moe_ffn_hidden_size=16,
        moe_router_topk=2,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type=dispatcher,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
    )
    layer = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    with mock.patch("megatron.core.transformer.transformer_block.LayerNormImpl", Norm):
        model = GPTModel(
            config,
            layer,
            vocab_size=VOCABULARY,
            max_sequence_length=16,
            parallel_output=True,
            position_embedding_type="learned_absolute",
            share_embeddings_and_output_weights=True,
        )
    experts = model.decoder.layers[0].mlp.experts
    experts.local_experts = Numbered(experts.local_experts, world.rank * EXPERTS // size)
    world.parameters(model, shard={})  # before it is wrapped: names are the model's
    wrapped = model
    if not world.single:
        options = DistributedDataParallelConfig(
            overlap_grad_reduce=False, use_distributed_optimizer=False
        )
        wrapped = DistributedDataParallel(config, options, model)
    tokens, labels = (
        world.input(name, (4, SEQUENCE), torch.long, shard={"dp": 0}, high=VOCABULARY)
        for name in ("tokens", "labels")
    )
    positions = torch.arange(SEQUENCE)[None].expand_as(tokens)
    hidden = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE), 1).bool()
    with mock.patch.object(moe_utils, "te_general_gemm", None, create=True):
        loss = wrapped(tokens, positions, hidden, labels=labels).mean()
        loss.backward()
    if not world.single:
        if finalize:
            finalize_model_grads([wrapped], None)
        for p in model.parameters():
            p.grad = p.main_grad
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    world.output("loss", loss, mean=["dp"])


CASES = {
    "all-to-all of tokens": (lambda world: train(world, "alltoall"), {"dp": 2}, "EQUIVALENT"),
    "tokens are gathered": (lambda world: train(world, "allgather"), {"dp": 2}, "EQUIVALENT"),
    "gradients are not finalized": (
        lambda world: train(world, "alltoall", finalize=False),
        {"dp": 2},
        "NOT EQUIVALENT",
    ),
}

if __name__ == "__main__":
    import shardproof.torch as sp

    for name, (step, mesh, expected, *options) in CASES.items():
        print(
            f"{name}: {sp.verify(step, mesh=mesh, **(options[0] if options else {})).verdict}, "
            f"expected {expected}"
        )
