# SPDX-License-Identifier: Apache-2.0
"""Proves that what XLA made of a sharded JAX program computes what the program computes on one
device.

    import shardproof.jax
    report = shardproof.jax.verify(step, *shapes)
    assert report.equivalent, report.text

Only shapes are needed, and no accelerator. docs/jax.md describes which programs are understood.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from ..program import ProgramError, run_verify

__all__ = ["Report", "ShardproofError", "assert_equivalent", "dump", "verify"]

# Exit codes of `shardproof verify`.
CODES = {"equivalent": 0, "not equivalent": 10, "undecided": 5, "conditional": 4}
_VERDICTS = {code: verdict for verdict, code in CODES.items()}


# The program could not be run, or does not understand what it was given; the message has what.
ShardproofError = ProgramError


_MOST_PLACES = 8  # of sharding constraints, that a report lists


@dataclasses.dataclass(frozen=True)
class Report:
    """The report of `shardproof verify`."""

    verdict: str  # "equivalent", "not equivalent", "undecided" or "conditional"
    text: str  # as it is printed
    data: dict[str, Any]  # the complete report, as --json writes it
    assumptions: tuple[str, ...]  # what was taken for granted of the programs
    removed: tuple[str, ...] = ()  # where sharding constraints were left out of the model

    @property
    def equivalent(self) -> bool:
        return self.verdict == "equivalent"

    @property
    def defects(self) -> list[Any]:
        found: list[Any] = self.data.get("defects", [])
        return found

    def __str__(self) -> str:
        if not self.removed:
            return self.text
        places = ", ".join(self.removed[:_MOST_PLACES])
        if len(self.removed) > _MOST_PLACES:
            places += f" and {len(self.removed) - _MOST_PLACES} more"
        return f"{self.text.rstrip()}\nModel:  without the sharding constraints at {places}\n"


@dataclasses.dataclass(frozen=True)
class _Programs:
    model: str  # paths
    plan: str
    removed: tuple[str, ...]


def _capture(
    step: Any,
    shapes: Sequence[Any],
    directory: str,
    in_shardings: Any,
    out_shardings: Any,
    single: Any,
) -> _Programs:
    from .lowered import has_arguments, lower, without_shardings
    from .partitioned import text_of_lowered, text_of_module
    from .single_device import single_device, text_of_single

    plan = lower(step, shapes, in_shardings, out_shardings, single is not None)
    model = plan
    if single is not None:
        given = () if has_arguments(single) else without_shardings(shapes)
        model = lower(single, given, None, None, True)
    one = single_device(model.module)
    # Before the partitioner, which takes longer: what is refused is refused at once.
    text = text_of_single(one)
    if plan.platform == "cpu":
        partitioned = text_of_module(plan.module)
    else:
        partitioned = text_of_lowered(plan.lowered)
    os.makedirs(directory, exist_ok=True)
    return _Programs(
        _write(os.path.join(directory, "model.hlo.gz"), text),
        _write(os.path.join(directory, "plan.hlo.gz"), partitioned),
        one.removed,
    )


def _write(path: str, text: str) -> str:
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        file.write(text)
    return path


def dump(
    step: Any,
    *shapes: Any,
    directory: str,
    in_shardings: Any = None,
    out_shardings: Any = None,
    single: Any = None,
) -> tuple[str, str]:
    """Writes both programs to `directory`. Returns the paths of the model and of the plan.

    `step` runs on the mesh: a function with these shardings, or one that is jitted. `shapes` are
    its arguments, jax.ShapeDtypeStruct or arrays, of which shapes, types and shardings are used.
    It may also be what jit lowered or jax.export exported, or the path of a file (files.py). The
    model is the same program without shardings. `single` is the same computation for one device,
    for a step from which that cannot be derived: one with shard_map.
    """
    made = _capture(step, shapes, directory, in_shardings, out_shardings, single)
    return made.model, made.plan


def verify(
    step: Any,
    *shapes: Any,
    in_shardings: Any = None,
    out_shardings: Any = None,
    single: Any = None,
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
        made = _capture(step, shapes, directory or temporary, in_shardings, out_shardings, single)
        # The folder is gone when the report is read.
        try:
            data, done = run_verify(made.plan, made.model, arguments, program)
        except ProgramError as error:
            raise ProgramError(str(error).replace(temporary + os.sep, "")) from error
        text = done.stdout.replace(temporary + os.sep, "")
    return Report(
        _VERDICTS[done.returncode],
        text,
        data,
        tuple(a["text"] for a in data.get("assumptions", ())),
        made.removed,
    )


def assert_equivalent(step: Any, *shapes: Any, **options: Any) -> Report:
    """For tests: fails with the whole report unless the verdict is "equivalent".

    Parameters are those of `verify`. Raises AssertionError.
    """
    report = verify(step, *shapes, **options)
    assert report.equivalent, report.text
    return report
