#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the programs of this folder with jax: make.py [NAME ...].

Each is one training step (or one forward pass), written once for one device and once for several.
NAME.single.hlo.gz is the program before any pass, NAME.spmd.hlo.gz each device's after
spmd-partitioning, with shardings kept. Needs jax and optax; no accelerator. ../hlo.py reads the
files, so the tests need none of this.
"""

import glob
import gzip
import os
import sys
import tempfile

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

# Names of source files without their directories.
jax.config.update("jax_hlo_source_file_canonicalization_regex", "^.*/")

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = {}


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def s32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def mesh_of(*axes):
    sizes = [n for _, n in axes]
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return jax.sharding.Mesh(devices, [name for name, _ in axes])


def sgd(loss, rate=0.1):
    def step(p, *batch):
        value, grads = jax.value_and_grad(loss)(p, *batch)
        return value, jax.tree.map(lambda a, g: a - rate * g, p, grads)

    return step


def same_step(step, mesh, shapes, specs, out):
    """The one program, with shardings and without."""
    return step, step, mesh, shapes, specs, out


def mlp(p, x, y):
    h = jax.nn.gelu(x @ p["w1"] + p["b1"])
    return jnp.mean((h @ p["w2"] - y) ** 2)


MLP = {"w1": f32(8, 16), "b1": f32(16), "w2": f32(16, 8)}


@program
def data_parallel():
    return same_step(
        sgd(mlp),
        mesh_of(("dp", 4)),
        (MLP, f32(16, 8), f32(16, 8)),
        ({k: P() for k in MLP}, P("dp"), P("dp")),
        (P(), {k: P() for k in MLP}),
    )


@program
def tensor_parallel():
    specs = {"w1": P(None, "tp"), "b1": P("tp"), "w2": P("tp", None)}
    return same_step(
        sgd(mlp),
        mesh_of(("dp", 2), ("tp", 2)),
        (MLP, f32(8, 8), f32(8, 8)),
        (specs, P("dp"), P("dp")),
        (P(), specs),
    )


@program
def fsdp_optax():
    optimizer = optax.adamw(1e-3, weight_decay=0.1)

    def step(p, state, x, y):
        value, grads = jax.value_and_grad(mlp)(p, x, y)
        updates, state = optimizer.update(grads, state, p)
        return value, optax.apply_updates(p, updates), state

    state = jax.eval_shape(optimizer.init, MLP)
    specs = {"w1": P("dp"), "b1": P("dp"), "w2": P("dp")}
    state_specs = jax.tree.map(lambda s: P("dp") if s.ndim else P(), state)
    return same_step(
        step,
        mesh_of(("dp", 4)),
        (MLP, state, f32(8, 8), f32(8, 8)),
        (specs, state_specs, P("dp"), P("dp")),
        (P(), specs, state_specs),
    )


def language_model(p, x, y):
    h = jnp.take(p["emb"], x, axis=0)
    h = h / jnp.sqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6) * p["norm"]
    s = jnp.einsum("bsd,btd->bst", h @ p["q"], h @ p["k"]) / np.sqrt(8)
    i = jnp.arange(x.shape[1])
    s = jnp.where(i[None, None, :] <= i[None, :, None], s, -1e9)
    h = h + jnp.einsum("bst,btd->bsd", jax.nn.softmax(s, -1), h @ p["v"])
    return optax.softmax_cross_entropy_with_integer_labels(h @ p["out"], y).mean()


LANGUAGE_MODEL = {
    "emb": f32(16, 8),
    "norm": f32(8),
    "q": f32(8, 8),
    "k": f32(8, 8),
    "v": f32(8, 8),
    "out": f32(8, 16),
}


@program
def language_model_tp():
    specs = {
        "emb": P("tp", None),
        "norm": P(),
        "q": P(),
        "k": P(),
        "v": P(None, "tp"),
        "out": P(None, "tp"),
    }
    return same_step(
        sgd(language_model),
        mesh_of(("dp", 2), ("tp", 2)),
        (LANGUAGE_MODEL, s32(4, 4), s32(4, 4)),
        (specs, P("dp"), P("dp")),
        (P(), specs),
    )


def layers(body):
    def loss(p, x, y):
        def layer(h, w):
            return h + jnp.tanh(h @ w["a"]) @ w["b"], None

        h, _ = jax.lax.scan(body(layer), x, p)
        return jnp.mean((h - y) ** 2)

    return loss


LAYERS = {"a": f32(3, 8, 16), "b": f32(3, 16, 8)}
LAYER_SPECS = {"a": P(None, None, "tp"), "b": P(None, "tp", None)}


@program
def scan_layers():
    return same_step(
        sgd(layers(lambda f: f)),
        mesh_of(("dp", 2), ("tp", 2)),
        (LAYERS, f32(4, 8), f32(4, 8)),
        (LAYER_SPECS, P("dp"), P("dp")),
        (P(), LAYER_SPECS),
    )


@program
def scan_remat():
    return same_step(
        sgd(layers(jax.checkpoint)),
        mesh_of(("dp", 2), ("tp", 2)),
        (LAYERS, f32(4, 8), f32(4, 8)),
        (LAYER_SPECS, P("dp"), P("dp")),
        (P(), LAYER_SPECS),
    )


@program
def gradient_accumulation():
    def step(p, x, y):
        def one(total, batch):
            value, grads = jax.value_and_grad(mlp)(p, *batch)
            return (total[0] + value, jax.tree.map(jnp.add, total[1], grads)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, p))
        (value, grads), _ = jax.lax.scan(one, zero, (x, y))
        return value / 2, jax.tree.map(lambda a, g: a - 0.1 * g / 2, p, grads)

    return same_step(
        step,
        mesh_of(("dp", 2)),
        (MLP, f32(2, 4, 8), f32(2, 4, 8)),
        ({k: P() for k in MLP}, P(None, "dp"), P(None, "dp")),
        (P(), {k: P() for k in MLP}),
    )


def with_optimizer(optimizer, mesh, specs, state_spec):
    def step(p, state, x, y):
        value, grads = jax.value_and_grad(mlp)(p, x, y)
        updates, state = optimizer.update(grads, state, p)
        return value, optax.apply_updates(p, updates), state

    state = jax.eval_shape(optimizer.init, MLP)
    state_specs = jax.tree.map(state_spec, state)
    return same_step(
        step,
        mesh,
        (MLP, state, f32(8, 8), f32(8, 8)),
        (specs, state_specs, P("dp"), P("dp")),
        (P(), specs, state_specs),
    )


def manual(body, mesh, specs, out):
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)


@program
def shard_map_data():
    mesh = mesh_of(("dp", 4))
    specs, out = ({k: P() for k in MLP}, P("dp"), P("dp")), (P(), {k: P() for k in MLP})

    def body(p, x, y):
        value, grads = jax.value_and_grad(mlp)(p, x, y)
        value, grads = jax.lax.pmean((value, grads), "dp")
        return value, jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)

    return sgd(mlp), manual(body, mesh, specs, out), mesh, (MLP, f32(16, 8), f32(16, 8)), specs, out


@program
def shard_map_row_column():
    mesh = mesh_of(("tp", 4))
    specs, out = (P(), P(None, "tp"), P("tp", None)), P()

    def single(x, a, b):
        return jax.nn.silu(x @ a) @ b

    def body(x, a, b):
        return jax.lax.psum(jax.nn.silu(x @ a) @ b, "tp")

    return (
        single,
        manual(body, mesh, specs, out),
        mesh,
        (f32(4, 8), f32(8, 16), f32(16, 8)),
        specs,
        out,
    )


@program
def shard_map_sequence():
    mesh = mesh_of(("tp", 4))
    specs, out = (P("tp"), P(), P(None, "tp"), P("tp", None)), P("tp")

    def norm(x, g):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g

    def single(x, g, a, b):
        return x + jnp.tanh(norm(x, g) @ a) @ b

    def body(x, g, a, b):
        h = jax.lax.all_gather(norm(x, g), "tp", axis=0, tiled=True)
        return x + jax.lax.psum_scatter(jnp.tanh(h @ a) @ b, "tp", scatter_dimension=0, tiled=True)

    return (
        single,
        manual(body, mesh, specs, out),
        mesh,
        (f32(8, 8), f32(8), f32(8, 16), f32(16, 8)),
        specs,
        out,
    )


@program
def shard_map_vocabulary():
    mesh = mesh_of(("tp", 4))
    specs, out = (P("tp"), P()), P()

    def single(table, ids):
        return table[ids]

    def body(table, ids):
        local = ids - jax.lax.axis_index("tp") * 4
        inside = (local >= 0) & (local < 4)
        rows = table[jnp.clip(local, 0, 3)]
        return jax.lax.psum(jnp.where(inside[:, None], rows, 0.0), "tp")

    return single, manual(body, mesh, specs, out), mesh, (f32(16, 8), s32(6)), specs, out


@program
def ring_sum():
    mesh = mesh_of(("sp", 4))
    specs, out = (P("sp"), P("sp")), P("sp")

    def single(q, k):
        return jnp.exp(q @ k.T) @ k

    def body(q, k):
        total = jnp.zeros_like(q)
        for _ in range(4):
            total = total + jnp.exp(q @ k.T) @ k
            k = jax.lax.ppermute(k, "sp", [(i, (i + 1) % 4) for i in range(4)])
        return total

    return single, manual(body, mesh, specs, out), mesh, (f32(8, 4), f32(8, 4)), specs, out


@program
def pipeline():
    mesh = mesh_of(("pp", 4))
    specs, out = (P("pp"), P()), P()

    def single(w, x):
        for i in range(4):
            x = jnp.tanh(x @ w[i])
        return x

    def body(w, x):
        stage = jax.lax.axis_index("pp")
        h = x
        for i in range(4):
            h = jnp.where(stage == i, jnp.tanh(h @ w[0]), h)
            if i < 3:
                moved = jax.lax.ppermute(h, "pp", [(i, i + 1)])
                h = jnp.where(stage == i + 1, moved, h)
        return jax.lax.psum(jnp.where(stage == 3, h, 0.0), "pp")

    return single, manual(body, mesh, specs, out), mesh, (f32(4, 8, 8), f32(4, 8)), specs, out


@program
def experts():
    mesh = mesh_of(("ep", 4))
    specs, out = (P("ep"), P("ep")), P("ep")

    def single(w, x):  # x: each expert's tokens, of each of the groups
        return jnp.einsum("gect,etf->gecf", x, w)

    def body(w, x):
        moved = jax.lax.all_to_all(x, "ep", split_axis=1, concat_axis=0, tiled=True)
        y = jnp.einsum("gect,etf->gecf", moved, w)
        return jax.lax.all_to_all(y, "ep", split_axis=0, concat_axis=1, tiled=True)

    return single, manual(body, mesh, specs, out), mesh, (f32(4, 4, 4), f32(4, 4, 2, 4)), specs, out


@program
def clip_norm():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    specs = {"w1": P(None, "tp"), "b1": P("tp"), "w2": P("tp")}
    return with_optimizer(optimizer, mesh_of(("dp", 2), ("tp", 2)), specs, lambda s: P())


@program
def sharded_moments():
    return with_optimizer(
        optax.adam(1e-3),
        mesh_of(("dp", 4)),
        {k: P() for k in MLP},
        lambda s: P("dp") if s.ndim else P(),
    )


@program
def fsdp_scan():
    specs = {"a": P(None, "dp"), "b": P(None, "dp")}
    return same_step(
        sgd(layers(jax.checkpoint)),
        mesh_of(("dp", 4)),
        (LAYERS, f32(8, 8), f32(8, 8)),
        (specs, P("dp"), P("dp")),
        (P(), specs),
    )


@program
def fsdp_language_model():
    specs = {
        "emb": P("dp"),
        "norm": P(),
        "q": P("dp"),
        "k": P("dp"),
        "v": P("dp"),
        "out": P(None, "dp"),
    }
    return same_step(
        sgd(language_model),
        mesh_of(("dp", 4)),
        (LANGUAGE_MODEL, s32(4, 4), s32(4, 4)),
        (specs, P("dp"), P("dp")),
        (P(), specs),
    )


@program
def attention_by_heads():
    mesh = mesh_of(("sp", 4))
    specs, out = (P(None, "sp"),) * 3, P(None, "sp")

    def attention(q, k, v):
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0
        i = jnp.arange(s.shape[-1])
        s = jnp.where(i[:, None] >= i[None, :], s, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v)

    def body(q, k, v):
        q, k, v = (
            jax.lax.all_to_all(t, "sp", split_axis=2, concat_axis=1, tiled=True) for t in (q, k, v)
        )
        return jax.lax.all_to_all(attention(q, k, v), "sp", split_axis=1, concat_axis=2, tiled=True)

    return attention, manual(body, mesh, specs, out), mesh, (f32(2, 8, 4, 4),) * 3, specs, out


@program
def pipeline_gradient():
    mesh = mesh_of(("pp", 2))
    specs, out = (P("pp"), P(), P()), (P(), P("pp"))

    def single(w, x, y):
        def loss(w):
            return jnp.mean((jnp.tanh(jnp.tanh(x @ w[0]) @ w[1]) - y) ** 2)

        value, grad = jax.value_and_grad(loss)(w)
        return value, w - 0.1 * grad

    def body(w, x, y):
        def loss(w):
            moved = jax.lax.ppermute(jnp.tanh(x @ w[0]), "pp", [(0, 1)])
            last = jnp.mean((jnp.tanh(moved @ w[0]) - y) ** 2)
            return jnp.where(jax.lax.axis_index("pp") == 1, last, 0.0)

        value, grad = jax.value_and_grad(loss)(w)
        return jax.lax.psum(value, "pp"), w - 0.1 * grad

    return (
        single,
        manual(body, mesh, specs, out),
        mesh,
        (f32(2, 8, 8), f32(4, 8), f32(4, 8)),
        specs,
        out,
    )


@program
def soft_experts():
    def loss(p, x, y):
        gate = jax.nn.softmax(x @ p["g"], -1)
        h = jax.nn.relu(jnp.einsum("td,edf->tef", x, p["a"]))
        return jnp.mean((jnp.einsum("te,tef,efd->td", gate, h, p["b"]) - y) ** 2)

    shapes = {"g": f32(8, 4), "a": f32(4, 8, 16), "b": f32(4, 16, 8)}
    specs = {"g": P(), "a": P("ep"), "b": P("ep")}
    return same_step(
        sgd(loss),
        mesh_of(("dp", 2), ("ep", 2)),
        (shapes, f32(8, 8), f32(8, 8)),
        (specs, P("dp"), P("dp")),
        (P(), specs),
    )


@program
def uneven():
    mesh = mesh_of(("tp", 4))

    def single(x, w):
        return jnp.exp(x @ w).sum(1)

    def several(x, w):
        return jnp.exp(
            jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P(None, "tp")))
        ).sum(1)

    return single, several, mesh, (f32(4, 8), f32(8, 10)), (P(), P()), P()


@program
def left_out_labels():
    def loss(p, x, y):
        counts = y != -100
        logs = jnp.take_along_axis(
            jax.nn.log_softmax(x @ p, -1), jnp.where(counts, y, 0)[:, None], 1
        )[:, 0]
        return -jnp.where(counts, logs, 0).sum() / counts.sum()

    return same_step(
        sgd(loss),
        mesh_of(("dp", 4)),
        (f32(8, 6), f32(8, 8), s32(8)),
        (P(), P("dp"), P("dp")),
        (P(), P()),
    )


@program
def shifted_sequence():
    def mixed(x, w):
        return jnp.tanh(x @ w + jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1] @ w)

    return same_step(
        mixed, mesh_of(("sp", 4)), (f32(2, 8, 4), f32(4, 4)), (P(None, "sp"), P()), P(None, "sp")
    )


def u32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.uint32)


@program
def dropout():
    def loss(p, x, y, key):
        h = jax.nn.relu(x @ p["w1"])
        h = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, 7), 0.8, h.shape), h / 0.8, 0.0)
        return ((h @ p["w2"] - y) ** 2).mean()

    specs = {"w1": P(None, "tp"), "w2": P("tp")}
    return same_step(
        sgd(loss),
        mesh_of(("dp", 2), ("tp", 2)),
        ({"w1": f32(8, 16), "w2": f32(16, 8)}, f32(8, 8), f32(8, 8), u32(2)),
        (specs, P("dp"), P("dp"), P()),
        (P(), specs),
    )


def image_loss(p, x, y):
    h = jax.nn.relu(
        jax.lax.conv_general_dilated(
            x, p["a"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )
    h = jax.lax.conv_general_dilated(
        h, p["b"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    h = jax.lax.reduce_window(h, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return ((h.reshape(h.shape[0], -1) @ p["w"] - y) ** 2).mean()


IMAGES = ({"a": f32(3, 3, 2, 8), "b": f32(3, 3, 8, 4), "w": f32(16, 3)}, f32(8, 8, 8, 2), f32(8, 3))


@program
def convolutions():
    mesh = mesh_of(("dp", 2), ("tp", 2))
    specs = ({"a": P(None, None, None, "tp"), "b": P(None, None, "tp"), "w": P()}, P("dp"), P("dp"))
    return same_step(sgd(image_loss), mesh, IMAGES, specs, (P(), specs[0]))


@program
def convolutions_by_rows():
    specs = ({"a": P(), "b": P(), "w": P()}, P(None, "r"), P())
    return same_step(sgd(image_loss), mesh_of(("r", 2)), IMAGES, specs, (P(), specs[0]))


def chosen_experts(p, x, y):
    chosen, place = jax.lax.top_k(jax.nn.softmax(x @ p["router"], -1), 2)
    chosen = chosen / chosen.sum(-1, keepdims=True)
    share = jnp.einsum("tk,tke->te", chosen, jax.nn.one_hot(place, 4))
    h = jax.nn.silu(jnp.einsum("td,edf->tef", x, p["w1"]))
    return jnp.mean((jnp.einsum("tef,efd,te->td", h, p["w2"], share) - y) ** 2)


@program
def top_k_experts():
    specs = {"router": P(), "w1": P("ep"), "w2": P("ep")}
    shapes = ({"router": f32(8, 4), "w1": f32(4, 8, 8), "w2": f32(4, 8, 8)}, f32(8, 8), f32(8, 8))
    return same_step(
        sgd(chosen_experts),
        mesh_of(("dp", 2), ("ep", 2)),
        shapes,
        (specs, P("dp"), P("dp")),
        (P(), specs),
    )


@program
def experts_of_limited_capacity():
    def forward(p, x):
        share = jax.nn.softmax(x @ p["router"])
        one = jax.nn.one_hot(jnp.argmax(share, -1), 4)
        place = (jnp.cumsum(one, 0) - 1) * one
        kept = (place < 3) * one
        sent = kept[..., None] * jax.nn.one_hot(place.sum(-1).astype(jnp.int32), 3)[:, None, :]
        out = jax.nn.relu(jnp.einsum("ecd,edf->ecf", jnp.einsum("tec,td->ecd", sent, x), p["w"]))
        return jnp.einsum("tec,ecf->tf", sent * (share * one).sum(-1)[:, None, None], out)

    specs = ({"router": P(), "w": P("ep")}, P("ep"))
    return same_step(
        forward,
        mesh_of(("ep", 2)),
        ({"router": f32(4, 4), "w": f32(4, 4, 4)}, f32(8, 4)),
        specs,
        P("ep"),
    )


@program
def log_softmax_by_vocabulary():
    """The model looks up in a table of logarithms; ranks subtract what they look up from one."""

    def single(p, x, y):
        scores = jnp.tanh(p["e"][x] @ p["w"]) @ p["e"].T
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1))

    def local(p, x, y):
        first = jax.lax.axis_index("tp") * 4

        def own(ids):
            return (ids >= first) & (ids < first + 4), jnp.clip(ids - first, 0, 3)

        inside, row = own(x)
        h = jax.lax.psum(jnp.where(inside[:, None], p["e"][row], 0), "tp")
        scores = jnp.tanh(h @ p["w"]) @ p["e"].T
        most = jax.lax.stop_gradient(jax.lax.pmax(scores.max(-1), "tp"))
        total = jax.lax.psum(jnp.exp(scores - most[:, None]).sum(-1), "tp")
        inside, row = own(y)
        found = jnp.take_along_axis(scores, row[:, None], 1)[:, 0]
        found = jax.lax.psum(jnp.where(inside, found, 0), "tp")
        return jax.lax.pmean(jnp.mean(jnp.log(total) + most - found), "dp")

    mesh = mesh_of(("dp", 2), ("tp", 4))
    specs = ({"e": P("tp"), "w": P()}, P("dp"), P("dp"))
    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    return single, mapped, mesh, ({"e": f32(16, 4), "w": f32(4, 4)}, s32(8), s32(8)), specs, P()


@program
def batch_norm():
    def loss(p, x):
        h = x @ p["w"]
        h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1e-5) * p["g"] + p["b"]
        return jnp.sum(jax.nn.relu(h) ** 2)

    specs = {"w": P(), "g": P(), "b": P()}
    return same_step(
        sgd(loss),
        mesh_of(("dp", 4)),
        ({"w": f32(8, 8), "g": f32(8), "b": f32(8)}, f32(8, 8)),
        (specs, P("dp")),
        (P(), specs),
    )


@program
def decoding_step():
    def step(k_cache, v_cache, q, k, v, at):
        k_cache = jax.lax.dynamic_update_slice_in_dim(k_cache, k[:, None], at, 1)
        v_cache = jax.lax.dynamic_update_slice_in_dim(v_cache, v[:, None], at, 1)
        s = jnp.einsum("bhd,bshd->bhs", q, k_cache)
        s = jnp.where(jnp.arange(8)[None, None] <= at, s, -1e9)
        return jnp.einsum("bhs,bshd->bhd", jax.nn.softmax(s), v_cache), k_cache, v_cache

    cache, token = P("dp", None, "tp"), P("dp", "tp")
    return same_step(
        step,
        mesh_of(("dp", 2), ("tp", 2)),
        (f32(2, 8, 4, 4),) * 2 + (f32(2, 4, 4),) * 3 + (s32(),),
        (cache, cache, token, token, token, P()),
        (token, cache, cache),
    )


@program
def rate_schedule():
    optimizer = optax.sgd(optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 100), momentum=0.9)

    def step(p, state, x, y):
        value, grads = jax.value_and_grad(mlp)(p, x, y)
        updates, state = optimizer.update(grads, state, p)
        return value, optax.apply_updates(p, updates), state

    state = jax.eval_shape(optimizer.init, MLP)
    specs = {"w1": P("dp", "tp"), "b1": P("tp"), "w2": P("tp", "dp")}
    state_specs = jax.tree.map(lambda s: P(), state)
    return same_step(
        step,
        mesh_of(("dp", 2), ("tp", 2)),
        (MLP, state, f32(8, 8), f32(8, 8)),
        (specs, state_specs, P("dp"), P("dp")),
        (P(), specs, state_specs),
    )


@program
def loss_and_accuracy():
    def step(p, x, y):
        def loss(p):
            scores = jnp.tanh(x @ p["a"]) @ p["b"]
            found = jax.nn.log_softmax(scores)[jnp.arange(x.shape[0]), y]
            return -found.mean(), jnp.mean(jnp.argmax(scores, -1) == y)

        (value, right), grads = jax.value_and_grad(loss, has_aux=True)(p)
        return value, right, jax.tree.map(lambda w, g: w - 0.1 * g, p, grads)

    specs = {"a": P(None, "tp"), "b": P("tp", None)}
    return same_step(
        step,
        mesh_of(("dp", 2), ("tp", 2)),
        ({"a": f32(8, 8), "b": f32(8, 8)}, f32(8, 8), s32(8)),
        (specs, P("dp"), P("dp")),
        (P(), P(), specs),
    )


@program
def llama_scan():
    # Rotary embedding, grouped queries, causal attention, gates, a vocabulary on tp; layers by
    # scan, weights on both axes.
    heads, groups, size, length, layers = 8, 4, 4, 8, 2

    def norm(x, g):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * g

    def rotated(x):
        a = jnp.arange(length, dtype=jnp.float32)[:, None] * 100.0 ** (
            -jnp.arange(0, size, 2, dtype=jnp.float32) / size
        )
        c, s = jnp.cos(a)[None, :, None], jnp.sin(a)[None, :, None]
        u, v = jnp.split(x, 2, -1)
        return jnp.concatenate([u * c - v * s, v * c + u * s], -1)

    def layer(h, w):
        n = norm(h, w["g1"])
        q, k, v = (jnp.reshape(n @ w[m], (h.shape[0], length, -1, size)) for m in "qkv")
        k, v = (jnp.repeat(t, heads // groups, 2) for t in (rotated(k), v))
        s = jnp.einsum("bqhd,bkhd->bhqk", rotated(q), k) / 2.0
        s = jnp.where(jnp.tril(jnp.ones((length, length), bool)), s, -jnp.inf)
        h = h + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), v).reshape(h.shape) @ w["o"]
        n = norm(h, w["g2"])
        return h + (jax.nn.silu(n @ w["w1"]) * (n @ w["w3"])) @ w["w2"], None

    def loss(p, x, y):
        h, _ = jax.lax.scan(jax.checkpoint(layer), p["e"][x], p["layers"])
        logits = norm(h, p["g"]) @ p["out"]
        return jnp.mean(
            jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, y[..., None], -1)[..., 0]
        )

    d, f = heads * size, 64
    shapes = {
        "g1": (d,),
        "g2": (d,),
        "q": (d, d),
        "k": (d, groups * size),
        "v": (d, groups * size),
        "o": (d, d),
        "w1": (d, f),
        "w3": (d, f),
        "w2": (f, d),
    }
    across, along = P(None, "dp", "tp"), P(None, "tp", "dp")
    specs = {
        "g1": P(),
        "g2": P(),
        "q": across,
        "k": across,
        "v": across,
        "o": along,
        "w1": across,
        "w3": across,
        "w2": along,
    }
    p = {
        "e": f32(16, d),
        "layers": {k: f32(layers, *v) for k, v in shapes.items()},
        "g": f32(d),
        "out": f32(d, 16),
    }
    place = {"e": P("tp", "dp"), "layers": specs, "g": P(), "out": P("dp", "tp")}
    return same_step(
        sgd(loss),
        mesh_of(("dp", 2), ("tp", 2)),
        (p, s32(4, length), s32(4, length)),
        (place, P("dp"), P("dp")),
        (P(), place),
    )


@program
def max_pooling():
    def loss(p, x, y):
        h = jax.lax.conv_general_dilated(
            x, p, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        h = jax.lax.reduce_window(
            jnp.tanh(h), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        return jnp.mean((h - y) ** 2)

    return same_step(
        sgd(loss),
        mesh_of(("dp", 2)),
        (f32(3, 3, 2, 3), f32(4, 4, 4, 2), f32(4, 2, 2, 3)),
        (P(), P("dp"), P("dp")),
        (P(), P()),
    )


@program
def matmul_in_a_ring():
    # Rows go round while they are multiplied: each device knows by its number whose it has.
    mesh = mesh_of(("tp", 4))

    def single(x, w):
        return jnp.tanh(x @ w)

    def local(x, w):
        def turn(k, state):
            out, x = state
            whose = (jax.lax.axis_index("tp") + k) % 4
            out = jax.lax.dynamic_update_slice(out, x @ w, (whose * x.shape[0], 0))
            return out, jax.lax.ppermute(x, "tp", [((d + 1) % 4, d) for d in range(4)])

        return jnp.tanh(jax.lax.fori_loop(0, 4, turn, (jnp.zeros((8, w.shape[1])), x))[0])

    specs = (P("tp"), P(None, "tp"))
    several = jax.shard_map(
        local, mesh=mesh, in_specs=specs, out_specs=P(None, "tp"), check_vma=False
    )
    return single, several, mesh, (f32(8, 8), f32(8, 8)), specs, P(None, "tp")


@program
def gaussian_likelihood():
    # LAPACK by custom calls, on each device for its matrices of the batch. The mean goes through
    # all of them.
    def step(x, y):
        s = jnp.einsum("bij,bkj->bik", x, x) + 4 * jnp.eye(x.shape[1])
        f = jnp.linalg.cholesky(s)
        z = jax.scipy.linalg.solve_triangular(f, y, lower=True)
        return jnp.mean(z * z) + jnp.mean(jnp.exp(-jnp.diagonal(f, axis1=1, axis2=2))), f

    return same_step(
        step, mesh_of(("dp", 4)), (f32(8, 4, 6), f32(8, 4, 2)), (P("dp"), P("dp")), (P(), P("dp"))
    )


@program
def factor_of_rows():
    # The matrix is gathered: its factor is one of the whole.
    def step(x, y):
        f = jnp.linalg.cholesky(x @ x.T + 4 * jnp.eye(x.shape[0]))
        return f @ jnp.tanh(y)

    return same_step(step, mesh_of(("tp", 4)), (f32(8, 6), f32(8, 4)), (P("tp"), P("tp")), P("tp"))


@program
def eigenvalues_in_shard_map():
    mesh = mesh_of(("dp", 2), ("tp", 2))

    def single(x):
        return jnp.sum(jnp.linalg.eigvalsh(x) ** 3, -1)

    def local(x):
        return jnp.sum(jnp.linalg.eigvalsh(x) ** 3, -1)

    several = jax.shard_map(local, mesh=mesh, in_specs=P("dp"), out_specs=P("dp"), check_vma=False)
    return single, several, mesh, (f32(4, 3, 3),), (P("dp"),), P("dp")


@program
def greatest_by_vocabulary():
    # The greatest of each device's part of the vocabulary with its place, and the greatest of
    # these.
    def step(p, x, y):
        scores = jnp.tanh(x @ p["a"]) @ p["b"]
        return jnp.mean((jnp.argmax(scores, -1) == y).astype(jnp.float32)), jnp.argmin(scores, -1)

    return same_step(
        step,
        mesh_of(("dp", 2), ("tp", 4)),
        ({"a": f32(8, 8), "b": f32(8, 16)}, f32(8, 8), s32(8)),
        ({"a": P(), "b": P(None, "tp")}, P("dp"), P("dp")),
        (P(), P("dp")),
    )


@program
def functions_of_elements():
    # Of which nothing is known: angles, quotients and bits of integers.
    def step(x, w, i, j):
        h = jnp.arctan2(x @ w, jnp.cbrt(x @ w) + 1.0)
        return h.sum(), i // j + jax.lax.population_count(i), i % j

    return same_step(
        step,
        mesh_of(("tp", 4)),
        (f32(8, 16), f32(16, 4), s32(8, 4), s32(8, 4)),
        (P(None, "tp"), P("tp"), P("tp"), P("tp")),
        (P(), P("tp"), P("tp")),
    )


@program
def noise_by_rbg():
    # The generator's bits are made whole on each device, which takes its own.
    def step(p, key, x):
        key = jax.random.wrap_key_data(key, impl="rbg")
        h = x @ p["w"] + 0.1 * jax.random.uniform(key, (8, 8))
        return jnp.mean(jnp.tanh(h) @ p["v"]), h

    return same_step(
        step,
        mesh_of(("dp", 2), ("tp", 2)),
        ({"w": f32(4, 8), "v": f32(8, 4)}, jax.ShapeDtypeStruct((4,), jnp.uint32), f32(8, 4)),
        ({"w": P(None, "tp"), "v": P("tp")}, P(), P("dp")),
        (P(), P("dp", "tp")),
    )


@program
def dropout_by_counter():
    # A key is made of a known one and of the number of the step, which is also the schedule's.
    def step(p, count, x, y):
        key = jax.random.fold_in(jax.random.PRNGKey(3), count)

        def loss(p):
            h = jax.nn.relu(x @ p["w1"])
            keep = jax.random.bernoulli(key, 0.8, h.shape)
            return ((jnp.where(keep, h / 0.8, 0.0) @ p["w2"] - y) ** 2).mean()

        rate = 0.1 / (1.0 + count)
        value, grads = jax.value_and_grad(loss)(p)
        return value, jax.tree.map(lambda a, g: a - rate * g, p, grads), count + 1

    specs = {"w1": P(None, "tp"), "w2": P("tp")}
    return same_step(
        step,
        mesh_of(("dp", 2), ("tp", 2)),
        ({"w1": f32(8, 16), "w2": f32(16, 8)}, s32(), f32(8, 8), f32(8, 8)),
        (specs, P(), P("dp"), P("dp")),
        (P(), specs, P()),
    )


@program
def dropout_by_device():
    # Each device's key is made of one key and its number; one device draws all in turn.
    mesh = mesh_of(("dp", 4))

    def dropped(x, key):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x * 2.0, 0.0)

    def loss(w, x, drop):
        return (drop(jax.nn.relu(x @ w)) ** 2).mean()

    def single(w, x, key):
        def drop(h):
            pieces = h.reshape(4, 2, -1)
            return jnp.stack([dropped(pieces[i], jax.random.fold_in(key, i)) for i in range(4)])

        return jax.value_and_grad(loss)(w, x, drop)

    def body(w, x, key):
        own = jax.random.fold_in(key, jax.lax.axis_index("dp"))
        value, grad = jax.value_and_grad(loss)(w, x, lambda h: dropped(h, own))
        return jax.lax.pmean(value, "dp"), jax.lax.pmean(grad, "dp")

    several = jax.shard_map(
        body, mesh=mesh, in_specs=(P(), P("dp"), P()), out_specs=(P(), P()), check_vma=False
    )
    shapes = (f32(4, 6), f32(8, 4), u32(2))
    return single, several, mesh, shapes, (P(), P("dp"), P()), (P(), P())


@program
def fourier_layers():
    # Mixing by a transform along positions and features, and a product of spectra with complex
    # weights, which are parameters.
    def loss(p, x):
        h = x + jnp.fft.fft2(x, axes=(1, 2)).real
        h = jax.nn.gelu(h @ p["w"])
        spectrum = jnp.fft.rfft(h, axis=1)[:, :3]
        mixed = jnp.einsum("bki,kio->bko", spectrum, p["k"])
        back = jnp.fft.irfft(jnp.pad(mixed, ((0, 0), (0, 2), (0, 0))), n=8, axis=1)
        return jnp.mean((back + h) ** 2)

    def step(p, x):
        value, grads = jax.value_and_grad(loss)(p, x)
        return value, jax.tree.map(lambda a, g: a - 0.1 * jnp.conj(g), p, grads)

    specs = {"w": P(), "k": P(None, None, "tp")}
    return same_step(
        step,
        mesh_of(("dp", 2), ("tp", 2)),
        ({"w": f32(6, 4), "k": jax.ShapeDtypeStruct((3, 4, 4), jnp.complex64)}, f32(4, 8, 6)),
        (specs, P("dp")),
        (P(), specs),
    )


@program
def complex_rotation():
    def step(w, x):
        q = (x @ w).reshape(4, 8, 4, 2, 2)
        angles = jnp.arange(8)[:, None] * 100.0 ** (-jnp.arange(2) / 2)
        turned = jax.lax.complex(q[..., 0], q[..., 1]) * jnp.exp(1j * angles)[:, None]
        return jnp.stack([turned.real, turned.imag], -1).reshape(4, 8, 16)

    return same_step(
        step,
        mesh_of(("dp", 2), ("tp", 2)),
        (f32(6, 16), f32(4, 8, 6)),
        (P(None, "tp"), P("dp")),
        P("dp", None, "tp"),
    )


@program
def quantised():
    # Integers of 8 bits, scaled by the greatest of each row and column, nothing held back.
    def step(w, x):
        def scaled(a, axis):
            scale = jnp.abs(a).max(axis, keepdims=True) / 127
            return jnp.round(a / scale).astype(jnp.int8), scale

        (a, left), (b, right) = scaled(x, 1), scaled(w, 0)
        y = jax.lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        return y.astype(jnp.float32) * left * right

    return same_step(
        step,
        mesh_of(("dp", 2), ("tp", 2)),
        (f32(16, 8), f32(8, 16)),
        (P(None, "tp"), P("dp")),
        P("dp", "tp"),
    )


@program
def attention_over_edges():
    # Softmax over the edges of each node of a graph: greatest of segments, sums, lookups.
    def step(w, x, edges, to):
        scores = (x @ w)[edges]
        most = jax.ops.segment_max(scores, to, num_segments=6)
        share = jnp.exp(scores - most[to])
        total = jax.ops.segment_sum(share, to, num_segments=6)
        return share / total[to]

    return same_step(
        step,
        mesh_of(("tp", 4)),
        (f32(4, 8), f32(6, 4), s32(9), s32(9)),
        (P(None, "tp"), P(), P(), P()),
        P(None, "tp"),
    )


@program
def scattered_extremes():
    def step(x, i, v):
        return x.at[i].max(v), x.at[i].min(v), x.at[i].mul(v), jax.lax.cumlogsumexp(x, axis=0)

    return same_step(
        step,
        mesh_of(("tp", 4)),
        (f32(6, 8), s32(5), f32(5, 8)),
        (P(None, "tp"), P(), P(None, "tp")),
        (P(None, "tp"),) * 4,
    )


@program
def pooling_with_padding():
    def loss(w, x):
        h = jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        return jnp.mean(h**2)

    return same_step(
        lambda w, x: jax.value_and_grad(loss)(w, x),
        mesh_of(("dp", 4)),
        (f32(3, 3, 2, 3), f32(4, 6, 4, 2)),
        (P(), P("dp")),
        (P(), P()),
    )


@program
def branch_with_communication():
    # The step is taken where the norm of the gradient, which all devices know, is small enough,
    # and in a branch they meet.
    def step(w, m, x, y):
        grad = jax.grad(lambda w: jnp.mean((jnp.tanh(x @ w) - y) ** 2))(w)
        norm = jnp.sqrt(jnp.sum(grad**2))

        def taken():
            mean = 0.9 * m + 0.1 * grad
            return w - 0.1 * mean / (1.0 + jnp.sqrt(jnp.sum(mean**2))), mean

        return jax.lax.cond(norm < 1.0, taken, lambda: (w, m))

    return same_step(
        step,
        mesh_of(("dp", 4)),
        (f32(8, 4), f32(8, 4), f32(8, 8), f32(8, 4)),
        (P("dp"), P("dp"), P("dp"), P("dp")),
        (P("dp"), P("dp")),
    )


def write(path, text):
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(text.encode())


def dump(step, shapes, path, **shardings):
    with tempfile.TemporaryDirectory() as directory:
        lowered = jax.jit(step, keep_unused=True, **shardings).lower(*shapes)
        options = {
            "xla_dump_to": directory,
            "xla_dump_hlo_as_text": True,
            "xla_dump_large_constants": True,
        }
        if shardings:
            options.update(
                xla_dump_hlo_pass_re="spmd-partitioning", xla_keep_shardings_after_spmd=True
            )
        lowered.compile(compiler_options=options)
        pattern = "*after_spmd-partitioning*.txt" if shardings else "*before_optimizations.txt"
        found = glob.glob(os.path.join(directory, pattern))
        assert len(found) == 1, sorted(os.listdir(directory))
        with open(found[0]) as file:
            write(path, file.read())


def main():
    for name in sys.argv[1:] or PROGRAMS:
        single, several, mesh, shapes, specs, out = PROGRAMS[name]()

        def place(tree, mesh=mesh):
            return jax.tree.map(
                lambda s: NamedSharding(mesh, s), tree, is_leaf=lambda s: isinstance(s, P)
            )

        dump(single, shapes, os.path.join(HERE, name + ".single.hlo.gz"))
        dump(
            several,
            shapes,
            os.path.join(HERE, name + ".spmd.hlo.gz"),
            in_shardings=place(specs),
            out_shardings=place(out),
        )
        print(name)


if __name__ == "__main__":
    main()
