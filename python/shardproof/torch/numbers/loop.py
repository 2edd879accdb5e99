# SPDX-License-Identifier: Apache-2.0
"""Traces one step of a training loop that goes on afterwards."""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import optimizer as optim

from ..distributed.mesh import Mesh
from .reference_values import ReferenceValues
from .trace_file import TraceWriter
from .tracer import Tracer
from .traces import TraceError, draw_folder, forget_draws


@contextlib.contextmanager
def tracing(
    *models: nn.Module,
    out: str | os.PathLike[str],
    mesh: Mapping[str, int] | str | None = None,
    draw: int = 0,
    only: Sequence[str] = (),
    modules: bool = False,
    isolate: str | os.PathLike[str] | None = None,
    sketches: bool = False,
) -> Iterator[None]:
    """Inside, one step of a loop is recorded, with the numbers that it has.

        for i, batch in enumerate(loader):
            with sp.tracing(model, out="candidate", mesh="dp=2") if i == 3 else nullcontext():
                train(batch)

    models: as the step calls them, wrappers included. out: a folder, for `shardproof compare`.
    mesh: of the ranks of the process group, one axis `rank` by default. draw: the number of a
    perturbed trace, which a reference needs as well; the step has to begin with the same numbers.
    only, modules, isolate, sketches: as of `sp.trace`. Each rank writes its own files.

    Raises ValueError for a mesh of another size than the process group, UnusableReference for a
    report to isolate by that cannot be used, and TraceError where the optimizers inside do not make
    one step each.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if mesh is None:
        mesh = {"rank": world}
    where = Mesh.parse(mesh) if isinstance(mesh, str) else Mesh(mesh)
    if where.world != world:
        raise ValueError(f"mesh has {where.world} ranks, and the process group has {world}")
    if draw and isolate is not None:
        raise ValueError("isolate is of a candidate, and draw is of a reference")
    reference = None if isolate is None else ReferenceValues(isolate, where, rank, out)
    if not draw:
        forget_draws(out, where, rank)
    writer = TraceWriter(draw_folder(out, draw), where, rank, only, sketches)
    writer.isolated = reference is not None
    side = Tracer(where, rank, writer, draw, True, modules, reference)
    steps: collections.Counter[int] = collections.Counter()

    def stepped(optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
        steps[id(optimizer)] += 1

    handle = optim.register_optimizer_step_post_hook(stepped)
    try:
        with side.listening(own_random_state=True):
            for model in models:
                side.binding.bind(model)
            yield
            if not steps or max(steps.values()) > 1:
                raise TraceError(
                    f"the optimizers made {sorted(steps.values())} steps inside of sp.tracing; "
                    "expected one step of each: let it enclose one iteration of the loop"
                )
            side.finish(None)
    finally:
        handle.remove()
    writer.close()
