# SPDX-License-Identifier: Apache-2.0
"""Which nodes are needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .graph import Graph

COMMUNICATION = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send",
    "recv",
)

WAIT = "wait"  # no operator of the plan: that a message is waited for before what follows


def live(graph: Graph, wanted: Iterable[str], keep: Iterable[int]) -> list[dict[str, Any]]:
    """The nodes that make the wanted tensors, and those of `keep` (indices), in order."""
    needed, kept = set(wanted), set(keep)
    result: list[dict[str, Any]] = []
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        outs = [o if o in needed else None for o in node["out"]]
        if i not in kept and all(o is None for o in outs):
            continue
        needed.update(name for name in node["in"] if name is not None)
        if node["op"] not in COMMUNICATION:
            node = {**node, "out": outs}
        result.append(node)
    result.reverse()
    return result
