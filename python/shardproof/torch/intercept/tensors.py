# SPDX-License-Identifier: Apache-2.0
"""Functions and methods of tensors while a step is recorded: padding, copies, printing, compilers.

As private as `compat.private`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..compat.private import Undo, replace_everywhere, set_attribute, storage_key
from ..compat.refusals import fail


def circular(old: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch.nn.functional.pad, with circular padding as a concatenation of parts of the tensor.

    ATen writes it piece by piece, and reads what it has not written yet.
    """

    @functools.wraps(old)
    def pad(
        input: torch.Tensor, pad: Any, mode: str = "constant", value: Any = None
    ) -> torch.Tensor:
        sides = [
            (d, int(before), int(behind))
            for d, before, behind in zip(range(-1, -len(pad), -1), pad[::2], pad[1::2])
        ]
        if mode != "circular" or any(
            not 0 <= n <= input.shape[d] for d, before, behind in sides for n in (before, behind)
        ):
            return old(input, pad, mode, value)
        for d, before, behind in sides:
            n = input.shape[d]
            input = torch.cat(
                [input.narrow(d, n - before, before), input, input.narrow(d, 0, behind)], d
            )
        return input

    return pad


def patch_compilers(undo: Undo) -> None:
    """torch.compile, torch.jit.script and torch.jit.trace compile nothing.

    What they give (for torch.compile with its names of parameters) runs eagerly.
    """

    def compile(model: Any = None, **options: Any) -> Any:
        return torch._dynamo.disable(model) if model is not None else torch._dynamo.disable

    def compile_module(self: torch.nn.Module, *args: Any, **options: Any) -> None:
        """Stays as it is."""

    def uncompiled(obj: Any, *args: Any, **options: Any) -> Any:
        return obj

    replace_everywhere(
        [(torch.compile, compile), (torch.jit.script, uncompiled), (torch.jit.trace, uncompiled)],
        undo,
    )
    set_attribute(torch.nn.Module, "compile", compile_module, undo)


def patch_deepcopy(undo: Undo) -> None:
    """copy.deepcopy of a tensor clones it.

    PyTorch's own gives memory that changes its identity with every view.
    """

    def deepcopy(self: Any, memo: dict[Any, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "only tensors that are leaves of the graph can be copied by copy.deepcopy"
            )
        key = ("shardproof memory", storage_key(self))
        if key in memo:
            raise fail(
                NotImplementedError(
                    "shardproof: copy.deepcopy of two tensors that share memory is not supported"
                )
            )
        memo[key] = True
        with torch.no_grad():
            new = self.detach().clone(memory_format=torch.preserve_format)
        for name, value in self.__dict__.items():
            if name not in new.__dict__:
                new.__dict__[name] = copy.deepcopy(value, memo)
        if self.requires_grad:
            new.requires_grad_()
        if self.grad is not None:
            new.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = new
        return new

    set_attribute(FakeTensor, "__deepcopy__", deepcopy, undo)


def patch_format(undo: Undo) -> None:
    """f"{loss:.3f}" prints a number; torch knows only of plain tensors that they are."""

    def as_text(self: Any, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    set_attribute(FakeTensor, "__format__", as_text, undo)
