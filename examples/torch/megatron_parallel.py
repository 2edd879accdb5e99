# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism by hand as in Megatron-LM.

Autograd functions around torch.distributed, on ordinary tensors.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import Config, RMSNorm, attend, rotary_table
from torch import nn


class CopyToGroup(torch.autograd.Function):
    """Forward the identity, backward an all-reduce."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class ReduceFromGroup(torch.autograd.Function):
    """Forward an all-reduce, backward the identity."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def _gather(x, group):
    """Along the sequence, dimension 1."""
    x = x.transpose(0, 1).contiguous()
    out = x.new_empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
    dist.all_gather_into_tensor(out, x, group=group)
    return out.transpose(0, 1)


def _scatter(x, group):
    x = x.transpose(0, 1).contiguous()
    out = x.new_empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
    dist.reduce_scatter_tensor(out, x, group=group)
    return out.transpose(0, 1)


class GatherSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _gather(x, group)

    @staticmethod
    def backward(ctx, grad):
        return _scatter(grad, ctx.group), None


class ScatterSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return _scatter(x, group)

    @staticmethod
    def backward(ctx, grad):
        return _gather(grad, ctx.group), None


class GatherVocabulary(torch.autograd.Function):
    """Logits of all classes, from each rank's window; backward keeps the rank's own."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.chunk(dist.get_world_size(ctx.group), dim=-1)[
            dist.get_rank(ctx.group)
        ].contiguous(), None


class ColumnParallel(nn.Module):
    def __init__(self, inputs, outputs, group, copy=True):
        super().__init__()
        self.group, self.copy = group, copy
        self.weight = nn.Parameter(torch.empty(outputs // dist.get_world_size(group), inputs))

    def forward(self, x):
        return F.linear(CopyToGroup.apply(x, self.group) if self.copy else x, self.weight)


class RowParallel(nn.Module):
    def __init__(self, inputs, outputs, group, reduce=ReduceFromGroup):
        super().__init__()
        self.group, self.reduce = group, reduce
        self.weight = nn.Parameter(torch.empty(outputs, inputs // dist.get_world_size(group)))

    def forward(self, x):
        return self.reduce.apply(F.linear(x, self.weight), self.group)


class VocabParallelEmbedding(nn.Module):
    def __init__(self, vocab, dim, group, reduce=ReduceFromGroup, shift=0):
        super().__init__()
        self.group, self.reduce = group, reduce
        part, rank = vocab // dist.get_world_size(group), dist.get_rank(group)
        self.low, self.high = rank * part + shift, (rank + 1) * part + shift
        self.weight = nn.Parameter(torch.empty(part, dim))

    def forward(self, tokens):
        outside = (tokens < self.low) | (tokens >= self.high)
        local = tokens.clone() - self.low
        local[outside] = 0
        out = F.embedding(local, self.weight)
        out[outside, :] = 0.0
        return self.reduce.apply(out, self.group)


class VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, group):
        part = logits.shape[-1]
        low = dist.get_rank(group) * part
        top = logits.max(dim=-1)[0]
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        logits = logits - top.unsqueeze(-1)
        outside = (labels < low) | (labels >= low + part)
        local = labels.clone() - low
        local[outside] = 0
        rows = torch.arange(local.numel())
        picked = logits.view(-1, part)[rows, local.view(-1)].view_as(labels).clone()
        picked[outside] = 0.0
        dist.all_reduce(picked, group=group)
        exp = logits.exp()
        total = exp.sum(-1)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(exp / total.unsqueeze(-1), outside, local)
        return total.log() - picked

    @staticmethod
    def backward(ctx, grad):
        softmax, outside, local = ctx.saved_tensors
        result = softmax.clone()
        flat = result.view(-1, result.shape[-1])
        flat[torch.arange(local.numel()), local.view(-1)] -= 1.0 - outside.view(-1).float()
        return result * grad.unsqueeze(-1), None, None


class Attention(nn.Module):
    def __init__(self, c: Config, column, row):
        super().__init__()
        self.head_dim = c.dim // c.heads
        self.wq, self.wk, self.wv = (
            column(c.dim, c.dim),
            column(c.dim, c.kv_heads * self.head_dim),
            column(c.dim, c.kv_heads * self.head_dim),
        )
        self.wo = row(c.dim, c.dim)

    def forward(self, x, table):
        return attend(self, x, table)


class FeedForward(nn.Module):
    def __init__(self, c: Config, column, row):
        super().__init__()
        self.w1, self.w3, self.w2 = (
            column(c.dim, c.hidden),
            column(c.dim, c.hidden),
            row(c.hidden, c.dim),
        )

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c: Config, group, column, row, sequence):
        super().__init__()
        self.group, self.sequence = group, sequence
        self.attention_norm, self.attention = RMSNorm(c.dim, c.eps), Attention(c, column, row)
        self.ffn_norm, self.feed_forward = RMSNorm(c.dim, c.eps), FeedForward(c, column, row)

    def whole(self, x):
        return GatherSequence.apply(x, self.group) if self.sequence else x

    def forward(self, x, table):
        h = x + self.attention(self.whole(self.attention_norm(x)), table)
        return h + self.feed_forward(self.whole(self.ffn_norm(h)))


class Llama(nn.Module):
    """A Llama cut over tp.

    `sequence`: sequence parallelism. `shift`: an error in the vocabulary's windows. `copy`: whether
    column-parallel layers sum their input's gradient.
    """

    def __init__(self, c: Config, group, sequence=False, shift=0, copy=True):
        super().__init__()
        self.group, self.sequence = group, sequence
        reduce = ScatterSequence if sequence else ReduceFromGroup

        def column(i, o):
            return ColumnParallel(i, o, group, copy=copy and not sequence)

        def row(i, o):
            return RowParallel(i, o, group, reduce)

        self.tok_embeddings = VocabParallelEmbedding(c.vocab, c.dim, group, reduce, shift)
        self.register_buffer(
            "table", rotary_table(c.dim // c.heads, c.seq, c.theta), persistent=False
        )
        self.layers = nn.ModuleDict(
            {str(i): Block(c, group, column, row, sequence) for i in range(c.layers)}
        )
        self.norm = RMSNorm(c.dim, c.eps)
        self.output = column(c.dim, c.vocab)

    def forward(self, tokens):
        h = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            h = layer(h, self.table)
        h = self.norm(h)
        return self.output(GatherSequence.apply(h, self.group) if self.sequence else h)


SHARD = {
    r".*(wq|wk|wv|w1|w3|output|tok_embeddings)\.weight": {"tp": 0},
    r".*(wo|w2)\.weight": {"tp": 1},
    r".*norm\.weight": {},
}


def is_sharded(name):
    return "norm" not in name


def clip(
    model,
    group,
    max_norm=1.0,
    counted=lambda name, rank: is_sharded(name) or rank == 0,
    reduce=True,
):
    """Clips by the norm of all gradients.

    Sharded ones count on every rank, replicated ones on rank 0.
    """
    square = torch.zeros(())
    for name, p in model.named_parameters():
        if counted(name, dist.get_rank(group)):
            square = square + p.grad.float().pow(2).sum()
    if reduce:
        dist.all_reduce(square, group=group)
    norm = square.sqrt()
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for p in model.parameters():
        p.grad.mul_(factor)
    return norm


def sum_norm_gradients(model, group):
    """Sequence parallel: each rank's norms saw one part of the sequence."""
    for name, p in model.named_parameters():
        if not is_sharded(name):
            dist.all_reduce(p.grad, group=group)


def step(world, sequence=False, sync=True, shift=0, copy=True, vocabulary_loss=False, **clipping):
    from llama_parallel import CONFIG, batch

    group = world.group("tp")
    model = world.parameters(Llama(CONFIG, group, sequence, shift, copy), SHARD)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    tokens, labels = batch(world)
    logits = model(tokens).float()
    if vocabulary_loss:
        loss = VocabParallelCrossEntropy.apply(logits, labels, group).mean()
    else:
        loss = F.cross_entropy(
            GatherVocabulary.apply(logits, group).flatten(0, 1), labels.flatten()
        )
    loss.backward()
    if sequence and sync:
        sum_norm_gradients(model, group)
    world.output("grad_norm", clip(model, group, **clipping), mean=())
    optimizer.step()
    return loss


def single(world):
    from llama_parallel import batch, llama, train

    return train(world, llama(), *batch(world))
