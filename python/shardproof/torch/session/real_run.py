# SPDX-License-Identifier: Apache-2.0
"""The step runs for real, and each rank's numbers are those of its recorded program.

A verdict is about the recorded programs. That the recorder understood each operator, collective and
layout as PyTorch does is looked at here: the step runs once more with numbers, on one device and on
gloo processes, `shardproof run` executes the recorded model and plan on the same numbers, and what
each rank holds at the end is compared, tensor by tensor. Agreement holds for these numbers.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...program import ProgramError, execute_files
from ...report import Agreement
from ..compat import private
from ..distributed.mesh import Mesh
from ..step.several_steps import each, numbered
from ..step.tracked_tensors import unwrapped
from ..step.world import World
from ..trace.recording import Step
from ..trace.results import results as results_of
from .numeric import IF_ALL, KEPT, Numbers, in_process_group

# What is executed at most: elements of all tensors of one rank's program and of the model, times
# the ranks. Ten million take a second or two.
MOST_ELEMENTS = 20_000_000
MOST_RANKS = 16
# The step itself: far more than so many elements need.
MOST_SECONDS = 60.0
NOT_ENDED = "it did not end"

# How far a tensor may be from what is executed in doubles, as a share of its norm, by the precision
# in which the step computes. A recorder that is wrong is off by more: it takes another element,
# operator, rank or factor.
_TOLERANCES = {
    torch.float64: 1e-6,
    torch.float32: 1e-3,
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}


class _Local(Numbers):
    """Keeps what this rank holds, without communication of its own."""

    def __init__(self, mesh: Mesh, rank: int, ranges: Mapping[str, int]) -> None:
        super().__init__(mesh, rank)
        self.ranges = ranges
        self.given: dict[str, torch.Tensor] = {}  # input of the model -> what this rank has of it
        self.shares: dict[str, int] = {}
        self.undeclared: set[str] = set()  # parameters that begin as whole ones

    def _note(self, name: str, t: torch.Tensor) -> None:
        self.given[name] = self.now(t)

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        shard: Mapping[str, int],
        box: list[tuple[int, int]],
        high: int | None,
    ) -> torch.Tensor:
        t = super().input(name, shape, dtype, shard, box, high or self.ranges.get(name))
        self._note(name, t)
        return t

    def bound(self, parameters: dict[str, nn.Parameter]) -> None:
        super().bound(parameters)
        for name, p in parameters.items():
            self._note(name, p)
            declared = isinstance(p, private.DTensor) or self.binding.shard_of(name)
            if not declared and name not in self.binding.stretches:
                self.undeclared.add(name)

    def buffers(self, buffers: dict[str, tuple[torch.Tensor, bool]]) -> None:
        super().buffers(buffers)
        for name, (b, _) in buffers.items():
            self._note(f"{name}.old", b)
            self._note(name, b)

    def states(
        self, optimizer: Any, states: list[tuple[str, str, torch.Tensor, nn.Parameter]]
    ) -> None:
        super().states(optimizer, states)
        for name, key, value, _ in states:
            self._note(f"{name}.{key}", value)

    def output(
        self,
        name: str,
        tensor: torch.Tensor,
        shard: Mapping[str, int] | None,
        mean: Sequence[str] | None,
        total: Sequence[str],
    ) -> None:
        self.output_memory.add(unwrapped(tensor).data_ptr())
        self.results[name] = self.now(tensor)
        self._share(name, self.means(tensor, shard, mean, total, self._covered(tensor)))

    def keep(self, result: Any, number: int = 1) -> None:
        for label, t in results_of(result):
            label = numbered(label, number)
            self.results[label] = self.now(t)
            self._share(label, self.means(t, None, None, (), self._covered(t)))

    def _share(self, label: str, mean: Sequence[str]) -> None:
        self.shares[label] = math.prod(self.mesh.sizes.get(axis, 1) for axis in mean)

    def _whole(self, t: torch.Tensor, shard: Mapping[str, int] | None) -> torch.Tensor:
        return self.now(t)

    def _changed_buffers(self) -> None:
        for name, b in self.saved_buffers().items():
            self.results[f"{name}.new"] = self.now(b)

    def _join(self, flat: list[tuple[str, Any]]) -> None:
        """Parts of a flat tensor have boxes of their own, which are not looked at."""


@dataclasses.dataclass
class Ran:
    """What one process had: inputs of the model, results at the end, by how many ranks a result is
    divided to be a mean, and parameters of which it was not told that they are parts.
    """

    given: dict[str, np.ndarray[Any, Any]]
    results: dict[str, np.ndarray[Any, Any]]
    shares: dict[str, int]
    undeclared: set[str]
    dtypes: set[torch.dtype]


def run_rank(step: Step, mesh: Mesh, rank: int, folder: str, ranges: Mapping[str, int]) -> Ran:
    """The step of this rank, with numbers.

    folder: where the ranks meet. ranges: integer input -> its numbers are below.
    """
    with in_process_group(rank, mesh.world, folder):
        side = _Local(mesh, rank, ranges)
        with side.listening():
            side.finish(each(step(World(mesh, rank, side)), side.keep))
    return Ran(
        {name: _array(t) for name, t in side.given.items()},
        {
            name: _array(t)
            for name, t in side.results.items()
            if not name.startswith((KEPT, IF_ALL))
        },
        side.shares,
        side.undeclared,
        {t.dtype for t in (*side.given.values(), *side.results.values()) if t.is_floating_point()},
    )


def _array(t: torch.Tensor) -> np.ndarray[Any, Any]:
    if t.is_complex():
        return np.asarray(t.to(torch.complex128).numpy())
    return np.asarray((t.double() if t.is_floating_point() else t.long()).numpy())


def wanted_by(environment: Mapping[str, str]) -> bool:
    """Whether steps are run with numbers where the caller leaves it open: $SHARDPROOF_NUMBERS is
    not 0.
    """
    return environment.get("SHARDPROOF_NUMBERS", "1") != "0"


def obstacle(step: Step, model: Mapping[str, Any], decides: bool, other: str, world: int) -> str:
    """Why the step is not run with numbers; empty: it can be.

    decides: its code depends on numbers of data, which may be others than in the recording. other:
    how else what was recorded is not what would run.
    """
    if getattr(step, "whole_script", False):
        return "scripts are not run (python -m shardproof.torch.trace records one)"
    if decides:
        return "the code decides by numbers of data"
    if other:
        return other
    if world > MOST_RANKS:
        return f"{world} ranks are more than {MOST_RANKS}"
    elements = sum(math.prod(t["shape"]) for t in model["tensors"].values()) * (1 + world)
    if elements > MOST_ELEMENTS:
        return f"the tensors have {elements:.1e} elements, more than {MOST_ELEMENTS:.0e}"
    return ""


@dataclasses.dataclass
class RealRun:
    """The step ran with numbers. because: or why it did not."""

    single: Ran | None = None
    ranks: Sequence[Ran] = ()
    because: str = ""
    seconds: float = 0.0


def real_run(found: Mapping[int, Ran | str], single: int, seconds: float) -> RealRun:
    """What the processes brought. single: the key of the single device."""
    failed = {key: ran for key, ran in found.items() if isinstance(ran, str)}
    own = {key: text for key, text in failed.items() if not text.startswith(NOT_ENDED)} or failed
    for key, text in own.items():
        where = "the single device" if key == single else f"rank {key}"
        return RealRun(because=f"{where} cannot run here: {' '.join(text.split())}")
    ranks = [ran for key, ran in sorted(found.items()) if key != single and isinstance(ran, Ran)]
    one = found[single]
    return RealRun(one if isinstance(one, Ran) else None, ranks, "", seconds)


def compare(
    run: RealRun,
    plan_file: Path,
    model: Mapping[str, Any],
    plan: Mapping[str, Any],
    constants: Mapping[str, torch.Tensor],
    names: Mapping[str, str],
    mesh: Mesh,
) -> Agreement:
    """Executes the recorded model and plan on the numbers of the single device, and compares what
    it and each rank have in the end.

    names: result -> tensor of the model.
    """
    start = time.monotonic()
    if run.single is None:
        return Agreement(because=run.because)
    for rank, ran in enumerate(run.ranks):
        for name in sorted(ran.undeclared & run.single.given.keys()):
            if ran.given[name].shape != run.single.given[name].shape:
                return Agreement(
                    because=f"rank {rank} has a part of {name}, and the step does not declare "
                    "which (world.parameters(model, shard=...))"
                )
    inputs = {name: _array(t) for name, t in constants.items()}
    inputs.update(run.single.given)
    wanted = {n: t for n, t in model["tensors"].items() if t.get("kind") in ("input", "parameter")}
    for name, t in wanted.items():
        if name not in inputs:
            return Agreement(because=f"the step that runs has no number for {name}")
        if list(inputs[name].shape) != list(t["shape"]):
            return Agreement(
                because=f"{name} is {list(inputs[name].shape)} where the step runs, and "
                f"{t['shape']} in the recording"
            )
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "inputs.npz", Path(folder) / "outputs.npz"
        np.savez(given, **{n: inputs[n] for n in wanted})
        try:
            execute_files(plan_file, ["--inputs", str(given), "--outputs", str(made)])
        except ProgramError as e:
            return Agreement(because=f"the recorded programs are not executed: {e}")
        with np.load(made) as executed:
            agreement = _compared(executed, plan, names, mesh, run.single, run.ranks)
    agreement.seconds = run.seconds + time.monotonic() - start
    return agreement


def _compared(
    executed: Mapping[str, np.ndarray[Any, Any]],
    plan: Mapping[str, Any],
    names: Mapping[str, str],
    mesh: Mesh,
    single: Ran,
    ranks: Sequence[Ran],
) -> Agreement:
    agreement = Agreement()
    allowed = max(
        (_TOLERANCES.get(d, 1.0) for ran in (single, *ranks) for d in ran.dtypes), default=1e-6
    )
    for label, tensor in names.items():
        if label in single.results:
            _look(
                agreement,
                allowed,
                label,
                "the single device",
                single.results[label],
                executed[f"model/{tensor}"],
            )
    labels: dict[str, list[str]] = {}
    for label, tensor in names.items():
        if any(label in ran.results for ran in ranks):
            labels.setdefault(tensor, []).append(label)
    for rank, ran in enumerate(ranks):
        held: dict[str, list[tuple[Any, Any]]] = {}
        for entry in plan["lineage"]:
            if entry["role"] == "output" and len(labels.get(entry["tensor"], ())) == 1:
                for shard in entry["shards"]:
                    held.setdefault(labels[entry["tensor"]][0], []).extend(
                        (shard, part) for part in shard["parts"] if _is_on(mesh, rank, part)
                    )
        for label, parts in held.items():
            if label not in ran.results or len(parts) != 1:
                continue
            shard, part = parts[0]
            local = executed.get(f"rank{rank}/{part['local']}")
            if local is not None:
                _look(
                    agreement,
                    allowed,
                    label,
                    f"rank {rank}",
                    ran.results[label],
                    _selected(local, part) * ran.shares.get(label, 1),
                )
    return agreement


def _is_on(mesh: Mesh, rank: int, part: Mapping[str, Any]) -> bool:
    at = mesh.coordinates(rank)
    return all(
        at[axis] == where if isinstance(where, int) else where[0] <= at[axis] < where[1]
        for axis, where in part.get("at", {}).items()
    )


def _selected(local: np.ndarray[Any, Any], part: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The elements of a part, as docs/format.md has it."""
    if "local_box" in part:
        local = local[tuple(slice(a, b) for a, b in part["local_box"])]
    if "view" in part:
        local = local.reshape(part["view"])
    if "permute" in part:
        local = local.transpose(part["permute"])
    scale = part.get("scale", 1)
    return local * (scale[0] / scale[1] if isinstance(scale, list) else scale)


def _look(
    agreement: Agreement,
    allowed: float,
    label: str,
    where: str,
    real: np.ndarray[Any, Any],
    executed: np.ndarray[Any, Any],
) -> None:
    if agreement.differs:
        return
    if real.shape != executed.shape:
        agreement.differs = (
            f"{label} on {where} has the shape {list(real.shape)} where the step runs and "
            f"{list(executed.shape)} in the recording"
        )
        return
    both = np.isfinite(real) & np.isfinite(executed)
    distance = np.abs(np.where(both, real - executed, 0.0))
    size = float(np.sqrt(np.mean(np.abs(np.where(both, executed, 0.0)) ** 2))) if real.size else 0.0
    bound = allowed * max(size, 1e-3)
    far = float(np.sqrt(np.mean(distance**2))) if real.size else 0.0
    on_one = np.isfinite(real) != np.isfinite(executed)
    if far <= bound and not on_one.any():
        agreement.compared += 1
        return
    furthest = np.argmax(on_one if on_one.any() else distance)
    worst = tuple(int(i) for i in np.unravel_index(int(furthest), real.shape))
    agreement.differs = (
        f"{label} on {where} is {real[worst]:.6g} at {list(worst)} where the step runs, and "
        f"{executed[worst]:.6g} in the recording"
    )


__all__ = [
    "MOST_SECONDS",
    "NOT_ENDED",
    "Agreement",
    "Ran",
    "RealRun",
    "compare",
    "obstacle",
    "real_run",
    "run_rank",
    "wanted_by",
]
