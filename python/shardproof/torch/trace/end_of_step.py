# SPDX-License-Identifier: Apache-2.0
"""What a step leaves behind: its results, gradients, parameters, buffers and optimizer states."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..compat import private
from ..intercept.data_number import DataNumber
from ..step import flat_parameters
from ..step.binding import Gone
from ..step.several_steps import numbered
from ..step.tracked_tensors import STATES, Placement, TrackedTensor, place, unwrapped
from ..terms import assumptions
from ..terms.nodes import MOVES_HERE
from ..terms.values import Complex, Filled, Known, Named, Poison, Shape, Value
from .clues import Noticing
from .copies_of_weights import Copies
from .cut_points import CutPoints
from .printed_numbers import DECIDING, Reduced, labelled
from .recording import CaptureError
from .results import PLAIN, leaves_of
from .tracker import Tracker

# what only the next step of a script shows
GRADIENTS = "gradients that are left for it"
MADE = "copies of weights that were made in it"
AVERAGES = "copies of weights that were updated before it"
BESIDE = "other trained tensors"  # that no called module holds: of optimizers, or written by hand
AS_IT_WAS = "it has the same number at the end"


def memory_of(t: torch.Tensor) -> tuple[int, int]:
    local = unwrapped(t)
    return private.storage_key(local), int(local.storage_offset())


def _parts(v: Value) -> dict[str, Value]:
    return {".real": v.real, ".imag": v.imag} if isinstance(v, Complex) else {"": v}


def same(a: Value, b: Value) -> bool:
    """Whether two values are known to be one."""
    if isinstance(a, Complex) and isinstance(b, Complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Filled) and isinstance(b, Filled):
        return a.fill == b.fill and a.shape == b.shape
    if isinstance(a, Named) and isinstance(b, Named):
        return a.name == b.name and a.shape == b.shape
    if isinstance(a, Known) and isinstance(b, Filled):
        a, b = b, a
    if isinstance(a, Filled) and isinstance(b, Known):
        with private.outside():
            return a.shape == b.shape and bool((b.data == a.fill).all())
    if a is b or not (isinstance(a, Known) and isinstance(b, Known) and a.shape == b.shape):
        return a is b
    with private.outside():
        return bool(torch.equal(a.data.double(), b.data.double()))


def _numbers(settings: Mapping[str, Any]) -> dict[str, float]:
    """Numbers among what optimizers have, by the names under which they are compared."""
    return {f"{n}.new": float(v) for n, v in settings.items() if type(v) in (int, float)}


@dataclasses.dataclass
class Given:
    """What a step began with, and what it gave to `world.output`.

    states_of: (parameter, what it is) -> optimizer and parameter of a state that is an input.
    buffers_before: what buffers held. any_buffers: those that begin with any value, and the number
    that each was made with. as_made: those that begin with the number that they hold, or should,
    and why. summed: memory of which ranks have parts to be added up. outputs: memory that was given
    to `world.output`, and what it held then.
    """

    states_of: dict[tuple[str, str], tuple[Any, nn.Parameter]] = dataclasses.field(
        default_factory=dict
    )
    buffers_before: dict[str, Value] = dataclasses.field(default_factory=dict)
    any_buffers: dict[str, float] = dataclasses.field(default_factory=dict)
    as_made: dict[str, str] = dataclasses.field(default_factory=dict)
    summed: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    outputs: dict[tuple[int, int], Value] = dataclasses.field(default_factory=dict)


class EndOfStep:
    """Tracks what a step leaves behind.

    plain: numbers and texts that it returned. changed: buffers that it changes. caches: those that
    are not saved, and that it makes, or leaves with other constants than they began with. beside:
    what optimizers and the step keep beside parameters of modules, and its shape. no_gradient:
    parameters without a gradient. printed: numbers that a script prints and that are compared.
    spread: mesh axes of DistributedDataParallel. settings: numbers of optimizers at the end;
    settings_in_step: before what follows a script's step.
    """

    def __init__(self, tracker: Tracker, cut_points: CutPoints, given: Given) -> None:
        self.tracker, self.cut_points, self.given = tracker, cut_points, given
        self.recorder, self.mesh, self.binding = tracker.recorder, tracker.mesh, tracker.binding
        self.noticing = Noticing(self.recorder, self.mesh, self.binding)
        self.yielded: list[TrackedTensor] = []  # results of the steps
        self.plain: dict[str, str] = {}
        self.changed: set[str] = set()
        self.caches: dict[str, Value] = {}
        self.beside: dict[str, Shape] = {}
        self.no_gradient: list[str] = []
        self.printed: list[str] = []
        self.spread: set[str] = set()
        self.settings: dict[str, float] = {}
        self.settings_in_step: dict[str, float] = {}
        self.copies = Copies(self.recorder.g, self.recorder.read, self.binding.parameters_now, same)
        self.made: dict[str, torch.Tensor] = {}  # of models that nothing uses
        self.steps = 1  # of each optimizer of a script
        self.exact_steps = False  # that many were asked for
        self.steps_by_hand = 0  # of its own code, after which a script was stopped
        self.gone_states: list[str] = []  # of optimizers, that a script has dropped after its step
        self.rest_began = 0  # how many nodes a script's optimizers have left when they had stepped
        self._cleared: set[int] = set()  # parameters whose gradients a step clears at first
        # parameters that no optimizer has, whose gradients a script clears before its next step, or
        # leaves when it ends
        self.dead_gradients: set[str] = set()
        # what a script's step leaves that only its next step shows: what it is, and names
        self.shown_later: dict[str, list[str]] = {}
        # of tensors when a script's optimizers had stepped: gradients, and what they held
        self._gradients: list[tuple[torch.Tensor, torch.Tensor, Value]] = []

    def stepped(self) -> None:
        """The optimizers of a script have stepped. Gradients are compared as they are now, whatever
        the script does with them before its next step.
        """
        self.recorder.in_rest = True
        self.rest_began = len(self.recorder.g.nodes)
        self.copies.all_stepped()
        self.settings_in_step = _numbers(self.binding.of_optimizers())
        for t in [
            *self.binding.parameters.values(),
            *(p for o in self.binding.optimizers for g in o.param_groups for p in g["params"]),
            *self.binding.leaves_read(),
        ]:
            if t.grad is not None:
                now = self.recorder.read(unwrapped(t.grad))
                self._gradients.append((t, t.grad, now))

    def clears(self, parameters: Iterable[torch.Tensor]) -> None:
        """A script clears these gradients after it has asked for a batch or called a model, so
        each of its steps does."""
        self._cleared.update(id(p) for p in parameters if p.grad is None)

    def ends(self, left: Mapping[str, Any]) -> None:
        """A script has ended, and leaves these variables."""
        named = [*self._named_otherwise(), *self._alone()]
        self.copies.look_last(named, self.recorder.holding(), left)
        self.dead_gradients = self._stepped_by_none()

    def goes_on(self) -> None:
        """A script begins its next step."""
        self.made = self.binding.not_taken_in() if self.copies.watching else {}
        named = [*self._named_otherwise(), *self.made.values(), *self._alone()]
        self.copies.look_last(named, self.recorder.holding())
        left = [
            name
            for name, p in self.binding.parameters.items()
            if p.grad is not None
            and id(p) not in self._cleared
            and not isinstance(self.recorder.read(unwrapped(p.grad)), Filled)
        ]
        if left:
            self.shown_later[GRADIENTS] = left
        self.dead_gradients = {name for name in self._stepped_by_none() if name not in left}

    def _is_unknown(self, t: torch.Tensor) -> bool:
        """Such as what dist.reduce leaves on ranks that are not its destination."""
        return isinstance(self.recorder.read(unwrapped(t)), Poison)

    def _stepped_by_none(self) -> set[str]:
        """Parameters that no optimizer has, not even a copy of them, and that have a gradient when
        those have stepped, which is not read later. (A script that steps by its own code has no
        optimizers.)
        """
        theirs = {
            id(p)
            for o in self.binding.optimizers
            for group in o.param_groups
            for p in group["params"]
        }
        read: set[str] = set()
        # (on the single device, a shard's gradient is the parameters' own)
        rest = self.recorder.g.nodes[self.rest_began :] if self.mesh.world > 1 else []
        for n in reversed(rest):
            # looking at what a tensor holds makes a view of it
            if n["op"] not in MOVES_HERE or not read.isdisjoint(n["out"]):
                read.update(x for x in n["in"] if x is not None)
        had = {
            id(t)
            for t, _, now in self._gradients
            if not any(getattr(part, "name", None) in read for part in _parts(now).values())
        }
        copies = ("main_param", "model_param")  # of Megatron's and others' optimizers
        return {
            name
            for name, p in self.binding.parameters.items()
            if id(p) in had
            and id(p) not in theirs
            and all(id(c) not in theirs for a in copies if (c := getattr(p, a, None)) is not None)
        }

    def _copies(self) -> None:
        """A script's copies of weights (copies_of_weights.py)."""
        others = [*self._named_otherwise(), *self.made.values()]
        for path, t in self.copies.finish(others, self.noticing.roots).items():
            name = f"{path}.new"
            where = place(self.recorder, t)
            where.mean = where.mean or []
            where.parameter = f"{path} before"
            self.tracker.track("kept", name, t, where, kind="copied weights")
            if self.mesh.world == 1:
                self.changed.add(name)
        held = [self.recorder.read(unwrapped(t)) for t in self._held().values()]
        models = [
            name
            for name, v in self.copies.of_weights(self.made).items()
            # one that is copied in each step is what a parameter is
            if self.steps == 1 or not any(same(v, now) for now in held)
        ]
        begun = [*self.copies.begun, *models]
        for what, paths in ((MADE, begun), (AVERAGES, self.copies.later)):
            if paths and not self.copies.ended:
                self.shown_later[what] = paths
        for shape, loc in self.copies.unreached():
            at = f" at {loc}" if loc else ""
            self.recorder.g.leave_out(
                f"a tensor of shape {list(shape)} that is computed of new weights{at}",
                "it lives on, and no variable of the script was found to hold it",
            )

    def _put_gradients_back(self) -> None:
        for t, grad, v in self._gradients:
            t.grad = grad
            if not same(self.recorder.read(unwrapped(grad)), v):
                self.recorder.write(unwrapped(grad), v)

    def _left(
        self,
        name: str,
        suffix: str,
        t: torch.Tensor,
        placement: Placement | None,
        untouched: bool = False,
        dead: bool = False,
    ) -> None:
        """What the step leaves in a parameter, its gradient or its state.

        Each rank has the model's value, also of a single number, unlike a loss. untouched: nothing
        was done with it, so that nothing is claimed of it here. dead: nothing reads it later.
        """
        kind = {".grad": "gradients", ".new": "new parameters"}.get(suffix, STATES)
        role = "kept" if dead else "output"
        if self.binding.only_used(name) and name not in self.binding.stretches:
            if untouched and self.mesh.world > 1:
                return
            if untouched:
                role = "kept"
            elif suffix != ".grad":
                self.changed.add(name + suffix)
        placement = placement or place(self.recorder, t)
        placement.mean = placement.mean or []
        p = self.binding.parameters.get(name)  # None: tensors that are no longer one
        placement.parameter = name if p is None or tuple(t.shape) == tuple(p.shape) else ""
        parts = self.binding.stretches.get(name)
        if parts is None or t.numel() != self.binding.parameters[name].numel():
            self.tracker.track(role, name + suffix, t, placement, kind=kind)
        elif t.numel():
            flat = self.recorder.g.reshape(self.recorder.read(t), (t.numel(),))
            self.tracker.tracked += [
                TrackedTensor(role, label, v, where, kind=kind)
                for label, v, where in flat_parameters.parts_of(
                    self.recorder.g, parts, suffix, flat
                )
            ]

    def keep(self, result: Any, number: int = 1) -> None:
        """Takes in what a step gave: its result, or of several steps the one of that number."""
        before, self.tracker.tracked = self.tracker.tracked, self.yielded
        for label, found in leaves_of(result):
            self._result(label, found, number)
        self.tracker.tracked = before

    def finish(self, result: Any) -> None:
        """Tracks what the step left behind: its results, gradients, parameters and optimizer
        states.

        Raises CaptureError.
        """
        self.cut_points.finish()
        self.keep(result)
        self.tracker.tracked += self.yielded
        self._put_gradients_back()
        for optimizer in self.binding.take_back_gradients():
            self.recorder.g.assume(assumptions.changed_gradients(optimizer))
        untouched = self._untouched()
        if self.dead_gradients:
            self.recorder.g.assume(assumptions.gradients_cleared())
            alive = self._stepped_by_none() - self.dead_gradients
            self.changed.update(f"{name}.grad" for name in alive)
        for name, p in self.binding.parameters.items():
            dead = name in self.dead_gradients
            if p.grad is not None and not (dead and self._is_unknown(p.grad)):
                self._left(
                    name,
                    ".grad",
                    p.grad,
                    place(self.recorder, p.grad, self.binding.shard_of(name)),
                    dead=dead,
                )
            elif 0 not in unwrapped(p).shape:
                self.no_gradient.append(name)
        for name, held in self._held().items():
            self._left(
                name,
                ".new",
                held,
                place(self.recorder, held, self.binding.shard_of(name)),
                name in untouched,
            )
        for (name, key), (value, owner) in self.binding.later_states(self.given.states_of).items():
            self._left(
                name,
                f"{key}.new",
                value,
                place(
                    self.recorder,
                    value,
                    self.binding.shard_of(name)
                    if tuple(value.shape) == tuple(owner.shape)
                    else None,
                ),
            )
        for (name, key), (optimizer, owner) in self.given.states_of.items():
            value = optimizer.state.get(owner, {}).get(key[1:])
            begun = next(
                (m for m in self.tracker.tracked if m.role == "input" and m.name == name + key),
                None,
            )
            if value is None and begun is not None and self.recorder.in_rest:
                self.gone_states.append(name + key)
                value = self._zeros(begun.value.shape)
            if not isinstance(value, torch.Tensor):
                raise CaptureError(
                    f"the state {key[1:]!r} of {type(optimizer).__name__} for {name} is no tensor "
                    "any more at the end of the step"
                )
            placement = begun.placement if begun is not None else None
            self._left(name, f"{key}.new", value, placement, name in untouched)
        for name, p in self.binding.parameters.items():
            self._attributes(name, p)
        for name, (b, saved) in self.binding.buffers().items():
            self._buffer(name, b, saved)
        self._first_states()
        found = self.binding.of_optimizers()
        self.settings = _numbers(found)
        for name, kept in found.items():
            self._beside(name, kept)
        self._untracked(found)
        reduced = Reduced(
            self.recorder.g,
            self.mesh,
            self.tracker.tracked,
            {*self.tracker.cuts, *self.spread},
            [d.value.name for d in self.recorder.random.draws if d.more],
        )
        self._copies()
        self._decides()
        self._prints(reduced)
        self.recorder.decisions = [
            dataclasses.replace(d, own=not all(isinstance(v, Named) and reduced(v) for v in values))
            for d, values in zip(self.recorder.decisions, self.recorder.decided_by)
        ]
        self._notice(reduced)
        differentiated = self.recorder.untracked.differentiated and not self.binding.without_step
        for o in self.binding.idle_optimizers() if differentiated else ():
            idle = assumptions.no_step(
                type(o).__name__, sum(len(group["params"]) for group in o.param_groups)
            )
            self.recorder.g.leave_out(idle.what, idle.because)

    def _zeros(self, shape: Shape) -> torch.Tensor:
        """A state that is gone begins with zeros the next time."""
        with self.tracker.quiet():
            t = torch.empty(shape)
        self.recorder.write(t, Filled(0, shape))
        return t

    def _result(self, label: str, found: Any, number: int) -> None:
        """One result of the step, or of the step with that number: compared, or named as not
        compared.
        """
        kind = "loss" if label == "loss" else "results"
        label = numbered(label, number)
        what = f"the step's result {label!r}"
        if isinstance(found, DataNumber):
            if found.value is None:
                self.recorder.g.leave_out(
                    what, "it is a number that depends on data in a way that is not followed"
                )
                return
            with self.tracker.quiet():
                found = self.recorder.number_tensor(found.value, torch.float64)
        if isinstance(found, torch.Tensor):
            if found.dtype.is_complex and found.numel():
                self.recorder.g.leave_out(what, "it is complex")
            if found.shape == () and not (found.is_floating_point() or found.is_complex()):
                # the model's may be the mean of what ranks have, which is no integer
                found = found.double()
            self.tracker.track("output", self.tracker.claim(label, "output"), found, kind=kind)
        elif isinstance(found, str) and self.recorder.g.gave_numbers:
            self.recorder.g.leave_out(
                what, "it is a text, which may have been made of numbers that depend on data"
            )
        elif isinstance(found, nn.Module):
            self._returned(label, found)
        elif found is None or isinstance(found, PLAIN):
            self.plain[label] = repr(found)
        else:
            self.recorder.g.leave_out(
                what, f"nothing is known of what is in a {type(found).__name__}"
            )

    def _returned(self, label: str, module: nn.Module) -> None:
        """Of a module that the step returned: what is compared nowhere else."""
        if not self.binding.has(module) and any(
            t.numel() for t in [*module.parameters(), *module.buffers()]
        ):
            self.recorder.g.leave_out(
                f"the step's result {label!r}",
                "nothing calls or trains this module in the step, so that its parameters and "
                "buffers are not looked at",
            )
        for path, m in module.named_modules():
            for key, t in vars(m).items():
                now = (
                    self.recorder.read(unwrapped(t))
                    if isinstance(t, torch.Tensor) and t.numel()
                    else None
                )
                if isinstance(now, Poison) or isinstance(now, Named) and now.node is not None:
                    self.recorder.g.leave_out(
                        f"the step's result {'.'.join(filter(None, (label, path, key)))!r}",
                        "it is a tensor that the step computed and the module holds as a plain "
                        "attribute: return it by itself",
                    )

    def _untouched(self) -> set[str]:
        """Parameters that this side neither computes with nor changes, of models of which it uses
        other parts.

        They are stages of a pipeline that other ranks have, of which it keeps an old copy. A model
        that it leaves alone as a whole is compared.
        """
        mine = [
            name
            for name in self.binding.parameters
            if name not in self.binding.stretches and self.binding.only_used(name)
        ]
        used = {x for n in self.recorder.g.nodes for x in n["in"]} if mine else set()
        held = self._held() if mine else {}
        now = {
            name: self.recorder.read(unwrapped(held[name]))
            for name in mine
            if name not in used and self.binding.parameters[name].grad is None
        }
        left = {
            name
            for name, v in now.items()
            if isinstance(v, Named) and v.node is None and v.name == name
        }
        # models of which this side has a part to do
        parts = {id(self.binding.model_of(name)) for name in mine if name not in left}
        return {name for name in left if id(self.binding.model_of(name)) in parts}

    def _attributes(self, name: str, p: nn.Parameter) -> None:
        """Tensors that are kept with a parameter, such as gradients that are accumulated outside of
        `.grad`.

        Of a parameter that an optimizer has stepped these were only intermediate (`main_grad` of a
        buffer of which a rank has reduced its own part).
        """
        stepped = any(
            p is q or getattr(q, "main_param", None) is p or getattr(p, "main_param", None) is q
            for o in self.binding.optimizers
            for group in o.param_groups
            for q in group["params"]
        )
        for key, t in list(vars(p).items()):
            if (
                key.startswith("_")
                or not isinstance(t, torch.Tensor)
                or t is p
                or tuple(t.shape) != tuple(p.shape)
                or not t.dtype.is_floating_point
                or 0 in unwrapped(t).shape
            ):
                continue
            if stepped and key.endswith("grad"):
                continue
            now = self.recorder.read(unwrapped(t))
            if isinstance(now, Poison):
                self.recorder.g.leave_out(
                    f"{name}.{key}",
                    f"it is written in a way that is not followed ({now.reason.text} at "
                    f"{now.reason.loc})",
                )
            elif not isinstance(now, (Filled, Known)):
                self._beside_one(
                    f"{name}.{key}",
                    t,
                    place(self.recorder, t, self.binding.shard_of(name)),
                    "gradients" if key.endswith("grad") else BESIDE,
                )

    def _held(self) -> dict[str, torch.Tensor]:
        try:
            return self.binding.held()
        except Gone as e:
            raise CaptureError(str(e)) from None

    def _named_otherwise(self) -> list[torch.Tensor]:
        """Parameters, gradients, states and buffers, and what FSDP gathers."""
        binding = self.binding
        found = [
            *binding.parameters.values(),
            *self._held().values(),
            *(b for b, _ in binding.buffers().values()),
            *(p.grad for p in binding.parameters.values()),
            *binding.gathered(),
            *(v for o in binding.optimizers for s in o.state.values() for v in s.values()),
        ]
        return [t for t in found if isinstance(t, torch.Tensor)]

    def _alone(self) -> list[torch.Tensor]:
        """Tensors of optimizers that are no module's, and all gradients."""
        alone = self.binding.alone.values()
        found = [x for t in alone for x in (t, t.grad) if x is not None]
        return [*found, *(grad for _, grad, _ in self._gradients)]

    def _untracked(self, named: Mapping[str, Any]) -> None:
        """Tensors that the step wrote by hand (untracked_tensors.py) and that have no name
        otherwise.
        """
        others = [*self._named_otherwise(), *named.values()]
        have = {private.storage_key(unwrapped(t)) for t in others if isinstance(t, torch.Tensor)}
        count: collections.Counter[str] = collections.Counter()
        for key, t in self.recorder.untracked.written().items():
            now = self.recorder.read(t)
            copied = (
                isinstance(now, Named)
                and now.node is None
                and (key not in self.recorder.untracked.updated or now.name.startswith("%random"))
            )
            # numbers, or as it was drawn or copied at the beginning
            if key in have or isinstance(now, (Filled, Known)) or copied:
                continue
            if isinstance(now, Poison):
                self.recorder.g.leave_out(
                    f"a tensor of shape {list(t.shape)} that no called module has",
                    f"it is written by hand in a way that is not followed ({now.reason.text} at "
                    f"{now.reason.loc})",
                )
                continue
            shape = "x".join(map(str, t.shape)) or "1"
            self._beside(f"leaf {shape}.{count[shape]}", t)
            count[shape] += 1
            have.add(key)
        for t in self.binding.leaves_read():
            if (
                t.grad is None
                or 0 in unwrapped(t).shape
                or private.storage_key(unwrapped(t)) in have
            ):
                continue
            now = self.recorder.read(unwrapped(t))
            name = next(
                (m.name for m in self.tracker.tracked if m.role == "input" and m.value is now), None
            )
            shape = "x".join(map(str, t.shape)) or "1"
            if name is not None:
                self._gradient_of_input(name, t)
            elif not self.recorder.is_activation(now, isinstance(t, nn.Parameter)):
                self._beside_one(
                    f"leaf {shape}.{count[shape]}.grad",
                    t.grad,
                    place(self.recorder, t.grad),
                    BESIDE,
                )
                count[shape] += 1

    def _gradient_of_input(self, name: str, t: torch.Tensor) -> None:
        if self.tracker.cut_inputs:
            self.recorder.g.leave_out(
                f"{name}.grad",
                "the batch is cut, so that its scale depends on how the ranks' losses are averaged",
            )
            return
        placement = next(
            m.placement for m in self.tracker.tracked if m.role == "input" and m.name == name
        )
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
                placement = place(
                    self.recorder, value, self.binding.shard_of(name) if same else None
                )
                placement.parameter = name if same else ""
                self._beside_one(f"{what}.new", value, placement, STATES)

    def _notice(self, reduced: Reduced) -> None:
        """Gradients, for clues.py."""
        held = self._held()
        self.noticing.gradients(
            {
                name: (
                    self.recorder.read(unwrapped(p.grad)),
                    self.recorder.read(unwrapped(held[name])),
                )
                for name, p in self.binding.parameters.items()
                if p.grad is not None and name in held and name not in self.binding.stretches
            },
            reduced.of_own_samples,
        )

    def _decides(self) -> None:
        """Numbers by which the program decides what it does, as results: they are to be the same on
        the single device and on every rank, so that all decide alike.
        """
        asked = [(place, v) for place, _, values in self.recorder.answered for v in values]
        for label, v in labelled(asked, DECIDING).items():
            self.tracker.tracked.append(
                TrackedTensor("output", label, v, Placement(mean=[]), kind="deciding numbers")
            )

    def _prints(self, reduced: Reduced) -> None:
        """Numbers that a script prints where all ranks have the same (printed_numbers.py)."""
        found = labelled(self.recorder.prints or ())
        for label, v in found.items():
            if reduced(v):
                self.printed.append(label)
                self.noticing.printed(label, v)
                self.tracker.tracked.append(
                    TrackedTensor("kept", label, v, Placement(mean=[]), kind="printed numbers")
                )
                if self.mesh.world == 1:
                    self.changed.add(label)

    def _no_tensor(self, optimizer: Any, what: str, value: Any) -> None:
        if not isinstance(value, (bool, int, type(None))):  # counts of steps, switches
            self.recorder.g.leave_out(
                what, f"{type(optimizer).__name__} keeps it as a {type(value).__name__}"
            )

    def _beside_one(self, name: str, t: torch.Tensor, placement: Placement, kind: str) -> None:
        """A tensor that is compared where all sides have it."""
        if t.dtype.is_complex:
            self.recorder.g.leave_out(name, "it is complex")
            return
        self.beside[name] = tuple(t.shape)
        placement.mean = placement.mean or []
        self.tracker.track("kept", name, t, placement, kind=kind)

    def _beside(self, name: str, kept: Any) -> None:
        """What optimizers keep beside parameters of modules.

        Ranks whose optimizers have other parts than the single device's (flat buffers, a rank's own
        share) have others of these.
        """
        if isinstance(kept, DataNumber) and kept.value is not None:
            with self.tracker.quiet():
                kept = self.recorder.number_tensor(kept.value, torch.float64)
        if isinstance(kept, (int, float)):
            self.tracker.tracked.append(
                TrackedTensor(
                    "kept",
                    f"{name}.new",
                    Filled(kept, ()),
                    Placement(mean=[]),
                    kind="optimizer settings",
                )
            )
            self.beside[f"{name}.new"] = ()
        for suffix, t in (
            ((".new", kept), (".grad", kept.grad if kept.requires_grad else None))
            if isinstance(kept, torch.Tensor)
            else ()
        ):
            if t is not None and 0 not in unwrapped(t).shape and not t.dtype.is_complex:
                placement = place(self.recorder, t)
                placement.parameter = name
                self._beside_one(name + suffix, t, placement, BESIDE)

    def _buffer(self, name: str, b: torch.Tensor, saved: bool) -> None:
        """A buffer is claimed if the step changed it, on whichever side.

        A cache of constants is not kept: it is recomputed. What was given to world.output is
        claimed as it was then.
        """
        local = unwrapped(b)
        before, now, output = (
            self.given.buffers_before.get(name),
            self.recorder.read(local),
            self.given.outputs.get(memory_of(b)),
        )
        if 0 in local.shape:
            return
        if (
            not saved
            and isinstance(now, (Filled, Known))
            and (before is None or not same(before, now))
        ):
            self.caches[f"{name}.new"] = now
        if (saved or not isinstance(now, (Filled, Known))) and not any(
            v is not None and same(v, now) for v in (before, output)
        ):
            self.changed.update(f"{name}.new{part}" for part in _parts(now))
        placement = place(self.recorder, b, self.binding.shard_of(name))
        placement.mean = placement.mean or []  # of a single number, too, each rank has the model's
        self.tracker.tracked += [
            TrackedTensor("kept", f"{name}.new{part}", v, placement, kind="buffers")
            for part, v in _parts(now).items()
        ]
        if name in self.given.any_buffers and (
            memory_of(b) in self.given.summed
            or isinstance(now, Filled)
            and now.fill == self.given.any_buffers[name]
        ):
            self.given.as_made[name] = (
                "ranks have parts of it, as world.output says"
                if memory_of(b) in self.given.summed
                else AS_IT_WAS
            )
