# SPDX-License-Identifier: Apache-2.0
"""Operators of which nothing is known but that they are functions: equal arguments, equal results.

The results of such a call are inputs of both sides, the same on a rank as on the single device.
This rests on equal arguments, so the arguments become outputs: the verifier has to prove that the
rank's are those of the single device. For a function of each element (or of each matrix) it proves
that for the part at the result's place. Calls are taken in the order of the program: a call's
arguments are computed of results of earlier calls, which are equal by then.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..terms.graph import Graph
from ..terms.liveness import live
from ..terms.values import Named, Shape, Value, kind_of


def argument(label: str, i: int) -> str:
    return f"argument {i} of {label}"


def result(label: str, i: int) -> str:
    return f"%{label}.{i}"


@dataclasses.dataclass
class Call:
    """One call.

    function: the operator with all arguments that are no tensors. lead: so many dimensions in
    front, of all arguments and results, are independent: each position of the results is a function
    of the same position of the arguments (0: a function of all).
    """

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
        if all(len(v.shape) == self.lead for v in (*self.operands, *self.results)):
            return "each element"
        plural = "s" if self.lead > 1 else ""
        return f"each position of the first {self.lead} dimension{plural} of its arguments"

    def arguments(self) -> dict[str, Named]:
        return {argument(self.label, i): v for i, v in enumerate(self.operands)}


class Calls:
    """The opaque calls of one side."""

    def __init__(self, g: Graph) -> None:
        self.g = g
        self.made: list[Call] = []
        self.factors: dict[str, Value] = {}  # results that are factors of a matrix, and the matrix
        self._count: collections.Counter[str] = collections.Counter()
        self._before: dict[tuple[str, tuple[str, ...]], Call] = {}

    def call(
        self,
        function: str,
        name: str,
        path: str,
        operands: Sequence[Value],
        outs: Sequence[Any],
        lead: int,
    ) -> list[Value | None]:
        """The results, for tensors `outs`.

        Raises Poisoned and Unsupported for operands that are no tensors of the graph.
        """
        given = [self.g.named(v) for v in operands]
        key = (function, tuple(v.name for v in given))
        if key not in self._before:
            where = f"{name}{' of ' + path if path else ''}"
            label = f"{where}.{self._count[where]}"
            self._count[where] += 1
            results = [
                self.g.declare(
                    result(label, i),
                    tuple(t.shape),
                    "int" if kind_of(t.dtype) in ("int", "bool") else "real",
                    "input",
                )
                for i, t in enumerate(outs)
            ]
            self._before[key] = Call(function, self.g.loc, label, given, results, lead)
            self.made.append(self._before[key])
            self.g.definedness.opaque.update(v.name for v in results)
            for names in (
                self.g.definedness.hiding,
                self.g.definedness.closed,
                self.g.definedness.masked_by_data,
                self.g.definedness.brought,
            ):
                if any(v.name in names for v in given):
                    names.update(v.name for v in results)
        return list(self._before[key].results)


def followed(
    g: Graph, calls: Sequence[Call], wanted: Sequence[str], keep: Sequence[int]
) -> tuple[list[dict[str, Any]], list[Call]]:
    """The nodes that make what is wanted and the arguments of the calls that this needs; these
    calls.
    """
    needed: list[Call] = []
    while True:
        names = [*wanted, *(v.name for c in needed for v in c.operands)]
        nodes = live(g, names, keep)
        used = {*names, *(n for node in nodes for n in node["in"])}
        more = [c for c in calls if c not in needed and any(r.name in used for r in c.results)]
        if not more:
            return nodes, needed
        needed += more


class Ancestors:
    """The nearest tensors that both sides have, of which a tensor is computed.

    shared: tensors of one side, and their names on both.
    """

    def __init__(self, nodes: Sequence[Mapping[str, Any]], shared: Mapping[str, str]) -> None:
        self.producers = {name: n for n in nodes for name in n["out"]}
        self.shared = dict(shared)
        self.known: dict[str, frozenset[str]] = {}

    def of(self, name: str) -> frozenset[str]:
        todo = [name]
        while todo:
            at = todo[-1]
            operands = (
                [n for n in self.producers[at]["in"] if n is not None]
                if at in self.producers and at not in self.shared
                else []
            )
            missing = [n for n in operands if n not in self.known]
            if missing:
                todo += missing
                continue
            self.known[at] = frozenset(
                {self.shared[at]}
                if at in self.shared
                else set().union(*(self.known[n] for n in operands))
            )
            todo.pop()
        return self.known[name]


@dataclasses.dataclass
class CalledThere:
    """A call on the single device: its arguments, and their shapes."""

    function: str
    arguments: list[str]
    shapes: list[Shape]


def matched(
    calls: Sequence[Call], theirs: Mapping[str, CalledThere], ours: Ancestors, models: Ancestors
) -> dict[str, str | None]:
    """The call of the single device for each call of a rank, by labels; None: there is none left.

    A rank may make some of the calls only (for parameters that it owns). Its call is then the same
    function of arguments of the same shapes that are computed of the same tensors. A wrong pair has
    arguments that nobody can prove equal.
    """

    def fits(c: Call, label: str) -> bool:
        return (
            label in theirs
            and theirs[label].function == c.function
            and (c.lead > 0 or theirs[label].shapes == [v.shape for v in c.operands])
        )

    if len(calls) == len(theirs) and all(fits(c, c.label) for c in calls):
        return {c.label: c.label for c in calls}
    found: dict[str, str | None] = {}
    for c in calls:
        left = [label for label in theirs if fits(c, label) and label not in found.values()]
        of = [ours.of(v.name) for v in c.operands]
        same = [
            label for label in left if [models.of(name) for name in theirs[label].arguments] == of
        ]
        chosen = next(
            (c.label if c.label in labels else labels[0] for labels in (same, left) if labels), None
        )
        if chosen is None and theirs.get(c.label, CalledThere("", [], [])).function == c.function:
            chosen = c.label  # of other shapes, which is reported where it is tied
        found[c.label] = chosen
        ours.shared.update(
            {r.name: result(chosen, i) for i, r in enumerate(c.results) if chosen is not None}
        )
    return found
