#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of JAX with wrong twins, from source: the right one is proved, the twin is refuted.

jax_programs.py PROGRAM: shardproof's path; skipped (77) without jax, as jax_package.py is. Each
program is a function of one number or word; another one makes the twin.
"""

import functools
import os
import re
import sys

from jax_package import ROOT, with_jax

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
with_jax()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax, random  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "python"))
import shardproof.jax as sp  # noqa: E402

PROGRAM = os.path.abspath(sys.argv[1])
DP = Mesh(np.array(jax.devices()[:4]), ("dp",))
BOTH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("dp", "tp"))
KEY = ("uint32", (2,))
COUNT = ("int32", ())
PROGRAMS = {}


def program(mesh, right, wrong, *shapes, single=None):
    """shapes: (type, sizes, *spec), or sizes and spec of floats; in dictionaries, too.
    `single`: the program for one device, of a step with shard_map."""

    def add(make):
        PROGRAMS[make.__name__] = (mesh, make, right, wrong, shapes, single)
        return make

    return add


def placed(mesh, described):
    if isinstance(described, dict):
        return {name: placed(mesh, d) for name, d in described.items()}
    kind = "float32"
    if isinstance(described[0], str):
        kind, *described = described
    sizes, *spec = described
    return jax.ShapeDtypeStruct(sizes, kind, sharding=NamedSharding(mesh, P(*spec)))


def mapped(mesh, inputs, out):
    return functools.partial(
        jax.shard_map, mesh=mesh, in_specs=inputs, out_specs=out, check_vma=False
    )


def drop(key, rate, x):
    return jnp.where(random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


# --- random numbers ---


@program(DP, 0.1, 0.2, {"a": ((16, 32),), "b": ((32, 4),)}, KEY, COUNT, ((8, 16), "dp"))
def dropout_by_step(rate):
    def step(w, key, count, x):
        key = random.fold_in(key, count)
        return jax.value_and_grad(
            lambda w: jnp.mean((drop(key, rate, jax.nn.relu(x @ w["a"])) @ w["b"]) ** 2)
        )(w)

    return step


@program(BOTH, 0.1, 0.2, ((8, 8), None, "tp"), COUNT, COUNT, ((4, 6, 8), "dp"))
def dropout_by_seed_and_step(rate):
    def step(w, seed, count, x):
        one, two = random.split(random.fold_in(random.PRNGKey(seed), count))
        h = drop(one, rate, x @ w)
        scores = drop(two, rate, jax.nn.softmax(h @ x.transpose(0, 2, 1), -1))
        return scores @ h

    return step


@program(DP, 0.25, 0.5, ("uint32", (8, 2), "dp"), ((4, 6),), ((8, 4), "dp"))
def a_key_for_each_example(rate):
    def step(keys, w, x):
        return keys, jax.vmap(lambda key, row: drop(key, rate, row @ w))(keys, x)

    return step


@program(DP, 5, 7, ("uint32", (8,), "dp"))
def bits_of_sharded_counters(mask):
    return lambda counts: (counts, (counts ^ mask) + 1)


def masks_in_turn(key, x):
    pieces = x.reshape(4, 2, 4)
    return jnp.concatenate([drop(random.fold_in(key, k), 0.5, pieces[k]) for k in range(4)])


@program(DP, "own", "same", KEY, ((8, 4), "dp"), single=masks_in_turn)
def dropout_by_device(keys):
    @mapped(DP, (P(), P("dp")), P("dp"))
    def step(key, x):
        own = random.fold_in(key, lax.axis_index("dp")) if keys == "own" else key
        return drop(own, 0.5, x)

    return step


@program(DP, 0.02, 0.03, KEY)
def first_weights(scale):
    def init(key):
        one, two = random.split(key)
        w = random.normal(one, (16, 32)) * scale
        w = lax.with_sharding_constraint(w, NamedSharding(DP, P("dp")))
        return w, random.truncated_normal(two, -2.0, 2.0, (32, 8))

    return init


# --- transforms and complex numbers ---


@program(DP, "real", "imag", ((8, 8),), ((4, 8, 8), "dp"))
def mixing_by_fft(part):
    def step(w, x):
        mixed = getattr(jnp.fft.fft2(x, axes=(1, 2)), part)
        return jnp.mean(jax.nn.gelu((x + mixed) @ w) ** 2)

    return jax.value_and_grad(step)


@program(DP, 16, 8, ((4, 8), "dp"), ((8,),))
def convolution_by_fft(length):
    def step(x, kernel):
        spectrum = jnp.fft.rfft(x, n=length) * jnp.fft.rfft(kernel, n=length)
        return jnp.fft.irfft(spectrum, n=length)[:, :8]

    return step


@program(DP, "backward", "ortho", ((8, 6), "dp"))
def there_and_back(norm):
    return lambda x: jnp.fft.ifft(jnp.fft.fft(x, norm=norm) * 2).real


@program(DP, 4, 2, ((8, 16), "dp"))
def spectrogram(hop):
    def step(x):
        frames = jnp.stack([x[:, k * hop : k * hop + 8] for k in range(3)], 1) * jnp.hanning(8)
        return jnp.log(jnp.abs(jnp.fft.rfft(frames)) ** 2 + 1e-6)

    return step


@program(DP, 0.9, 0.8, ("complex64", (8, 4), "dp"), ((8, 8), "dp"), ("complex64", (8, 4), "dp"))
def momentum_of_complex_weights(beta):
    def step(w, x, mean):
        grad = jnp.conj(jax.grad(lambda w: jnp.mean(jnp.abs(x @ w) ** 2))(w))
        mean = beta * mean + (1 - beta) * grad
        return w - 0.1 * mean, mean

    return step


# --- integers ---


@program(BOTH, 127.0, 63.0, ((16, 8), None, "tp"), ((8, 16), "dp"))
def quantised(levels):
    def scaled(a, axis):
        scale = jnp.abs(a).max(axis, keepdims=True) / levels
        return jnp.round(a / scale).astype(jnp.int8), scale

    def step(w, x):
        (a, left), (b, right) = scaled(x, 1), scaled(w, 0)
        product = lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        return product.astype(jnp.float32) * left * right

    return step


# --- what is scattered ---


@program(
    DP, "pmax", "pmin", ((5, 3),), ("int32", (8,), "dp"), ((8, 3), "dp"),
    single=lambda x, i, v: x.at[i].max(v),
)  # fmt: skip
def greatest_of_all_devices(reduce):
    @mapped(DP, (P(), P("dp"), P("dp")), P())
    def step(x, i, v):
        return getattr(lax, reduce)(x.at[i].max(v), "dp")

    return step


@program(DP, 1.0, 2.0, ((8, 4),), ((12, 8), None, "dp"), ("int32", (12,)))
def attention_over_edges(scale):
    def step(x, scores, to):
        share = jnp.exp(scores - jax.ops.segment_max(scores, to, num_segments=8)[to])
        return scale * share / jax.ops.segment_sum(share, to, num_segments=8)[to], x

    return step


@program(DP, 1, 2, ((8, 8), "dp"), ((8, 4), "dp"))
def places_that_are_known(scale):
    places = jnp.array([1, 3, 1, 5])

    def step(x, v):
        return x.at[:, places].mul(v), x.at[:, places].min(v * scale), x.at[:, ::2].multiply(3)

    return step


@program(DP, False, True, ((8, 4),), ((4, 8, 8), "dp"))
def cumulative_logs(reverse):
    return jax.value_and_grad(
        lambda w, x: jnp.mean(lax.cumlogsumexp(x @ w, axis=1, reverse=reverse))
    )


@program(DP, 2, 1, ((3, 3, 3, 4),), ((4, 8, 8, 3), "dp"))
def pooling_with_padding(stride):
    def loss(w, x):
        h = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        window, strides = (1, 3, 3, 1), (1, stride, stride, 1)
        return jnp.mean(lax.reduce_window(h, -jnp.inf, lax.max, window, strides, "SAME") ** 2)

    return jax.grad(loss)


# --- what may be no number, and branches ---


@program(DP, 1.01, 1.02, ((8, 4), "dp"), ((),), ((8, 8), "dp"))
def a_scale_that_grows(factor):
    def step(w, scale, x):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2) * scale)(w)
        bad = jnp.isnan(loss) | jnp.isinf(loss)
        return jnp.where(bad, w, w - 0.1 * grad / scale), jnp.where(bad, scale / 2, scale * factor)

    return step


@program(DP, 2.0, 3.0, ((8, 4), "dp"), ((8, 4), "dp"), ((8, 8), "dp"), ("bool", ()))
def an_update_or_none(rate):
    def step(w, mean, x, update):
        grad = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w)))(w)

        def updated():
            total = mean + grad
            return w - rate * total / (1 + jnp.sum(total**2)), jnp.zeros_like(mean)

        return lax.cond(update, updated, lambda: (w, mean + grad))

    return step


def devices_that_disagree(x):
    """Each chooses its branch by its own rows, and in both they meet."""

    @mapped(DP, (P("dp"),), P("dp"))
    def step(x):
        return lax.cond(
            x.sum() > 0,
            lambda: x + lax.psum(x.sum(), "dp"),
            lambda: x * lax.pmax(x.sum(), "dp"),
        )

    return step(x)


def main():
    problems = []
    for name, (mesh, make, right, wrong, shapes, single) in PROGRAMS.items():
        arguments = [placed(mesh, s) for s in shapes]
        for number, expected in ((right, "equivalent"), (wrong, "not equivalent")):
            one = single or (None if number == right else make(right))
            try:
                report = sp.verify(make(number), *arguments, single=one, program=PROGRAM)
            except sp.ShardproofError as error:
                problems.append(f"{name}, {number}: {error}")
                continue
            if report.verdict != expected:
                problems.append(f"{name}, {number}: expected {expected}, found\n{report}")
        print(name)
    try:
        sp.verify(
            devices_that_disagree,
            placed(DP, ((8, 4), "dp")),
            single=lambda x: x,
            program=PROGRAM,
        )
        problems.append("devices that disagree: expected an error")
    except sp.ShardproofError as error:
        if not re.search("not on all devices in the same way", str(error)):
            problems.append(f"devices that disagree: {error}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
