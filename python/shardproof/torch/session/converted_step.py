# SPDX-License-Identifier: Apache-2.0
"""The single device's step in the names and layout of another implementation of its model.

The single device runs one implementation, the ranks run another. A conversion gives the parameters
of the second from those of the first, as the checkpoint converters of the two libraries do. It only
moves elements, each to one place. So the recording of the single device can be changed: its inputs
become the parameters of the second, from which those of the first are made by the inverse, and its
outputs (gradients, new parameters, states of optimizers, buffers) are converted. The claim is about
all values of the ranks' parameters, and nothing is assumed of the step (docs/soundness.md).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from ..conversion.arrangements import MOST_NAMES, Arrangements, Convert, arrangements, called
from ..conversion.rearrangement import Rearrangement
from ..conversion.symbolic import ConversionError
from ..export.rank_program import NOT_ON_SINGLE
from ..step.tracked_tensors import STATES, TrackedTensor
from ..terms import assumptions
from ..terms.assumptions import listed
from ..terms.values import Named, Poison, Shape, Value
from ..trace.end_of_step import BESIDE
from ..trace.recording import CaptureError, Recording, Step

_STATE_OF = re.compile(r"(state \S+ of )(.*)", re.DOTALL)
_SUFFIXES = {"gradients": ".grad", "new parameters": ".new", "buffers": ".new"}
_CONVERTED = {*_SUFFIXES, STATES, BESIDE}  # kinds of outputs that are of parameters and buffers
_FURTHER = " as "  # between a parameter's name and a further one of it


def converted_step(step: Step, convert: Convert) -> Step:
    """The step, whose recording has the names and layout that the conversion gives."""

    @functools.wraps(step)
    def converted(world: Any) -> Any:
        return step(world)

    converted.recorded = Conversion(convert)  # type: ignore[attr-defined]
    return converted


class _Label(NamedTuple):
    """The name of a tracked tensor: of which tensor it is, and what of it."""

    before: str
    tensor: str
    suffix: str

    def of(self, tensor: str) -> str:
        """The same of another tensor."""
        return self.before + tensor + self.suffix


class _Family(NamedTuple):
    """What the gradients of all parameters have in common, or one state of all."""

    role: str
    before: str
    suffix: str
    call: int

    def label(self, tensor: str) -> str:
        """What the one of a tensor is called."""
        return self.before + tensor + self.suffix


class Conversion:
    """Changes recordings. The conversion runs once for the same tensors."""

    def __init__(self, convert: Convert) -> None:
        self.convert = convert
        self._last: tuple[Any, Arrangements] | None = None

    def explained(self, error: CaptureError) -> CaptureError:
        """An error about a tensor that only ranks have, with the names that there are."""
        if self._last is None or NOT_ON_SINGLE not in str(error):
            return error
        return CaptureError(
            f"{error}: {called(self.convert)} gives {listed(self._last[1].targets, MOST_NAMES)}"
        )

    def __call__(self, recording: Recording) -> Recording:
        """Raises CaptureError."""
        source, optional = _tensors_of(recording)
        tied = {
            further: name
            for name, further in (n.split(_FURTHER, 1) for n in recording.further_names)
            if name in source and further not in source
        }
        key = source, tied, optional
        if self._last is None or self._last[0] != key:
            try:
                self._last = key, arrangements(self.convert, source, tied, optional)
            except ConversionError as e:
                error = CaptureError(str(e))
                error.any_buffers = False  # with fewer of them it is no other conversion
                raise error from e
        found = self._last[1]
        recording.graph.assume(
            assumptions.converted(
                called(self.convert),
                len(found.targets) - len(found.same),
                sum(found.renamed(t) is None for t in found.targets if t not in found.same),
            )
        )
        return _Converted(recording, found).recording()


def _tensors_of(
    recording: Recording,
) -> tuple[dict[str, tuple[Shape, torch.dtype]], frozenset[str]]:
    """Parameters and buffers with their shapes and dtypes, and which of them may be left out.

    These are buffers that begin with the numbers that they were made with. Of one that begins with
    any value, the conversion has to give the ranks' value.
    """
    tensors = recording.graph.tensors
    found: dict[str, tuple[Shape, torch.dtype]] = {}
    optional: set[str] = set()
    for t in recording.tracked:
        v = t.value
        name = t.name.removesuffix(".new")
        if t.role == "input" and tensors.get(t.name, {}).get("kind") == "parameter":
            found[t.name] = tuple(v.shape), torch.float32
        elif (
            t.kind == "buffers"
            and t.name.endswith(".new")
            and (
                t.name in recording.changed
                or name in {**recording.any_buffers, **recording.as_made}
            )
        ):
            real = getattr(v, "kind", "real") == "real"
            found[name] = tuple(v.shape), torch.float32 if real else torch.int64
            if name not in recording.any_buffers:
                optional.add(name)
    return {n: x for n, x in found.items() if 0 not in x[0]}, frozenset(optional)


class _Converted:
    """One recording and its conversion."""

    def __init__(self, recording: Recording, found: Arrangements) -> None:
        self._recording, self._found = recording, found
        self._graph = recording.graph
        # of inputs: what the graph calls them
        self._began = {
            t.name: t.value.name
            for t in recording.tracked
            if t.role == "input" and isinstance(t.value, Named)
        }
        self._targets_of: dict[str, list[str]] = {}
        self._same = found.same
        for target, made in found.targets.items():
            for source in made.sources():
                self._targets_of.setdefault(source, []).append(target)

    def recording(self) -> Recording:
        r, g = self._recording, self._graph
        g.loc = ""
        before = len(g.nodes)
        inputs = self._inputs()
        added = g.nodes[before:]
        g.nodes[:] = [*added, *g.nodes[:before]]
        tracked = self._tracked(inputs)
        g.forget()
        return dataclasses.replace(
            r,
            tracked=tracked,
            started=r.started + len(added),
            changed=frozenset(self._relabelled(r.changed)),
            beside=self._beside(tracked),
            no_gradient=tuple(dict.fromkeys(self._relabelled(r.no_gradient))),
            left_alone=frozenset(self._relabelled(r.left_alone)),
            gone_states=frozenset(self._relabelled(r.gone_states)),
            models=(),  # which parameter is which is what the conversion states
            any_buffers={n: v for k, v in r.any_buffers.items() for n in self._of(k)},
            as_made={n: v for k, v in r.as_made.items() for n in self._of(k)},
            made_buffers=frozenset(self._relabelled(r.made_buffers)),
            initial={},
            first_values={},
            converted_names={
                t: tuple(a.sources()) for t, a in self._found.targets.items() if t not in self._same
            },
        )

    # ---- names

    def _label(self, name: str, kind: str = "") -> _Label | None:
        """What a name is of; None where it is of no tensor that is converted.

        kind: of outputs. A parameter may be called as another's gradient is.
        """
        before = ""
        if (state := _STATE_OF.fullmatch(name)) is not None:
            before, name = state[1], state[2]
        suffix = _SUFFIXES.get(kind, "")
        if suffix and name.endswith(suffix) and name.removesuffix(suffix) in self._targets_of:
            return _Label(before, name.removesuffix(suffix), suffix)
        end = len(name)
        while end > 0:
            if name[:end] in self._targets_of:
                return _Label(before, name[:end], name[end:])
            end = name.rfind(".", 0, end)
        return None

    def _label_of(self, t: TrackedTensor) -> _Label | None:
        """The same of a tracked tensor. What the user gave a name keeps it."""
        if t.role == "input":
            given = t.name in self._recording.given or t.name in self._recording.loaded
            return None if given else self._label(t.name)
        return self._label(t.name, t.kind) if t.kind in _CONVERTED else None

    def _of(self, name: str, further: bool = True) -> list[str]:
        """The names that it becomes. further: also those of one tensor after the first."""
        label = self._label(name)
        if label is None:
            return [name]
        targets = self._targets_of[label.tensor]
        return [label.of(t) for t in targets if further or t not in self._same]

    def _relabelled(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            yield from self._of(name)

    def _beside(self, tracked: Iterable[TrackedTensor]) -> dict[str, Shape]:
        """What is compared where all ranks have it. Ranks that tie a tensor have it once."""
        shapes = {t.name: tuple(t.value.shape) for t in tracked}
        return {
            new: shapes.get(new, shape)
            for name, shape in self._recording.beside.items()
            for new in self._of(name, further=False)
        }

    # ---- tensors

    def _families(self, inputs: bool) -> dict[_Family, dict[str, TrackedTensor]]:
        """The tracked tensors that are the same of several tensors, as their gradients are."""
        found: dict[_Family, dict[str, TrackedTensor]] = {}
        for t in self._recording.tracked:
            label = self._label_of(t)
            if label is not None and (t.role == "input") == inputs:
                family = _Family(t.role, label.before, label.suffix, t.call)
                found.setdefault(family, {})[label.tensor] = t
        return found

    def _inputs(self) -> dict[str, TrackedTensor]:
        """The inputs in the new layout, by name. Those that they replace are made from them."""
        g = self._graph
        made: dict[str, TrackedTensor] = {}
        for family, tensors in self._families(inputs=True).items():
            for target, arranged in self._found.targets.items():
                own = self._members(family, target, arranged, tensors)
                if own is None:
                    continue
                name, first = family.label(target), own[arranged.sources()[0]]
                if target in self._same:  # another name of one tensor
                    first = made[family.label(self._same[target])]
                elif self._found.renamed(target) is None:
                    unique = name if name not in g.tensors else f"{name} of the step"
                    entry = g.tensors[g.named(first.value).name]
                    value = g.declare(unique, arranged.shape, _kind(first.value), entry["kind"])
                    first = dataclasses.replace(first, value=value)
                made[name] = dataclasses.replace(first, name=name)
            for source, t in tensors.items():
                arranged = self._found.sources[source]  # of first names
                values = {s: made[family.label(s)].value for s in arranged.sources()}
                if not any(v is t.value for v in values.values()):  # not only renamed
                    g.produce(g.named(t.value).name, g.named(arranged.made(values, g)))
        return made

    def _tracked(self, inputs: dict[str, TrackedTensor]) -> list[TrackedTensor]:
        """All of them, in the places of those that they replace."""
        made = dict(inputs)
        for family, tensors in self._families(inputs=False).items():
            for target, arranged in self._found.targets.items():
                own = self._members(family, target, arranged, tensors)
                # ranks that tie it have no states of a second one
                if own is None or family.role == "kept" and target in self._same:
                    continue
                name, first = family.label(target), own[arranged.sources()[0]]
                if self._found.renamed(target) is None:
                    value = self._unchanged(family, target, own, inputs)
                    if value is None:
                        value = self._made(arranged, {s: t.value for s, t in own.items()})
                    first = dataclasses.replace(first, value=value)
                made[f"{family.role} {name} {family.call}"] = dataclasses.replace(first, name=name)
        found: dict[str, TrackedTensor] = {}
        for t in self._recording.tracked:
            label = self._label_of(t)
            if label is None:
                found[f"{len(found)} {t.name}"] = t
                continue
            for name in (label.of(target) for target in self._targets_of[label.tensor]):
                key = name if t.role == "input" else f"{t.role} {name} {t.call}"
                if key in made:
                    found.setdefault(key, made[key])
        return list(found.values())

    def _members(
        self,
        family: _Family,
        target: str,
        arranged: Rearrangement,
        tensors: dict[str, TrackedTensor],
    ) -> dict[str, TrackedTensor] | None:
        """Those of a target's sources; None where these have none. Raises CaptureError where some
        have, or have other shapes than the sources.
        """
        own = {s: tensors[s] for s in arranged.sources() if s in tensors}
        if not own:
            return None
        some = next(iter(own))
        if lacking := [s for s in arranged.sources() if s not in own]:
            raise CaptureError(
                f"{family.label(target)!r} of the step is made of {family.label(some)!r} and "
                f"{family.label(lacking[0])!r} of the single device, which has the first alone"
            )
        if self._found.renamed(target) is None:
            for s, t in own.items():
                if tuple(t.value.shape) != self._found.shapes[s]:
                    raise CaptureError(
                        f"{t.name!r} of the single device has shape {list(t.value.shape)} and not "
                        f"that of {s!r}, {list(self._found.shapes[s])}: how it is converted is "
                        "not known"
                    )
        return own

    def _unchanged(
        self,
        family: _Family,
        target: str,
        own: dict[str, TrackedTensor],
        inputs: dict[str, TrackedTensor],
    ) -> Value | None:
        """The input that it is, if the step changes none of those that it is made of."""
        if not family.suffix.endswith(".new"):
            return None
        begun = _Family("input", family.before, family.suffix.removesuffix(".new"), 0)
        before = inputs.get(begun.label(target))
        same = all(
            isinstance(t.value, Named) and t.value.name == self._began.get(begun.label(s))
            for s, t in own.items()
        )
        return before.value if before is not None and same else None

    def _made(self, arranged: Rearrangement, values: dict[str, Value]) -> Value:
        unknown = next((v for v in values.values() if isinstance(v, Poison)), None)
        if unknown is not None:
            return Poison(arranged.shape, unknown.reason)
        made: Value = arranged.made(values, self._graph)
        return made


def _kind(v: Value) -> str:
    return str(getattr(v, "kind", "real"))
