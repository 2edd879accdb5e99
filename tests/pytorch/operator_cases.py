# SPDX-License-Identifier: Apache-2.0
"""For every operator: random operands and attributes, and what PyTorch computes from them.

PyTorch's own operator is called where it exists. Where it does not (windows of an embedding, rotary
embedding, mixture of experts, ...) the reference is docs/operators.md, written with other
operations of PyTorch. Gradients are PyTorch's autograd through the reference in every case.
"""

import dataclasses
import math
import random
import typing

import torch
from torch.nn import functional as F

# Operators that have no gradient operator (docs/operators.md).
WITHOUT_BACKWARD = {
    "create_mask",
    "amax",
    "amin",
    "grad_norm",
    "clip_grad",
    "sgd",
    "adamw",
    "one_hot",
    "sin",
    "cos",
    "erf",
    "floor",
    "ceil",
    "round",
    "trunc",
    "topk",
}
# A full reduction may be declared [1] in place of [].
MAY_BE_ONE = {"sum", "mean", "amax", "amin", "logsumexp", "cross_entropy", "grad_norm"}


@dataclasses.dataclass
class Case:
    op: str
    operands: list  # tensors, None: absent
    attributes: dict
    reference: typing.Callable  # operands -> tensor, or a list with one entry for each result
    constant: tuple = ()  # real operands that get no gradient
    results: int = 1  # of copies: how many
    declared_one: bool = False

    def __str__(self):
        shapes = ", ".join("null" if t is None else str(list(t.shape)) for t in self.operands)
        return f"{self.op}({shapes}, {self.attributes})"


class Random:
    def __init__(self, seed):
        self.python = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)

    def integer(self, low, high):  # both included
        return self.python.randint(low, high)

    def chance(self, p=0.5):
        return self.python.random() < p

    def choice(self, options):
        return self.python.choice(list(options))

    def sample(self, options, k):
        return self.python.sample(list(options), k)

    def shape(self, low=0, high=4, most=5):
        return [self.integer(1, most) for _ in range(self.integer(low, high))]

    def real(self, shape):
        return torch.rand(shape, generator=self.torch, dtype=torch.float64) * 4 - 2

    def positive(self, shape):
        return torch.rand(shape, generator=self.torch, dtype=torch.float64) * 2 + 0.25

    def complex(self, shape):
        return torch.complex(self.real(shape), self.real(shape))

    def ids(self, shape, values):
        return torch.randint(0, values, shape, generator=self.torch)

    def anything(self, shape):
        """Of any kind of element; mostly real, which has a gradient."""
        return self.choice([self.real, self.real, self.complex, lambda s: self.ids(s, 9)])(shape)

    def number(self, low, high):
        return round(self.python.uniform(low, high), 4)

    def dim(self, rank):
        return self.integer(-rank, rank - 1)

    def dims(self, rank):
        return [
            d - rank if self.chance(0.3) else d
            for d in self.sample(range(rank), self.integer(1, rank))
        ]

    def broadcastable(self):
        """Two shapes that broadcast."""
        whole = self.shape(0, 4)
        shapes = []
        for _ in range(2):
            own = [1 if self.chance(0.25) else n for n in whole]
            shapes.append(own[self.integer(0, len(own)) :] if self.chance(0.3) else own)
        return shapes


GENERATORS = {}


def cases(*names):
    def register(generator):
        for name in names:
            GENERATORS[name] = generator
        return generator

    return register


def optional(r, attributes, key, value, p=0.5):
    """The value, written down or not; `otherwise` of the caller holds where it is not."""
    if not r.chance(p):
        return False
    attributes[key] = value
    return True


# ---------------------------------------------------------------- elementwise


@cases("identity", "to", "contiguous")
def copy(r, op):
    return Case(op, [r.anything(r.shape())], {}, lambda x: x.clone())


@cases("float")
def float_copy(r, op):
    return Case(op, [r.real(r.shape())], {}, lambda x: x.double())


@cases("multiref")
def multiref(r, op):
    results = r.integer(1, 4)
    return Case(
        op,
        [r.anything(r.shape())],
        {},
        lambda x: [x.clone() for _ in range(results)],
        results=results,
    )


@cases("add", "sub", "mul", "div")
def binary(r, op):
    a, b = r.broadcastable()
    attributes, options = {}, {}
    if op in ("add", "sub") and optional(
        r, attributes, "alpha", r.choice([-1, 2, r.number(-3, 3)])
    ):
        options["alpha"] = attributes["alpha"]
    function = getattr(torch, op)
    if r.chance(0.3):
        attributes["scalar"] = r.choice([r.integer(1, 7), -r.number(0.1, 3), r.number(0.1, 3)])
        return Case(
            op, [r.real(a)], attributes, lambda x: function(x, attributes["scalar"], **options)
        )
    y = r.positive(b) if op == "div" else r.real(b)
    return Case(op, [r.real(a), y], attributes, lambda x, y: function(x, y, **options))


@cases("neg", "exp", "sigmoid", "tanh", "square")
def unary(r, op):
    return Case(op, [r.real(r.shape())], {}, getattr(torch, op))


@cases("log", "sqrt", "rsqrt")
def unary_of_positive(r, op):
    return Case(op, [r.positive(r.shape())], {}, getattr(torch, op))


@cases("silu")
def silu(r, op):
    return Case(op, [r.real(r.shape()) * 4], {}, F.silu)


@cases("relu")
def relu(r, op):
    x = r.real(r.shape(1))
    x[x.abs() < 0.3] = 0  # the slope at 0 is 0
    return Case(op, [x], {}, F.relu)


@cases("gelu")
def gelu(r, op):
    attributes = {}
    optional(r, attributes, "approximate", r.choice(["none", "tanh"]), 0.7)
    return Case(op, [r.real(r.shape()) * 2], attributes, lambda x: F.gelu(x, **attributes))


@cases("pow")
def power(r, op):
    scalar = r.choice([0, 1, 2, 3, 4, 5, 7, -1, -2, -3, 0.5, -0.5, 1.5, -1.5, 2.5, -3.5])
    x = r.positive(r.shape())
    if scalar == int(scalar):
        x = x * r.choice([1, -1])
    return Case(op, [x], {"scalar": scalar}, lambda x: torch.pow(x, scalar))


@cases("dropout")
def dropout(r, op):
    """Dropout with p of 0 or 1, or with a given mask.

    Other masks are opaque: operators_test.py compares with PyTorch's formula for the mask that was
    drawn.
    """
    shape = r.shape()
    if r.chance():
        p = r.choice([0.1, 0.5, r.number(0.01, 0.99)])
        attributes = {"p": p}
        optional(r, attributes, "seed", r.integer(0, 10**9))
        return Case(
            op, [r.real(shape), r.ids(shape, 2)], attributes, lambda x, mask: x * mask / (1 - p)
        )
    attributes = {"p": r.choice([0, 1])}
    optional(r, attributes, "seed", r.integer(0, 10**9))
    return Case(
        op,
        [r.real(shape)],
        attributes,
        lambda x: F.dropout(x, float(attributes["p"]), training=True),
    )


@cases("where")
def where(r, op):
    """The condition is compared with 1, be it an integer or a real."""
    a, b = r.broadcastable()
    shape = list(torch.broadcast_shapes(a, b))
    shape = [n if r.chance(0.8) else 1 for n in shape[r.integer(0, len(shape)) :]]
    condition = r.ids(shape, r.integer(2, 3))
    if r.chance():
        condition = condition.double()
    return Case(
        op,
        [condition, r.real(a), r.real(b)],
        {},
        lambda c, x, y: torch.where(c == 1, x, y),
        constant=(0,),
    )


# ---------------------------------------------------------------- layout


def factors(r, n):
    """A random shape of n elements."""
    shape = []
    while n > 1:
        f = r.choice([d for d in range(2, n + 1) if n % d == 0])
        shape.append(f)
        n //= f
    for _ in range(r.integer(0, 2)):
        shape.insert(r.integer(0, len(shape)), 1)
    return shape


@cases("view", "reshape")
def view(r, op):
    n = r.choice([1, 6, 12, 16, 24, 30, 36])
    size = factors(r, n)
    if size and r.chance():
        size[r.integer(0, len(size) - 1)] = -1
    return Case(op, [r.anything(factors(r, n))], {"size": size}, lambda x: getattr(x, op)(size))


@cases("transpose")
def transpose(r, op):
    shape = r.shape(1)
    attributes = {"dim0": r.dim(len(shape)), "dim1": r.dim(len(shape))}
    return Case(
        op,
        [r.anything(shape)],
        attributes,
        lambda x: x.transpose(attributes["dim0"], attributes["dim1"]),
    )


@cases("permute")
def permute(r, op):
    shape = r.shape(1)
    dims = [d - len(shape) if r.chance(0.3) else d for d in r.sample(range(len(shape)), len(shape))]
    return Case(op, [r.anything(shape)], {"dims": dims}, lambda x: x.permute(dims))


@cases("expand")
def expand(r, op):
    size = r.shape(1)
    own = [1 if r.chance(0.4) else n for n in size]
    lead = r.integer(0, len(size))
    own = own[lead:]
    asked = [
        -1 if d >= lead and own[d - lead] == n and r.chance(0.3) else n for d, n in enumerate(size)
    ]
    return Case(op, [r.anything(own)], {"size": asked}, lambda x: x.expand(asked))


@cases("unsqueeze")
def unsqueeze(r, op):
    shape = r.shape()
    dim = r.dim(len(shape) + 1)
    return Case(op, [r.anything(shape)], {"dim": dim}, lambda x: x.unsqueeze(dim))


@cases("squeeze")
def squeeze(r, op):
    shape = [1 if r.chance() else n for n in r.shape(1)]
    attributes = {}
    dim = r.choice([r.dim(len(shape)), r.dims(len(shape))])
    if optional(r, attributes, "dim", dim, 0.7):
        return Case(
            op,
            [r.anything(shape)],
            attributes,
            lambda x: x.squeeze(tuple(dim) if isinstance(dim, list) else dim),
        )
    return Case(op, [r.anything(shape)], attributes, lambda x: x.squeeze())


@cases("slice")
def slice_(r, op):
    while True:
        shape = r.shape(1, 3, 9)
        dim = r.dim(len(shape))
        n = shape[dim]
        attributes = {"dim": dim}
        optional(r, attributes, "start", r.integer(-n - 2, n - 1))
        optional(r, attributes, "stop", r.integer(-n, n + 3))
        optional(r, attributes, "step", r.integer(1, 4))
        index = [slice(None)] * len(shape)
        index[dim] = slice(attributes.get("start"), attributes.get("stop"), attributes.get("step"))
        if len(range(n)[index[dim]]) > 0:
            return Case(op, [r.anything(shape)], attributes, lambda x, index=tuple(index): x[index])


@cases("select")
def select(r, op):
    shape = r.shape(1)
    dim = r.dim(len(shape))
    index = r.integer(-shape[dim], shape[dim] - 1)
    return Case(
        op, [r.anything(shape)], {"dim": dim, "index": index}, lambda x: x.select(dim, index)
    )


@cases("cat")
def cat(r, op):
    shape = r.shape(1)
    dim = r.dim(len(shape))
    kind = r.choice([r.real, r.real, r.complex, lambda s: r.ids(s, 9)])
    operands = []
    for _ in range(r.integer(1, 4)):
        own = list(shape)
        own[dim] = r.integer(1, 5)
        operands.append(kind(own))
    return Case(op, operands, {"dim": dim}, lambda *x: torch.cat(x, dim))


@cases("pad")
def pad(r, op):
    shape = r.shape(1)
    attributes = {"pad": [r.integer(0, 3) for _ in range(2 * r.integer(1, len(shape)))]}
    value = r.number(-3, 3) if optional(r, attributes, "value", 0) else 0
    if "value" in attributes:
        attributes["value"] = value
    optional(r, attributes, "mode", "constant")
    return Case(
        op,
        [r.real(shape)],
        attributes,
        lambda x: F.pad(x, attributes["pad"], mode="constant", value=value),
    )


@cases("chunk")
def chunk(r, op):
    shape = r.shape(1)
    dim, parts = r.dim(len(shape)), r.integer(1, 4)
    shape[dim] *= parts
    index = r.integer(0, parts - 1)
    return Case(
        op,
        [r.anything(shape)],
        {"dim": dim, "parts": parts, "index": index},
        lambda x: x.chunk(parts, dim)[index],
    )


# ---------------------------------------------------------------- reductions


@cases("sum", "mean", "amax", "amin", "logsumexp")
def reduction(r, op):
    shape = r.shape(1)
    attributes = {}
    dim = r.choice([r.dim(len(shape)), r.dims(len(shape))])
    if not optional(r, attributes, "dim", dim, 1 if op == "logsumexp" else 0.7):
        dim = list(range(len(shape)))
    given = optional(r, attributes, "keepdim", r.chance(0.7))
    keepdim = attributes["keepdim"] if given else False
    return Case(
        op, [r.real(shape)], attributes, lambda x: getattr(torch, op)(x, dim=dim, keepdim=keepdim)
    )


# ---------------------------------------------------------------- linear algebra


@cases("linear")
def linear(r, op):
    k, n = r.integer(1, 5), r.integer(1, 5)
    operands = [r.real([*r.shape(0, 3), k]), r.real([n, k])]
    if r.chance():
        operands.append(r.real([n]) if r.chance(0.8) else None)
    return Case(op, operands, {}, lambda x, w, b=None: F.linear(x, w, b))


@cases("matmul")
def matmul(r, op):
    a, b = r.broadcastable()
    m, k, n = (r.integer(1, 5) for _ in range(3))
    left = [k] if r.chance(0.2) else [*a, m, k]
    right = [k] if r.chance(0.2) else [*b, k, n]
    return Case(op, [r.real(left), r.real(right)], {}, torch.matmul)


@cases("einsum")
def einsum(r, op):
    letters = r.sample("abcdefgXYZ", r.integer(1, 5))
    sizes = {letter: r.integer(1, 4) for letter in letters}
    operands = [
        r.sample(letters, r.integer(1, min(3, len(letters)))) for _ in range(r.integer(1, 3))
    ]
    used = sorted({letter for operand in operands for letter in operand})
    result = r.sample(used, r.integer(0, min(4, len(used))))
    comma, arrow = r.choice([(",", "->"), (", ", " -> ")])
    equation = comma.join("".join(o) for o in operands) + arrow + "".join(result)
    tensors = [r.real([sizes[letter] for letter in o]) for o in operands]
    return Case(op, tensors, {"equation": equation}, lambda *x: torch.einsum(equation, *x))


# ---------------------------------------------------------------- normalisation


@cases("softmax", "log_softmax")
def softmax(r, op):
    shape = r.shape(1)
    dim = r.dim(len(shape))
    x = r.real(shape)
    if op == "softmax" and r.chance(0.3):  # masked entries; one at least is left in each row
        masked = r.real(shape) > 0.5
        masked.select(dim, r.integer(0, shape[dim] - 1))[...] = False
        x[masked] = -math.inf
    return Case(op, [x], {"dim": dim}, lambda x: getattr(torch, op)(x, dim))


@cases("layer_norm", "rms_norm")
def norm(r, op):
    d = r.integer(1, 6)
    operands = [r.real([*r.shape(0, 3), d]), r.real([d])]
    if r.chance():
        operands.append(r.real([d]) if r.chance(0.8) else None)
    eps = r.choice([1e-5, 1e-6, 0.1, r.number(0.01, 1)] + ([0] if op == "rms_norm" else []))
    if op == "layer_norm":
        return Case(
            op, operands, {"eps": eps}, lambda x, w, b=None: F.layer_norm(x, (d,), w, b, eps)
        )
    return Case(
        op,
        operands,
        {"eps": eps},
        lambda x, w, b=None: F.rms_norm(x, (d,), w, eps) + (0 if b is None else b),
    )


# ---------------------------------------------------------------- losses


@cases("cross_entropy")
def cross_entropy(r, op):
    lead, classes = r.shape(0, 3), r.integer(1, 6)
    attributes = {}
    optional(r, attributes, "reduction", r.choice(["mean", "sum", "none"]), 0.8)

    def reference(x, labels):
        loss = F.cross_entropy(x.reshape(-1, classes), labels.reshape(-1), **attributes)
        return loss.reshape(labels.shape) if attributes.get("reduction") == "none" else loss

    return Case(op, [r.real([*lead, classes]), r.ids(lead, classes)], attributes, reference)


@cases("sin", "cos", "erf", "floor", "ceil", "round", "trunc")
def opaque(r, op):
    return Case(op, [r.real(r.shape())], {}, getattr(torch, op))


@cases("topk")
def topk(r, op):
    shape = r.shape(1)
    attributes = {"topk": r.integer(1, shape[-1])}
    if r.chance():
        attributes["largest"] = r.chance()
    return Case(
        op,
        [r.real(shape)],
        attributes,
        lambda x: list(
            torch.topk(x, attributes["topk"], dim=-1, largest=attributes.get("largest", True))
        ),
        results=2,
    )


@cases("one_hot")
def one_hot(r, op):
    values = r.integer(2, 8)
    ids = r.ids(r.shape(), values)
    if r.chance(0.3):
        return Case(
            op, [ids], {"start": 0, "stop": values}, lambda ids: F.one_hot(ids, values).double()
        )
    start = r.integer(0, values - 1)
    stop = r.integer(start + 1, values + 1)
    return Case(
        op,
        [ids],
        {"start": start, "stop": stop},
        lambda ids: (ids[..., None] == torch.arange(start, stop)).double(),
    )


# ---------------------------------------------------------------- embedding and attention


@cases("embedding")
def embedding(r, op):
    rows, d = r.integer(1, 6), r.integer(1, 5)
    if r.chance(0.3):
        return Case(
            op, [r.ids(r.shape(), rows), r.real([rows, d])], {}, lambda ids, w: F.embedding(ids, w)
        )
    start = r.integer(0, 4)

    def reference(ids, w):
        inside = (ids >= start) & (ids < start + rows)
        return F.embedding(torch.where(inside, ids - start, 0), w) * inside[..., None]

    return Case(
        op,
        [r.ids(r.shape(), start + rows + 3), r.real([rows, d])],
        {"start": start, "stop": start + rows},
        reference,
    )


@cases("create_mask")
def create_mask(r, op):
    shape = [r.integer(1, 3), r.integer(1, 7)]
    operands = [r.anything(shape)]
    if r.chance():
        operands.append(r.anything(r.shape()) if r.chance(0.8) else None)
    mask = torch.full((1, 1, shape[1], shape[1]), -math.inf).triu(1)
    return Case(op, operands, {}, lambda *_: mask)


@cases("apply_mask")
def apply_mask(r, op):
    a, b = r.broadcastable()
    mask = r.real(b)
    mask[mask > 0.5] = -math.inf
    return Case(op, [r.real(a), mask], {}, torch.add, constant=(1,))


@cases("apply_rotary_emb")
def apply_rotary_emb(r, op):
    b, s, half = r.integer(1, 3), r.integer(1, 4), r.integer(1, 3)
    freqs = r.complex([s, half])
    if r.chance():
        freqs = torch.polar(torch.ones(s, half), freqs.real * 3)

    def rotate(x, freqs):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * freqs[None, :, None, :]).flatten(3)

    operands = [
        r.real([b, s, r.integer(1, 3), 2 * half]),
        r.real([b, s, r.integer(1, 3), 2 * half]),
        freqs,
    ]
    return Case(
        op, operands, {}, lambda q, k, freqs: [rotate(q, freqs), rotate(k, freqs)], results=2
    )


@cases("attention")
def attention(r, op):
    lead = r.shape(0, 2)
    s, t, d, e = (r.integer(1, 4) for _ in range(4))

    def shared(dims):  # some of the leading dimensions are broadcast, some are left out
        dims = [1 if r.chance(0.2) else n for n in dims]
        return dims[r.integer(0, len(dims)) if r.chance(0.2) else 0 :]

    operands = [r.real([*lead, s, d]), r.real([*shared(lead), t, d]), r.real([*shared(lead), t, e])]
    if r.chance():
        mask = r.real(shared([*lead, s, t]))
        if mask.dim() > 1 and mask.shape[-1] > 1 and r.chance():  # one of each row is left
            mask[..., 1:][mask[..., 1:] > 0.5] = -math.inf
        operands.append(mask if r.chance(0.8) else None)
    attributes = {}
    optional(r, attributes, "scale", r.number(0.1, 2))

    def reference(q, k, v, mask=None):
        scores = q @ k.transpose(-1, -2) * attributes.get("scale", d**-0.5)
        if mask is not None:
            scores = scores + mask
        o = F.scaled_dot_product_attention(
            q, k.expand(*lead, t, d), v.expand(*lead, t, e), mask, scale=attributes.get("scale")
        )
        return [o, scores.logsumexp(-1)]

    return Case(op, operands, attributes, reference, constant=(3,), results=2)


# ---------------------------------------------------------------- mixture of experts


@cases("moe_gate")
def moe_gate(r, op):
    """The reference is the gate of DeepSeek-V3's inference code."""
    biased = r.chance()
    groups = r.choice([1, 1, 2, 3])
    each = r.integer(2 if biased and groups > 1 else 1, 4)
    best = r.integer(1, groups)
    experts = groups * each
    topk = r.integer(1, best * each)
    attributes = {"score_func": r.choice(["softmax", "sigmoid"]), "topk": topk}
    if groups > 1 or r.chance():
        attributes["n_groups"] = groups
    if best > 1 or r.chance():
        attributes["topk_groups"] = best
    optional(r, attributes, "route_scale", r.choice([2.5, 1, r.number(0.5, 3)]))

    def reference(x, w, bias=None):
        scores = x @ w.T
        scores = scores.softmax(-1) if attributes["score_func"] == "softmax" else scores.sigmoid()
        original = scores
        if bias is not None:
            scores = scores + bias
        if groups > 1:
            grouped = scores.view(x.shape[0], groups, each)
            group_scores = grouped.amax(-1) if bias is None else grouped.topk(2, dim=-1)[0].sum(-1)
            kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter(
                1, group_scores.topk(best, dim=-1)[1], True
            )
            scores = grouped.masked_fill(~kept[..., None], -math.inf).flatten(1)
        indices = scores.topk(topk, dim=-1)[1]
        weights = original.gather(1, indices)
        if attributes["score_func"] == "sigmoid":
            weights = weights / weights.sum(-1, keepdim=True)
        return [weights * attributes.get("route_scale", 1), indices]

    n, d = r.integer(1, 4), r.integer(1, 5)
    operands = [r.real([n, d]), r.real([experts, d])]
    if biased:
        operands.append(r.real([experts]) * 0.3)
    elif r.chance(0.2):
        operands.append(None)
    return Case(op, operands, attributes, reference, constant=(2,), results=2)


@cases("moe_experts")
def moe_experts(r, op):
    experts = r.integer(1, 5)
    start = r.integer(0, experts - 1)
    end = r.integer(start + 1, experts)
    n, k, d, f = r.integer(1, 4), r.integer(1, 3), r.integer(1, 4), r.integer(1, 4)
    local = end - start

    def reference(x, indices, weights, gate, up, down):
        y = torch.zeros_like(x)
        for e in range(start, end):
            token, slot = torch.where(indices == e)
            h = F.silu(F.linear(x[token], gate[e - start])) * F.linear(x[token], up[e - start])
            y = y.index_add(0, token, F.linear(h, down[e - start]) * weights[token, slot, None])
        return y

    operands = [
        r.real([n, d]),
        r.ids([n, k], experts),
        r.real([n, k]),
        r.real([local, f, d]),
        r.real([local, f, d]),
        r.real([local, d, f]),
    ]
    return Case(
        op,
        operands,
        {"n_routed_experts": experts, "local_expert_start": start, "local_expert_end": end},
        reference,
    )


# ---------------------------------------------------------------- training step


@cases("grad_norm")
def grad_norm(r, op):
    return Case(op, [r.real(r.shape())], {}, lambda g: torch.nn.utils.get_total_norm([g]))


@cases("clip_grad")
def clip_grad(r, op):
    g = r.real(r.shape())
    norm = g.norm() if r.chance() else r.positive([])
    attributes = {"max_norm": r.choice([0, 1, r.number(0.1, 5), 100])}
    with_eps = optional(r, attributes, "eps", r.choice([0, 1e-6, r.number(0.01, 1)]))

    def reference(g, norm):
        norm = norm.reshape([])
        if with_eps:
            return g * torch.clamp(attributes["max_norm"] / (norm + attributes["eps"]), max=1.0)
        parameter = torch.nn.Parameter(torch.zeros_like(g))
        parameter.grad = g.clone()
        torch.nn.utils.clip_grads_with_norm_([parameter], attributes["max_norm"], norm)
        return parameter.grad

    return Case(op, [g, norm.reshape(r.choice([[], [1]]))], attributes, reference)


@cases("sgd")
def sgd(r, op):
    shape = r.shape()
    attributes = {"lr": r.choice([0, 0.1, r.number(0.001, 1)])}
    optional(r, attributes, "weight_decay", r.choice([0, r.number(0, 0.5)]))
    momentum = optional(r, attributes, "momentum", r.choice([0.9, r.number(0.1, 0.99)]))
    if not momentum:
        optional(r, attributes, "momentum", 0)
    nesterov = (
        momentum and optional(r, attributes, "nesterov", r.chance(0.7)) and attributes["nesterov"]
    )
    optional(r, attributes, "dampening", 0 if nesterov else r.number(0, 1))

    def reference(p, g, buffer=None):
        p = torch.nn.Parameter(p.clone())
        p.grad = g.clone()
        optimizer = torch.optim.SGD([p], **attributes)
        if buffer is not None:
            optimizer.state[p]["momentum_buffer"] = buffer.clone()
        optimizer.step()
        return [p] if buffer is None else [p, optimizer.state[p]["momentum_buffer"]]

    return Case(
        op,
        [r.real(shape) for _ in range(3 if momentum else 2)],
        attributes,
        reference,
        results=2 if momentum else 1,
    )


@cases("adamw")
def adamw(r, op):
    shape = r.shape()
    attributes = {
        "lr": r.choice([0, 1e-3, r.number(0.001, 1)]),
        "step": r.choice([1, 2, 3, 10, r.integer(1, 2000)]),
    }
    optional(r, attributes, "beta1", r.choice([0.0, 0.95, r.number(0.1, 0.99)]))
    optional(r, attributes, "beta2", r.choice([0.95, r.number(0.1, 0.9999)]))
    optional(r, attributes, "eps", r.choice([1e-6, r.number(0.001, 1)]))
    optional(r, attributes, "weight_decay", r.choice([0, 0.1, r.number(0, 1)]))

    def reference(p, g, m, v):
        p = torch.nn.Parameter(p.clone())
        p.grad = g.clone()
        options = {
            key: value for key, value in attributes.items() if key in ("lr", "eps", "weight_decay")
        }
        betas = (attributes.get("beta1", 0.9), attributes.get("beta2", 0.999))
        optimizer = torch.optim.AdamW([p], betas=betas, **options)
        optimizer.state[p] = {
            "step": torch.tensor(float(attributes["step"] - 1)),
            "exp_avg": m.clone(),
            "exp_avg_sq": v.clone(),
        }
        optimizer.step()
        return [p, optimizer.state[p]["exp_avg"], optimizer.state[p]["exp_avg_sq"]]

    return Case(
        op,
        [r.real(shape), r.real(shape), r.real(shape), r.positive(shape)],
        attributes,
        reference,
        results=3,
    )
