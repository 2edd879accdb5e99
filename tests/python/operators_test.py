# SPDX-License-Identifier: Apache-2.0
"""Each lowering of the operator table against ATen, by the executor (`shardproof run`).

Arguments, values and shapes are random. All calls are two steps, each run with real numbers. A
lowering that no call reaches fails.
"""

import math
import pathlib
import subprocess
import tempfile
import unittest
from unittest import mock

import numpy
import torch
import torch.nn.functional as F
from shardproof import find_program
from shardproof.torch import capture
from shardproof.torch.aten import table
from shardproof.torch.session import numeric
from shardproof.torch.step.world import World
from shardproof.torch.trace.opaque import Calls

A = torch.ops.aten
S = (3, 4)


def positive(x):
    return x * x + 0.5


UNARY = {
    "neg": torch.neg,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "relu": torch.relu,
    "abs": torch.abs,
    "sign": torch.sign,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "log": lambda x: torch.log(positive(x)),
    "sqrt": lambda x: torch.sqrt(positive(x)),
    "rsqrt": lambda x: torch.rsqrt(positive(x)),
    "reciprocal": lambda x: torch.reciprocal(positive(x)),
    "pow3": lambda x: x.pow(3),
    "pow2": lambda x: x.pow(2),
    "quarters": lambda x: positive(x).pow(-0.75),
    "any_power": lambda x: positive(x).pow(0.7),
    "power_of_number": lambda x: 3.0**x,
    "half": lambda x: positive(x).pow(0.5),
    "clamp": lambda x: x.clamp(-0.3, 0.4),
    "clamp_min": lambda x: x.clamp_min(0.1),
    "clamp_max": lambda x: x.clamp_max(0.1),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.5),
    "rsub": lambda x: A.rsub.Scalar(x, 2.0, 3),
    "add_alpha": lambda x: torch.add(x, x, alpha=-2),
    "third": lambda x: x * (1 / 3),
    "root": lambda x: x / math.sqrt(2),
    "div": lambda x: x / 7,
    "sum": torch.sum,
    "sum_dim": lambda x: x.sum(0, keepdim=True),
    "mean": torch.mean,
    "mean_dim": lambda x: x.mean(-1),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin((0, 1)),
    "max": torch.max,
    "min": torch.min,
    "max_dim": lambda x: x.max(1).values,
    "min_dim": lambda x: x.min(0).values,
    "var": lambda x: x.var(1),
    "var_biased": lambda x: x.var(unbiased=False),
    "var_mean": lambda x: torch.stack(torch.var_mean(x, dim=1, correction=1)),
    "norm": torch.linalg.vector_norm,
    "norm1": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, math.inf),
    "aten_norm": lambda x: A.norm.Scalar(x, 2),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "logaddexp": lambda x: torch.logaddexp(x, 1 - 2 * x),
    "safe_softmax": lambda x: A._safe_softmax.default(x, 1),
    "step_rows": lambda x: x[::2],
    "step_columns": lambda x: x[:, 0:3:3],
    "step_last": lambda x: x[:, 1::2],
    "softmax": lambda x: F.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "cumsum": lambda x: x.cumsum(1),
    "triu": lambda x: torch.triu(x, 1),
    "tril": torch.tril,
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(3, 1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "pad": lambda x: F.pad(x, (1, 2), value=0.5),
    "crop": lambda x: F.pad(x, (-1, 0, 2, 0)),
    "index_select": lambda x: x.index_select(1, torch.tensor([2, 0])),
    "index": lambda x: x[torch.tensor([2, 0, 1])],
    "where": lambda x: torch.where(x > 0, x, x * 3),
    "where_ge": lambda x: torch.where(x >= 0.2, 1.0, x),
    "lt": lambda x: (x < 0.1).to(x.dtype),
    "le": lambda x: (x <= 0.1).to(x.dtype),
    "eq": lambda x: (x == x).to(x.dtype),
    "ne": lambda x: (x != x * 2).to(x.dtype),
    "and": lambda x: ((x > -0.5) & (x < 0.5)).to(x.dtype),
    "or": lambda x: ((x < -0.5) | (x > 0.5)).to(x.dtype),
    "not": lambda x: (~(x > 0)).to(x.dtype),
    "logical": lambda x: torch.logical_not(x > 0).to(x.dtype),
    "masked_fill": lambda x: x.masked_fill(torch.ones(3, 4).triu(1).bool(), 2.5),
    "masked_real": lambda x: x.masked_fill(x > 0, 1.5),
    "finite": lambda x: torch.where(torch.isfinite(x), x, -x),
    "nan": lambda x: torch.where(torch.isnan(x), -x, x),
    "slice_write": lambda x: _write(x),
    "column_write": lambda x: _columns(x),
    "strided": lambda x: x.as_strided((2, 3), (4, 1), 1) * 1,
    "transposed_write": lambda x: _transposed(x),
    "flat": lambda x: _flat(x),
    "stack": lambda x: torch.stack([x, x * 2], 1),
    "cat": lambda x: torch.cat([x, x + 1], 1),
    "clone": lambda x: x.clone() + 1,
    "float": lambda x: x.float().double() * 1,
    "full": lambda x: x + torch.full_like(x, 2.5),
    "ones": lambda x: x + torch.ones_like(x),
    "zeros": lambda x: x + x.new_zeros(4),
    "new_full": lambda x: x + x.new_full((4,), 3.0),
    "fill": lambda x: x.clone().fill_(3.5) + x,
    "zero": lambda x: x.clone().zero_() + x,
    "outer": lambda x: torch.outer(x[0], x[1]),
    "split_copy": lambda x: A.split_with_sizes_copy(x, [1, 3], 1)[1] + 0,
    "unfold": lambda x: x.unflatten(1, (2, 2)).transpose(0, 2).reshape(2, 6),
    "expand": lambda x: x[:, None].expand(3, 2, 4) * 2,
    "index_put": lambda x: x.index_put((torch.tensor([1]),), torch.tensor(4.0)),
    "complex": lambda x: torch.view_as_real(
        torch.view_as_complex(x.reshape(3, 2, 2))
        * torch.polar(torch.ones(2), torch.tensor([0.3, 0.7]))
    ).flatten(1),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "addcdiv": lambda x: torch.addcdiv(x, x, positive(x), value=-2),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "masked_column": lambda x: _masked(x, 1, torch.tensor([True, False, False, True])),
    "masked_columns": lambda x: _masked(
        x.expand(2, 3, 4).clone(), 1, torch.ones(3, 4).triu().bool()
    ),
    "masked_data": lambda x: _masked(x, 0, x > 0.2),
    "masked_rows": lambda x: _masked(x, 0, x[:, 0] > 0),
    "masked_last": lambda x: _masked(x, 1, x[0] > 0),
    "log1p": lambda x: torch.log1p(positive(x)),
    "expm1": torch.expm1,
    "log2": lambda x: torch.log2(positive(x)),
    "exp2": torch.exp2,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "elu": F.elu,
    "mish": F.mish,
    "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "hidden": lambda x: F.softmax(
        x[:, :3].masked_fill(torch.ones(3, 3).triu(1).bool(), -math.inf), -1
    ),
    "threshold": lambda x: A.threshold_backward(x, x, 0),
    "cumprod": lambda x: x.cumprod(1),
    "prod": torch.prod,
    "prod_dim": lambda x: x.prod(0, keepdim=True),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "norm3": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "norm_fraction": lambda x: torch.linalg.vector_norm(x, 1.5, dim=0),
    "norm_half": lambda x: torch.linalg.vector_norm(x, 0.5),
    "norm_least": lambda x: torch.linalg.vector_norm(x, -math.inf, dim=1),
    "nonzero": lambda x: torch.linalg.vector_norm(F.relu(x), 0, dim=1),
    "pow_fraction": lambda x: positive(x).pow(0.3),
    "pow_negative": lambda x: positive(x).pow(-1.7),
    "pow_of_zero": lambda x: F.relu(x).pow(1.3),
    "pow_of_number": lambda x: 2.5**x,
    "normalize3": lambda x: F.normalize(x, 3.0),
    "threshold_other": lambda x: A.threshold_backward(x, x, 0.2),
    "threshold_value": lambda x: F.threshold(x, 0.1, -2.0),
    "logit": lambda x: torch.logit(torch.sigmoid(x)),
    "logit_eps": lambda x: torch.logit(torch.sigmoid(x * 3), 0.2),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.4),
    "round_decimals": lambda x: torch.round(x, decimals=1) + x,
    "round_tens": lambda x: torch.round(x * 30, decimals=-1) + x,
    "as_bool": lambda x: x * F.relu(x).bool(),
    "rfft": lambda x: torch.view_as_real(torch.fft.rfft(x, n=7, norm="ortho")),
    "rfft2": lambda x: torch.view_as_real(torch.fft.rfft2(x)),
    "fft": lambda x: torch.fft.fft(torch.complex(x, x * 2), dim=0).abs(),
    "ifft": lambda x: torch.view_as_real(
        torch.fft.ifft(torch.fft.fft(x) * torch.complex(x, x + 1))
    ),
    "irfft": lambda x: torch.fft.irfft(torch.complex(x, x * x), n=5, norm="forward"),
    "irfft_even": lambda x: torch.fft.irfft2(torch.complex(x, x * x)),
    "hfft": lambda x: torch.fft.hfft(torch.complex(x, x * x)),
    "complex_exp": lambda x: torch.view_as_real(torch.complex(x, x * 2).exp()),
    "complex_div": lambda x: torch.view_as_real(
        torch.complex(x, x * 2) / torch.complex(positive(x), x)
    ),
    "polar": lambda x: torch.view_as_real(torch.polar(positive(x), x)).flatten(1),
    "complex_matmul": lambda x: torch.view_as_real(
        torch.complex(x, x * 2) @ torch.complex(x + 1, x).T
    ),
    "complex_sgn": lambda x: torch.view_as_real(torch.sgn(torch.complex(x, x + 1))),
    "circular": lambda x: F.pad(x[None], (3, 1), mode="circular"),
    "circular2": lambda x: F.pad(x[None, None], (1, 2, 0, 3), mode="circular"),
    "gather_known": lambda x: x.gather(1, torch.tensor([[0, 3, 3], [0, 3, 3]])),
    "gather_apart": lambda x: x.gather(0, torch.tensor([[0, 2, 1], [1, 1, 0]])),
    "scatter_known": lambda x: (x * 2).scatter(1, torch.tensor([[0, 3]]).expand(3, 2), x[:, 1:3]),
    "scatter_apart": lambda x: (x * 2).scatter(1, torch.tensor([[0, 3], [2, 1]]), x[:2, 1:3]),
    "scatter_number": lambda x: x.scatter(0, torch.tensor([[1, 2, 0, 0]]), 2.5),
    "scatter_add_known": lambda x: (x * 2).scatter_add(
        0, torch.tensor([[2, 2, 2], [0, 0, 0]]), x[:2, :3]
    ),
    "scatter_add_apart": lambda x: (x * 2).scatter_add(
        1, torch.tensor([[0, 0, 2], [3, 3, 3]]), x[:2, :3]
    ),
    "index_add": lambda x: x.index_add(1, torch.tensor([3, 0, 3]), x[:, :3], alpha=2),
    "segments": lambda x: torch.segment_reduce(
        x, "mean", lengths=torch.tensor([[1, 3]]).expand(3, 2), axis=1
    ),
    "segment_sums": lambda x: torch.segment_reduce(
        x, "sum", offsets=torch.tensor([0, 1, 3]), axis=0
    ),
    "segment_maxima": lambda x: torch.segment_reduce(
        x, "max", lengths=torch.tensor([2, 1]), axis=0
    ),
    **{
        f"reduce_{how}_{among}": lambda x, how=how, among=among: (x * 2).scatter_reduce(
            1, torch.tensor([[0, 1, 1, 3]]).expand(3, 4), x * x, how, include_self=among
        )
        for how in ("sum", "mean", "prod", "amax", "amin")
        for among in (True, False)
    },
    "repeated": lambda x: x.repeat_interleave(torch.tensor([2, 0, 1, 3]), 1),
    "masked_select": lambda x: x.masked_select(torch.ones(3, 4).triu().bool()),
    "nll_of_variance": lambda x: F.gaussian_nll_loss(x, x * 2, F.softplus(x), full=True),
    "nll_of_squares": lambda x: F.gaussian_nll_loss(x, x * 2, positive(x)),
    "poisson": lambda x: F.poisson_nll_loss(x, positive(x), full=True),
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "floor": lambda x: torch.floor(x * 3),
    "ceil": lambda x: torch.ceil(x * 3),
    "round": lambda x: torch.round(x * 3),
    "trunc": lambda x: torch.trunc(x * 3),
    "unscaled": lambda x: _unscaled(x),
    "patches": lambda x: (
        x.reshape(3, 2, 2)[:, 1:]
        .transpose(1, 2)
        .unflatten(1, (2, 1))
        .permute(0, 3, 1, 2)
        .flatten(1)
        * 2
    ),
}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": lambda a, b: a / positive(b),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "matmul": lambda a, b: a @ b.T,
    "bmm": lambda a, b: torch.bmm(a[None], b.T[None]),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "dot": lambda a, b: torch.dot(a[0], b[0]),
    "addmm": lambda a, b: torch.addmm(a[:, :3], a, b.T, beta=0.5, alpha=2),
    "mse": F.mse_loss,
    "raised": lambda a, b: positive(a).pow(b),
    "cdist": lambda a, b: torch.cdist(a, b),
    "cdist1": lambda a, b: torch.cdist(a, b, p=1.0),
    "cdist3": lambda a, b: torch.cdist(a, b, p=3.0),
    "cdist_inf": lambda a, b: torch.cdist(a, b, p=math.inf),
    "cdist0": lambda a, b: torch.cdist(a, b, p=0.0),
    "cdist_batch": lambda a, b: torch.cdist(torch.stack([a, a * 2]), b, p=1.5),
    "mse_sum": lambda a, b: F.mse_loss(a, b, reduction="sum"),
    "layer_norm": lambda a, b: F.layer_norm(a, (4,), b[0], b[1]),
    "rms_norm": lambda a, b: F.rms_norm(a, (4,), b[0], 1e-5),
    "where": lambda a, b: torch.where(a > b, a, b),
    "foreach": lambda a, b: sum(torch._foreach_mul([a, b], [b, a])),
    "fused_rms_norm": lambda a, b: A._fused_rms_norm(a, [4], b[0], 1e-5)[0],
    "foreach_zero": lambda a, b: _foreach_writes(a, b),
    "power": lambda a, b: positive(a) ** b,
    "bilinear": lambda a, b: F.bilinear(a, b, torch.stack([a.T @ b, b.T @ a])),
    "foreach_norm": lambda a, b: torch.stack(torch._foreach_norm([a, b])),
    "copy": lambda a, b: a.clone().copy_(b[0]) + a,
    "smooth_l1": F.smooth_l1_loss,
    "huber": F.huber_loss,
    "baddbmm": lambda a, b: torch.baddbmm(a[None, :, :3], a[None], b.T[None]),
}


def _foreach_writes(a, b):
    x, y, z = a.detach().clone(), a.detach().clone(), b.detach().clone()
    torch._foreach_copy_([x], [b.detach()])
    torch._foreach_zero_([y, z])
    torch._foreach_add_([y], 2.0)
    return x + y + z + a


def _masked(x, dims, mask):
    y = x * 1
    y[(slice(None),) * dims + (mask,)] = 0.7
    return y


def _write(x):
    y = x.clone()
    y[1:, 2] = x[:2, 0] * 5
    y[0] += 1
    return y


def _columns(x):
    y = torch.empty_like(x)
    y[:, :1], y[:, 1:] = x[:, 3:], x[:, :3]
    return y * 1


def _transposed(x):
    y = x.clone()
    y.t()[1:3] *= 2
    return y


def _flat(x):
    buffer = torch.zeros(30)
    buffer[5:17] = x.flatten()
    buffer[20:23] = x[:, 1]
    buffer.mul_(2)
    return torch.cat([buffer[6:16].view(2, 5).t().flatten(), buffer[18:24]])


def _attention(world, name, **options):
    q, k, v = (
        world.input(f"{name} {n}", (2, 4 if n == "q" else 4, 5, 8)).requires_grad_() for n in "qkv"
    )
    return F.scaled_dot_product_attention(q, k, v, **options), (q, k, v)


def _ring(world):
    """The backward of a part of the keys, given result and normalisation of all (or of others).

    Ring attention does this.
    """
    q, k, v, grad = (world.input(f"ring {n}", (2, 4, 5, 8)) for n in ("q", "k", "v", "grad"))
    other_k, other_v = (world.input(f"ring {n}", (2, 4, 5, 8)) for n in ("other k", "other v"))
    out, lse = A._scaled_dot_product_flash_attention_for_cpu(
        q, torch.cat([k, other_k], 2), torch.cat([v, other_v], 2)
    )[:2]
    own_out, own_lse = A._scaled_dot_product_flash_attention_for_cpu(q, k, v)[:2]
    bias = torch.eye(5) - torch.ones(5, 5).triu(2)
    for name, given, options in (
        ("ring", (out, lse, 0.0, False), {}),
        ("ring_causal", (out, lse, 0.0, True), {}),
        ("ring_scale", (out, lse, 0.0, False), {"scale": 0.2}),
        ("ring_lse", (own_out, lse, 0.0, False), {}),
        ("ring_out", (out, own_lse, 0.0, False), {}),
        ("ring_own", (own_out, own_lse, 0.0, False), {}),
        ("ring_mask", (out, lse, 0.0, False), {"attn_mask": bias}),
    ):
        for i, t in enumerate(
            A._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, *given, **options)
        ):
            world.output(f"{name} grad {i}", t, mean=())


def of_reals(world):
    """Cases without integers, and the gradients of those that have some."""
    for name, f in UNARY.items():
        x = world.input(f"{name} x", S).requires_grad_()
        _give(world, name, f(x), [x])
    for name, f in BINARY.items():
        a, b = (world.input(f"{name} {n}", S).requires_grad_() for n in "ab")
        _give(world, name + "2", f(a, b), [a, b])
    for name, options in {
        "sdpa": {},
        "sdpa_causal": {"is_causal": True},
        "sdpa_mask": {"attn_mask": torch.ones(5, 5).tril().bool()},
        "sdpa_scale": {"scale": 0.2},
    }.items():
        out, given = _attention(world, name, **options)
        _give(world, name, out, given)
    _ring(world)
    _images(world)
    _weight_norm(world)
    weights = world.input("weights", (2, 4))
    makers = (
        lambda p: torch.optim.AdamW([p], fused=True),
        lambda p: torch.optim.Adam([p], weight_decay=0.1, fused=True),
        lambda p: torch.optim.AdamW([p], foreach=True, weight_decay=0.2),
        lambda p: torch.optim.AdamW([p], weight_decay=0.1, amsgrad=True, fused=True),
        lambda p: torch.optim.Adam([p], weight_decay=0.1, amsgrad=True, maximize=True, fused=True),
        lambda p: torch.optim.SGD(
            [p], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True
        ),
        lambda p: torch.optim.SGD(
            [p], lr=0.1, momentum=0.9, dampening=0.3, maximize=True, fused=True
        ),
        lambda p: torch.optim.SGD([p], lr=torch.tensor(0.1), fused=True),
        lambda p: torch.optim.Adagrad([p], lr=0.1, lr_decay=0.1, weight_decay=0.1, fused=True),
    )
    optimized = [torch.nn.Parameter(weights.clone()) for _ in makers]
    for p, make in zip(optimized, makers, strict=True):
        p.grad = weights * 3
        optimizer = make(p)
        optimizer.step()
        optimizer.step()
    for i, p in enumerate(optimized):
        world.output(f"optimized {i}", p.detach(), mean=())


def of_integers(world):
    """The others: for some, all are recorded anew with the ranges of integers that were found."""
    _matrices(world)
    _choices(world)
    _masks(world)
    ids, table_ = (
        world.input("ids", (3, 2), torch.long, high=6),
        world.input("table", (6, 4)).requires_grad_(),
    )
    _give(world, "embedding", F.embedding(ids, table_), [table_])
    for name, options in {
        "ce": {},
        "ce_sum": {"reduction": "sum"},
        "ce_none": {"reduction": "none"},
        "ce_smooth": {"label_smoothing": 0.1},
    }.items():
        x, labels = (
            world.input(f"{name} x", (5, 7)).requires_grad_(),
            world.input(f"{name} labels", (5,), torch.long, high=7),
        )
        _give(world, name, F.cross_entropy(x, labels, **options), [x])
    x, labels = (
        world.input("pick x", (5, 7)).requires_grad_(),
        world.input("pick labels", (5,), torch.long, high=7),
    )
    _give(world, "gather", F.log_softmax(x, -1).gather(1, labels[:, None]), [x])
    rows = F.one_hot(labels, 7).to(x.dtype)
    _give(world, "one_hot", rows * x, [x])
    local = torch.where((labels < 2) | (labels >= 5), 0, labels - 2)
    picked = x[:, 2:5].detach()[torch.arange(5), local]
    picked[(labels < 2) | (labels >= 5)] = 0.0
    world.output("window", picked, mean=())


def _images(world):
    x, w, b = (
        world.input(f"conv {n}", s).requires_grad_()
        for n, s in (("x", (2, 4, 6, 5)), ("w", (6, 2, 3, 2)), ("b", (6,)))
    )
    _give(world, "conv", F.conv2d(x, w, b, stride=(2, 1), padding=(1, 0), groups=2), [x, w, b])
    y, v = (
        world.input("conv1 x", (2, 3, 9)).requires_grad_(),
        world.input("conv1 w", (2, 3, 3)).requires_grad_(),
    )
    _give(world, "conv1", F.conv1d(y, v, padding=2, dilation=2), [y, v])
    x, w, b = (
        world.input(f"transposed {n}", s).requires_grad_()
        for n, s in (("x", (2, 4, 3, 4)), ("w", (4, 3, 3, 2)), ("b", (6,)))
    )
    _give(
        world,
        "transposed",
        F.conv_transpose2d(x, w, b, stride=(2, 1), padding=(1, 0), output_padding=(1, 0), groups=2),
        [x, w, b],
    )
    y, v = (
        world.input("transposed1 x", (2, 3, 5)).requires_grad_(),
        world.input("transposed1 w", (3, 2, 4)).requires_grad_(),
    )
    _give(world, "transposed1", F.conv_transpose1d(y, v, stride=2, padding=1, dilation=2), [y, v])
    for dims, modes in (
        (1, ("nearest", "nearest-exact", "linear")),
        (2, ("nearest", "nearest-exact", "bilinear", "bicubic")),
        (3, ("nearest", "nearest-exact", "trilinear")),
    ):
        for mode in modes:
            for options in (
                {"scale_factor": 2.0},
                {"size": (5, 2, 3)[:dims]},
                *(
                    [{"size": (5, 7, 6)[:dims], "align_corners": True}]
                    if "nearest" not in mode
                    else []
                ),
            ):
                name = f"{mode} {dims} {options}"
                x = world.input(f"{name} x", (2, 2, 3, 4, 2)[: 2 + dims]).requires_grad_()
                _give(world, name, F.interpolate(x, mode=mode, **options), [x])
    for name, f in {
        "max_pool": lambda x: F.max_pool2d(x, 2),
        "max_pool_padded": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max_pool_borders": lambda x: F.max_pool2d(x[:, :, :1, :2], 3, 1, 1),
        "avg_pool_padded": lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0)),
        "avg_pool_within": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "reflected": lambda x: F.pad(x, (2, 1, 1, 0), mode="reflect"),
        "diagonal": lambda x: x[..., :5, :].diagonal(1, -2, -1),
        "windows": lambda x: F.unfold(x, (3, 2), padding=1, stride=2),
        "windows_added": lambda x: F.fold(x.flatten(1, 2)[:, :, :4], (3, 3), (2, 2)),
        "places_apart": lambda x: x[torch.tensor([[1], [0]]), :, torch.tensor([0, -1, 2])],
        "places_of_neighbours": lambda x: x[:, torch.tensor([1, 3]), torch.tensor([[0], [5]])],
        "by_masks": lambda x: (
            x[:, torch.tensor([True, False, True, True])]
            + x[0][torch.ones(4, 6).triu(3).bool()].mean()
        ),
        "max_pool_overlapping": lambda x: F.max_pool2d(x, (3, 2), stride=1),
        "avg_pool": lambda x: F.avg_pool2d(x, 2),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1),
        "adaptive_even": lambda x: F.adaptive_avg_pool2d(x, (3, 1)),
        "adaptive_uneven": lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
        "group_norm": lambda x: F.group_norm(x, 2),
        "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    }.items():
        x = world.input(f"{name} x", (2, 4, 6, 5)).requires_grad_()
        _give(world, name, f(x), [x])
    for name, f in {
        "max_pool_ceil": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
        "max_pool_ceil_padded": lambda x: F.max_pool2d(x, (4, 3), (3, 2), 1, ceil_mode=True),
        "max_pool_dilated": lambda x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True),
        "max_pool_whole": lambda x: F.max_pool2d(x, (6, 5)),
        "max_pool3": lambda x: F.max_pool3d(x, 2, (1, 2, 2), (1, 0, 1), ceil_mode=True),
        "max_pool1": lambda x: F.max_pool1d(x[0], 2, 3, 1, ceil_mode=True),
        "avg_pool_ceil": lambda x: F.avg_pool2d(x, (4, 2), (3, 2), (1, 1), ceil_mode=True),
        "avg_pool_ceil_within": lambda x: F.avg_pool2d(
            x, 3, 2, 1, ceil_mode=True, count_include_pad=False
        ),
        "avg_pool_divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
        "avg_pool3": lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        "avg_pool1": lambda x: F.avg_pool1d(x[0], 2, ceil_mode=True),
        "adaptive3": lambda x: F.adaptive_avg_pool3d(x, (2, 3, 5)),
        "adaptive3_uneven": lambda x: F.adaptive_avg_pool3d(x, (3, 4, 2)),
        "adaptive_max": lambda x: F.adaptive_max_pool2d(x, (3, 1)),
        "adaptive_max_uneven": lambda x: F.adaptive_max_pool2d(x, (4, 3)),
        "adaptive_max3": lambda x: F.adaptive_max_pool3d(x, (3, 2, 1)),
        "adaptive_max1": lambda x: F.adaptive_max_pool1d(x[0], 3),
        "lp_pool": lambda x: F.lp_pool2d(x, 3, 2, ceil_mode=True),
        "response": lambda x: F.local_response_norm(x, 3, 0.1),
        "reflected1": lambda x: F.pad(x[0], (4, 2), mode="reflect"),
        "reflected3": lambda x: F.pad(x, (2, 3, 0, 4, 1, 3), mode="reflect"),
        "replicated1": lambda x: F.pad(x[0], (0, 3), mode="replicate"),
        "replicated2": lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"),
        "replicated3": lambda x: F.pad(x, (1, 0, 2, 1, 0, 3), mode="replicate"),
    }.items():
        x = world.input(f"{name} x", (2, 4, 6, 5)).requires_grad_()
        _give(world, name, f(x), [x])
    _sampled(world)


def _sampled(world):
    grid = F.affine_grid(
        torch.tensor(
            [[[0.91, 0.3, 0.1], [-0.2, 0.83, 0.31]], [[1.2, 0.13, 0.0], [0.1, 0.72, -0.4]]]
        ),
        (2, 3, 3, 2),
        align_corners=False,
    )
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (True, False):
                name = f"sampled {mode} {padding} {align}"
                x = world.input(f"{name} x", (2, 3, 4, 5)).requires_grad_()
                _give(world, name, F.grid_sample(x, grid, mode, padding, align), [x])
                if mode != "bicubic" and padding != "reflection":
                    x, places = (
                        world.input(f"{name} by data x", (2, 3, 4, 5)).requires_grad_(),
                        world.input(f"{name} places", (2, 3, 2, 2)).requires_grad_(),
                    )
                    _give(
                        world,
                        f"{name} by data",
                        F.grid_sample(x, places, mode, padding, align),
                        [x, places],
                    )
    for mode in ("bilinear", "bicubic"):
        x = world.input(f"antialiased {mode} x", (2, 2, 6, 5)).requires_grad_()
        _give(
            world, f"antialiased {mode}", F.interpolate(x, (3, 4), mode=mode, antialias=True), [x]
        )


def _weight_norm(world):
    v, gain = (
        world.input("weight norm v", (3, 4)).requires_grad_(),
        world.input("weight norm g", (3, 1)).requires_grad_(),
    )
    _give(world, "weight_norm", torch._weight_norm(v, gain, 0), [v, gain])
    ids, rows = (
        world.input("padded ids", (3, 2), torch.long, high=6),
        world.input("padded rows", (6, 4)).requires_grad_(),
    )
    _give(world, "padded", F.embedding(ids, rows, padding_idx=2), [rows])
    for name, starts, options in (
        ("bags", [0, 2, 4], {"mode": "sum"}),
        ("uneven_bags", [0, 1, 4], {"mode": "mean"}),
        ("weighed_bags", [0, 3, 4], {"mode": "sum", "weighted": True}),
    ):
        ids, rows = (
            world.input(f"{name} ids", (6,), torch.long, high=5),
            world.input(f"{name} rows", (5, 3)).requires_grad_(),
        )
        weights = world.input(f"{name} weights", (6,)) if options.pop("weighted", False) else None
        _give(
            world,
            name,
            F.embedding_bag(ids, rows, torch.tensor(starts), per_sample_weights=weights, **options),
            [rows],
        )
    ids, rows = (
        world.input("frozen bags ids", (6,), torch.long, high=5),
        world.input("frozen bags rows", (5, 3)),
    )
    _give(world, "frozen bags", F.embedding_bag(ids, rows, torch.tensor([0, 3]), mode="sum"), [])
    a, b = world.input("kl a", S).requires_grad_(), world.input("kl b", S).requires_grad_()
    _give(world, "kl", F.kl_div(a, F.softmax(b, -1), reduction="batchmean"), [a, b])


def _inverse(a):
    return torch.linalg.inv_ex(a)[0]  # of what is none yet there is none


OPAQUE = {
    "the inverse of a matrix": _inverse,
    "the determinant": torch.linalg.det,
    "the sign and the logarithm of the determinant": lambda a: tuple(torch.linalg.slogdet(a)),
    "the Cholesky factor of a matrix": lambda a: torch.linalg.cholesky_ex(a)[0],
    **{f"the inverse of the {side} triangle": _inverse for side in ("upper", "lower")},
    **{
        f"the inverse of the {side} triangle, with ones on the diagonal": lambda a: _inverse(
            a + torch.eye(a.shape[-1])
        )
        for side in ("upper", "lower")
    },
    "the LU factors of a matrix": lambda a: torch.linalg.lu_factor_ex(a)[:2],
    "the inverse of the matrix with these LU factors": lambda lu, pivots: torch.linalg.lu_solve(
        lu, pivots.int(), torch.eye(lu.shape[-1], dtype=lu.dtype).expand_as(lu)
    ),
    "the inverse of the matrix with this Cholesky factor": lambda factor: _inverse(
        factor @ factor.mT
    ),
}


def _matrices(world):
    """Factorizations and inverses of matrices in a batch."""
    for name, f in {
        "inverse": lambda m, b: torch.linalg.inv(m),
        "solved": torch.linalg.solve,
        "solved_right": lambda m, b: torch.linalg.solve(m, b.mT, left=False),
        "solved_vectors": lambda m, b: torch.linalg.solve(m, b[..., 0]),
        "solved_shared": lambda m, b: torch.linalg.solve(m[0], b),
        "determinant": lambda m, b: torch.linalg.det(m),
        "logarithm": lambda m, b: torch.linalg.slogdet(m).logabsdet,
        "cholesky": lambda m, b: torch.linalg.cholesky(m @ m.mT),
        "upper": lambda m, b: torch.linalg.solve_triangular(m, b, upper=True),
        "unit": lambda m, b: torch.linalg.solve_triangular(
            m, b.mT, upper=False, left=False, unitriangular=True
        ),
        "factored": lambda m, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(m.detach()), b),
        "by_cholesky": lambda m, b: torch.cholesky_solve(b, torch.linalg.cholesky(m @ m.mT)),
        "inverse_by_cholesky": lambda m, b: torch.cholesky_inverse(torch.linalg.cholesky(m @ m.mT)),
    }.items():
        m, b = (
            world.input(f"{name} m", (2, 3, 3)).requires_grad_(),
            world.input(f"{name} b", (2, 3, 2)).requires_grad_(),
        )
        _give(world, name, f(m + 3 * torch.eye(3), b), [m, b])


def _choices(world):
    """Values and positions of what is chosen from rows, and writes there."""
    for name, f in {
        "topk": lambda x: x.topk(2, dim=1),
        "smallest": lambda x: x.topk(2, dim=0, largest=False),
        "sort": lambda x: torch.sort(x, 1),
        "sort_down": lambda x: torch.sort(x, dim=0, descending=True),
        "kthvalue": lambda x: x.kthvalue(2, 0),
        "median": lambda x: x.median(1),
        "nanmedian": lambda x: x.nanmedian(0, keepdim=True),
        "cummax": lambda x: x.cummax(1),
        "cummin": lambda x: x.cummin(0),
        "max_of_dim": lambda x: x.max(1),
        "min_of_dim": lambda x: x.min(0, keepdim=True),
    }.items():
        x = world.input(f"{name} x", S).requires_grad_()
        values, indices = f(x)
        _give(world, name, values, [x])
        world.output(f"{name} hot", F.one_hot(indices, 4).to(x.dtype), mean=())
    for name, f in {
        "spread": lambda x, w, i: torch.zeros_like(x).scatter(1, i, w * 2),
        "spread_added": lambda x, w, i: (x * 3).scatter_add(1, i, w),
        "gathered": lambda x, w, i: (x * x).gather(1, i),
    }.items():
        x = world.input(f"{name} x", S).requires_grad_()
        _give(world, name, f(x, *x.softmax(-1).topk(2)), [x])
    x = world.input("median_of_all x", (5,)).requires_grad_()
    _give(world, "median_of_all", x.median(), [x])
    x = world.input("added_in_place x", S).requires_grad_()
    rows = x.softmax(-1)
    rows = (rows * 1).scatter_add_(
        -1, world.input("added_in_place i", (S[0], 1), torch.long, high=4), rows[:, :1] * 3
    )
    _give(world, "added_in_place", rows, [x])
    labels = world.input("places of classes", (S[0],), torch.long, high=S[1])
    for name, f in {
        "last": lambda x, i: x[torch.arange(3), i],
        "last_vectors": lambda x, i: x.reshape(3, 4, 1)[torch.arange(3), i] * torch.ones(2),
        "turned": lambda x, i: x.reshape(3, 4, 1)[torch.arange(3), (i + 1) % 4],
        "moved": lambda x, i: (x * 2).scatter_reduce(1, i[:, None], x[:, :1] * x[:, :1], "amax"),
        "moved_sum": lambda x, i: (x * 2).scatter_reduce(1, i[:, None], x[:, :1], "sum"),
        "put_there": lambda x, i: (x * 2).index_put((torch.arange(3), i), x[:, 0] * x[:, 1]),
        "added_rows": lambda x, i: x.new_zeros(4, 4).index_add(0, i, x * x),
        "added_columns": lambda x, i: x.index_add(1, i, x[:, :3] * 2),
        "not_class": lambda x, i: x * (i[:, None] != torch.tensor([0, 3, 2, 1])),
        "below": lambda x, i: x * (torch.tensor([1, 3, 2, 1]) > i[:, None]),
        "margins": lambda x, i: F.multi_margin_loss(x, i, margin=0.7),
        "margins2": lambda x, i: F.multi_margin_loss(
            x, i, p=2, weight=torch.tensor([0.5, 1.0, 2.0, 1.5]), reduction="none"
        ),
        "bounded": lambda x, i: F.embedding(i, x.repeat(2, 1)[:4] * 1, max_norm=0.8).detach(),
    }.items():
        x = world.input(f"{name} x", S).requires_grad_()
        _give(world, name, f(x, labels), [x])
    x = world.input("counted among x", S).requires_grad_()
    places = torch.bucketize(x.detach(), torch.tensor([-0.5, 0.1, 0.9]))
    _give(
        world,
        "counted_among",
        x * places
        + F.embedding(places, x.T).sum(-1)
        + F.one_hot(torch.searchsorted(torch.tensor([0.0, 0.3]), x.detach()), 3)
        .to(x.dtype)
        .sum(-1),
        [x],
    )
    labels = world.input("added_to_classes i", (S[0],), torch.long, high=S[0])
    x = world.input("added_to_classes x", S).requires_grad_()
    outside = labels < 1
    out = (x * 1).scatter_add(
        -1, labels.masked_fill(outside, 0)[:, None], (outside.to(x.dtype) - 1.0)[:, None]
    )
    rows = F.embedding((labels - 1).masked_fill(outside, 0), x) * (~outside)[..., None]
    _give(world, "added_to_classes", torch.cat([out, rows]), [x])
    world.output(
        "argmax",
        F.one_hot(x.detach().argmax(1), 4).to(x.dtype)
        + F.one_hot(x.detach().argmin(1), 4).to(x.dtype),
        mean=(),
    )


def _masks(world):
    """Scores with minus infinities, and labels that do not count."""
    tokens = world.input("mask tokens", (2, 5), torch.long, high=7)
    pad = tokens != 3
    causal = torch.ones(5, 5).tril().bool()
    window = causal & ~torch.ones(5, 5).tril(-3).bool()
    for name, mask in {
        "sdpa_pad": pad[:, None, None, :],
        "sdpa_pad_causal": pad[:, None, None, :] & causal | torch.eye(5).bool(),
        "sdpa_window": window,
        "sdpa_bias": torch.zeros(5, 5).masked_fill(~window, -math.inf) + torch.eye(5),
    }.items():
        out, given = _attention(world, name, attn_mask=mask)
        _give(world, name, out, given)
    x = world.input("hand scores", (2, 5, 5)).requires_grad_()
    _give(world, "hand", F.softmax(x.masked_fill(~pad[:, None, :], -math.inf) * 0.5, -1), [x])
    labels = world.input("ignored labels", (2, 5), torch.long, high=7)
    weight = torch.linspace(0.5, 1.5, 7)
    for name, given, options in (
        ("ignored", labels, {"ignore_index": 2}),
        ("ignored_sum", labels, {"ignore_index": 2, "reduction": "sum"}),
        ("ignored_none", labels, {"ignore_index": 2, "reduction": "none"}),
        ("ignored_smooth", labels, {"ignore_index": 2, "label_smoothing": 0.1}),
        ("ignored_weights", labels, {"ignore_index": 2, "weight": weight}),
        ("replaced", labels.masked_fill(labels == 4, -100), {}),
        ("prompt", labels.masked_fill(~pad, -100), {}),
        ("prompt_where", torch.where(pad, labels, -100), {"weight": weight}),
    ):
        x = world.input(f"{name} logits", (10, 7)).requires_grad_()
        _give(world, name, F.cross_entropy(x, given.flatten(), **options), [x])
    world.output(
        "counted",
        (torch.where(pad, labels, -100) != -100).sum().to(x.dtype) + x.detach().sum(),
        mean=(),
    )
    _integers(world)


def _integers(world):
    t = world.input("bits", (2, 5), torch.long, high=7)
    for name, of in {
        "and": lambda: t & 5,
        "or": lambda: t | 2,
        "xor": lambda: t ^ 3,
        "not": lambda: ~t,
        "left": lambda: t << 2,
        "right": lambda: t >> 1,
        "remainder": lambda: (t - 3) % 4,
        "fmod": lambda: torch.fmod(t - 3, 4),
        "quotient": lambda: (t - 3) // 2,
        "truncated": lambda: torch.div(t - 3, 2, rounding_mode="trunc"),
        "floored": lambda: torch.div(t - 3, 2, rounding_mode="floor"),
        "either": lambda: (t > 2) ^ (t < 5),
    }.items():
        world.output(f"bits {name}", of().float(), mean=())
    _computed_integers(world, t)
    x = world.input("points", (2, 7, 5)).requires_grad_()
    _give(
        world,
        "points",
        F.cross_entropy(x, t, ignore_index=2, weight=torch.linspace(0.5, 1.5, 7)),
        [x],
    )
    y = world.input("images", (2, 7, 5, 3)).requires_grad_()
    _give(
        world,
        "images",
        F.cross_entropy(
            y, world.input("of images", (2, 5, 3), torch.long, high=7), reduction="none"
        ),
        [y],
    )


def _computed_integers(world, t):
    """Integers of several inputs, and as indices."""
    u = world.input("other bits", (2, 5), torch.long, high=4)
    kept = t > 2
    counted = kept.long().cumsum(-1) * kept  # 0 up to 5
    masked = t.masked_fill(~kept, 1).masked_fill(u == 3, 0)
    r = world.input("to be cut off", (2, 5))
    numbers = {
        "sum": t + u,
        "difference": t - u,
        "product": t * u,
        "square": t.square(),
        "negative": -t * 2,
        "total": t.sum(-1),
        "largest": torch.maximum(t, u),
        "running": t.cumsum(-1),
        "ordered": (t < u).long() + 2 * (t == u) + 4 * (t >= u + 1),
        "with mask": t * kept,
        "with constants": t + torch.arange(5),
        "masked": masked,
        "masked more": masked + 2,
        "masked bounds": t.masked_fill(~kept, -100).clamp(min=0),
        "masked both": masked * u,
        "masked below": (masked < 2).long(),
        "cut off": (r * 3).long(),
        "cut off sum": (r * 3).sum(-1, dtype=torch.int32),
        "chosen": torch.where(kept, t, u),
        "counted": counted,
    }
    for name, of in numbers.items():
        world.output(f"integers {name}", of.to(r.dtype), mean=())
    indices = {
        "counted": counted,
        "masked": masked,
        "masked twice": masked.masked_fill(u == 0, 5),
        "sum": (t + u).clamp(max=6),
        "chosen": torch.where(kept, t, u),
    }
    for name, at in indices.items():
        rows = world.input(f"rows of {name}", (7, 3)).requires_grad_()
        _give(world, f"rows {name}", F.embedding(at, rows), [rows])
        _give(world, f"padded {name}", F.embedding(at, rows, padding_idx=1), [rows])
        if at is not masked and "masked" not in name:
            world.output(f"hot {name}", F.one_hot(at, 7).to(r.dtype), mean=())
            _give(world, f"columns {name}", rows.T.index_select(1, at.flatten()), [rows])
            _give(world, f"gathered {name}", rows.T[:2].gather(1, at), [rows])


def _unscaled(x):
    """What a gradient scaler does."""
    scale, tracker, found, y = (
        torch.tensor(8.0),
        torch.tensor(1, dtype=torch.int32),
        torch.tensor(0.0),
        x.detach().clone(),
    )
    A._amp_foreach_non_finite_check_and_unscale_([y], found, torch.tensor(0.125))
    A._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)
    return y * scale + found


# 0 everywhere; of the last ATen takes logarithms of numbers below all of double precision.
WITHOUT_GRADIENT: set = {
    "floor",
    "ceil",
    "round",
    "trunc",
    "logcumsumexp",
}


def _give(world, name, out, given):
    world.output(f"{name} out", out.detach(), mean=())
    if out.requires_grad and name not in WITHOUT_GRADIENT:
        cotangent = (
            torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape).add(1).div(out.numel())
        )
        for i, grad in enumerate(torch.autograd.grad(out, given, cotangent, allow_unused=True)):
            if grad is not None:
                world.output(f"{name} grad {i}", grad, mean=())


class Operators(unittest.TestCase):
    def test_values(self):
        reached = set()
        compared = sum(self._compared(step, reached) for step in (of_reals, of_integers))
        self.assertEqual([], [n for n, f in table.LOWERINGS.items() if f not in reached])
        self.assertGreater(compared, 200)

    def _compared(self, step, reached):
        """How many results of the step were compared. reached: gets the lowerings."""
        wanted = numeric.run(step, {"one": 1})
        original = table.lookup

        def lookup(name, overload):
            found = original(name, overload)
            reached.add(getattr(found, "__wrapped__", found))
            return found

        highs = {}
        given = World.input

        def remember(world, name, *args, **options):
            highs[name] = options.get("high")
            return given(world, name, *args, **options)

        opaque = []
        called = Calls.call

        def call(calls, function, name, path, operands, *rest):
            results = called(calls, function, name, path, operands, *rest)
            opaque.append(
                (function, results[0].name[1:].rsplit(".", 1)[0], [v.name for v in results])
            )
            return results

        with (
            mock.patch.object(table, "lookup", lookup),
            mock.patch.object(World, "input", remember),
            mock.patch.object(Calls, "call", call),
        ):
            captured = capture(step, mesh={"one": 1})
        inputs = {name: data.double().numpy() for name, data in captured.constants.items()}
        for name, tensor in captured.model["tensors"].items():
            if tensor.get("kind") == "input" and not name.startswith("%"):
                integer = "dtype" in tensor
                inputs[name] = numeric.draw(
                    "input " + name,
                    tensor["shape"],
                    torch.long if integer else torch.float32,
                    highs[name],
                ).numpy()
        outputs = {e["tensor"]: e for e in captured.plan["lineage"] if e["role"] == "output"}
        with tempfile.TemporaryDirectory() as folder:
            _, plan = captured.write(pathlib.Path(folder) / "cases")
            results = {name for _, _, names in opaque for name in names} & set(
                captured.model["tensors"]
            )
            inputs.update(
                {name: numpy.ones(captured.model["tensors"][name]["shape"]) for name in results}
            )
            for _ in range(3):
                # Results of opaque functions, whose arguments may be results of others.
                numpy.savez(f"{folder}/in.npz", **inputs)
                done = subprocess.run(
                    [
                        find_program(),
                        "run",
                        "-p",
                        str(plan),
                        "--inputs",
                        f"{folder}/in.npz",
                        "--outputs",
                        f"{folder}/out.npz",
                    ],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                self.assertIn(done.returncode, (0, 5), done.stdout + done.stderr)
                values = numpy.load(f"{folder}/out.npz")
                for function, label, names in opaque:
                    if not results.isdisjoint(names):
                        arguments = [
                            torch.from_numpy(values[f"model/{captured.names[a]}"])
                            for a in captured.names
                            if a.startswith("argument ") and a.endswith(f" of {label}")
                        ]
                        made = OPAQUE[function](*arguments)
                        inputs.update(
                            (name, v.numpy())
                            for name, v in zip(
                                names, made if isinstance(made, tuple) else [made], strict=True
                            )
                            if name in results
                        )
            self.assertEqual(len(outputs), len(set(captured.model["outputs"])))
            compared = 0
            for label, tensor in wanted.items():
                name = label.removeprefix(numeric.IF_ALL)
                with self.subTest(name):
                    key = f"model/{captured.names[name]}"
                    self.assertIn(key, values.files)
                    self.assertEqual(tuple(values[key].shape), tuple(tensor.shape))
                    numpy.testing.assert_allclose(
                        values[key], tensor.double().numpy(), rtol=2e-4, atol=2e-5
                    )
                    compared += 1
        return compared


if __name__ == "__main__":
    unittest.main()
