# SPDX-License-Identifier: Apache-2.0
"""Proves that what XLA made of a sharded JAX program computes what the program computes on one
device.

    import shardproof.jax
    report = shardproof.jax.verify(step, *shapes, in_shardings=..., out_shardings=...)
    assert report.equivalent, report.text

Only shapes are needed, and no accelerator: for a mesh of N devices of the CPU, start Python with
XLA_FLAGS=--xla_force_host_platform_device_count=N. docs/jax.md describes which programs are
understood.
"""

import dataclasses
import functools
import glob
import gzip
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from ..program import ProgramError, run_verify

__all__ = ["Report", "ShardproofError", "assert_equivalent", "dump", "verify"]

_VERDICTS = {0: "equivalent", 10: "not equivalent", 5: "undecided", 4: "conditional"}


# The program could not be run, or does not understand what it was given; the message has what.
ShardproofError = ProgramError


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of `shardproof verify`."""

    verdict: str  # "equivalent", "not equivalent", "undecided" or "conditional"
    text: str  # as it is printed
    data: dict[str, Any]  # the complete report, as --json writes it
    assumptions: tuple[str, ...]  # what was taken for granted of the programs

    @property
    def equivalent(self) -> bool:
        return self.verdict == "equivalent"

    @property
    def defects(self) -> list[Any]:
        found: list[Any] = self.data.get("defects", [])
        return found

    def __str__(self) -> str:
        return self.text


def _compiled_text(
    step: Callable[..., Any],
    shapes: Sequence[Any],
    pattern: str,
    options: dict[str, Any],
    jit_options: dict[str, Any],
) -> str:
    import jax

    with tempfile.TemporaryDirectory(prefix="shardproof-") as directory:
        # A function of its own: a compilation that is found in a cache is not dumped.
        @functools.wraps(step)
        def own(*arguments: Any) -> Any:
            return step(*arguments)

        jax.jit(own, keep_unused=True, **jit_options).lower(*shapes).compile(
            compiler_options={
                "xla_dump_to": directory,
                "xla_dump_hlo_as_text": True,
                "xla_dump_large_constants": True,
                **options,
            }
        )
        found = sorted(glob.glob(os.path.join(directory, pattern)))
        if len(found) != 1:
            raise ShardproofError(
                f"XLA wrote {len(found)} files {pattern}, expected one "
                "(is the program compiled for several devices?)"
            )
        with open(found[0], encoding="utf-8") as file:
            return file.read()


def _write(path: str, text: str) -> str:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def dump(
    step: Callable[..., Any],
    *shapes: Any,
    directory: str,
    in_shardings: Any = None,
    out_shardings: Any = None,
    single: Callable[..., Any] | None = None,
) -> tuple[str, str]:
    """Writes both programs to `directory`. Returns the paths of the model and of the plan.

    `step` runs on the mesh, with these shardings. `shapes` are its arguments, jax.ShapeDtypeStruct
    or arrays, of which only shapes and types are used. `single` is the same computation for one
    device, if it is written differently (a step that is made of shard_map). Otherwise it is `step`
    itself, without shardings.
    """
    os.makedirs(directory, exist_ok=True)
    shardings = {}
    if in_shardings is not None:
        shardings["in_shardings"] = in_shardings
    if out_shardings is not None:
        shardings["out_shardings"] = out_shardings
    model = _compiled_text(
        single if single is not None else step, shapes, "*before_optimizations.txt", {}, {}
    )
    plan = _compiled_text(
        step,
        shapes,
        "*after_spmd-partitioning*.txt",
        {"xla_dump_hlo_pass_re": "spmd-partitioning", "xla_keep_shardings_after_spmd": True},
        shardings,
    )
    return (
        _write(os.path.join(directory, "model.hlo.gz"), model),
        _write(os.path.join(directory, "plan.hlo.gz"), plan),
    )


def verify(
    step: Callable[..., Any],
    *shapes: Any,
    in_shardings: Any = None,
    out_shardings: Any = None,
    single: Callable[..., Any] | None = None,
    directory: str | None = None,
    program: str | None = None,
    arguments: Sequence[str] = (),
) -> Report:
    """Proves that `step` on its mesh computes what it computes on one device, or shows where it
    does not.

    Parameters are those of `dump`. The programs are kept if a `directory` is given. `program` is
    the path of shardproof, `arguments` go to `shardproof verify`. Raises ShardproofError for what
    is not understood.
    """
    with tempfile.TemporaryDirectory(prefix="shardproof-") as temporary:
        model, plan = dump(
            step,
            *shapes,
            directory=directory or temporary,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            single=single,
        )
        data, done = run_verify(plan, model, arguments, program)
    return Report(
        _VERDICTS[done.returncode],
        done.stdout,
        data,
        tuple(a["text"] for a in data.get("assumptions", ())),
    )


def assert_equivalent(step: Callable[..., Any], *shapes: Any, **options: Any) -> Report:
    """For tests: fails with the whole report unless the verdict is "equivalent".

    Parameters are those of `verify`. Raises AssertionError.
    """
    report = verify(step, *shapes, **options)
    assert report.equivalent, report.text
    return report
