# SPDX-License-Identifier: Apache-2.0
"""Tensors of a recording that are tied to the model: inputs, cut points and outputs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..compat import private
from ..distributed.mesh import Mesh
from ..terms.positions import runs
from ..terms.values import Shape, Value

CUT_POINT = "checkpoint"  # the role of a cut point, as the files have it
STATES = "optimizer states"  # a kind of outputs
Shard = Mapping[str, int]  # mesh axis -> dimension that it cuts


@dataclasses.dataclass(frozen=True)
class OwnPadding:
    """Rows by which ranks' parts of a tensor are longer than that, together `size`. begin: of a
    rank's, among them.
    """

    begin: int
    size: int


@dataclasses.dataclass
class Placement:
    """The placement of a local tensor in the model's.

    It is `shard` (given by the user), or that of a DTensor, or neither: then shapes decide.
    """

    shard: dict[str, int] | None = None
    covered: list[str] = dataclasses.field(default_factory=list)  # axes that the DTensor's mesh has
    offset: tuple[int, ...] = ()
    shape: Shape = ()  # of the DTensor
    # those of them along which the DTensor's ranks have different elements
    cut: list[str] = dataclasses.field(default_factory=list)
    # axes whose ranks have other tensors of the model's, of an input that is not cut
    others: list[str] = dataclasses.field(default_factory=list)
    # axis that cuts a dimension alone: how many elements it cuts, and how many the first rank has
    chunks: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    partial: list[str] = dataclasses.field(default_factory=list)  # axes to sum over
    mean: list[str] | None = None  # axes to take the mean over; None: not given
    # the parameter whose gradient, new value or state it is, of its shape: it lies as that does
    parameter: str = ""
    unknown: str = ""  # why the place is unknown
    # axes along which the ranks have just given each other what this is made of
    shared: tuple[str, ...] = ()
    # axes over which the loss is a sum: gradients of activations have then the model's scale
    summed: tuple[str, ...] = ()
    # of fused or padded weights: a dimension of which the rank has several stretches, and where
    # each begins in the local tensor and in the model's, and how long it is
    dim: int = 0
    stretches: tuple[tuple[int, int, int], ...] = ()
    own_padding: OwnPadding | None = None  # what is in none of them; None: zeros


@dataclasses.dataclass
class TrackedTensor:
    """One tensor of one rank (or of the single device) that has a name on both sides."""

    # input, CUT_POINT, output; kept: an output where a side changes it, or all sides have it
    role: str
    name: str
    value: Value
    placement: Placement
    call: int = 0  # which call of a module
    gradient: bool = False  # of an activation: its scale depends on how the loss is averaged
    module: str = ""  # whose operand or result it is
    kind: str = "results"  # of an output: how the report's "Compared" line counts it


def together(beside: Mapping[str, Shape], name: str) -> dict[str, Shape]:
    """The tensors among `beside` that are compared only if all ranks have all of them.

    beside: what is kept beside parameters of modules, and its shape. Such sets are: tensors, their
    states and learning rates of optimizers; each other number of an optimizer; the leaves of one
    shape; each other tensor by itself.
    """
    return {other: shape for other, shape in beside.items() if _set_of(other) == _set_of(name)}


def _set_of(name: str) -> str:
    if name.startswith("leaf "):
        return name.partition(".")[0]
    if not _STATE.sub("", name).startswith("optimizer"):
        return name
    number = _NUMBER.fullmatch(name)
    return number[1] if number is not None and number[1] != "lr" else ""


_STATE = re.compile(r"^state \S+ of ")
_NUMBER = re.compile(r"optimizer\d+\.groups\.\d+\.(.*)\.new")


def unwrapped(t: torch.Tensor) -> torch.Tensor:
    """The local tensor."""
    if isinstance(t, private.DTensor):
        t = t._local_tensor
    if isinstance(t, private.AsyncCollectiveTensor):
        t = t.trigger_wait()
    return t


def place(recorder: Any, t: Any, shard: Shard | None = None) -> Placement:
    """What is known of the place of a tensor."""
    if not isinstance(t, private.DTensor):
        return Placement(shard=dict(shard) if shard is not None else None)
    key = (id(t.device_mesh), t.placements, t.shape, t._local_tensor.shape)
    known = recorder.placed.get(key)
    if known is None:
        # the mesh is kept, so that its id stays its own
        known = recorder.placed[key] = (
            _placed(recorder, t),
            t.device_mesh,
        )
    found: Placement = known[0]
    return dataclasses.replace(
        found,
        covered=list(found.covered),
        cut=list(found.cut),
        partial=list(found.partial),
        mean=None if found.mean is None else list(found.mean),
    )


def _placed(recorder: Any, t: Any) -> Placement:
    groups, placements, shape, offset = private.placement_of(t)
    result = Placement(offset=offset, shape=shape)
    mesh: Mesh = recorder.groups.mesh
    for i, (ranks, placement) in enumerate(zip(groups, placements)):
        axes = mesh.axes_of(ranks, recorder.rank) if len(ranks) > 1 else ()
        if axes is None:
            result.unknown = f"a device mesh whose dimension {ranks} lies along no axis of the mesh"
            continue
        result.covered += axes
        if not placement.is_replicate() and not placement.is_partial():
            result.cut += axes
            if len(axes) == 1:
                result.chunks[axes[0]] = _chunk([len(g) for g in groups], placements, shape, i)
        if placement.is_partial():
            if type(placement) is not private.Partial:
                result.unknown = f"a DTensor that is {type(placement).__name__}"
            elif placement.reduce_op == "sum":
                result.partial += axes
            elif placement.reduce_op == "avg":
                result.mean = [*(result.mean or []), *axes]
            else:
                result.unknown = f"a DTensor that is partial by {placement.reduce_op}"
    if (strided := private.strided_rows(t)) is not None:
        result.dim, rows = strided
        result.stretches = runs(rows)
    return result


def _chunk(
    ways: Sequence[int], placements: Sequence[Any], shape: Shape, cutting: int
) -> tuple[int, int]:
    """How the placement number `cutting` cuts its dimension into chunks (torch.chunk's).

    Returns the number of elements that it cuts, on the first rank of the placements that cut the
    dimension before, and the number that the first rank gets. A strided placement (FSDP's, of what
    others have cut) comes after all others.
    """
    dim = placements[cutting].dim
    strided = [isinstance(p, private._StridedShard) for p in placements]
    rows = shape[dim]
    for i, p in enumerate(placements):
        before = not strided[i] and (strided[cutting] or i < cutting)
        if i != cutting and before and not p.is_replicate() and not p.is_partial() and p.dim == dim:
            rows = -(-rows // ways[i])
    return rows, -(-rows // ways[cutting])
