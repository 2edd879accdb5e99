# SPDX-License-Identifier: Apache-2.0
"""Where the local tensors of a rank are in whole ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..compat import private
from ..distributed.mesh import Mesh
from ..step.flat_parameters import Stretch
from ..terms.values import numel

# first element in the local tensor, offset and shape in the whole tensor
Part = tuple[int, tuple[int, ...], tuple[int, ...]]


class LayoutError(ValueError):
    """A tensor's layout cannot be stated along the axes of the mesh."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """shape: of the whole tensor, but for unknown axes. parts: its boxes that the rank has, in the
    order of its elements. total, mean: axes along which ranks have summands. unknown: axes along
    which is not known how ranks differ.
    """

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    total: tuple[str, ...] = ()
    mean: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def local_of(t: torch.Tensor) -> torch.Tensor:
    """The rank's own elements, waited for."""
    if isinstance(t, private.DTensor):
        t = t._local_tensor
    if isinstance(t, private.AsyncCollectiveTensor):
        t = t.wait()
    return t


def box(shape: Sequence[int], low: Sequence[int], size: Sequence[int]) -> Layout:
    """The layout of a rank that has one box of a tensor."""
    return Layout(tuple(shape), ((0, tuple(low), tuple(size)),))


def of_shard(t: torch.Tensor, shard: Mapping[str, int] | None, mesh: Mesh, rank: int) -> Layout:
    """A local tensor that is cut along axes: axis -> dimension. The first axis cuts first."""
    local = tuple(int(n) for n in local_of(t).shape)
    shape, low = list(local), [0] * len(local)
    at = mesh.coordinates(rank)
    for axis, dim in (shard or {}).items():
        low[dim] = low[dim] * mesh.sizes[axis] + at[axis]
        shape[dim] *= mesh.sizes[axis]
    return box(shape, [k * n for k, n in zip(low, local)], local)


def of_dtensor(t: Any, mesh: Mesh, rank: int) -> tuple[Layout, tuple[str, ...]]:
    """The layout of a DTensor, and the axes that its own mesh has.

    Raises LayoutError where its mesh is not along axes of `mesh`, or where it is a partial result
    that is no sum and no mean.
    """
    groups, placements, shape, offset = private.placement_of(t)
    covered: list[str] = []
    total: list[str] = []
    mean: list[str] = []
    for ranks, placement in zip(groups, placements):
        if len(ranks) == 1:
            continue
        axes = mesh.axes_of(tuple(ranks), rank)
        if axes is None:
            raise LayoutError(
                f"a DTensor is on the ranks {list(ranks)}, which are not along axes of the mesh "
                f"{', '.join(f'{a}={n}' for a, n in mesh.sizes.items())}: state the mesh of the "
                "script with --mesh"
            )
        covered += axes
        if isinstance(placement, private.Partial):
            if placement.reduce_op not in ("sum", "avg"):
                raise LayoutError(f"a DTensor is a partial result of {placement.reduce_op}")
            (mean if placement.reduce_op == "avg" else total).extend(axes)
    local = tuple(int(n) for n in local_of(t).shape)
    whole = box(shape, offset, local)
    if (strided := private.strided_rows(t)) is not None:
        whole = Layout(whole.shape, _rows(*strided, offset, local))
    return dataclasses.replace(whole, total=tuple(total), mean=tuple(mean)), tuple(covered)


def _rows(
    dim: int, rows: Sequence[int], offset: Sequence[int], local: Sequence[int]
) -> tuple[Part, ...]:
    """The boxes of a rank that has these rows of a dimension, in the order of its elements."""
    found: list[Part] = []
    at, size = 0, (*(1 for _ in local[:dim]), 1, *local[dim + 1 :])
    for lead in itertools.product(*(range(n) for n in local[:dim])):
        for row in rows:
            low = (*(o + k for o, k in zip(offset, lead)), row, *offset[dim + 1 :])
            found.append((at, low, size))
            at += math.prod(size)
    return tuple(found)


def of_stretch(part: Stretch) -> Layout:
    """A stretch of a tensor's elements in row-major order."""
    parts: list[Part] = []
    at = 0
    for low, size in part.boxes():
        parts.append((at, tuple(low), tuple(size)))
        at += numel(size)
    return Layout(tuple(part.shape), tuple(parts))
