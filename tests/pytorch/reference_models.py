# SPDX-License-Identifier: Apache-2.0
"""The architectures of `shardproof generate` in PyTorch, written from their papers.

Parameters have the generator's names, so a state dict fits. `forward` takes the inputs by name and
returns the loss; `random_inputs` makes them. A new architecture goes into ARCHITECTURES, its sizes
and options into generated_models_test.py.
"""

import functools
import math
import types

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    class Layer(nn.Module):
        def __init__(self, dim, hidden):
            super().__init__()
            self.up = nn.Linear(dim, hidden, bias=False)
            self.down = nn.Linear(hidden, dim, bias=False)

        def forward(self, x):
            return self.down(F.silu(self.up(x)))

    def __init__(self, layers, dim, hidden, batch):
        super().__init__()
        self.sizes = batch, dim
        self.layers = nn.ModuleList(Mlp.Layer(dim, hidden) for _ in range(layers))

    def random_inputs(self, r):
        return {"x": r.real(self.sizes), "target": r.real(self.sizes)}

    def forward(self, x, target):
        for layer in self.layers:
            x = layer(x)
        return F.mse_loss(x, target)


class Llama3(nn.Module):
    """Llama 3: arXiv 2407.21783, section 3.2.

    Pre-normalised transformer with RMSNorm, grouped-query attention, rotary embedding (theta
    500,000) and SwiGLU.
    """

    class Attention(nn.Module):
        def __init__(self, dim, heads, kv_heads):
            super().__init__()
            self.head = dim // heads
            self.wq = nn.Linear(dim, heads * self.head, bias=False)
            self.wk = nn.Linear(dim, kv_heads * self.head, bias=False)
            self.wv = nn.Linear(dim, kv_heads * self.head, bias=False)
            self.wo = nn.Linear(heads * self.head, dim, bias=False)

        def forward(self, x, freqs):
            def heads_of(y):
                return y.unflatten(-1, (-1, self.head))

            def rotated(y):  # pairs of neighbours
                even, odd = y[..., 0::2], y[..., 1::2]
                cosine, sine = freqs.real[:, None, :], freqs.imag[:, None, :]
                return torch.stack(
                    (even * cosine - odd * sine, even * sine + odd * cosine), -1
                ).flatten(-2)

            q, k, v = (
                rotated(heads_of(self.wq(x))),
                rotated(heads_of(self.wk(x))),
                heads_of(self.wv(x)),
            )
            mixed = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                enable_gqa=True,
            )
            return self.wo(mixed.transpose(1, 2).flatten(-2))

    class FeedForward(nn.Module):
        def __init__(self, dim, hidden):
            super().__init__()
            self.w1 = nn.Linear(dim, hidden, bias=False)
            self.w2 = nn.Linear(hidden, dim, bias=False)
            self.w3 = nn.Linear(dim, hidden, bias=False)

        def forward(self, x):
            return self.w2(F.silu(self.w1(x)) * self.w3(x))

    class Layer(nn.Module):
        def __init__(self, dim, hidden, heads, kv_heads):
            super().__init__()
            self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
            self.attention = Llama3.Attention(dim, heads, kv_heads)
            self.ffn_norm = nn.RMSNorm(dim, eps=1e-5)
            self.feed_forward = Llama3.FeedForward(dim, hidden)

        def forward(self, x, freqs):
            x = x + self.attention(self.attention_norm(x), freqs)
            return x + self.feed_forward(self.ffn_norm(x))

    def __init__(self, layers, dim, hidden, heads, kv_heads, seq, vocab, batch):
        super().__init__()
        self.batch, self.seq, self.vocab, self.head = batch, seq, vocab, dim // heads
        self.tok_embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            Llama3.Layer(dim, hidden, heads, kv_heads) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(dim, eps=1e-5)
        self.output = nn.Linear(dim, vocab, bias=False)

    def random_inputs(self, r):
        angles = torch.outer(
            torch.arange(self.seq), 500_000.0 ** (-torch.arange(0, self.head, 2) / self.head)
        )
        ids = [self.batch, self.seq]
        return {
            "tokens": r.ids(ids, self.vocab),
            "labels": r.ids(ids, self.vocab),
            "freqs": torch.polar(torch.ones_like(angles), angles),
        }

    def forward(self, tokens, labels, freqs):
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, freqs)
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1), labels.flatten())


class GivenDropout(nn.Module):
    """Dropout with a given mask: 1 where an element is kept.

    Created in the order in which they are called.
    """

    def __init__(self, p):
        super().__init__()
        self.p, self.mask = p, None

    def forward(self, x):
        if self.p == 0:
            return x
        if self.mask.shape != x.shape:
            raise ValueError(f"a mask of shape {list(self.mask.shape)} for {list(x.shape)}")
        return x * self.mask / (1 - self.p)


class Gpt(nn.Module):
    """GPT-2 and GPT-3 (arXiv 2005.14165) with the parameters of Megatron-LM.

    Query, key and value of a head are adjacent in one projection. The embedding's table is the
    head.
    """

    class Attention(nn.Module):
        def __init__(self, dim, heads, dropout):
            super().__init__()
            self.heads, self.head = heads, dim // heads
            self.query_key_value = nn.Linear(dim, 3 * dim)
            self.dense = nn.Linear(dim, dim)
            self.weight_dropout = GivenDropout(dropout)
            self.dropout = GivenDropout(dropout)

        def forward(self, x):
            q, k, v = self.query_key_value(x).unflatten(-1, (self.heads, 3, self.head)).unbind(-2)
            scores = torch.einsum("bshd,bthd->bhst", q, k) / math.sqrt(self.head)
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            weights = self.weight_dropout(scores.masked_fill(future, -math.inf).softmax(-1))
            return self.dropout(self.dense(torch.einsum("bhst,bthd->bshd", weights, v).flatten(-2)))

    class FeedForward(nn.Module):
        def __init__(self, dim, hidden, dropout):
            super().__init__()
            self.dense_h_to_4h = nn.Linear(dim, hidden)
            self.dense_4h_to_h = nn.Linear(hidden, dim)
            self.dropout = GivenDropout(dropout)

        def forward(self, x):
            return self.dropout(
                self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x), approximate="tanh"))
            )

    class Layer(nn.Module):
        def __init__(self, dim, hidden, heads, dropout):
            super().__init__()
            self.input_layernorm = nn.LayerNorm(dim, eps=1e-5)
            self.self_attention = Gpt.Attention(dim, heads, dropout)
            self.post_attention_layernorm = nn.LayerNorm(dim, eps=1e-5)
            self.mlp = Gpt.FeedForward(dim, hidden, dropout)

        def forward(self, x):
            x = x + self.self_attention(self.input_layernorm(x))
            return x + self.mlp(self.post_attention_layernorm(x))

    class Embedding(nn.Module):
        def __init__(self, vocab, seq, dim, dropout):
            super().__init__()
            self.word_embeddings = nn.Embedding(vocab, dim)
            self.position_embeddings = nn.Embedding(seq, dim)
            self.dropout = GivenDropout(dropout)

        def forward(self, tokens):
            return self.dropout(
                self.word_embeddings(tokens)
                + self.position_embeddings(torch.arange(tokens.shape[1]))
            )

    def __init__(self, layers, dim, hidden, heads, seq, vocab, batch, dropout):
        super().__init__()
        self.ids, self.vocab = [batch, seq], vocab
        self.embedding = Gpt.Embedding(vocab, seq, dim, dropout)
        self.layers = nn.ModuleList(Gpt.Layer(dim, hidden, heads, dropout) for _ in range(layers))
        self.final_layernorm = nn.LayerNorm(dim, eps=1e-5)

    def random_inputs(self, r):
        return {"tokens": r.ids(self.ids, self.vocab), "labels": r.ids(self.ids, self.vocab)}

    def forward(self, tokens, labels):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.final_layernorm(x), self.embedding.word_embeddings.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class DeepSeek(nn.Module):
    """DeepSeek-V2 (arXiv 2405.04434) and DeepSeek-V3 (arXiv 2412.19437).

    Multi-head latent attention: section 2.1 of both. Experts: section 2.2 of V2, section 2.1.2 of
    V3, with the experts' groups of their inference code. Further tokens: section 2.2 of V3.
    """

    # Scores, factor of the weights of chosen experts.
    ROUTING = {"16B": ("softmax", 1), "236B": ("softmax", 16), "671B": ("sigmoid", 2.5)}

    class Attention(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.heads, self.plain, self.rotary, self.value = (
                c.heads,
                c.nope_dim,
                c.rope_dim,
                c.value_dim,
            )
            queries = c.heads * (c.nope_dim + c.rope_dim)
            self.low_rank = c.query_rank > 0
            if self.low_rank:
                self.wq_a = nn.Linear(c.dim, c.query_rank, bias=False)
                self.q_norm = nn.RMSNorm(c.query_rank, eps=1e-6)
                self.wq_b = nn.Linear(c.query_rank, queries, bias=False)
            else:
                self.wq = nn.Linear(c.dim, queries, bias=False)
            self.wkv_a = nn.Linear(c.dim, c.kv_rank + c.rope_dim, bias=False)
            self.kv_norm = nn.RMSNorm(c.kv_rank, eps=1e-6)
            self.wkv_b = nn.Linear(c.kv_rank, c.heads * (c.nope_dim + c.value_dim), bias=False)
            self.wo = nn.Linear(c.heads * c.value_dim, c.dim, bias=False)

        def forward(self, x, freqs):
            def rotated(y):  # pairs of neighbours
                pairs = torch.view_as_complex(y.unflatten(-1, (-1, 2)))
                return torch.view_as_real(pairs * freqs[:, None, :]).flatten(-2)

            q = self.wq_b(self.q_norm(self.wq_a(x))) if self.low_rank else self.wq(x)
            q_plain, q_rotary = q.unflatten(-1, (self.heads, -1)).split(
                [self.plain, self.rotary], -1
            )
            latent, k_rotary = self.wkv_a(x).tensor_split([self.kv_norm.weight.numel()], -1)
            k_plain, v = (
                self.wkv_b(self.kv_norm(latent))
                .unflatten(-1, (self.heads, -1))
                .split([self.plain, self.value], -1)
            )
            k_rotary = rotated(k_rotary[:, :, None, :])[:, :, 0, :]
            scores = torch.einsum("bshd,bthd->bhst", q_plain, k_plain)
            scores = scores + torch.einsum("bshd,btd->bhst", rotated(q_rotary), k_rotary)
            scores = scores / math.sqrt(self.plain + self.rotary)
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            weights = scores.masked_fill(future, -math.inf).softmax(-1)
            return self.wo(torch.einsum("bhst,bthd->bshd", weights, v).flatten(-2))

    class Gate(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(c.experts, c.dim))
            self.kind, self.scale = DeepSeek.ROUTING[c.size]
            self.active, self.groups, self.active_groups = (
                c.active_experts,
                c.expert_groups,
                c.active_groups,
            )

        def forward(self, x, bias):
            """A factor for each expert, 0 for those that are not chosen, and all scores."""
            logits = x @ self.weight.T
            if self.kind == "softmax":
                scores = logits.softmax(-1)
                choice = scores.detach()
                best = choice.unflatten(-1, (self.groups, -1)).amax(-1)
            else:
                scores = logits.sigmoid()
                choice = scores.detach() + bias
                best = choice.unflatten(-1, (self.groups, -1)).sort(-1).values[..., -2:].sum(-1)
            allowed = torch.zeros_like(best).scatter(-1, best.topk(self.active_groups).indices, 1)
            allowed = allowed.repeat_interleave(choice.shape[-1] // self.groups, -1).bool()
            chosen = choice.masked_fill(~allowed, -math.inf).topk(self.active).indices
            mask = torch.zeros_like(choice).scatter(-1, chosen, 1)
            factors = mask * scores
            if self.kind == "sigmoid":
                factors = factors / factors.sum(-1, keepdim=True)
            return self.scale * factors, scores, mask

    class Experts(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.w1 = nn.Parameter(torch.empty(c.experts, c.expert_hidden, c.dim))
            self.w3 = nn.Parameter(torch.empty(c.experts, c.expert_hidden, c.dim))
            self.w2 = nn.Parameter(torch.empty(c.experts, c.dim, c.expert_hidden))

        def forward(self, x, factors):
            y = torch.zeros_like(x)
            for expert, (gate, up, down) in enumerate(zip(self.w1, self.w3, self.w2, strict=True)):
                hidden = F.silu(x @ gate.T) * (x @ up.T)
                y = y + factors[..., expert, None] * (hidden @ down.T)
            return y

    class Mixture(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.gate = DeepSeek.Gate(c)
            self.experts = DeepSeek.Experts(c)
            self.shared = c.shared_experts > 0
            if self.shared:
                self.shared_experts = Llama3.FeedForward(c.dim, c.shared_experts * c.expert_hidden)
            self.active, self.balance = c.active_experts, None

        def forward(self, x, bias):
            factors, scores, mask = self.gate(x, bias)
            shares = scores / scores.sum(-1, keepdim=True)
            tokens, experts = x.shape[1], scores.shape[-1]
            f = experts / (self.active * tokens) * mask.sum(1)
            self.balance = (f * shares.mean(1)).sum(-1).mean()  # of each sequence
            y = self.experts(x, factors)
            return y + self.shared_experts(x) if self.shared else y

    class Layer(nn.Module):
        def __init__(self, c, experts):
            super().__init__()
            self.attention_norm = nn.RMSNorm(c.dim, eps=1e-6)
            self.attention = DeepSeek.Attention(c)
            self.ffn_norm = nn.RMSNorm(c.dim, eps=1e-6)
            self.experts = experts
            self.feed_forward = (
                DeepSeek.Mixture(c) if experts else Llama3.FeedForward(c.dim, c.hidden)
            )

        def block(self, x, freqs, bias):
            x = x + self.attention(self.attention_norm(x), freqs)
            normed = self.ffn_norm(x)
            return x + (
                self.feed_forward(normed, bias) if self.experts else self.feed_forward(normed)
            )

    class Further(Layer):
        def __init__(self, c, experts):
            super().__init__(c, experts)
            self.stream_norm = nn.RMSNorm(c.dim, eps=1e-6)
            self.embedding_norm = nn.RMSNorm(c.dim, eps=1e-6)
            self.projection = nn.Linear(2 * c.dim, c.dim, bias=False)
            self.norm = nn.RMSNorm(c.dim, eps=1e-6)

        def further(self, x, embedded, freqs, bias):
            both = torch.cat((self.stream_norm(x), self.embedding_norm(embedded)), -1)
            return self.norm(self.block(self.projection(both), freqs, bias))

    def __init__(self, **sizes):
        super().__init__()
        c = self.sizes = types.SimpleNamespace(**{"mtp": 0, "balance_loss": 0, **sizes})
        experts = [i >= c.dense_layers for i in range(c.layers)]
        self.tok_embeddings = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(DeepSeek.Layer(c, e) for e in experts)
        self.norm = nn.RMSNorm(c.dim, eps=1e-6)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)
        self.blocks = {f"layers.{i}": layer for i, layer in enumerate(self.layers)}
        if c.mtp:
            self.mtp = DeepSeek.Further(c, any(experts))
            self.blocks["mtp"] = self.mtp
        self.losses = {}

    def random_inputs(self, r):
        c = self.sizes
        angles = torch.outer(
            torch.arange(c.seq), 10_000.0 ** (-torch.arange(0, c.rope_dim, 2) / c.rope_dim)
        )
        labels = ["tokens", "labels"] + (["mtp.labels"] if c.mtp else [])
        inputs = {name: r.ids([c.batch, c.seq], c.vocab) for name in labels}
        inputs["freqs"] = torch.polar(torch.ones_like(angles), angles)
        if self.ROUTING[c.size][0] == "sigmoid":
            for name, layer in self.blocks.items():
                if layer.experts:
                    inputs[name + ".feed_forward.gate.bias"] = 0.1 * r.real([c.experts])
        return inputs

    def forward(self, tokens, labels, freqs, **others):
        def loss(x, labels):
            return F.cross_entropy(self.output(x).flatten(0, 1), labels.flatten())

        def bias(name):
            return others.get(name + ".feed_forward.gate.bias")

        c = self.sizes
        x = self.tok_embeddings(tokens)
        for i, layer in enumerate(self.layers):
            x = layer.block(x, freqs, bias(f"layers.{i}"))
        self.losses = {"cross_entropy": loss(self.norm(x), labels)}
        total = self.losses["cross_entropy"]
        if c.mtp:
            further = self.mtp.further(x, self.tok_embeddings(labels), freqs, bias("mtp"))
            self.losses["mtp.loss"] = loss(further, others["mtp.labels"])
            total = total + 0.3 * self.losses["mtp.loss"]
        if c.balance_loss:
            for name, layer in self.blocks.items():
                if layer.experts:
                    balance = layer.feed_forward.balance
                    self.losses[name + ".feed_forward.balance"] = balance
                    total = total + c.balance_loss * balance
        return total


class SparseTransformer(nn.Module):
    """Mixtral (arXiv 2401.04088), Qwen3-MoE (arXiv 2505.09388) and GPT-OSS (arXiv 2508.10925).

    GPT-OSS with the definitions of its reference implementation: sinks, biases, and the experts'
    bounds.
    """

    class Attention(nn.Module):
        def __init__(self, c, kind, slides):
            super().__init__()
            self.head, self.slides = c.head_dim, slides
            self.repeats = c.heads // c.kv_heads
            self.norms, self.sunk = kind == "qwen3-moe", kind == "gpt-oss"
            self.wq = nn.Linear(c.dim, c.heads * c.head_dim, bias=self.sunk)
            self.wk = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=self.sunk)
            self.wv = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=self.sunk)
            self.wo = nn.Linear(c.heads * c.head_dim, c.dim, bias=self.sunk)
            if self.norms:
                self.q_norm = nn.RMSNorm(c.head_dim, eps=1e-6)
                self.k_norm = nn.RMSNorm(c.head_dim, eps=1e-6)
            if self.sunk:
                self.sinks = nn.Parameter(torch.empty(c.heads))

        def forward(self, x, freqs, window):
            def rotated(y):  # pairs of neighbours
                pairs = torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous())
                return torch.view_as_real(pairs * freqs[:, None, :]).flatten(-2)

            q, k, v = (w(x).unflatten(-1, (-1, self.head)) for w in (self.wq, self.wk, self.wv))
            if self.norms:
                q, k = self.q_norm(q), self.k_norm(k)
            k, v = (y.repeat_interleave(self.repeats, 2) for y in (rotated(k), v))
            scores = torch.einsum("bshd,bthd->bhst", rotated(q), k) / math.sqrt(self.head)
            if self.slides and self.sunk:
                scores = scores + window
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -math.inf)
            total = scores.exp().sum(-1)
            if self.sunk:
                total = total + self.sinks.exp()[:, None]
            mixed = torch.einsum("bhst,bthd->bhsd", scores.exp(), v) / total[..., None]
            return self.wo(mixed.transpose(1, 2).flatten(-2))

    class Gate(nn.Module):
        def __init__(self, c, bias):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(c.experts, c.dim))
            self.bias = nn.Parameter(torch.empty(c.experts)) if bias else None
            self.active = c.active_experts

        def forward(self, x):
            """A factor for each expert, 0 for those that are not chosen, and all scores."""
            logits = F.linear(x, self.weight, self.bias)
            best = logits.topk(self.active)
            factors = torch.zeros_like(logits).scatter(-1, best.indices, best.values.softmax(-1))
            return factors, logits.softmax(-1)

    class ClampedExperts(nn.Module):
        def __init__(self, c):
            super().__init__()
            e, f, d = c.experts, c.expert_hidden, c.dim
            for name, to, width in (("w1", f, d), ("w3", f, d), ("w2", d, f)):
                self.register_parameter(name, nn.Parameter(torch.empty(e, to, width)))
                self.register_parameter(name + "_bias", nn.Parameter(torch.empty(e, to)))

        def forward(self, x, factors):
            y = torch.zeros_like(x)
            for e in range(factors.shape[-1]):
                gate = F.linear(x, self.w1[e], self.w1_bias[e]).clamp(max=7)
                up = F.linear(x, self.w3[e], self.w3_bias[e]).clamp(-7, 7)
                hidden = (up + 1) * gate * torch.sigmoid(1.702 * gate)
                result = F.linear(hidden, self.w2[e], self.w2_bias[e])
                y = y + factors[..., e, None] * result
            return y

    class Mixture(nn.Module):
        def __init__(self, c, kind):
            super().__init__()
            self.gate = SparseTransformer.Gate(c, kind == "gpt-oss")
            clamped = kind == "gpt-oss"
            self.experts = SparseTransformer.ClampedExperts(c) if clamped else DeepSeek.Experts(c)
            self.active, self.balance = c.active_experts, None

        def forward(self, x):
            factors, scores = self.gate(x)
            chosen = (factors != 0).double()
            f = scores.shape[-1] / (self.active * x.shape[1]) * chosen.sum(1)
            self.balance = (f * scores.mean(1)).sum(-1).mean()  # of each sequence
            return self.experts(x, factors)

    class Layer(nn.Module):
        def __init__(self, c, kind, number):
            super().__init__()
            eps = 1e-6 if kind == "qwen3-moe" else 1e-5
            self.attention_norm = nn.RMSNorm(c.dim, eps=eps)
            self.attention = SparseTransformer.Attention(c, kind, number % 2 == 0)
            self.ffn_norm = nn.RMSNorm(c.dim, eps=eps)
            self.feed_forward = (
                Llama3.FeedForward(c.dim, c.hidden)
                if number < c.dense_layers
                else SparseTransformer.Mixture(c, kind)
            )

        def forward(self, x, freqs, window):
            x = x + self.attention(self.attention_norm(x), freqs, window)
            return x + self.feed_forward(self.ffn_norm(x))

    def __init__(self, kind, **sizes):
        super().__init__()
        self.kind = kind
        given = {"dense_layers": 0, "balance_loss": 0, **sizes}
        c = self.sizes = types.SimpleNamespace(**given)
        self.tok_embeddings = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(
            SparseTransformer.Layer(c, kind, number) for number in range(c.layers)
        )
        self.norm = nn.RMSNorm(c.dim, eps=1e-6 if kind == "qwen3-moe" else 1e-5)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)
        self.losses = {}

    def random_inputs(self, r):
        c = self.sizes
        angles = torch.outer(
            torch.arange(c.seq), 10_000.0 ** (-torch.arange(0, c.head_dim, 2) / c.head_dim)
        )
        inputs = {name: r.ids([c.batch, c.seq], c.vocab) for name in ("tokens", "labels")}
        inputs["freqs"] = torch.polar(torch.ones_like(angles), angles)
        if self.kind == "gpt-oss":  # what is added to the scores: any numbers
            inputs["window"] = r.real([1, 1, c.seq, c.seq])
        return inputs

    def forward(self, tokens, labels, freqs, window=None):
        c = self.sizes
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, freqs, window)
        logits = self.output(self.norm(x))
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        self.losses = {"cross_entropy": total}
        if c.balance_loss:
            for i, layer in enumerate(self.layers):
                if i >= c.dense_layers:
                    balance = layer.feed_forward.balance
                    self.losses[f"layers.{i}.feed_forward.balance"] = balance
                    total = total + c.balance_loss * balance
        return total


ARCHITECTURES = {
    "mlp": Mlp,
    "llama3": Llama3,
    "gpt": Gpt,
    "deepseek-v3": DeepSeek,
    **{
        kind: functools.partial(SparseTransformer, kind)
        for kind in ("mixtral", "qwen3-moe", "gpt-oss")
    },
}
