# SPDX-License-Identifier: Apache-2.0
"""Runs a training step on real processes (gloo), with numbers, and compares it with one device.

This is the truth that a verdict is about. Inputs, parameters and optimizer states are random
numbers that depend on their names only. Each rank sets its part of parameters and states (DTensor
placements, `shard=`).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.multiprocessing as mp
from torch import nn

from ..compat import private
from ..compat.context_parallel import context_parallel_on_cpu
from ..compat.sync_batch_norm import sync_batch_norm
from ..distributed.mesh import Mesh
from ..step import flat_parameters
from ..step.binding import Binding
from ..step.several_steps import each, numbered
from ..step.tracked_tensors import unwrapped
from ..step.world import World
from ..terms.values import Shape
from ..trace.results import results as results_of


def draw(
    name: str,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float64,
    high: int | None = None,
    seed: int = 0,
) -> torch.Tensor:
    """The whole tensor of that name, the same wherever it is drawn with this seed."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode(), seed))
    if not dtype.is_floating_point:
        return torch.randint(
            0,
            2 if dtype == torch.bool else high or 8,
            tuple(shape),
            generator=generator,
            dtype=dtype,
        )
    t = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    scale = (
        0.1
        if name.endswith(("exp_avg", "momentum_buffer"))
        else 1 / max(1, shape[-1]) ** 0.5
        if len(shape) > 1 and not name.startswith("input ")
        else 1.0
    )
    t = t * scale
    if name.endswith(("exp_avg_sq", "acc_delta")):
        t = t.abs() + 0.01
    elif name.endswith("square_avg"):
        t = t.abs() + 4  # more than the square of an average
    elif len(shape) == 1:
        t = 1 + 0.1 * t
    return t.to(dtype)


class Numbers:
    """Backend of the world and listener of the binding, with numbers."""

    def __init__(self, mesh: Mesh, rank: int, any_buffers: bool = False) -> None:
        self.mesh, self.rank, self.any_buffers = mesh, rank, any_buffers
        self.binding = Binding(self)
        self.results: dict[str, torch.Tensor] = {}
        # (parameter, what it is) -> whose it is
        self.states_of: dict[tuple[str, str], tuple[Any, nn.Parameter]] = {}
        self.cut: list[str] = []
        self.buffers_before: dict[str, torch.Tensor] = {}
        self.output_memory: set[int] = set()  # memory that was given to world.output

    def drawn(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, high: int | None = None
    ) -> torch.Tensor:
        """The whole tensor of that name, in which the step begins."""
        return draw(name, shape, dtype, high)

    def _drawn_as(
        self, dtype: torch.dtype, suffix: str = ""
    ) -> Callable[[str, Shape], torch.Tensor]:
        """`drawn` for tensors of one dtype."""
        return lambda name, shape: self.drawn(name + suffix, shape, dtype)

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        shard: Mapping[str, int],
        box: list[tuple[int, int]],
        high: int | None,
    ) -> torch.Tensor:
        self.binding.begun = True
        self.cut += [a for a in shard if self.mesh.sizes.get(a, 1) > 1 and a not in self.cut]
        whole = self.drawn("input " + name, shape, dtype, high)
        return whole[tuple(slice(a, b) for a, b in box)].clone()

    def output(
        self,
        name: str,
        tensor: torch.Tensor,
        shard: Mapping[str, int] | None,
        mean: Sequence[str] | None,
        total: Sequence[str],
    ) -> None:
        self.output_memory.add(_local(tensor).data_ptr())
        t = self._whole(tensor, {a: d for a, d in (shard or {}).items() if a in self.mesh.sizes})
        mean = self.means(t, shard, mean, total, self._covered(tensor))
        for axis in [*mean, *total]:
            if self.mesh.sizes.get(axis, 1) > 1:
                t = self._along(t, axis).sum(0) / (self.mesh.sizes[axis] if axis in mean else 1)
        self.results[name] = t

    def means(
        self,
        t: torch.Tensor,
        shard: Mapping[str, int] | None,
        mean: Sequence[str] | None,
        total: Sequence[str],
        covered: Container[str],
    ) -> Sequence[str]:
        """The axes over which a result is the mean of what the ranks have.

        covered: of a DTensor's own mesh. One number of which nothing is stated is so as a loss is.
        """
        if mean is None and not total and shard is None and t.shape == ():
            return [a for a in self.cut if a not in covered]
        return mean or ()

    def parameters(
        self, model: nn.Module, shard: Mapping[str, Mapping[str, int]], name: str
    ) -> None:
        self.binding.bind(
            model,
            {
                p: {a: d for a, d in where.items() if a in self.mesh.sizes}
                for p, where in shard.items()
            },
            name,
        )

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        saved = [(p, p.detach().clone()) for p in self.binding.parameters.values()]
        yield
        with torch.no_grad():
            for p, old in saved:
                p.copy_(old)

    def buffers(self, buffers: dict[str, tuple[torch.Tensor, bool]]) -> None:
        for name, (b, saved) in buffers.items():
            local = _local(b)
            if (
                self.any_buffers
                and saved
                and local.is_floating_point()
                and local.numel()
                and bool((local == local.flatten()[0]).all())
            ):
                with torch.no_grad():
                    self._set(f"{name}.old", b, self.binding.shard_of(name))
            self.buffers_before[name] = local.detach().clone()

    def bound(self, parameters: dict[str, nn.Parameter]) -> None:
        with torch.no_grad():
            for name, p in parameters.items():
                if name in self.binding.stretches:
                    flat_parameters.assign(
                        p.data,
                        self.binding.stretches[name],
                        self._drawn_as(p.dtype),
                    )
                else:
                    self._set(name, p, self.binding.shard_of(name))

    def _set(self, name: str, p: torch.Tensor, shard: Mapping[str, int] | None) -> None:
        if isinstance(p, private.DTensor):
            _, placements, shape, offset = private.placement_of(p)
            local, whole = p._local_tensor, self.drawn(name, shape, p.dtype)
            box = [slice(o, o + n) for o, n in zip(offset, local.shape)]
            if (strided := private.strided_rows(p)) is not None:
                dim, rows = strided
                whole = whole.index_select(dim, torch.tensor(rows))
                box[dim] = slice(None)
            local.copy_(whole[tuple(box)])
            return
        size = list(p.shape)
        for axis, dim in (shard or {}).items():
            size[dim] *= self.mesh.sizes[axis]
        whole = self.drawn(name, size, p.dtype)
        at = self.mesh.coordinates(self.rank)
        for axis, dim in (shard or {}).items():
            whole = whole.chunk(self.mesh.sizes[axis], dim)[at[axis]]
        p.copy_(whole)

    def fresh(self, optimizer: Any, why: str) -> None:
        pass

    def alone(self, tensors: dict[str, torch.Tensor]) -> None:
        pass

    def states(
        self, optimizer: Any, states: list[tuple[str, str, torch.Tensor, nn.Parameter]]
    ) -> None:
        with torch.no_grad():
            for name, key, value, p in states:
                if key == "step":
                    value.fill_(1)
                    continue
                shard = self.binding.shard_of(name)
                if name in self.binding.stretches and value.shape == p.shape:
                    flat_parameters.assign(
                        value,
                        self.binding.stretches[name],
                        self._drawn_as(p.dtype, f".{key}"),
                    )
                else:
                    self._set(f"{name}.{key}", value, shard)
                self.states_of[(name, f".{key}")] = (optimizer, p)

    def forward(self, name: str, module: nn.Module, args: Any, output: Any, final: bool) -> None:
        """Nothing is kept of activations."""

    def uses(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, the binding gets to know of what operators read and write."""
        return _Uses(self.binding)

    @contextlib.contextmanager
    def listening(self, own_random_state: bool = False) -> Iterator[None]:
        """Inside, a step runs on this rank. own_random_state: PyTorch's is not set."""
        old = torch.get_default_dtype()
        if not own_random_state:
            torch.manual_seed(0)
        try:
            with (
                self.binding.listening(),
                sync_batch_norm(),
                context_parallel_on_cpu(),
                _kept_messages(),
                self.uses(),
            ):
                yield
        finally:
            torch.set_default_dtype(old)

    # ---- results ----
    def _along(self, t: torch.Tensor, axis: str) -> torch.Tensor:
        """The tensors of all ranks that differ along an axis, stacked."""
        every: list[Any] = [None] * self.mesh.world
        dist.all_gather_object(every, t)
        at = self.mesh.coordinates(self.rank)
        return torch.stack(
            [every[self.mesh.rank({**at, axis: k})] for k in range(self.mesh.sizes[axis])]
        )

    def _whole(self, t: torch.Tensor, shard: Mapping[str, int] | None) -> torch.Tensor:
        t = t.detach()
        if isinstance(t, private.AsyncCollectiveTensor):
            # what sends it to another process looks at its memory and waits for nothing
            t = t.wait()
        if isinstance(t, private.DTensor):
            return t.full_tensor().clone()
        for axis in reversed(self.mesh.names):
            if axis in (shard or {}) and self.mesh.sizes[axis] > 1:
                t = torch.cat(list(self._along(t, axis)), (shard or {})[axis])
        return t.clone()

    def _covered(self, t: torch.Tensor) -> set[str]:
        """Axes of a DTensor's mesh."""
        return {
            a
            for r in (private.placement_of(t)[0] if isinstance(t, private.DTensor) else [])
            for a in self.mesh.varying(r)
        }

    def keep(self, result: Any, number: int = 1) -> None:
        for label, t in results_of(result):
            label = numbered(label, number)
            covered = self._covered(t)
            t = self._whole(t, None)
            if t.shape == ():
                for axis in self.cut:
                    if axis not in covered:
                        t = self._along(t, axis).mean(0)
            self.results[label] = t

    def now(self, t: torch.Tensor) -> torch.Tensor:
        return unwrapped(t).detach().clone()

    def same(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        return bool(torch.equal(a, b))

    def hold(self, t: torch.Tensor, what: torch.Tensor) -> None:
        unwrapped(t).detach().copy_(what)

    def finish(self, result: Any) -> None:
        self.keep(result)
        self.binding.take_back_gradients()
        flat: list[tuple[str, Any]] = []
        for name, p in self.binding.parameters.items():
            shard = self.binding.shard_of(name)
            if name in self.binding.stretches:
                parts = self.binding.stretches[name]
                flat += (
                    [(n + ".grad", part) for n, part in flat_parameters.numbers(p.grad, parts)]
                    if p.grad is not None
                    else []
                )
                flat += [(n + ".new", part) for n, part in flat_parameters.numbers(p, parts)]
                continue
            if p.grad is not None:
                self.results[f"{name}.grad"] = self._whole(p.grad, shard)
        for name, held in self.binding.held().items():
            if name not in self.binding.stretches:
                self.results[f"{name}.new"] = self._whole(held, self.binding.shard_of(name))
        states = {
            (name, key): optimizer.state[p][key[1:]]
            for (name, key), (optimizer, p) in self.states_of.items()
        }
        states.update(
            {
                which: value
                for which, (value, _) in self.binding.later_states(self.states_of).items()
            }
        )
        for (name, key), value in states.items():
            shard = self.binding.shard_of(name)
            if (
                name in self.binding.stretches
                and value.numel() == self.binding.parameters[name].numel()
            ):
                flat += [
                    (f"{n}{key}.new", part)
                    for n, part in flat_parameters.numbers(value, self.binding.stretches[name])
                ]
            else:
                self.results[f"{name}{key}.new"] = self._whole(value, shard)
        self._join(flat)
        self._changed_buffers()
        for name, kept in self.binding.of_optimizers().items():
            t = (
                kept
                if isinstance(kept, torch.Tensor)
                else torch.tensor(float(kept), dtype=torch.float64)
            )
            self.results[f"{IF_ALL}{name}.new"] = self._whole(t, None)
            if t.requires_grad and t.grad is not None:
                self.results[f"{IF_ALL}{name}.grad"] = self._whole(t.grad, None)

    def saved_buffers(self) -> dict[str, torch.Tensor]:
        """Those that are saved with the model and are no result."""
        return {
            name: b
            for name, (b, saved) in self.binding.buffers().items()
            if saved and b.numel() and _local(b).data_ptr() not in self.output_memory
        }

    def _changed_buffers(self) -> None:
        """Buffers that are saved with the model, on whichever rank they changed.

        For one that another side leaves unchanged, what it holds.
        """
        buffers = self.saved_buffers()
        changed: list[Any] = [
            name
            for name, b in buffers.items()
            if name not in self.buffers_before
            or not torch.equal(self.buffers_before[name], _local(b))
        ]
        every: list[Any] = [changed]
        if self.mesh.world > 1:
            every = [None] * self.mesh.world
            dist.all_gather_object(every, changed)
        names = {name for names in every for name in names}
        for name, b in buffers.items():
            self.results[f"{name}.new" if name in names else f"{KEPT}{name}.new"] = self._whole(
                b, self.binding.shard_of(name)
            )

    def _join(self, flat: list[tuple[str, Any]]) -> None:
        """Whole tensors of the parts of flat ones that the ranks have."""
        if not self.binding.stretches:
            return
        every: list[Any] = [None] * self.mesh.world
        dist.all_gather_object(every, flat)
        for name, (shape, start, values) in (entry for entries in every for entry in entries):
            whole = self.results.setdefault(
                name,
                torch.full(
                    shape, float("nan"), dtype=values.dtype if len(values) else torch.float64
                ),
            )
            whole.view(-1)[start : start + len(values)] = values


KEPT = "unchanged "  # buffers that a side leaves as they are
IF_ALL = "if all have it: "


def _local(t: torch.Tensor) -> torch.Tensor:
    return t._local_tensor if isinstance(t, private.DTensor) else t


def run(
    step: Callable[[World], Any], mesh: Mapping[str, int], rank: int = 0, any_buffers: bool = False
) -> dict[str, torch.Tensor]:
    """One rank's step with numbers, in doubles. Returns whole tensors by name.

    The process group must exist. any_buffers: buffers that hold one number everywhere
    (initial_state.py) begin with random ones.
    """
    side = Numbers(Mesh(mesh), rank, any_buffers)
    with side.listening():
        result = each(step(World(side.mesh, rank, side)), side.keep)
        side.finish(result)
    return side.results


class _Uses(private.TorchDispatchMode):
    """Reports to the binding what operators read and write, as the recorder does."""

    def __init__(self, binding: Binding) -> None:
        super().__init__()
        self.binding, self.differentiated = binding, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        backward = private.current_node() is not None
        self.differentiated = self.differentiated or backward
        if self.binding.begun and not self.binding.priming:
            if (
                torch.is_grad_enabled()
                and not backward
                and func is not torch.ops.aten.detach.default
            ):
                self.binding.reads(args)
            written = [
                kwargs.get(a.name)
                if kwargs and a.name in kwargs
                else args[i]
                if i < len(args)
                else None
                for i, a in enumerate(func._schema.arguments)
                if a.alias_info is not None and a.alias_info.is_write
            ]
            if written:
                self.binding.writes(private.tensors(written), self.differentiated)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _kept_messages() -> Iterator[None]:
    """Keeps what isend and irecv return until the step has ended.

    gloo drops a message whose work has no reference any more, and its receiver waits forever; NCCL
    sends it.
    """
    kept: list[Any] = []

    def keeping(f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Any:
            work = f(*args, **kwargs)
            kept.append(work)
            return work

        return call

    with private.changes() as undo:
        private.replace_everywhere([(f, keeping(f)) for f in (c10d.isend, c10d.irecv)], undo)
        yield
        for work in kept:
            if work is not None and not work.is_completed():
                work.wait()


_PATIENCE = datetime.timedelta(minutes=10)  # for the other processes, on a busy machine


@contextlib.contextmanager
def in_process_group(rank: int, world: int, folder: str) -> Iterator[None]:
    """Inside, this process is a rank of a process group (gloo). folder: where the ranks meet."""
    torch.set_num_threads(1)
    # a forked process has what recordings of other ranks left: how DTensor redistributes
    private.clear_caches()
    private.forget_results()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    store = dist.FileStore(f"{folder}/store", world)  # no port that another run could take
    store.set_timeout(_PATIENCE)
    dist.init_process_group("gloo", rank=rank, world_size=world, store=store, timeout=_PATIENCE)
    try:
        yield
    except BaseException:
        dist.destroy_process_group()
        raise
    # No rank leaves while another one may still wait for it.
    store.set(f"shardproof done {rank}", "yes")
    store.wait([f"shardproof done {r}" for r in range(world)])


def _process(
    rank: int, world: int, work: Callable[..., Any], arguments: Sequence[Any], folder: str
) -> None:
    with in_process_group(rank, world, folder):
        work(rank, *arguments)
    # All is written and all ranks are here. The ordinary end of the interpreter sometimes aborts
    # ("terminate called without an active exception": a thread of the process group is still there
    # when the library is unloaded), which would mean that the step failed.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def processes(world: int, work: Callable[..., Any], arguments: Sequence[Any], folder: str) -> None:
    """Calls work(rank, *arguments) in `world` processes that have a process group (gloo).

    work must be importable by name. folder: an existing one, for this call only. Raises
    torch.multiprocessing.ProcessRaisedException for what a process raises.
    """
    mp.spawn(_process, (world, work, arguments, folder), nprocs=world)


def _cases(
    rank: int,
    load: Callable[..., Any],
    cases: Sequence[tuple[str, dict[str, int]]],
    which: str,
    folder: str,
    any_buffers: bool,
) -> None:
    for i, (key, mesh) in enumerate(cases):
        try:
            result: Any = run(load(key, which), mesh, rank, any_buffers)
        except Exception as e:  # reported to the parent
            result = f"{type(e).__name__}: {e}"
        torch.save(result, f"{folder}/{i}.{rank}.pt")
        # gloo's ordinary barrier waits for communication that a failed step left behind, and raises
        # its error here
        dist.monitored_barrier(timeout=_PATIENCE)


def compare(
    load: Callable[[str, str], Any],
    cases: Mapping[str, Mapping[str, int]],
    any_buffers: bool = False,
) -> dict[str, tuple[float, str]]:
    """For each case (name -> mesh) the largest difference between real processes and one device.

    It is relative to the largest element, with its place. load(name, "single" or "step") gives the
    step; it must be importable by name. A missing result, another shape, or an exception counts as
    infinitely large. Processes of one world size run all its cases one after another. any_buffers:
    as of `run`.
    """
    found: dict[str, tuple[float, str]] = {}
    by_world: dict[int, list[tuple[str, dict[str, int]]]] = {}
    for name, mesh in cases.items():
        by_world.setdefault(Mesh(mesh).world, []).append((name, dict(mesh)))
    with tempfile.TemporaryDirectory() as folder:
        os.makedirs(f"{folder}/1")
        ordered = [case for group in by_world.values() for case in group]
        one_rank = [(n, dict.fromkeys(m, 1)) for n, m in ordered]
        here = f"{folder}/1"
        processes(1, _cases, (load, one_rank, "single", here, any_buffers), here)
        wanted = {
            n: torch.load(f"{folder}/1/{i}.0.pt", weights_only=False)
            for i, (n, _) in enumerate(ordered)
        }
        for world, group in by_world.items():
            here = f"{folder}/world{world}"
            os.makedirs(here)
            processes(world, _cases, (load, group, "step", here, any_buffers), here)
            for i, (name, _) in enumerate(group):
                found[name] = _difference(
                    wanted[name],
                    [torch.load(f"{here}/{i}.{r}.pt", weights_only=False) for r in range(world)],
                )
    return found


def _difference(wanted: Any, every: Sequence[Any]) -> tuple[float, str]:
    if isinstance(wanted, str):
        raise RuntimeError(f"the single device: {wanted}")
    worst, place = 0.0, ""
    seen: set[str] = set()
    wanted = dict(wanted)
    if any(
        {n: v.shape for n, v in results.items() if n.startswith(IF_ALL)}
        != {n: v.shape for n, v in wanted.items() if n.startswith(IF_ALL)}
        for results in every
        if not isinstance(results, str)
    ):
        wanted, *every = (
            {n: v for n, v in results.items() if not n.startswith(IF_ALL)}
            if not isinstance(results, str)
            else results
            for results in (wanted, *every)
        )
    changed = {
        name for results in every if not isinstance(results, str) for name in results
    }.intersection(n.removeprefix(KEPT) for n in wanted)
    for name in [n for n in wanted if n.startswith(KEPT)]:
        value = wanted.pop(name)
        if name.removeprefix(KEPT) in changed:
            wanted[name.removeprefix(KEPT)] = value
    for r, results in enumerate(every):
        if isinstance(results, str):
            return float("inf"), f"rank {r}: {results}"
        for name, value in results.items():
            if name.startswith(KEPT):
                name = name.removeprefix(KEPT)
                if name not in wanted:
                    continue
            seen.add(name)
            if name not in wanted or wanted[name].shape != value.shape:
                return (
                    float("inf"),
                    f"{name} on rank {r}: {list(value.shape)}, one device "
                    f"{list(wanted[name].shape) if name in wanted else 'nothing'}",
                )
            difference = (
                float(
                    (value.double() - wanted[name].double()).abs().max()
                    / (wanted[name].double().abs().max() + 1e-30)
                )
                if value.numel()
                else 0.0
            )
            if not difference <= worst:
                worst, place = (
                    difference if difference == difference else float("inf"),
                    f"{name} on rank {r}",
                )
    if set(wanted) - seen:
        return float("inf"), f"missing on all ranks: {sorted(set(wanted) - seen)[0]}"
    return worst, place
