# SPDX-License-Identifier: Apache-2.0
"""Process groups while a step is recorded. As private as `compat.private`.

Asynchronous calls and their waits, coalesced calls, batches of messages.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.utils._pytree import tree_flatten

from ..compat.private import Undo, reducing, replace_everywhere, set_attribute
from .data_number import DataDependent
from .hooks import Asynchronous, Hooks


class _Pending(dist.Work):
    """What an asynchronous call returns: the operator's own work, whose wait is noted."""

    def __init__(
        self, work: Any, token: object, listener: Asynchronous, written: list[torch.Tensor]
    ) -> None:
        super().__init__()
        self._work, self._token, self._listener, self._written = work, token, listener, written

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self._listener.wait(self._token)
        return self._work.wait(*args, **kwargs)

    def block_current_stream(self, *args: Any, **kwargs: Any) -> Any:
        self._listener.wait(self._token)

    def is_completed(self) -> bool:
        raise DataDependent(
            "the program asks whether communication is done (Work.is_completed()): what it does "
            "next depends on time"
        )

    def is_success(self) -> bool:
        return bool(self._work.is_success())

    def get_future(self) -> Any:
        """A future that is done, with what the operator writes.

        Its owner waits for it in ways that are not seen.
        """
        self._listener.given_away(self._token)
        future: Any = torch.futures.Future()
        future.set_result(self._written)
        return future


class _Several(dist.Work):
    """Of several asynchronous calls that are waited for together."""

    def __init__(self, works: list[Any]) -> None:
        super().__init__()
        self._works = works

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        for work in self._works:
            work.wait(*args, **kwargs)
        return True

    def is_completed(self) -> bool:
        return True


def _first_tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """What a method of a process group writes: the tensors of its first operand that has any."""
    for operand in (*args, *kwargs.values()):
        found = [t for t in tree_flatten(operand)[0] if isinstance(t, torch.Tensor)]
        if found:
            return found
    return []


_METHODS = (
    "allreduce",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "_allgather_base",
    "reduce_scatter",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "broadcast",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "reduce",
    "gather",
    "scatter",
)
_COALESCED = {
    "allreduce_coalesced": "allreduce",
    "all_gather_single_coalesced": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single",
    "reduce_scatter_single_coalesced": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single",
}
_MESSAGES = ("irecv", "isend")


def patch_process_groups(undo: Undo, hooks: Hooks) -> None:
    """Methods of process groups, which all of torch.distributed calls, return a work of ours.

    It shows what is read before its wait. So do messages: the functions, not the group's methods,
    as a batch calls these, too.
    """

    listener = hooks.asynchronous

    def issuing(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            listener.begin()
            work: Any = None
            try:
                with reducing(args, kwargs):
                    work = original(*args, **kwargs)
            finally:
                pending = isinstance(work, dist.Work)
                token = listener.end(pending)
            if not pending:
                return work
            ours = _Pending(work, token, listener, _first_tensors(args, kwargs))
            if args and id(args[0]) in together:
                together[id(args[0])].append(ours)
            return ours

        return call

    def start(group: Any, *args: Any) -> None:
        together[id(group)] = []

    def end(group: Any, *args: Any) -> Any:
        return _Several(together.pop(id(group), []))

    # what a group has begun since it coalesces calls, which are waited for at once
    together: dict[int, list[Any]] = {}
    for name, f in (("_start_coalescing", start), ("_end_coalescing", end)):
        set_attribute(dist.ProcessGroup, name, f, undo)

    def one_by_one(single: str) -> Any:
        """Fake tensors have no coalesced collectives: each of theirs."""

        def call(self: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if single == "allreduce":
                options = c10d.AllreduceOptions()
                options.reduceOp = next(
                    (x.reduceOp for x in (*args, *kwargs.values()) if hasattr(x, "reduceOp")),
                    dist.ReduceOp.SUM,
                )
                return _Several([self.allreduce([t], options) for t in tensors])
            return _Several(
                [
                    getattr(self, single)(out, source, *args[1:], **kwargs)
                    for out, source in zip(tensors, args[0])
                ]
            )

        return call

    for name, single in _COALESCED.items():
        if hasattr(dist.ProcessGroup, name):
            set_attribute(dist.ProcessGroup, name, one_by_one(single), undo)
    for name in _METHODS:
        if hasattr(dist.ProcessGroup, name):
            set_attribute(dist.ProcessGroup, name, issuing(getattr(dist.ProcessGroup, name)), undo)
    old_batch = c10d.batch_isend_irecv

    @functools.wraps(old_batch)
    def batch(operations: Any) -> Any:
        hooks.batch(operations)
        try:
            return old_batch(operations)
        finally:
            hooks.batch(None)

    messages = [(getattr(c10d, name), issuing(getattr(c10d, name))) for name in _MESSAGES]
    replace_everywhere([(old_batch, batch), *messages], undo)
