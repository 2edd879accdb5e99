# SPDX-License-Identifier: Apache-2.0
"""Both versions of FSDP while a step is recorded. As private as `compat.private`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..compat.private import Undo, replace_everywhere, set_attribute
from .hooks import Hooks


class Pieces(Sequence[torch.Tensor]):
    """The pieces that torch.chunk cuts a tensor into, each cut when it is used.

    There are empty ones where it has fewer pieces.
    """

    def __init__(self, tensor: torch.Tensor, pieces: int, dim: int) -> None:
        self._tensor, self._pieces, self._dim = tensor, pieces, dim

    def __len__(self) -> int:
        return self._pieces

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(self._pieces))]
        i = range(self._pieces)[i]
        extent = self._tensor.size(self._dim)
        most = -(-extent // self._pieces)
        start = min(i * most, extent)
        if extent and start == extent:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(most, extent - start))


def patch_fsdp(undo: Undo, hooks: Hooks) -> None:
    """FSDP2 reports the ranks that add up gradients, and the gradient of a gathered parameter when
    it is about to be reduced.

    It cuts only the pieces of a parameter that it takes. FSDP's first version takes the CPU for the
    GPU to which a script has moved its model.
    """
    from torch.distributed.fsdp import _init_utils
    from torch.distributed.fsdp._fully_shard import _fsdp_common
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    handle = _init_utils._init_device_handle

    def on_cpu(state: Any, module: Any, ignored: Any, device_id: Any) -> Any:
        return handle(
            state, module, ignored, torch.device("cpu") if device_id is None else device_id
        )

    replace_everywhere(
        [(_fsdp_common._chunk_with_empty, Pieces), (handle, on_cpu)],
        undo,
    )

    old_init = FSDPParam.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        old_init(self, *args, **kwargs)
        for group in ("shard_process_group", "replicate_process_group"):  # ranks have own samples
            if (ranks := getattr(self.mesh_info, group, None)) is not None:
                hooks.synchronised([], ranks, 0)

    set_attribute(FSDPParam, "__init__", init, undo)
    original = FSDPParam._get_grad_inner_tensor

    def inner(self: Any, grad: torch.Tensor) -> torch.Tensor:
        local = original(self, grad)
        if not self.mesh_info.is_spmd_mesh:
            hooks.unreduced(self._unsharded_param, local)
        return local

    set_attribute(FSDPParam, "_get_grad_inner_tensor", inner, undo)
