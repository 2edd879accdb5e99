# SPDX-License-Identifier: Apache-2.0
"""What each rank of a group has alike, and an all-reduce adds up with the ranks' parts: it counts
as often as there are ranks.

Two mistakes of tensor parallelism by hand: a bias that each rank adds to its part of a sum, and
parameters that each rank has whole in a norm of all gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..export.model_file import Model
from ..step.tracked_tensors import CUT_POINT
from ..terms.assumptions import listed
from ..terms.values import Named, numel
from ..trace.recording import NotKept, Recording

_SAME_ELEMENTS = ("view", "permute", "identity", "expand")
_SUMS = ("add", "sum", "cat", "view", "identity")
MOST_SIDES = 4  # that are looked at


def summed_copies(sides: Sequence[Recording], model: Model) -> str:
    """The sentence on the first such sum; empty where there is none, or not on all ranks."""
    found = []
    for side in sides[:MOST_SIDES]:
        try:
            found.append(_of_side(side.whole(), model))
        except NotKept:
            continue
    return found[0] if found and all(found) else ""


def _of_side(side: Recording, model: Model) -> str:
    sums = [
        n
        for n in side.graph.nodes[side.started :]
        if n["op"] in ("all_reduce", "reduce_scatter") and n["attrs"].get("reduce") == "sum"
    ]
    if not sums:
        return ""
    program = _Program(side, model)
    for node in sums:
        times = math.prod(side.mesh.sizes[a] for a in node.get("group", ()))
        if times > 1:
            text = program.bias(node, times) or program.norm(node, times)
            if text:
                return text
    return ""


class _Program:
    """Of one rank: its parameters, of which it has the `wholes` whole and parts of others."""

    def __init__(self, side: Recording, model: Model) -> None:
        self.g = side.graph
        self.gradients: dict[str, str] = {}
        parameters: dict[str, str] = {}
        for t in side.tracked:
            name = t.placement.parameter
            if not name or not isinstance(t.value, Named) or name not in model.shapes:
                continue
            if t.role == "input" and t.name == name:
                parameters[t.value.name] = name
            elif t.role == CUT_POINT and ".grad" in t.name:
                self.gradients[t.value.name] = name
        self.parameters: Mapping[str, str] = parameters
        shapes = {name: tuple(self.g.tensors[local]["shape"]) for local, name in parameters.items()}
        self.wholes = {name for name, shape in shapes.items() if shape == model.shapes[name]}

    def bias(self, node: Mapping[str, Any], times: int) -> str:
        """Ranks multiply by their parts of a weight, and each adds all of a bias."""
        total = self._made(node["in"][0])
        if total is None or total["op"] != "add" or len(total["in"]) != 2:
            return ""
        for one, other in (total["in"], total["in"][::-1]):
            bias = self.parameters.get(self._behind(one), "")
            product = self._made(other)
            if bias not in self.wholes or product is None or product["op"] != "matmul":
                continue
            weights = {self.parameters.get(self._behind(x), "") for x in product["in"]} - {""}
            if weights and weights.isdisjoint(self.wholes):
                return (
                    f"each of {times} ranks adds all of {bias} to its part of a sum, and the "
                    f"{_place(node)} adds the parts up: the bias counts {times} times. It is to be "
                    "added once, after that"
                )
        return ""

    def norm(self, node: Mapping[str, Any], times: int) -> str:
        """Ranks add up squares of their parts of gradients, and of gradients that each has."""
        if numel(tuple(self.g.tensors[node["in"][0]]["shape"])) != 1:
            return ""
        of = {self.gradients.get(x, "") for x in self._squared(node["in"][0])} - {""}
        whole = [name for name in of if name in self.wholes]
        if not whole or len(whole) == len(of):
            return ""
        return (
            f"each of {times} ranks adds the squares of all of the gradients of "
            f"{listed(sorted(whole))} to those of its parts of others, and the {_place(node)} "
            f"adds up what they have: in this norm what all ranks have alike counts "
            f"{times} times"
        )

    def _squared(self, name: str) -> Iterable[str]:
        """What a sum of squares is made of."""
        todo, seen = [name], {name}
        while todo:
            node = self.g.producer(todo.pop())
            if node is None:
                continue
            operands = [x for x in node["in"] if x is not None]
            square = node["op"] == "square" or (
                node["op"] == "pow" and node["attrs"].get("scalar") == 2
            )
            if square or node["op"] == "mul" and len(operands) == 2 == operands.count(operands[0]):
                yield from (operands[0], self._behind(operands[0]))
            elif node["op"] in _SUMS:
                new = [x for x in operands if x not in seen]
                seen.update(new)
                todo += new

    def _behind(self, name: str) -> str:
        """What has the same elements in another shape."""
        while (node := self.g.producer(name)) is not None and node["op"] in _SAME_ELEMENTS:
            name = node["in"][0]
        return name

    def _made(self, name: str) -> Mapping[str, Any] | None:
        return self.g.producer(self._behind(name))


def _place(node: Mapping[str, Any]) -> str:
    return f"{node['op']} at {line_of(node.get('loc', ''))}"


def line_of(loc: str) -> str:
    """FILE:LINE of a place, which may begin with a module."""
    return next((word for word in loc.split() if ":" in word), loc)


__all__ = ["line_of", "summed_copies"]
