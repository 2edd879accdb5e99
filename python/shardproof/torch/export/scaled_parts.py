# SPDX-License-Identifier: Apache-2.0
"""Multiples that lineage states of local tensors, as nodes of the programs.

The format allows neither such parts beside stretches of an axis nor in asynchronous programs. There
a node divides the tensor, and what reads it reads the quotient times the divisor: the number is the
same, and the proof goes through the cut point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..step.tracked_tensors import CUT_POINT

Json = dict[str, Any]


def in_programs(programs: Sequence[Json], lineage: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    """The same without scales in lineage. Cut points that are in flight are left out."""
    made = [{**p, "tensors": dict(p["tensors"]), "nodes": list(p["nodes"])} for p in programs]
    kept = []
    for entry in lineage:
        shards = [{**s, "parts": [dict(part) for part in s["parts"]]} for s in entry["shards"]]
        parts = [part for s in shards for part in s["parts"] if "scale" in part]
        if entry["role"] == CUT_POINT and any(
            _in_flight(p, part["local"]) for part in parts for p in made if _meet(p, part)
        ):
            continue
        for part in parts:
            local, divisor = part["local"], part.pop("scale")[1]
            part["local"] = f"{local} / {divisor}"
            for program in made:
                if _meet(program, part):
                    _divide(program, local, part["local"], divisor)
        kept.append({**entry, "shards": shards})
    return made, kept


def _meet(program: Json, part: Json) -> bool:
    """Whether some rank runs the program and has the part."""
    there: Mapping[str, Any] = part.get("at", {})
    both = [(_ends(c), _ends(there[a])) for a, c in program.get("at", {}).items() if a in there]
    return all(low < end and begin < high for (low, high), (begin, end) in both)


def _ends(c: Any) -> tuple[int, int]:
    return (c[0], c[1]) if isinstance(c, list) else (c, c + 1)


def _producer(program: Json, local: str) -> int | None:
    return next((i for i, n in enumerate(program["nodes"]) if local in n["out"]), None)


def _in_flight(program: Json, local: str) -> bool:
    at = _producer(program, local)
    return at is not None and "handle" in program["nodes"][at]


def _divide(program: Json, local: str, quotient: str, divisor: int) -> None:
    if quotient in program["tensors"] or local not in program["tensors"]:
        return
    like = {k: v for k, v in program["tensors"][local].items() if k in ("shape", "dtype")}
    program["tensors"][quotient] = like
    node = {"op": "div", "in": [local], "out": [quotient], "attrs": {"scalar": divisor}}
    nodes, at = program["nodes"], _producer(program, local)
    if at is not None and "handle" in nodes[at]:  # an output: read when all is done
        handle = nodes[at]["handle"]
        waits = program.get("waits", [])
        if handle in waits:
            program["waits"] = [h for h in waits if h != handle]
            node["waits"] = [handle]
        nodes.append(node)
        return
    restored = f"{quotient} restored"
    after = 0 if at is None else at + 1
    readers = [
        n if i < after else {**n, "in": _instead(n["in"], local, restored)}
        for i, n in enumerate(nodes)
    ]
    added = [node]
    if readers != nodes:
        program["tensors"][restored] = like
        added.append(
            {"op": "mul", "in": [quotient], "out": [restored], "attrs": {"scalar": divisor}}
        )
    program["nodes"] = [*readers[:after], *added, *readers[after:]]


def _instead(names: Sequence[Any], local: str, other: str) -> list[Any]:
    return [other if name == local else name for name in names]
