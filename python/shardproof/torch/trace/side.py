# SPDX-License-Identifier: Apache-2.0
"""One side while it is recorded: what the step gets of its world, and how its models begin."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import nn

from ..compat import private
from ..distributed.exchange import Exchange
from ..distributed.mesh import Mesh
from ..step import flat_parameters
from ..step.binding import Binding
from ..step.tracked_tensors import Placement, TrackedTensor, place, unwrapped
from ..terms import assumptions, labels
from ..terms.values import Filled, Known, Named, Shape, Value
from .batches import Loaded, Loaders
from .cut_points import CutPoints
from .end_of_step import EndOfStep, Given, memory_of, same
from .initial_parameters import Initial, Origins, Saved
from .initial_state import InitialState, may_be_any
from .python_random import PythonRandom
from .recorder import Recorder
from .recording import CaptureError
from .tracker import Tracker


class Side:
    """Backend of the world and listener of the binding, for a recording.

    started: nodes before this one belong to the construction of the model. unused: parameters that
    DistributedDataParallel found not used. initial: first values of parameters. spread: mesh axes
    of DistributedDataParallel. input_names: of what `world.input` gave; loaded_names: of what
    loaders did. ended: how a script began its next step, and where, if that was recorded.
    """

    def __init__(self, recorder: Recorder, mesh: Mesh, initial_state: InitialState) -> None:
        self.recorder, self.mesh, self.initial_state = recorder, mesh, initial_state
        self.binding = Binding(self)
        self.tracker = Tracker(recorder, mesh, self.binding)
        self.cut_points = CutPoints(self.tracker)
        self.given = Given()
        self.end = EndOfStep(self.tracker, self.cut_points, self.given)
        self.started: int | None = None
        self.unused: list[str] = []
        self.origins = Origins(recorder.g, mesh, recorder.rank)
        self.initial: dict[str, Initial] = {}
        self.first_values: dict[str, Value] = {}
        self.spread = self.end.spread
        self.input_names: set[str] = set()
        self.python_random = PythonRandom()
        self.loaders = Loaders(
            mesh,
            recorder.rank,
            initial_state.loaders or {},
            initial_state.batches_as_read,
            self,
        )
        recorder.random.on_moved = self.loaders.moved
        self.loaded_names: set[str] = set()
        self.ended = "", ""
        self.differentiates: Callable[[], None] = lambda: None  # autograd runs
        # Memory that DistributedDataParallel gave to all where it held constants.
        self.constants_given: dict[int, Value] = {}
        for axes in initial_state.batch.values():
            for axis in axes if mesh.world > 1 else ():
                self.tracker.cuts[axis].add(0)

    def quiet(self) -> AbstractContextManager[None]:
        """Inside, nothing is recorded."""
        return self.tracker.quiet()

    def now(self, t: torch.Tensor) -> Value:
        return self.recorder.read(unwrapped(t))

    def same(self, a: Value, b: Value) -> bool:
        return same(a, b)

    def hold(self, t: torch.Tensor, what: Value) -> None:
        self.recorder.write(unwrapped(t), what)

    def forward(self, name: str, module: nn.Module, args: Any, output: Any, final: bool) -> None:
        self.cut_points.forward(name, module, args, output, final)
        self.end.noticing.forward(name, module)

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        shard: Mapping[str, int],
        box: list[tuple[int, int]],
        high: int | None,
    ) -> torch.Tensor:
        if dtype.is_complex:
            raise CaptureError(f"input {name!r}: complex inputs are not supported")
        self.recorder.untracked.begun = self.binding.begun = True
        self.tracker.cut_inputs = self.tracker.cut_inputs or bool(shard)
        with self.tracker.quiet():
            t = torch.empty([b - a for a, b in box], dtype=dtype)
        for axis, dim in shard.items():
            if self.mesh.sizes.get(axis, 1) > 1:
                self.tracker.cuts[axis].add(dim % len(shape))
        if dtype == torch.bool or high is not None and not dtype.is_floating_point:
            self.recorder.g.integers.ranges[name] = 2 if dtype == torch.bool else int(high or 1)
        self.input_names.add(name)
        self._given_input(
            name, t, Placement(shard={a: d for a, d in shard.items() if a in self.mesh.sizes})
        )
        return t

    def _given_input(self, name: str, t: torch.Tensor, placement: Placement) -> None:
        self._given(name, t, placement, "input")
        if name in self.recorder.g.integers.ignorable and 0 not in t.shape:
            classes = cast("Named", self.recorder.read(t))
            self.recorder.write(t, labels.input_of(self.recorder.g, name, classes))

    # ---- what loaders yield (batches.py) ----
    def look(self, t: torch.Tensor) -> Loaded:
        with self.recorder.here():
            v = self.recorder.read(unwrapped(t))
        self.origins.look(self.recorder.random.draws)
        origin = self.origins.of(v).origin
        below: tuple[int | None, bool] = (2, True)
        if t.dtype != torch.bool:
            below = self.recorder.g.integers.below(v)
        with private.outside():
            negative = isinstance(v, Known) and v.kind == "int" and bool((v.data < 0).any())
        return Loaded(tuple(int(n) for n in t.shape), origin, *below, negative)

    # ---- files that other ranks load (intercept/processes.py) ----
    def saved(self, t: torch.Tensor) -> Saved | None:
        inner = private.plain(t)
        if isinstance(t, private.DTensor) or inner is None or inner.layout != torch.strided:
            return None
        with self.recorder.here():
            v = self.recorder.read(inner)
        self.origins.look(self.recorder.random.draws)
        known = v if isinstance(v, (Filled, Known)) else None
        numbers = self.origins.elements(v) if isinstance(v, Named) else None
        with private.outside():
            array = numbers.contiguous().numpy() if numbers is not None else None
        return Saved(tuple(t.shape), t.dtype, known, self.origins.of(v).origin, array)

    def arrived(self, saved: Saved, file: str, rank: int) -> torch.Tensor:
        with self.tracker.quiet():
            t = torch.empty(saved.shape, dtype=saved.dtype)
        if 0 in saved.shape:
            return t
        value: Value | None = saved.value
        if value is None:
            name = f"%saved {len(self.origins.files)}"
            kind = "real" if saved.dtype.is_floating_point else "int"
            value = self.recorder.g.declare(name, saved.shape, kind, "input")
            self.origins.files[name] = saved.origin, f"rank {rank} saved in {file}"
            if saved.elements is not None:
                with private.outside():
                    self.origins.file_elements[name] = torch.from_numpy(saved.elements)
        self.recorder.write(t, value)
        return t

    def negative(self, name: str) -> None:
        self.recorder.g.integers.negative.add(name)

    def loaded(
        self,
        name: str,
        shape: Shape,
        dtype: torch.dtype,
        placement: Placement,
        below: int | None,
        by_program: bool,
    ) -> torch.Tensor:
        if not dtype.is_floating_point and below is not None:
            self.recorder.g.integers.ranges[name] = below
            if not by_program:
                self.recorder.g.integers.observed.add(name)
        for axis in placement.cut:
            dim = next(d for d, n in enumerate(placement.shape) if n != shape[d])
            self.tracker.cuts[axis].add(dim)
            self.tracker.cut_inputs = True
        self.loaded_names.add(name)
        with self.tracker.quiet():
            t = torch.empty(shape, dtype=dtype)
        self._given_input(name, t, placement)
        return t

    def assume(self, assumption: assumptions.Assumption) -> None:
        self.recorder.g.assume(assumption)

    def of_loader(self, t: torch.Tensor) -> None:
        with self.recorder.here():
            v = self.recorder.read(unwrapped(t))
        if isinstance(v, Known) and v.host:
            self.recorder.write(unwrapped(t), Known(v.data))

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        with self.python_random.reading(), self.recorder.reading.batch():
            yield

    def numbers(self, t: torch.Tensor) -> torch.Tensor | None:
        return self.recorder.reading.numbers(t)

    def from_array(self, t: torch.Tensor) -> bool:
        with self.recorder.here():
            v = self.recorder.read(t)
        return isinstance(v, (Filled, Known)) and v.host

    def error(self, text: str) -> Exception:
        return CaptureError(text)

    def output(
        self,
        name: str,
        tensor: torch.Tensor,
        shard: Mapping[str, int] | None,
        mean: Sequence[str] | None,
        total: Sequence[str],
    ) -> None:
        known = list(self.mesh.names)
        placement = place(
            self.recorder,
            tensor,
            {a: d for a, d in shard.items() if a in known} if shard is not None else None,
        )
        self.given.outputs[memory_of(tensor)] = self.recorder.read(unwrapped(tensor))
        if total:
            self.given.summed.add(memory_of(tensor))
        if mean is not None:
            placement.mean = [a for a in mean if a in known]
        placement.partial += [a for a in total if a in known]
        if mean is None and total:
            placement.mean = []
        self.tracker.track("output", self.tracker.claim(name, "output"), tensor, placement)

    def parameters(
        self, model: nn.Module, shard: Mapping[str, Mapping[str, int]], name: str
    ) -> None:
        try:
            self.binding.bind(
                model,
                {
                    p: {a: d for a, d in where.items() if a in self.mesh.sizes}
                    for p, where in shard.items()
                },
                name,
            )
        except ValueError as e:
            raise CaptureError(str(e)) from None

    def bound(self, parameters: dict[str, nn.Parameter]) -> None:
        if self.started is None:
            self.started = len(self.recorder.g.nodes)
        self.origins.look(self.recorder.random.draws)
        copies = self.end.copies.begin(parameters)
        computed = self.end.copies.of_weights(parameters)  # a model that was made after a step
        for name, p in parameters.items():
            if name in computed:
                continue
            self._first_value(name, p)
            if name in self.binding.stretches:
                self._given_flat(name, "", p, "parameter")
            else:
                placement = place(self.recorder, p, self.binding.shard_of(name))
                placement.parameter = name
                self._given(name, p, placement, "parameter")
        for name, t in copies.items():
            begun = f"{name} before"
            self.first_values[begun] = self.recorder.read(unwrapped(t))
            placement = place(self.recorder, t)
            placement.parameter = begun
            self._given(begun, t, placement, "input")
            self.end.copies.given(name, t)
        self.recorder.random.inside = self.recorder.untracked.begun = True

    def _first_value(self, name: str, p: torch.Tensor) -> None:
        """What a parameter holds before it is an input."""
        local = unwrapped(p)
        if 0 in local.shape:
            return
        v = self.recorder.read(local)
        self.first_values[name] = v
        found = self.origins.of(v)
        given = self.constants_given.get(private.storage_key(local))
        if given is not None and same(given, v):
            found = dataclasses.replace(found, origin="the first rank's", given=True)
        parts = self.binding.stretches.get(name)
        self.initial.update(
            {s.name: dataclasses.replace(found, flat=True) for s in parts}
            if parts is not None
            else {name: found}
        )

    def synchronised(self, tensors: Sequence[torch.Tensor], group: Any, source: int) -> None:
        """DistributedDataParallel, or FSDP's first version, gives one rank's tensors to all at
        construction.
        """
        ranks = private.group_ranks(group)
        if len(ranks) == 1:
            return
        recorder = self.recorder
        self.spread.update(self.mesh.varying(ranks))
        recorder.g.loc = recorder.where()
        with private.outside():
            exchange = Exchange(recorder, ranks)
            for i, t in enumerate(tensors):
                local = unwrapped(t)
                v = recorder.read(local)
                exchange.parts = i  # so that each has its name, whatever ranks hold
                if isinstance(v, Named):
                    given = exchange.broadcast(
                        v if recorder.rank == ranks[source] else None,
                        ranks[source],
                        v.shape,
                        v.kind,
                    )
                    if isinstance(given, Named) and given.name != v.name:
                        self.origins.before[given.name] = v
                    recorder.write(local, given)
                elif isinstance(v, (Filled, Known)):
                    self.constants_given[private.storage_key(local)] = v

    def buffers(self, buffers: dict[str, tuple[torch.Tensor, bool]]) -> None:
        for name, (b, saved) in buffers.items():
            # One that was made before the step is taken in as it is now.
            made = self.recorder.read(unwrapped(b))
            if self.initial_state.any(name, unwrapped(b), saved, made):
                self.given.any_buffers[name] = cast("Filled", made).fill
                self._given(
                    f"{name}.old", b, place(self.recorder, b, self.binding.shard_of(name)), "input"
                )
            elif may_be_any(unwrapped(b), saved, made):
                self.given.as_made[name] = ""
            self.recorder.random.kept(made)
            self.given.buffers_before[name] = self.recorder.read(unwrapped(b))

    def states(
        self, optimizer: Any, states: list[tuple[str, str, torch.Tensor, nn.Parameter]]
    ) -> None:
        for name, key, value, p in states:
            if key == "step":
                self.recorder.write(unwrapped(value), Filled(1, tuple(value.shape)))
                continue
            self.given.states_of[(name, f".{key}")] = (optimizer, p)
            if name in self.binding.stretches and tuple(value.shape) == tuple(p.shape):
                self._given_flat(name, f".{key}", value, "input")
            else:
                same = tuple(value.shape) == tuple(p.shape)
                placement = place(
                    self.recorder, value, self.binding.shard_of(name) if same else None
                )
                placement.parameter = name if same else ""
                self._given(f"{name}.{key}", value, placement, "input")

    def alone(self, tensors: dict[str, torch.Tensor]) -> None:
        """Of an optimizer, that are no module's: they are compared beside parameters."""
        self.origins.look(self.recorder.random.draws)
        for name, t in tensors.items():
            if 0 not in unwrapped(t).shape:
                self.first_values[name] = self.recorder.read(unwrapped(t))

    def fresh(self, optimizer: Any, why: str) -> None:
        self.recorder.g.assume(assumptions.first_step(type(optimizer).__name__, why))

    def _given(self, name: str, t: torch.Tensor, placement: Placement, role: str) -> None:
        """The tensor's contents are an input of the step from here on."""
        local = unwrapped(t)
        name = self.tracker.claim(name, "input")
        if 0 in local.shape:
            return
        value = self.recorder.g.declare(
            name, tuple(local.shape), "int" if not local.dtype.is_floating_point else "real", role
        )
        self.recorder.write(local, value)
        self.tracker.tracked.append(TrackedTensor("input", name, value, placement))

    def _given_flat(self, name: str, suffix: str, t: torch.Tensor, role: str) -> None:
        """The same for a flat tensor of several parameters."""
        value, tracked_tensors = flat_parameters.given(
            self.recorder.g, self.binding.stretches[name], suffix, t.numel(), "real", role
        )
        if t.numel():
            self.recorder._storage(t).cut_in(
                self.recorder.g,
                self.recorder.g.reshape(value, tuple(t.shape)),
                self.recorder.geometry(t),
                "",
            )
        self.tracker.tracked += [
            TrackedTensor("input", label, v, placement) for label, v, placement in tracked_tensors
        ]
