"""Operators of which nothing is known but that they are functions: equal arguments give equal results.

The results of such a call are inputs of both sides, the same on a rank as on the single device. That they are is what it rests on, so the call's arguments become outputs: the verifier has to prove
that the rank's are those of the single device, whole, or, for a function of each element (or of each matrix) by itself, the part where the result's lies. Calls are taken in the order of the program: what a call's arguments are computed of are results of earlier calls, which are equal by then.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, Sequence

from .graph import Graph
from .model_live import live
from .values import Named, Value, kind_of


@dataclasses.dataclass
class Call:
    """One call. function: the operator with all that is no tensor; lead: so many dimensions in front, of all arguments and results alike, are taken one position by itself: what lies there in the results is
    a function of what lies there in the arguments (0: a function of all)."""

    function: str
    loc: str
    label: str
    operands: list[Named]
    results: list[Named]
    lead: int

    def of(self) -> str:
        """Of what it is a function."""
        if not self.lead:
            return "its whole arguments"
        return "each element" if all(len(v.shape) == self.lead for v in (*self.operands, *self.results)) else f"each position of the first {self.lead} dimension{'s' if self.lead > 1 else ''} of its arguments"

    def arguments(self) -> dict[str, Named]:
        return {f"argument {i} of {self.label}": v for i, v in enumerate(self.operands)}


class Calls:
    """The opaque calls of one side."""

    def __init__(self, g: Graph) -> None:
        self.g = g
        self.made: list[Call] = []
        self.factors: dict[str, Value] = {}  # results that are factors of a matrix, and the matrix
        self._count: collections.Counter[str] = collections.Counter()
        self._before: dict[tuple[str, tuple[str, ...]], Call] = {}

    def call(self, function: str, name: str, path: str, operands: Sequence[Value], outs: Sequence[Any], lead: int) -> list[Value | None]:
        """The results, for tensors `outs`. Raises Poisoned and Unsupported for operands that are no tensors of the graph."""
        given = [self.g.named(v) for v in operands]
        key = (function, tuple(v.name for v in given))
        if key not in self._before:
            where = f"{name}{' of ' + path if path else ''}"
            label = f"{where}.{self._count[where]}"
            self._count[where] += 1
            results = [self.g.declare(f"%{label}.{i}", tuple(t.shape), "int" if kind_of(t.dtype) in ("int", "bool") else "real", "input") for i, t in enumerate(outs)]
            self._before[key] = Call(function, self.g.loc, label, given, results, lead)
            self.made.append(self._before[key])
            self.g.opaque.update(v.name for v in results)
            for names in (self.g.hiding, self.g.closed, self.g.masked_by_data, self.g.brought):
                if any(v.name in names for v in given):
                    names.update(v.name for v in results)
        return list(self._before[key].results)


def followed(g: Graph, calls: Sequence[Call], wanted: Sequence[str], keep: Sequence[int]) -> tuple[list[dict[str, Any]], list[Call]]:
    """The nodes that make what is wanted and the arguments of the calls that this needs; these calls."""
    needed: list[Call] = []
    while True:
        names = [*wanted, *(v.name for c in needed for v in c.operands)]
        nodes = live(g, names, keep)
        used = {*names, *(n for node in nodes for n in node["in"])}
        more = [c for c in calls if c not in needed and any(r.name in used for r in c.results)]
        if not more:
            return nodes, needed
        needed += more
