# SPDX-License-Identifier: Apache-2.0
"""megatron-core 0.16.1: DistributedDataParallel, finalize_model_grads, get_megatron_optimizer.

DistributedDataParallel with overlap and several buckets; the optimizer ordinary and distributed.

usage: PYTHONPATH=python python examples/torch/packages/megatron_ddp.py
"""

import functools
from unittest import mock

import megatron.core.utils
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer.transformer_config import TransformerConfig

megatron.core.utils.float = lambda x: x  # its norm of gradients goes by way of a Python number
TYPE = torch.Tensor.type
VOCABULARY, SEQUENCE, BATCH = 32, 8, 4
SHARD = {
    r".*(word_embeddings|output_layer)\.weight": {"tp": 0},
    r".*(linear_qkv|linear_fc1)\.(weight|bias)": {"tp": 0},
    r".*(linear_proj|linear_fc2)\.weight": {"tp": 1},
}


def of_a_gpu(t, *args):
    """Tensor.type(), which its optimizers ask whether tensors are on a GPU."""
    return TYPE(t, *args) if args else TYPE(t).replace("torch.Float", "torch.cuda.Float")


def train(world, overlap=False, distributed=False, finalize=finalize_model_grads):
    size = world.sizes.get("tp", 1)
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
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=16,
        parallel_output=True,
        position_embedding_type="learned_absolute",
    )
    world.parameters(model, shard=SHARD)
    setup = DistributedDataParallelConfig(
        overlap_grad_reduce=overlap,
        bucket_size=8192 if overlap else None,
        use_distributed_optimizer=distributed,
        grad_reduce_in_fp32=True,
    )
    wrapped = DistributedDataParallel(config, setup, model)
    with mock.patch.object(torch.Tensor, "type", of_a_gpu):
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=1e-3,
                weight_decay=0.01,
                clip_grad=0.0,
                use_distributed_optimizer=distributed,
            ),
            [wrapped],
        )
    tokens, labels = (
        world.input(
            name,
            (BATCH, SEQUENCE),
            torch.long,
            shard={a: 0 for a in world.sizes if a == "dp"},
            high=VOCABULARY,
        )
        for name in ("tokens", "labels")
    )
    hidden = torch.triu(torch.ones(1, 1, SEQUENCE, SEQUENCE), 1).bool()
    wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    loss = wrapped(tokens, torch.arange(SEQUENCE)[None], hidden, labels=labels).mean()
    loss.backward()
    finalize([wrapped])
    optimizer.step()
    world.output("loss", loss, mean=["dp"])


CASES = {
    "DistributedDataParallel": (train, {"dp": 2}, "EQUIVALENT"),
    "finalize_model_grads is not called": (
        functools.partial(train, finalize=lambda models: None),
        {"dp": 2},
        "NOT EQUIVALENT",
    ),
    "overlapped, several buckets, tensor parallel": (
        functools.partial(train, overlap=True),
        {"dp": 2, "tp": 2},
        "EQUIVALENT",
    ),
}

if __name__ == "__main__":
    import shardproof.torch as sp

    for name, (step, mesh, expected, *options) in CASES.items():
        print(
            f"{name}: {sp.verify(step, mesh=mesh, **(options[0] if options else {})).verdict}, "
            f"expected {expected}"
        )
