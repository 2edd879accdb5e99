# SPDX-License-Identifier: Apache-2.0
"""What a training step is given: who it is, its meshes and groups, and its batch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..distributed.mesh import Mesh


class Backend(Protocol):
    """Who runs the step: the recorder, or real processes."""

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        shard: Mapping[str, int],
        box: list[tuple[int, int]],
        high: int | None,
    ) -> torch.Tensor: ...

    def output(
        self,
        name: str,
        tensor: torch.Tensor,
        shard: Mapping[str, int] | None,
        mean: Sequence[str] | None,
        total: Sequence[str],
    ) -> None: ...

    def parameters(
        self, model: torch.nn.Module, shard: Mapping[str, Mapping[str, int]], name: str
    ) -> None: ...


class World:
    """One rank's view. At world size 1 every axis has size 1: the step is then the model.

    rank: 0 up to size. coordinates, sizes: by mesh axis.
    """

    def __init__(self, mesh: Mesh, rank: int, backend: Backend) -> None:
        self._mesh, self._backend = mesh, backend
        self.rank, self.size = rank, mesh.world
        self.sizes: dict[str, int] = dict(mesh.sizes)
        self.coordinates: dict[str, int] = mesh.coordinates(rank)
        self._device_mesh: Any = None

    @property
    def single(self) -> bool:
        """Whether this is the single device."""
        return self.size == 1

    def mesh(self, *axes: str) -> Any:
        """The torch DeviceMesh of these axes (none named: of all). Raises KeyError for an unknown
        axis.
        """
        from torch.distributed.device_mesh import init_device_mesh

        if self._device_mesh is None:
            self._device_mesh = init_device_mesh(
                "cpu", tuple(self._mesh.sizes.values()), mesh_dim_names=self._mesh.names
            )
        wanted = axes or self._mesh.names
        for axis in wanted:
            if axis not in self.sizes:
                raise KeyError(f"the mesh has no axis {axis!r}: {', '.join(self._mesh.names)}")
        return (
            self._device_mesh
            if tuple(wanted) == self._mesh.names
            else self._device_mesh[tuple(wanted) if len(wanted) > 1 else wanted[0]]
        )

    def group(self, *axes: str) -> dist.ProcessGroup:
        """The process group of the ranks that differ from this one in these axes only.

        Raises KeyError for an unknown axis.
        """
        mesh = self.mesh(*axes)
        if len(axes) > 1:
            mesh = mesh._flatten()
        return mesh.get_group()

    def input(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype = torch.float32,
        *,
        shard: Mapping[str, int] | None = None,
        high: int | None = None,
    ) -> torch.Tensor:
        """A tensor of the batch. Returns this rank's part.

        shape: of the whole batch. shard: mesh axis -> dimension that it cuts. high: integers are
        drawn below it when the step runs on real processes. Raises ValueError for a dimension that
        does not divide, and KeyError for an unknown axis.
        """
        shard = dict(shard or {})
        size = [int(n) for n in shape]
        low = [0] * len(size)
        for axis in self._mesh.names:
            if axis in shard:
                dim = shard[axis] % len(size)
                if size[dim] % self.sizes[axis]:
                    raise ValueError(
                        f"input {name!r}: dimension {dim} of size {size[dim]} cannot be cut into "
                        f"{self.sizes[axis]} equal parts along {axis!r}"
                    )
                size[dim] //= self.sizes[axis]
                low[dim] += size[dim] * self.coordinates[axis]
        unknown = set(shard) - set(self._mesh.names)
        if unknown and not self.single:
            raise KeyError(f"input {name!r}: the mesh has no axis {', '.join(sorted(unknown))}")
        return self._backend.input(
            name,
            tuple(int(n) for n in shape),
            dtype,
            shard,
            [(a, a + n) for a, n in zip(low, size)],
            high,
        )

    def output(
        self,
        name: str,
        tensor: torch.Tensor,
        *,
        shard: Mapping[str, int] | None = None,
        mean: Sequence[str] | None = None,
        sum: Sequence[str] = (),
    ) -> None:
        """A result beside what the step returns.

        mean, sum: axes over which the ranks' values make the model's. shard: mesh axis -> dimension
        that it cuts. The step ends with CaptureError for a name that is empty, begins with % or is
        used twice.
        """
        self._backend.output(name, tensor, shard, mean, sum)

    def parameters(
        self,
        model: torch.nn.Module,
        shard: Mapping[str, Mapping[str, int]] | None = None,
        *,
        name: str = "",
    ) -> torch.nn.Module:
        """Gives the placement of parameters that are no DTensors. Returns the model.

        shard: regular expression of the name -> {axis: dimension}; the first that matches counts. A
        model whose parameters are DTensors or whole needs no call: it is found at its first
        forward. name: what names of its parameters begin with, where several models have the same
        ones and not all ranks make all models. Raises re.error for a wrong expression.
        """
        for pattern in shard or {}:
            re.compile(pattern)
        self._backend.parameters(model, shard or {}, name)
        return model
