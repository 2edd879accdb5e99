# SPDX-License-Identifier: Apache-2.0
"""Variants of generated plans: one rank with its own program and defect, or one layer changed."""

import copy


def explicit_rank(plan, coordinates, defect):
    """The plan with its own program for one rank, whose nodes `defect(nodes)` changes.

    `coordinates` (axis -> coordinate) names the rank. Exactly one program covers each rank, so the
    program that covered this one is split: along each further mesh axis into one program for each
    other coordinate.
    """
    sizes = dict(plan["mesh"])
    at = next(
        p for p in plan["programs"] if all(coordinates[a] == c for a, c in p.get("at", {}).items())
    )
    programs = [p for p in plan["programs"] if p is not at]
    fixed = dict(at.get("at", {}))
    for axis in (a for a in sizes if a not in fixed):
        programs += [
            {**at, "at": {**fixed, axis: c}} for c in range(sizes[axis]) if c != coordinates[axis]
        ]
        fixed[axis] = coordinates[axis]
    one = {**at, "at": fixed, "nodes": copy.deepcopy(at["nodes"])}
    defect(one["nodes"])
    return {**plan, "programs": programs + [one]}


def replace_operator(old, new, place):
    """A defect: the last node `old` whose `loc` starts with `place` is a `new` instead."""

    def edit(nodes):
        found = [n for n in nodes if n["op"] == old and n.get("loc", "").startswith(place)]
        if not found:
            raise ValueError(f"no node '{old}' at '{place}'")
        found[-1]["op"] = new

    return edit


def edit_layer(model, plan, layer, eps):
    """Another epsilon in the norms of one layer, in model and plan.

    Returns the number of changed nodes.
    """
    changed = 0
    for graph in [model] + plan["programs"]:
        for node in graph["nodes"]:
            if node.get("loc", "").startswith(f"layers.{layer}.") and "eps" in node.get(
                "attrs", {}
            ):
                node["attrs"]["eps"] = eps
                changed += 1
    return changed
