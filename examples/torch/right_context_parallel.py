# SPDX-License-Identifier: Apache-2.0
"""Context parallelism by hand.

Each rank has a contiguous piece of the sequence. Keys and values are gathered. Gradients are
averaged over cp.
"""

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_parallel import GatherSequence
from models import RMSNorm, rotary_table, rotate
from torch import nn

MESH, EXPECT = {"cp": 2}, "EQUIVALENT"
DIM, HEADS, SEQ, VOCAB = 32, 4, 16, 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.norm = RMSNorm(DIM, 1e-5)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.output = nn.Linear(DIM, VOCAB, bias=False)
        self.register_buffer("table", rotary_table(DIM // HEADS, SEQ, 10000.0), persistent=False)

    def forward(self, tokens, start=0, group=None, positions=None):
        """`start`: of this rank's piece. `positions`: of the rotary embedding, if they differ."""
        b, s = tokens.shape
        h = self.embedding(tokens)
        x = self.norm(h)
        at = start if positions is None else positions
        q, k = (
            rotate(w(x).view(b, s, HEADS, -1), self.table[at : at + s]) for w in (self.wq, self.wk)
        )
        v = self.wv(x).view(b, s, HEADS, -1)
        if group is not None:
            k, v = GatherSequence.apply(k, group), GatherSequence.apply(v, group)
        visible = torch.arange(start, start + s)[:, None] >= torch.arange(k.shape[1])[None, :]
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=visible
        )
        return self.output(h + self.wo(out.transpose(1, 2).reshape(b, s, -1)))


def step(world, positions=None, labels_of=None):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = world.input("tokens", (2, SEQ), torch.long, shard={"cp": 1}, high=VOCAB)
    if labels_of:
        labels = labels_of(tokens)
    else:
        labels = world.input("labels", (2, SEQ), torch.long, shard={"cp": 1}, high=VOCAB)
    if world.single:
        logits = model(tokens)
    else:
        logits = model(tokens, world.rank * SEQ // world.size, world.group("cp"), positions)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    if not world.single:
        for p in model.parameters():
            dist.all_reduce(p.grad, group=world.group("cp"))
            p.grad /= world.size
    optimizer.step()
    return loss


if __name__ == "__main__":
    print(sp.verify(step, mesh=MESH))
