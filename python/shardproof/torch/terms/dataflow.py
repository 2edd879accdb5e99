# SPDX-License-Identifier: Apache-2.0
"""How values are computed across ranks: what was reduced, and what ranks share.

All of it is what nodes show; where they do not, nothing is concluded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from .nodes import MOVES, Nodes
from .values import Named, Value


def ancestors(g: Nodes, names: Iterable[str]) -> set[str]:
    """These values, and what they are computed of."""
    todo = list(names)
    found = set(todo)
    while todo:
        node = g.producer(todo.pop())
        new = [x for x in node["in"] if x is not None and x not in found] if node else []
        found.update(new)
        todo += new
    return found


def reduced_over(g: Nodes, v: Value) -> set[str]:
    """The mesh axes over which the value was summed already, seen through moves and factors."""
    name = v.name if isinstance(v, Named) else ""
    while name in g.tensors:
        node = g.producer(name)
        if node is None or not node["in"]:
            break
        if node["op"] in ("all_reduce", "reduce_scatter"):
            return set(node.get("group", ()))
        operands = [n for n in node["in"] if n is not None]
        if node["op"] == "add":  # a bias is added to the sum
            operands = [n for n in operands if not _is_given(g, n)]
        elif node["op"] not in MOVES and not (
            node["op"] in ("mul", "div", "neg") and len(node["in"]) == 1
        ):
            break
        if not operands or node["op"] == "add" and len(operands) > 1:
            break
        name = operands[0]
    return set()


def _is_given(g: Nodes, name: str) -> bool:
    """Whether it is an input of the program, or a view of one."""
    node = g.producer(name)
    while node is not None and node["op"] in MOVES and len(node["in"]) == 1:
        name = node["in"][0]
        node = g.producer(name)
    return node is None


def shared_over(g: Nodes, v: Value) -> tuple[str, ...]:
    """The mesh axes whose ranks all have the value: behind an all_gather or all_reduce."""
    found: dict[str, None] = {}
    node = g.producer(v.name) if isinstance(v, Named) else None
    while node is not None and node["in"] and node["in"][0] is not None:
        if node["op"] in ("all_gather", "all_reduce"):
            found.update(dict.fromkeys(node.get("group", ())))
        elif node["op"] not in MOVES and not (
            node["op"] in ("mul", "div", "neg") and len(node["in"]) == 1
        ):
            break
        if node["op"] == "cat" and len(node["in"]) > 1 or node["op"] == "recv":
            break
        node = g.producer(node["in"][0])
    return tuple(found)


def reduced_last(g: Nodes, values: Iterable[Value], sizes: Mapping[str, int]) -> set[str]:
    """The mesh axes over which one of the values was summed last and not divided by their ranks."""
    found: set[str] = set()
    for v in values:
        name, factor = v.name if isinstance(v, Named) else "", Fraction(1)
        node = g.producer(name)
        while (
            node is not None
            and node["in"]
            and node["in"][0] is not None
            and (node["op"] in MOVES or node["op"] in ("mul", "div") and len(node["in"]) == 1)
        ):
            by = Fraction(node["attrs"]["scalar"]) if node["op"] in ("mul", "div") else Fraction(1)
            factor *= 1 / by if node["op"] == "div" else by
            node = g.producer(node["in"][0])
        if (
            node is not None
            and node["op"] == "all_reduce"
            and node["attrs"]["reduce"] == "sum"
            and factor * math.prod(sizes[a] for a in node.get("group", ())) != 1
        ):
            found.update(node.get("group", ()))
    return found


def exchanged_next(g: Nodes, names: Iterable[str]) -> dict[str, set[str]]:
    """Which of these tensors are communicated otherwise than by an all_reduce, as a whole or in
    pieces, also times a number: by tensor, the mesh axes. Those of messages are not known.
    """
    origin = {name: name for name in names}
    found: dict[str, set[str]] = {}
    for node in g.nodes:
        name = origin.get(node["in"][0] or "") if node["in"] else None
        if name is None:
            continue
        if node["op"] in ("send", "all_gather", "reduce_scatter", "all_to_all"):
            found.setdefault(name, set()).update(node.get("group", ()))
        elif node["op"] in MOVES or node["op"] in ("mul", "div") and len(node["in"]) == 1:
            origin.update((out, name) for out in node["out"] if out is not None)
    return found


def reduced_next(
    g: Nodes, names: Iterable[str], sizes: Mapping[str, int]
) -> dict[str, tuple[list[str], bool]]:
    """How an all_reduce takes each of these tensors, also divided by its ranks.

    Returns, by tensor, the axes over which it is summed, and whether the ranks' mean is taken
    (before or after).
    """
    wanted = set(names)
    # by what a factor makes of it: the tensor, and the node
    divided: dict[str, tuple[str, dict[str, Any]]] = {}
    made: dict[str, tuple[str, list[str]]] = {}
    found: dict[str, tuple[list[str], bool]] = {}

    def divides(node: dict[str, Any], by: int) -> bool:
        factor = node["attrs"].get("scalar", 0)
        return by > 1 and (factor == by if node["op"] == "div" else factor * by == 1)

    for node in g.nodes:
        source = node["in"][0] if node["in"] else None
        if node["op"] == "all_reduce" and "group" in node:
            name, by = divided.get(source or "") or (source, None)
            ranks = math.prod(sizes[a] for a in node["group"])
            if name in wanted and name not in found:
                found[name] = (
                    list(node["group"]),
                    by is not None and divides(by, ranks) or node["attrs"]["reduce"] == "mean",
                )
                made[node["out"][0]] = (name, list(node["group"]))
        elif node["op"] in ("div", "mul") and len(node["in"]) == 1:
            if source in wanted and source not in found:
                divided.setdefault(node["out"][0], (source, node))
            elif source in made and divides(node, math.prod(sizes[a] for a in made[source][1])):
                found[made[source][0]] = (made[source][1], True)
    return found
