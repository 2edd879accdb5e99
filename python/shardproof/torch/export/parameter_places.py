# SPDX-License-Identifier: Apache-2.0
"""Where a rank's parameters lie in the single device's, where shapes alone do not tell.

They do not tell which of two equal axes cuts a parameter, nor that a rank has a part of each of the
weights that are fused into one. Where a script cuts what the single device has whole (drawn from
the same state, loaded from the same file), the numbers that both begin with tell. Else a weight
that a rank splits as the single device does is a part of each that it is split into.

The same is so of what an optimizer has beside parameters of modules, and of a script's copies of
weights: flat buffers that ranks have parts of. Parts may be padded with zeros to one size.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

import torch

from ..distributed.mesh import Mesh
from ..step.tracked_tensors import OwnPadding, Placement, TrackedTensor
from ..terms.positions import Stretches, box_of, stretches_in
from ..terms.values import Filled, Named, Shape
from ..trace.copies_of_weights import is_copy
from ..trace.recording import CaptureError, Hazard, Recording
from .boxes import NoPlace, locate
from .model_file import Model
from .split_weights import Uses

MOST_STRETCHES = 64  # of a parameter; each is an input of the plan


@dataclasses.dataclass(frozen=True)
class Place:
    """Of a parameter of the single device's shape `whole`, and of shape `local`: see Placement.

    What lies in none of its stretches, if it has some, is padding. own_padding: it may hold any
    numbers, as each rank draws its part.
    """

    whole: Shape
    local: Shape
    low: Shape
    dim: int = 0
    stretches: Stretches = ()
    guessed: bool = False  # from how it is split
    own_padding: OwnPadding | None = None

    @property
    def rows(self) -> int:
        """How many of its rows are the single device's; the others are behind them."""
        return sum(n for *_, n in self.stretches) if self.stretches else self.local[self.dim]

    @property
    def is_padded(self) -> bool:
        return self.rows < self.local[self.dim]

    def applied(self, p: Placement) -> Placement:
        return dataclasses.replace(
            p,
            offset=self.low,
            shape=self.whole,
            dim=self.dim,
            stretches=self.stretches,
            own_padding=self.own_padding,
        )


def places_of_parameters(side: Recording, model: Model, at: Mapping[str, int]) -> dict[str, Place]:
    """Parameter -> its place, where more than its shape is known. Raises CaptureError for one whose
    first values are in many places.
    """
    known: dict[str, Place] = {}
    for name, shape in parts_beside(side, model):
        found = _by_first_values(side, model, name, shape, at)
        if found is not None:
            known[name] = found
    others: dict[str, TrackedTensor] = {}
    for tracked in side.tracked:
        p, name = tracked.placement, tracked.name
        whole, local = model.shapes.get(name), tracked.value.shape
        if (
            tracked.role != "input"
            or p.parameter != name
            or p.shard is not None
            or p.covered
            or whole is None
            or whole == local
            or len(whole) != len(local)
        ):
            continue
        found = _by_first_values(side, model, name, whole, at)
        if found is not None:
            known[name] = found
        else:
            others[name] = tracked
    of_module: dict[str, list[str]] = {}
    for name in known:
        of_module.setdefault(name.rpartition(".")[0], []).append(name)
    # a bias that begins with zeros is cut as its weight is
    for name, tracked in others.items():
        likes = {
            like
            for other in of_module.get(name.rpartition(".")[0], [])
            if (like := _like(known[other], model.shapes[name], tracked.value.shape)) is not None
            and (not like.is_padded or _is_zero_beyond(side, name, like))
        }
        if len(likes) == 1:
            constant = isinstance(side.first_values.get(name), Filled)
            known[name] = dataclasses.replace(likes.pop(), guessed=not constant)
    if others.keys() - known.keys():
        here, there = uses(side, model)
        for name, tracked in others.items():
            if name not in known:
                found = _by_parts(side, model, at, tracked, here, there) or _by_padded_shape(
                    side, model, at, tracked
                )
                if found is not None:
                    known[name] = found
    return known


def _is_zero_beyond(side: Recording, name: str, place: Place) -> bool:
    """Whether what is no element of the single device's begins with zeros."""
    zeros = side.zeros_of(name)
    if zeros is None:
        return False
    more = place.local[place.dim] - place.rows
    return bool(zeros.narrow(place.dim, place.rows, more).all())


def _cut(whole: Shape, local: Shape) -> list[int]:
    """The dimensions of which a rank has a part."""
    return [d for d, (n, m) in enumerate(zip(whole, local)) if n != m]


def _at(place: Shape, dim: int, x: int) -> Shape:
    """A place, or a shape, with another number for a dimension."""
    return (*place[:dim], x, *place[dim + 1 :])


def uses(side: Recording, model: Model) -> tuple[Uses, Uses]:
    """Of a rank's tensors, and of the single device's."""
    return (
        Uses(side.graph.nodes[side.started :], side.graph.tensors),
        Uses(model.json["nodes"], model.json["tensors"]),
    )


def _by_parts(
    side: Recording,
    model: Model,
    at: Mapping[str, int],
    tracked: TrackedTensor,
    here: Uses,
    there: Uses,
) -> Place | None:
    """The place of a fused weight: a rank that splits its part as the single device splits the
    whole has a part of each.
    """
    found = fused(tracked, model, here, there)
    if found is None or len(found.ours) > MOST_STRETCHES:
        return None
    whole, local, dim = model.shapes[tracked.name], tracked.value.shape, found.dim
    ours, models = found.ours, found.models
    try:
        low = locate(tracked, whole, local, side.mesh, at, side.cuts).low
    except NoPlace:
        return None
    share = low[dim] // local[dim]
    ends_here, ends_there = (list(itertools.accumulate(p, initial=0)) for p in (ours, models))
    stretches = tuple(
        (mine, begin + share * n, n) for mine, begin, n in zip(ends_here, ends_there, ours)
    )
    return Place(whole, local, _at(low, dim, 0), dim, stretches, guessed=True)


def _by_padded_shape(
    side: Recording, model: Model, at: Mapping[str, int], tracked: TrackedTensor
) -> Place | None:
    """The place of a part that each rank draws, of a dimension that is padded to as many times its
    size as there are ranks along some axes. None where several axes are as likely.
    """
    whole, local = model.shapes[tracked.name], tracked.value.shape
    cut = _cut(whole, local)
    if len(cut) != 1 or _is_located(tracked, whole, local, side, at):
        return None
    dim = cut[0]
    sizes = {
        some: ranks
        for some in _axes_together(side.mesh)
        if (ranks := math.prod(side.mesh.sizes[a] for a in some)) * local[dim] >= whole[dim]
    }
    # those that have no data of their own, and are the fewest
    by_data = {some: sum(a in side.cuts for a in some) for some in sizes}
    likely = [some for some in sizes if by_data[some] == min(by_data.values())]
    likely = [some for some in likely if sizes[some] == min(sizes[other] for other in likely)]
    if len(likely) != 1:
        return None
    begin = side.mesh.position(likely[0], at) * local[dim]
    n = max(0, min(local[dim], whole[dim] - begin))
    padding = OwnPadding(begin + n - whole[dim], sizes[likely[0]] * local[dim] - whole[dim])
    stretches = ((0, begin if n else 0, n),)
    return Place(whole, local, (0,) * len(whole), dim, stretches, True, padding)


def _is_located(
    tracked: TrackedTensor, whole: Shape, local: Shape, side: Recording, at: Mapping[str, int]
) -> bool:
    try:
        locate(tracked, whole, local, side.mesh, at, side.cuts)
    except NoPlace:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class Fused:
    """A parameter whose dimension `dim` is split into parts, here into as many as on the single
    device, each as many times smaller.
    """

    dim: int
    ours: tuple[int, ...]
    models: tuple[int, ...]


def fused(tracked: TrackedTensor, model: Model, here: Uses, there: Uses) -> Fused | None:
    """How a parameter of which a rank has a part of one dimension is split; None if it is not."""
    whole, local = model.shapes[tracked.name], tracked.value.shape
    cut = _cut(whole, local)
    if len(whole) != len(local) or len(cut) != 1 or not isinstance(tracked.value, Named):
        return None
    dim = cut[0]
    ours, models = here.parts(tracked.value.name, dim), there.parts(tracked.name, dim)
    as_many = [n * whole[dim] for n in ours] == [n * local[dim] for n in models]
    return Fused(dim, ours, models) if len(ours) > 1 and as_many else None


def parts_beside(side: Recording, model: Model) -> list[tuple[str, Shape]]:
    """What is no module's, begins with known numbers and has another shape than the single
    device's: its name, and that shape.
    """
    found = []
    for name, v in side.first_values.items():
        whole = model.shapes[name] if is_copy(name) and name in model.shapes else None
        whole = model.beside.get(f"{name}.new", whole)
        local = getattr(v, "shape", ())
        if whole is not None and whole != local and len(whole) == len(local):
            found.append((name, whole))
    return found


def look_for_parts(side: Recording, model: Model) -> None:
    """Which of what optimizers have beside parameters of modules (Recording.beside) is a part of
    the single device's, as first values show.
    """
    if side.whole_shapes is not None:
        return
    side.whole_shapes = {}
    if not side.beside:
        return
    whole = side.whole()
    at = side.mesh.coordinates(side.rank)
    for name, shape in parts_beside(whole, model):
        if _by_first_values(whole, model, name, shape, at) is not None:
            side.whole_shapes.update(
                (tracked.name, shape)
                for tracked in whole.tracked
                if tracked.placement.parameter == name and tracked.name in side.beside
            )


def _by_first_values(
    side: Recording, model: Model, name: str, shape: Shape, at: Mapping[str, int]
) -> Place | None:
    """shape: the single device's."""
    part, whole = side.elements_of(name), model.first_values(name)
    if whole is None or tuple(whole.shape) != shape:
        return None
    begins = [] if part is None or not part.numel() else (whole == part.flatten()[0]).nonzero()
    found = None
    if part is not None and len(begins) == 1:
        low = tuple(begins[0].tolist())
        if torch.equal(whole[box_of(part.shape, low)], part):
            return Place(shape, tuple(part.shape), low)
        found = stretches_in(whole, part, low)
    if part is None or found is None:
        return _padded(side, name, whole, part, at)
    dim, stretches = found
    if len(stretches) > MOST_STRETCHES:
        if f"{name}.new" in model.beside:
            return None  # it is named as not compared
        raise CaptureError(
            f"{name} on rank {side.rank} begins with rows of the single device's that lie in "
            f"{len(stretches)} places; at most {MOST_STRETCHES} are followed"
        )
    return Place(shape, tuple(part.shape), _at(low, dim, 0), dim, stretches)


def _padded(
    side: Recording,
    name: str,
    whole: torch.Tensor,
    part: torch.Tensor | None,
    at: Mapping[str, int],
) -> Place | None:
    """The place of a part of one dimension that may end with padding, which is zero.

    It is where the numbers of its elements are; where these are in several places (constants), it
    is the one of them that follows from the order of ranks.
    """
    zeros = side.zeros_of(name)
    if zeros is None:
        return None
    local = tuple(zeros.shape)
    cut = _cut(tuple(whole.shape), local)
    if len(cut) != 1:
        return None
    dim = cut[0]
    rows = local[dim]
    found: dict[int, int] = {}  # where it begins -> how many rows it has
    for low in {*_shown_lows(whole, part, dim), *_lows_by_rank(rows, side.mesh, at)}:
        n = max(0, min(rows, whole.shape[dim] - low))
        same = not n or (
            part is not None and torch.equal(part.narrow(dim, 0, n), whole.narrow(dim, low, n))
        )
        if same and bool(zeros.narrow(dim, n, rows - n).all()):
            found[low if n else whole.shape[dim]] = n
    if len(found) != 1:
        return None
    ((low, n),) = found.items()
    begin = (0,) * len(local)
    if n == rows:
        return Place(tuple(whole.shape), local, _at(begin, dim, low))
    return Place(tuple(whole.shape), local, begin, dim, ((0, low if n else 0, n),))


def _shown_lows(whole: torch.Tensor, part: torch.Tensor | None, dim: int) -> list[int]:
    """Where a part begins, if its first element that is one of the single device's is."""
    if part is None or not part.numel():
        return []
    there = whole.movedim(dim, 0).reshape(whole.shape[dim], -1)[:, 0]
    here = part.movedim(dim, 0).reshape(part.shape[dim], -1)[:, 0]
    values, counts = there.unique(return_counts=True)
    shown = torch.isin(here, values[counts == 1]).nonzero()
    if not len(shown):
        return []
    low = int((there == here[shown[0]]).nonzero()[0]) - int(shown[0])
    return [low] if low >= 0 else []


def _lows_by_rank(rows: int, mesh: Mesh, at: Mapping[str, int]) -> list[int]:
    """Where the parts of a rank begin that has as many rows as all, along some of the axes."""
    return [mesh.position(axes, at) * rows for axes in _axes_together(mesh)]


def _axes_together(mesh: Mesh) -> Iterator[tuple[str, ...]]:
    """All choices of axes of several ranks."""
    axes = [a for a in mesh.names if mesh.sizes[a] > 1]
    for k in range(1, len(axes) + 1):
        yield from itertools.combinations(axes, k)


def _like(other: Place, whole: Shape, local: Shape) -> Place | None:
    """The place of a parameter of one dimension that is cut, where `other` has one of these sizes
    before and after.
    """
    cut = _cut(whole, local)
    there = [
        d
        for d, sizes in enumerate(zip(other.whole, other.local))
        if cut and sizes == (whole[cut[0]], local[cut[0]])
    ]
    if len(cut) != 1 or len(there) != 1:
        return None
    low = tuple(other.low[there[0]] if d == cut[0] else 0 for d in range(len(whole)))
    stretches = other.stretches if other.dim == there[0] else ()
    return Place(whole, local, low, cut[0] if stretches else 0, stretches)


@dataclasses.dataclass(frozen=True)
class IfSent:
    """What is wrong with a parameter's first value if what `rank` gave to a communication has this
    origin; empty: it is the rank's part then.
    """

    tensor: str
    comm: str
    rank: int
    origin: str
    message: str


@dataclasses.dataclass(frozen=True)
class Checked:
    """of_part: whether a rank begins with its part of a parameter; if not, that may be so by what
    other ranks have sent.
    """

    of_part: bool
    if_sent: tuple[IfSent, ...] = ()


def check_order(
    side: Recording, model: Model, name: str, low: Shape, dim: int, stretches: Stretches
) -> Checked:
    """Whether a rank's part of a parameter begins with the elements that the single device has
    there.

    Elements that are nowhere in the single device's are not looked at. Raises Hazard where one is
    elsewhere.
    """
    if model.shapes[name] == side.first_values[name].shape:
        return Checked(True)
    whole = model.first_values(name)
    if whole is None:
        return Checked(False)
    part, sender = side.elements_of(name), side.sender_of(name)
    if part is None and sender is not None:
        outcomes = [
            (
                origin,
                _disorder(side, name, whole, side.elements_of(name, numbers), low, dim, stretches),
            )
            for origin, numbers in model.stages(name)
        ]
        return Checked(
            False,
            tuple(
                IfSent(name, *sender, origin, found)
                for origin, found in outcomes
                if found is not None
            ),
        )
    found = _disorder(side, name, whole, part, low, dim, stretches)
    if found:
        raise Hazard(found, "", name, "order", initial=True)
    return Checked(found is not None)


def _disorder(
    side: Recording,
    name: str,
    whole: torch.Tensor,
    part: torch.Tensor | None,
    low: Shape,
    dim: int,
    stretches: Stretches,
) -> str | None:
    """The first element that is elsewhere in the single device's parameter; empty: all are where
    they belong; None: some are not known to be there.
    """
    if part is None or part.dim() != whole.dim() or not part.dim():
        return None
    pieces = [(low[dim], part.shape[dim])] if not stretches else [(s, n) for _, s, n in stretches]
    expected = torch.cat(
        [whole[box_of(_at(tuple(part.shape), dim, n), _at(low, dim, s))] for s, n in pieces], dim
    )
    if expected.shape != part.shape:
        return None
    if torch.equal(expected, part):
        return ""
    values, counts = whole.unique(return_counts=True)
    once = values[counts == 1]
    wrong = (part != expected) & torch.isin(part, once)
    if not bool(wrong.any()):
        return None
    at = wrong.nonzero()[0]
    there = (whole == part[tuple(at)]).nonzero()[0].tolist()
    begin = (expected[tuple(at)] == whole).nonzero()[0].tolist()
    return (
        f"rank {side.rank} begins {name}, of shape {list(part.shape)}, with other elements of the "
        f"single device's than its part has: at {at.tolist()} it has the one that is at {there} "
        f"there, where the one at {begin} belongs"
    )
