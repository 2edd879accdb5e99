# SPDX-License-Identifier: Apache-2.0
"""Attention sharded along the sequence, with lineage of inputs and outputs only.

The forms are those in real use:

    gathered  keys and values are gathered, each rank has the attention of its own queries
    maximum   a ring: running maximum, sum and product, rescaled at each step, divided at the end
    lse       a ring: each block's result and log-sum-exp, merged with exp(block_lse - lse of all)
    sigmoid   the same, merged as in ring-flash-attention (github.com/zhuzilin):
              out - sigmoid(block_lse - lse) (out - block_out), lse - logsigmoid(lse - block_lse)
    largest   the same, merged by weights exp(lse - the larger lse), divided by their sum
    heads     all ranks exchange sequence for heads and back

The gradients of the two rings are written out from the log-sum-exp (or maximum and sum) of the
whole row (arXiv 2205.14135, algorithm 4). Keys, values and their gradients go round the ring.
`fused`: whether a side computes scores by `attention` and its gradient, or written out.

Mistakes:

    rescale   a block is not rescaled; with sigmoids the two log-sum-exps are exchanged, or its
              gradient is taken with a block's own sum; where nothing is rescaled the scores are not
    step      the last step of a ring is missing, or blocks of values come in another order
    mask      of another block, or transposed
"""

SPELLINGS = ("gathered", "maximum", "lse", "heads", "sigmoid", "largest")
MASKS = ("none", "bias", "causal")
MISTAKES = ("rescale", "step", "mask")


class Side:
    def __init__(self):
        self.tensors, self.nodes, self.count = {}, [], 0

    def given(self, name, shape, **fields):
        self.tensors[name] = {"shape": list(shape), "kind": "input", **fields}
        return name

    def shape(self, name):
        return self.tensors[name]["shape"]

    def op(self, op, operands, *shapes, names=None, **attrs):
        """One node.

        Returns the names of its results (one: not in a list). A shape of None: an unused result.
        """
        out = []
        for i, shape in enumerate(shapes):
            if shape is None:
                out.append(None)
                continue
            if names:
                out.append(names[i])
            else:
                out.append(f"{op}.{self.count}")
                self.count += 1
            self.tensors[out[-1]] = {"shape": list(shape)}
        communication = (
            {k: attrs.pop(k) for k in ("comm", "group", "pairs") if k in attrs}
            if "comm" in attrs
            else {}
        )
        self.nodes.append(
            {
                "op": op,
                "in": operands,
                "out": out,
                **communication,
                **({"attrs": attrs} if attrs else {}),
            }
        )
        return out[0] if len(out) == 1 else out

    def add(self, x, y):
        return y if x is None else self.op("add", [x, y], self.shape(x))

    def transposed(self, x):
        *lead, a, b = self.shape(x)
        return self.op("transpose", [x], [*lead, b, a], dim0=-1, dim1=-2)

    def matmul(self, x, y):
        return self.op("matmul", [x, y], [*self.shape(x)[:-1], self.shape(y)[-1]])

    def same(self, op, *operands, **attrs):
        return self.op(op, list(operands), self.shape(operands[0]), **attrs)

    def scores(self, q, k, mask, scale):
        """The masked scores, and the values on the way to them."""
        kt = self.transposed(k)
        raw = self.matmul(q, kt)
        scaled = self.same("mul", raw, scalar=scale) if scale is not None else raw
        return (self.same("apply_mask", scaled, mask) if mask else scaled), (kt, raw, scaled)

    def attention(self, q, k, v, mask, scale, fused, lse=False):
        """o, lse (of shape [..., s]) or None."""
        shape = [*self.shape(q)[:-1], self.shape(v)[-1]]
        if fused:
            return self.op(
                "attention",
                [q, k, v, *([mask] if mask else [])],
                shape,
                self.shape(q)[:-1] if lse else None,
                scale=1 if scale is None else scale,
            )
        s, _ = self.scores(q, k, mask, scale)
        o = self.matmul(self.same("softmax", s, dim=-1), v)
        return o, self.op("logsumexp", [s], self.shape(q)[:-1], dim=-1) if lse else None

    def attention_backward(self, do, dlse, q, k, v, mask, scale, fused):
        """The gradients of q, k and v."""
        if fused:
            return self.op(
                "attention_backward",
                [do, dlse, q, k, v, *([mask] if mask else [])],
                self.shape(q),
                self.shape(k),
                self.shape(v),
                *([None] if mask else []),
                scale=1 if scale is None else scale,
            )[:3]
        s, (kt, raw, scaled) = self.scores(q, k, mask, scale)
        p = self.same("softmax", s, dim=-1)
        dp, dv = self.op("matmul_backward", [do, p, v], self.shape(p), self.shape(v))
        ds = self.op("softmax_backward", [dp, s], self.shape(s), dim=-1)
        if mask:
            ds, _ = self.op("apply_mask_backward", [ds, scaled, mask], self.shape(s), None)
        if scale is not None:
            ds = self.op("mul_backward", [ds, raw], self.shape(s), scalar=scale)
        dq, dkt = self.op("matmul_backward", [ds, q, kt], self.shape(q), self.shape(kt))
        return dq, self.op("transpose_backward", [dkt, k], self.shape(k), dim0=-1, dim1=-2), dv


class Plan:
    """The programs of all ranks, each written by the same steps."""

    def __init__(self, spelling, fused, mask, backward, mistake, b, h, s, d, ranks, scale):
        self.spelling, self.fused, self.mask, self.backward, self.mistake = (
            spelling,
            fused,
            mask,
            backward,
            mistake,
        )
        self.b, self.h, self.s, self.d, self.ranks, self.scale = b, h, s, d, ranks, scale
        self.rows = s // ranks
        self.programs = []
        for rank in range(ranks):
            self.r, self.side, self.comms = rank, Side(), 0
            self.rank()
            self.programs.append(
                {"at": {"cp": rank}, "tensors": self.side.tensors, "nodes": self.side.nodes}
            )

    def is_(self, mistake):
        return self.mistake == mistake

    def communicate(self, op, x, shape, **fields):
        self.comms += 1
        return self.side.op(op, [x], shape, comm=f"c{self.comms}", group=["cp"], **fields)

    def next(self, x):
        """x of the rank before this one."""
        return self.communicate(
            "collective_permute",
            x,
            self.side.shape(x),
            pairs=[[i, (i + 1) % self.ranks] for i in range(self.ranks)],
        )

    def gathered(self, x, dim=2):
        shape = list(self.side.shape(x))
        shape[dim] *= self.ranks
        return self.communicate("all_gather", x, shape, dim=dim)

    def rolled(self, x, dim=2):
        """A mistake: the blocks of another order."""
        shape = self.side.shape(x)
        half = list(shape)
        half[dim] //= self.ranks
        pieces = [
            self.side.op("slice", [x], half, dim=dim, start=i * half[dim], stop=(i + 1) * half[dim])
            for i in range(self.ranks)
        ]
        return self.side.op("cat", pieces[1:] + pieces[:1], shape, dim=dim)

    def rank(self):
        b, h, d = self.b, self.h, self.d
        given = ["q", "k", "v"] + (["do"] if self.backward else [])
        for name in given:
            self.side.given(name, [b, h, self.rows, d])
        if self.mask == "bias":
            self.side.given(
                "bias",
                [h // self.ranks, self.s, self.s]
                if self.spelling == "heads"
                else [h, self.rows, self.s],
            )
        if self.mask == "causal":
            self.side.given("tokens", [b, self.rows], dtype="int64")
        if self.spelling == "gathered":
            self.gathered_keys()
        elif self.spelling == "heads":
            self.split_heads()
        else:
            self.ring()

    def finish(self, results):
        for name, value in results.items():
            self.side.op("identity", [value], self.side.shape(value), names=[name])

    # --- gathered keys, split heads ---

    def whole_mask(self):
        """Of this rank's rows (gathered), or of its heads."""
        if self.mask == "none":
            return None
        if self.mask == "bias":
            mask = "bias"
            if self.is_("mask"):
                mask = self.side.transposed(mask) if self.spelling == "heads" else self.rolled(mask)
            return mask
        mask = self.side.op("create_mask", [self.gathered("tokens", 1)], [1, 1, self.s, self.s])
        if self.spelling == "heads":
            return self.side.transposed(mask) if self.is_("mask") else mask
        rows = (self.r + self.is_("mask")) % self.ranks
        return self.side.op(
            "slice",
            [mask],
            [1, 1, self.rows, self.s],
            dim=2,
            start=rows * self.rows,
            stop=(rows + 1) * self.rows,
        )

    def gathered_keys(self):
        scale = None if self.is_("rescale") else self.scale
        k, v, mask = self.gathered("k"), self.gathered("v"), self.whole_mask()
        if self.is_("step"):
            v = self.rolled(v)
        results = {"o": self.side.attention("q", k, v, mask, scale, self.fused)[0]}
        if self.backward:
            dq, dk, dv = self.side.attention_backward(
                "do", None, "q", k, v, mask, scale, self.fused
            )
            own = self.side.shape("k")
            results |= {
                "dq": dq,
                "dk": self.communicate("reduce_scatter", dk, own, dim=2, reduce="sum"),
                "dv": self.communicate("reduce_scatter", dv, own, dim=2, reduce="sum"),
            }
        self.finish(results)

    def split_heads(self):
        scale = None if self.is_("rescale") else self.scale
        mine = [self.b, self.h // self.ranks, self.s, self.d]

        def to_heads(x):
            return self.communicate("all_to_all", x, mine, idim=1, odim=2)

        def back(x):
            whole = [self.b, self.h, self.rows, self.d]
            return self.communicate("all_to_all", x, whole, idim=2, odim=1)

        q, k, v, mask = to_heads("q"), to_heads("k"), to_heads("v"), self.whole_mask()
        if self.is_("step"):
            v = self.rolled(v)
        results = {"o": back(self.side.attention(q, k, v, mask, scale, self.fused)[0])}
        if self.backward:
            gradients = self.side.attention_backward(
                to_heads("do"), None, q, k, v, mask, scale, self.fused
            )
            results |= {
                name: back(g) for name, g in zip(("dq", "dk", "dv"), gradients, strict=True)
            }
        self.finish(results)

    # --- rings ---

    def blocks(self):
        """Step by step: the block's number, its keys, values and mask.

        No block where all of it is masked.
        """
        k, v = "k", "v"
        for i in range(self.ranks):
            if i > 0 and not (self.is_("step") and i == self.ranks - 1):
                k, v = self.next(k), self.next(v)
            j = (self.r - i) % self.ranks
            if self.mask == "causal" and j > self.r:
                yield i, None, None, None
                continue
            mask = None
            if self.mask == "bias":
                column = (j + 1) % self.ranks if self.is_("mask") and i == 1 else j
                mask = self.side.op(
                    "slice",
                    ["bias"],
                    [self.h, self.rows, self.rows],
                    dim=2,
                    start=column * self.rows,
                    stop=(column + 1) * self.rows,
                )
            elif self.mask == "causal" and j == (0 if self.is_("mask") else self.r):
                mask = self.side.op("create_mask", ["tokens"], [1, 1, self.rows, self.rows])
            yield i, k, v, mask

    def ring(self):
        blocks = list(self.blocks())
        some = [x for x in blocks if x[1]]
        forget = self.is_("rescale") and not self.backward
        o, row = (self.maximum if self.spelling == "maximum" else self.merged)(some, forget)
        results = {"o": o}
        if self.backward:
            results |= self.ring_backward(blocks, o, row)
        self.finish(results)

    def maximum(self, blocks, forget):
        side, m, weight, total = self.side, None, None, None
        column = [self.b, self.h, self.rows, 1]
        for n, (_, k, v, mask) in enumerate(blocks):
            s, _ = side.scores("q", k, mask, self.scale)
            largest = side.op("amax", [s], column, dim=-1, keepdim=True)
            if n > 0:
                both = side.op("cat", [m, largest], [*column[:3], 2], dim=-1)
                largest = side.op("amax", [both], column, dim=-1, keepdim=True)
                factor = side.same("exp", side.same("sub", m, largest))
                weight = side.same("mul", weight, factor)
                if not (forget and n == len(blocks) - 1):
                    total = side.same("mul", total, factor)
            m = largest
            p = side.same("exp", side.same("sub", s, m))
            own, product = side.op("sum", [p], column, dim=-1, keepdim=True), side.matmul(p, v)
            if n == 0:
                weight, total = own, product
            else:
                weight, total = side.add(weight, own), side.add(total, product)
        return side.same("div", total, weight), (m, weight)

    def merged(self, blocks, forget):
        side = self.side
        column = [self.b, self.h, self.rows, 1]
        self.partial = []
        for n, (_, k, v, mask) in enumerate(blocks):
            block, block_lse = side.attention("q", k, v, mask, self.scale, self.fused, lse=True)
            block_lse = side.op("unsqueeze", [block_lse], column, dim=-1)
            self.partial.append((block, block_lse))
            if n == 0:
                o, lse = block, block_lse
            else:
                o, lse = getattr(self, f"merged_by_{self.spelling}")(
                    o, lse, block, block_lse, forget and n == len(blocks) - 1
                )
        return o, (lse,)

    def both(self, op, x, y):
        shape = self.side.shape(x)
        return self.side.op(
            op, [self.side.op("cat", [x, y], [*shape[:3], 2], dim=-1)], shape, dim=-1, keepdim=True
        )

    def merged_by_lse(self, o, lse, block, block_lse, forget):
        side = self.side
        whole = self.both("logsumexp", lse, block_lse)
        before = side.same("mul", o, side.same("exp", side.same("sub", lse, whole)))
        if not forget:
            block = side.same("mul", block, side.same("exp", side.same("sub", block_lse, whole)))
        return side.add(before, block), whole

    def merged_by_sigmoid(self, o, lse, block, block_lse, forget):
        side = self.side
        weight = side.same(
            "sigmoid",
            side.same("sub", lse, block_lse) if forget else side.same("sub", block_lse, lse),
        )
        whole = side.same(
            "sub", lse, side.same("log", side.same("sigmoid", side.same("sub", lse, block_lse)))
        )
        return side.same("sub", o, side.same("mul", side.same("sub", o, block), weight)), whole

    def merged_by_largest(self, o, lse, block, block_lse, forget):
        side = self.side
        largest = self.both("amax", lse, block_lse)
        weights = [side.same("exp", side.same("sub", x, largest)) for x in (lse, block_lse)]
        total = side.add(*weights)
        whole = side.add(largest, side.same("log", total))
        scaled = (
            side.same("mul", o, weights[0]),
            block if forget else side.same("mul", block, weights[1]),
        )
        return side.same("div", side.add(*scaled), total), whole

    def ring_backward(self, blocks, o, row):
        side = self.side
        column = [self.b, self.h, self.rows, 1]
        own = side.op("sum", [side.same("mul", "do", o)], column, dim=-1, keepdim=True)
        dq = dk = dv = None
        partial = iter(getattr(self, "partial", ()))
        for i, k, v, mask in blocks:
            if i > 0 and not (self.is_("step") and i == self.ranks - 1):
                dk, dv = self.next(dk), self.next(dv)
            if k is None:
                continue
            if self.fused:
                block, block_lse = next(partial)
                share = side.same("exp", side.same("sub", block_lse, row[0]))
                do = "do" if self.is_("rescale") and i == 0 else side.same("mul", "do", share)
                slope = side.op(
                    "sum", [side.same("mul", "do", block)], column, dim=-1, keepdim=True
                )
                slope = side.same("mul", side.same("sub", slope, own), share)
                slope = side.op("squeeze", [slope], column[:3], dim=-1)
                here = side.attention_backward(do, slope, "q", k, v, mask, self.scale, True)
            else:
                s, _ = side.scores("q", k, mask, self.scale)
                p = side.same("exp", side.same("sub", s, row[0]))
                if len(row) > 1 and not (self.is_("rescale") and i == 0):
                    p = side.same("div", p, row[1])
                dp = side.matmul("do", side.transposed(v))
                if len(row) > 1 or not (self.is_("rescale") and i == 0):
                    dp = side.same("sub", dp, own)
                ds = side.same("mul", side.same("mul", p, dp), scalar=self.scale)
                here = (
                    side.matmul(ds, k),
                    side.matmul(side.transposed(ds), "q"),
                    side.matmul(side.transposed(p), "do"),
                )
            dq, dk, dv = (side.add(x, y) for x, y in zip((dq, dk, dv), here, strict=True))
        return {"dq": dq, "dk": self.next(dk), "dv": self.next(dv)}


def model(fused, mask, backward, b, h, s, d, scale):
    side = Side()
    for name in ["q", "k", "v"] + (["do"] if backward else []):
        side.given(name, [b, h, s, d])
    used = None
    if mask == "bias":
        used = side.given("bias", [h, s, s])
    if mask == "causal":
        used = side.op("create_mask", [side.given("tokens", [b, s], dtype="int64")], [1, 1, s, s])
    results = {"o": side.attention("q", "k", "v", used, scale, fused)[0]}
    if backward:
        results |= dict(
            zip(
                ("dq", "dk", "dv"),
                side.attention_backward("do", None, "q", "k", "v", used, scale, fused),
                strict=True,
            )
        )
    for name, value in results.items():
        side.op("identity", [value], side.shape(value), names=[name])
    return {
        "format": "shardproof-model",
        "version": 1,
        "tensors": side.tensors,
        "nodes": side.nodes,
        "outputs": list(results),
    }


def lineage(spelling, mask, backward, b, h, s, d, ranks):
    rows = s // ranks

    def entry(tensor, role, box, step):
        return {
            "tensor": tensor,
            "role": role,
            "shards": [
                {"box": [[0, n] for n in box], "step": {"cp": step}, "parts": [{"local": tensor}]}
            ],
        }

    block, step = [b, h, rows, d], [0, 0, rows, 0]
    entries = [
        entry(name, "input", block, step) for name in ["q", "k", "v"] + (["do"] if backward else [])
    ]
    if mask == "bias":
        entries.append(
            entry("bias", "input", [h // ranks, s, s], [h // ranks, 0, 0])
            if spelling == "heads"
            else entry("bias", "input", [h, rows, s], [0, rows, 0])
        )
    if mask == "causal":
        entries.append(entry("tokens", "input", [b, rows], [0, rows]))
    return entries + [
        entry(name, "output", block, step)
        for name in ["o"] + (["dq", "dk", "dv"] if backward else [])
    ]


def make(
    spelling,
    fused_model,
    fused_plan,
    mask,
    backward,
    mistake=None,
    b=1,
    h=2,
    s=6,
    d=2,
    ranks=2,
    scale=0.5,
):
    """Model and plan."""
    programs = Plan(
        spelling, fused_plan, mask, backward, mistake, b, h, s, d, ranks, scale
    ).programs
    plan = {
        "format": "shardproof-plan",
        "version": 1,
        "model": "m.model.json",
        "mesh": [["cp", ranks]],
        "programs": programs,
        "lineage": lineage(spelling, mask, backward, b, h, s, d, ranks),
    }
    return model(fused_model, mask, backward, b, h, s, d, scale), plan
