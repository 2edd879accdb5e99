# SPDX-License-Identifier: Apache-2.0
"""transformers' GPT-2 on one device, a GPT of one's own under DistributedDataParallel on the ranks:
two implementations of one model, tied by the converter that loads Hugging Face's checkpoints.

Hugging Face's Conv1D has transposed matrices. The tests of this project run it with transformers 5.

usage: PYTHONPATH=python python examples/torch/packages/huggingface_to_own.py
"""

import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

DIM, HEADS, LAYERS, VOCABULARY, LENGTH = 16, 4, 2, 24, 6
TRANSPOSED = ("attn.qkv.weight", "attn.proj.weight", "mlp.fc.weight", "mlp.proj.weight")
NAMES = {
    "transformer.wte": "tokens",
    "transformer.wpe": "positions",
    "transformer.ln_f": "norm",
    "transformer.h.": "blocks.",
    "attn.c_attn": "attn.qkv",
    "attn.c_proj": "attn.proj",
    "mlp.c_fc": "mlp.fc",
    "mlp.c_proj": "mlp.proj",
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            t.view(batch, length, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) / (DIM // HEADS) ** 0.5
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.proj = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return self.proj(F.gelu(self.fc(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(DIM), Attention()
        self.ln_2, self.mlp = nn.LayerNorm(DIM), MLP()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(DIM)

    def forward(self, tokens, labels):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def convert(source, transposed=TRANSPOSED):
    made = {}
    for name, tensor in source.items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        made[name] = tensor.t() if name.endswith(transposed) else tensor
    return made


def batch(world):
    return [
        world.input(name, (4, LENGTH), torch.long, shard={"dp": 0}, high=VOCABULARY)
        for name in ("tokens", "labels")
    ]


def huggingface(world):
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=DIM,
            n_layer=LAYERS,
            n_head=HEADS,
            activation_function="gelu",
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, labels = batch(world)
    logits = model(input_ids=tokens, use_cache=False).logits
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    optimizer.step()
    return loss


def own(world, reduced=True):
    torch.manual_seed(0)
    model = GPT()
    parallel = DistributedDataParallel(model) if reduced else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, labels = batch(world)
    loss = parallel(tokens, labels)
    loss.backward()
    optimizer.step()
    return loss


MESH = {"dp": 2}
CASES = {
    "data parallel": ((huggingface, own), MESH, "EQUIVALENT", {"convert": convert}),
    "a matrix that is not transposed": (
        (huggingface, own),
        MESH,
        "NOT EQUIVALENT",
        {"convert": functools.partial(convert, transposed=TRANSPOSED[:1] + TRANSPOSED[2:])},
    ),
    "gradients are not reduced": (
        (huggingface, functools.partial(own, reduced=False)),
        MESH,
        "NOT EQUIVALENT",
        {"convert": convert},
    ),
}

if __name__ == "__main__":
    import shardproof.torch as sp

    for name, (steps, mesh, expected, options) in CASES.items():
        print(f"{name}: {sp.verify(*steps, mesh=mesh, **options).verdict}, expected {expected}")
