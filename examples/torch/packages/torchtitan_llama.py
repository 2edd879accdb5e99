# SPDX-License-Identifier: Apache-2.0
"""torchtitan 0.3.0: its Llama with its own parallelize_llama, loss, token count and clipping.

FSDP2, tensor, sequence and loss parallelism, backend partial_dtensor. Attention is torchtitan's
ScaledDotProductAttention: the default needs a compiler.

usage: PYTHONPATH=python python examples/torch/packages/torchtitan_llama.py
"""

import types

import torch
import torchtitan.models.llama3 as llama3
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config import CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, utils
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention

DIM, VOCABULARY, HEADS, SEQUENCE = 32, 32, 4, 8
llama3.get_attention_config = lambda backend: ScaledDotProductAttention.Config()


def configuration():
    return llama3.Llama3Model.Config(
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
            fuse_qkv=False,
            attn_backend="sdpa",
            rope=ComplexRoPE.Config(
                dim=DIM // HEADS, max_seq_len=16, theta=500000, scaling="llama"
            ),
        ),
    )


def train(world, all_tokens=True, norm=1.0):
    utils.set_spmd_backend("partial_dtensor")
    parallelism, training = ParallelismConfig(), TrainingConfig()
    parallelism.spmd_backend = "partial_dtensor"
    parallelism.tensor_parallel_degree, parallelism.data_parallel_shard_degree = (
        world.sizes.get("tp", 1),
        world.sizes.get("dp", 1),
    )
    training.mixed_precision_param, training.seq_len = "float32", SEQUENCE
    config = configuration()
    config.update_from_config(
        config=types.SimpleNamespace(
            parallelism=parallelism,
            training=training,
            debug=DebugConfig(),
            model_spec=None,
            hf_assets_path="",
        )
    )
    with torch.device("meta"):
        model = config.build()
    if not world.single:
        dims = ParallelDims.from_config(parallelism, world.size)
        dims.build_mesh()
        model = llama3.parallelize_llama(
            model,
            parallel_dims=dims,
            training=training,
            parallelism=parallelism,
            compile_config=CompileConfig(),
            ac_config=None,
            dump_folder="",
        )
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, labels = (
        world.input(name, (4, SEQUENCE), torch.long, shard={"dp": 0}, high=VOCABULARY)
        for name in ("tokens", "labels")
    )
    valid = (labels != -100).sum()
    if not world.single and all_tokens:
        valid = utils.dist_sum_tensor(valid, dims.get_mesh("batch"))
    loss = cross_entropy_loss(model(tokens), labels) / valid
    loss.backward()
    utils.clip_grad_norm_(
        list(model.parameters()),
        1.0 if world.single else norm,
        foreach=True,
        pp_mesh=None,
        ep_enabled=False,
    )
    optimizer.step()
    world.output(
        "loss",
        loss.detach().full_tensor() if hasattr(loss, "full_tensor") else loss.detach(),
        sum=["dp"],
    )


CASES = {
    "FSDP2, tensor, sequence and loss parallel": (
        train,
        {"dp": 2, "tp": 2},
        "EQUIVALENT",
        {"accept": ["labels-valid"]},
    ),
    "the loss is divided by a rank's own tokens": (
        lambda world: train(world, all_tokens=False),
        {"dp": 2, "tp": 2},
        "NOT EQUIVALENT",
    ),
    "clipping by twice the norm": (
        lambda world: train(world, norm=2.0),
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
