# SPDX-License-Identifier: Apache-2.0
"""megatron-core 0.16.1: GPTModel cut into pipeline stages, with Megatron's schedules and messages.

The schedules are 1F1B, and interleaved 1F1B with two chunks of the model on each rank.

usage: PYTHONPATH=python python examples/torch/packages/megatron_pipeline.py
"""

import functools

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

VOCABULARY, SEQUENCE, BATCH, COUNT, LAYERS = 32, 8, 8, 4, 4


def named_as_whole(chunks):
    """Layers numbered as in the whole model: Megatron counts those of each chunk from 0."""
    named = nn.Module()
    named.decoder = nn.Module()
    named.decoder.layers = nn.ModuleDict(
        {str(layer.layer_number - 1): layer for chunk in chunks for layer in chunk.decoder.layers}
    )
    for chunk in chunks:
        if chunk.pre_process:
            named.embedding = chunk.embedding
        if chunk.post_process:
            named.decoder.final_layernorm, named.output_layer = (
                chunk.decoder.final_layernorm,
                chunk.output_layer,
            )
    return named


def train(world, scale=1, interleaved=False, overlap=True):
    size = world.sizes["pp"]
    virtual = 2 if interleaved and size > 1 else None
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=size, virtual_pipeline_model_parallel_size=virtual
    )
    torch.manual_seed(1)  # parameters are drawn on the CPU
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=32,
        num_attention_heads=4,
        ffn_hidden_size=64,
        pipeline_model_parallel_size=size,
        virtual_pipeline_model_parallel_size=virtual,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        overlap_p2p_comm=overlap and bool(virtual),
        batch_p2p_comm=not (overlap and virtual),
    )
    chunks = []
    for i in range(virtual or 1):
        stage = i if virtual else None
        ends = {
            "pre_process": parallel_state.is_pipeline_first_stage(
                ignore_virtual=not virtual, vp_stage=stage
            ),
            "post_process": parallel_state.is_pipeline_last_stage(
                ignore_virtual=not virtual, vp_stage=stage
            ),
        }
        chunks.append(
            GPTModel(
                config,
                get_gpt_layer_local_spec(),
                vocab_size=VOCABULARY,
                max_sequence_length=16,
                parallel_output=True,
                position_embedding_type="learned_absolute",
                vp_stage=stage,
                **ends,
            )
        )
    first, last = any(c.pre_process for c in chunks), any(c.post_process for c in chunks)
    world.parameters(named_as_whole(chunks))
    tokens, labels = (
        world.input(name, (BATCH, SEQUENCE), torch.long, high=VOCABULARY).chunk(COUNT)
        if wanted
        else [None] * COUNT
        for name, wanted in (("tokens", first), ("labels", last))
    )
    hidden = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE), 1).bool()
    losses = []

    def forward(batches, stage):
        ids, targets = next(batches)

        def of_loss(out):
            loss = out.mean()
            losses.append(loss.detach())
            return loss * (1 if world.single else scale), {}

        return stage(
            ids,
            torch.arange(SEQUENCE)[None].expand(BATCH // COUNT, SEQUENCE),
            hidden,
            labels=targets,
        ), of_loss

    run, batches = get_forward_backward_func(), list(zip(tokens, labels, strict=True))
    run(
        forward_step_func=forward,
        data_iterator=[iter(batches) for _ in chunks] if virtual else iter(batches),
        model=chunks if virtual else chunks[0],
        num_microbatches=COUNT,
        seq_length=SEQUENCE,
        micro_batch_size=BATCH // COUNT,
        forward_only=False,
    )
    torch.optim.SGD([p for c in chunks for p in c.parameters()], lr=0.1).step()
    return torch.stack(losses).mean() if last else None


CASES = {
    "pipeline of two stages": (train, {"pp": 2}, "EQUIVALENT"),
    "the loss is not averaged over microbatches": (
        functools.partial(train, scale=COUNT),
        {"pp": 2},
        "NOT EQUIVALENT",
    ),
    "interleaved": (functools.partial(train, interleaved=True), {"pp": 2}, "EQUIVALENT"),
    # Without overlap_p2p_comm one batch has a gradient and an activation for the same rank.
    # Megatron's own training script asserts that there are more than two stages then.
    "interleaved, messages of two stages in one batch": (
        functools.partial(train, interleaved=True, overlap=False),
        {"pp": 2},
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
