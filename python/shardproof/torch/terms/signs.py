# SPDX-License-Identifier: Apache-2.0
"""Which values are known not to be negative, whatever the inputs are."""

from __future__ import annotations

from typing import Any

from ...operators import WithTrait
from . import assumptions
from .nodes import Nodes
from .values import Filled, Known, Named, Value

_NEVER_NEGATIVE = WithTrait("not negative", "positive")


def _is_step(node: dict[str, Any] | None) -> bool:
    """Of what `step` makes: a number where something is above 0, else 0."""
    return (
        node is not None
        and node["op"] == "relu_backward"
        and str(node["in"][0]).startswith("%const.")
    )


def _where_positive(g: Nodes, x: str, by: str) -> bool:
    """Whether the second is above 0 only where the first is, and 0 elsewhere."""
    node = g.producer(by)
    if node is None or not _is_step(node) or g.tensors[node["in"][0]]["value"] < 0:
        return False
    of = g.producer(node["in"][1])
    if node["in"][1] == x or of is None or of["in"] != [x]:
        return bool(node["in"][1] == x)
    return bool(
        of["op"] == "add"
        and of["attrs"]["scalar"] <= 0
        or of["op"] == "sub"
        and of["attrs"]["scalar"] >= 0
    )


_COMBINES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
# of what this rank has: others may send anything
_KEEPS_SIGN = WithTrait("keeps sign")


def never_negative(g: Nodes, v: Value, depth: int = 24, on_ranks: bool = False) -> bool:
    """Whether the nodes show at once that no element is below 0 where it has a value.

    on_ranks: other ranks are taken to give what this one does, which is listed as an assumption.
    """
    if isinstance(v, Filled):
        return v.fill >= 0
    if isinstance(v, Known):
        return bool((v.data >= 0).all())
    if not isinstance(v, Named) or v.kind != "real" or depth == 0:
        return False
    node = g.producer(v.name)
    if node is None:
        return False
    op, attrs = node["op"], node.get("attrs", {})
    if op == "where":
        condition, x, y = node["in"]
        return (
            _where_positive(g, x, condition)
            or never_negative(g, g.value_of(x, "real"), depth - 1, on_ranks)
        ) and never_negative(g, g.value_of(y, "real"), depth - 1, on_ranks)
    if _is_step(node):
        return bool(g.tensors[node["in"][0]]["value"] >= 0)
    if (
        op == "mul"
        and len(node["in"]) == 2
        and (_where_positive(g, *node["in"]) or _where_positive(g, *reversed(node["in"])))
    ):
        return True
    # 1 less what is 0 or 1
    if op == "add" and len(node["in"]) == 1 and attrs.get("scalar", 0) >= 1:
        inner = g.producer(node["in"][0])
        step = g.producer(inner["in"][0]) if inner is not None and inner["op"] == "neg" else None
        if step is not None and _is_step(step):
            return bool(g.tensors[step["in"][0]]["value"] == 1)
    if op == "log" and depth > 1:  # of 1 and what is never negative
        inner = g.producer(node["in"][0])
        return (
            inner is not None
            and inner["op"] == "add"
            and len(inner["in"]) == 1
            and inner["attrs"].get("scalar", 0) >= 1
            and never_negative(g, g.value_of(inner["in"][0], "real"), depth - 2, on_ranks)
        )
    if (
        op in _NEVER_NEGATIVE
        or op == "mul"
        and len(node["in"]) == 2
        and node["in"][0] == node["in"][1]
    ):
        return True
    if on_ranks and op in _COMBINES and node["in"]:
        g.assume(assumptions.NON_NEGATIVE_PARTS)
    elif (
        op not in _KEEPS_SIGN
        or attrs.get("scalar", 0) < 0
        or attrs.get("alpha", 1) < 0
        or not node["in"]
    ):
        return False
    return all(
        never_negative(g, g.value_of(name, "real"), depth - 1, on_ranks) for name in node["in"]
    )
