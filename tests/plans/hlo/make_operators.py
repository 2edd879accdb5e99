#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes operators.json.gz with jax.

It has small programs, inputs, and what jax computes from them. ../hlo_operators.py reads it.
"""

import glob
import gzip
import json
import os
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_hlo_source_file_canonicalization_regex", "^.*/")
HERE = os.path.dirname(os.path.abspath(__file__))
RANDOM = np.random.default_rng(5)


def reals(*shape, low=-2.0, high=2.0):
    return np.round(RANDOM.uniform(low, high, shape), 3)


def positive(*shape):
    return reals(*shape, low=0.25, high=3.0)


def integers(n, *shape):
    return RANDOM.integers(0, n, shape).astype(np.int32)


def grad(f, argument=0):
    return jax.grad(
        lambda *x: (f(*x) * jnp.arange(1.0, 1 + f(*x).size).reshape(f(*x).shape)).sum(), argument
    )


A = (reals(3, 4),)
AB = (reals(3, 4), reals(3, 4))
ROWS = (reals(5, 3), integers(5, 2, 4))
CASES = {
    "add": (lambda x, y: x + y, AB),
    "subtract": (lambda x, y: x - y, AB),
    "multiply": (lambda x, y: x * y, AB),
    "divide": (lambda x, y: x / y, (reals(3, 4), positive(3, 4))),
    "negate": (lambda x: -x, A),
    "arithmetic with numbers": (lambda x: 3 - 2 * x / 7 + 1 / (x * x + 1), A),
    "exponential": (jnp.exp, A),
    "log": (jnp.log, (positive(3, 4),)),
    "sqrt": (jnp.sqrt, (positive(3, 4),)),
    "rsqrt": (lax.rsqrt, (positive(3, 4),)),
    "tanh": (jnp.tanh, A),
    "logistic": (jax.nn.sigmoid, A),
    "exponential minus one": (jnp.expm1, A),
    "log of one plus": (jnp.log1p, (positive(3, 4),)),
    "abs": (jnp.abs, A),
    "sign": (jnp.sign, A),
    "maximum": (jnp.maximum, AB),
    "minimum": (jnp.minimum, AB),
    "relu": (jax.nn.relu, A),
    "gelu": (jax.nn.gelu, A),
    "silu": (jax.nn.silu, A),
    "clamp": (lambda x: jnp.clip(x, -0.5, 0.75), A),
    "power": (lambda x: x**3 + x**-2.0, (positive(3, 4),)),
    "power of a number": (lambda x: 0.9**x, A),
    "half power": (lambda x: x**1.5, (positive(3, 4),)),
    "compare": (
        lambda x, y: jnp.stack([x < y, x <= y, x > y, x >= y, x == y, x != y]).astype(float),
        AB,
    ),
    "compare with itself": (lambda x: jnp.stack([x < x, x <= x, x == x]).astype(float), A),
    "and, or, not, xor": (
        lambda x, y: jnp.stack(
            [(x > 0) & (y > 0), (x > 0) | (y > 0), ~(x > 0), (x > 0) ^ (y > 0)]
        ).astype(float),
        AB,
    ),
    "select": (lambda x, y: jnp.where(x > y, x * y, x - y), AB),
    "is finite": (lambda x: jnp.isfinite(x).astype(float), A),
    "any, all": (lambda x: jnp.stack([(x > 0).any(0), (x > -1.5).all(0)]).astype(float), A),
    "sum": (lambda x: x.sum(1) + 2, A),
    "mean, var": (lambda x: x.var(0), A),
    "max, min": (lambda x: x.max(0) - x.min(0), A),
    "max of all": (jnp.max, A),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), A),
    "softmax": (lambda x: jax.nn.softmax(x, 0), A),
    "softmax, gradient": (grad(lambda x: jax.nn.softmax(x, 1)), A),
    "log_softmax, gradient": (grad(jax.nn.log_softmax), A),
    "relu, gradient": (grad(jax.nn.relu), A),
    "gelu, gradient": (grad(jax.nn.gelu), A),
    "abs, gradient": (grad(jnp.abs), A),
    "max, gradient": (grad(lambda x: x.max(1)), A),
    "clip, gradient": (grad(lambda x: jnp.clip(x, -1, 1)), A),
    "dot": (lambda x, y: x @ y, (reals(3, 4), reals(4, 5))),
    "outer": (jnp.outer, (reals(3), reals(4))),
    "dot of vectors": (jnp.dot, (reals(4), reals(4))),
    "batches": (
        lambda x, y: jnp.einsum("bijk,bkjl->bjil", x, y),
        (reals(2, 3, 4, 5), reals(2, 5, 4, 3)),
    ),
    "dot with numbers": (lambda x: x @ np.arange(8.0).reshape(4, 2), A),
    "dot_general": (
        lambda x, y: lax.dot_general(x, y, (((2, 0), (1, 2)), ((1,), (0,)))),
        (reals(2, 3, 4), reals(3, 4, 2)),
    ),
    "transpose": (lambda x: x.transpose(2, 0, 1), (reals(2, 3, 4),)),
    "reshape": (lambda x: x.reshape(4, 6), (reals(2, 3, 4),)),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None, :], (3, 5, 4)), A),
    "broadcast in dim": (lambda x: lax.broadcast_in_dim(x, (4, 2, 3), (2, 0)), A),
    "slice": (lambda x: x[1:, 0:4:2], A),
    "slice with steps": (lambda x: x[::2, 1::2], A),
    "index": (lambda x: x[2] - x[-1], A),
    "reverse": (lambda x: x[::-1, ::-1], A),
    "concatenate": (lambda x, y: jnp.concatenate([x, y, x], 1), AB),
    "stack": (lambda x, y: jnp.stack([x, y], 1), AB),
    "roll": (lambda x: jnp.roll(x, 1, 1), A),
    "pad": (lambda x: jnp.pad(x, ((1, 0), (2, 3))), A),
    "pad with numbers": (lambda x: lax.pad(x, 1.5, ((1, 2, 0), (0, 1, 0))), A),
    "pad inside": (lambda x: lax.pad(x, 0.0, ((0, 1, 1), (-1, 2, 2))), A),
    "pad inside with numbers": (lambda x: lax.pad(x, 2.5, ((0, -1, 1), (0, 0, 2))), A),
    "dynamic slice": (
        lambda x: lax.dynamic_slice(x, (1, 2), (2, 2)) + lax.dynamic_slice(x, (5, -1), (2, 2)),
        A,
    ),
    "dynamic update slice": (lambda x, y: lax.dynamic_update_slice(x, y[:2, :2], (1, 1)), AB),
    "update": (lambda x, y: x.at[1:3, 0:2].set(y[:2, :2]), AB),
    "iota": (lambda x: x * jnp.arange(4) + jnp.arange(3)[:, None], A),
    "eye": (lambda x: x + jnp.eye(3, 4) - jnp.tri(3, 4), A),
    "linspace": (lambda x: x * np.linspace(0, 1, 4), A),
    "causal mask": (
        lambda x: jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((4, 4), bool)), x, -jnp.inf), -1),
        (reals(4, 4),),
    ),
    "one hot": (lambda i: jax.nn.one_hot(i, 5), (integers(5, 2, 3),)),
    "one hot along another axis": (lambda i: jax.nn.one_hot(i, 5, axis=0), (integers(5, 2, 3),)),
    "embedding": (lambda w, i: w[i], ROWS),
    "take": (lambda w, i: jnp.take(w, i, axis=0), ROWS),
    "take along another axis": (lambda w, i: jnp.take(w, i, axis=1), (reals(3, 5), integers(5, 2))),
    "take, clipped": (lambda w, i: jnp.take(w, i - 2, axis=0, mode="clip"), ROWS),
    "embedding, gradient": (lambda w, i: grad(lambda v: v[i])(w), ROWS),
    "take along axis": (
        lambda x, i: jnp.take_along_axis(x, i[:, None], 1),
        (reals(3, 5), integers(5, 3)),
    ),
    "take along axis, gradient": (
        lambda x, i: grad(lambda v: jnp.take_along_axis(v, i[:, None], 1))(x),
        (reals(3, 5), integers(5, 3)),
    ),
    "cross entropy": (
        lambda x, i: -jnp.take_along_axis(jax.nn.log_softmax(x), i[:, None], 1).mean(),
        (reals(3, 5), integers(5, 3)),
    ),
    "known rows": (lambda w: w[np.array([[3, 1], [0, 3]])], (reals(5, 3),)),
    "scatter add": (lambda x, i: jnp.zeros((5, 2)).at[i].add(x), (reals(4, 2), integers(5, 4))),
    "scatter add to something": (
        lambda x, i, y: y.at[i].add(x),
        (reals(4, 2), integers(5, 4), reals(5, 2)),
    ),
    "integers as numbers": (lambda i: i * 2.5 + i**2, (integers(5, 3, 4),)),
    "integers, as numbers of a table": (lambda i: jnp.where(i > 2, i, -i), (integers(5, 3, 4),)),
    "comparison of integers": (
        lambda i, j: (i < j).astype(float),
        (integers(5, 3, 4), integers(5, 3, 4)),
    ),
    "integer arithmetic": (lambda x: x * ((jnp.arange(4) * 7 - 9) // 4 + jnp.arange(4) % 3), A),
    "scan": (lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c), jnp.zeros(4), x)[1], A),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: c + x[i] * i, jnp.zeros(4)), A),
    "condition": (lambda x: lax.cond(np.int32(1) > 0, lambda v: v * 2, lambda v: v - 1, x), A),
    "remat, gradient": (grad(jax.checkpoint(lambda x: jnp.tanh(jnp.tanh(x) * x))), A),
    "layer norm": (
        lambda x, g: (
            (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * g
        ),
        (reals(3, 4), reals(4)),
    ),
    "bfloat16 and back": (lambda x: (x.astype(jnp.bfloat16).astype(jnp.float64) - x) * 0 + x, A),
    "tuple": (lambda x, y: (x, y, x + y), AB),
}


LOGITS = reals(3, 5)
CASES |= {
    "sine, cosine": (lambda x: jnp.sin(x) + jnp.cos(2 * x), A),
    "tangent": (jnp.tan, A),
    "floor, ceil, round": (lambda x: jnp.floor(x) + 10 * jnp.ceil(x) + 100 * jnp.round(x), A),
    "round away from zero": (lambda x: lax.round(2 * x, lax.RoundingMethod.AWAY_FROM_ZERO), A),
    "cut off": (lambda x: (x * 3).astype(int) * 2.5, A),
    "sort": (lambda x: jnp.sort(x, 0), (LOGITS,)),
    "sort, descending": (lambda x: jnp.sort(x, descending=True), (LOGITS,)),
    "argsort": (lambda x: jnp.argsort(x, 0).astype(float), (LOGITS,)),
    "sort by another": (lambda x, y: lax.sort((x, y), num_keys=1)[1], (LOGITS, reals(3, 5))),
    "take in order": (
        lambda x, y: jnp.take_along_axis(y, jnp.argsort(-x), 1),
        (LOGITS, reals(3, 5)),
    ),
    "top k": (
        lambda x: jnp.concatenate([lax.top_k(x, 2)[0], lax.top_k(x, 2)[1].astype(float)], 1),
        (LOGITS,),
    ),
    "top k, gradient": (grad(lambda x: lax.top_k(x, 2)[0]), (LOGITS,)),
    "place of the greatest": (lambda x: jnp.argmax(x, 1).astype(float), (LOGITS,)),
    "place of the least": (lambda x: jax.nn.one_hot(jnp.argmin(x, 0), 3), (LOGITS,)),
    "order of equal ones": (
        lambda x: jnp.stack([jnp.argsort(x), lax.top_k(x, 5)[1]]).astype(float),
        (integers(2, 5) * 1.0,),
    ),
    "branch by the input": (
        lambda x: lax.cond(x[0, 0] > 0, lambda v: v * 2, lambda v: v - 1, x),
        A,
    ),
    "one of three branches": (
        lambda i, x: lax.switch(i, [lambda v: v, lambda v: 2 * v, lambda v: v * v], x),
        (integers(3), reals(3, 4)),
    ),
    "slice at an input": (
        lambda x, i: lax.dynamic_slice(x, (i, np.int32(1)), (1, 2)),
        (LOGITS, integers(3)),
    ),
    "wide slice at an input": (
        lambda x, i: lax.dynamic_slice(x, (np.int32(0), i), (3, 2)),
        (LOGITS, integers(4)),
    ),
    "update at an input": (
        lambda x, y, i: lax.dynamic_update_slice(x, y, (np.int32(1), i)),
        (LOGITS, reals(1, 1), integers(5)),
    ),
    "wide update at an input": (
        lambda x, y, i: lax.dynamic_update_slice(x, y, (np.int32(0), i)),
        (LOGITS, reals(3, 2), integers(4)),
    ),
    "set at an input": (lambda x, y, i: x.at[i].set(y), (LOGITS, reals(5), integers(3))),
    "rows and columns": (lambda x, i: x[jnp.arange(3), i], (LOGITS, integers(5, 3))),
    "rows and columns, gradient": (
        lambda x, i: grad(lambda v: v[jnp.arange(3), i])(x),
        (LOGITS, integers(5, 3)),
    ),
    "two coordinates": (lambda x, i, j: x[i, j], (LOGITS, integers(3, 4), integers(5, 4))),
    "two coordinates, added": (
        lambda x, i, j: x.at[i, j].add(2.0),
        (LOGITS, integers(3, 4), integers(5, 4)),
    ),
    "computed places": (lambda x: x[:, jnp.argmax(x, 1)], (LOGITS,)),
    "dispatch by place": (
        lambda x: jax.nn.one_hot((jnp.cumsum((x > 0).astype(float), 1)).astype(int), 6),
        (LOGITS,),
    ),
}


def conv(x, k, strides=(1, 1), padding="SAME", layout=("NHWC", "HWIO", "NHWC"), **options):
    return lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=layout, **options)


def pool(
    x, first, operation, window=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="VALID", **options
):
    return lax.reduce_window(x, first, operation, window, strides, padding, **options)


KEY = np.array([(64 + e + 1) * 2654435761 & 0xFFFFFFFF for e in range(2)], np.uint32)
IMAGE, KERNEL = reals(2, 5, 4, 3), reals(3, 2, 3, 4)
CASES |= {
    "convolution": (conv, (IMAGE, KERNEL)),
    "convolution with steps": (lambda x, k: conv(x, k, (2, 1), ((1, 2), (0, 1))), (IMAGE, KERNEL)),
    "convolution, gradients": (
        lambda x, k: jax.grad(lambda a, b: (conv(a, b, (2, 2)) ** 2).sum(), (0, 1))(x, k),
        (IMAGE, KERNEL),
    ),
    "convolution, channels first": (
        lambda x, k: conv(x, k, layout=("NCHW", "OIHW", "NCHW")),
        (reals(2, 3, 5, 4), reals(4, 3, 2, 3)),
    ),
    "convolution with gaps": (
        lambda x, k: conv(x, k, padding=((0, 1), (1, 0)), rhs_dilation=(2, 1), lhs_dilation=(1, 2)),
        (IMAGE, KERNEL),
    ),
    "convolution in groups": (
        lambda x, k: conv(x, k, feature_group_count=2),
        (reals(2, 4, 4, 4), reals(3, 3, 2, 6)),
    ),
    "convolution in groups, gradients": (
        lambda x, k: jax.grad(lambda a, b: (conv(a, b, feature_group_count=2) ** 2).sum(), (0, 1))(
            x, k
        ),
        (reals(2, 4, 4, 4), reals(3, 3, 2, 6)),
    ),
    "convolution of batches in groups": (
        lambda x, k: conv(x, k, batch_group_count=2),
        (reals(4, 4, 4, 3), reals(3, 3, 3, 4)),
    ),
    "convolution that cuts off": (
        lambda x, k: conv(x, k, (1, 1), ((-1, 0), (1, -1))),
        (IMAGE, KERNEL),
    ),
    "convolution of a sequence, causal": (
        lambda x, k: lax.conv_general_dilated(
            x, k, (1,), ((2, 0),), dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=4
        ),
        (reals(2, 6, 4), reals(3, 1, 4)),
    ),
    "convolution of a whole image": (
        lambda x, k: conv(x, k, padding="VALID"),
        (IMAGE, reals(5, 4, 3, 2)),
    ),
    "average pooling": (lambda x: pool(x, 0.0, lax.add), (IMAGE,)),
    "average pooling, gradient": (
        lambda x: jax.grad(lambda a: (pool(a, 0.0, lax.add, padding="SAME") ** 2).sum())(x),
        (IMAGE,),
    ),
    "max pooling": (
        lambda x: pool(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 1, 1), "SAME"),
        (IMAGE,),
    ),
    "min pooling with gaps": (
        lambda x: pool(
            x, jnp.inf, lax.min, (1, 2, 2, 1), (1, 1, 1, 1), window_dilation=(1, 2, 1, 1)
        ),
        (IMAGE,),
    ),
    "random normal": (lambda x: x + jax.random.normal(jax.random.key(1), x.shape, "float64"), A),
    "random uniform": (
        lambda x: x * jax.random.uniform(jax.random.key(5), x.shape, "float32", -2, 3),
        A,
    ),
    "dropout": (
        lambda x: jnp.where(jax.random.bernoulli(jax.random.key(2), 0.75, x.shape), x / 0.75, 0),
        A,
    ),
    # The key at which differences are looked for, and which the executor has.
    "dropout by a key": (
        lambda x, k: jnp.where(jax.random.bernoulli(k, 0.75, x.shape), x / 0.75, 0),
        (reals(3, 4), KEY),
    ),
    "random normal by a key": (
        lambda x, k: x + jax.random.normal(jax.random.split(k)[1], x.shape, "float64"),
        (reals(3, 4), KEY),
    ),
    "cumulative sum": (lambda x: jnp.cumsum(x, 1), A),
    "cumulative sum backward": (lambda x: lax.cumsum(x, 0, reverse=True), A),
    "cumulative maximum": (lambda x: lax.cummax(x, 1), A),
    "cumulative sum of a table": (lambda x: x * np.arange(4).cumsum(), A),
}


def triangle(rows, columns, k, inside, outside, upper=False, turned=False):
    """x with one number, or another one, added below a diagonal."""
    i, j = jnp.arange(rows)[:, None], jnp.arange(columns)[None]
    where = (j > i + k) if upper else (j <= i + k) if not turned else (i + k >= j)
    return lambda x: jnp.exp(x + jnp.where(where, inside, outside))


for shift in (-3, -1, 0, 1, 2):
    for sizes in ((6, 6), (4, 7), (7, 4)):
        name = f"mask {sizes[0]}x{sizes[1]} by {shift}"
        CASES[name] = (triangle(*sizes, shift, 0.0, -jnp.inf), (reals(*sizes),))
        CASES[name + ", above"] = (
            triangle(*sizes, shift, 0.5, -jnp.inf, upper=True),
            (reals(*sizes),),
        )
        CASES[name + ", two numbers"] = (
            triangle(*sizes, shift, 1.5, -0.25, turned=True),
            (reals(*sizes),),
        )
# Of so many numbers that they are not listed.
LONG, FEW = 160, (reals(160),)
CASES |= {
    f"large mask by {k}, {kind}": (
        lambda x, k=k, kind=kind: jnp.where(
            jnp.tril(jnp.ones((LONG, LONG), bool), k) ^ (kind == "above"),
            x[:, None] * x[None],
            {"below": 0.0, "above": 2.0}[kind],
        ).sum(1),
        FEW,
    )
    for k in (-2, -1, 0, 3)
    for kind in ("below", "above")
}
CASES |= {
    "large mask of a softmax": (
        lambda x: (
            jax.nn.softmax(
                jnp.where(jnp.tril(jnp.ones((LONG, LONG), bool)), x[:, None] * x[None], -jnp.inf),
                -1,
            )
            @ x
        ),
        FEW,
    ),
    "large band": (
        lambda x: jnp.where(
            (jnp.arange(LONG)[None] <= jnp.arange(LONG)[:, None])
            & (jnp.arange(LONG)[None] > jnp.arange(LONG)[:, None] - 5),
            x[:, None] * x[None],
            0.0,
        ).sum(1),
        FEW,
    ),
    "large band of minus infinity": (
        lambda x: (
            jax.nn.softmax(
                jnp.where(
                    abs(jnp.arange(LONG)[None] - jnp.arange(LONG)[:, None]) < 3,
                    x[:, None] * x[None],
                    -jnp.inf,
                ),
                -1,
            )
            @ x
        ),
        FEW,
    ),
    "large angles": (
        lambda x: (
            jnp.cos(jnp.arange(LONG)[:, None] * 10.0 ** (-jnp.arange(110) / 110.0)) * x[:, None]
        ).sum(1),
        FEW,
    ),
    "large angles, pieces": (
        lambda x: (
            jnp.sin(jnp.arange(LONG)[:, None] * 10.0 ** (-jnp.arange(110) / 110.0))[20:150].T
            @ x[20:150]
        ),
        FEW,
    ),
    "large distances": (
        lambda x: (x[:, None] * (jnp.arange(LONG)[None] - jnp.arange(LONG)[:, None])).sum(0),
        FEW,
    ),
    "max pooling, gradient": (
        lambda x: jax.grad(lambda a: (pool(a, -jnp.inf, lax.max) ** 2).sum())(x),
        (IMAGE,),
    ),
    "max pooling that overlaps, gradient": (
        lambda x: jax.grad(
            lambda a: (pool(a, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 1, 1, 1)) ** 2).sum()
        )(x),
        (IMAGE,),
    ),
    "min pooling, gradient": (
        lambda x: jax.grad(lambda a: (pool(a, jnp.inf, lax.min) ** 2).sum())(x),
        (IMAGE,),
    ),
}


SIGNALS = (reals(3, 8),)
TWO_SIGNALS = (reals(2, 6), reals(2, 6))


def parts(z):
    return z.real, z.imag


def spectrum(x, y):
    return jnp.fft.fft(x + 1j * y)


UPDATES = (reals(5, 3), integers(7, 6) - 1, reals(6, 3))
CASES |= {
    "Fourier transform": (lambda x, y: parts(spectrum(x, y)), TWO_SIGNALS),
    "inverse Fourier transform": (lambda x, y: parts(jnp.fft.ifft(x + 1j * y)), TWO_SIGNALS),
    "Fourier transform of reals": (lambda x: parts(jnp.fft.rfft(x)), SIGNALS),
    "Fourier transform of an odd length": (lambda x: parts(jnp.fft.rfft(x[:, :7])), SIGNALS),
    "inverse Fourier transform to reals": (
        lambda x, y: jnp.fft.irfft(x + 1j * y, n=10),
        TWO_SIGNALS,
    ),
    "inverse Fourier transform to an odd number of reals": (
        lambda x, y: jnp.fft.irfft(x + 1j * y, n=11),
        TWO_SIGNALS,
    ),
    "Fourier transform along two dimensions": (
        lambda x: parts(jnp.fft.fft2(x, axes=(0, 1))),
        (reals(4, 3, 2),),
    ),
    "Fourier transform of reals along two dimensions and back": (
        lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * (1 + 2j), s=(4, 6)),
        (reals(2, 4, 6),),
    ),
    "Fourier transform, gradient": (
        lambda x, y: grad(lambda a, b: jnp.abs(spectrum(a, b)) ** 2)(x, y),
        TWO_SIGNALS,
    ),
    "arithmetic of complex numbers": (
        lambda x, y: parts((x + 2j * y) * (y - 1j) / (x * y + 3j) - (x - 1j * y)),
        AB,
    ),
    "exponential of complex numbers": (lambda x, y: parts(jnp.exp(x + 1j * y)), AB),
    "size of complex numbers": (lambda x, y: jnp.abs(jnp.conj(x + 1j * y)), AB),
    "products of complex matrices": (
        lambda x, y: parts((x + 1j * y) @ (y - 2j * x).T),
        AB,
    ),
    "a complex argument": (
        lambda z: (z * jnp.array([1, 1j, -2]), z.sum(1)),
        (reals(2, 3) + 1j * reals(2, 3),),
    ),
    "complex numbers in a loop": (
        lambda x, y: parts(
            lax.fori_loop(0, 3, lambda k, z: (z * (1 - 0.5j) + k).at[0, 1].add(1j), x + 1j * y)
        ),
        AB,
    ),
    "complex numbers moved and compared": (
        lambda x, y: parts(
            jnp.where(
                x + 1j * y == x, jnp.pad(x[:, 1:] * 1j, ((0, 0), (1, 0))), x[:, ::-1] - y * 1j
            )
        ),
        (reals(2, 4), np.round(reals(2, 4))),
    ),
    "scatter maximum": (lambda x, i, v: x.at[i].max(v), UPDATES),
    "scatter minimum": (lambda x, i, v: x.at[i].min(v), UPDATES),
    "scatter product": (lambda x, i, v: x.at[i].mul(v), UPDATES),
    "scatter maximum along batches": (
        jax.vmap(lambda x, i, v: x.at[i].max(v)),
        (reals(3, 5), integers(5, 3, 4), reals(3, 4)),
    ),
    "scatter minimum in columns": (
        lambda x, i, v: x.at[:, i].min(v),
        (reals(3, 5), integers(5, 4), reals(3, 4)),
    ),
    "greatest of segments": (
        lambda v, i: jax.ops.segment_max(v, i, num_segments=3),
        (reals(7, 2), np.array([0, 2, 1, 1, 0, 2, 2], np.int32)),
    ),
    "least of segments": (
        lambda v, i: jax.ops.segment_min(v, i, num_segments=3),
        (reals(7, 2), np.array([0, 2, 1, 1, 0, 2, 2], np.int32)),
    ),
    "products at known places": (
        lambda x, v: x.at[:, jnp.array([1, 3, 1])].mul(v),
        (reals(3, 4), reals(3, 3)),
    ),
    "max pooling with padding, gradient": (
        lambda x: jax.grad(
            lambda a: (
                lax.reduce_window(a, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2
            ).sum()
        )(x),
        (IMAGE,),
    ),
    "max pooling with uneven padding, gradient": (
        lambda x: jax.grad(
            lambda a: (
                lax.reduce_window(
                    a,
                    -jnp.inf,
                    lax.max,
                    (1, 2, 3, 1),
                    (1, 1, 2, 1),
                    ((0, 0), (1, 0), (0, 2), (0, 0)),
                )
                ** 2
            ).sum()
        )(x),
        (IMAGE,),
    ),
    "numbers made integers of 8 bits": (lambda x: (100 * x).astype(jnp.int8), A),
    "numbers made unsigned integers of 8 bits": (lambda x: (200 * x).astype(jnp.uint8), A),
    "numbers made integers of 4 bits": (lambda x: (7 * x).astype(jnp.int4).astype(jnp.int32), A),
    "quantised matrices": (
        lambda x, y: lax.dot_general(
            jnp.round(x / jnp.abs(x).max() * 127).astype(jnp.int8),
            jnp.round(y / jnp.abs(y).max() * 127).astype(jnp.int8),
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.int32,
        ),
        AB,
    ),
    "cumulative log of sums of exponentials": (lambda x: lax.cumlogsumexp(x, axis=1), A),
    "numbers in place of what is none": (
        lambda x: jnp.nan_to_num(x) + jnp.isinf(x) + jnp.isnan(x),
        A,
    ),
    "the next number": (lambda x: x * jnp.nextafter(jnp.float32(2), jnp.inf), A),
    "all bits, no bits": (
        lambda i: (
            (i & -1) + (i | 0) + (i ^ 0) + (i & 0) + lax.shift_right_logical(i, jnp.int32(32))
        ),
        (integers(9, 4),),
    ),
}


def text_of(function, arguments):
    with tempfile.TemporaryDirectory() as directory:
        jax.jit(function, keep_unused=True).lower(*arguments).compile(
            compiler_options={
                "xla_dump_to": directory,
                "xla_dump_hlo_as_text": True,
                "xla_dump_large_constants": True,
            }
        )
        with open(glob.glob(os.path.join(directory, "*before_optimizations.txt"))[0]) as file:
            return file.read()


def array(x):
    x = np.asarray(x)
    return {
        "shape": list(x.shape),
        "integer": x.dtype.kind in "iu",
        "values": x.astype(float).ravel().tolist(),
    }


def real_arrays(x):
    x = np.asarray(x)
    return (x.real, x.imag) if x.dtype.kind == "c" else (x,)


def main():
    cases = []
    for name, (function, arguments) in CASES.items():
        results = jax.tree.leaves(jax.jit(function)(*arguments))
        cases.append(
            {
                "name": name,
                "hlo": text_of(function, arguments),
                "inputs": [array(part) for a in arguments for part in real_arrays(a)],
                "outputs": [array(part) for r in results for part in real_arrays(r)],
            }
        )
    with gzip.GzipFile(os.path.join(HERE, "operators.json.gz"), "wb", mtime=0) as file:
        file.write(json.dumps(cases, separators=(",", ":")).encode())


if __name__ == "__main__":
    main()
