# SPDX-License-Identifier: Apache-2.0
"""All that is replaced in PyTorch while a step is recorded. As private as `compat.private`."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed import device_mesh

from ..compat.context_parallel import on_cpu
from ..compat.data_loading import in_this_process
from ..compat.private import Undo, changes, current_node, replace_everywhere, set_attribute, unfaked
from . import data_parallel
from .devices import OnCPU
from .dtensor import patch_shape_propagation, patch_sharding_strategies
from .fully_sharded import patch_fsdp
from .hooks import Hooks
from .pipelines import patch_pipelines
from .process_groups import patch_process_groups
from .row_exchange import patch_row_exchanges
from .tensors import circular, patch_compilers, patch_deepcopy, patch_format

_OF_A_MESH = (
    "__init__",
    "__getitem__",
    "_flatten",
    "_unflatten",
    "get_group",
    "get_local_rank",
    "size",
    "get_coordinate",
)


@contextlib.contextmanager
def patched(hooks: Hooks) -> Iterator[None]:
    """All patches hold inside."""
    with changes() as undo:
        _meshes(undo, hooks)
        _memory(undo, hooks)
        _backward(undo, hooks)
        replace_everywhere([(torch.nn.functional.pad, circular(torch.nn.functional.pad))], undo)
        patch_process_groups(undo, hooks)
        patch_row_exchanges(undo, hooks)
        patch_shape_propagation(undo, hooks)
        patch_sharding_strategies(undo)
        data_parallel.forget_unused()
        data_parallel.patch_ddp(undo, hooks)
        patch_pipelines(undo, hooks)
        patch_deepcopy(undo)
        patch_format(undo)
        patch_compilers(undo)
        patch_fsdp(undo, hooks)
        in_this_process(undo, hooks.loaders)
        on_cpu(undo)
        # What the checks of distributions look at is data; they compute nothing.
        set_attribute(torch.distributions.Distribution, "_validate_args", False, undo)
        yield


def _meshes(undo: Undo, hooks: Hooks) -> None:
    """A DeviceMesh is made of real tensors, on the CPU."""
    mesh = device_mesh.DeviceMesh
    for name in _OF_A_MESH:
        if name in vars(mesh):
            set_attribute(mesh, name, unfaked(vars(mesh)[name]), undo)
    make, old_init = unfaked(device_mesh.init_device_mesh), mesh.__init__

    def init_device_mesh(device_type: Any, *args: Any, **kwargs: Any) -> Any:
        return make("cpu", *args, **kwargs)

    def mesh_init(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
        constants = {k: hooks.constant(x) for k, x in kwargs.items()}
        old_init(self, "cpu", *[hooks.constant(x) for x in args], **constants)

    set_attribute(mesh, "__init__", mesh_init, undo)
    replace_everywhere([(device_mesh.init_device_mesh, init_device_mesh)], undo)


def _memory(undo: Undo, hooks: Hooks) -> None:
    storage = torch.UntypedStorage
    old_resize = storage.resize_

    def resize(self: Any, size: Any) -> Any:
        if int(size) == 0:
            hooks.freed(self._cdata)
        return old_resize(self, size)

    set_attribute(storage, "resize_", resize, undo)
    # Fake tensors are referred to by their mode: module.to_empty() swaps them all the same.
    set_attribute(torch.utils, "weakref", types.SimpleNamespace(getweakrefs=lambda t: []), undo)


def _backward(undo: Undo, hooks: Hooks) -> None:
    old_backward = torch.autograd.backward

    @functools.wraps(old_backward)
    def backward(*args: Any, **kwargs: Any) -> None:
        if current_node() is None:
            hooks.before_backward(args[0] if args else kwargs.get("tensors"))
        old_backward(*args, **kwargs)
        if current_node() is None:
            data_parallel.after_backward()
            hooks.after_backward()

    old_run = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if current_node() is None:
            hooks.differentiates()
        with OnCPU(hooks.devices):  # Tensor.backward has left the mode that is around the step
            return old_run(*args, **kwargs)

    replace_everywhere([(old_backward, backward), (old_run, run_backward)], undo)
