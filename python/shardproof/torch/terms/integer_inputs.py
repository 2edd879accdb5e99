# SPDX-License-Identifier: Apache-2.0
"""Integer inputs (tokens, labels, positions): which values they may have, and how they are used."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ..compat.private import outside
from .nodes import MOVES, Nodes
from .values import Filled, Known, Named, Value


@dataclasses.dataclass
class IntegerOrigins:
    """What a tensor of integers is a rearrangement of.

    origins: inputs and results of choices. least, most: the range of the constants among it.
    """

    origins: dict[str, None] = dataclasses.field(default_factory=dict)
    least: int = 0
    most: int = -1

    def add(self, constants: torch.Tensor) -> None:
        self.least, self.most = (
            min(self.least, int(constants.min())),
            max(self.most, int(constants.max())),
        )


class IntegerInputs:
    """The integer inputs of one side, by name.

    classes: those whose range is known from the single device: 0 up to so many.
    chosen_from: those that chose among so many rows or classes here.
    ranges: those that `world.input` limits to numbers below so many.
    observed: those of whose range but this is known, that all that were read are in it.
    negative: those of which some that were read are below zero.
    permutations: those that are random permutations of all numbers below their length.
    tabulated: those whose range was needed. indexing: those that index a table, so that no element
    is ignored. bounded: those that are compared with a number above 0.
    ignorable: those that are classes or this number (labels.py).
    labelled: those that met a number which ignores them -> labels.Met.
    label_names: who names that number in the loss that runs (labels.Names), or None.
    """

    def __init__(self, nodes: Nodes, constants: Sequence[tuple[str, torch.Tensor]]) -> None:
        """constants: names and numbers of constant tensors that are declared as inputs."""
        self._nodes, self._constants = nodes, constants
        self.classes: dict[str, int] = {}
        self.chosen_from: dict[str, int] = {}
        self.ranges: dict[str, int] = {}
        self.observed: set[str] = set()
        self.negative: set[str] = set()
        self.permutations: set[str] = set()
        self.tabulated: set[str] = set()
        self.indexing: set[str] = set()
        self.bounded: set[str] = set()
        self.ignorable: dict[str, int] = {}
        self.labelled: dict[str, Any] = {}
        self.label_names: Any = None

    def limits(self) -> dict[str, int]:
        """What inputs are below, by what limits them or chooses by them: the least."""
        known = self.ranges, self.chosen_from
        names = dict.fromkeys(n for found in known for n in found)
        return {n: min(found[n] for found in known if n in found) for n in names}

    def below(self, v: Value) -> tuple[int | None, bool]:
        """What integers are below, where none is below zero, and whether the program limits them
        so: constants are but those of this run.
        """
        if isinstance(v, Filled):
            return (int(v.fill) + 1 if v.fill >= 0 else None), False
        if isinstance(v, Known):
            with outside():
                least, most = int(v.data.min()), int(v.data.max())
            return (most + 1 if least >= 0 else None), False
        origins = self.origins_of(v) if isinstance(v, Named) else None
        if origins is None or origins.least < 0:
            return None, False
        limits = [self.ranges.get(name) for name in origins.origins]
        known = [n for n in limits if n is not None]
        if not known or len(known) < len(limits):
            return None, False
        return max(origins.most + 1, *known), origins.most < 0

    def origins_of(self, v: Named) -> IntegerOrigins | None:
        """The inputs, choices and constants of which a tensor of integers is a rearrangement, or
        None.
        """
        found = IntegerOrigins()
        todo, seen = [v.name], {v.name}
        while todo:
            name = todo.pop()
            entry, node = self._nodes.tensors[name], self._nodes.producer(name)
            if entry.get("kind") == "constant":
                found.add(torch.tensor(entry["value"]))
            elif name.startswith("%known.") and entry.get("kind") == "input":
                found.add(next(data for known, data in self._constants if known == name))
            elif entry.get("kind") == "input" or node is not None and node["op"] == "moe_gate":
                found.origins[name] = None
            elif (
                "kind" in entry
                or node is None
                or node["op"] not in MOVES
                or not node["in"]
                or None in node["in"]
            ):
                return None
            else:
                todo += [n for n in node["in"] if n not in seen]
                seen.update(node["in"])
        return found
