# SPDX-License-Identifier: Apache-2.0
"""Conversions of four models from Hugging Face's names and layouts to Megatron's, at tiny sizes.

Each has a source (shapes only), a conversion as people write them (chunks, views, copies into
buffers) and a specification that computes where each row comes from. `bugs` of a conversion names
mistakes that it makes.
"""

import torch

HIDDEN, HEADS, GROUPS, SIZE, FEATURES, VOCABULARY, PADDED = 8, 4, 2, 2, 12, 10, 12


def shapes(**of):
    return {name: torch.empty(shape, device="meta") for name, shape in of.items()}


def named(**of):
    """Dots are written as double underscores."""
    return {name.replace("__", "."): x for name, x in shapes(**of).items()}


# ---- Llama: grouped queries, a gated feed-forward part, a vocabulary that Megatron pads


def llama(layers=2):
    source = named(
        model__embed_tokens__weight=(VOCABULARY, HIDDEN),
        model__norm__weight=(HIDDEN,),
        lm_head__weight=(VOCABULARY, HIDDEN),
    )
    for i in range(layers):
        layer = named(
            self_attn__q_proj__weight=(HEADS * SIZE, HIDDEN),
            self_attn__k_proj__weight=(GROUPS * SIZE, HIDDEN),
            self_attn__v_proj__weight=(GROUPS * SIZE, HIDDEN),
            self_attn__o_proj__weight=(HIDDEN, HEADS * SIZE),
            mlp__gate_proj__weight=(FEATURES, HIDDEN),
            mlp__up_proj__weight=(FEATURES, HIDDEN),
            mlp__down_proj__weight=(HIDDEN, FEATURES),
            input_layernorm__weight=(HIDDEN,),
            post_attention_layernorm__weight=(HIDDEN,),
        )
        source |= {f"model.layers.{i}.{name}": x for name, x in layer.items()}
    return source


def fused(q, k, v, bugs=()):
    """Rows of Megatron's linear_qkv: for each group its queries, its key, its value."""
    if "not-interleaved" in bugs:
        return torch.cat([q, k, v])
    groups = k.shape[0] // SIZE
    if "interleaved-by-rows" in bugs:
        parts = [x.view(SIZE, -1, x.shape[-1]).transpose(0, 1) for x in (q, k, v)]
    else:
        parts = [x.view(groups, -1, x.shape[-1]) for x in (q, k, v)]
    if "key-after-value" in bugs:
        parts[1:] = parts[:0:-1]
    return torch.cat([x.reshape(groups, -1, q.shape[-1]) for x in parts], 1).flatten(0, 1)


def padded(weight, bugs=()):
    if "padded-in-front" in bugs:
        return torch.cat([weight.new_zeros(PADDED - VOCABULARY, HIDDEN), weight])
    made = torch.empty(PADDED, HIDDEN, dtype=weight.dtype)
    if "padding-not-written" not in bugs:
        made.zero_()
    made[:VOCABULARY].copy_(weight)
    return made


def llama_to_megatron(source, pp=1, tp=1, bugs=(), layers=2):
    """A list of state dicts: rank pp * tp_size + tp."""
    ranks = []
    here = layers // pp
    for stage in range(pp):
        for rank in range(tp):

            def rows(x, rank=rank):
                return x.chunk(tp)[rank].clone()

            def columns(x, rank=rank):
                return x.chunk(tp, dim=1)[rank].clone()

            state = {}
            if stage == 0:
                whole = padded(source["model.embed_tokens.weight"], bugs)
                state["embedding.word_embeddings.weight"] = rows(whole)
            for local in range(here):
                i = local if "stage-1-has-stage-0" in bugs else stage * here + local
                old, new = f"model.layers.{i}.", f"decoder.layers.{local}."
                q, k, v, o = (source[old + f"self_attn.{x}_proj.weight"] for x in "qkvo")
                gate, up, down = (
                    source[old + f"mlp.{x}_proj.weight"] for x in ("gate", "up", "down")
                )
                if "up-before-gate" in bugs:
                    gate, up = up, gate
                if "transposed-projection" in bugs:
                    o = o.t().contiguous()
                state[new + "self_attention.linear_qkv.weight"] = rows(fused(q, k, v, bugs))
                state[new + "self_attention.linear_proj.weight"] = columns(o)
                if "cut-after-fusion" in bugs:
                    state[new + "mlp.linear_fc1.weight"] = rows(torch.cat([gate, up]))
                else:
                    state[new + "mlp.linear_fc1.weight"] = torch.cat([rows(gate), rows(up)])
                if "down-cut-once-for-all" in bugs:
                    state[new + "mlp.linear_fc2.weight"] = down[:, : FEATURES // tp].clone()
                else:
                    state[new + "mlp.linear_fc2.weight"] = columns(down)
                for a, b in (
                    ("input_layernorm", "self_attention.linear_qkv.layer_norm_weight"),
                    ("post_attention_layernorm", "mlp.linear_fc1.layer_norm_weight"),
                ):
                    state[new + b] = source[old + f"{a}.weight"].clone()
            if stage == pp - 1:
                head = "model.embed_tokens" if "head-is-embedding" in bugs else "lm_head"
                state["decoder.final_layernorm.weight"] = source["model.norm.weight"].clone()
                state["output_layer.weight"] = rows(padded(source[f"{head}.weight"], bugs))
            ranks.append(state)
    return ranks


def llama_specification(pp=1, tp=1, layers=2):
    """The same by the numbers of rows and columns."""

    def rows_of(rank, names_and_rows):
        """Each row by its source and its number there."""
        here = len(names_and_rows) // tp
        picked = names_and_rows[rank * here : (rank + 1) * here]
        return lambda s: torch.stack([s[n][r] for n, r in picked])

    def vocabulary(rank, name):
        here = PADDED // tp

        def made(s):
            numbers = range(rank * here, (rank + 1) * here)
            return torch.stack(
                [s[name][r] if r < VOCABULARY else torch.zeros(HIDDEN) for r in numbers]
            )

        return made

    def columns_of(rank, name, width):
        here = width // tp
        return lambda s: s[name][:, rank * here : (rank + 1) * here]

    ranks = []
    for rank in range(pp * tp):
        stage, r = divmod(rank, tp)
        state = {}
        if stage == 0:
            state["embedding.word_embeddings.weight"] = vocabulary(r, "model.embed_tokens.weight")
        for local in range(layers // pp):
            old = f"model.layers.{stage * (layers // pp) + local}."
            new = f"decoder.layers.{local}."
            qkv = []
            for group in range(GROUPS):
                per = HEADS // GROUPS * SIZE
                for x, n in (("q", per), ("k", SIZE), ("v", SIZE)):
                    name = f"{old}self_attn.{x}_proj.weight"
                    qkv += [(name, group * n + j) for j in range(n)]
            state[new + "self_attention.linear_qkv.weight"] = rows_of(r, qkv)
            state[new + "self_attention.linear_proj.weight"] = columns_of(
                r, old + "self_attn.o_proj.weight", HEADS * SIZE
            )
            here = FEATURES // tp
            fc1 = [
                (f"{old}mlp.{x}_proj.weight", t * here + j)
                for t in range(tp)
                for x in ("gate", "up")
                for j in range(here)
            ]
            state[new + "mlp.linear_fc1.weight"] = rows_of(r, fc1)
            state[new + "mlp.linear_fc2.weight"] = columns_of(
                r, old + "mlp.down_proj.weight", FEATURES
            )
            state[new + "self_attention.linear_qkv.layer_norm_weight"] = (
                old + "input_layernorm.weight"
            )
            state[new + "mlp.linear_fc1.layer_norm_weight"] = (
                old + "post_attention_layernorm.weight"
            )
        if stage == pp - 1:
            state["decoder.final_layernorm.weight"] = "model.norm.weight"
            state["output_layer.weight"] = vocabulary(r, "lm_head.weight")
        ranks.append(state)
    return ranks


def megatron_to_llama(state, bugs=()):
    """Back, from one rank."""
    made = {
        "model.embed_tokens.weight": state["embedding.word_embeddings.weight"][:VOCABULARY],
        "model.norm.weight": state["decoder.final_layernorm.weight"],
        "lm_head.weight": state["output_layer.weight"][:VOCABULARY],
    }
    layers = 1 + max(int(n.split(".")[2]) for n in state if n.startswith("decoder.layers."))
    for i in range(layers):
        old, new = f"decoder.layers.{i}.", f"model.layers.{i}."
        qkv = state[old + "self_attention.linear_qkv.weight"].view(GROUPS, -1, SIZE, HIDDEN)
        per = HEADS // GROUPS
        cuts = (slice(0, per), slice(per, per + 1), slice(per + 1, None))
        for x, cut in zip("qkv", cuts):
            made[f"{new}self_attn.{x}_proj.weight"] = qkv[:, cut].reshape(-1, HIDDEN)
        made[new + "self_attn.o_proj.weight"] = state[old + "self_attention.linear_proj.weight"]
        gate, up = state[old + "mlp.linear_fc1.weight"].chunk(2)
        made[new + "mlp.gate_proj.weight"], made[new + "mlp.up_proj.weight"] = gate, up
        made[new + "mlp.down_proj.weight"] = state[old + "mlp.linear_fc2.weight"]
        for a, b in (
            ("input_layernorm", "self_attention.linear_qkv.layer_norm_weight"),
            ("post_attention_layernorm", "mlp.linear_fc1.layer_norm_weight"),
        ):
            made[new + f"{a}.weight"] = state[old + b]
    if "norms-swapped" in bugs:
        a, b = (
            f"model.layers.1.{x}.weight" for x in ("input_layernorm", "post_attention_layernorm")
        )
        made[a], made[b] = made[b], made[a]
    return made


# ---- Qwen3-MoE: norms of queries and keys, experts that ranks share out

EXPERTS, EXPERT_FEATURES = 4, 6


def qwen3_moe():
    source = named(
        self_attn__q_norm__weight=(SIZE,),
        self_attn__k_norm__weight=(SIZE,),
        mlp__gate__weight=(EXPERTS, HIDDEN),
    )
    for e in range(EXPERTS):
        source |= {
            f"mlp.experts.{e}.{name}_proj.weight": torch.empty(shape, device="meta")
            for name, shape in (
                ("gate", (EXPERT_FEATURES, HIDDEN)),
                ("up", (EXPERT_FEATURES, HIDDEN)),
                ("down", (HIDDEN, EXPERT_FEATURES)),
            )
        }
    return source


def qwen3_moe_to_megatron(source, ep=2, bugs=()):
    """The experts of each rank are stacked, fc1 transposed as a grouped multiplication has it."""
    ranks = []
    here = EXPERTS // ep
    for rank in range(ep):
        norms = ["q", "k"]
        if "norms-swapped" in bugs:
            norms.reverse()
        router = source["mlp.gate.weight"]
        if "router-in-bfloat16" in bugs:
            router = router.to(torch.bfloat16).to(torch.float32)
        state = {
            "self_attention.q_layernorm.weight": source[f"self_attn.{norms[0]}_norm.weight"],
            "self_attention.k_layernorm.weight": source[f"self_attn.{norms[1]}_norm.weight"],
            "mlp.router.weight": router,
        }
        fc1 = torch.empty(here, HIDDEN, 2 * EXPERT_FEATURES)
        fc2 = torch.empty(here, EXPERT_FEATURES, HIDDEN)
        for local in range(here):
            expert = local if "experts-of-rank-0" in bugs else rank * here + local
            if "experts-dealt-out" in bugs:
                expert = local * ep + rank
            gate, up, down = (
                source[f"mlp.experts.{expert}.{x}_proj.weight"] for x in ("gate", "up", "down")
            )
            fc1[local, :, :EXPERT_FEATURES] = gate.t()
            fc1[local, :, EXPERT_FEATURES:] = up.t()
            fc2[local] = down.t()
        state["mlp.experts.weight1"], state["mlp.experts.weight2"] = fc1, fc2
        ranks.append(state)
    return ranks


def qwen3_moe_specification(source, ep=2):
    here = EXPERTS // ep
    names = [f"mlp.experts.{e}." for e in range(EXPERTS)]
    up = torch.stack(
        [torch.cat([source[n + "gate_proj.weight"], source[n + "up_proj.weight"]]) for n in names]
    )
    down = torch.stack([source[n + "down_proj.weight"] for n in names])
    return [
        {
            "self_attention.q_layernorm.weight": source["self_attn.q_norm.weight"],
            "self_attention.k_layernorm.weight": source["self_attn.k_norm.weight"],
            "mlp.router.weight": source["mlp.gate.weight"],
            "mlp.experts.weight1": up[rank * here : rank * here + here].permute(0, 2, 1),
            "mlp.experts.weight2": down[rank * here : rank * here + here].permute(0, 2, 1),
        }
        for rank in range(ep)
    ]


# ---- DeepSeek-V3: latent attention, a dense layer before those with experts

RANK, ROPE, NOPE = 6, 2, 3


def deepseek_v3():
    source = {}
    for i in range(3):
        layer = named(
            self_attn__kv_a_proj_with_mqa__weight=(RANK + ROPE, HIDDEN),
            self_attn__q_b_proj__weight=(HEADS * (NOPE + ROPE), RANK),
        )
        if i == 0:
            layer |= named(mlp__down_proj__weight=(HIDDEN, FEATURES))
        else:
            layer |= named(
                mlp__gate__weight=(EXPERTS, HIDDEN),
                mlp__gate__e_score_correction_bias=(EXPERTS,),
            )
        source |= {f"model.layers.{i}.{name}": x for name, x in layer.items()}
    source["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.empty(1, device="meta")
    return source


def interleaved(weight, back=False):
    """Rotary rows from halves to pairs, or back."""
    if back:
        return weight.unflatten(-2, (-1, 2)).transpose(-3, -2).flatten(-3, -2)
    return weight.unflatten(-2, (2, -1)).transpose(-3, -2).flatten(-3, -2)


def deepseek_v3_to_megatron(source, bugs=()):
    made = {}
    for i in range(3):
        old, new = f"model.layers.{i}.", f"decoder.layers.{i}."
        kv = source[old + "self_attn.kv_a_proj_with_mqa.weight"]
        latent, rope = kv.split([RANK, ROPE])
        if "rope-first" in bugs:
            latent, rope = kv[ROPE:], kv[:ROPE]
        made[new + "self_attention.linear_kv_down_proj.weight"] = torch.cat([latent, rope])
        q = source[old + "self_attn.q_b_proj.weight"].view(HEADS, NOPE + ROPE, RANK)
        if "rope-of-queries-reversed" in bugs:
            q = torch.cat([q[:, :NOPE], q[:, NOPE:].flip(1)], 1)
        made[new + "self_attention.linear_q_up_proj.weight"] = q.reshape(-1, RANK)
        if i == 0:
            made[new + "mlp.linear_fc2.weight"] = source[old + "mlp.down_proj.weight"]
            continue
        other = "model.layers.1." if "layer-before" in bugs else old
        made[new + "mlp.router.weight"] = source[other + "mlp.gate.weight"]
        if "bias-forgotten" not in bugs:
            made[new + "mlp.router.expert_bias"] = source[old + "mlp.gate.e_score_correction_bias"]
    return made


def deepseek_v3_specification():
    target = {}
    for i in range(3):
        old, new = f"model.layers.{i}.", f"decoder.layers.{i}."
        target[new + "self_attention.linear_kv_down_proj.weight"] = (
            old + "self_attn.kv_a_proj_with_mqa.weight"
        )
        target[new + "self_attention.linear_q_up_proj.weight"] = old + "self_attn.q_b_proj.weight"
        if i == 0:
            target[new + "mlp.linear_fc2.weight"] = old + "mlp.down_proj.weight"
        else:
            target[new + "mlp.router.weight"] = old + "mlp.gate.weight"
            target[new + "mlp.router.expert_bias"] = old + "mlp.gate.e_score_correction_bias"
    return target


# ---- GPT-2: weights of its Conv1D are transposed, the head is the embedding


def gpt2():
    source = named(
        wte__weight=(VOCABULARY, HIDDEN),
        wpe__weight=(6, HIDDEN),
        h__0__attn__c_attn__weight=(HIDDEN, 3 * HIDDEN),
        h__0__attn__c_attn__bias=(3 * HIDDEN,),
        h__0__attn__c_proj__weight=(HIDDEN, HIDDEN),
    )
    source["lm_head.weight"] = source["wte.weight"]
    return source


def gpt2_to_megatron(source, bugs=()):
    """Megatron's rows of heads: query, key and value of head 0, of head 1, ..."""

    def by_heads(x):
        if "not-interleaved" in bugs:
            return x
        return x.unflatten(0, (3, HEADS, -1)).transpose(0, 1).flatten(0, 2)

    attention = source["h.0.attn.c_attn.weight"].t()
    projection = source["h.0.attn.c_proj.weight"]
    return {
        "embedding.word_embeddings.weight": source["wte.weight"],
        "embedding.position_embeddings.weight": source["wpe.weight"][
            : 5 if "one-position-less" in bugs else None
        ],
        "decoder.layers.0.self_attention.linear_qkv.weight": by_heads(attention),
        "decoder.layers.0.self_attention.linear_qkv.bias": source["h.0.attn.c_attn.bias"]
        if "bias-as-it-is" in bugs
        else by_heads(source["h.0.attn.c_attn.bias"]),
        "decoder.layers.0.self_attention.linear_proj.weight": projection
        if "not-transposed" in bugs
        else projection.t().contiguous(),
        "output_layer.weight": source["lm_head.weight"],
    }


def gpt2_specification(source):
    rows = [
        (part * HEADS + head) * SIZE + j
        for head in range(HEADS)
        for part in range(3)
        for j in range(SIZE)
    ]
    return {
        "embedding.word_embeddings.weight": source["wte.weight"],
        "embedding.position_embeddings.weight": source["wpe.weight"],
        "decoder.layers.0.self_attention.linear_qkv.weight": torch.stack(
            [source["h.0.attn.c_attn.weight"][:, r] for r in rows]
        ),
        "decoder.layers.0.self_attention.linear_qkv.bias": source["h.0.attn.c_attn.bias"][rows],
        "decoder.layers.0.self_attention.linear_proj.weight": source[
            "h.0.attn.c_proj.weight"
        ].transpose(0, 1),
        "output_layer.weight": source["wte.weight"],
    }


# ---- LoRA factors from one tensor-parallel size to another


def lora(tp=2):
    """Of each rank: A, which all ranks have a copy of, and its rows of B."""
    return [shapes(lora_a=(2, HIDDEN), lora_b=(HIDDEN // tp, 2)) for _ in range(tp)]


def resharded(ranks, tp=4, bugs=()):
    if "rank-0-for-all" in bugs:
        whole = torch.cat([ranks[0]["lora_b"]] * len(ranks))
    else:
        whole = torch.cat([r["lora_b"] for r in ranks])
    return [{"lora_a": ranks[0]["lora_a"], "lora_b": part} for part in whole.chunk(tp)]
