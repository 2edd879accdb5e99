# SPDX-License-Identifier: Apache-2.0
"""The tensor- and sequence-parallel plan of a Llama as in torchtitan, and its training step."""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from models import Config, Llama
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

CONFIG, BATCH = Config(), 4


def tensor_parallel(model, mesh, loss_is_parallel=False, **changes):
    """Cuts a Llama over tp. `changes` replace entries of the plan, with . written as __."""
    top = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=Shard(1),
            output_layouts=Shard(-1) if loss_is_parallel else Replicate(),
            use_local_output=not loss_is_parallel,
        ),
    }
    layer = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
        ),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w3": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
    }
    for name, style in changes.items():
        (top if name in top else layer)[name.replace("__", ".")] = style
    parallelize_module(model, mesh, top)
    for block in model.layers.values():
        parallelize_module(block, mesh, layer)
    return model


def batch(world, config=CONFIG, size=BATCH, **shard):
    shape = (size, config.seq)
    return tuple(
        world.input(name, shape, torch.long, shard=shard, high=config.vocab)
        for name in ("tokens", "labels")
    )


def train(
    world, model, tokens, labels, loss_is_parallel=False, scale=1.0, max_norm=1.0, optimizer=None
):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    with loss_parallel() if loss_is_parallel and not world.single else contextlib.nullcontext():
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        (loss * scale if scale != 1.0 else loss).backward()
    if max_norm:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        world.output(
            "grad_norm", norm.full_tensor() if hasattr(norm, "full_tensor") else norm, mean=()
        )
    optimizer.step()
    return loss


def llama():
    return Llama(CONFIG)
