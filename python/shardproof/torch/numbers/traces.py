# SPDX-License-Identifier: Apache-2.0
"""Traces of a step function on processes of this machine (gloo, on a CPU)."""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp

from ..distributed.mesh import Mesh
from ..session.numeric import processes
from ..step.several_steps import each
from ..step.world import World
from .reference_values import ReferenceValues
from .trace_file import TraceWriter
from .tracer import Tracer


class TraceError(RuntimeError):
    """A step could not be traced."""


def draw_folder(out: str | os.PathLike[str], draw: int) -> Path:
    """Where the trace of a draw is: 0 is the trace itself, others are perturbed."""
    return Path(out) / f"draw{draw}" if draw else Path(out)


def forget_draws(out: str | os.PathLike[str], mesh: Mesh, rank: int) -> None:
    """Removes a rank's perturbed traces of an earlier run, and as rank 0 those of ranks that the
    mesh does not have.
    """
    for file in Path(out).glob("draw*/rank*.safetensors"):
        number = file.name[4:].partition(".")[0]
        if number.isdigit() and (int(number) == rank or (rank == 0 and int(number) >= mesh.world)):
            file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others are in it
                file.parent.rmdir()


def trace(
    step: Callable[[World], Any],
    *,
    mesh: Mapping[str, int] | str,
    out: str | os.PathLike[str],
    perturb: int = 0,
    only: Sequence[str] = (),
    modules: bool = False,
    isolate: str | os.PathLike[str] | None = None,
    seed: int = 0,
    sketches: bool = False,
) -> Path:
    """Runs the step with numbers, as each rank of the mesh, and writes a trace of each rank.

    Inputs, parameters and states of optimizers are drawn by their names, so that a trace with
    another mesh begins with the same numbers. step: a function that is importable by name. mesh: of
    the processes; sizes of 1 are the single device. out: a folder, for `shardproof compare`.
    perturb: so many perturbed traces are written as well, which a reference needs. only: patterns
    (*, ?, [...]) of names that are recorded. modules: what each module takes is recorded as well,
    with its gradient. isolate: the JSON report of a comparison of such traces; what modules take
    and return becomes the reference's, so that each is wrong by itself or not. seed: other numbers
    are drawn. sketches: of each large tensor 1,024 sums are written in place of its elements.
    Returns the folder.

    Raises ValueError for a wrong mesh and for both perturb and isolate, TypeError for a step that
    another process cannot import, and TraceError for what the step raises.
    """
    where = Mesh.parse(mesh) if isinstance(mesh, str) else Mesh(mesh)
    if perturb and isolate is not None:
        raise ValueError("isolate is of a candidate, and perturb is of a reference")
    try:
        pickle.dumps(step)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise TypeError(
            f"the step runs in other processes, which import it by its name: {e}; expected a "
            "function at the top of a module"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        try:
            processes(
                where.world,
                _traced,
                (
                    step,
                    where.sizes,
                    os.fspath(out),
                    perturb,
                    tuple(only),
                    modules,
                    None if isolate is None else os.fspath(isolate),
                    seed,
                    sketches,
                ),
                folder,
            )
        except mp.ProcessRaisedException as e:
            raise TraceError(f"a rank of the step failed: {e}") from e
    return Path(out)


def _traced(
    rank: int,
    step: Callable[[World], Any],
    mesh: Mapping[str, int],
    out: str,
    perturb: int,
    only: Sequence[str],
    modules: bool,
    isolate: str | None,
    seed: int,
    sketches: bool,
) -> None:
    for draw in range(perturb + 1):
        where = draw_folder(out, draw)
        trace_rank(step, mesh, rank, where, draw, only, modules, isolate, seed, sketches)


def trace_rank(
    step: Callable[[World], Any],
    mesh: Mapping[str, int],
    rank: int,
    folder: str | os.PathLike[str],
    draw: int = 0,
    only: Sequence[str] = (),
    modules: bool = False,
    isolate: str | os.PathLike[str] | None = None,
    seed: int = 0,
    sketches: bool = False,
) -> None:
    """Writes the trace of this rank. The process group must exist.

    Raises UnusableReference for a report to isolate by that cannot be used.
    """
    where = Mesh(mesh)
    reference = None if isolate is None else ReferenceValues(isolate, where, rank, folder)
    if not draw:
        forget_draws(folder, where, rank)
    writer = TraceWriter(folder, where, rank, only, sketches)
    writer.isolated = reference is not None
    side = Tracer(where, rank, writer, draw, modules=modules, reference=reference, seed=seed)
    with side.listening():
        result = each(step(World(where, rank, side)), side.keep)
        side.finish(result)
    writer.close()
