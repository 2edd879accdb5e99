# SPDX-License-Identifier: Apache-2.0
"""Parameters of FSDP's first version: a rank has a stretch of a flat buffer of parameters.

A stretch of a tensor's elements in row-major order is no box of it, but at most a few: the rest of
a row, whole rows, the beginning of a row. Each of these is tied to the model by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..compat import private
from ..terms.graph import Graph
from ..terms.values import Filled, Shape, Value, numel
from .tracked_tensors import Placement


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Elements start up to start + count of the parameter `name`, of shape `shape`.

    They are in the rank's tensor from `at` on.
    """

    name: str
    shape: Shape
    at: int
    start: int
    count: int

    def boxes(self) -> list[tuple[Shape, Shape]]:
        """(low, size) of the boxes that make it up, in order."""
        return list(_boxes(self.shape, self.start, self.start + self.count)) if self.count else []


def _boxes(shape: Shape, start: int, stop: int) -> Iterator[tuple[Shape, Shape]]:
    if len(shape) < 2:
        yield (start,) * len(shape), (stop - start,) * len(shape)
        return
    row = numel(shape[1:])
    first, last = -(-start // row), stop // row
    if first > last or start % row and start // row == (stop - 1) // row:  # inside one row
        k = start // row
        for low, size in _boxes(shape[1:], start - k * row, stop - k * row):
            yield (k, *low), (1, *size)
        return
    if start % row:
        for low, size in _boxes(shape[1:], start % row, row):
            yield (first - 1, *low), (1, *size)
    if first < last:
        yield (first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:])
    if stop % row:
        for low, size in _boxes(shape[1:], 0, stop % row):
            yield (last, *low), (1, *size)


def stretches(root: nn.Module, clean: Callable[[str], str]) -> dict[int, list[Stretch]]:
    """By the id of each parameter of the root that is one stretch or several.

    clean: removes wrappers from a module's name.
    """
    found: dict[int, list[Stretch]] = {}
    for name, module in root.named_modules():
        for parameter, entries in private.flat_parameters(module):
            found[id(parameter)] = [
                Stretch(clean(f"{name}.{key}" if name else key), shape, at, start, count)
                for key, shape, at, start, count in entries
            ]
    return found


def given(
    g: Graph, parts: list[Stretch], suffix: str, size: int, kind: str, role: str
) -> tuple[Value, list[tuple[str, Value, Placement]]]:
    """A flat tensor of inputs: its value, and (name, value, placement) of each part.

    Elements between the parts are padding, and zero.
    """
    tracked: list[tuple[str, Value, Placement]] = []
    values: list[Value] = []
    end = 0
    for part in sorted(parts, key=lambda s: s.at):
        if part.count and part.at > end:
            values.append(Filled(0, (part.at - end,)))
        for i, (low, box) in enumerate(part.boxes()):
            name = part.name + suffix
            v = g.declare(name if i == 0 else f"{name}, part {i + 1}", box, kind, role)
            values.append(g.reshape(v, (numel(box),)))
            tracked.append((name, v, Placement(offset=low, shape=part.shape)))
        end = part.at + part.count if part.count else end
    if end < size:
        values.append(Filled(0, (size - end,)))
    return g.cat(values, 0) if values else Filled(0, (0,)), tracked


def parts_of(
    g: Graph, parts: list[Stretch], suffix: str, flat: Value
) -> list[tuple[str, Value, Placement]]:
    """(name, value, place) of each part of a flat tensor."""
    result = []
    for part in parts:
        at = part.at
        for low, box in part.boxes():
            piece = g.reshape(g.slice(flat, 0, at, at + numel(box)), box)
            result.append((part.name + suffix, piece, Placement(offset=low, shape=part.shape)))
            at += numel(box)
    return result


def assign(
    t: torch.Tensor, parts: list[Stretch], whole: Callable[[str, Shape], torch.Tensor]
) -> None:
    """Writes numbers into a flat tensor. whole: the tensor of that name."""
    for part in parts:
        if part.count:
            t.view(-1)[part.at : part.at + part.count].copy_(
                whole(part.name, part.shape).flatten()[part.start : part.start + part.count]
            )


def numbers(t: torch.Tensor, parts: list[Stretch]) -> list[tuple[str, Any]]:
    """(name, (shape, start, numbers)) of each part of a flat tensor."""
    return [
        (p.name, (p.shape, p.start, t.detach().reshape(-1)[p.at : p.at + p.count].clone()))
        for p in parts
    ]
