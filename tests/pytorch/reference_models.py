# SPDX-License-Identifier: Apache-2.0
"""The architectures of `shardproof generate` in PyTorch, written from their papers.

Parameters have the generator's names, so a state dict fits. `forward` takes the inputs by name and
returns the loss; `random_inputs` makes them. A new architecture goes into ARCHITECTURES, its sizes
and options into generated_models_test.py.
"""

import math

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


ARCHITECTURES = {"mlp": Mlp, "llama3": Llama3, "gpt": Gpt}
