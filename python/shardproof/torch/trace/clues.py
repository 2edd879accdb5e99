# SPDX-License-Identifier: Apache-2.0
"""What of a recording tells a common mistake (session/mistakes.py): how the loss is a sum or a mean
over samples, how gradients are reduced, and which modules have statistics of a rank's own samples.

Nothing of a verdict depends on it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ..distributed.mesh import Mesh
from ..step.binding import Binding
from ..step.tracked_tensors import unwrapped
from ..terms.dataflow import ancestors
from ..terms.graph import Graph
from ..terms.liveness import COMMUNICATION
from ..terms.values import Named, Shape, Value

_SAME_ELEMENTS = frozenset({"view", "permute", "slice", "expand"})


@dataclasses.dataclass(frozen=True)
class LossTerm:
    """A term of a loss: a number times the sum, or the mean, of so many elements.

    rows: the length of their first dimension. loc: of the sum. factors: where it is multiplied or
    divided.
    """

    mean: bool
    factor: float
    count: int
    rows: int
    loc: str
    factors: tuple[str, ...] = ()

    @property
    def of_each(self) -> float:
        """What one element is multiplied by."""
        return self.factor / self.count if self.mean else self.factor


@dataclasses.dataclass(frozen=True)
class Backward:
    """A backward. terms: of its loss, None where it is not made of such. synchronised: not under
    `no_sync` of DistributedDataParallel.
    """

    loc: str
    terms: tuple[LossTerm, ...] | None
    synchronised: bool


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How the ranks' gradients of a parameter make what it is left with: factor times their sum.

    loc: of the last collective.
    """

    factor: float
    axes: frozenset[str]
    loc: str


@dataclasses.dataclass
class Clues:
    """reductions: of parameters. scales: what the single device's gradients are multiplied by in
    the end, as by the inverse of a loss's scale. unreduced: axis -> parameters that each of its
    ranks steps by the gradient of its own samples, and the shape that the rank has.
    local_statistics: modules that normalise a rank's own samples by their statistics, and where.
    printed: what elements of the batch are multiplied by in printed numbers, where these are sums.
    """

    backwards: list[Backward] = dataclasses.field(default_factory=list)
    reductions: dict[str, Reduction] = dataclasses.field(default_factory=dict)
    scales: dict[str, float] = dataclasses.field(default_factory=dict)
    unreduced: dict[str, dict[str, Shape]] = dataclasses.field(default_factory=dict)
    local_statistics: dict[str, str] = dataclasses.field(default_factory=dict)
    printed: dict[str, tuple[float, ...]] = dataclasses.field(default_factory=dict)


class Noticing:
    """Collects the clues of one side while it is recorded."""

    def __init__(self, recorder: Any, mesh: Mesh, binding: Binding) -> None:
        self.recorder, self.mesh, self.binding = recorder, mesh, binding
        self.clues = Clues()
        self.roots: set[str] = set()  # names of what was differentiated

    def forward(self, name: str, module: nn.Module) -> None:
        """A module was called."""
        if (
            isinstance(module, nn.modules.batchnorm._BatchNorm)
            # not SyncBatchNorm, nor one that reduces its statistics by hand
            and type(module).forward is nn.modules.batchnorm._BatchNorm.forward
            and (module.training or module.running_mean is None)
        ):
            self.clues.local_statistics.setdefault(name, self.recorder.where())

    def backward(self, roots: Any) -> None:
        """A backward begins."""
        given = [roots] if isinstance(roots, torch.Tensor) else list(roots or ())
        terms: list[LossTerm] | None = []
        for t in given:
            v = self.recorder.read(unwrapped(t))
            if isinstance(v, Named):
                self.roots.add(v.name)
            found = loss_terms(self.recorder.g, v.name) if isinstance(v, Named) else None
            terms = [*terms, *found] if terms is not None and found is not None else None
        unsynchronised = any(
            isinstance(m, nn.parallel.DistributedDataParallel) and not m.require_backward_grad_sync
            for root in self.binding.models()
            for m in root.modules()
        )
        self.clues.backwards.append(
            Backward(
                self.recorder.where(),
                tuple(terms) if terms is not None else None,
                not unsynchronised,
            )
        )

    def printed(self, label: str, v: Named) -> None:
        """A number is printed that all ranks have reduced."""
        terms = loss_terms(self.recorder.g, v.name, self.mesh)
        if terms:
            self.clues.printed[label] = tuple(t.of_each for t in terms)

    def gradients(
        self, found: Mapping[str, tuple[Value, Value]], of_own_samples: Callable[[Named, str], bool]
    ) -> None:
        """What the step leaves of parameters: gradients, and new values.

        of_own_samples(value, axis): whether it is computed of what the axis cuts, and not from what
        its ranks have given each other.
        """
        for name, (gradient, new) in found.items():
            if not isinstance(gradient, Named) or not isinstance(new, Named):
                continue
            reduction = reduction_of(self.recorder.g, gradient.name, self.mesh)
            if self.mesh.world == 1:
                self.clues.scales[name] = _followed(self.recorder.g, gradient.name, self.mesh)[0]
            if reduction is not None:
                self.clues.reductions[name] = reduction
            for axis in self.mesh.names if reduction is None else ():
                if of_own_samples(gradient, axis) and of_own_samples(new, axis):
                    self.clues.unreduced.setdefault(axis, {})[name] = gradient.shape


def loss_terms(g: Graph, name: str, mesh: Mesh | None = None) -> list[LossTerm] | None:
    """The terms of a loss, in order. None where it is made in another way.

    mesh: sums and means over ranks are among the ways, of what each rank's terms are.
    """
    found: list[LossTerm] = []
    todo: list[tuple[str, float, tuple[str, ...]]] = [(name, 1.0, ())]
    while todo:
        at, factor, places = todo.pop(0)
        node = g.producer(at)
        if node is None:
            return None
        scalar = node.get("attrs", {}).get("scalar")
        by = _factor(node)
        if by is not None:
            # `loss / 1` is written on one device, too
            todo.insert(0, (node["in"][0], factor * by, (*places, node.get("loc", ""))))
        elif node["op"] in ("view", "identity"):
            todo.insert(0, (node["in"][0], factor, places))
        elif node["op"] == "all_reduce" and mesh is not None and "group" in node:
            if node["attrs"]["reduce"] == "mean":
                factor /= math.prod(mesh.sizes[a] for a in node["group"])
            elif node["attrs"]["reduce"] != "sum":
                return None
            todo.insert(0, (node["in"][0], factor, places))
        elif node["op"] in ("add", "sub"):
            if scalar is not None:
                todo.insert(0, (node["in"][0], factor, places))
                continue
            sign = 1 if node["op"] == "add" else -1
            todo[:0] = [(node["in"][0], factor, places), (node["in"][1], sign * factor, places)]
        elif node["op"] in ("sum", "mean") and not g.tensors[at]["shape"]:
            shape = g.tensors[node["in"][0]]["shape"]
            found.append(
                LossTerm(
                    node["op"] == "mean",
                    factor,
                    math.prod(shape),
                    shape[0] if shape else 1,
                    node.get("loc", ""),
                    places,
                )
            )
        else:
            return None
    return found


def reduction_of(g: Graph, name: str, mesh: Mesh) -> Reduction | None:
    """How a gradient was reduced, before it was clipped; None where nothing reduces it, or in a way
    that is not plain.
    """
    factor, axes, loc = _followed(g, name, mesh)
    return Reduction(factor, axes, loc) if axes else None


def _followed(g: Graph, name: str, mesh: Mesh) -> tuple[float, frozenset[str], str]:
    """What a gradient is multiplied by, over which axes it is added up, and where last; none of
    these where it is reduced in a way that is not plain.
    """
    factor, axes, loc = 1.0, frozenset[str](), ""
    while (node := g.producer(name)) is not None:
        by = _factor(node)
        if by is not None:
            factor *= by
        elif node["op"] in ("all_reduce", "reduce_scatter") and "group" in node:
            how = node.get("attrs", {}).get("reduce")
            if how not in ("sum", "mean"):
                return 1.0, frozenset(), ""
            if how == "mean":
                factor /= math.prod(mesh.sizes[a] for a in node["group"])
            axes, loc = axes | frozenset(node["group"]), loc or node.get("loc", "")
        elif node["op"] == "mul" and _clips(g, node["in"]):
            pass
        elif node["op"] == "add" and len(node["in"]) == 2:  # gradients that were left before
            one, other = (_followed(g, operand, mesh) for operand in node["in"])
            if one[:2] != other[:2] or not one[1]:
                break
            return factor * one[0], axes | one[1], loc or one[2]
        elif node["op"] not in _SAME_ELEMENTS or node["op"] in COMMUNICATION:
            break
        if not node["in"]:
            break
        name = node["in"][0]
    return factor, axes, loc


def _clips(g: Graph, operands: list[Any]) -> bool:
    """Whether a gradient is multiplied by a number that is computed of it, as of its norm."""
    return (
        len(operands) == 2
        and math.prod(g.tensors[operands[1]]["shape"]) == 1
        and operands[0] in ancestors(g, operands[1:])
    )


def _factor(node: Mapping[str, Any]) -> float | None:
    """What a node multiplies all elements by; None where it does something else."""
    if node["op"] == "neg":
        return -1.0
    scalar = node.get("attrs", {}).get("scalar")
    if node["op"] not in ("mul", "div") or not isinstance(scalar, (int, float)) or not scalar:
        return None
    return float(scalar) if node["op"] == "mul" else 1 / float(scalar)


__all__ = ["Backward", "Clues", "LossTerm", "Noticing", "Reduction"]
