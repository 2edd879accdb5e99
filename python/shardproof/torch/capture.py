"""From a step to the two files and to a verdict."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Mapping, Sequence

from ..program import verify_files
from ..report import Report
from . import _private as private
from .mesh import Mesh
from .model_file import Model, model_of
from .plan_file import plan_of, program_of
from .record import CaptureError, Recording, Step, record


@dataclasses.dataclass
class Capture:
    """What was recorded, as the two files' contents; what was assumed, and how long it took (seconds)."""

    model: dict[str, Any]
    plan: dict[str, Any]
    assumptions: list[str]
    left_out: dict[str, str]     # checkpoints that are not in the files, and why
    unknown: dict[str, str]      # operators without translation that no output needs
    recorded: list[int]          # ranks
    names: dict[str, str]        # output -> the model's tensor that it is
    constants: dict[str, Any]    # inputs of the model whose names begin with %known: the numbers that they have in this step (torch tensors)
    seconds: float

    def write(self, prefix: str | os.PathLike[str]) -> tuple[Path, Path]:
        """PREFIX.model.json.gz and PREFIX.plan.json.gz."""
        model, plan = Path(f"{prefix}.model.json.gz"), Path(f"{prefix}.plan.json.gz")
        for path, content in ((model, self.model), (plan, {**self.plan, "model": model.name})):
            with gzip.open(path, "wt", compresslevel=3) as f:
                json.dump(content, f, separators=(",", ":"))
        return model, plan


def _single(step: Step, mesh: Mesh, name: str) -> Model:
    """The single device; a second time where the range of an integer input is needed while recording."""
    one = Mesh({axis: 1 for axis in mesh.names})
    side = record(step, one, 0)
    known = {**side.graph.ranges, **side.graph.chosen_from}
    if any(n in side.graph.tabulated for n in known):
        side = record(step, one, 0, known)
        side.graph.chosen_from = {**known, **side.graph.chosen_from}
    return model_of(side, name)


def capture(*steps: Step, mesh: Mapping[str, int] | str, ranks: str = "all", checkpoints: bool = True) -> Capture:
    """Records a step (`step(world)`), as one device and on a mesh. With two steps the first is the single device's.

    mesh: axis -> size, slowest first. ranks: "all"; "classes": ranks along an axis that turns out not to matter are recorded twice and taken to be alike.
    Raises CaptureError for what cannot be captured; exceptions of the step pass through.
    """
    if not 1 <= len(steps) <= 2:
        raise TypeError("capture(step, mesh=...) or capture(single, step, mesh=...)")
    start = time.monotonic()
    where = Mesh.parse(mesh) if isinstance(mesh, str) else Mesh(mesh)
    name = getattr(steps[-1], "__name__", "step")
    model = _single(steps[0], where, name)
    sides, alike = _ranks(steps[-1], where, model, ranks)
    plan, left_out, guessed = plan_of(sides, model, f"{name}.model.json.gz", alike, checkpoints)
    assumptions = list(dict.fromkeys([*model.assumptions, *(a for s in sides for a in s.graph.assumptions)]))
    assumptions += [f"{g}: where the ranks' parts lie was concluded from shapes" for g in guessed]
    assumptions += [f"ranks that differ only in {a} run alike: of {where.sizes[a]} coordinates those recorded did" for a in alike]
    unknown = {text: loc for s in sides for text, loc in s.unknown.items()}
    return Capture(model.json, plan, assumptions, left_out, unknown, [s.rank for s in sides], {label: model.tied[("output", label, 0)] for label in model.outputs},
                   dict(model.constants), time.monotonic() - start)


def _ranks(step: Step, mesh: Mesh, model: Model, ranks: str) -> tuple[list[Recording], list[str]]:
    if ranks not in ("all", "classes"):
        raise ValueError(f"ranks={ranks!r}: 'all' or 'classes'")
    recorded = _Recorder(step, mesh, model.classes)
    if ranks == "all":
        return [recorded(r) for r in range(mesh.world)], []
    return _classes(recorded, mesh, model)


class _Recorder:
    """Records ranks. One that waits for what a pipeline's stage on another rank has to tell is run again once that one was."""

    def __init__(self, step: Step, mesh: Mesh, classes: Mapping[str, int]) -> None:
        self.step, self.mesh, self.classes = step, mesh, classes
        self.mailbox: private.Mailbox = {}

    def __call__(self, rank: int, waiting: tuple[int, ...] = ()) -> Recording:
        while True:
            before = len(self.mailbox)
            try:
                return record(self.step, self.mesh, rank, self.classes, self.mailbox)
            except private.MissingMetadata as e:
                if e.peer in waiting and len(self.mailbox) == before:
                    raise CaptureError(f"rank {rank}: {e}") from None
                if e.peer in waiting:
                    raise
                try:
                    self(e.peer, (*waiting, rank))
                except private.MissingMetadata:
                    if len(self.mailbox) == before:
                        raise CaptureError(f"rank {rank}: {e}") from None


def _classes(recorded: _Recorder, mesh: Mesh, model: Model) -> tuple[list[Recording], list[str]]:
    """Along each axis the first, second and last rank are recorded. Where their programs are the same, so are those of the others taken to be; along all other axes every rank is recorded.

    One rank more, far from the first in all axes, checks it.
    """
    found: dict[int, Recording] = {}
    texts: dict[int, str] = {}

    def text(rank: int) -> str:
        if rank not in found:
            found[rank] = recorded(rank)
            texts[rank] = program_of(found[rank], model, set()).text
        return texts[rank]

    axes = [a for a in mesh.names if mesh.sizes[a] > 1]
    alike = [a for a in axes if mesh.sizes[a] > 2 and all(text(mesh.rank({a: k})) == text(0) for k in (1, mesh.sizes[a] - 1))]
    others = [a for a in axes if a not in alike]
    for at in itertools.product(*[range(mesh.sizes[a]) for a in others]):
        text(mesh.rank(dict(zip(others, at))))
    text(mesh.world - 1)
    return [found[r] for r in sorted(found)], alike


def verify(*steps: Step, mesh: Mapping[str, int] | str, ranks: str = "all", checkpoints: bool = True, keep: str | os.PathLike[str] | None = None,
           arguments: Sequence[str] = ()) -> Report:
    """Whether the step on the mesh computes what it computes on one device (or, with two steps, what the first does).

    keep: prefix of files to leave behind; arguments: further options of `shardproof verify`. Raises CaptureError.
    """
    c = capture(*steps, mesh=mesh, ranks=ranks, checkpoints=checkpoints)
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(keep) if keep is not None else Path(folder) / "step"
        _, plan = c.write(prefix)
        report = verify_files(plan, arguments=arguments)
    report.assumptions = c.assumptions
    report.seconds_capture = c.seconds
    return report


def assert_equivalent(*steps: Step, mesh: Mapping[str, int] | str, **options: Any) -> Report:
    """For tests: fails with the report's text unless the verdict is EQUIVALENT."""
    report = verify(*steps, mesh=mesh, **options)
    if not report.equivalent:
        raise AssertionError(str(report))
    return report


__all__ = ["Capture", "CaptureError", "assert_equivalent", "capture", "verify"]
