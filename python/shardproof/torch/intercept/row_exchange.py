# SPDX-License-Identifier: Apache-2.0
"""All-to-alls of numbers of rows that depend on data: their sizes are no numbers to C++."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from ..compat.private import Undo, replace_everywhere, set_attribute
from .hooks import Hooks
from .row_count import count_among


class _Done(dist.Work):
    """What was exchanged already."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class _Exchanged(torch.autograd.Function):
    """Rows that are exchanged; their gradients go back the same way."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, received: Any, sent: Any, group: Any, hooks: Hooks
    ) -> torch.Tensor:
        ctx.given = received, sent, group, hooks
        return hooks.exchange_rows(None, x, received, sent, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        received, sent, group, hooks = ctx.given
        back = hooks.exchange_rows(None, gradients[0], sent, received, group)
        return back, None, None, None, None


def patch_row_exchanges(undo: Undo, hooks: Hooks) -> None:
    functional_one = functional.all_to_all_single

    def of_group(original: Any) -> Any:
        @functools.wraps(original)
        def exchange(self: Any, out: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            args = tuple(x.tolist() if isinstance(x, torch.Tensor) else x for x in args)
            if count_among(args) is None:
                return original(self, out, source, *args, **kwargs)
            hooks.exchange_rows(out, source, args[0], args[1], self)
            return _Done()

        return exchange

    @functools.wraps(functional_one)
    def all_to_all_single(
        x: torch.Tensor, received: Any, sent: Any, group: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if count_among([received or (), sent or ()]) is None:
            return functional_one(x, received, sent, group, *args, **kwargs)
        name = functional._resolve_group_name(group, *args)
        return _Exchanged.apply(x, received, sent, name, hooks)

    for name in ("all_to_all_single", "alltoall_base"):
        if hasattr(dist.ProcessGroup, name):
            original = getattr(dist.ProcessGroup, name)
            set_attribute(dist.ProcessGroup, name, of_group(original), undo)
    replace_everywhere([(functional_one, all_to_all_single)], undo)
