# SPDX-License-Identifier: Apache-2.0
"""torchtitan 0.3.0: its Trainer, constructed from its Config and stepped (train_step).

Two microbatches, FSDP2, tensor and sequence parallelism, clipping, containers of optimizers and
schedulers, metrics. Data and tokenizer are defined here. Attention is torchtitan's
ScaledDotProductAttention: the default needs a compiler.

usage: PYTHONPATH=python python examples/torch/packages/torchtitan_trainer.py
"""

import os
from dataclasses import dataclass
from unittest import mock

import torch
import torchtitan.distributed.utils
import torchtitan.trainer
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.models import llama3
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

DIM, VOCABULARY, HEADS, SEQUENCE, BATCH, ACCUMULATED = 32, 32, 4, 8, 8, 2
# The trainer takes int() and float() of numbers that depend on data, and only logs them.
torchtitan.trainer.int = torchtitan.trainer.float = torchtitan.distributed.utils.float = lambda x: x
llama3.get_attention_config = lambda backend: ScaledDotProductAttention.Config()


class Loader(BaseDataLoader):
    """The batches that a step reads; set by it."""

    batches = []

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, **kwargs):
        pass

    def __iter__(self):
        return iter(Loader.batches)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Kept(Trainer):
    """Keeps the losses that it logs."""

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        pass

    def forward_backward_step(self, **batch):
        loss = super().forward_backward_step(**batch)
        self.losses = [
            *getattr(self, "losses", []),
            loss.full_tensor() if hasattr(loss, "full_tensor") else loss,
        ]
        return loss


class Tokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **kwargs):
        super().__init__()

    def encode(self, *args, **kwargs):
        return []

    def decode(self, *args, **kwargs):
        return ""

    def get_vocab_size(self):
        return VOCABULARY


def llama():
    model = llama3.Llama3Model.Config(
        dim=DIM,
        vocab_size=VOCABULARY,
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=DIM, param_init=llama3._EMBEDDING_INIT
        ),
        norm=RMSNorm.Config(normalized_shape=DIM, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=DIM, out_features=VOCABULARY, param_init=llama3._output_linear_init(DIM)
        ),
        layers=llama3._build_llama3_layers(
            n_layers=2,
            dim=DIM,
            n_heads=HEADS,
            n_kv_heads=2,
            hidden_dim=2 * DIM,
            fuse_qkv=True,
            attn_backend="sdpa",
            rope=ComplexRoPE.Config(
                dim=DIM // HEADS, max_seq_len=16, theta=500000, scaling="llama"
            ),
        ),
    )
    return ModelSpec(
        name="llama3",
        flavor="debugmodel",
        model=model,
        parallelize_fn=llama3.parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )


def train(world, trainer=Kept, backend="partial_dtensor"):
    dp, rows = world.sizes.get("dp", 1), BATCH // ACCUMULATED
    os.environ.update(RANK=str(world.rank), WORLD_SIZE=str(world.size), LOCAL_RANK=str(world.rank))
    parallelism = ParallelismConfig(
        spmd_backend=backend,
        tensor_parallel_degree=world.sizes.get("tp", 1),
        data_parallel_shard_degree=dp,
    )
    training = TrainingConfig(
        local_batch_size=rows // dp,
        global_batch_size=BATCH,
        seq_len=SEQUENCE,
        steps=10,
        mixed_precision_param="float32",
        disable_cuda_graphs=True,
    )
    made = trainer(
        trainer.Config(
            model_spec=llama(),
            loss=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY),
            optimizer=default_adamw(lr=8e-4, implementation="foreach"),
            training=training,
            parallelism=parallelism,
            lr_scheduler=LRSchedulersContainer.Config(warmup_steps=2),
            tokenizer=Tokenizer.Config(),
            dataloader=Loader.Config(),
            metrics=MetricsProcessor.Config(log_freq=1),
            activation_checkpoint=None,
            debug=DebugConfig(seed=1),
        )
    )
    Loader.batches = []
    for i in range(ACCUMULATED):
        tokens, labels = (
            world.input(
                f"{name}{i}", (rows, SEQUENCE), torch.long, shard={"dp": 0}, high=VOCABULARY
            )
            for name in ("tokens", "labels")
        )
        Loader.batches.append(({"input": tokens}, labels))
    made.step = 1
    made.train_step(made.batch_generator(made.dataloader))
    world.output("loss", sum(made.losses), sum=["dp"])


def own_tokens(world):
    """The loss is divided by the tokens that a rank has itself."""
    with mock.patch("torchtitan.distributed.utils.dist_sum_tensor", lambda x, mesh: x):
        train(world)


class Cleared(Kept):
    """Ranks drop the gradients of all microbatches but the last."""

    @dataclass(kw_only=True, slots=True)
    class Config(Kept.Config):
        pass

    def forward_backward_step(self, **batch):
        if self.parallel_dims.world_size > 1:
            self.optimizers.zero_grad()
        return super().forward_backward_step(**batch)


CASES = {
    "Trainer, backend partial_dtensor": (
        train,
        {"dp": 2, "tp": 2},
        "EQUIVALENT",
        {"accept": ["labels-valid"]},
    ),
    "the loss is divided by a rank's own tokens": (
        own_tokens,
        {"dp": 2, "tp": 2},
        "NOT EQUIVALENT",
    ),
    "only the last microbatch's gradients are kept": (
        lambda world: train(world, Cleared),
        {"dp": 2, "tp": 2},
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
