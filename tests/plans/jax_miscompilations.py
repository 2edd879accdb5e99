#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs that XLA partitions wrongly: each is refuted from its source, and its numbers on devices
are others than on one (docs/jax.md, "Miscompilations of XLA"). Where the numbers are right by now,
the test fails, so that the page is brought up to date.

jax_miscompilations.py PROGRAM: shardproof's path; skipped (77) without jax, as jax_package.py is.
"""

import glob
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from jax_devices import AUTO, EXPLICIT, PROGRAM  # noqa: I001, after it jax has its devices

import jax
import jax.numpy as jnp
import numpy as np
import shardproof.jax as sp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

COLUMNS = P(None, "tp")


def updated(x, u, i):
    """One column beyond the last: `dynamic_update_slice` writes the last one."""
    return lax.dynamic_update_slice(x, u, (0, i))


def updated_where_it_is(x, u, i):
    """The same with the index in bounds."""
    return updated(x, u, jnp.clip(i, 0, x.shape[1] - u.shape[1]))


def sliced(x, i):
    """Four columns from the sixth of eight on: `dynamic_slice` takes the last four."""
    return lax.with_sharding_constraint(
        lax.dynamic_slice(x, (0, i), (2, 4)), NamedSharding(AUTO, COLUMNS)
    )


def reduced_gradient(w, ids, targets):
    """A table without copies of its gradient: it is sliced before the devices' parts are added."""

    def loss(w):
        table = jax.sharding.reshard(w, P("dp", None, reduced={"tp"}))
        rows = table.at[ids].get(out_sharding=P("dp", "tp", None))
        return jnp.mean((jnp.tanh(rows) - targets) ** 2)

    return jax.sharding.reshard(jax.grad(loss)(w), P("dp", "tp"))


def reduced_gradient_on_one(w, ids, targets):
    return jax.grad(lambda w: jnp.mean((jnp.tanh(w[ids]) - targets) ** 2))(w)


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


X, U = numbers(2, 8), numbers(2, 1)
IDS = np.random.default_rng(0).integers(0, 16, (4, 8)).astype("int32")
# issue -> mesh, step, the same for one device, arguments, their specs
WRONG = {
    "openxla/xla 49118": (AUTO, updated, updated, (X, U, np.int32(9)), (COLUMNS, P(), P())),
    "openxla/xla 42481": (EXPLICIT, reduced_gradient, reduced_gradient_on_one,
                          (numbers(16, 8), IDS, numbers(4, 8, 8)),
                          (P("dp", "tp"), P("dp", "tp"), P("dp", "tp", None))),
}  # fmt: skip
RIGHT = {
    "openxla/xla 49118, in bounds": (AUTO, updated_where_it_is, updated_where_it_is,
                                     (X, U, np.int32(9)), (COLUMNS, P(), P())),
}  # fmt: skip


# By a pass after the partitioner: its program is right.
WRONG_PASSES = {
    "openxla/xla 49122": (AUTO, sliced, lambda x, i: lax.dynamic_slice(x, (0, i), (2, 4)),
                          (X, np.int32(5)), (COLUMNS, P())),
}  # fmt: skip


def passes_differ(mesh, step, one, arguments, specs):
    """Whether the program that XLA's optimizer makes of the partitioned one is refuted."""
    placed = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(arguments, specs)]
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "xla_dump_to": folder,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
            "xla_keep_shardings_after_spmd": True,
        }
        jax.jit(step).lower(*placed).compile(compiler_options=options)
        before, after = (
            glob.glob(os.path.join(folder, pattern))
            for pattern in ("*.after_spmd-partitioning.*.txt", "*.cpu_after_optimizations.txt")
        )
        files = ["--before", before[0], "--after", after[0]]
        done = subprocess.run([PROGRAM, "verify", "-q", *files], capture_output=True, text=True)
    return done.returncode == 10


def found(mesh, step, one, arguments, specs):
    """The report, and whether devices compute what one does."""
    shapes = [
        jax.ShapeDtypeStruct(np.shape(a), a.dtype, sharding=NamedSharding(mesh, spec))
        for a, spec in zip(arguments, specs)
    ]
    placed = [jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(arguments, specs)]
    with jax.set_mesh(mesh):
        report = sp.verify(step, *shapes, program=PROGRAM)
        many = jax.jit(step)(*placed)
    return report, np.allclose(np.asarray(many), np.asarray(jax.jit(one)(*arguments)), atol=1e-5)


def main():
    problems = []
    for cases, verdict, same in (
        (WRONG, "not equivalent", False),
        (WRONG_PASSES, "equivalent", False),
        (RIGHT, "equivalent", True),
    ):
        for name, case in cases.items():
            report, agree = found(*case)
            print(f"{name}: {report.verdict}; numbers {'agree' if agree else 'differ'}")
            if report.verdict != verdict:
                problems.append(f"{name}: expected {verdict}, found\n{report}")
            if agree and not same:
                problems.append(
                    f"{name}: jaxlib {jax.lib.__version__} computes the numbers of one device: it "
                    "is mended, so take it out of this test and of docs/jax.md"
                )
            if same and not agree:
                problems.append(f"{name}: devices have other numbers than one device")
            if cases is WRONG_PASSES and not passes_differ(*case):
                problems.append(f"{name}: the optimized program is not refuted")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
