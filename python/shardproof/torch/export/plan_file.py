# SPDX-License-Identifier: Apache-2.0
"""The plan's file from the recordings of ranks: programs, what distinguishes them, and lineage."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..distributed.mesh import Mesh, RankClasses, Stretch
from ..step.tracked_tensors import CUT_POINT
from ..terms import assumptions
from ..terms.assumptions import Assumption, listed
from ..terms.liveness import WAIT
from ..terms.values import Shape, numel
from ..trace.copies_of_weights import is_copy
from ..trace.randomness import AT_FIRST
from ..trace.recording import MOVES_MEMORY, CaptureError, Recording
from .affine_programs import between, joined
from .agreement import check_draws, check_held, check_initial, same_batch
from .model_file import Model, through_cut_points
from .rank_program import KIND_OF_PADDING, PADDING, SCALE_OF_GRADIENT, Program, Tie, program_of
from .scaled_parts import in_programs


class OnNoRank(CaptureError):
    """No rank has a tensor of the single device's. role: what it is."""

    def __init__(self, tensor: str, role: str = "output") -> None:
        text = f"{role} {tensor!r} of the single device is on no rank"
        if tensor.startswith(AT_FIRST):
            text = (
                f"the single device computes with numbers that parameters begin with ({tensor!r}), "
                "and no rank does: a copy of weights is followed that consists of whole parameters "
                "or of parts of them"
            )
        super().__init__(text)
        self.tensor, self.role = tensor, role


class Uneven(Exception):
    """Ranks do not follow others evenly that were taken to."""


def plan_of(
    sides: Sequence[Recording],
    model: Model,
    model_file: str,
    rank_classes: RankClasses | None = None,
    affine_axis: str | None = None,
    cut_points: bool = True,
    scale: int | None = None,
) -> tuple[dict[str, Any], dict[str, str], list[Assumption]]:
    """The plan's file, cut points that were left out and why, and what was assumed.

    sides: recordings of ranks. rank_classes: where ranks that were not recorded are taken to be
    like those that were. affine_axis: an axis along which they are taken to follow those evenly.
    scale: of gradients before they are reduced (gradient_scale.py).

    Raises CaptureError, and Uneven where ranks do not follow others evenly.
    """
    rank_classes = rank_classes or {}
    mesh = sides[0].mesh
    for side in sides:
        if side.unused != sides[0].unused:
            raise CaptureError(
                f"DistributedDataParallel(find_unused_parameters=True): ranks {sides[0].rank} and "
                f"{side.rank} do not use the same parameters, which is not supported"
            )
    sides = _one_shape(sides)
    programs = _programs(sides, model, cut_points)
    if model.constants and any(p.own_constants for p in programs):
        # Numbers that are no part of the model's stand for themselves: so must the model's then, or
        # a step that is right for these numbers would be compared with any.
        model.write_constants()
        programs = _programs(
            [dataclasses.replace(side.whole(), program=None) for side in sides], model, cut_points
        )
    _check_followed(sides, programs)
    _add_padding(model, programs)
    check_held(sides, programs, model)
    drawn = [
        *check_draws(sides, programs, model),
        *check_initial(sides, programs, model, rank_classes, affine_axis),
        *same_batch(sides, programs, model),
    ]
    if scale is not None:
        programs = [_scaled(p, scale) for p in programs]
    by_rank = {side.rank: p for side, p in zip(sides, programs)}
    if affine_axis is not None:
        by_rank.update(_following(mesh, rank_classes, affine_axis, by_rank))
    fixed = _distinguishing(mesh, {r: p.text for r, p in by_rank.items()}, rank_classes)
    free = [a for a in mesh.names if a not in fixed]
    out_programs: list[dict[str, Any]] = []
    shards: dict[Any, list[Any]] = collections.defaultdict(list)
    apart: set[Any] = set()
    # where the second rank along an axis was recorded for some programs only, the others have the
    # same steps
    moves: dict[Any, dict[str, list[int]]] = {}
    for c in itertools.product(*[mesh.stretches(a, rank_classes) for a in fixed]):
        here = dict(zip(fixed, c))
        ranks = [
            r
            for r in by_rank
            if all(low <= mesh.coordinates(r)[a] < high for a, (low, high) in here.items())
        ]
        start = mesh.rank({a: low for a, (low, _) in here.items()})
        if start not in ranks:
            raise CaptureError(f"the first rank at {_at(here)} was not recorded")
        first, at = by_rank[start], _at(here)
        unnamed = [a for a in mesh.names if a in free or here[a][1] - here[a][0] > 1]
        out_programs.append(
            {
                **({"at": at} if at else {}),
                "tensors": first.tensors,
                "nodes": first.nodes,
                **({"waits": first.waits} if first.waits else {}),
            }
        )
        count: collections.Counter[tuple[str, str, str]] = collections.Counter()
        for i, tie in enumerate(first.ties):
            key = (tie.role, tie.tensor, tie.label)
            if tie.axes:
                _by_call(mesh, here, unnamed, {r: by_rank[r].ties[i] for r in ranks}, shards)
                continue
            count[key] += 1
            stretches = tuple((a, here[a]) for a in unnamed if a in here)
            step = _step(
                mesh,
                unnamed,
                {r: by_rank[r].ties[i].box.low for r in ranks},
                tie,
                moves.setdefault((key, count[key], stretches), {}),
            )
            if tie.role == CUT_POINT and any(by and a in tie.box.total for a, by in step.items()):
                apart.add(key)
            shards[key].append((at, _from_zero(tie, step, here), step))
    # A gradient that is added up over ranks that have different parts of it is no cut point.
    for key in apart:
        del shards[key]
    lineage = _lineage(shards, fixed, mesh)
    model.json["nodes"] = through_cut_points(
        model.json["nodes"],
        model.json["tensors"],
        [e["tensor"] for e in lineage if e["role"] == CUT_POINT],
    )
    _unused_constants(model, out_programs, lineage)
    _check_outputs(model, lineage)
    out_programs, lineage = joined(mesh, out_programs, lineage)
    has_stretches = any(h > low + 1 for a in fixed for low, h in mesh.stretches(a, rank_classes))
    scaled = any("scale" in part for e in lineage for s in e["shards"] for part in s["parts"])
    asynchronous = any("handle" in n or "waits" in n for p in out_programs for n in p["nodes"])
    if scaled and (has_stretches or asynchronous or any("waits" in p for p in out_programs)):
        out_programs, lineage = in_programs(out_programs, lineage)
        scaled = False
    js = {
        "format": "shardproof-plan",
        "version": 2 if has_stretches or scaled else 1,
        "model": model_file,
        "mesh": [[a, n] for a, n in mesh.sizes.items()],
        "programs": out_programs,
        "lineage": lineage,
    }
    guessed = dict.fromkeys(g for p in programs for g in p.guessed)
    assumed = [assumptions.placement_from_shape(listed(guessed))] if guessed else []
    own = dict.fromkeys(n.removesuffix(f" {PADDING}") for p in programs for n in p.own_padding)
    assumed += [assumptions.own_padding(listed(own))] if own else []
    padded = dict.fromkeys(name for p in programs for name in p.padded)
    assumed += [assumptions.zero_padding(listed(padded))] if padded else []
    assumed += drawn
    return js, {k: v for p in programs for k, v in p.skipped.items()}, assumed


def _check_followed(sides: Sequence[Recording], programs: Sequence[Program]) -> None:
    """A communication that one rank's program lacks, as what the rank gives is not followed, is in
    no other's. Raises CaptureError.
    """
    unknown = {
        comm: (side.rank, layouts)
        for side in sides
        for comm, layouts in side.layouts.items()
        if layouts.unknown
    }
    for program in {id(p.nodes): p for p in programs}.values() if unknown else ():
        for node in program.nodes:
            comm = node.get("comm", "").partition(".")[0]
            if comm in unknown and node["op"] != WAIT:
                rank, layouts = unknown[comm]
                raise CaptureError(
                    f"{node['op']} at {layouts.loc}: what rank {rank} gives cannot be followed: "
                    f"{layouts.unknown}"
                )


def _add_padding(model: Model, programs: Sequence[Program]) -> None:
    """What ranks' parameters are padded with is an input that the single device does not read: the
    result is shown to be the same for any numbers in it. Or it is zeros, and is to stay zeros: an
    output.
    """
    for program in programs:
        for name, shape in program.own_padding.items():
            whole = model.json["tensors"][name.removesuffix(f" {PADDING}")]
            model.json["tensors"][name] = {**whole, "shape": list(shape)}
            model.shapes[name] = shape
        for name, shape in program.zero_padding.items():
            most = tuple(map(max, shape, model.shapes.get(name, shape)))
            model.shapes[name] = most
            model.json["tensors"][name] = {"shape": list(most), "kind": "constant", "value": 0}
            if name not in model.outputs:
                model.outputs.append(name)
                model.json["outputs"].append(name)
                model.tied["output", name, 0] = name
                model.kinds[name] = KIND_OF_PADDING


def _scaled(program: Program, scale: int) -> Program:
    """With cut points on gradients that are so many times the model's."""
    ties = [
        dataclasses.replace(t, box=dataclasses.replace(t.box, divisor=scale))
        if t.guess == SCALE_OF_GRADIENT
        else t
        for t in program.ties
    ]
    return dataclasses.replace(program, ties=ties)


def _following(
    mesh: Mesh, rank_classes: RankClasses, axis: str, known: Mapping[int, Program]
) -> dict[int, Program]:
    """Programs of ranks between those along an axis that were recorded: the first of each stretch.

    Raises Uneven.
    """
    found: dict[int, Program] = {}
    others = [a for a in mesh.names if a != axis]
    for at in itertools.product(
        *[[low for low, _ in mesh.stretches(a, rank_classes)] for a in others]
    ):
        ranks = [mesh.rank({**dict(zip(others, at)), axis: k}) for k in range(mesh.sizes[axis])]
        if all(r in known for r in ranks):
            continue
        made = between(len(ranks), {k: known[r] for k, r in enumerate(ranks) if r in known})
        if made is None:
            raise Uneven
        found.update({ranks[k]: program for k, program in made.items()})
    return found


def _at(here: Mapping[str, Stretch]) -> dict[str, Any]:
    """As the plan's file names coordinates."""
    return {a: low if high == low + 1 else [low, high] for a, (low, high) in here.items()}


def _from_zero(tie: Tie, step: Mapping[str, Sequence[int]], here: Mapping[str, Stretch]) -> Tie:
    """Shifts boxes to the axis' first coordinate.

    The plan's file counts a stretch's coordinates from it, whether it is in the stretch or not.
    """
    low = tuple(
        n - sum(by[d] * here[a][0] for a, by in step.items() if a in here)
        for d, n in enumerate(tie.box.low)
    )
    return dataclasses.replace(tie, box=dataclasses.replace(tie.box, low=low))


def _by_call(
    mesh: Mesh,
    here: dict[str, Stretch],
    free: Sequence[str],
    ties: Mapping[int, Tie],
    shards: dict[Any, list[Any]],
) -> None:
    """Ties of which each coordinate has a tensor of the model of its own.

    There are none where not all ranks were recorded.
    """
    named = [a for a in next(iter(ties.values())).axes if a in free]
    by: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
    for r in ties:
        by[tuple(mesh.coordinates(r)[a] for a in named)].append(r)
    every = 1
    for a in named:
        low, high = here.get(a, (0, mesh.sizes[a]))
        every *= high - low
    if len(by) != every or len({len(ranks) for ranks in by.values()}) != 1:
        return
    found = []
    for c, ranks in by.items():
        tie = ties[min(ranks)]
        if any(ties[r].tensor != tie.tensor for r in ranks):
            return
        try:
            step = _step(
                mesh,
                [a for a in free if a not in named],
                {r: ties[r].box.low for r in ranks},
                tie,
                {},
            )
        except CaptureError:
            return
        place = {**here, **{a: (k, k + 1) for a, k in zip(named, c)}}
        found.append((tie, (_at(place), _from_zero(tie, step, place), step)))
    for tie, entry in found:
        shards[(tie.role, tie.tensor, tie.label)].append(entry)


def _one_shape(sides: Sequence[Recording]) -> Sequence[Recording]:
    """Recordings that give collectives that move memory the same shapes.

    Ranks may give tensors of different shapes (but as many elements) to one gather or
    reduce-scatter, which moves memory: a flat buffer is then sent flat. That happens where parts of
    a flat buffer were made in other shapes, and where a part is nothing but padding, of which only
    the number of elements is known.
    """
    shapes: dict[str, set[Shape]] = collections.defaultdict(set)
    for side in sides:
        for comm, shape in side.facts.moved.items():
            shapes[comm].add(shape)
    differing = {
        comm
        for comm, found in shapes.items()
        if len(found) > 1 and len({numel(s) for s in found}) == 1
    }
    if not differing:
        return sides
    sides = [dataclasses.replace(side.whole(), program=None) for side in sides]
    for side in sides:
        g = side.graph
        for i in reversed(range(len(g.nodes))):
            n = g.nodes[i]
            if n.get("comm") not in differing or n["op"] not in MOVES_MEMORY:
                continue
            before, out = n["in"][0], n["out"][0]
            flat, whole = f"{before} sent as {n['comm']}", f"{out} flat"
            loc = {"loc": n["loc"]} if "loc" in n else {}
            for name, like in ((flat, before), (whole, out)):
                g.tensors[name] = {
                    **{k: v for k, v in g.tensors[like].items() if k == "dtype"},
                    "shape": [numel(tuple(g.tensors[like]["shape"]))],
                }
            g.nodes[i : i + 1] = [
                {
                    "op": "view",
                    "in": [before],
                    "out": [flat],
                    "attrs": {"size": g.tensors[flat]["shape"]},
                    **loc,
                },
                {**n, "in": [flat], "out": [whole]},
                {
                    "op": "view",
                    "in": [whole],
                    "out": [out],
                    "attrs": {"size": g.tensors[out]["shape"]},
                    **loc,
                },
            ]
            if i < side.started:
                side.started += 2
    return sides


def _programs(sides: Sequence[Recording], model: Model, cut_points: bool) -> list[Program]:
    """A communication of the construction that one rank needs is kept on all."""
    keep: set[str] = set()
    built = {comm for side in sides for comm in side.facts.built}
    while True:
        programs = [
            side.program
            if side.program is not None and not keep
            else program_of(side.whole(), model, keep, cut_points)
            for side in sides
        ]
        needed = {
            n["comm"]
            for p in {id(p.nodes): p for p in programs}.values()
            for n in p.nodes
            if "comm" in n
        }
        if (needed & built) <= keep:
            return programs
        keep |= needed & built


def _distinguishing(
    mesh: Mesh, text: Mapping[int, str], rank_classes: RankClasses
) -> tuple[str, ...]:
    """The fewest axes whose coordinates, or stretches of them, determine the program."""
    candidates = [a for a in mesh.names if len(mesh.stretches(a, rank_classes)) > 1]
    for k in range(len(candidates) + 1):
        for axes in itertools.combinations(candidates, k):
            by: dict[tuple[Stretch, ...], str] = {}
            if all(
                by.setdefault(
                    tuple(mesh.stretch(a, mesh.coordinates(r)[a], rank_classes) for a in axes), t
                )
                == t
                for r, t in text.items()
            ):
                return axes
    raise CaptureError(
        f"ranks that differ only in {', '.join(rank_classes)} run different programs: record all "
        "of them (ranks='all')"
    )


def _step(
    mesh: Mesh,
    free: Sequence[str],
    lows: Mapping[int, tuple[int, ...]],
    tie: Tie,
    moves: dict[str, list[int]],
) -> dict[str, list[int]]:
    """The step of the box along each axis.

    moves: its steps in other programs, which are added to. Raises CaptureError where it is not
    even.
    """
    base = min(lows)
    start, origin = mesh.coordinates(base), lows[base]
    step: dict[str, list[int]] = {}
    for axis in free:
        for r, low in lows.items():
            c = mesh.coordinates(r)
            if c[axis] == start[axis] + 1 and all(
                c[b] == start[b] for b in mesh.names if b != axis
            ):
                move = [x - y for x, y in zip(low, origin)]
                moves[axis] = move
        if any(moves.get(axis, ())):
            step[axis] = moves[axis]
    for r, low in lows.items():
        c = mesh.coordinates(r)
        want = tuple(
            o + sum(step[a][d] * (c[a] - start[a]) for a in step) for d, o in enumerate(origin)
        )
        if want != tuple(low):
            raise CaptureError(
                f"{tie.role} {tie.tensor!r}: the ranks' parts do not follow each other evenly"
            )
    return step


def _lineage(
    shards: Mapping[tuple[str, str, str], list[tuple[dict[str, Any], Tie, dict[str, list[int]]]]],
    fixed: Sequence[str],
    mesh: Mesh,
) -> list[dict[str, Any]]:
    order = {"input": 0, CUT_POINT: 1, "output": 2}
    lineage: list[dict[str, Any]] = []
    for (role, tensor, _), entries in shards.items():
        guess = next((tie.guess for _, tie, _ in entries if tie.guess), "")
        for group in _entries(entries, fixed):
            lineage.append(
                {
                    "tensor": tensor,
                    "role": role,
                    **({"guess": guess} if guess else {}),
                    "shards": group,
                }
            )
    lineage.sort(key=lambda e: order[e["role"]])
    return lineage


def _entries(
    entries: list[tuple[dict[str, Any], Tie, dict[str, list[int]]]], fixed: Sequence[str]
) -> list[list[dict[str, Any]]]:
    """Shards of one tensor.

    Parts that add up over an axis that distinguishes programs are listed together. A rank's second
    tensor of that name starts a new entry.
    """
    turns: dict[int, list[tuple[dict[str, Any], Tie, dict[str, list[int]]]]] = (
        collections.defaultdict(list)
    )
    count: collections.Counter[str] = collections.Counter()
    for here, tie, step in entries:
        key = json.dumps(here)
        turns[count[key] if tie.role != "output" and not tie.part else 0].append((here, tie, step))
        count[key] += 1
    result = []
    for turn in turns.values():
        groups: dict[str, list[tuple[dict[str, Any], Tie, dict[str, list[int]]]]] = (
            collections.defaultdict(list)
        )
        for here, tie, step in turn:
            summed = [a for a in tie.box.total if a in fixed]
            groups[
                json.dumps(
                    [
                        {a: v for a, v in here.items() if a not in summed},
                        tie.box.low,
                        tie.shape,
                        tie.box.total if summed else tie.local,
                        tie.box.divisor,
                    ],
                    sort_keys=True,
                )
            ].append((here, tie, step))
        shards = []
        for members in groups.values():
            here, tie, step = members[0]
            low = tie.box.low
            shard: dict[str, Any] = {
                "box": [[a, a + n] for a, n in zip(low, tie.shape)],
                "parts": [_part(t, h) for h, t, _ in members],
            }
            if step:
                shard["step"] = step
            free_sum = [
                a
                for a in tie.box.total
                if a not in fixed or any(isinstance(h[a], list) for h, _, _ in members)
            ]
            if free_sum:
                shard["sum"] = free_sum
            shards.append(shard)
        result.append(shards)
    return result


def _part(tie: Tie, here: Mapping[str, Any]) -> dict[str, Any]:
    """A rank's tensor as a part of the model's, divided by what it is a multiple by."""
    return {
        "local": tie.local,
        **({"at": here} if here else {}),
        **({"scale": [1, tie.box.divisor]} if tie.box.divisor != 1 else {}),
    }


def _unused_constants(
    model: Model, programs: list[dict[str, Any]], lineage: list[dict[str, Any]]
) -> None:
    """Constants of the single device that no rank needs are given to all ranks, and so are states
    that no rank has.

    Every input of the model must be somewhere.
    """
    have = {e["tensor"] for e in lineage if e["role"] == "input"}
    for name in (*(name for name, _ in model.constants), *model.unheld):
        if name not in have:
            local = f"{name} of the single device"
            for program in programs:
                program["tensors"] = {**program["tensors"], local: model.json["tensors"][name]}
            parts = [{"local": local, **({"at": p["at"]} if "at" in p else {})} for p in programs]
            lineage.insert(
                0,
                {
                    "tensor": name,
                    "role": "input",
                    "shards": [
                        {"box": [[0, n] for n in model.shapes[name]], "parts": [part]}
                        for part in parts
                    ],
                },
            )


def _check_outputs(model: Model, lineage: Sequence[dict[str, Any]]) -> None:
    """An output or input that one side lacks is an error, not a narrower claim."""
    have = {(e["role"], e["tensor"]) for e in lineage}
    for tensor in model.json["outputs"]:
        if ("output", tensor) not in have:
            raise OnNoRank(tensor)
    read = {name for n in model.json["nodes"] for name in n["in"]}
    for name, t in list(model.json["tensors"].items()):
        if t.get("kind") not in ("input", "parameter") or ("input", name) in have:
            continue
        if is_copy(name) and name not in read and name not in model.json["outputs"]:
            del model.json["tensors"][name]  # weights that parts were cut from, and that stay
            continue
        raise OnNoRank(name, t["kind"])
