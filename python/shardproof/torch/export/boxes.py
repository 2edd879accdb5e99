# SPDX-License-Identifier: Apache-2.0
"""The place of a rank's tensor in the model's: a box, the axes to sum over, and a divisor."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from ..distributed.mesh import Mesh
from ..step.tracked_tensors import TrackedTensor
from ..terms.values import Shape, numel

DATA_NAMES = ("dp", "data", "ddp", "fsdp", "dp_replicate", "dp_shard", "batch", "replicate", "cp")


class NoPlace(Exception):
    """The place of a tensor is not known; the message has the reason."""


@dataclasses.dataclass(frozen=True)
class Box:
    """The place of a local tensor in the model's.

    low: its offset. total: axes over which the ranks' tensors add up. divisor: of the local tensor,
    before that. guessed: shapes decided.
    """

    low: tuple[int, ...]
    total: tuple[str, ...] = ()
    divisor: int = 1
    guessed: bool = False


def locate(
    tracked: TrackedTensor,
    logical: Shape,
    local: Shape,
    mesh: Mesh,
    at: Mapping[str, int],
    cuts: Mapping[str, set[int]],
    microbatches: int = 1,
    microbatch: int = 0,
) -> Box:
    """The place of one rank's tensor.

    cuts: mesh axis -> dimensions of inputs that it cuts. Raises NoPlace.
    """
    p = tracked.placement
    if p.unknown:
        raise NoPlace(p.unknown)
    total = [a for a in p.partial if mesh.sizes[a] > 1]
    mean = p.mean
    if (
        tracked.role == "output"
        and mean is None
        and logical == ()
        and not total
        and p.shard is None
    ):
        mean = [a for a in cuts if mesh.sizes[a] > 1 and a not in p.covered]
    divisor = 1
    for axis in mean or []:
        if mesh.sizes[axis] > 1:
            total.append(axis)
            divisor *= mesh.sizes[axis]
    if tracked.gradient:
        for axis in cuts:
            divisor *= 1 if axis in p.summed else mesh.sizes[axis]
    if p.shard is not None:
        return _from_shard(p.shard, logical, local, mesh, at, total, divisor)
    inner = p.shape if p.offset or p.covered else local
    low = list(p.offset) if p.offset else [0] * len(local)
    if len(inner) != len(logical):
        raise NoPlace(f"shape {list(local)} for {list(logical)}")
    inner = tuple(inner)
    if microbatches > 1:
        if not inner or logical[0] % microbatches:
            raise NoPlace("a microbatch of a tensor without a batch dimension")
        low[0] += microbatch * inner[0]
        inner = (inner[0] * microbatches,) + inner[1:]
    if inner == logical:
        # of what does not depend on the batch: each rank has its samples' part (a proposal: what is
        # wrong is not used)
        if tracked.gradient:
            total += [
                a
                for a in cuts
                if mesh.sizes[a] > 1 and a not in p.covered and a not in p.shared and a not in total
            ]
        return Box(tuple(low), tuple(total), divisor)
    rest = [a for a in mesh.names if mesh.sizes[a] > 1 and a not in p.covered and a not in total]
    ratios = []
    for whole, part in zip(logical, inner):
        if part == 0 or whole % part:
            raise NoPlace(f"shape {list(inner)} does not divide {list(logical)}")
        ratios.append(whole // part)
    found = _assign(
        rest,
        ratios,
        mesh,
        cuts,
        batch=not p.parameter and (tracked.role != "input" or tracked.name.startswith("%random")),
    )
    if found is None:
        raise NoPlace(f"shape {list(inner)} of {list(logical)} fits no axes of the mesh")
    for dim in range(len(inner)):
        low[dim] += mesh.position([a for a in rest if found.get(a) == dim], at) * inner[dim]
    return Box(tuple(low), tuple(total), divisor, guessed=True)


def refine(
    box: Box, logical: Shape, local: Shape, logical_base: Shape, local_base: Shape
) -> Box | None:
    """The box of the same elements in the shapes in which the tensors were made.

    Their dimensions divide those of the views. None where they do not, or it is no box there.
    """
    low: list[int] = []
    at = 0
    for whole, part, start in zip(logical, local, box.low):
        wholes: list[int] = []
        parts: list[int] = []
        while at < len(logical_base) and (
            numel(tuple(wholes)) < whole or whole == 1 and not wholes
        ):
            if at >= len(local_base):
                return None
            wholes.append(logical_base[at])
            parts.append(local_base[at])
            at += 1
        if numel(tuple(wholes)) != whole or numel(tuple(parts)) != part:
            return None
        cut = [i for i, (n, m) in enumerate(zip(wholes, parts)) if n != m]
        if any(n != 1 for n in parts[: cut[-1] if cut else 0]):
            return None  # rows of several stretches
        for i, n in enumerate(wholes):
            inner = numel(tuple(wholes[i + 1 :]))
            low.append(start // inner)
            start %= inner
            if low[-1] + parts[i] > n:
                return None
        if start:
            return None
    if any(n != 1 for n in (*logical_base[at:], *local_base[at:])) or len(logical_base) != len(
        local_base
    ):
        return None
    low += [0] * (len(logical_base) - at)
    return Box(tuple(low), box.total, box.divisor, box.guessed)


def _from_shard(
    shard: Mapping[str, int],
    logical: Shape,
    local: Shape,
    mesh: Mesh,
    at: Mapping[str, int],
    total: Sequence[str],
    divisor: int,
) -> Box:
    size, low = list(logical), [0] * len(logical)
    for axis in mesh.names:
        if axis in shard and mesh.sizes[axis] > 1:
            dim = shard[axis] % len(size) if size else 0
            if not size or size[dim] % mesh.sizes[axis]:
                raise NoPlace(
                    f"{axis} does not cut dimension {dim} of {list(logical)} into equal parts"
                )
            size[dim] //= mesh.sizes[axis]
            low[dim] += size[dim] * at[axis]
    if tuple(size) != tuple(local):
        raise NoPlace(
            f"shard={dict(shard)} gives shape {size}, but the local tensor has {list(local)}"
        )
    return Box(tuple(low), tuple(total), divisor)


def _assign(
    axes: Sequence[str],
    ratios: Sequence[int],
    mesh: Mesh,
    cuts: Mapping[str, set[int]],
    batch: bool,
) -> dict[str, int] | None:
    """Which axis cuts which dimension so that the sizes match.

    Axes that cut inputs come first (for parameters: last), then the outermost axes.
    """
    choices = list(itertools.product([None, *range(len(ratios))], repeat=len(axes)))

    def penalty(choice: Sequence[int | None]) -> tuple[int, int]:
        wrong = 0
        for axis, dim in zip(axes, choice):
            data = axis in cuts if cuts else axis in DATA_NAMES
            if batch:
                wrong += (
                    0
                    if data == (dim is not None and (not cuts or dim in cuts.get(axis, {dim})))
                    else 1
                )
            else:
                wrong += 1 if data and dim is not None else 0
        return wrong, sum(1 for d in choice if d is not None)

    best: tuple[tuple[int, int], dict[str, int]] | None = None
    for choice in choices:
        product = [1] * len(ratios)
        for axis, dim in zip(axes, choice):
            if dim is not None:
                product[dim] *= mesh.sizes[axis]
        if product == list(ratios):
            p = penalty(choice)
            if best is None or p < best[0]:
                best = (p, {a: d for a, d in zip(axes, choice) if d is not None})
    return best[1] if best else None
