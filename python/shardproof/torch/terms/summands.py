# SPDX-License-Identifier: Apache-2.0
"""Which elements of one tensor each element of a sum adds up.

A tensor that only moves elements of another one, and sums them over dimensions, has for each of its
elements a list of positions in that other tensor. Counts of rows and masks of choices are told
apart by these lists (row_counts.py, aten/choices.py).
"""

from __future__ import annotations

from typing import Any

import torch

from .graph import Graph
from .nodes import MOVES_HERE
from .positions import MOST_POSITIONS, moved
from .values import Shape, numel


def summed_dims(node: Any, rank: int) -> list[int]:
    dims = node.get("attrs", {}).get("dim")
    return list(range(rank)) if dims is None else [d % rank for d in dims]


def summands(g: Graph, name: str, stop: str = "") -> tuple[str, torch.Tensor] | None:
    """The tensor, and [*shape, n]: the positions in it that each element of `name` adds up.

    stop: a tensor at which the way back ends. None where there are too many positions.
    """
    way: list[dict[str, Any]] = []
    while name != stop and (node := g.producer(name)) is not None:
        if (node["op"] not in MOVES_HERE and node["op"] != "sum") or len(node["in"]) != 1:
            break
        way.append(node)
        name = node["in"][0]
    shape: Shape = tuple(g.tensors[name]["shape"])
    if numel(shape) > MOST_POSITIONS:
        return None
    at = torch.arange(numel(shape)).reshape(*shape, 1)
    for node in reversed(way):
        lead, n = at.shape[:-1], at.shape[-1]
        if node["op"] == "sum":
            dims = summed_dims(node, len(lead))
            at = at.movedim(dims, list(range(len(lead) - len(dims), len(lead))))
            out = tuple(g.tensors[node["out"][0]]["shape"])
            at = at.reshape(*out, numel(lead) * n // max(numel(out), 1))
        else:
            where = moved(node, [torch.arange(numel(lead)).reshape(lead)])
            if numel(tuple(where.shape)) * n > MOST_POSITIONS:
                return None
            at = at.reshape(-1, n)[where]
    return name, at


def less_than_one(g: Graph, name: str) -> str | None:
    """x, where a tensor is 1 - x; None for anything else."""
    node = g.producer(name)
    if node is None or node["op"] != "add" or node.get("attrs", {}).get("scalar") != 1:
        return None
    inner = g.producer(node["in"][0])
    return inner["in"][0] if inner is not None and inner["op"] == "neg" else None
