# SPDX-License-Identifier: Apache-2.0
"""megatron-core 0.16.1: GPTModel with tensor and sequence parallelism.

The layers are the local ones, not Transformer Engine's. Embeddings are tied, the loss is
vocabulary-parallel. Megatron's layer norm for sequence parallelism needs Transformer Engine or
Apex: torch's replaces it, marked as theirs are.

usage: PYTHONPATH=python python examples/torch/packages/megatron_gpt.py
"""

import functools
import types
from unittest import mock

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed.finalize_model_grads import (
    _allreduce_non_tensor_model_parallel_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

VOCABULARY, SEQUENCE = 32, 8
SHARD = {
    r".*word_embeddings\.weight": {"tp": 0},
    r".*(linear_qkv|linear_fc1)\.(weight|bias)": {"tp": 0},
    r".*(linear_proj|linear_fc2)\.weight": {"tp": 1},
}


class Norm(torch.nn.LayerNorm):
    """Marks parameters whose gradients are of a part of the sequence, as Apex does."""

    def __init__(self, config, hidden_size, eps=1e-5, **options):
        super().__init__(hidden_size, eps)
        for p in self.parameters():
            p.sequence_parallel = config.sequence_parallel


def train(world, sequence=False, finalize=True):
    size = world.sizes["tp"]
    sequence = sequence and size > 1
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    torch.manual_seed(1)  # parameters are drawn on the CPU
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        ffn_hidden_size=64,
        tensor_model_parallel_size=size,
        sequence_parallel=sequence,
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
    layer = get_gpt_layer_local_spec()
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
    world.parameters(model, shard=SHARD)
    tokens, labels = (
        world.input(name, (4, SEQUENCE), torch.long, high=VOCABULARY)
        for name in ("tokens", "labels")
    )
    hidden = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE), 1).bool()
    loss = model(
        tokens, torch.arange(SEQUENCE)[None].expand(4, SEQUENCE), hidden, labels=labels
    ).mean()
    loss.backward()
    if sequence and finalize:
        for p in model.parameters():
            p.main_grad = p.grad
        model.ddp_config = types.SimpleNamespace(use_megatron_fsdp=False)
        _allreduce_non_tensor_model_parallel_grads(
            [model], config, parallel_state.get_tensor_model_parallel_group()
        )
    torch.optim.AdamW(model.parameters(), lr=1e-3).step()
    world.output("loss", loss, mean=())


def unreduced(world):
    """What row-parallel layers leave on the ranks is not added up."""
    with mock.patch(
        "megatron.core.tensor_parallel.layers.reduce_from_tensor_model_parallel_region",
        lambda x, *args, **kwargs: x,
    ):
        train(world)


CASES = {
    "tensor parallel": (train, {"tp": 2}, "EQUIVALENT"),
    "row-parallel layers do not reduce": (unreduced, {"tp": 2}, "NOT EQUIVALENT"),
    "sequence parallel": (functools.partial(train, sequence=True), {"tp": 2}, "EQUIVALENT"),
    "gradients of norms are not summed": (
        functools.partial(train, sequence=True, finalize=False),
        {"tp": 2},
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
