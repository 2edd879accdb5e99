# SPDX-License-Identifier: Apache-2.0
"""One layer of experts, written as people write it. All forms compute the same."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed._functional_collectives import all_to_all_single_autograd

TOKENS, DIM, HIDDEN, EXPERTS, CHOSEN = 8, 8, 4, 4, 2


class Experts(torch.nn.Module):
    """Routed experts; first and last: of the experts that this rank has."""

    def __init__(self, form, first=0, last=EXPERTS):
        super().__init__()
        self.form, self.first, self.last = form, first, last
        self.router = torch.nn.Linear(DIM, EXPERTS, bias=False)
        self.w1 = torch.nn.Parameter(torch.randn(last - first, DIM, HIDDEN))
        self.w2 = torch.nn.Parameter(torch.randn(last - first, HIDDEN, DIM))

    def expert(self, e, x):
        return F.silu(x @ self.w1[e - self.first]) @ self.w2[e - self.first]

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(CHOSEN, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        return self.form(self, x, weights, chosen)


def dense(m, x, weights, chosen):
    """Every expert computes every token: nothing depends on data but numbers."""
    hot = F.one_hot(chosen, EXPERTS)[..., m.first : m.last].float()
    combined = (hot * weights[..., None]).sum(1)
    every = x.expand(m.last - m.first, *x.shape)
    y = torch.bmm(F.silu(torch.bmm(every, m.w1)), m.w2)
    return (y * combined.T[..., None]).sum(0)


def hit(m, x, weights, chosen):
    """transformers: the experts that are hit, one after another."""
    out = torch.zeros_like(x)
    with torch.no_grad():
        mask = F.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
        experts = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    for e in experts:
        e = e[0]
        if e < m.first or e >= m.last:
            continue
        position, token = torch.where(mask[e])
        y = m.expert(e, x[token]) * weights[token, position, None]
        out.index_add_(0, token, y.to(out.dtype))
    return out


def skipped(m, x, weights, chosen):
    """A loop over experts that leaves out those without tokens."""
    out = torch.zeros_like(x)
    for e in range(m.first, m.last):
        token, position = torch.where(chosen == e)
        if token.numel() == 0:
            continue
        y = m.expert(e, x[token]) * weights[token, position].unsqueeze(-1)
        out = out.index_add(0, token, y)
    return out


def counted(m, x, weights, chosen):
    """DeepSeek's inference: experts without tokens are known from counts."""
    y = torch.zeros_like(x)
    counts = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
    for e in range(m.first, m.last):
        if counts[e] == 0:
            continue
        token, top = torch.where(chosen == e)
        y.index_put_((token,), m.expert(e, x[token]) * weights[token, top, None], accumulate=True)
    return y


def grouped(m, x, weights, chosen):
    """transformers and torchtitan: sorted by expert, one call for all of them."""
    order = torch.argsort(chosen.reshape(-1))
    back = torch.argsort(order)
    experts = chosen.reshape(-1)[order]
    counts = torch.histc(experts.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    offsets = torch.cumsum(counts, 0, dtype=torch.int32)
    rows = x[order // CHOSEN]
    y = F.grouped_mm(F.silu(F.grouped_mm(rows, m.w1, offs=offsets)), m.w2, offs=offsets)
    y = y * weights.reshape(-1)[order].unsqueeze(-1)
    return y[back].view(*chosen.shape, -1).sum(1)


def split(m, x, weights, chosen):
    """Sorted by expert, and cut into the experts' pieces."""
    counts = torch.bincount(chosen.view(-1), minlength=EXPERTS)
    order = chosen.view(-1).argsort()
    pieces = x[order // CHOSEN].split(counts.tolist())
    y = torch.cat([m.expert(e, piece) for e, piece in enumerate(pieces)])
    out = torch.empty_like(y)
    out[order] = y
    return (out.view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def sliced(m, x, weights, chosen):
    """Sorted by expert, pieces between running sums of counts, added up at their tokens."""
    order = chosen.flatten().argsort()
    ends = chosen.flatten().bincount(minlength=EXPERTS).cumsum(0).tolist()
    rows, tokens = x[order // CHOSEN], order // CHOSEN
    parts = []
    for e, end in enumerate(ends):
        start = 0 if e == 0 else ends[e - 1]
        if start == end:
            continue
        parts.append(m.expert(e, rows[start:end]))
    y = torch.cat(parts, dim=0) * weights.flatten()[order, None]
    return torch.zeros_like(x).index_add_(0, tokens, y)


class Exchange(torch.autograd.Function):
    """An all-to-all of so many rows; gradients go back the same way."""

    @staticmethod
    def forward(ctx, x, received, sent):
        ctx.sizes = received, sent
        out = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, gradient):
        received, sent = ctx.sizes
        back = gradient.new_empty((sum(sent), *gradient.shape[1:]))
        dist.all_to_all_single(back, gradient.contiguous(), sent, received)
        return back, None, None


def exchanged(m, x, weights, chosen, exchange=Exchange.apply):
    """Tokens are sent to the ranks that have their experts, by counts, and back."""
    ranks = EXPERTS // (m.last - m.first)
    if ranks == 1:
        return split(m, x, weights, chosen)
    own = EXPERTS // ranks
    flat = chosen.flatten()
    counts = torch.bincount(flat, minlength=EXPERTS)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    sent = counts.view(ranks, own).sum(1).tolist()
    received = theirs.view(ranks, own).sum(1).tolist()
    order = flat.argsort()
    rows = exchange(x[order // CHOSEN], received, sent)
    experts = torch.arange(own).repeat(ranks).repeat_interleave(theirs)
    by_expert = experts.argsort()
    offsets = theirs.view(ranks, own).sum(0).cumsum(0).to(torch.int32)
    rows = rows[by_expert]
    y = F.grouped_mm(F.silu(F.grouped_mm(rows, m.w1, offs=offsets)), m.w2, offs=offsets)
    y = y[by_expert.argsort()]
    y = exchange(y, sent, received)
    out = torch.empty_like(y)
    out[order] = y
    return (out.view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def functional(m, x, weights, chosen):
    """The same with functional collectives, which differentiate themselves."""

    def exchange(x, received, sent):
        return all_to_all_single_autograd(x, received, sent, dist.group.WORLD)

    return exchanged(m, x, weights, chosen, exchange)


def keys_exchanged(m, x, weights, chosen):
    """Each token's expert is sent with it, and tokens are counted where they arrive."""
    own = m.last - m.first
    ranks = EXPERTS // own
    if ranks == 1:
        return split(m, x, weights, chosen)
    flat = chosen.flatten()
    order = flat.argsort()
    counts = torch.bincount(flat, minlength=EXPERTS)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    sent = counts.view(ranks, own).sum(1).tolist()
    received = theirs.view(ranks, own).sum(1).tolist()
    rows = Exchange.apply(x[order // CHOSEN], received, sent)
    experts = Exchange.apply(flat[order], received, sent) - m.first
    by_expert = experts.argsort()
    pieces = rows[by_expert].split(torch.bincount(experts, minlength=own).tolist())
    y = torch.cat([m.expert(m.first + e, piece) for e, piece in enumerate(pieces)])
    back = torch.empty_like(y)
    back[by_expert] = y
    y = Exchange.apply(back, sent, received)
    out = torch.empty_like(y)
    out[order] = y
    return (out.view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def swapped(m, x, weights, chosen):
    """Wrong: what is sent has the sizes of what is received."""
    return exchanged(
        m, x, weights, chosen, lambda x, received, sent: Exchange.apply(x, sent, received)
    )


FORMS = {f.__name__: f for f in (dense, hit, skipped, counted, grouped, split, sliced)}


def looked_up(m, x, weights, chosen):
    """transformers: each row with the matrices of its expert."""
    flat = chosen.reshape(-1)
    rows = x.repeat_interleave(CHOSEN, dim=0)
    y = F.silu(torch.bmm(rows.unsqueeze(1), m.w1[flat]))
    y = torch.bmm(y, m.w2[flat]).squeeze(1) * weights.reshape(-1, 1)
    return y.view(*chosen.shape, -1).sum(1)


def by_mask(m, x, weights, chosen):
    """Megatron: a mask of tokens and experts, in the order of experts."""
    mask = torch.zeros(len(x), EXPERTS, dtype=torch.int).scatter(1, chosen, 1).bool()
    scores = torch.zeros(len(x), EXPERTS).scatter(1, chosen, weights)
    numbers = torch.arange(len(x)).unsqueeze(0).expand(EXPERTS, -1)
    tokens = numbers.masked_select(mask.T.contiguous())
    pieces = x.index_select(0, tokens).split(mask.sum(0).tolist())
    y = torch.cat([m.expert(e, piece) for e, piece in enumerate(pieces)])
    y = y * scores.T.contiguous().masked_select(mask.T.contiguous()).unsqueeze(-1)
    return torch.zeros_like(x).scatter_add(0, tokens.unsqueeze(1).expand(-1, DIM), y)


def unique_tokens(m, x, weights, chosen):
    """A token is written where no other row of the expert is."""
    y = torch.zeros_like(x)
    for e in range(m.first, m.last):
        token, top = torch.where(chosen == e)
        y[token] += m.expert(e, x[token]) * weights[token, top, None]
    return y


def arranged(m, x, weights, chosen, swapped=False):
    """torchtitan: tokens arrive rank by rank, and positions made of counts put them by expert."""
    own = m.last - m.first
    ranks = EXPERTS // own
    if ranks == 1:
        return split(m, x, weights, chosen)
    flat = chosen.flatten()
    hot = torch.zeros(len(x), EXPERTS, dtype=torch.bool).scatter_(1, chosen, True)
    counts, order = hot.sum(0), flat.argsort(stable=True)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    sent, received = torch.stack(
        [counts.view(ranks, own).sum(1), theirs.view(ranks, own).sum(1)]
    ).tolist()
    rows = Exchange.apply(x[order // CHOSEN], received, sent)
    begin = (theirs.cumsum(0) - theirs).view(ranks, own).t().reshape(-1)
    lengths = theirs.view(ranks, own).t().reshape(-1)
    piece = torch.arange(ranks * own).repeat_interleave(lengths, output_size=rows.shape[0])
    ends = lengths.cumsum(0)
    behind = ends if swapped else ends - lengths
    places = begin[piece] + torch.arange(piece.shape[0]) - behind[piece]
    offsets = theirs.view(ranks, own).sum(0).cumsum(0).to(torch.int32)
    y = F.silu(F.grouped_mm(rows[places, :], m.w1, offs=offsets))
    y = F.grouped_mm(y, m.w2, offs=offsets)
    back = y.new_empty(rows.shape)
    back[places, :] = y
    y = Exchange.apply(back, sent, received)
    out = torch.empty_like(y)
    out[order] = y
    return (out.view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def wrong_places(m, x, weights, chosen):
    """Wrong: pieces begin where they end."""
    return arranged(m, x, weights, chosen, swapped=True)


def chunks(m, x, weights, chosen):
    """Megatron: gathered counts, rows in the order of a mask, and pieces put in another order."""
    own = m.last - m.first
    ranks = EXPERTS // own
    if ranks == 1:
        return by_mask(m, x, weights, chosen)
    mask = torch.zeros(len(x), EXPERTS, dtype=torch.int).scatter(1, chosen, 1).bool()
    scores = torch.zeros(len(x), EXPERTS).scatter(1, chosen, weights)
    by_expert = mask.T.contiguous()
    tokens = torch.arange(len(x)).unsqueeze(0).expand(EXPERTS, -1).masked_select(by_expert)
    counts = mask.sum(0)
    every = torch.empty(ranks * EXPERTS, dtype=counts.dtype)
    dist.all_gather_into_tensor(every, counts)
    theirs = every.view(ranks, EXPERTS)[:, m.first : m.last].contiguous()
    sent, received = counts.view(ranks, own).sum(1).tolist(), theirs.sum(1).tolist()
    rows = Exchange.apply(x.index_select(0, tokens), received, sent)
    pieces = rows.split(theirs.ravel().tolist())
    numbers = torch.arange(ranks * own)
    rows = torch.cat([pieces[i] for i in numbers.view(ranks, own).T.ravel().tolist()])
    y = rows.split(theirs.sum(0).tolist())
    y = torch.cat([m.expert(m.first + e, piece) for e, piece in enumerate(y)])
    pieces = y.split(theirs.T.ravel().tolist())
    y = torch.cat([pieces[i] for i in numbers.view(own, ranks).T.ravel().tolist()])
    y = Exchange.apply(y, sent, received)
    y = y * scores.T.contiguous().masked_select(by_expert).unsqueeze(-1)
    return torch.zeros_like(x).scatter_add(0, tokens.unsqueeze(1).expand(-1, DIM), y)


# whose equality with the others is beyond the prover
MORE_FORMS = {f.__name__: f for f in (looked_up, by_mask, unique_tokens)}
