# SPDX-License-Identifier: Apache-2.0
"""Communication that begins at one place and is waited for at another: handles and waits of the
plan.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ..terms.graph import Graph
from ..terms.liveness import COMMUNICATION, WAIT
from .exchange import group_of

Node = dict[str, Any]


class Begun:
    """The communication of one recording that is under way.

    It becomes handles of nodes and WAIT nodes. `with_waits` makes the plan's fields of them.
    """

    def __init__(self, g: Graph) -> None:
        self.g = g
        self._nodes: dict[Hashable, list[Node]] = {}  # by the token of an asynchronous call
        self._count = 0

    def begin(self, token: Hashable, start: int) -> None:
        """The communication among the nodes from `start` on is one asynchronous call's."""
        nodes = [n for n in self.g.nodes[start:] if n["op"] in COMMUNICATION]
        for n in nodes:
            if "handle" not in n:  # a work may be wrapped twice
                self._count += 1
                n["handle"] = str(self._count)
        if nodes:
            self._nodes[token] = nodes

    def also(self, token: Hashable, old: Hashable) -> None:
        """Whoever waits for `token` waits for `old`."""
        if old in self._nodes:
            self._nodes[token] = self._nodes[old]

    def wait(self, token: Hashable) -> None:
        self._wait(self._nodes.pop(token, ()))

    def hold_up(self, fields: Node) -> None:
        """What follows comes after the collectives that this group (Groups.fields) has begun.

        They share a communicator.
        """
        for nodes in self._nodes.values():
            self._wait([n for n in nodes if group_of(n) == group_of(fields)])

    def _wait(self, nodes: Sequence[Node]) -> None:
        self.g.nodes += [{"op": WAIT, "in": [], "out": [], "handle": n["handle"]} for n in nodes]


def with_waits(nodes: Sequence[Node]) -> tuple[list[Node], list[str]]:
    """The plan's nodes with handles, numbered, and waits in place of WAIT nodes.

    Also returns the handles that are waited for after all nodes. What is made of a result at once
    (a call writes views of its result) is placed behind the wait. A handle that changes nothing is
    left out: there is no other communication before the wait than collectives of the same group,
    which are in order anyway.
    """
    kept = set(_needed(nodes))
    while True:
        result, waits, early = _placed(nodes, kept)
        if not early:
            return result, waits
        kept -= early


def _needed(nodes: Sequence[Node]) -> Iterator[str]:
    for i, n in enumerate(nodes):
        if n["op"] == WAIT or "handle" not in n:
            continue
        for later in nodes[i + 1 :]:
            if later["op"] == WAIT and later["handle"] == n["handle"]:
                break
            if later["op"] in COMMUNICATION and (
                group_of(n) is None or group_of(later) != group_of(n)
            ):
                yield n["handle"]
                break


def _placed(nodes: Sequence[Node], kept: set[str]) -> tuple[list[Node], list[str], set[str]]:
    """The nodes, the waits at the end, and handles that are waited for at once.

    The latter are of results that are communicated, or wanted, before their wait.
    """
    result: list[Node] = []
    waits: list[str] = []  # for the node that follows
    names: dict[str, str] = {}  # of the handles so far
    under_way: dict[str, frozenset[str]] = {}  # tensors, and which handles they wait for
    ended: set[str] = set()
    late: list[Node] = []

    def put(n: Node) -> None:
        nonlocal waits
        n = {k: v for k, v in n.items() if k != "handle" or v in kept}
        if "handle" in n:
            under_way.update({out: frozenset([n["handle"]]) for out in n["out"]})
            n["handle"] = names.setdefault(n["handle"], f"asynchronous {len(names) + 1}")
        result.append({**n, "waits": waits} if waits else n)
        waits = []

    def wanted(n: Node) -> frozenset[str]:
        return frozenset().union(*(under_way.get(name, ()) for name in n["in"])) - ended

    for n in nodes:
        if n["op"] != WAIT:
            if not (before := wanted(n)):
                put(n)
            elif n["op"] in COMMUNICATION:
                return [], [], set(before)
            else:
                late.append(n)
                under_way.update(dict.fromkeys(n["out"], before))
        elif n["handle"] in names and n["handle"] not in ended:
            waits = [*waits, names[n["handle"]]]
            ended.add(n["handle"])
            for reader in [reader for reader in late if not wanted(reader)]:
                late.remove(reader)
                put(reader)
    return result, waits, {handle for n in late for handle in wanted(n)}
