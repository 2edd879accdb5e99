# SPDX-License-Identifier: Apache-2.0
"""Programs that are affine in the coordinate of an axis become one program.

They differ only in numbers that grow evenly with the coordinate (windows of a vocabulary), which
become a `step` of attributes. So does their lineage. `between` derives programs from some of them.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..distributed.mesh import Mesh
from .rank_program import Program, Tie, text_of

FEWEST = 3  # coordinates: two numbers always follow each other evenly


def joined(
    mesh: Mesh, programs: list[dict[str, Any]], lineage: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same plan with as few programs as possible: along each axis all of them are joined, or
    none.
    """
    for axis in mesh.names:
        made = _joined_along(mesh, axis, programs)
        if made is not None:
            programs, lineage = (
                made,
                [{**e, "shards": _shards(axis, mesh.sizes[axis], e["shards"])} for e in lineage],
            )
    return programs, lineage


def between(size: int, known: Mapping[int, Program]) -> dict[int, Program] | None:
    """The programs of the other coordinates of an axis; None where the known ones are not affine.

    The first and the last coordinate are among the known ones.
    """
    at = sorted(known)
    programs = [known[k] for k in at]
    first = programs[0]
    if len(at) < FEWEST or any(
        (p.tensors, p.waits, p.skipped, p.guessed, p.own_constants, len(p.nodes), len(p.ties))
        != (
            first.tensors,
            first.waits,
            first.skipped,
            first.guessed,
            first.own_constants,
            len(first.nodes),
            len(first.ties),
        )
        for p in programs
    ):
        return None
    steps = [_steps_of(same, at) for same in zip(*[p.nodes for p in programs])]
    lows = [_lows(same, at) for same in zip(*[p.ties for p in programs])]
    if any(s is None for s in steps) or any(by is None for by in lows):
        return None
    made = {}
    for k in range(size):
        if k not in known:
            nodes = [
                {
                    **n,
                    "attrs": {
                        **n["attrs"],
                        **{key: _moved(n["attrs"][key], by, k) for key, by in step.items()},
                    },
                }
                if step
                else n
                for n, step in zip(first.nodes, steps)
            ]
            ties = [
                dataclasses.replace(
                    t, box=dataclasses.replace(t.box, low=tuple(_moved(list(t.box.low), by, k)))
                )
                if by and any(by)
                else t
                for t, by in zip(first.ties, lows)
            ]
            made[k] = dataclasses.replace(
                first, text=text_of(first.tensors, nodes, first.waits, ties), nodes=nodes, ties=ties
            )
    return made


def _lows(ties: Sequence[Tie], at: Sequence[int]) -> list[int] | None:
    """The step of a tie's box; None where it is not even, or more than the box differs."""
    first = ties[0]
    if any(
        dataclasses.replace(t, box=dataclasses.replace(t.box, low=first.box.low)) != first
        for t in ties
    ):
        return None
    by: list[int] | None = _evenly([list(t.box.low) for t in ties], at)
    return by


def _moved(start: Any, by: Any, times: int) -> Any:
    return (
        [_moved(a, b, times) for a, b in zip(start, by)]
        if isinstance(start, list)
        else start + times * by
    )


def _joined_along(
    mesh: Mesh, axis: str, programs: Sequence[dict[str, Any]]
) -> list[dict[str, Any]] | None:
    if mesh.sizes[axis] < FEWEST or not all(
        isinstance(p.get("at", {}).get(axis), int) for p in programs
    ):
        return None
    groups: dict[str, dict[int, dict[str, Any]]] = collections.defaultdict(dict)
    for p in programs:
        groups[json.dumps(_without(p["at"], axis), sort_keys=True)][p["at"][axis]] = p
    made = []
    for group in groups.values():
        program = (
            _moving(axis, [group[k] for k in sorted(group)])
            if len(group) == mesh.sizes[axis]
            else None
        )
        if program is None:
            return None
        made.append(program)
    return made


def _without(at: Mapping[str, Any], axis: str) -> dict[str, Any]:
    return {a: c for a, c in at.items() if a != axis}


def _moving(axis: str, programs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """One program for those of coordinates 0, 1, ... of an axis."""
    first = programs[0]
    if any(
        _beside(p) != _beside(first) or len(p["nodes"]) != len(first["nodes"]) for p in programs
    ):
        return None
    nodes = []
    for same in zip(*[p["nodes"] for p in programs]):
        step = _steps_of(same, range(len(same)))
        if step is None:
            return None
        nodes.append(
            {**same[0], "step": {**same[0].get("step", {}), axis: step}} if step else same[0]
        )
    at = _without(first["at"], axis)
    return {
        **({"at": at} if at else {}),
        **{k: v for k, v in first.items() if k != "at"},
        "nodes": nodes,
    }


def _beside(program: Mapping[str, Any]) -> dict[str, Any]:
    """All of it but its ranks and nodes."""
    return {k: v for k, v in program.items() if k not in ("at", "nodes")}


def _steps_of(nodes: Sequence[dict[str, Any]], at: Sequence[int]) -> dict[str, Any] | None:
    """What each coordinate adds to the attributes of a node.

    nodes: the node at some coordinates, the first of them 0. Empty where all are equal; None where
    they differ otherwise.
    """
    first = nodes[0]
    if all(n == first for n in nodes):
        return {}
    if (
        "comm" in first
        or first["op"].startswith("dropout")
        or any(
            _without(n, "attrs") != _without(first, "attrs")
            or n.get("attrs", {}).keys() != first.get("attrs", {}).keys()
            for n in nodes
        )
    ):
        return None
    step = {}
    for key, start in first.get("attrs", {}).items():
        values = [n["attrs"][key] for n in nodes]
        if all(v == start and type(v) is type(start) for v in values):
            continue
        by = _evenly(values, at)
        if by is None:
            return None
        step[key] = by
    return step


def _evenly(values: Sequence[Any], at: Sequence[int]) -> Any:
    """The step of a whole number, or of each of a list of them, from one coordinate to the next.

    at: the values' coordinates, of which the first is 0. None where the step is not the same for
    all.
    """
    if all(type(v) is int for v in values):
        by, odd = divmod(values[1] - values[0], at[1])
        return by if not odd and all(v == values[0] + k * by for k, v in zip(at, values)) else None
    if all(type(v) is list and len(v) == len(values[0]) for v in values):
        each = [_evenly(numbers, at) for numbers in zip(*values)]
        return None if None in each else each
    return None


def _shards(axis: str, size: int, shards: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lineage of all coordinates of an axis that no program names, stated once.

    What is not even stays unchanged: it may still name single coordinates.
    """
    groups: dict[str, list[tuple[int, dict[str, Any]]]] = collections.defaultdict(list)
    made: dict[str, list[dict[str, Any]]] = {}  # in the order of the first ones
    for shard in shards:
        named = [p.get("at", {}).get(axis) for p in shard["parts"]]
        parts = [
            {**_without(p, "at"), **({"at": at} if (at := _without(p.get("at", {}), axis)) else {})}
            for p in shard["parts"]
        ]
        key = json.dumps(
            [parts, [b - a for a, b in shard["box"]], shard.get("step", {}), shard.get("sum", [])],
            sort_keys=True,
        )
        if None in named or len(set(named)) != 1:
            made.setdefault(f"{len(made)} alone", []).append(
                _summed(axis, size, shard, named, parts)
            )
            continue
        groups[key].append((named[0], {**shard, "parts": parts}))
        made.setdefault(key, []).append(shard)
    for key, group in groups.items():
        group.sort(key=lambda entry: entry[0])
        by = (
            _evenly([[a for a, _ in shard["box"]] for _, shard in group], range(len(group)))
            if len(group) > 1
            else None
        )
        if [k for k, _ in group] == list(range(size)) and by is not None:
            _, first = group[0]
            made[key] = [
                {**first, "step": {**first.get("step", {}), axis: by}} if any(by) else first
            ]
    return [shard for found in made.values() for shard in found]


def _summed(
    axis: str,
    size: int,
    shard: dict[str, Any],
    named: Sequence[Any],
    parts: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """A shard whose parts name each coordinate once, for each of its tensors, as a sum over the
    axis.
    """
    coordinates: dict[str, list[int]] = collections.defaultdict(list)
    for k, part in zip(named, parts):
        coordinates[json.dumps(part, sort_keys=True)].append(k)
    if any(None in ks or sorted(ks) != list(range(size)) for ks in coordinates.values()):
        return shard
    return {
        **shard,
        "parts": [json.loads(part) for part in coordinates],
        "sum": [*shard.get("sum", []), axis],
    }


__all__ = ["FEWEST", "between", "joined"]
