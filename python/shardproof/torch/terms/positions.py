# SPDX-License-Identifier: Apache-2.0
"""Where tensors that only move elements of one input have each element from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .nodes import MOVES_HERE
from .values import Shape

MOST_POSITIONS = 1 << 22  # elements of a tensor whose positions are followed


def moved(node: Mapping[str, Any], operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result of a node of MOVES_HERE for these tensors as its operands."""
    t, attrs = operands[0], node.get("attrs", {})
    if node["op"] == "cat":
        return torch.cat(list(operands), attrs["dim"])
    if node["op"] == "slice":
        return t[
            (slice(None),) * (attrs["dim"] % t.dim())
            + (slice(attrs.get("start", 0), attrs.get("stop"), attrs.get("step", 1)),)
        ]
    if node["op"] == "permute":
        return t.permute(attrs["dims"])
    if node["op"] == "identity":
        return t
    return t.reshape(attrs["size"]) if node["op"] == "view" else t.expand(attrs["size"])


class Positions:
    """The positions of elements in one input, for tensors that only move elements.

    inputs: by tensor, the input of which it is a part, where that begins, and its shape. wholes:
    shapes of the inputs.
    """

    def __init__(
        self,
        nodes: Sequence[Mapping[str, Any]],
        inputs: Mapping[str, tuple[str, Shape, Shape]],
        wholes: Mapping[str, Shape],
    ) -> None:
        self.producers = {n["out"][0]: n for n in nodes if n["op"] in MOVES_HERE}
        self.inputs, self.wholes = inputs, wholes
        self.known: dict[str, tuple[str, torch.Tensor] | None] = {}

    def of(self, name: str) -> tuple[str, torch.Tensor] | None:
        todo = [name]
        while todo:
            at = todo[-1]
            node = self.producers.get(at)
            missing = (
                [n for n in node["in"] if n not in self.known]
                if node is not None and at not in self.known
                else []
            )
            if missing:
                todo += missing
                continue
            if at not in self.known:
                self.known[at] = (
                    self._given(at)
                    if node is None
                    else self._moved(node, [self.known[n] for n in node["in"]])
                )
            todo.pop()
        return self.known[name]

    def _given(self, name: str) -> tuple[str, torch.Tensor] | None:
        source, low, part = self.inputs.get(name, ("", (), ()))
        if not source or math.prod(self.wholes[source]) > MOST_POSITIONS:
            return None
        whole = torch.arange(math.prod(self.wholes[source])).view(self.wholes[source])
        return source, whole[tuple(slice(a, a + n) for a, n in zip(low, part))]

    def _moved(
        self, node: Mapping[str, Any], operands: list[tuple[str, torch.Tensor] | None]
    ) -> tuple[str, torch.Tensor] | None:
        known = [o for o in operands if o is not None]
        if len(known) < len(operands) or len({source for source, _ in known}) != 1:
            return None
        if (
            math.prod(node.get("attrs", {}).get("size", ())) > MOST_POSITIONS
            or sum(o.numel() for _, o in known) > MOST_POSITIONS
        ):
            return None
        return known[0][0], moved(node, [o for _, o in known])
