# SPDX-License-Identifier: Apache-2.0
"""The program of one side in single assignment: nodes, and their tensors.

Nodes are over the operators of docs/operators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import assumptions
from .values import Filled, Named, Shape, Value

Node = dict[str, Any]

# Operators whose result has only elements of what this rank has, moved or repeated; and those
# that take elements from other ranks, too.
MOVES_HERE = ("view", "permute", "slice", "expand", "cat", "identity")
MOVES = (*MOVES_HERE, "recv", "broadcast", "all_gather")


class Nodes:
    """Nodes and tensors of one side, as the files have them.

    loc: where the program is now, which new nodes get. assumptions, not_compared: what the verdict
    rests on, and what it does not cover, in the order in which it was noted.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tensors: dict[str, dict[str, Any]] = {}
        self.loc = ""
        self.assumptions: dict[assumptions.Assumption, None] = {}
        self.not_compared: dict[assumptions.NotCompared, None] = {}
        self._count = 0
        self._producers: dict[str, Node] = {}
        self._indexed = 0  # nodes that `_producers` has

    def forget(self) -> None:
        """Drops caches: a recording is kept, and sent from process to process."""
        self._producers.clear()
        self._indexed = 0

    def declare(
        self, name: str, shape: Shape, kind: str = "real", role: str | None = None
    ) -> Named:
        """A tensor that no node makes. role: `input`, `parameter` or `constant`.

        Raises ValueError for a name that exists.
        """
        if name in self.tensors:
            raise ValueError(f"{name} is declared twice")
        entry: dict[str, Any] = {"shape": list(shape)}
        if role:
            entry["kind"] = role
        if kind in ("int", "bool"):
            entry["dtype"] = "int64"
        self.tensors[name] = entry
        return Named(name, shape, kind)

    def append(
        self,
        op: str,
        ins: list[str | None],
        shapes: Sequence[Shape | None],
        attrs: dict[str, Any] | None,
        kind: str,
        fields: Mapping[str, Any],
    ) -> tuple[Node, list[Named | None]]:
        """Enters a node; the node and its results. A shape None is a result that is not wanted."""
        results: list[Named | None] = []
        node: Node = {"op": op, "in": ins, "out": []}
        for shape in shapes:
            if shape is None:
                results.append(None)
                node["out"].append(None)
                continue
            name = f"%{self._count}"
            self._count += 1
            self.tensors[name] = {"shape": [int(n) for n in shape]}
            results.append(Named(name, shape, kind, node))
            node["out"].append(name)
        if attrs:
            node["attrs"] = attrs
        if self.loc:
            node["loc"] = self.loc
        node.update(fields)
        self.nodes.append(node)
        return node, results

    def take_back(self, first: int, which: Callable[[Node], bool]) -> None:
        """Removes nodes from that one on, of which nothing is read any more."""
        self.producer("")  # all are indexed
        self.nodes[first:] = [n for n in self.nodes[first:] if not which(n)]
        self._indexed = len(self.nodes)

    def producer(self, name: str) -> Node | None:
        """The node that makes a tensor; None for an input, a parameter or a constant."""
        for node in self.nodes[self._indexed :]:
            for out in node["out"]:
                if out is not None:
                    self._producers[out] = node
        self._indexed = len(self.nodes)
        return self._producers.get(name)

    def value_of(self, name: str, kind: str) -> Value:
        """A tensor as a value; a constant of one number as that."""
        entry = self.tensors[name]
        if entry.get("kind") == "constant" and not isinstance(entry["value"], list):
            return Filled(entry["value"], entry["shape"], kind)
        return Named(name, entry["shape"], kind, self.producer(name))

    def assume(self, assumption: assumptions.Assumption) -> None:
        """Notes what the verdict will rest on beside the theorem."""
        self.assumptions[assumption] = None

    def leave_out(self, what: str, because: str) -> None:
        """Notes what the verdict will not cover."""
        self.not_compared[assumptions.NotCompared(what, because)] = None
