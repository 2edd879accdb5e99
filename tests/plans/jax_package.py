#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python/shardproof/jax, from JAX source to the verdict; skipped (77) without jax.

jax_package.py PROGRAM: shardproof's path. If this Python has no jax, another one runs this:
SHARDPROOF_JAX_PYTHON, or the one that scripts/setup_jax put beside the program.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def with_jax():
    try:
        import jax  # noqa: F401
    except ImportError:
        beside = os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "jax", "bin", "python")
        other = os.environ.pop("SHARDPROOF_JAX_PYTHON", beside)
        if not os.path.exists(other) or sys.executable == other:
            print("no jax: skipped")
            sys.exit(77)
        os.execv(other, [other] + sys.argv)


def main():
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    os.environ["JAX_PLATFORMS"] = "cpu"
    with_jax()
    import tempfile

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    sys.path.insert(0, os.path.join(ROOT, "python"))
    import shardproof.jax

    program = os.path.abspath(sys.argv[1])
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("dp", "tp"))

    def placed(*spec):
        return NamedSharding(mesh, P(*spec))

    def step(w, x):
        loss, grads = jax.value_and_grad(lambda v: jnp.mean(jnp.tanh(x @ v["a"]) @ v["b"]))(w)
        return loss, jax.tree.map(lambda p, g: p - 0.1 * g, w, grads)

    w = {
        "a": jax.ShapeDtypeStruct((128, 512), "float32"),
        "b": jax.ShapeDtypeStruct((512, 128), "float32"),
    }
    x = jax.ShapeDtypeStruct((64, 128), "float32")
    place = {"a": placed(None, "tp"), "b": placed("tp", None)}

    report = shardproof.jax.assert_equivalent(
        step,
        w,
        x,
        in_shardings=(place, placed("dp")),
        out_shardings=(placed(), place),
        program=program,
    )
    assert report.equivalent and not report.defects and "EQUIVALENT" in str(report), report

    def mapped(body):
        return jax.shard_map(
            body,
            mesh=mesh,
            in_specs=({"a": P(None, "tp"), "b": P("tp", None)}, P("dp")),
            out_specs=P("dp"),
            check_vma=False,
        )

    def forward(w, x):
        return jnp.tanh(x @ w["a"]) @ w["b"]

    shardings = {
        "in_shardings": (place, placed("dp")),
        "out_shardings": placed("dp"),
        "single": forward,
        "program": program,
    }
    right = mapped(lambda w, x: jax.lax.psum(forward(w, x), "tp"))
    assert shardproof.jax.verify(right, w, x, **shardings).equivalent
    wrong = mapped(forward)  # without the psum
    report = shardproof.jax.verify(wrong, w, x, **shardings)
    assert report.verdict == "not equivalent" and report.defects, report
    try:
        shardproof.jax.assert_equivalent(wrong, w, x, **shardings)
    except AssertionError as error:
        assert "NOT EQUIVALENT" in str(error), error
    else:
        raise SystemExit("assert_equivalent accepted a wrong program")

    with tempfile.TemporaryDirectory() as directory:
        model, plan = shardproof.jax.dump(
            step,
            w,
            x,
            directory=directory,
            in_shardings=(place, placed("dp")),
            out_shardings=(placed(), place),
        )
        assert sorted(os.listdir(directory)) == sorted(map(os.path.basename, (model, plan)))
    try:
        shardproof.jax.verify(
            lambda v: jax.lax.sort([v, -v, v], num_keys=2)[0],
            x,
            in_shardings=(placed("dp"),),
            out_shardings=placed("dp"),
            program=program,
        )
    except shardproof.jax.ShardproofError as error:
        assert "a sort by other than one operand" in str(error), error
    else:
        raise SystemExit("a sort by two keys was accepted")
    print("jax", jax.__version__, "to the verdict")


if __name__ == "__main__":
    main()
