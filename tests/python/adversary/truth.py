# SPDX-License-Identifier: Apache-2.0
"""What a step computes, with numbers: on real ranks (gloo) and on one device.

The judge does not go by the recorder's rules. The generator knows which Python objects hold what it
compares, as it wrote the code, and names them itself: `watch(name, holder, key, cut)` in the step's
text (it does nothing while the step is recorded). Compared are, by these names: parameters and
buffers at the end, gradients, the optimizer's states and the numbers in its groups, and what the
step returns, whatever Python object that is.

Ranks are long-lived processes that run one step after the other: one process, two, and four.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import tempfile
import traceback
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.step.world import World
from torch import nn
from torch.distributed.tensor import DTensor

SAME = 1e-10  # two results that are that close, relative to the largest element, are equal
OTHER = 1e-8  # that far, they differ; between the two nothing is said
_PATIENCE = datetime.timedelta(seconds=20)  # of ranks that wait for others: then the step deadlocks
_OTHERS = 10.0  # seconds that a rank has when another has ended
_SCALES = (1.0, 30.0, 0.03)  # of inputs, by draw: decisions by their size go both ways
RAISES = "the single device raises"  # then there is nothing to compare
IGNORED = -100  # the class that losses leave out when nothing else is said


@dataclasses.dataclass(frozen=True)
class Case:
    """A step as source text. seed: what made it; draws: how often its inputs are drawn."""

    kind: str
    seed: int
    source: str
    mesh: Mapping[str, int]
    note: str = ""  # which mistake was put in, if any: the numbers decide, not this
    draws: int = 2

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}"


@dataclasses.dataclass(frozen=True)
class Truth:
    """same: whether ranks compute what one device does; None: not clear. where: a difference."""

    same: bool | None
    where: str


def number(name: str, draw: int, shape: Sequence[int]) -> torch.Tensor:
    """The whole tensor of that name in that draw."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {draw}".encode()))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


class Watch:
    """What a step's text tells the judge: called on each rank."""

    def __init__(self, world: World, draw: int) -> None:
        self.world, self.draw = world, draw
        self.held: dict[str, tuple[Any, Any, Mapping[str, int]]] = {}
        self.optimizers: list[torch.optim.Optimizer] = []

    def __call__(
        self,
        name: str,
        holder: Any,
        key: Any = None,
        cut: Mapping[str, int] | None = None,
        begin: bool = True,
    ) -> None:
        """The tensor that `holder` has under `key` (attribute, index; None: it is the holder).

        cut: axis -> dimension of which a rank has a part; begin: with numbers of its name.
        """
        self.held[name] = holder, key, dict(cut or {})
        if not begin:
            return
        t = self.at(name)
        size = list(t.shape)
        for axis, dim in (cut or {}).items():
            size[dim] *= self.world.sizes[axis]
        whole = number(name, self.draw, size) * 0.5
        for axis, dim in (cut or {}).items():
            whole = whole.chunk(self.world.sizes[axis], dim)[self.world.coordinates[axis]]
        with torch.no_grad():
            t.copy_(whole)

    def at(self, name: str) -> torch.Tensor:
        holder, key, _ = self.held[name]
        if key is None:
            return holder
        return getattr(holder, key) if isinstance(holder, nn.Module) else holder[key]

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizers.append(optimizer)

    def seen(self, result: Any) -> dict[str, Any]:
        """Everything that is compared, as plain objects."""
        found: dict[str, Any] = {}
        for name, (_, _, cut) in self.held.items():
            t = self.at(name)
            found[f"{name}.new"] = Part(_plain(t), cut)
            if t.requires_grad and t.grad is not None:
                found[f"{name}.grad"] = Part(_plain(t.grad), cut)
            for optimizer in self.optimizers:
                for key, value in sorted(optimizer.state.get(t, {}).items()):
                    if isinstance(value, torch.Tensor) and value.shape == t.shape:
                        found[f"{name}.{key}"] = Part(_plain(value), cut)
        for k, optimizer in enumerate(self.optimizers):
            for g, group in enumerate(optimizer.param_groups):
                for key, value in group.items():
                    if key != "params" and isinstance(value, (bool, int, float, tuple)):
                        found[f"optimizer {k}.{g}.{key}"] = _leaves(value)
        found["returned"] = _leaves(result)
        return found


@dataclasses.dataclass
class Part:
    """A rank's part of a tensor."""

    value: torch.Tensor
    cut: Mapping[str, int]


def _plain(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    return (t.full_tensor() if isinstance(t, DTensor) else t).clone()


def _leaves(x: Any) -> list[tuple[str, Any]]:
    """What is in a Python object, by where it is."""
    return list(_walk(x, "", 0))


def _walk(x: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > 6:
        raise ValueError(f"an object too deep at {path}")
    if isinstance(x, torch.Tensor):
        yield path, _plain(x)
    elif x is None or isinstance(x, (bool, int, float, str, complex)):
        yield path, x
    elif hasattr(x, "dtype") and hasattr(x, "tolist"):  # of numpy
        yield path, torch.as_tensor(x)
    elif isinstance(x, collections.abc.Mapping):
        for key in x:
            yield from _walk(x[key], f"{path}[{key!r}]", depth + 1)
    elif isinstance(x, collections.abc.Iterable):
        items = list(x)
        if isinstance(x, collections.abc.Set):
            items = sorted(
                items, key=lambda i: str(i.tolist() if isinstance(i, torch.Tensor) else i)
            )
        yield f"{path} length", len(items)
        for i, item in enumerate(items):
            yield from _walk(item, f"{path}[{i}]", depth + 1)
    else:
        for key, value in sorted(vars(x).items()):
            yield from _walk(value, f"{path}.{key}", depth + 1)


class _Numbers:
    """Backend of the world."""

    def __init__(self, draw: int) -> None:
        self.draw = draw

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        shard: Mapping[str, int],
        box: list[tuple[int, int]],
        high: int | None,
    ) -> torch.Tensor:
        part = tuple(slice(a, b) for a, b in box)
        if dtype.is_floating_point:
            return (number(f"input {name}", self.draw, shape) * _SCALES[self.draw])[part].clone()
        chosen = number(f"input {name}", self.draw, shape).mul(1e6).long().remainder(high or 4)
        if name in ("labels", "target") and self.draw:
            # More of one class, or of those that do not count, among the first.
            often = IGNORED if name == "labels" else (0, 3)[self.draw - 1]
            chosen[chosen == often] = 1
            chosen[:3] = often
        return chosen[part].clone()

    def output(self, *_: Any) -> None:
        raise NotImplementedError("world.output")

    def parameters(self, *_: Any) -> None:
        """Where parameters lie the generator has told the judge."""


_meshes: dict[tuple[tuple[str, int], ...], Any] = {}


class _World(World):
    """Meshes are made once for all steps."""

    def mesh(self, *axes: str) -> Any:
        key = tuple(self._mesh.sizes.items())
        if key in _meshes:
            self._device_mesh = _meshes[key]
        found = super().mesh(*axes)
        _meshes[key] = self._device_mesh
        return found


def observed(case: Case, mesh: Mesh, rank: int, draw: int) -> dict[str, Any]:
    """One rank's run; the process group must exist."""
    world = _World(mesh, rank, _Numbers(draw))
    watch = Watch(world, draw)
    torch.set_default_dtype(torch.float64)
    space: dict[str, Any] = {"watch": watch}
    exec(compile(case.source, f"{case.name}.py", "exec"), space)  # pylint: disable=exec-used
    seeded = torch.manual_seed

    def seeding(seed: int) -> Any:
        return seeded(int(seed) * 3 + draw)  # equal where the step's seeds are

    torch.manual_seed = seeding
    try:
        random.seed(draw)
        seeded(1_000_003 + draw)
        return watch.seen(space["step"](world))
    finally:
        torch.manual_seed = seeded


# ---- processes ----
def _serve(rank: int, size: int, folder: str, pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    store = dist.FileStore(f"{folder}/store{size}", size)
    dist.init_process_group("gloo", rank=rank, world_size=size, store=store, timeout=_PATIENCE)
    while True:
        try:
            case, draw = pipe.recv()
        except EOFError:
            os._exit(0)
        mesh = Mesh(case.mesh if size > 1 else dict.fromkeys(case.mesh, 1))
        try:
            result: Any = observed(case, mesh, rank, draw)
        except Exception as e:  # pylint: disable=broad-exception-caught
            result = f"{type(e).__name__}: {e}\n{traceback.format_exc(limit=-2)}"
        pipe.send(result)


class Ranks:
    """Processes that run steps as the ranks of a world of that size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder: Any = None
        self._processes: list[tuple[Any, Any]] = []

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("fork")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, self.size, self._folder.name, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append((process, ours))

    def stop(self) -> None:
        for process, pipe in self._processes:
            process.kill()
            process.join()
            pipe.close()
        self._processes = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def run(self, case: Case, draw: int) -> list[Any]:
        """What each rank has at the end; a string where it raised, or did not end."""
        if not self._processes:
            self._start()
        for _, pipe in self._processes:
            pipe.send((case, draw))
        results: list[Any] = ["does not end"] * self.size
        waiting = {pipe: rank for rank, (_, pipe) in enumerate(self._processes)}
        patience = 3 * _PATIENCE.total_seconds()
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting), patience)
            if not ready:
                break
            for pipe in ready:
                try:
                    results[waiting[pipe]] = pipe.recv()
                except EOFError:
                    results[waiting[pipe]] = "the process died"
                del waiting[pipe]
            patience = _OTHERS  # the others have all that they waited for
        if any(isinstance(r, str) for r in results):
            self.stop()  # others may still wait for one that raised
        return results


class Judge:
    """Runs cases and says whether the ranks compute what one device does."""

    def __init__(self) -> None:
        self._ranks: dict[int, Ranks] = {}

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: Any) -> None:
        for ranks in self._ranks.values():
            ranks.stop()

    def _run(self, size: int, case: Case, draw: int) -> list[Any]:
        return self._ranks.setdefault(size, Ranks(size)).run(case, draw)

    def truth(self, case: Case) -> Truth:
        mesh = Mesh(case.mesh)
        unclear = ""
        for draw in range(case.draws):
            (wanted,) = self._run(1, case, draw)
            if isinstance(wanted, str):
                return Truth(None, f"{RAISES}: {wanted}")
            every = self._run(mesh.world, case, draw)
            for rank, got in enumerate(every):
                if isinstance(got, str):
                    return Truth(False, f"rank {rank}: {got}")
            for name, value in wanted.items():
                difference, where = _difference(name, value, every, mesh)
                if not difference <= OTHER:
                    return Truth(False, f"draw {draw}: {where}")
                if difference > SAME:
                    unclear = where
            extra = {name for got in every for name in got} - set(wanted)
            extra = {name for name in extra if not name.endswith(".grad")}
            if extra:
                return Truth(False, f"draw {draw}: only ranks have {sorted(extra)[0]}")
        return Truth(None, unclear) if unclear else Truth(True, "")


_INFINITE = float("inf")


def _far(a: torch.Tensor, b: torch.Tensor) -> float:
    if a.shape != b.shape:
        return _INFINITE
    if not a.numel():
        return 0.0
    a, b = a.to(torch.float64), b.to(torch.float64)
    if bool((a.isnan() == b.isnan()).all()) and bool(a.isnan().any()):
        a, b = a.nan_to_num(0), b.nan_to_num(0)
    d = float((a - b).abs().max() / (b.abs().max() + 1e-30))
    return d if d == d else _INFINITE


def _difference(
    name: str, wanted: Any, every: Sequence[Mapping[str, Any]], mesh: Mesh
) -> tuple[float, str]:
    if isinstance(wanted, Part):
        return _tensor(name, wanted, every, mesh)
    theirs = [got.get(name) for got in every]
    present = [t for t in theirs if t is not None]
    if not present:
        return _INFINITE, f"{name}: no rank has it"
    worst, place = 0.0, ""
    for path, leaf in wanted:
        leaves = [dict(t).get(path) for t in present]
        far = _leaf(leaf, leaves, mesh)
        if not far <= worst:
            worst, place = far, f"{name}{path}: {_short(leaf)}, ranks {[_short(x) for x in leaves]}"
    return worst, place


def _short(x: Any) -> str:
    return (
        f"{[round(v, 4) for v in x.flatten().tolist()[:4]]}"
        if isinstance(x, torch.Tensor)
        else repr(x)[:40]
    )


def _tensor(
    name: str, wanted: Part, every: Sequence[Mapping[str, Any]], mesh: Mesh
) -> tuple[float, str]:
    """Of parameters and what belongs to them: each rank that has it has its part."""
    worst, place, anywhere = 0.0, "", False
    for rank, got in enumerate(every):
        if name not in got:
            continue
        anywhere = True
        part, whole = got[name], wanted.value
        for axis, dim in part.cut.items():
            whole = whole.chunk(mesh.sizes[axis], dim)[mesh.coordinates(rank)[axis]]
        far = _far(part.value, whole)
        if not far <= worst:
            worst, place = (
                far,
                f"{name} on rank {rank}: {_short(part.value)}, one device {_short(whole)}",
            )
    return (worst, place) if anywhere else (_INFINITE, f"{name}: no rank has it")


def _tensor_of(x: Any) -> torch.Tensor:
    return (
        x
        if isinstance(x, torch.Tensor)
        else torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None)
    )


def _leaf(wanted: Any, leaves: Sequence[Any], mesh: Mesh) -> float:
    """Of what is returned: the same on all ranks; of reals also the mean, of tensors also parts."""
    some = [x for x in leaves if x is not None]
    if wanted is None:
        return 0.0 if not some else _INFINITE
    if not some:
        return _INFINITE
    if isinstance(wanted, (bool, str, int)):
        return 0.0 if all(type(x) is type(wanted) and x == wanted for x in some) else _INFINITE
    if any(isinstance(x, str) for x in some):
        return _INFINITE
    whole = _tensor_of(wanted)
    tensors = [_tensor_of(x) for x in some]
    far = max(_far(t, whole) for t in tensors)
    if far <= OTHER or any(t.shape != tensors[0].shape for t in tensors):
        return far
    if whole.numel() == 1 and whole.is_floating_point():
        return min(far, _far(torch.stack([t.to(whole.dtype) for t in tensors]).mean(0), whole))
    if len(tensors) == mesh.world:
        for axis, size in mesh.sizes.items():
            for dim in range(whole.dim()):
                if whole.shape[dim] % size == 0:
                    parts = [
                        whole.chunk(size, dim)[mesh.coordinates(r)[axis]] for r in range(mesh.world)
                    ]
                    far = min(far, max(_far(t, p) for t, p in zip(tensors, parts, strict=True)))
    return far
