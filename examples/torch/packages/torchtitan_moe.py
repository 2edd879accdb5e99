# SPDX-License-Identifier: Apache-2.0
"""torchtitan 0.3.0: Qwen3 and DeepSeek-V3 with experts, by their own parallelize functions.

FSDP2 and expert parallelism (all-to-all of tokens), the loss, the token count and the hook that
balances the load by biases. Backend partial_dtensor, attention by ScaledDotProductAttention.

usage: PYTHONPATH=python python examples/torch/packages/torchtitan_moe.py
"""

import types

import torch
import torchtitan.models.deepseek_v3 as deepseek_v3
import torchtitan.models.qwen3 as qwen3
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.components.optimizer import register_moe_load_balancing_hook
from torchtitan.config import CompileConfig, DebugConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims, utils
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention

DIM, VOCABULARY, SEQUENCE, EXPERTS = 16, 16, 4, 4
for module in (qwen3, deepseek_v3):
    module.get_attention_config = lambda backend: ScaledDotProductAttention.Config()


def qwen():
    return qwen3.Qwen3Model.Config(
        vocab_size=VOCABULARY,
        dim=DIM,
        norm=qwen3._qwen3_norm(DIM),
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=DIM, param_init=qwen3._EMBEDDING_INIT
        ),
        lm_head=Linear.Config(
            in_features=DIM, out_features=VOCABULARY, param_init=qwen3._LINEAR_INIT
        ),
        layers=qwen3._build_qwen3_moe_layers(
            n_layers=1,
            dim=DIM,
            n_heads=2,
            n_kv_heads=2,
            head_dim=8,
            moe_hidden_dim=DIM,
            num_experts=EXPERTS,
            top_k=2,
            fuse_qkv=False,
            attn_backend="sdpa",
            moe_comm_backend="standard",
            rope=CosSinRoPE.Config(dim=8, max_seq_len=16, theta=10000.0),
        ),
    )


def deepseek():
    return deepseek_v3.DeepSeekV3Model.Config(
        vocab_size=VOCABULARY,
        dim=DIM,
        norm=RMSNorm.Config(normalized_shape=DIM, param_init=deepseek_v3._NORM_INIT),
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCABULARY, embedding_dim=DIM, param_init=deepseek_v3._EMBEDDING_INIT
        ),
        lm_head=Linear.Config(
            in_features=DIM,
            out_features=VOCABULARY,
            param_init=deepseek_v3._output_linear_init(DIM),
        ),
        layers=deepseek_v3._build_dsv3_layers(
            n_layers=1,
            n_dense_layers=0,
            dim=DIM,
            n_heads=2,
            q_lora_rank=0,
            kv_lora_rank=8,
            qk_nope_head_dim=4,
            qk_rope_head_dim=4,
            v_head_dim=8,
            mscale=1.0,
            dense_hidden_dim=2 * DIM,
            moe_hidden_dim=DIM,
            num_experts=EXPERTS,
            num_shared_experts=1,
            router_top_k=2,
            router_score_func="sigmoid",
            attn_backend="sdpa",
            moe_comm_backend="standard",
            non_blocking_capacity_factor=None,
            rope=ComplexRoPE.Config(dim=4, max_seq_len=16, theta=10000.0),
        ),
    )


def train(world, build, parallelize, balanced=True):
    utils.set_spmd_backend("partial_dtensor")
    parallelism, training = ParallelismConfig(), TrainingConfig()
    parallelism.spmd_backend = "partial_dtensor"
    parallelism.data_parallel_shard_degree = parallelism.expert_parallel_degree = world.size
    training.mixed_precision_param, training.seq_len = "float32", SEQUENCE
    config = build()
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
    dims = ParallelDims.from_config(parallelism, world.size)
    if not world.single:
        dims.build_mesh()
        model = parallelize(
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    if balanced:
        register_moe_load_balancing_hook(optimizer, [model], dims)
    tokens, labels = (
        world.input(name, (4, SEQUENCE), torch.long, shard={"dp": 0}, high=VOCABULARY)
        for name in ("tokens", "labels")
    )
    valid = (labels != -100).sum()
    if not world.single:
        valid = utils.dist_sum_tensor(valid, dims.get_mesh("batch"))
    loss = cross_entropy_loss(model(tokens), labels) / valid
    loss.backward()
    optimizer.step()
    world.output("loss", loss.detach(), sum=["dp"])


OPTIONS = {"accept": ["labels-valid"]}
CASES = {
    "Qwen3, expert parallel": (
        lambda world: train(world, qwen, qwen3.parallelize_qwen3),
        {"dp": 2},
        "EQUIVALENT",
        OPTIONS,
    ),
    "DeepSeek-V3, expert parallel": (
        lambda world: train(world, deepseek, deepseek_v3.parallelize_deepseekv3),
        {"dp": 2},
        "EQUIVALENT",
        OPTIONS,
    ),
    "nothing adds up the ranks' counts of tokens": (
        lambda world: train(world, qwen, qwen3.parallelize_qwen3, balanced=False),
        {"dp": 2},
        "NOT EQUIVALENT",
        OPTIONS,
    ),
}

if __name__ == "__main__":
    import shardproof.torch as sp

    for name, (step, mesh, expected, *options) in CASES.items():
        print(
            f"{name}: {sp.verify(step, mesh=mesh, **(options[0] if options else {})).verdict}, "
            f"expected {expected}"
        )
