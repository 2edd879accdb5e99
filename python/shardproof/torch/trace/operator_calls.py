# SPDX-License-Identifier: Apache-2.0
"""Operators of ATen as their schemas describe them, and one call of one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch


class Call:
    """One operator call, for lowerings.

    outs: ATen's results, as shapes. given: the tensors among the operands, of which few lowerings
    need the layout in memory.
    """

    def __init__(
        self,
        recorder: Any,
        name: str,
        overload: str,
        outs: list[Any],
        given: Sequence[Any] = (),
    ) -> None:
        self.recorder, self.name, self.overload, self.outs, self.given = (
            recorder,
            name,
            overload,
            outs,
            given,
        )

    def shape(self, i: int = 0) -> tuple[int, ...]:
        return tuple(self.outs[i].shape)

    def of_result(self, i: int) -> Call:
        """The call that makes the i-th result alone, of an operator on lists."""
        outs = self.outs[i : i + 1] or self.outs
        return Call(self.recorder, self.name, self.overload, outs, self.given)


@functools.cache
def name_of(func: Any) -> tuple[str, str]:
    """The namespace, and the name as tables have it."""
    namespace, _, base = func._schema.name.partition("::")
    return namespace, f"{namespace}.{base}"


def new_results(func: Any, out: Any) -> list[Any]:
    """The results that are no operands which the operator has written: of a real tensor, a fake
    operator gives another one.
    """
    results = list(out) if isinstance(out, (list, tuple)) else [out]
    returns = func._schema.returns
    if len(returns) != len(results):
        return results
    return [
        x for x, r in zip(results, returns) if r.alias_info is None or not r.alias_info.is_write
    ]


@functools.cache
def arguments_of(func: Any) -> list[tuple[int, str, bool, bool, bool]]:
    """Each operand's position and name; whether it is keyword-only, written, and only written."""
    return [
        (i, a.name, a.kwarg_only, a.alias_info is not None and a.alias_info.is_write, a.is_out)
        for i, a in enumerate(func._schema.arguments)
    ]


@functools.cache
def writes_operands(func: Any) -> bool:
    return any(is_written for _, _, _, is_written, _ in arguments_of(func))


@functools.cache
def is_view(func: Any) -> bool:
    return func.is_view or any(
        r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns
    )


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether ATen makes it of other operators, which comes here whole from below autograd."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(func._can_decompose() and has_kernel(func.name(), "CompositeImplicitAutograd"))
