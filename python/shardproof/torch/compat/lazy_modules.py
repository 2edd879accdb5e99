# SPDX-License-Identifier: Apache-2.0
"""Parameters and buffers of lazy modules (nn.LazyLinear) as fake tensors. As private as `private`.

Torch makes them as tensors without elements, of a class of their own, which a fake tensor cannot
become. So they are real ones here until their shape is known; then each becomes a fake tensor and
stays the same Python object, as optimizers may have it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import (
    Parameter,
    UninitializedBuffer,
    UninitializedParameter,
    UninitializedTensorMixin,
)

from .private import changes, outside, set_attribute


@contextlib.contextmanager
def lazy_as_fake() -> Iterator[None]:
    """While a step is recorded."""

    def empty(device: Any, dtype: Any) -> torch.Tensor:
        meta = device is not None and torch.device(device).type == "meta"
        return torch.empty(0, device="meta" if meta else "cpu", dtype=dtype)

    def parameter(
        cls: Any, requires_grad: bool = True, device: Any = None, dtype: Any = None
    ) -> Any:
        with outside():
            return torch.Tensor._make_subclass(cls, empty(device, dtype), requires_grad)

    def buffer(
        cls: Any,
        requires_grad: bool = False,
        device: Any = None,
        dtype: Any = None,
        persistent: bool = True,
    ) -> Any:
        with outside():
            made = torch.Tensor._make_subclass(cls, empty(device, dtype), requires_grad)
        made.persistent = persistent
        made._is_buffer = True
        return made

    def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        with outside():
            old = self.data
            trained = self.requires_grad
        made: Any = torch.empty(shape, device=device or old.device, dtype=dtype or old.dtype)
        if isinstance(self, UninitializedParameter):
            made = Parameter(made, requires_grad=trained)
        # what torch.utils.swap_tensors does, which refuses an object that something refers to
        # weakly
        self.__class__, made.__class__ = made.__class__, self.__class__
        self.__dict__, made.__dict__ = {**self.__dict__, **made.__dict__}, {}
        torch._C._swap_tensor_impl(self, made)

    with changes() as undo:
        set_attribute(UninitializedParameter, "__new__", staticmethod(parameter), undo)
        set_attribute(UninitializedBuffer, "__new__", staticmethod(buffer), undo)
        set_attribute(UninitializedTensorMixin, "materialize", materialize, undo)
        yield
