# SPDX-License-Identifier: Apache-2.0
"""Whether ranks agree on what they draw, on what their parameters begin with, and whether they have
data of their own.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..distributed.mesh import Mesh, RankClasses
from ..terms import assumptions
from ..terms.assumptions import Assumption, listed
from ..terms.nodes import MOVES_HERE
from ..terms.positions import box_of
from ..trace.batches import Batch, Dealt, Key, Shared
from ..trace.initial_parameters import Initial, Origin, resolved
from ..trace.initial_state import CONCAT, SAME
from ..trace.randomness import INSIDE, Draw
from ..trace.recording import CaptureError, Hazard, Recording
from .boxes import DATA_NAMES
from .model_file import Model
from .rank_program import Program, Tie


class ReadApart(Exception):
    """DataLoaders were followed: the step is to be recorded with the batches of ranks as inputs,
    of which the single device's are made. loaders: how.
    """

    def __init__(self, loaders: dict[Key, Shared]) -> None:
        super().__init__(f"batches of {', '.join(loaders)}")
        self.loaders = loaders


def check_read(
    single: Recording,
    sides: Sequence[Recording],
    rank_classes: RankClasses,
    affine_axis: str | None,
) -> None:
    """Raises ReadApart where all sides read of the same DataLoaders.

    Which axes' ranks have samples of their own is what the user requests of them; of others, what
    they read decides.
    """
    requested = single.initial_state.requested
    mesh = sides[0].mesh
    recorded = {side.rank: side for side in sides}
    found: dict[Key, Shared] = {}
    for there, key in _same_loaders(single, sides[0]).items():
        alone = single.read[there]
        if not all(key in side.read for side in sides):
            continue
        count = min(len(side.read[key].batches) for side in sides)
        axes = tuple(
            a
            for a in mesh.names
            if mesh.sizes[a] > 1
            and (requested[a] == CONCAT if a in requested else _read_others(sides, key, count, a))
        )
        if not alone.loaded and not axes:
            continue  # constants: masks, positions
        ranks = [
            mesh.rank(dict(zip(axes, at)))
            for at in itertools.product(*(range(mesh.sizes[a]) for a in axes))
        ]
        reads = [
            recorded[mesh.stands_for(r, rank_classes, affine_axis, recorded)].read[key]
            for r in ranks
        ]
        dealt = _dealt_alike(sides, key)
        own = len(alone.batches[0].samples)
        first = reads[0].batches[0]
        found[key] = Shared(
            axes,
            tuple(tuple(r.batches[n] for r in reads) for n in range(count)),
            # a script that accumulates as many batches of its own on one device reads more of them
            not axes
            or own != len(first.samples)
            or alone.of_step <= min(count, *(r.of_step for r in reads)),
            frozenset(e for e in reads[0].ends if e <= count),
            reads[0].length,
            own,
            dealt.replicas if dealt is not None else 0,
            alone.loaded,
            there,
        )
    if found:
        raise ReadApart(found)


def _same_loaders(single: Recording, rank: Recording) -> dict[Key, Key]:
    """What the single device calls each loader -> what a rank calls it: as it does, or in order
    where they are made on other lines.
    """
    ours = [key for key, read in single.read.items() if read.loaded]
    theirs = [key for key, read in rank.read.items() if read.loaded]
    found = {key: key for key in single.read if key in rank.read}
    if len(ours) == len(theirs) and set(ours) != set(theirs):
        found.update(zip(ours, theirs))
    return found


def decided_apart(single: Recording, sides: Sequence[Recording]) -> list[Assumption]:
    """What programs were decided by, and ranks have numbers of their own of."""
    found = []
    for place in dict.fromkeys(p for side in sides for p in side.read_draws):
        if len({side.read_draws.get(place) for side in sides}) > 1:
            found.append(assumptions.drawn_apart(place))
    for generator in dict.fromkeys(g for side in (single, *sides) for g in side.drawn_by_python):
        states = {side.drawn_by_python.get(generator) for side in sides}
        found.append(assumptions.python_random(generator, len(states) > 1))
    apart: dict[str, None] = {}
    alike: dict[str, None] = {}
    digests = [sorted(d for _, d in side.arrays.values()) for side in sides]
    differ = any(d != digests[0] for d in digests)
    for side in sides:
        for place, _ in side.arrays.values():
            (apart if differ else alike)[place] = None
    for places in (apart, alike):
        if places:
            found.append(assumptions.array_numbers(listed(places), places is apart))
    return found


def read_by_some(
    sides: Sequence[Recording], loaders: Mapping[Key, Shared] | None
) -> list[Assumption]:
    """Loaders whose batches are no inputs, as not all sides read them."""
    if loaders == {}:
        return []  # that is said of all of them
    found = dict.fromkeys(key for side in sides for key, read in side.read.items() if read.loaded)
    return [assumptions.read_by_some(key) for key in found]


def not_dealt(sides: Sequence[Recording], loaders: Mapping[Key, Shared]) -> list[Assumption]:
    """Loaders of which ranks of an axis read the same, beside others of which they do not, or with
    random numbers of their own.
    """
    found = []
    for key, shared in loaders.items():
        drawn: dict[tuple[int, ...], dict[str, str]] = {}
        for side in sides if shared.loaded else ():
            at = tuple(side.mesh.coordinates(side.rank)[a] for a in shared.axes)
            if drawn.setdefault(at, side.drawn_for_batches) != side.drawn_for_batches:
                found.append(assumptions.drawn_for_batches(key))
                break
        for other, apart in loaders.items():
            axes = [a for a in apart.axes if a not in shared.axes and a in spread_axes(sides)]
            if axes and shared.loaded and apart.loaded:
                found.append(assumptions.not_dealt(key, ", ".join(axes), other))
                break
    return found


def _dealt_alike(sides: Sequence[Recording], key: Key) -> Dealt | None:
    """How a DistributedSampler deals out samples. Raises Hazard where ranks deal out otherwise."""
    first = sides[0].read[key].dealt
    for side in sides:
        dealt = side.read[key].dealt
        if first is None or dealt is None:
            return None
        for field in dataclasses.fields(Dealt):
            ours, theirs = getattr(dealt, field.name), getattr(first, field.name)
            if ours != theirs:
                raise Hazard(
                    "ranks deal out samples in different ways, so that some are read twice and "
                    f"others never: DistributedSampler has {field.name} {theirs} on rank "
                    f"{sides[0].rank} and {ours} on rank {side.rank}",
                    key,
                    "",
                    "batch",
                )
    return first


def _read_others(sides: Sequence[Recording], key: Key, count: int, axis: str) -> bool:
    """Whether ranks that differ along one axis only read different samples."""
    by: dict[tuple[int, ...], list[tuple[Batch, ...]]] = collections.defaultdict(list)
    read = [b for side in sides for b in side.read[key].batches[:count]]
    if axis in spread_axes(sides) and any(
        None in b.samples and any(t.origin is None for t in b.tensors.values()) for b in read
    ):
        return True  # nothing tells
    for side in sides:
        at = tuple(c for a, c in side.mesh.coordinates(side.rank).items() if a != axis)
        by[at].append(side.read[key].batches[:count])
    return any(batches != alike[0] for alike in by.values() for batches in alike)


def reads_apart(
    sides: Sequence[Recording], model: Model, loaders: Mapping[Key, Shared]
) -> Hazard | None:
    """What is wrong where ranks that hold parts of parameters read samples of their own, and the
    step is not right.
    """
    programs = [(side, side.program) for side in sides if side.program is not None]
    cut = _cut_parameters([s for s, _ in programs], [p for _, p in programs], model)
    spread = {a for side in sides for a in side.spread}.union(DATA_NAMES)
    for key, shared in loaders.items():
        apart = [a for a in shared.axes if a in cut - spread]
        if apart:
            return Hazard(
                f"ranks along {', '.join(apart)}, which hold parts of the same parameters, read "
                "different samples",
                key,
                "",
                "batch",
            )
    return None


class OtherBatches(Exception):
    """Draws are different data on ranks, as many as the single device draws once.

    axes: along which, of each. otherwise: what is wrong where these are not parts of one batch.
    data: they should be, as all axes are those of a batch. apart: they should not be, as ranks
    along an axis hold parts of parameters. in_rest: all are drawn after a script's step.
    """

    def __init__(
        self,
        axes: dict[str, tuple[str, ...]],
        otherwise: Hazard,
        data: bool,
        apart: bool = False,
        in_rest: bool = False,
    ) -> None:
        super().__init__(str(otherwise))
        self.axes, self.otherwise, self.data, self.apart = axes, otherwise, data, apart
        self.in_rest = in_rest

    def failed(self, why: Exception) -> CaptureError:
        """With the batches of all ranks, one after another, there is no program of the single
        device's, or none that ranks' are like. What is wrong with first values of parameters is so
        whatever the batch is.
        """
        if isinstance(why, Hazard) and why.initial:
            return why
        if not self.data or isinstance(why, OtherBatches):
            return self.otherwise
        return CaptureError(
            f"{self.otherwise.text} at {self.otherwise.loc}: with the rows of all ranks' batches "
            f"the single device's program cannot be compared: {why}"
        )


@dataclasses.dataclass(frozen=True)
class _Drawn:
    side: Recording
    draw: Draw
    tie: Tie

    @property
    def at(self) -> tuple[Any, ...]:
        return self.tie.tensor, self.tie.box.low, self.tie.shape


def spread_axes(sides: Sequence[Recording]) -> set[str]:
    """Axes whose ranks have different data: those that cut inputs, DistributedDataParallel's, and
    by their names.
    """
    return {a for side in sides for a in (*side.cuts, *side.spread)}.union(DATA_NAMES)


def _cut_parameters(
    sides: Sequence[Recording], programs: Sequence[Program], model: Model
) -> set[str]:
    """Axes whose ranks have different parts of a parameter."""
    found: set[str] = set()
    first: dict[tuple[str, int], tuple[Recording, tuple[int, ...]]] = {}
    for side, program in zip(sides, programs):
        count: collections.Counter[str] = collections.Counter()
        for t in program.ties:
            if t.role == "input" and model.json["tensors"][t.tensor].get("kind") == "parameter":
                other, low = first.setdefault((t.tensor, count[t.tensor]), (side, t.box.low))
                count[t.tensor] += 1
                varying = side.mesh.varying([side.rank, other.rank]) if low != t.box.low else []
                found.update(varying if len(varying) == 1 else ())
    return found


def _seeds(*draws: Draw) -> str:
    """How generators were seeded, for a sentence."""
    seeds = list(dict.fromkeys(d.seed for d in draws))
    if seeds == [""] or seeds == ["none"]:
        return " (no seed was set)" if seeds == ["none"] else ""
    return (
        f" (seed{'s' if len(seeds) > 1 else ''} "
        f"{' and '.join(s or 'that the step begins with' for s in seeds)})"
    )


def check_draws(
    sides: Sequence[Recording], programs: Sequence[Program], model: Model
) -> list[Assumption]:
    """Ranks that hold one part draw the same numbers, those that hold others draw others; what that
    leaves to be assumed. Raises Hazard and OtherBatches.
    """
    seen: dict[str, list[_Drawn]] = collections.defaultdict(list)
    for side, program in zip(sides, programs):
        ties = {t.local: t for t in program.ties if t.role == "input"}
        for d in side.random_inputs:
            if d.value.name in ties:
                tie = ties[d.value.name]
                seen[tie.tensor].append(_Drawn(side, d, tie))
    others = {
        name: drawn
        for name, drawn in seen.items()
        if not all(
            e.draw.key == model.random[name] and e.draw.value.shape == model.shapes[name]
            for e in drawn
        )
    }
    spread = spread_axes(sides)
    _requested(seen, model)
    _batches(others, sides, programs, model, spread)
    assumed: dict[Assumption, None] = {}
    by_position: dict[str, None] = {}
    one_seed: dict[str, dict[str, None]] = collections.defaultdict(dict)  # by the axes
    requested = model.initial_state.requested
    rows = model.initial_state.batch.keys()
    for name, drawn in others.items():
        first = drawn[0].draw
        axes = model.initial_state.batch.get(name)
        if axes is not None:
            assumed[
                assumptions.batch_of_all(
                    first.loc, ", ".join(axes), _seeds(*(e.draw for e in drawn))
                )
            ] = None
        else:
            by_position[first.loc] = None
    for drawn in seen.values():
        assumed.update(dict.fromkeys(_drawn_on_device(drawn)))
    by_key: dict[str, dict[tuple[Any, ...], _Drawn]] = collections.defaultdict(dict)
    for e in (e for drawn in seen.values() for e in drawn if not e.draw.by_position):
        for there, other in by_key[e.draw.key].items():
            if there == e.at:
                continue
            varying = e.side.mesh.varying([e.side.rank, other.side.rank])
            seeded = e.draw.seed or other.draw.seed
            # Stages that seed nothing, and what is drawn before the step computes: real processes
            # draw different ones.
            before = not e.draw.value.name.startswith(INSIDE)
            if not seeded and (before or e.tie.tensor != other.tie.tensor):
                continue
            # samples that another rank has in another (micro)step: a seed of step + rank
            if e.tie.tensor != other.tie.tensor and {e.tie.tensor, other.tie.tensor} <= rows:
                one_seed[", ".join(varying or sorted(spread))][e.draw.loc] = None
                continue
            if not all(a in spread for a in varying):
                raise Hazard(
                    f"ranks {other.side.rank} and {e.side.rank} draw the same random numbers for "
                    f"different positions{_seeds(other.draw)}",
                    e.draw.loc,
                    e.tie.tensor,
                    "random",
                )
            # from the state that every step begins with, real processes draw different ones
            if seeded and any(requested.get(a) != CONCAT for a in varying):
                one_seed[", ".join(varying)][e.draw.loc] = None
        by_key[e.draw.key].setdefault(e.at, e)
    if by_position:
        assumed[assumptions.draws_by_position(listed(by_position))] = None
    for along, places in one_seed.items():
        assumed[assumptions.same_seed(listed(places), along)] = None
    return list(assumed)


def _requested(seen: Mapping[str, list[_Drawn]], model: Model) -> None:
    """Raises OtherBatches where ranks draw the same batch that are said to have their own."""
    initial_state = model.initial_state
    axes = tuple(a for a, how in initial_state.requested.items() if how == CONCAT)
    if not axes:
        return
    found = {
        name: axes
        for name, drawn in seen.items()
        if name not in initial_state.batch
        and all(e.draw.more and e.draw.value.shape == model.shapes[name] for e in drawn)
    }
    if found:
        first = seen[next(iter(found))][0].draw
        why = "the rows of all ranks' batches are requested, which are not drawn so"
        raise OtherBatches(found, Hazard(why, first.loc, "", "random"), True)


def _batches(
    others: Mapping[str, list[_Drawn]],
    sides: Sequence[Recording],
    programs: Sequence[Program],
    model: Model,
    spread: set[str],
) -> None:
    """Raises Hazard where ranks draw different numbers for one place; OtherBatches, where these may
    be their own parts of a batch.
    """
    found: dict[str, tuple[str, ...]] = {}
    first_hazard: Hazard | None = None
    inside: list[tuple[set[str], Hazard]] = []  # of modules: with the rows of all they are others
    for name, drawn in others.items():
        mesh: Mesh = drawn[0].side.mesh
        axes: set[str] = set()
        places: dict[tuple[Any, ...], list[_Drawn]] = collections.defaultdict(list)
        for e in drawn:
            if not e.draw.by_position:
                places[e.at].append(e)
        for here in places.values():
            differing = [
                (a, b) for i, b in enumerate(here) for a in here[:i] if a.draw.key != b.draw.key
            ]
            if not differing:
                continue
            a, b = differing[0]
            hazard = Hazard(
                f"ranks {a.side.rank} and {b.side.rank} draw different random numbers for the "
                f"same positions{_seeds(a.draw, b.draw)}",
                b.draw.loc,
                name,
                "random",
            )
            varying = [mesh.varying([a.side.rank, b.side.rank]) for a, b in differing]
            axes.update(v[0] for v in varying if len(v) == 1)
            rows = (
                all(e.draw.more and e.draw.value.shape == model.shapes[name] for e in here)
                and name not in model.initial_state.batch
            )
            if not rows and name.startswith(INSIDE) and not model.initial_state.batch:
                inside.append(({a for v in varying for a in v}, hazard))
                axes.clear()
                break
            if not rows or not axes or any(axes.isdisjoint(v) for v in varying):
                permutes = b.draw.what.startswith("randperm ")
                if permutes and any(_are_own_rows(other, model) for other in others.values()):
                    raise CaptureError(
                        f"ranks {a.side.rank} and {b.side.rank} permute samples that each has drawn"
                        f" itself{_seeds(a.draw, b.draw)} at {b.draw.loc}: the minibatches of one "
                        "device are not known. Give what it computes in a script of its own: "
                        "--single OTHER.py"
                    )
                raise hazard
            first_hazard = first_hazard or hazard
        if axes:
            found[name] = tuple(a for a in mesh.names if a in axes)
    of_batch = {a for axes in found.values() for a in axes}
    for varies, hazard in inside:
        if not varies <= of_batch:
            raise hazard
    if first_hazard is not None:
        apart = of_batch & (_cut_parameters(sides, programs, model) - spread)
        in_rest = all(e.draw.in_rest for name in found for e in others[name])
        raise OtherBatches(found, first_hazard, spread.issuperset(of_batch), bool(apart), in_rest)


def _are_own_rows(drawn: Sequence[_Drawn], model: Model) -> bool:
    """Whether ranks draw samples of their own."""
    return len({e.draw.key for e in drawn}) > 1 and all(
        e.draw.more and e.draw.value.shape == model.shapes[e.tie.tensor] for e in drawn
    )


def same_batch(
    sides: Sequence[Recording], programs: Sequence[Program], model: Model
) -> list[Assumption]:
    """Axes whose ranks should have data of their own, and have the same: nothing but their parts of
    parameters tells them apart.
    """
    spread = spread_axes(sides)
    if any(side.given for side in sides):
        return []  # world.input gives each rank's part
    found: list[Assumption] = []
    data = [(side, _data(side, program, model)) for side, program in zip(sides, programs)]
    for axis in sides[0].mesh.names:
        if (
            axis not in spread
            or sides[0].mesh.sizes[axis] == 1
            or any(axis in side.cuts for side in sides)
            or model.initial_state.requested.get(axis) == SAME
        ):
            continue
        by: dict[tuple[int, ...], str] = {}
        same = all(
            by.setdefault(
                tuple(c for a, c in side.mesh.coordinates(side.rank).items() if a != axis), text
            )
            == text
            for side, text in data
        )
        drawn = next(
            (
                d
                for side in sides
                for d in side.random_inputs
                if any(t.local == d.value.name for t in programs[0].ties)
            ),
            None,
        )
        if same and (drawn is not None or any(text != _NOTHING for _, text in data)):
            found.append(
                assumptions.same_batch(
                    axis,
                    drawn.loc if drawn is not None else "",
                    _seeds(drawn) if drawn is not None else "",
                )
            )
    return found


def _data(side: Recording, program: Program, model: Model) -> str:
    """What a rank computes from that is no parameter and no state: which draws and constants, and
    which parts of them.
    """
    keys = {d.value.name: d.key for d in side.random_inputs}
    ties = {
        t.local: t
        for t in program.ties
        if t.role == "input"
        and (t.local in keys or t.local.startswith("%known") or t.tensor in side.loaded)
    }
    parts: list[Any] = [
        [t.tensor, t.box.low, t.shape, keys.get(name, "")] for name, t in ties.items()
    ]
    parts += [
        [name, program.tensors[name]["value"]]
        for name, t in program.tensors.items()
        if t.get("kind") == "constant" and isinstance(t.get("value"), list)
    ]
    reached = {p[0] for p in parts if p[0] in program.tensors} | set(ties)
    for n in program.nodes:
        if n["op"] in MOVES_HERE and not reached.isdisjoint(n["in"]):
            reached.update(n["out"])
            parts.append([n["op"], n.get("attrs", {})])
    return json.dumps(sorted(parts, key=json.dumps))


_NOTHING = "[]"


def check_initial(
    sides: Sequence[Recording],
    programs: Sequence[Program],
    model: Model,
    rank_classes: RankClasses,
    affine_axis: str | None,
) -> list[Assumption]:
    """Ranks that hold one part of a parameter begin with the same values, as far as they are known.
    What that leaves to be assumed. Raises Hazard.
    """
    recorded = {side.rank: side for side in sides}
    mesh = sides[0].mesh

    def sent(rank: int, comm: str) -> Origin:
        there = recorded.get(mesh.stands_for(rank, rank_classes, affine_axis, recorded))
        return there.sent.get(comm) if there is not None else None

    first: dict[tuple[Any, ...], tuple[Recording, str]] = {}
    places: dict[tuple[str, str], tuple[tuple[Any, ...], Recording]] = {}
    unknown: dict[str, str] = {}
    # ranks have drawn other shapes before, from the state that the step begins with
    unseeded: dict[str, None] = {}
    assumed: dict[Assumption, None] = {}
    # axes -> tensors whose parts begin with the same numbers along them, and where one is drawn
    alike: dict[str, dict[str, str]] = {}
    # parts that are made of what the single device's parameters are made of, in unknown ways
    unchecked: dict[str, None] = {}
    drawn_there = {d for initial in model.initial.values() for d in initial.draws}
    for side, program in zip(sides, programs):
        parts: dict[str, list[Tie]] = collections.defaultdict(list)
        for t in program.ties:
            if t.role == "input" and t.tensor in side.initial:
                parts[t.tensor].append(t)
        for tensor, ties in parts.items():
            found = side.initial[tensor]
            origin = resolved(found.origin, sent)
            of_part = tensor not in program.unchecked
            for known in program.if_sent:
                given = sent(known.rank, known.comm) if known.tensor == tensor else None
                if given is not None and resolved(given, sent) == known.origin:
                    of_part = not known.message
                    if known.message:
                        raise Hazard(known.message, "", tensor, "order", initial=True)
            if not of_part and (
                found.from_others
                and not found.synchronised
                or not drawn_there.isdisjoint(found.draws)
            ):
                unchecked[tensor] = None
            at = (tensor, *((t.box.low, t.shape) for t in ties))
            if origin is None:
                if not found.by_position:
                    unknown.setdefault(tensor, found.why or "what other ranks sent is not followed")
                continue
            other, theirs = first.setdefault(at, (side, origin))
            if other is not side and not found.by_position:
                for way in _on_device(dict(found.by_device), dict(other.initial[tensor].by_device)):
                    assumed[assumptions.device_seeds(way)] = None
            if theirs != origin and not found.by_position:
                if (
                    found.drawn
                    and not found.seeded
                    and other.initial[tensor].drawn
                    and not other.initial[tensor].seeded
                ):
                    unseeded[tensor] = None
                    continue
                if found.of_sent or other.initial[tensor].of_sent:
                    # scatter gives each rank a tensor of its own, which may be the same on all
                    unknown.setdefault(tensor, "parts of what a rank sends are not compared")
                    continue
                raise Hazard(_different(tensor, other, side), "", tensor, "random", initial=True)
            there, holder = places.setdefault((tensor, origin), (at, side))
            if there != at and found.synchronised and tensor in program.by_first_values:
                raise Hazard(
                    f"rank {side.rank} is given rank {holder.rank}'s first values of {tensor} when "
                    "DistributedDataParallel or FSDP is made, though the two have different parts "
                    "of it: their process group has ranks that hold different weights",
                    "",
                    tensor,
                    "held",
                    initial=True,
                )
            if (
                there != at
                and (found.drawn or found.from_others)
                and not found.by_position
                and not found.flat
                and all(seed not in ("", "none") for _, seed in found.where)
            ):
                axes = ", ".join(mesh.varying([holder.rank, side.rank]))
                way = "; ".join(f"{loc}, seed {seed}" for loc, seed in found.where[:1])
                way = way or "loaded, or received from another rank"
                alike.setdefault(axes, {}).setdefault(tensor, way)
            _like_single(ties[0], side, model, origin)
    for axes, tensors in alike.items():
        assumed[assumptions.same_initial(listed(tensors), axes, next(iter(tensors.values())))] = (
            None
        )
    if unchecked:
        assumed[assumptions.unchecked_parts(listed(unchecked))] = None
    if unseeded:
        assumed[assumptions.given_initial(listed(unseeded))] = None
    seeded = any(d.seed for side in sides for d in side.random_inputs) or any(
        i.seeded for side in sides for i in side.initial.values()
    )
    if unknown and (seeded or any(side.own for side in sides)):
        assumed[assumptions.initial_values(listed(unknown), next(iter(unknown.values())))] = None
    return list(assumed)


def check_held(sides: Sequence[Recording], programs: Sequence[Program], model: Model) -> None:
    """Every element of a parameter that ranks have cut by its first values is on some rank.

    Raises Hazard.
    """
    if len(sides) < sides[0].mesh.world:
        return
    for tensor in dict.fromkeys(name for p in programs for name in p.by_first_values):
        parts = {
            side.rank: [
                box_of(t.shape, t.box.low)
                for t in program.ties
                if t.role == "input" and t.tensor == tensor or t.label == f"{tensor}.new"
            ]
            for side, program in zip(sides, programs)
        }
        if not any(parts.values()):
            continue  # ranks have others
        shape = model.beside.get(f"{tensor}.new", model.shapes.get(tensor, ()))
        held = torch.zeros(shape, dtype=torch.bool)
        for boxes in parts.values():
            for box in boxes:
                held[box] = True
        if bool(held.all()):
            continue
        missing = tuple((~held).nonzero()[0].tolist())
        first = min(rank for rank, boxes in parts.items() if boxes)
        alike = [rank for rank, boxes in parts.items() if boxes == parts[first]]
        raise Hazard(
            f"no rank has the element at {list(missing)} of {tensor}, of shape "
            f"{list(shape)}: by the numbers that they begin with, "
            + (
                f"ranks {listed(map(str, alike))} have the same part of it"
                if len(alike) > 1
                else "the ranks' parts overlap or end early"
            ),
            "",
            tensor,
            "held",
            initial=True,
        )


def _on_device(one: Mapping[str, str], two: Mapping[str, str]) -> Iterable[str]:
    """Where two ranks draw the same numbers only if they draw them on the GPU. one, two: places of
    draws to which only its seed leads, and the seeds that the CPUs have.
    """
    return (
        loc
        for loc in {**one, **two}
        if one.get(loc) != two.get(loc) or one.get(loc, two.get(loc)) == "none"
    )


def _drawn_on_device(drawn: Iterable[_Drawn]) -> Iterable[Assumption]:
    """What is assumed where ranks draw the same numbers for one place."""
    first: dict[tuple[Any, ...], Draw] = {}
    for e in drawn:
        other = first.setdefault((e.at, e.draw.key), e.draw)
        if other is not e.draw and not e.draw.by_position:
            ways = ({d.loc: d.cpu} if d.cpu is not None else {} for d in (other, e.draw))
            yield from map(assumptions.device_seeds, _on_device(*ways))


def _like_single(t: Tie, side: Recording, model: Model, origin: str) -> None:
    """A whole parameter is drawn from what the single device draws it from, where both run the same
    code, and the same function of the same draws is the same. Raises Hazard.
    """
    here, there = side.initial[t.tensor], model.initial.get(t.tensor)
    if there is None or here.flat or t.shape != model.shapes[t.tensor]:
        return
    drawn = here.drawn and there.drawn and here.drawn != there.drawn
    number = (
        here.constant is not None and there.constant is not None and here.constant != there.constant
    )
    other = (
        bool(here.keys)
        and here.keys == there.keys
        and not here.by_position
        and isinstance(there.origin, str)
        and origin != there.origin
    )
    if other and not drawn:
        raise Hazard(
            f"rank {side.rank} begins {t.tensor} with other numbers than the single device, made of"
            " the same random numbers",
            next((loc for loc, _ in here.where), ""),
            t.tensor,
            "random",
        )
    mixed = _known_different(here, there) or _known_different(there, here)
    if drawn or number or mixed:
        ours, theirs = (
            f"with {i.constant}"
            if i.constant is not None
            else f"from {' and '.join(sorted(i.drawn))}"
            for i in (here, there)
        )
        raise Hazard(
            f"rank {side.rank} begins {t.tensor} {ours}, the single device {theirs}",
            next((loc for loc, _ in here.where), ""),
            t.tensor,
            "random",
        )


def _known_different(one: Initial, two: Initial) -> bool:
    """Whether one is drawn, and two a number. What DistributedDataParallel gave to all is the first
    rank's, whatever a rank had before.
    """
    return bool(one.drawn) and one.constant is None and two.constant is not None and not two.given


def _different(name: str, one: Recording, two: Recording) -> str:
    ways = [next(iter(side.initial[name].where), None) for side in (one, two)]
    beginnings = [f"rank {side.rank} {_drawn_at(way)}" for side, way in zip((one, two), ways)]
    return (
        f"ranks {one.rank} and {two.rank} begin with different values of {name}, and nothing "
        f"broadcasts them ({', '.join(beginnings)})"
    )


def _drawn_at(way: tuple[str, str] | None) -> str:
    if way is None:
        return "has constants, or what it was sent"
    with_seed = {"": "", "none": ", where no seed was set"}.get(way[1], f" with seed {way[1]}")
    return f"draws them at {way[0]}{with_seed}"


def permuted_parts(
    sides: Sequence[Recording], permuted: Mapping[str, tuple[str, ...]]
) -> list[Assumption]:
    """Permutations of a batch that are taken to permute each rank's part."""
    draws = {d.value.name: d.loc for side in sides for d in side.random_inputs}
    return [
        assumptions.permuted_parts(draws[name], ", ".join(axes))
        for name, axes in permuted.items()
        if name in draws
    ]
