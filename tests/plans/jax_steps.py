#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps as people write them for JAX: which program of one device is derived from each, that the
partitioned program is proved to compute it, and that broken copies of it are refuted.

jax_steps.py PROGRAM: shardproof's path; skipped (77) without jax, as jax_package.py is.
"""

import gzip
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from jax_devices import AUTO, AXES, EXPLICIT, PROGRAM, ROOT, SIZES  # noqa: I001, before jax

import jax
import jax.numpy as jnp
import numpy as np
import shardproof.jax as sp
from hlo import edits
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from plan_edit import NO_CAUSES

ABSTRACT = AbstractMesh(SIZES, AXES)
ONE = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), AXES)
W = (32, 64)
X = (16, 32)


def on(mesh, *spec):
    return NamedSharding(mesh, P(*spec))


def shape(sizes, sharding=None):
    return jax.ShapeDtypeStruct(sizes, "float32", sharding=sharding)


def placed(mesh):
    return shape(W, on(mesh, None, "tp")), shape(X, on(mesh, "dp", None))


def constrained(mesh):
    def step(w, x):
        def loss(w):
            h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), on(mesh, "dp", "tp"))
            return jnp.mean(h**2)

        value, grad = jax.value_and_grad(loss)(w)
        return value, w - 0.1 * grad

    return step


def by_name(w, x):  # of the mesh of the context
    h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), P("dp", "tp"))
    return jnp.mean(h**2)


def explicit(w, x):
    def loss(w):
        h = jnp.tanh(jnp.dot(x, w, out_sharding=P("dp", "tp")))
        return jnp.mean(jax.sharding.reshard(h, P(None, "dp")) ** 2)

    value, grad = jax.value_and_grad(loss)(w)
    return value, w - 0.1 * grad


def partial_sums(w, x):  # of the sum over tp, as a type of the array
    h = jnp.dot(x, w.T, out_sharding=P("dp", None, unreduced={"tp"}))
    return jnp.tanh(jax.sharding.reshard(h, P("dp", None))) * 2


def repeated(w, x, turns, double):
    for _ in range(turns):
        x = jnp.tanh(x @ w) @ w.T
    return jnp.sum(x) * 2 if double else jnp.sum(x)


def columns(w, x):
    return jnp.tanh(x @ w).sum(1) * 2


def mapped(mesh, complete=True):
    def body(w, x):
        part = jnp.tanh(x @ w).sum(1)
        return jax.lax.psum(part, "tp") if complete else part

    def step(w, x):
        x = jax.lax.with_sharding_constraint(x, on(mesh, "dp"))
        of_rows = jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(None, "tp"), P("dp")),
            out_specs=P("dp"),
            check_vma=False,
        )
        return of_rows(w, x) * 2

    return step


def printing(w, x):
    h = jnp.tanh(x @ w)
    jax.debug.print("mean {mean}", mean=h.mean())
    return h.sum(0)


def scaled_rows(w, x):  # rows of other devices are below 0 or beyond the last one
    return x.at[1::3].multiply(w) + x.at[1::3].add(w)


def unused(w, other, x):
    return (x @ w).sum()


def of_pairs(scores, own):  # rows of a batch, of which each belongs to the column `own`
    rows = jnp.arange(scores.shape[0])
    return -jnp.mean(jax.nn.log_softmax(scores)[rows, own])


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def pairs(w, a, b):
    def loss(w):
        scores = unit(a @ w) @ unit(b @ w).T
        own = jnp.arange(len(scores))
        return (of_pairs(scores, own) + of_pairs(scores.T, own)) / 2

    return jax.grad(loss)(w)


def gathered_pairs(reduce):
    """The loss of pairs that contrast with those of all devices; `reduce`: of gradients."""

    def body(w, a, b):
        def loss(w):
            one, two = unit(a @ w), unit(b @ w)
            ones, twos = (jax.lax.all_gather(x, "dp", tiled=True) for x in (one, two))
            own = jnp.arange(len(one)) + jax.lax.axis_index("dp") * len(one)
            return (of_pairs(one @ twos.T, own) + of_pairs(two @ ones.T, own)) / 2

        return reduce(jax.grad(loss)(w), "dp")

    specs = (P(), P("dp"), P("dp"))
    return jax.shard_map(body, mesh=AUTO, in_specs=specs, out_specs=P(), check_vma=False)


PAIRS = (shape((4, 4)), shape((8, 4)), shape((8, 4)))


def arrays(mesh):
    return [jax.device_put(np.ones(s.shape, s.dtype), s.sharding) for s in placed(mesh)]


ROWS, COLUMNS = on(AUTO, "dp"), on(AUTO, None, "tp")
STATED = {"in_shardings": (COLUMNS, ROWS), "out_shardings": on(AUTO)}

# {name: (the mesh of the context, step, arguments, options)}
RIGHT = {
    "constraint only": (None, constrained(AUTO), (shape(W), shape(X)), {}),
    "constraint, shardings stated": (
        None,
        constrained(AUTO),
        (shape(W), shape(X)),
        {"in_shardings": (COLUMNS, ROWS)},
    ),
    "shapes with shardings": (None, constrained(AUTO), placed(AUTO), {}),
    "sharded arrays": (None, constrained(AUTO), arrays(AUTO), {}),
    "an array of numpy": (None, constrained(AUTO), (arrays(AUTO)[0], np.ones(X, "f4")), {}),
    "jitted": (None, jax.jit(columns, **STATED), (shape(W), shape(X)), {}),
    "donated": (None, jax.jit(constrained(AUTO), donate_argnums=0), placed(AUTO), {}),
    "static arguments": (
        None,
        jax.jit(repeated, static_argnums=(2, 3), in_shardings=(COLUMNS, ROWS)),
        (shape(W), shape(X), 2, False),
        {},
    ),
    "jit in a step": (
        None,
        lambda w, x: jax.jit(columns, **STATED)(w, x) + 1,
        (shape(W), shape(X)),
        {},
    ),
    "lowered": (None, jax.jit(columns, **STATED).lower(shape(W), shape(X)), (), {}),
    "names of axes": (AUTO, by_name, placed(AUTO), {}),
    "explicit": (EXPLICIT, explicit, placed(EXPLICIT), {}),
    "explicit, jitted": (EXPLICIT, jax.jit(explicit), placed(EXPLICIT), {}),
    "partial sums": (
        EXPLICIT,
        partial_sums,
        (shape(X, on(EXPLICIT, None, "tp")), shape(X, on(EXPLICIT, "dp", "tp"))),
        {},
    ),
    "rows that are multiplied": (
        None,
        scaled_rows,
        (shape((5, 32)), shape((16, 32), on(AUTO, ("dp", "tp")))),
        {},
    ),
    "jax.debug.print": (None, printing, placed(AUTO), {}),
    "a mesh without devices": (None, constrained(ABSTRACT), placed(ABSTRACT), {}),
    "shard_map": (None, mapped(AUTO), (shape(W), shape(X)), {"single": columns}),
    "shard_map, jitted": (
        None,
        jax.jit(mapped(AUTO)),
        (shape(W), shape(X)),
        {"single": jax.jit(columns)},
    ),
    "shard_map, a lowered single": (
        None,
        mapped(AUTO),
        (shape(W), shape(X)),
        {"single": jax.jit(columns).lower(shape(W), shape(X))},
    ),
    "one mesh of one device": (
        None,
        mapped(AUTO),
        (shape(W), shape(X)),
        {"single": jax.jit(mapped(ONE), out_shardings=on(ONE, "dp"))},
    ),
    "an argument that is not used": (
        None,
        jax.jit(unused, in_shardings=(COLUMNS, None, ROWS)),
        (shape(W), shape(W), shape(X)),
        {},
    ),
}

EDITS = ("dropped", "tanh", "squared", "transposed", "position")
# Broken copies that compute the same: sums over dp and tp of the mean that is printed.
HARMLESS = {("jax.debug.print", "dropped 0"), ("jax.debug.print", "dropped 1")}

TWO = (shape(W), shape(X))
THREE = (shape(W), shape(W), shape(X))
REFUSED = {
    "shard_map": (mapped(AUTO), TWO, {}, r"shard_map at \S*jax_steps.py:\d+, .*single="),
    "jitted twice": (jax.jit(columns), TWO, STATED, "jitted already"),
    "one device": (columns, TWO, {}, "one device"),
    "dropped arguments": (
        jax.jit(unused, in_shardings=(COLUMNS, None, ROWS)),
        THREE,
        {"single": lambda w, other, x: (x @ other).sum()},
        "keep_unused=True",
    ),
}


def verify(mesh, step, arguments, options):
    options = {"program": PROGRAM, **options}
    if mesh is None:
        return sp.verify(step, *arguments, **options)
    with jax.set_mesh(mesh):
        return sp.verify(step, *arguments, **options)


def broken(folder, step=""):
    """How many broken copies of the plan there are, and those that were not refuted."""
    with gzip.open(os.path.join(folder, "plan.hlo.gz"), "rt") as file:
        text = file.read()
    path, others, count = os.path.join(folder, "broken.hlo"), [], 0
    for name, edited in edits(text):
        if not name.startswith(EDITS):
            continue
        with open(path, "w") as file:
            file.write(edited)
        model = os.path.join(folder, "model.hlo.gz")
        command = [PROGRAM, "verify", *NO_CAUSES, "-j", "1", "--model", model, "--plan", path]
        done = subprocess.run(command, capture_output=True, text=True)
        count += 1
        if done.returncode != (0 if (step, name) in HARMLESS else 10):
            others.append(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return count, others


def refuted_steps():
    """(name, report) of steps that are wrong."""
    yield "shard_map without psum", verify(None, mapped(AUTO, False), TWO, {"single": columns})
    yield "pairs, psum", verify(None, gathered_pairs(jax.lax.psum), PAIRS, {"single": pairs})


def write_files(folder):
    """The same step in each form of file. Returns the paths."""
    import io

    jitted = jax.jit(constrained(AUTO), in_shardings=(COLUMNS, ROWS))
    lowered = jitted.lower(*TWO)
    exported = jax.export.export(jitted, platforms=["cpu"])(*TWO)
    code = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(code)
    jax.config.update("jax_use_shardy_partitioner", False)
    older = jax.jit(constrained(AUTO), in_shardings=(COLUMNS, ROWS)).lower(*TWO)
    jax.config.update("jax_use_shardy_partitioner", True)
    contents = {
        "step.mlir": lowered.as_text().encode(),
        "step.mlirbc": code.getvalue(),
        "step.exported": bytes(exported.serialize()),
        "step.portable.mlirbc": bytes(exported.mlir_module_serialized),
        "step.exported.mlir": exported.mlir_module().encode(),
        "step.gspmd.mlir": older.as_text().encode(),
        "step.hlo": lowered.as_text("hlo").encode(),
    }
    assert b"mhlo.sharding" in contents["step.gspmd.mlir"]
    for name, content in contents.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    return [os.path.join(folder, name) for name in contents], exported


def mapped_third(w, other, x):
    body = jax.shard_map(lambda w: w * 2, mesh=AUTO, in_specs=P("dp"), out_specs=P("dp"))
    return (body(w) + x[:1, :1]).sum()


def check_files():
    """Problems with programs in files."""
    with tempfile.TemporaryDirectory() as folder:
        paths, exported = write_files(folder)
        for path in [*paths, exported]:
            name = os.path.basename(path) if isinstance(path, str) else "an Exported"
            kept = os.path.join(folder, "kept")
            report = sp.verify(path, directory=kept, program=PROGRAM)
            if not report.equivalent:
                yield f"{name}: expected equivalent, found\n{report}"
            with gzip.open(os.path.join(kept, "model.hlo.gz"), "rt") as file:
                if re.search("sharding=|sdy", file.read()):
                    yield f"{name}: the model states shardings"
            count, others = broken(kept)
            yield from (f"{name}, {other}" for other in others)
            if count < 6:
                yield f"{name}: there are {count} broken copies, expected 6"
            print(f"{name}: {report.verdict}, {count - len(others)} broken copies refuted")
        for content, expected in (
            (b"ML\xefR and no more", "expected StableHLO"),
            (b"func.func @f() {", "expected StableHLO"),
            (b"\xff\x00", "expected StableHLO"),
            (b"module { func.func @main() { return } }", "for one device"),
            (
                jax.jit(mapped(AUTO)).lower(*TWO).as_text("hlo").encode(),
                "before partitioning, without shard_map",
            ),
            (jax.jit(mapped(AUTO)).lower(*TWO).as_text().encode(), "shard_map.*single="),
        ):
            path = os.path.join(folder, "wrong")
            with open(path, "wb") as file:
                file.write(content)
            try:
                report = sp.verify(path, program=PROGRAM)
                yield f"{content[:40]!r}: expected an error, found {report.verdict}"
            except sp.ShardproofError as error:
                if not re.search(expected, str(error)):
                    yield f"{content[:40]!r}: expected {expected}, found {error}"
        # Each drops another argument of the same shape.
        dropping = {
            name: jax.export.export(jax.jit(function), platforms=["cpu"])(*THREE)
            for name, function in (
                ("step", mapped_third),
                ("single", lambda w, other, x: (w + other).sum()),
            )
        }
        single = os.path.join(folder, "single.exported")
        with open(single, "wb") as file:
            file.write(dropping["single"].serialize())
        for one in (dropping["single"], single):
            try:
                report = sp.verify(dropping["step"], single=one, program=PROGRAM)
                yield f"exported with dropped arguments: {report.verdict}"
            except sp.ShardproofError as error:
                if "keep_unused=True" not in str(error):
                    yield f"exported with dropped arguments: {error}"
        try:
            report = sp.verify(lambda w, other, x: mapped_third(w, w, x), *THREE, single=single)
            yield f"a file with dropped arguments: {report.verdict}"
        except sp.ShardproofError as error:
            if "single.exported: found 2 parameters" not in str(error):
                yield f"a file with dropped arguments: {error}"
        yield from check_command(paths[0], os.path.join(folder, "wrong"))


def check_command(right, wrong):
    """Problems with python -m shardproof.jax."""
    environment = {**os.environ, "SHARDPROOF": PROGRAM, "PYTHONPATH": os.path.join(ROOT, "python")}
    for arguments, code, text in (
        ([right, "--stage-timeout", "20"], 0, "EQUIVALENT: plan plan.hlo.gz"),
        ([wrong], 2, "shard_map"),
        ([os.path.join(ROOT, "none")], 2, "No such file"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "shardproof.jax", *arguments],
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode != code or text not in done.stdout + done.stderr:
            yield f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"


def check_complete():
    """The text is that of a compilation that goes to its end."""
    from shardproof.jax import partitioned

    lowered = jax.jit(constrained(AUTO), in_shardings=(COLUMNS, ROWS)).lower(*TWO)
    module, callback = lowered.compiler_ir("stablehlo"), partitioned._callback
    if callback() is None:
        yield "the compilation is not ended early"
    early = partitioned.text_of_module(module)
    partitioned._callback = lambda: None
    complete = partitioned.text_of_module(module), partitioned.text_of_lowered(lowered)
    partitioned._callback = callback
    if complete != (early, early):
        yield "a compilation that is ended early has another text"
    # Other compilations go on.
    with partitioned._ending("another", callback()):
        if jax.jit(lambda x: x + 1).lower(1).compile()(1) != 2:
            yield "another module is not compiled"


def main():
    problems = [*check_complete(), *check_files()]
    for name, (mesh, step, arguments, options) in RIGHT.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                report = verify(mesh, step, arguments, {**options, "directory": folder})
            except sp.ShardproofError as error:
                problems.append(f"{name}: {error}")
                continue
            if not report.equivalent:
                problems.append(f"{name}: expected equivalent, found\n{report}")
            count, others = broken(folder, name)
            problems += [f"{name}, {other}" for other in others]
            if count == 0:
                problems.append(f"{name}: there is no broken copy")
            print(f"{name}: {report.verdict}, {count - len(others)} broken copies refuted")
    for name, report in refuted_steps():
        print(f"{name}: {report.verdict}")
        if report.verdict != "not equivalent" or not report.defects:
            problems.append(f"{name}: expected not equivalent, found\n{report}")
    # proved with parts that are looked for, which takes its time only if other lemmas take it all
    report = verify(None, gathered_pairs(jax.lax.pmean), PAIRS, {"single": pairs})
    if not report.equivalent:
        problems.append(f"pairs: expected equivalent, found\n{report}")
    report = verify(*RIGHT["constraint only"])
    if len(report.removed) != 1 or not re.search(
        r"Model:  without the sharding constraints at \S*jax_steps.py:\d+$", str(report).rstrip()
    ):
        problems.append(f"expected one constraint that was removed, found\n{report}")
    for name, (step, arguments, options, expected) in REFUSED.items():
        try:
            report = verify(None, step, arguments, options)
            problems.append(f"{name}: expected an error, found {report.verdict}")
        except sp.ShardproofError as error:
            if not re.search(expected, str(error)):
                problems.append(f"{name}: expected {expected}, found {error}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
