# SPDX-License-Identifier: Apache-2.0
"""Variants of generated plans: one rank with a program and a defect of its own; one layer changed in model and plan."""

import copy


def explicit_rank(plan, coordinates, defect):
    """The plan with a program for the one rank at `coordinates` (axis -> coordinate), whose nodes `defect(nodes)` changes.

    Each rank is covered by exactly one program, so the program that covered the rank is split: along each of the mesh's further axes into one program for
    each other coordinate.
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
    """Another epsilon in the norms of one layer, in model and plan alike. Returns how many nodes changed."""
    changed = 0
    for graph in [model] + plan["programs"]:
        for node in graph["nodes"]:
            if node.get("loc", "").startswith(f"layers.{layer}.") and "eps" in node.get(
                "attrs", {}
            ):
                node["attrs"]["eps"] = eps
                changed += 1
    return changed
