# SPDX-License-Identifier: Apache-2.0
"""One rank's program: its nodes, its tensors, and their places in the model's.

A missing place is an error for inputs and outputs. A cut point without one is left out, and listed.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..distributed.asynchronous import with_waits
from ..step.tracked_tensors import CUT_POINT, OwnPadding, Placement, TrackedTensor, together
from ..terms.liveness import COMMUNICATION, WAIT
from ..terms.positions import Elements, Stretches, box_of, numbered, stretches_in
from ..terms.values import Named, Poison, Shape
from ..trace.copies_of_weights import is_copy
from ..trace.opaque import Ancestors, Call, CalledThere, argument, followed, matched, result
from ..trace.randomness import INSIDE, Draw
from ..trace.recording import CaptureError, Hazard, Recording
from .boxes import Box, NoPlace, locate, refine
from .model_file import (
    Model,
    literal,
    once,
    repeated,
    repeats,
    tensor_of,
    tensors_of,
    through_cut_points,
)
from .parameter_places import IfSent, Place, check_order, places_of_parameters
from .place_names import PlaceNames

MOST_PARTS = 8  # of a batch, where each rank's is named
PADDING = "padding"  # ends the names of inputs that are that
KIND_OF_PADDING = "zero paddings"  # of outputs, in the report
MOST_STRETCHES = 4  # of a sequence, where a rank has several


@dataclasses.dataclass
class Tie:
    role: str
    tensor: str  # the model's
    local: str
    shape: Shape
    box: Box
    label: str = ""  # of an output: two may be one tensor of the model
    # whose coordinates determine the tensor of the model: one of several calls of a module
    axes: tuple[str, ...] = ()
    dim: int = 0  # of which the local tensor has several stretches
    stretches: Stretches = ()
    own_padding: OwnPadding | None = None  # of what is in none of them
    part: bool = False  # one of several of a local tensor
    guess: str = ""  # of a cut point: what it was concluded from

    def identity(self) -> tuple[str, str, str, Shape, tuple[str, ...], int]:
        tensor = "" if self.axes else self.tensor
        return self.role, tensor, self.local, self.shape, self.box.total, self.box.divisor


@dataclasses.dataclass
class Program:
    """One rank's program and its ties to the model."""

    text: str
    tensors: dict[str, Any]
    nodes: list[dict[str, Any]]
    waits: list[str]  # handles that are waited for after all nodes
    ties: list[Tie]
    skipped: dict[str, str]
    guessed: list[str]
    by_first_values: tuple[str, ...]  # parameters that their first values have placed
    # parameters that are in another place than was concluded, if what another rank sent is what the
    # single device has
    if_sent: list[IfSent]
    unchecked: list[str]  # parts of parameters of which first values do not show that they are
    padded: list[str]  # parameters that are padded with zeros
    # inputs that no model has: what ranks' parameters are padded with, if that is any numbers
    own_padding: dict[str, Shape]
    # outputs that no model has: what they are padded with, if that is zeros, which it is to stay
    zero_padding: dict[str, Shape]
    own_constants: list[str]  # constants that are no part of one of the model's


@dataclasses.dataclass
class _Constant:
    """A constant tensor of the rank.

    whole: the model's that has the same numbers (empty: none), from `low` on. data: the rank's part
    of that, of which `full` is a repetition.
    """

    name: str
    full: torch.Tensor
    data: torch.Tensor
    whole: str
    low: tuple[int, ...]


def _constants(side: Recording, model: Model) -> list[_Constant]:
    found: list[_Constant] = []
    for name, data in side.graph.constants:
        dims = repeats(data)
        own = _Constant(name, data, data, "", ())
        for n, whole in sorted(
            model.constants, key=lambda c: (c[1].dtype != data.dtype, c[1].shape != data.shape)
        ):
            if whole.dim() != data.dim():
                continue
            # what the model has once and the rank repeats
            part = once(data, [d for d in dims if whole.shape[d] == 1])
            if (low := _inside(part, whole)) is not None:
                own = _Constant(name, data, part, n, low)
                break
        found.append(own)
    return found


def _inside(part: torch.Tensor, whole: torch.Tensor) -> tuple[int, ...] | None:
    """Where a tensor occurs in another, shifted along at most one dimension."""
    if part.dim() != whole.dim() or part.dtype.is_floating_point != whole.dtype.is_floating_point:
        return None
    differing = [d for d in range(part.dim()) if part.shape[d] != whole.shape[d]]
    if not differing:
        return (0,) * part.dim() if torch.equal(part.double(), whole.double()) else None
    if len(differing) > 1 or part.shape[differing[0]] > whole.shape[differing[0]]:
        return None
    d = differing[0]
    n = part.shape[d]
    for start in range(0, whole.shape[d] - n + 1, n):
        if torch.equal(whole.narrow(d, start, n).double(), part.double()):
            return tuple(start if i == d else 0 for i in range(part.dim()))
    return None


def program_of(side: Recording, model: Model, keep: set[str], cut_points: bool = True) -> Program:
    """The program of a rank.

    keep: names of communications of the construction that some rank needs. Raises CaptureError and
    Hazard.
    """
    _check_models(side, model)
    g, at = side.graph, side.mesh.coordinates(side.rank)
    ties: list[Tie] = []
    skipped: dict[str, str] = {}
    guessed: list[str] = []
    seen: set[tuple[str, str]] = set()
    if_sent: list[IfSent] = []
    unchecked: list[str] = []
    padded: list[str] = []
    places = places_of_parameters(side, model, at)
    for tracked in side.tracked:
        if tracked.role == CUT_POINT and not cut_points:
            continue
        if tracked.role == "kept":
            if (
                tracked.name not in model.outputs
                or tracked.name in side.beside
                and together(side.whole_beside, tracked.name)
                != together(model.beside, tracked.name)
            ):
                continue
            tracked = dataclasses.replace(tracked, role="output")
        place = places.get(tracked.placement.parameter)
        if place is not None:
            tracked = dataclasses.replace(tracked, placement=place.applied(tracked.placement))
        tie = _tie(side, model, tracked, at, skipped)
        if tie is None:
            continue
        if tracked.role != CUT_POINT and place and place.is_padded and not place.own_padding:
            padded.append(tracked.placement.parameter)
        if tracked.role == CUT_POINT:
            tie = _beside_fused(tie, model, places)
        elif (
            tracked.role == "input"
            and tie.tensor in side.first_values
            and not tracked.placement.covered
            and (place is None or place.guessed)  # others are where their first values are
        ):
            checked = check_order(side, model, tie.tensor, tie.box.low, tie.dim, tie.stretches)
            if_sent += checked.if_sent
            if not checked.of_part and (tie.box.guessed or place is not None and place.guessed):
                unchecked.append(tie.tensor)
        if tracked.role != CUT_POINT and (tie.box.guessed or place is not None and place.guessed):
            guessed.append(tracked.placement.parameter or tracked.name)
        key = (tie.tensor, tie.local)
        if tracked.role == CUT_POINT and key in seen:
            continue
        seen.add(key)
        ties.append(tie)
    ties = _in_shown_stretches(side, model, ties, at, skipped)
    keep_indices = [
        i
        for i, n in enumerate(g.nodes)
        if n["op"] == WAIT or n["op"] in COMMUNICATION and (i >= side.started or n["comm"] in keep)
    ]
    nodes, opaque = followed(g, side.opaque, [t.local for t in ties], keep_indices)
    which = _calls(side, model, opaque, ties) if opaque else {}
    for c in opaque:
        there = which[c.label]
        if there is None:
            raise CaptureError(
                f"rank {side.rank} calls {c.function} at {c.loc}, of which nothing is known and "
                "which the single device does not call there"
            )
        ties += [
            _of_call(side, model, "output", argument(there, i), v, c, at)
            for i, v in enumerate(c.operands)
        ]
        ties += [
            _of_call(side, model, "input", result(there, i), r, c, at)
            for i, r in enumerate(c.results)
            if result(there, i) in model.shapes
        ]
    nodes = through_cut_points(
        nodes, g.tensors, [t.local for t in ties if t.role == CUT_POINT and t.box.divisor == 1]
    )
    nodes, ties = _in_stretches(nodes, g.tensors, ties)
    zero_padding = {t.tensor: t.shape for t in ties if is_padding(t.tensor) and t.role == "output"}
    nodes, waits = with_waits(nodes)
    used = {name for n in nodes for name in n["in"]} | {t.local for t in ties}
    for name, whose in side.from_files.items():
        if name in used:
            raise CaptureError(
                f"rank {side.rank} computes with what {whose}: that is followed only where a "
                "parameter, buffer or state begins with it"
            )
    tensors = {n: dict(t) for n, t in tensors_of(g, nodes, [t.local for t in ties]).items()}
    own_constants: list[str] = []
    for constant in _constants(side, model):
        if constant.name not in used:
            continue
        local = constant.name
        if constant.data.shape != constant.full.shape:
            local, node = repeated(constant.name, constant.full)
            nodes = [node, *nodes]
            tensors[local] = {**tensors[constant.name], "shape": list(constant.data.shape)}
            tensors[constant.name] = {
                k: v for k, v in tensors[constant.name].items() if k != "kind"
            }
        if constant.whole:
            ties.append(
                Tie("input", constant.whole, local, tuple(constant.data.shape), Box(constant.low))
            )
        else:
            own_constants.append(constant.name)
            tensors[constant.name] = {
                **tensors[constant.name],
                "kind": "constant",
                "value": literal(constant.full),
            }
    drawn = [d for d in side.random_inputs if d.value.name in used]
    ties += [_drawn(side, model, d, name, at) for d, name in _draws_of_model(model, drawn)]
    nodes, ties, own_padding = _inputs_in_stretches(nodes, tensors, ties)
    _check_disjoint(side, ties)
    tensors, nodes, ties = _by_place(tensors, nodes, ties)
    return Program(
        text_of(tensors, nodes, waits, ties),
        tensors,
        nodes,
        waits,
        ties,
        skipped,
        guessed,
        tuple(name for name, p in places.items() if not p.guessed),
        if_sent,
        unchecked,
        padded,
        own_padding,
        zero_padding,
        own_constants,
    )


class PermutedParts(Exception):
    """Ranks along axes permute their parts of a batch, where the single device permutes all of it.

    otherwise: what is wrong where these are no parts of a batch.
    """

    def __init__(self, name: str, axes: tuple[str, ...], otherwise: Hazard) -> None:
        super().__init__(str(otherwise))
        self.name, self.axes, self.otherwise = name, axes, otherwise


def _is_read(side: Recording, tracked: TrackedTensor) -> bool:
    """Whether a node has a tracked input as an operand."""
    name = getattr(tracked.value, "name", None)
    return any(name in n["in"] for n in side.graph.nodes)


def _check_models(side: Recording, model: Model) -> None:
    """Models that have parameters of one name are matched by the order of their creation.

    Raises CaptureError where that is not the same on both sides.
    """

    def several(models: tuple[tuple[str, frozenset[str]], ...]) -> set[str]:
        return {
            n
            for i, (_, names) in enumerate(models)
            for j, (_, others) in enumerate(models)
            if i != j
            for n in names & others
        }

    def idle(prefix: str, names: frozenset[str]) -> bool:
        return all(prefix + n in side.left_alone for n in names)

    # layers that a stage of a pipeline made for other stages are no models of its own
    others = {
        n
        for models in (model.models, [m for m in side.models if not idle(*m)])
        for _, names in models
        for n in names
    }
    ours = tuple(m for m in side.models if not idle(*m) or not others.isdisjoint(m[1]))
    shared = several(ours) | several(model.models)
    here, there = (
        [names for _, names in models if not shared.isdisjoint(names)]
        for models in (ours, model.models)
    )
    if here != there:
        name = min(shared)
        count = [sum(name in names for names in models) for models in (here, there)]
        raise CaptureError(
            f"several models have a parameter or buffer {name!r}, and rank {side.rank} does not "
            f"make the same models in the same order as the single device ({count[0]} with that "
            "name"
            f" on the rank, {count[1]} on the single device): which is which is not known; "
            'world.parameters(model, name="...") names each, on both sides'
        )


def text_of(
    tensors: dict[str, Any], nodes: list[dict[str, Any]], waits: list[str], ties: list[Tie]
) -> str:
    """Program.text: equal for ranks whose programs are one."""
    return json.dumps([tensors, nodes, waits, [t.identity() for t in ties]], sort_keys=True)


def _by_place(
    tensors: dict[str, Any], nodes: list[dict[str, Any]], ties: list[Tie]
) -> tuple[dict[str, Any], list[dict[str, Any]], list[Tie]]:
    """The same with names by place.

    What was computed and is not in the program (which part of a weight is a rank's) then makes no
    difference between ranks.
    """
    names = PlaceNames(tensors)
    new = []
    for n in nodes:
        ins = [x if x is None else names.of(x) for x in n["in"]]
        new.append({**n, "in": ins, "out": [x if x is None else names.of(x, n) for x in n["out"]]})
    tied = [dataclasses.replace(t, local=names.of(t.local)) for t in ties]
    return {names.of(name): t for name, t in tensors.items()}, new, tied


def _calls(
    side: Recording,
    model: Model,
    calls: list[Call],
    ties: list[Tie],
) -> dict[str, str | None]:
    """Which calls of the single device's a rank's opaque ones are."""
    tied = {t.local: t.tensor for t in ties}
    theirs = {}
    for label, function in model.opaque.items():
        arguments = list(
            itertools.takewhile(
                bool,
                (model.tied.get(("output", argument(label, i), 0), "") for i in itertools.count()),
            )
        )
        theirs[label] = CalledThere(function, arguments, [model.shapes[name] for name in arguments])
    results = {name: name for name in model.shapes if name[1:].rpartition(".")[0] in model.opaque}
    return matched(
        calls,
        theirs,
        Ancestors(side.graph.nodes, tied),
        Ancestors(model.json["nodes"], {**results, **{t: t for t in tied.values()}}),
    )


def _of_call(
    side: Recording, model: Model, role: str, label: str, v: Named, c: Call, at: Mapping[str, int]
) -> Tie:
    """The tie of an argument or a result of an opaque call to the single device's: whole, or a
    part.

    label: of the single device's call. The place of the part is concluded from its shape. The proof
    shows that the arguments are there. The results of a function of each element, or of each
    matrix, are then there, too.
    """
    tensor = model.tied[("output", label, 0)] if role == "output" else label
    box = Box((0,) * len(v.shape))
    whole = model.shapes[tensor]
    if whole != v.shape:
        if not c.lead or whole[c.lead :] != v.shape[c.lead :]:
            raise CaptureError(
                f"{label} at {c.loc} has shape {list(v.shape)}, on the single device "
                f"{list(whole)}: of an operator without a line in the table nothing can be said of "
                "parts"
            )
        try:
            box = locate(
                TrackedTensor("input", label, v, Placement()),
                whole[: c.lead],
                v.shape[: c.lead],
                side.mesh,
                at,
                side.cuts,
            )
        except NoPlace as e:
            raise CaptureError(f"{label} at {c.loc}: {e}") from None
        box = dataclasses.replace(box, low=box.low + (0,) * (len(whole) - c.lead))
    return Tie(role, tensor, v.name, v.shape, box, label if role == "output" else "")


def _in_shown_stretches(
    side: Recording, model: Model, ties: list[Tie], at: Mapping[str, int], skipped: dict[str, str]
) -> list[Tie]:
    """Cut points that were placed by their shapes, where one shows that its rank has other rows.

    They are placed in the stretches that it shows (sequences in zigzag), and left out where these
    are many (samples that a sampler deals out in turn).
    """
    guessed = [t for t in ties if t.role == CUT_POINT and t.box.guessed]
    if not guessed:
        return ties
    given = [t for t in ties if t.role == "input" and not t.box.total and t.box.divisor == 1]
    for d, name in _draws_of_model(model, side.random_inputs):
        try:
            given.append(_drawn(side, model, d, name, at))
        except (CaptureError, Hazard):
            continue  # an error, or a defect, where it is used
    here = {t.local: t for t in given}
    there = {t.tensor for t in given}

    def numbers_here(name: str) -> torch.Tensor | None:
        t = here.get(name)
        whole = numbers_there(t.tensor) if t is not None else None
        return whole[box_of(t.shape, t.box.low)] if t is not None and whole is not None else None

    def numbers_there(name: str) -> torch.Tensor | None:
        return numbered(name, model.shapes[name]) if name in there else None

    ours = Elements(side.graph.nodes, numbers_here)
    models = Elements(model.json["nodes"], numbers_there)
    found: tuple[int, int, Stretches] | None = None
    for t in guessed:
        mine, whole = (
            (None, None)
            if t.box.total or t.box.divisor != 1
            else (ours.of(t.local), models.of(t.tensor))
        )
        if mine is None or whole is None:
            continue
        if torch.equal(mine, whole[box_of(t.shape, t.box.low)]):
            shown = None
        else:
            shown = _shown(mine, whole, t.box.low)
            if shown is None or found not in (None, shown):
                skipped.update(
                    (
                        u.tensor,
                        f"{t.tensor} shows that rank {side.rank} has other elements than shapes "
                        "say",
                    )
                    for u in guessed
                )
                return [u for u in ties if u.role != CUT_POINT or not u.box.guessed]
        found = found or shown
    if found is None:
        return ties
    placed = [
        _placed(t, model.shapes[t.tensor], *found) if t.role == CUT_POINT and t.box.guessed else t
        for t in ties
    ]
    skipped.update(
        (t.tensor, f"rank {side.rank} has stretches of another dimension")
        for t, new in zip(ties, placed)
        if new is None
    )
    return [t for t in placed if t is not None]


def _beside_fused(t: Tie, model: Model, places: Mapping[str, Place]) -> Tie:
    """A cut point that was placed by its shape, at a module with a fused weight: in the weight's
    stretches where it has its dimension.
    """
    for name, p in places.items() if t.box.guessed else ():
        if p.stretches and t.tensor.startswith(name.rpartition(".")[0] + "."):
            sizes = p.local[p.dim], p.whole[p.dim]
            return _placed(t, model.shapes[t.tensor], *sizes, p.stretches) or t
    return t


def _shown(
    mine: torch.Tensor, whole: torch.Tensor, low: Shape
) -> tuple[int, int, Stretches] | None:
    """The dimension of which a rank has other stretches than shapes show, by its sizes here and in
    the model, and the stretches. None where there is no such dimension, or there are many.
    """
    found = stretches_in(whole, mine, low)
    if found is None or len(found[1]) > MOST_STRETCHES:
        return None
    d, stretches = found
    return (mine.shape[d], whole.shape[d], stretches) if mine.shape[d] != whole.shape[d] else None


def _placed(t: Tie, whole: Shape, here: int, there: int, stretches: Stretches) -> Tie | None:
    """A cut point in these stretches of the dimension that has these sizes.

    None where not exactly one dimension has them.
    """
    dims = [d for d, (n, m) in enumerate(zip(t.shape, whole)) if (n, m) == (here, there)]
    if not t.shape or t.shape == whole:
        return t
    return dataclasses.replace(t, dim=dims[0], stretches=stretches) if len(dims) == 1 else None


def _in_stretches(
    nodes: list[dict[str, Any]], tensors: dict[str, Any], ties: list[Tie]
) -> tuple[list[dict[str, Any]], list[Tie]]:
    """A cut point or an output in several stretches is a concatenation of such, and of padding.

    What reads it reads that. Declares the tensors that it adds.
    """
    result: list[Tie] = []
    cut: dict[str, Tie] = {}
    produced = {name for n in nodes for name in n["out"]}
    outputs: list[dict[str, Any]] = []
    for t in ties:
        if not t.stretches or t.role == "input":
            result.append(t)
        elif t.role == "output":
            for k, p in enumerate(_pieces(t)):
                tie = _stretch_of(t, f"{t.local} output {t.label} {k}", p.start or 0, p.n)
                if p.start is None:  # is to stay zero
                    if t.own_padding is not None or not t.label.endswith(".new"):
                        continue
                    label = f"{t.label} {PADDING}"
                    tie = dataclasses.replace(tie, tensor=label, label=label)
                tensors[tie.local] = _without_kind(tensors[t.local], tie.shape)
                attrs = {"dim": t.dim, "start": p.at, "stop": p.at + p.n}
                outputs.append({"op": "slice", "in": [t.local], "out": [tie.local], "attrs": attrs})
                result.append(tie)
        elif len(pieces := _pieces(t)) == 1:
            result += [_stretch_of(t, t.local, p.start, p.n) for p in pieces if p.start is not None]
        elif (
            t.local in produced
            and cut.setdefault(t.local, t).stretches == t.stretches
            and cut[t.local].dim == t.dim
        ):
            result += [_stretch_of(t, p.local, p.start, p.n) for p in pieces if p.start is not None]
    used = {name for n in nodes for name in n["in"]}
    joined = {name: f"{name} of stretches" for name in cut if name in used}
    made: list[dict[str, Any]] = []
    for node in nodes:
        made.append({**node, "in": [joined.get(name, name) for name in node["in"]]})
        for name in (name for name in node["out"] if name in cut):
            t, loc = cut[name], {"loc": node["loc"]} if "loc" in node else {}
            pieces = _pieces(t)
            for p in pieces:
                tensors[p.local] = {
                    **tensors[name],
                    "shape": [p.n if d == t.dim else size for d, size in enumerate(t.shape)],
                }
                made.append(
                    {
                        "op": "slice",
                        "in": [name],
                        "out": [p.local],
                        "attrs": {"dim": t.dim, "start": p.at, "stop": p.at + p.n},
                        **loc,
                    }
                )
            if name in joined:
                tensors[joined[name]] = dict(tensors[name])
                made.append(
                    {
                        "op": "cat",
                        "in": [p.local for p in pieces],
                        "out": [joined[name]],
                        "attrs": {"dim": t.dim},
                        **loc,
                    }
                )
    return [*made, *outputs], result


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Rows of a local tensor. at, n: which. start: where they begin in the model's; None: they are
    padding.
    """

    local: str
    at: int
    n: int
    start: int | None


def is_padding(tensor: str) -> bool:
    return tensor.endswith(f" {PADDING}")


def _pieces(t: Tie) -> list[_Piece]:
    """All rows of a tensor of stretches, in order."""
    rows: list[tuple[int, int, int | None]] = []
    end = 0
    for at, start, n in sorted(t.stretches):
        rows += [(end, at - end, None), (at, n, start)]
        end = at + n
    rows.append((end, t.shape[t.dim] - end, None))
    kept = [row for row in rows if row[1]]
    return [_Piece(f"{t.local} stretch {k}", at, n, start) for k, (at, n, start) in enumerate(kept)]


def _stretch_of(t: Tie, local: str, start: int, n: int) -> Tie:
    """The tie of one stretch, which begins there in the model's tensor and has so many rows."""
    low, shape = ((*v[: t.dim], x, *v[t.dim + 1 :]) for v, x in ((t.box.low, start), (t.shape, n)))
    return dataclasses.replace(
        t,
        local=local,
        shape=shape,
        box=dataclasses.replace(t.box, low=low),
        stretches=(),
        part=True,
    )


def _without_kind(entry: dict[str, Any], shape: Shape) -> dict[str, Any]:
    return {**{k: v for k, v in entry.items() if k not in ("kind", "value")}, "shape": list(shape)}


def _inputs_in_stretches(
    nodes: list[dict[str, Any]], tensors: dict[str, Any], ties: list[Tie]
) -> tuple[list[dict[str, Any]], list[Tie], dict[str, Shape]]:
    """An input of which a rank has several stretches is the concatenation of inputs, and of its
    padding: zeros, or inputs that the single device has not. These, and their shapes, are the third
    result.
    """
    made: list[dict[str, Any]] = []
    result: list[Tie] = []
    own_padding: dict[str, Shape] = {}
    for t in ties:
        if not t.stretches:
            result.append(t)
            continue
        pieces, own = _pieces(t), t.own_padding
        for p in pieces:
            start = p.start
            of = t
            if start is None and own is not None:
                of = dataclasses.replace(t, tensor=f"{t.tensor} {PADDING}")
                start = own.begin
                own_padding[of.tensor] = (*t.shape[: t.dim], own.size, *t.shape[t.dim + 1 :])
            if start is not None:
                part = _stretch_of(of, p.local, start, p.n)
                tensors[p.local] = {**tensors[t.local], "shape": list(part.shape)}
                result.append(part)
            else:
                shape = (*t.shape[: t.dim], p.n, *t.shape[t.dim + 1 :])
                zeros = {"kind": "constant", "value": 0}
                tensors[p.local] = {**_without_kind(tensors[t.local], shape), **zeros}
        tensors[t.local] = _without_kind(tensors[t.local], t.shape)
        inputs = [p.local for p in pieces]
        attrs = {"dim": t.dim}
        made.append({"op": "cat", "in": inputs, "out": [t.local], "attrs": attrs, "loc": t.tensor})
    return [*made, *nodes], result, own_padding


def _draws_of_model(model: Model, draws: Sequence[Draw]) -> list[tuple[Draw, str]]:
    """Each draw with that of the single device which it is, or has a part of.

    That is the one in the same state, else the one at the same place. It is the latter for all if
    two would be the same: with a seed of step + rank, a rank is in a state that the single device
    has at another step.
    """

    def in_state(d: Draw) -> str:
        return next(
            (
                n
                for n, key in model.random.items()
                if key == d.key and model.shapes[n] == d.value.shape
            ),
            d.value.name,
        )

    found = [(d, in_state(d)) for d in draws]
    if len({name for _, name in found}) < len(found):
        places = [(d, d.value.name) for d in draws]
        if all(name in model.random for _, name in places):
            return places
    return found


def _drawn(side: Recording, model: Model, d: Draw, name: str, at: Mapping[str, int]) -> Tie:
    """A draw as a part of that of the single device which is called `name`.

    Raises CaptureError and Hazard.
    """
    if name not in model.random:
        raise CaptureError(
            f"random numbers that the single device does not draw at {d.loc}"
            + (": use world.input() for the batch" if not d.value.name.startswith(INSIDE) else "")
        )
    if model.distributions[name] != d.what:
        apart = Hazard(
            f"rank {side.rank} draws from {d.what}, the single device from "
            f"{model.distributions[name]}",
            d.loc,
            name,
            "random",
        )
        axes = _permutes_part(side, model, name, d)
        raise PermutedParts(name, axes, apart) if axes else apart
    batch = model.initial_state.batch.get(name)
    placement = (
        Placement(shard=dict.fromkeys(batch, 0))
        if batch is not None
        else d.placement or Placement()
    )
    try:
        box = locate(
            TrackedTensor("input", name, d.value, placement),
            model.shapes[name],
            d.value.shape,
            side.mesh,
            at,
            side.cuts,
        )
    except NoPlace as e:
        raise CaptureError(f"random numbers drawn at {d.loc}: {e}") from None
    return Tie("input", name, d.value.name, d.value.shape, box)


def _permutes_part(side: Recording, model: Model, name: str, d: Draw) -> tuple[str, ...]:
    """The axes whose ranks have parts of the batch, where a rank permutes one of its size."""
    whole, part = model.shapes[name], d.value.shape
    if not all(what.startswith("randperm ") for what in (d.what, model.distributions[name])):
        return ()
    for shared in (model.initial_state.loaders or {}).values():
        sizes = set(shared.sizes)
        if shared.together and sizes == {part[0]} and whole[0] == sum(shared.sizes):
            return shared.axes
    return ()


def _check_disjoint(side: Recording, ties: Sequence[Tie]) -> None:
    """Two draws of a rank are not one draw of the single device. Raises Hazard."""
    drawn = {d.value.name: d for d in side.random_inputs}
    taken: dict[str, str] = {}
    for t in ties:
        if (
            t.role == "input"
            and t.local in drawn
            and taken.setdefault(t.tensor, t.local) != t.local
        ):
            other = drawn[taken[t.tensor]].loc
            raise Hazard(
                f"rank {side.rank} draws numbers twice, in different states of the generator, that "
                f"the single device draws once (also at {other})",
                drawn[t.local].loc,
                t.tensor,
                "random",
            )


def _tie(
    side: Recording,
    model: Model,
    tracked: TrackedTensor,
    at: Mapping[str, int],
    skipped: dict[str, str],
) -> Tie | None:
    call, microbatch, microbatches = tracked.call, 0, 1
    if tracked.role == CUT_POINT and tracked.module:
        module = tracked.module
        here, there = side.calls.get(module, 1), model.calls.get(module, 1)
        if here != there and there and here % there == 0:
            microbatches = here // there
            microbatch, call = divmod(tracked.call, there)
        elif here == there > 1 and _slices_batch(side, here):
            return _of_another_call(side, model, tracked, at, here, skipped)
        elif here != there:
            skipped[tracked.name] = (
                f"the module runs {here} times, on the single device {there} times"
            )
            return None
    tensor = model.tied.get((tracked.role, tracked.name, call)) or (
        model.tied.get(("input", tracked.name, 0)) if tracked.role == CUT_POINT else None
    )
    if tensor is None:
        if tracked.role == CUT_POINT:
            skipped[tracked.name] = "not in the model"
            return None
        beside = tracked.name in side.loaded or is_copy(tracked.name)
        if tracked.role == "input" and beside and not _is_read(side, tracked):
            return None  # a batch that was read ahead, or weights that were loaded from a file
        raise CaptureError(f"{tracked.role} {tracked.name!r} of rank {side.rank} {NOT_ON_SINGLE}")
    local = tensor_of(side.graph, tracked)
    if local is None:
        skipped[tracked.name] = (
            tracked.value.reason.text if isinstance(tracked.value, Poison) else "no tensor"
        )
        return None
    try:
        box = locate(
            tracked,
            model.shapes[tensor],
            local.shape,
            side.mesh,
            at,
            side.cuts,
            microbatches,
            microbatch,
        )
    except NoPlace as e:
        if tracked.role == CUT_POINT:
            skipped[tracked.name] = str(e)
            return None
        if tracked.role == "input" and is_copy(tracked.name) and not _is_read(side, tracked):
            return None  # weights that parts were cut from
        raise CaptureError(
            f"{tracked.role} {tracked.name!r} on rank {side.rank}: {e}. In a step for sp.verify "
            "shard= tells where it lies; parts that are padded to one size are not followed"
        ) from None
    stretches = tracked.placement.stretches
    if stretches and tracked.role == CUT_POINT and microbatches > 1:
        skipped[tracked.name] = "a microbatch of several stretches"
        return None
    if (
        tracked.role == CUT_POINT
        and not stretches
        and local.base is not None
        and ("base", tracked.name, call) in model.tied
    ):
        base = model.tied[("base", tracked.name, call)]
        refined = refine(
            box, model.shapes[tensor], local.shape, model.shapes[base], local.base.shape
        )
        if refined is not None:
            tensor, local, box = base, local.base, refined
    return Tie(
        tracked.role,
        tensor,
        local.name,
        local.shape,
        box,
        tracked.name if tracked.role == "output" else "",
        guess=_guess(side, tracked, box),
        dim=tracked.placement.dim,
        stretches=stretches,
        own_padding=tracked.placement.own_padding,
    )


# What a cut point on a gradient is concluded from.
NOT_ON_SINGLE = "is not on the single device"  # of an error
SCALE_OF_GRADIENT = "the scale of a gradient before it is reduced"


def _guess(side: Recording, tracked: TrackedTensor, box: Box) -> str:
    """What a cut point was concluded from that may be otherwise; "" where it is known."""
    if tracked.role != CUT_POINT:
        return ""
    if tracked.gradient or "grad of backward" in tracked.name and (box.total or box.divisor != 1):
        return SCALE_OF_GRADIENT
    if not box.low and any(side.mesh.sizes[a] > 1 for a in (*side.cuts, *side.spread)):
        return "a module's result without dimensions, as the loss of a rank's own samples is"
    return ""


def _of_another_call(
    side: Recording,
    model: Model,
    tracked: TrackedTensor,
    at: Mapping[str, int],
    count: int,
    skipped: dict[str, str],
) -> Tie | None:
    """The single device's microbatch of which a rank's k-th is a part, by its rows in the whole
    batch.

    Ranks and the single device cut their batches into microbatches of their own.
    """
    axes = tuple(a for a in side.mesh.names if 0 in side.cuts.get(a, ()) and side.mesh.sizes[a] > 1)
    parts = math.prod(side.mesh.sizes[a] for a in axes)
    place = side.mesh.position(axes, at)
    position = place * count + tracked.call
    tensor = model.tied.get((tracked.role, tracked.name, position // parts))
    local = tensor_of(side.graph, tracked)
    why = "each rank and the single device cut their batches into microbatches of their own"
    if (
        tensor is None
        or local is None
        or not local.shape
        or not 1 < parts <= MOST_PARTS
        or model.shapes[tensor][:1] != (local.shape[0] * parts,)
    ):
        skipped[tracked.name] = why
        return None
    try:
        box = locate(tracked, model.shapes[tensor], local.shape, side.mesh, at, side.cuts)
    except NoPlace as e:
        skipped[tracked.name] = str(e)
        return None
    if box.total or not box.low or box.low[0] != place * local.shape[0]:
        skipped[tracked.name] = why
        return None
    return Tie(
        tracked.role,
        tensor,
        local.name,
        local.shape,
        dataclasses.replace(box, low=(position % parts * local.shape[0], *box.low[1:])),
        axes=axes,
        guess=_guess(side, tracked, box),
    )


def _slices_batch(side: Recording, count: int) -> bool:
    """Whether so many microbatches are slices of an input that ranks share.

    A rank's k-th is then no part of the single device's k-th.
    """
    g = side.graph
    shared = {
        m.name
        for m in side.tracked
        if m.role == "input"
        and m.placement.shard
        and any(d == 0 and side.mesh.sizes[a] > 1 for a, d in m.placement.shard.items())
    }
    return any(
        n["op"] == "slice"
        and n["in"][0] in shared
        and n["attrs"]["dim"] == 0
        and (n["attrs"]["stop"] - n["attrs"]["start"]) * count == g.tensors[n["in"][0]]["shape"][0]
        for n in g.nodes
    )
