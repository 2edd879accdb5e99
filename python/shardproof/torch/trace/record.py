# SPDX-License-Identifier: Apache-2.0
"""Runs a training step once as one rank (or as the single device) and keeps what it recorded."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import dataclasses
import enum
import math
import pickle
import random
import sys
import threading
from types import MappingProxyType
from typing import Any, Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from ..intercept import patches
from ..compat import private
from ..terms import assumptions
from ..distributed import collectives
from ..step import flat_parameters
from ..terms import dataflow, labels
from ..compat.data_loading import Dealing
from ..intercept.devices import as_cpu
from ..compat.fake_answers import Answers
from ..compat.lazy_modules import lazy_as_fake
from ..intercept.object_collectives import objects_exchanged
from ..compat.sync_batch_norm import sync_batch_norm
from .initial_buffers import Beginning, may_be_any
from ..step.binding import Binding, Gone
from ..intercept.data_number import DataNumber, data_numbers
from ..distributed.mailbox import Mailbox, MissingMetadata
from ..distributed.exchange import Exchange, Groups, Layouts
from ..terms.graph import Graph
from .initial_parameters import Initial, Origin, Origins
from ..step.tracked_tensors import Mark, Placement, place, unwrapped
from ..distributed.mesh import Mesh
from .opaque import Call as OpaqueCall
from .randomness import Draw
from .recorder import Recorder
from ..compat.refusals import Refusal, noted, refuse
from ..step.several_steps import each, numbered
from ..terms.values import Complex, Filled, Known, Named, Poison, Shape, Value
from ..step.world import World

MOVES_MEMORY = ("all_gather", "reduce_scatter")  # along dimension 0, whatever lies there
Step = Callable[[World], Any]


class CaptureError(RuntimeError):
    """The step cannot be captured; the message says what was met and where. ranges: of integer inputs, where these were known by then."""

    ranges: dict[str, int] | None = None
    any_buffers = True  # whether there may have been buffers that began with any value

    def __init__(self, text: str) -> None:
        super().__init__(text)
        refuse(self)


class Hazard(CaptureError):
    """The step is wrong whatever its numbers are. kind: `async`, a rank reads what nothing has written yet, or writes what is being sent; `random`, ranks draw other random numbers than one device could.

    loc: where.
    """

    def __init__(self, text: str, loc: str, tensor: str, kind: str = "async") -> None:
        super().__init__(f"{text} at {loc}" if loc else text)
        self.text, self.loc, self.tensor, self.kind = text, loc, tensor, kind


@dataclasses.dataclass
class Facts:
    """What is to be known of a recording beside its program. built: communication of the construction of the model; moved: of collectives that move memory the shape that is given to each."""

    assumptions: list[assumptions.Assumption]
    not_compared: list[assumptions.NotCompared]
    gives_hiding: str
    relies_on_brought: str
    gave_numbers: str
    built: frozenset[str]
    moved: dict[str, Shape]
    nodes: int
    communicates: bool


class NotKept(Exception):
    """All of a recording is needed of which only a part was kept."""


@dataclasses.dataclass
class Recording:
    """One side, as values only: no tensor of torch is left in it."""

    rank: int
    mesh: Mesh
    graph: Graph
    marks: list[Mark]
    started: int                      # nodes before this one belong to the construction of the model
    unknown: dict[str, str]           # what had no translation -> where it was met first
    random_inputs: list[Draw]
    cuts: dict[str, set[int]]         # mesh axis -> dimensions of inputs that it cuts
    calls: dict[str, int]             # module -> how often its forward ran
    opaque: list[OpaqueCall]          # calls of operators of which nothing is known
    hazards: dict[str, str]           # what is wrong with the program whatever it computes -> where
    unused: list[str]                 # parameters that DistributedDataParallel found not used, in order
    layouts: dict[str, Layouts]       # communication -> how its tensors lie in memory, where that matters
    groups_made: tuple[tuple[int, ...], ...] = ()  # their ranks, in the order in which process groups were made
    changed: frozenset[str] = frozenset()          # buffers that the step changes
    beginning: Beginning = Beginning()
    any_buffers: dict[str, float] = dataclasses.field(default_factory=dict)  # those that begin with any value, and the number that each was made with
    made_buffers: frozenset[str] = frozenset()     # all there were when a model was taken in
    as_made: dict[str, str] = dataclasses.field(default_factory=dict)  # those that begin with the number that they hold, or should, and why
    beside: dict[str, Shape] = dataclasses.field(default_factory=dict)  # what optimizers and the step keep beside parameters of modules, and its shape
    no_gradient: tuple[str, ...] = ()              # parameters that are left without a gradient
    models: tuple[tuple[str, frozenset[str]], ...] = ()  # in the order in which they were made: what names of their parameters begin with, and which these are
    left_alone: frozenset[str] = frozenset()       # parameters and buffers of models that were made and then left alone
    plain: dict[str, str] = dataclasses.field(default_factory=dict)  # numbers and texts that the step returned, and None
    initial: dict[str, Initial] = dataclasses.field(default_factory=dict)  # first values of parameters (initial.py)
    sent: dict[str, Origin] = dataclasses.field(default_factory=dict)      # communication of the construction -> what this rank gave
    spread: frozenset[str] = frozenset()           # axes of DistributedDataParallel: their ranks have different data
    own: bool = False                              # it began with a random state that no other process has
    given: frozenset[str] = frozenset()            # names of what world.input gave
    dealt: tuple[int, int] | None = None           # to how many ranks samples are dealt out, and how many are in a batch
    parts: dict[tuple[str, int], Named] = dataclasses.field(default_factory=dict)  # tensor, divisor -> its quotient, made for a checkpoint
    program: Any = None               # rank_program.Program that needs no communication of the construction, once it was made
    kept: str | None = None           # of one of which graph, marks and opaque are left out: the file with all of it, empty if there is none
    said: Facts | None = None

    @property
    def facts(self) -> Facts:
        if self.said is not None:
            return self.said
        g = self.graph
        return Facts(list(g.assumptions), list(g.not_compared), g.definedness.gives_hiding, g.definedness.relies_on_brought, g.gave_numbers, frozenset(n["comm"] for n in g.nodes[: self.started] if "comm" in n),
                     {n["comm"]: tuple(g.tensors[n["in"][0]]["shape"]) for n in g.nodes if n["op"] in MOVES_MEMORY and "comm" in n},
                     len(g.nodes), any("comm" in n for n in g.nodes))

    @property
    def strides(self) -> dict[str, Any]:
        """Of the communication that takes tensors as they lie in memory: how they lie."""
        return {comm: at.strides for comm, at in self.layouts.items() if at.strides}

    def light(self, file: str) -> Recording:
        """What is needed of it if its program needs not be made again; all of it goes into the file, if that is not empty."""
        said = self.facts
        if file:
            with open(file, "wb") as f:
                pickle.dump(dataclasses.replace(self, program=None), f, protocol=pickle.HIGHEST_PROTOCOL)
        return dataclasses.replace(self, graph=Graph(), marks=[], opaque=[], parts={}, kept=file, said=said)

    def whole(self) -> Recording:
        """All of it. Raises NotKept."""
        if self.kept is None:
            return self
        if not self.kept:
            raise NotKept
        with open(self.kept, "rb") as f:
            found: Recording = pickle.load(f)
        return found


class _OneThread(private.FakeTensorMode):
    """Knows of operators that another thread runs, which is not recorded. (An error that is raised there ends that thread alone.)"""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.thread = threading.get_ident()
        self.elsewhere: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if threading.get_ident() != self.thread:
            self.elsewhere.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs)


class _Side:
    """Backend of the world and listener of the binding, for a recording."""

    def __init__(self, recorder: Recorder, mesh: Mesh, beginning: Beginning) -> None:
        self.recorder, self.mesh, self.beginning = recorder, mesh, beginning
        self.binding = Binding(self)
        self.marks: list[Mark] = []
        self.yielded: list[Mark] = []  # results of the steps
        self.calls: collections.Counter[str] = collections.Counter()
        self.cuts: dict[str, set[int]] = collections.defaultdict(set)
        self.started: int | None = None
        self.states_of: dict[tuple[str, str], tuple[Any, nn.Parameter]] = {}  # (parameter, what it is) -> whose it is
        self.names: set[tuple[str, str]] = set()  # of inputs, and of outputs
        self.raw_gradients: list[Mark] = []
        self.gathered: dict[int, tuple[torch.Tensor, str]] = {}  # parameters as FSDP gathers them, by id, and their names
        self.unused: list[str] = []  # by DistributedDataParallel's find_unused_parameters
        self.buffers_before: dict[str, Value] = {}
        self.any_buffers: dict[str, float] = {}
        self.as_made: dict[str, str] = {}
        self.changed: set[str] = set()
        self.beside: dict[str, Shape] = {}
        self.no_gradient: list[str] = []
        self.trying = False  # modules run to see what shapes they give
        self.cut_inputs = False  # an axis cuts the batch, if of one rank only
        self.plain: dict[str, str] = {}  # numbers and texts that the step returned
        self.summed: set[tuple[int, int]] = set()  # memory of which world.output said that ranks have parts to be added up
        self.said: dict[tuple[int, int], Value] = {}  # memory that was given to world.output, and what it held then
        self.origins = Origins(recorder.g, mesh, recorder.rank)
        self.initial: dict[str, Initial] = {}
        self.spread: set[str] = set()
        self.given: set[str] = set()
        self.dealing = Dealing()
        if mesh.world == 1 and beginning.dealt:
            self.dealing.together = beginning.ranks_of(beginning.dealt), beginning.size
        self.constants_given: dict[int, Value] = {}  # memory that DistributedDataParallel gave to all where it held constants
        for axes in (*beginning.batch.values(), beginning.dealt):
            for axis in axes if mesh.world > 1 else ():
                self.cuts[axis].add(0)

    # ---- the world's backend ----
    def input(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, shard: Mapping[str, int], box: list[tuple[int, int]], high: int | None) -> torch.Tensor:
        if dtype.is_complex:
            raise CaptureError(f"input {name!r}: complex inputs are not supported")
        self.recorder.leaves.begun = self.binding.begun = True
        self.cut_inputs = self.cut_inputs or bool(shard)
        with self.quiet():
            t = torch.empty([b - a for a, b in box], dtype=dtype)
        for axis, dim in shard.items():
            if self.mesh.sizes.get(axis, 1) > 1:
                self.cuts[axis].add(dim % len(shape))
        if dtype == torch.bool or high is not None and not dtype.is_floating_point:
            self.recorder.g.integers.ranges[name] = 2 if dtype == torch.bool else int(high or 1)
        self.given.add(name)
        self._given(name, t, Placement(shard={a: d for a, d in shard.items() if a in self.mesh.sizes}), "input")
        if name in self.recorder.g.integers.ignorable and 0 not in t.shape:
            self.recorder.write(t, labels.input_of(self.recorder.g, name, self.recorder.read(t)))
        return t

    def output(self, name: str, tensor: torch.Tensor, shard: Mapping[str, int] | None, mean: Sequence[str] | None, total: Sequence[str]) -> None:
        known = [a for a in self.mesh.names]
        placement = place(self.recorder, tensor, {a: d for a, d in shard.items() if a in known} if shard is not None else None)
        self.said[_memory_of(tensor)] = self.recorder.read(unwrapped(tensor))
        if total:
            self.summed.add(_memory_of(tensor))
        if mean is not None:
            placement.mean = [a for a in mean if a in known]
        placement.partial += [a for a in total if a in known]
        if mean is None and total:
            placement.mean = []
        self.mark("output", self._unused(name, "output"), tensor, placement)

    def parameters(self, model: nn.Module, shard: Mapping[str, Mapping[str, int]], name: str) -> None:
        try:
            self.binding.bind(model, {p: {a: d for a, d in where.items() if a in self.mesh.sizes} for p, where in shard.items()}, name)
        except ValueError as e:
            raise CaptureError(str(e)) from None

    # ---- the binding's listener ----
    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        before, self.recorder.paused = self.recorder.paused, True
        try:
            yield
        finally:
            self.recorder.paused = before

    @contextlib.contextmanager
    def unmarked(self) -> Iterator[None]:
        before, self.trying = self.trying, True
        try:
            yield
        finally:
            self.trying = before

    def bound(self, parameters: dict[str, nn.Parameter]) -> None:
        if self.started is None:
            self.started = len(self.recorder.g.nodes)
        self.origins.look(self.recorder.random.draws)
        for name, p in parameters.items():
            self._begins(name, p)
            if name in self.binding.stretches:
                self._given_flat(name, "", p, "parameter")
            else:
                self._given(name, p, place(self.recorder, p, self.binding.shard_of(name)), "parameter")
        self.recorder.random.inside = self.recorder.leaves.begun = True

    def _begins(self, name: str, p: torch.Tensor) -> None:
        """What a parameter holds before it is an input."""
        local = unwrapped(p)
        if 0 in local.shape:
            return
        v = self.recorder.read(local)
        found = self.origins.of(v)
        given = self.constants_given.get(private.storage_key(local))
        if given is not None and _same(given, v):
            found = dataclasses.replace(found, origin="the first rank's", given=True)
        parts = self.binding.stretches.get(name)
        self.initial.update({s.name: dataclasses.replace(found, flat=True) for s in parts} if parts is not None else {name: found})

    def synchronised(self, tensors: Sequence[torch.Tensor], group: Any, source: int) -> None:
        """DistributedDataParallel and FSDP's first version give what one rank has to all, when they are made."""
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
                    recorder.write(local, exchange.broadcast(v if recorder.rank == ranks[source] else None, ranks[source], v.shape, v.kind))
                elif isinstance(v, (Filled, Known)):
                    self.constants_given[private.storage_key(local)] = v

    def buffers(self, buffers: dict[str, tuple[torch.Tensor, bool]]) -> None:
        for name, (b, saved) in buffers.items():
            made = self.recorder.read(unwrapped(b))  # one that was made before the step is taken in as it is now
            if self.beginning.any(name, unwrapped(b), saved, made):
                self.any_buffers[name] = getattr(made, "fill")
                self._given(f"{name}.old", b, place(self.recorder, b, self.binding.shard_of(name)), "input")
            elif may_be_any(unwrapped(b), saved, made):
                self.as_made[name] = ""
            self.recorder.random.kept(made)
            self.buffers_before[name] = self.recorder.read(unwrapped(b))

    def states(self, optimizer: Any, states: list[tuple[str, str, torch.Tensor, nn.Parameter]]) -> None:
        for name, key, value, p in states:
            if key == "step":
                self.recorder.write(unwrapped(value), Filled(1, tuple(value.shape)))
                continue
            self.states_of[(name, f".{key}")] = (optimizer, p)
            if name in self.binding.stretches and tuple(value.shape) == tuple(p.shape):
                self._given_flat(name, f".{key}", value, "input")
            else:
                self._given(f"{name}.{key}", value, place(self.recorder, value, self.binding.shard_of(name) if tuple(value.shape) == tuple(p.shape) else None), "input")

    def fresh(self, optimizer: Any, why: str) -> None:
        self.recorder.g.assume(assumptions.first_step(type(optimizer).__name__, why))

    def forward(self, name: str, module: nn.Module, args: Any, output: Any, final: bool) -> None:
        if self.recorder.paused or self.trying:
            return
        if not final:
            self.calls[name] += 1
            self._weights(name, module)
        call = self.calls[name] - 1
        if not final and any(True for _ in module.parameters(recurse=False)):
            self._operands(name, args, call)
        outputs = [t for t in private.tree_flatten(output)[0] if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
        for i, t in enumerate(outputs):
            local = t._local_tensor if isinstance(t, private.DTensor) else t
            if isinstance(local, private.AsyncCollectiveTensor):
                continue  # reading it would wait for it
            label = name + ".out" + (f".{i}" if len(outputs) > 1 else "")
            self.mark("checkpoint", label, t, self._result_of(name, module, t), call=call, module=name)
            if t.requires_grad and torch.is_grad_enabled():
                t.register_hook(self._gradient(label + ".grad", name, module, call, final))

    def _operands(self, name: str, args: Any, call: int) -> None:
        """What a module with parameters of its own is given: gradients of weights are products with it."""
        given = [t for t in args if isinstance(t, torch.Tensor) and t.dtype.is_floating_point] if isinstance(args, tuple) else []
        for i, t in enumerate(given):
            local = t._local_tensor if isinstance(t, private.DTensor) else t
            if not isinstance(local, private.AsyncCollectiveTensor):
                self.mark("checkpoint", name + ".in" + (f".{i}" if len(given) > 1 else ""), t, call=call, module=name)

    def _result_of(self, name: str, module: nn.Module, t: torch.Tensor) -> Placement:
        """A matrix that is cut along what it sums over leaves parts to be added up, unless the module has done so itself."""
        placement = place(self.recorder, t)
        shard = self.binding.shard_of(f"{name}.weight" if name else "weight")
        weight = module._parameters.get("weight")
        if shard and weight is not None and weight.dim() == 2 and not isinstance(t, private.DTensor):
            reduced = dataflow.reduced_over(self.recorder.g, self.recorder.read(t))
            placement.partial += [a for a, d in shard.items() if d % 2 == 1 and a not in reduced]
        return placement

    def _gradient(self, label: str, name: str, module: nn.Module, call: int, final: bool) -> Callable[[Any], None]:
        def hook(grad: Any) -> None:
            if grad is None:
                return  # a function of the step's own says so: its operand has no gradient
            if torch.is_grad_enabled():
                return  # it will be differentiated itself (a penalty on gradients), so that nothing says that its scale is the loss's
            if not final:
                self._weights(name, module)
            local = grad._local_tensor if isinstance(grad, private.DTensor) else grad
            if not isinstance(local, private.AsyncCollectiveTensor):
                placement = place(self.recorder, grad)
                if not placement.covered and not local.dtype.is_complex:
                    placement.shared = dataflow.shared_over(self.recorder.g, self.recorder.read(local))
                self.mark("checkpoint", label, grad, placement, call=call, gradient=True, module=name)

        return hook

    def _weights(self, name: str, module: nn.Module) -> None:
        """Parameters as the module uses them: whole, where FSDP has gathered them."""
        for key, p in module._parameters.items():
            full = f"{name}.{key}" if name else key
            if p is not None and full in self.binding.parameters:
                self.mark("checkpoint", full, p, place(self.recorder, p, self.binding.shard_of(full) if p is self.binding.parameters[full] else None))
                if p is not self.binding.parameters[full]:
                    self.gathered[id(p)] = (p, full)

    def unreduced(self, p: torch.Tensor, grad: torch.Tensor) -> None:
        """The gradient of a parameter that FSDP gathered, before its ranks add theirs up: a sum over many ranks and the cutting of it are then two proofs."""
        _, name = self.gathered.get(id(p), (p, ""))
        if not name or self.recorder.paused or isinstance(grad, (private.AsyncCollectiveTensor, private.DTensor)):
            return
        placement = place(self.recorder, p)
        placement.mean = [a for a in self.cuts if a not in placement.covered]
        self.mark("checkpoint", f"{name}.grad of backward", grad, placement)

    def _squares(self) -> None:
        """Sums of squares of gradients (for clipping), which the ranks have parts of: the norm of all is then made of proved numbers."""
        g = self.recorder.g
        products = {n["in"][0]: n["out"][0] for n in g.nodes if n["op"] == "mul" and len(n["in"]) == 2 and n["in"][0] == n["in"][1]}
        sums = {n["in"][0]: n["out"][0] for n in g.nodes if n["op"] == "sum" and g.tensors[n["out"][0]]["shape"] == []}
        for m in self.raw_gradients:
            total = sums.get(products.get(getattr(m.value, "name", ""), ""))
            if total is not None and (m.placement.covered or self.mesh.world == 1):
                where = Placement(covered=list(m.placement.covered), partial=list(m.placement.cut))
                self.marks.append(Mark("checkpoint", f"{m.name}, squares", Named(total, ()), where))

    def _reduced_later(self) -> None:
        """A gradient that the program reduces by hand after backward was its rank's part of the sum (or the mean) until then."""
        made = {m.name: (m.value.base or m.value).name for m in self.raw_gradients if isinstance(m.value, Named) and not m.placement.covered}  # in the shape in which it was made
        later = dataflow.reduced_next(self.recorder.g, [*made.values(), *(m.value.name for m in self.raw_gradients if isinstance(m.value, Named))], self.mesh.sizes)
        for m in self.raw_gradients:
            found = later.get(made.get(m.name, "")) or later.get(getattr(m.value, "name", "")) if m.name in made else None
            if found is not None and not {a for a, d in (m.placement.shard or {}).items() if self.mesh.sizes[a] > 1}.intersection(found[0]):  # what is cut along them is no sum
                axes, mean = found
                m.placement.mean = [a for a in m.placement.mean or [] if a not in axes] + (axes if mean else [])
                m.placement.partial = [a for a in m.placement.partial if a not in axes] + ([] if mean else axes)

    def _summed(self) -> None:
        """A loss that is said to be a sum over ranks (it was divided by what all of them have) has gradients that are sums. Only checkpoints go by that, and they are proved before they are used."""
        scalars = [m.placement for m in self.marks if m.role == "output" and m.value.shape == ()]
        added = dataflow.reduced_last(self.recorder.g, [m.value for m in self.marks if m.role == "output" and m.value.shape == () and not m.placement.mean], self.mesh.sizes)
        summed = tuple(a for a in self.cuts if (a in added or any(a in p.partial for p in scalars)) and not any(a in (p.mean or []) for p in scalars))
        for m in [*self.marks, *self.raw_gradients] if summed else []:
            if m.gradient:
                m.placement.summed = summed
            elif m.role == "checkpoint" and m.placement.mean and m.name.endswith(".grad of backward"):
                m.placement.partial += [a for a in m.placement.mean if a in summed]
                m.placement.mean = [a for a in m.placement.mean if a not in summed]

    def _several_passes(self) -> None:
        """Gradients of single backward passes, where there were several, are no gradients of all of them: each has its own name."""
        single: dict[str, list[Mark]] = collections.defaultdict(list)
        for m in self.marks:
            if m.role == "checkpoint" and m.name.endswith(".grad of backward"):
                single[m.name].append(m)
        for name, marks in single.items():
            for i, m in enumerate(marks if len(marks) > 1 else []):
                m.name = f"{name} pass {i + 1}"

    def after_backward(self) -> None:
        """Gradients as backward left them, before clipping; of several backward passes the last one's stay."""
        if self.recorder.paused:
            return
        self.recorder.leaves.differentiated = True
        self.raw_gradients = []
        for name, p in self.binding.parameters.items():
            if p.grad is None or 0 in unwrapped(p.grad).shape or name in self.binding.stretches:
                continue
            shard = self.binding.shard_of(name)
            placement = place(self.recorder, p.grad, shard)
            value = self.recorder.read(unwrapped(p.grad))
            if not isinstance(p.grad, private.DTensor):  # not reduced yet (by hand), or already (DDP)
                reduced = dataflow.reduced_over(self.recorder.g, value)
                placement.mean = [a for a in self.cuts if a not in (shard or {}) and a not in reduced]
            self.raw_gradients.append(Mark("checkpoint", f"{name}.grad of backward", value, placement))

    # ---- marks ----
    def _given(self, name: str, t: torch.Tensor, placement: Placement, role: str) -> None:
        """The tensor's contents are an input of the step from here on."""
        local = unwrapped(t)
        name = self._unused(name, "input")
        if 0 in local.shape:
            return
        value = self.recorder.g.declare(name, tuple(local.shape), "int" if not local.dtype.is_floating_point else "real", role)
        self.recorder.write(local, value)
        self.marks.append(Mark("input", name, value, placement))

    def _given_flat(self, name: str, suffix: str, t: torch.Tensor, role: str) -> None:
        """The same of a tensor in which parameters of the model lie one after another."""
        value, marks = flat_parameters.given(self.recorder.g, self.binding.stretches[name], suffix, t.numel(), "real", role)
        if t.numel():
            self.recorder._storage(t).cut_in(self.recorder.g, self.recorder.g.reshape(value, tuple(t.shape)), self.recorder.geometry(t), "")
        self.marks += [Mark("input", label, v, placement) for label, v, placement in marks]

    def _left(self, name: str, suffix: str, t: torch.Tensor, placement: Placement | None, untouched: bool = False) -> None:
        """What the step leaves in a parameter, its gradient or its state: of a single number, too, each rank has the model's, unlike a loss. untouched: nothing was done with it, so that nothing is
        claimed of it here."""
        kind = {".grad": "gradients", ".new": "new parameters"}.get(suffix, "optimizer states")
        role = "output"
        if self.binding.only_used(name) and name not in self.binding.stretches:
            if untouched and self.mesh.world > 1:
                return
            if untouched:
                role = "kept"
            elif suffix != ".grad":
                self.changed.add(name + suffix)
        placement = placement or place(self.recorder, t)
        placement.mean = placement.mean or []
        parts = self.binding.stretches.get(name)
        if parts is None or t.numel() != self.binding.parameters[name].numel():
            self.mark(role, name + suffix, t, placement, kind=kind)
        elif t.numel():
            flat = self.recorder.g.reshape(self.recorder.read(t), (t.numel(),))
            self.marks += [Mark("output", label, v, where, kind=kind) for label, v, where in flat_parameters.parts_of(self.recorder.g, parts, suffix, flat)]

    def _unused(self, name: str, role: str) -> str:
        if not name or name.startswith("%") or (role, name) in self.names:
            raise CaptureError(f"the name {name!r} is empty, begins with % or is used twice")
        self.names.add((role, name))
        return name

    def mark(self, role: str, name: str, t: torch.Tensor, placement: Placement | None = None, call: int = 0, gradient: bool = False, module: str = "", kind: str = "results") -> None:
        local = unwrapped(t)
        if 0 in local.shape or local.dtype.is_complex:
            return
        placement = placement or place(self.recorder, t)
        self.marks.append(Mark(role, name, self.recorder.read(local), placement, call, gradient, module, kind))

    def keep(self, result: Any, number: int = 1) -> None:
        """Takes in what a step gave: its result, or of several steps the one of that number."""
        before, self.marks = self.marks, self.yielded
        for label, found in _leaves_of(result):
            self._result(label, found, number)
        self.marks = before

    def finish(self, result: Any) -> None:
        """Marks what the step left behind: its results, gradients, parameters and optimizer states."""
        self._summed()
        self._several_passes()
        self._reduced_later()
        self.marks += self.raw_gradients
        self._squares()
        self.keep(result)
        self.marks += self.yielded
        untouched = self._untouched()
        for name, p in self.binding.parameters.items():
            if p.grad is not None:
                self._left(name, ".grad", p.grad, place(self.recorder, p.grad, self.binding.shard_of(name)))
            elif 0 not in unwrapped(p).shape:
                self.no_gradient.append(name)
        for name, held in self._held().items():
            self._left(name, ".new", held, place(self.recorder, held, self.binding.shard_of(name)), name in untouched)
        for (name, key), (value, owner) in self.binding.later_states(self.states_of).items():
            self._left(name, f"{key}.new", value, place(self.recorder, value, self.binding.shard_of(name) if tuple(value.shape) == tuple(owner.shape) else None))
        for (name, key), (optimizer, owner) in self.states_of.items():
            value = optimizer.state.get(owner, {}).get(key[1:])
            if not isinstance(value, torch.Tensor):
                raise CaptureError(f"the state {key[1:]!r} of {type(optimizer).__name__} for {name} is no tensor any more at the end of the step")
            placement = next((m.placement for m in self.marks if m.role == "input" and m.name == name + key), None)
            self._left(name, f"{key}.new", value, placement, name in untouched)
        for name, p in self.binding.parameters.items():
            self._attributes(name, p)
        for name, (b, saved) in self.binding.buffers().items():
            self._buffer(name, b, saved)
        self._first_states()
        found = self.binding.of_optimizers()
        for name, kept in found.items():
            self._beside(name, kept)
        self._leaves(found)
        for o in self.binding.idle_optimizers() if self.recorder.leaves.differentiated else ():
            idle = assumptions.no_step(type(o).__name__, sum(len(group["params"]) for group in o.param_groups))
            self.recorder.g.leave_out(idle.what, idle.because)

    def _result(self, label: str, found: Any, number: int) -> None:
        """Something that the step returned, or the one of that number of several: compared, or named as not compared."""
        kind = "loss" if label == "loss" else "results"
        label = numbered(label, number)
        what = f"the step's result {label!r}"
        if isinstance(found, DataNumber):
            if found.value is None:
                self.recorder.g.leave_out(what, "it is a number that depends on data in a way that is not followed")
                return
            with self.quiet():
                found = self.recorder.number_tensor(found.value, torch.float64)
        if isinstance(found, torch.Tensor):
            if found.dtype.is_complex and found.numel():
                self.recorder.g.leave_out(what, "it is complex")
            self.mark("output", self._unused(label, "output"), found, kind=kind)
        elif isinstance(found, str) and self.recorder.g.gave_numbers:
            self.recorder.g.leave_out(what, "it is a text, which may have been made of numbers that depend on data")
        elif isinstance(found, nn.Module):
            self._returned(label, found)
        elif found is None or isinstance(found, _PLAIN):
            self.plain[label] = repr(found)
        else:
            self.recorder.g.leave_out(what, f"nothing is known of what is in a {type(found).__name__}")

    def _returned(self, label: str, module: nn.Module) -> None:
        """Of a module that the step returned: what is compared nowhere else."""
        if not self.binding.has(module):
            if any(t.numel() for t in [*module.parameters(), *module.buffers()]):
                self.recorder.g.leave_out(f"the step's result {label!r}", "nothing calls or trains this module in the step, so that its parameters and buffers are not looked at")
        for path, m in module.named_modules():
            for key, t in vars(m).items():
                now = self.recorder.read(unwrapped(t)) if isinstance(t, torch.Tensor) and t.numel() else None
                if isinstance(now, Poison) or isinstance(now, Named) and now.node is not None:
                    self.recorder.g.leave_out(f"the step's result {'.'.join(filter(None, (label, path, key)))!r}", "it is a tensor that the step computed and the module holds as a plain attribute: return it by itself")

    def _untouched(self) -> set[str]:
        """Parameters of models of which only parts are called that this side neither computes with nor changes, though it does with others of them: stages of a pipeline that others have, of which it keeps an old copy. A model that it leaves alone as a
        whole is compared."""
        mine = [name for name in self.binding.parameters if name not in self.binding.stretches and self.binding.only_used(name)]
        used = {x for n in self.recorder.g.nodes for x in n["in"]} if mine else set()
        held = self._held() if mine else {}
        now = {name: self.recorder.read(unwrapped(held[name])) for name in mine if name not in used and self.binding.parameters[name].grad is None}
        left = {name for name, v in now.items() if isinstance(v, Named) and v.node is None and v.name == name}
        parts = {id(self.binding.model_of(name)) for name in mine if name not in left}  # models of which this side has a part to do
        return {name for name in left if id(self.binding.model_of(name)) in parts}

    def _attributes(self, name: str, p: nn.Parameter) -> None:
        """Tensors that are kept with a parameter, such as gradients that are added up apart from `.grad`. Of a parameter that an optimizer has stepped these were only on the way (`main_grad` of a buffer of which a rank has reduced its own part)."""
        stepped = any(p is q or getattr(q, "main_param", None) is p or getattr(p, "main_param", None) is q for o in self.binding.optimizers for group in o.param_groups for q in group["params"])
        for key, t in list(vars(p).items()):
            if key.startswith("_") or not isinstance(t, torch.Tensor) or t is p or tuple(t.shape) != tuple(p.shape) or not t.dtype.is_floating_point or 0 in unwrapped(t).shape:
                continue
            if stepped and key.endswith("grad"):
                continue
            now = self.recorder.read(unwrapped(t))
            if isinstance(now, Poison):
                self.recorder.g.leave_out(f"{name}.{key}", f"it is written in a way that is not followed ({now.reason.text} at {now.reason.loc})")
            elif not isinstance(now, (Filled, Known)):
                self._beside_one(f"{name}.{key}", t, place(self.recorder, t, self.binding.shard_of(name)), "gradients" if key.endswith("grad") else BESIDE)

    def _held(self) -> dict[str, torch.Tensor]:
        try:
            return self.binding.held()
        except Gone as e:
            raise CaptureError(str(e)) from None

    def _leaves(self, named: Mapping[str, Any]) -> None:
        """Tensors that the step wrote by hand (leaves.py), but those that have names: parameters, gradients, states and buffers, and what FSDP gathers."""
        binding = self.binding
        others = [*binding.parameters.values(), *self._held().values(), *(b for b, _ in binding.buffers().values()), *named.values(),
                  *(p.grad for p in binding.parameters.values()), *binding.gathered(), *(v for o in binding.optimizers for s in o.state.values() for v in s.values())]
        have = {private.storage_key(unwrapped(t)) for t in others if isinstance(t, torch.Tensor)}
        count: collections.Counter[str] = collections.Counter()
        for key, t in self.recorder.leaves.written().items():
            now = self.recorder.read(t)
            copied = isinstance(now, Named) and now.node is None and (key not in self.recorder.leaves.updated or now.name.startswith("%random"))
            if key in have or isinstance(now, (Filled, Known)) or copied:  # numbers, or as it was drawn or copied at the beginning
                continue
            if isinstance(now, Poison):
                self.recorder.g.leave_out(f"a tensor of shape {list(t.shape)} that no called module has", f"it is written by hand in a way that is not followed ({now.reason.text} at {now.reason.loc})")
                continue
            shape = "x".join(map(str, t.shape)) or "1"
            self._beside(f"leaf {shape}.{count[shape]}", t)
            count[shape] += 1
            have.add(key)
        for t in self.binding.leaves_read():
            if t.grad is None or 0 in unwrapped(t).shape or private.storage_key(unwrapped(t)) in have:
                continue
            now = self.recorder.read(unwrapped(t))
            name = next((m.name for m in self.marks if m.role == "input" and m.value is now), None)
            shape = "x".join(map(str, t.shape)) or "1"
            if name is not None:
                self._gradient_of_input(name, t)
            elif not self.recorder.is_activation(now, isinstance(t, nn.Parameter)):
                self._beside_one(f"leaf {shape}.{count[shape]}.grad", t.grad, place(self.recorder, t.grad), BESIDE)
                count[shape] += 1

    def _gradient_of_input(self, name: str, t: torch.Tensor) -> None:
        if self.cut_inputs:
            self.recorder.g.leave_out(f"{name}.grad", "the batch is cut, so that its scale depends on how the ranks' losses are averaged")
            return
        placement = next(m.placement for m in self.marks if m.role == "input" and m.name == name)
        self._beside_one(f"{name}.grad", t.grad, dataclasses.replace(placement), "gradients")

    def _first_states(self) -> None:
        """States that begin as they are before a first step: compared where all sides have them."""
        for optimizer, what, value in self.binding.other_states():
            self._no_tensor(optimizer, what, value)
        for optimizer, name, p, key, value in self.binding.first_states():
            what = f"state {key} of {name}"
            if not isinstance(value, torch.Tensor):
                self._no_tensor(optimizer, what, value)
            elif 0 not in unwrapped(value).shape:
                same = tuple(value.shape) == tuple(p.shape)
                self._beside_one(f"{what}.new", value, place(self.recorder, value, self.binding.shard_of(name) if same else None), "optimizer states")

    def _no_tensor(self, optimizer: Any, what: str, value: Any) -> None:
        if not isinstance(value, (bool, int, type(None))):  # counts of steps, switches
            self.recorder.g.leave_out(what, f"{type(optimizer).__name__} keeps it as a {type(value).__name__}")

    def _beside_one(self, name: str, t: torch.Tensor, placement: Placement, kind: str) -> None:
        """A tensor that is compared where all sides have it."""
        if t.dtype.is_complex:
            self.recorder.g.leave_out(name, "it is complex")
            return
        self.beside[name] = tuple(t.shape)
        placement.mean = placement.mean or []
        self.mark("kept", name, t, placement, kind=kind)

    def _beside(self, name: str, kept: Any) -> None:
        """Ranks whose optimizers have other parts than the single device's (flat buffers, a rank's own share) have others of these."""
        if isinstance(kept, DataNumber) and kept.value is not None:
            with self.quiet():
                kept = self.recorder.number_tensor(kept.value, torch.float64)
        if isinstance(kept, (int, float)):
            self.marks.append(Mark("kept", f"{name}.new", Filled(kept, ()), Placement(mean=[]), kind="optimizer settings"))
            self.beside[f"{name}.new"] = ()
        for suffix, t in ((".new", kept), (".grad", kept.grad if kept.requires_grad else None)) if isinstance(kept, torch.Tensor) else ():
            if t is not None and 0 not in unwrapped(t).shape and not t.dtype.is_complex:
                self._beside_one(name + suffix, t, place(self.recorder, t), BESIDE)

    def _buffer(self, name: str, b: torch.Tensor, saved: bool) -> None:
        """What the step leaves in a buffer is claimed if it changed it there, on whichever side. A cache of constants is not kept: it is made again; what was given to world.output is claimed as it was said there."""
        local = unwrapped(b)
        before, now, said = self.buffers_before.get(name), self.recorder.read(local), self.said.get(_memory_of(b))
        if 0 in local.shape:
            return
        if (saved or not isinstance(now, (Filled, Known))) and not any(v is not None and _same(v, now) for v in (before, said)):
            self.changed.update(f"{name}.new{part}" for part in _parts(now))
        placement = place(self.recorder, b, self.binding.shard_of(name))
        placement.mean = placement.mean or []  # of a single number, too, each rank has the model's
        self.marks += [Mark("kept", f"{name}.new{part}", v, placement, kind="buffers") for part, v in _parts(now).items()]
        if name in self.any_buffers and (_memory_of(b) in self.summed or isinstance(now, Filled) and now.fill == self.any_buffers[name]):
            self.as_made[name] = "ranks have parts of it, as world.output says" if _memory_of(b) in self.summed else AS_IT_WAS


BESIDE = "other trained tensors"  # that no called module holds: of optimizers, or written by hand
AS_IT_WAS = "it has the same number at the end"


def _memory_of(t: torch.Tensor) -> tuple[int, int]:
    local = unwrapped(t)
    return private.storage_key(local), int(local.storage_offset())


def _parts(v: Value) -> dict[str, Value]:
    return {".real": v.real, ".imag": v.imag} if isinstance(v, Complex) else {"": v}


def _same(a: Value, b: Value) -> bool:
    """Whether two values are known to be one."""
    if isinstance(a, Complex) and isinstance(b, Complex):
        return _same(a.real, b.real) and _same(a.imag, b.imag)
    if isinstance(a, Filled) and isinstance(b, Filled):
        return a.fill == b.fill and a.shape == b.shape
    if a is b or not (isinstance(a, Known) and isinstance(b, Known) and a.shape == b.shape):
        return a is b
    with private.outside():
        return torch.equal(a.data.double(), b.data.double())


class _Waits:
    """Tells the recorder what asynchronous calls write and send, until they are waited for, and what they communicate."""

    def __init__(self, recorder: Recorder, batches: list[int]) -> None:
        self.recorder, self.batches = recorder, batches
        self.start = 0  # nodes before the call

    def begin(self) -> None:
        self.recorder.issued = []
        self.start = len(self.recorder.g.nodes)

    def end(self, pending: bool) -> object:
        token = object()
        if pending and not self.batches:  # messages of a batch are waited for as one
            self.recorder.begun.begin(token, self.start)
        for t, name, writes in (self.recorder.issued or []) if pending else []:
            (self.recorder.pend if writes else self.recorder.sending)(t, name, token)
        self.recorder.issued = None
        return token

    def wait(self, token: object) -> None:
        self.recorder.finish(token)
        self.recorder.begun.wait(token)

    def given_away(self, token: object) -> None:
        self.recorder.g.assume(assumptions.FUTURES)
        self.wait(token)


_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum)
_NO_RESULTS = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, World, type)  # compared otherwise, or no data


def _results(result: Any) -> list[tuple[str, Any]]:
    """Tensors, and numbers that depend on data, that the step returned, with names."""
    return [(label, found) for label, found in _leaves_of(result) if isinstance(found, (torch.Tensor, DataNumber))]


def _leaves_of(result: Any, name: str = "", inside: tuple[int, ...] = ()) -> list[tuple[str, Any]]:
    """All that the step returned, with names: a tensor is `loss`; a dictionary's have their keys, an object's its attributes' names, those of a list `result.` and their place."""
    if result is None and not name or isinstance(result, _NO_RESULTS) or id(result) in inside:
        return []
    if isinstance(result, (torch.Tensor, DataNumber, nn.Module, *_PLAIN)) or result is None:
        return [(name or "loss", result)]
    inside = (*inside, id(result))
    if isinstance(result, Mapping):
        of_data = [isinstance(k, (torch.Tensor, DataNumber)) for k in result]
        keys = [f"key {i}" if is_data else str(k) for i, (k, is_data) in enumerate(zip(result, of_data))]
        unknown = [(f"{name}.keys" if name else "keys", result.keys())] if any(of_data) else []
        items = [found for k, v in zip(keys, result.values()) for found in _leaves_of(v, f"{name}.{k}" if name else k, inside)]
        return unknown + items + _attributes_of(result, name, items)
    if isinstance(result, (list, tuple, collections.deque, collections.UserList)):
        items = [found for i, v in enumerate(result) for found in _leaves_of(v, f"{name}.{i}" if name else "loss" if i == 0 else f"result.{i}", inside)]
        return items + _attributes_of(result, name, items)
    if dataclasses.is_dataclass(result):
        items = [found for f in dataclasses.fields(result) for found in _leaves_of(getattr(result, f.name), f"{name}.{f.name}" if name else f.name, inside)]
        return items + _attributes_of(result, name, items)
    if type(result).__module__ != "builtins" and hasattr(result, "__dict__") and not callable(result) and not isinstance(result, collections.abc.Iterator):
        return [found for k, v in vars(result).items() for found in _leaves_of(v, f"{name}.{k}" if name else k, inside)]
    return [(name or "loss", result)]


def _attributes_of(result: Any, name: str, items: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Tensors that a list, a dictionary or a dataclass has as attributes beside its items."""
    have = {id(v) for _, v in items}
    return [(f"{name}.{k}" if name else k, v) for k, v in getattr(result, "__dict__", {}).items() if isinstance(v, (torch.Tensor, DataNumber)) and id(v) not in have]


@contextlib.contextmanager
def _own_random_state(rank: int, world: int) -> Iterator[None]:
    """Python's and numpy's random numbers, which a process that seeds nothing begins with numbers of its own: those of no two ranks, nor of the single device, are the same."""
    numpy: Any = sys.modules.get("numpy")
    before, theirs = random.getstate(), numpy.random.get_state() if numpy is not None else None
    try:
        random.seed(f"rank {rank} of {world}")
        if numpy is not None:
            numpy.random.seed(random.getrandbits(32))
        yield
    finally:
        random.setstate(before)
        if numpy is not None:
            numpy.random.set_state(theirs)


def _result(step: Step, world: World, side: _Side) -> Any:
    """What the step returns.

    Whatever it does about errors of the recorder, the first of them ends the recording (refusals.py).
    Raises CaptureError, MissingMetadata, and what the step raises of its own.
    """
    with noted(side.recorder.where) as notes:
        try:
            result = each(step(world), side.keep)
        except BaseException as e:
            if notes.refused is not None:
                raise _told(notes.refused, side, notes.refused is not e) from None
            if isinstance(e, private.DEPENDS_ON_DATA):
                raise _told(e, side) from None
            raise
    if notes.refused is not None:
        raise _told(notes.refused, side, caught=True) from None
    if notes.failed is not None:
        error, loc = notes.failed
        raise _told(error, side, caught=True, loc=loc) from None
    return result


def _told(error: BaseException, side: _Side, caught: bool = False, loc: str = "") -> Exception:
    """An error that ends a recording as its caller gets it. caught: by the program; loc: where, of one of torch's."""
    recorder, told = side.recorder, ""
    if caught:
        told = " (the program catches this error, and what it does then it need not do on real devices)"
    if isinstance(error, MissingMetadata):
        return error
    reason = getattr(error, "reason", None)
    if side.mesh.world > 1 and reason is not None and reason.hazard:
        return Hazard(f"what rank {recorder.rank} sends cannot be followed: {reason.text}", reason.loc, "")
    if isinstance(error, private.DEPENDS_ON_DATA):
        loc = loc or recorder.where() or recorder.g.loc
        return CaptureError(f"what {error} yields, or its shape, depends on data" + (f" at {loc}" if loc else "") + told)
    if isinstance(error, CaptureError):
        made: CaptureError = error
        if told and not isinstance(error, Hazard):
            made = CaptureError(f"{error}{told}")
    else:
        made = CaptureError(f"{loc}: {type(error).__name__}: {error}{told}" if loc else f"{error}{told}")
        made.ranges = {**recorder.g.integers.ranges, **recorder.g.integers.chosen_from} if isinstance(error, Refusal) else None
    made.any_buffers = bool(side.any_buffers)
    return made


def record(step: Step, mesh: Mesh, rank: int, classes: Mapping[str, int] | None = None, mailbox: Mailbox | None = None, answers: Answers | None = None, stand_in: float = math.nan,
           beginning: Beginning = Beginning(), ignorable: labels.Ignorable = MappingProxyType({})) -> Recording:
    """One rank's training step. classes: of integer inputs whose range is known from the single device. mailbox: what stages of pipelines tell each other. answers: what fake tensors said to other ranks.
    stand_in: what numbers that depend on data are to code that is not followed. beginning: what buffers hold at first. ignorable: integer inputs that are classes or a number that ignores them.

    Raises CaptureError, and whatever the step raises.
    """
    private.require()
    private.forget_results()
    recorder = Recorder(rank, answers)
    recorder.g.integers.classes.update(classes or {})
    recorder.g.integers.ignorable.update(ignorable)
    mailbox = {} if mailbox is None else mailbox
    recorder.groups = Groups(mesh, rank, mailbox)
    side = _Side(recorder, mesh, beginning)
    recorder.modules = side.binding.stack
    recorder.reads, recorder.writes = side.binding.reads, side.binding.writes
    batch_start: list[int] = []

    def on_batch(operations: Sequence[Any] | None) -> None:
        if operations is None:
            collectives.order_batch(recorder, batch_start.pop())
            return
        for ranks in dict.fromkeys(private.group_ranks(operation.group) for operation in operations):
            recorder.begun.hold_up(recorder.groups.fields(ranks)[1])
        batch_start.append(len(recorder.g.nodes))

    with _own_random_state(rank, mesh.world), private.fake_group(rank, mesh.world) as groups_made, patches.patched(recorder.freed, on_batch, side.quiet, side.after_backward, _Waits(recorder, batch_start), mailbox, side.unused.append, recorder.numbers, side.unreduced, side.unmarked, side.synchronised, side.dealing, recorder.random), private.random_tracker(recorder.random), objects_exchanged(mailbox, rank, recorder.groups.next):
        recorder.random.begin(rank, mesh.world, getattr(step, "own_random_state", False))
        recorder.random.batch = {name: times for name, axes in beginning.batch.items() if mesh.world == 1 and (times := beginning.ranks_of(axes)) > 1}
        world = World(mesh, rank, side)
        with _OneThread(allow_non_fake_inputs=True) as recorder.mode, recorder, side.binding.listening(), as_cpu(recorder.random), sync_batch_norm(), recorder.leaves.watching(), labels.ignored_labels_named(recorder.g), data_numbers(recorder, stand_in), private.without_mkldnn(), lazy_as_fake():
            result = _result(step, world, side)
            recorder.g.loc = ""
            if recorder.mode.elsewhere:
                raise CaptureError(f"{recorder.mode.elsewhere[0]} runs in another thread than the step: what other threads do is not followed")
            try:
                side.finish(result)
            except Refusal as e:
                raise _told(e, side) from None
            except CaptureError as e:
                e.any_buffers = bool(side.any_buffers)
                raise
    recorder.g.forget()
    recorder.forget()
    return Recording(rank, mesh, recorder.g, side.marks, side.started or 0, recorder.unknown, recorder.random.draws, dict(side.cuts), dict(side.calls), recorder.opaque.made, recorder.hazards, side.unused, recorder.groups.layouts, tuple(groups_made), frozenset(side.changed), beginning, side.any_buffers,
                     frozenset(side.buffers_before), side.as_made, side.beside, tuple(side.no_gradient), models=tuple(side.binding.order()), plain=side.plain, left_alone=side.binding.left_alone(),
                     initial=side.initial, sent=side.origins.sent, spread=frozenset(side.spread), own=recorder.random.own, given=frozenset(side.given), dealt=side.dealing.seen)
