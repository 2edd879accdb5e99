# SPDX-License-Identifier: Apache-2.0
"""Numbers that a script prints: losses, norms, counts of right answers.

A rank prints numbers of its own part of the batch, or such as all ranks have reduced. Only the
latter are claimed to be the single device's. A number is **reduced** if it is the same on all ranks
by the way in which it was computed: along each axis of the mesh, whatever it is computed from that
may differ between the ranks of that axis went through an all-reduce or an all-gather over it. What
differs are inputs that the axis cuts, what ranks draw, and (along an axis that cuts no batch)
parameters of which it is not known that all ranks have them whole. Where that cannot be told the
number is not claimed.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping

from ..distributed.mesh import Mesh
from ..step.tracked_tensors import Placement, TrackedTensor
from ..terms.graph import Graph
from ..terms.liveness import COMMUNICATION
from ..terms.values import Named, Value, numel

_GIVE_ALL_THE_SAME = ("all_reduce", "all_gather")
# what names of printed numbers, and of those that decide, begin with
PRINTED, DECIDING = "the number printed at ", "the number that decides at "
MOST_ELEMENTS = 64  # of a tensor that is printed


def labelled(prints: Iterable[tuple[str, Value | None]], prefix: str = PRINTED) -> dict[str, Named]:
    """What is printed, by names: the place, and how often something was printed there before."""
    count: collections.Counter[str] = collections.Counter()
    found: dict[str, Named] = {}
    for place, value in prints:
        count[place] += 1
        if isinstance(value, Named) and numel(value.shape) <= MOST_ELEMENTS:
            which = f" ({count[place]})" if count[place] > 1 else ""
            found[f"{prefix}{place}{which}"] = value
    return found


class Reduced:
    """Which numbers of one rank are reduced.

    inputs: tracked tensors. data_axes: axes whose ranks have different samples. drawn: random
    numbers of which ranks along these draw their own.
    """

    def __init__(
        self,
        g: Graph,
        mesh: Mesh,
        inputs: Iterable[TrackedTensor],
        data_axes: Iterable[str],
        drawn: Iterable[str],
    ) -> None:
        self.g, self.mesh, self.data_axes, self.drawn = g, mesh, set(data_axes), set(drawn)
        self._of_own: dict[str, set[str]] = {}
        self.placed: Mapping[str, Placement] = {
            t.value.name: t.placement
            for t in inputs
            if t.role == "input" and isinstance(t.value, Named)
        }

    def __call__(self, v: Named) -> bool:
        return all(
            self._reaches_only(v.name, axis, self._is_same)
            for axis in self.mesh.names
            if self.mesh.sizes[axis] > 1
        )

    def of_own_samples(self, v: Named, axis: str) -> bool:
        """Whether a value is computed of an input that an axis cuts, by a way on which its ranks
        give each other nothing.
        """
        return v.name in self._own(axis)

    def _own(self, axis: str) -> set[str]:
        """All such values, in one pass over the program."""
        if axis not in self._of_own:
            own = {
                name
                for name, p in self.placed.items()
                if _differs(p, axis) and self.g.tensors[name].get("kind") == "input"
            }
            own |= self.drawn if axis in self.data_axes else set()
            for node in self.g.nodes if own and self.mesh.sizes[axis] > 1 else ():
                if "comm" in node and axis in node.get("group", (axis,)):
                    continue
                if not own.isdisjoint(node["in"]):
                    own.update(name for name in node["out"] if name is not None)
            self._of_own[axis] = own
        return self._of_own[axis]

    def _reaches_only(self, name: str, axis: str, same: Callable[[str, str], bool]) -> bool:
        todo, seen = [name], {name}
        while todo:
            at = todo.pop()
            node = self.g.producer(at)
            if node is None:
                if not same(at, axis):
                    return False
                continue
            if node["op"] in COMMUNICATION:
                if node["op"] not in _GIVE_ALL_THE_SAME or "group_at" in node:
                    return False
                if axis in node["group"]:
                    continue
            new = [x for x in node["in"] if x is not None and x not in seen]
            seen.update(new)
            todo += new
        return True

    def _is_same(self, name: str, axis: str) -> bool:
        """Whether ranks along an axis are known to have the same of what no operator makes."""
        entry = self.g.tensors[name]
        if entry.get("kind") == "constant":
            return isinstance(entry["value"], (int, float, str))  # one number everywhere
        p = self.placed.get(name)
        if p is None or _differs(p, axis):
            return False
        if axis in p.covered or p.shard is not None:
            return True
        # a copy that each rank of a data axis has, if not a stretch of a flat buffer
        return axis in self.data_axes and not p.offset


def _differs(p: Placement, axis: str) -> bool:
    """Whether ranks along an axis have different elements of the model's."""
    return axis in p.cut or axis in p.others or axis in (p.shard or {})


__all__ = ["PRINTED", "Reduced", "labelled"]
