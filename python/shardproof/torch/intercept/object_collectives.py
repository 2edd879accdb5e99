# SPDX-License-Identifier: Apache-2.0
"""Python objects that ranks exchange (`all_gather_object` and the like).

They are configurations, names, counts, and no part of the program but for their order among its
collectives. What a rank gives is put into the mailbox. A rank that takes what another has not given
yet is recorded once more after that one (ranks.RankRecorder). An object is pickled, as with real
processes: what is taken is a copy, and a number that depends on data stays one.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from ..compat.private import changes, group_ranks, replace_everywhere
from ..distributed.collectives import NotSent
from ..distributed.mailbox import Mailbox, MissingMetadata


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            raise NotSent(
                "a tensor is given to other ranks inside of a Python object (all_gather_object and "
                "the like), which is not followed"
            )
        return NotImplemented


def _pickled(obj: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(obj)
    return buffer.getvalue()


def _members(group: Any) -> tuple[int, ...]:
    return group_ranks(dist.group.WORLD if group is None else group)


class _Objects:
    def __init__(self, mailbox: Mailbox, rank: int, next_call: Callable[[str], str]) -> None:
        self.mailbox, self.rank, self.next_call = mailbox, rank, next_call

    def meet(
        self, group: Any, name: str, giving: list[tuple[Any, Any]], taken: list[tuple[int, Any]]
    ) -> list[Any]:
        """One call. giving: (key, object). taken: (rank, key).

        All members wait for each other, as far as the order of collectives is concerned.
        """
        call = self.next_call(f"objects of {_members(group)}")
        for key, given in giving:
            self.mailbox[(name, call, self.rank, key)] = _pickled(given)
        dist.barrier(group)
        for rank, key in taken:
            if (name, call, rank, key) not in self.mailbox:
                raise MissingMetadata(f"{name} waits for rank {rank}, which never calls it", rank)
        return [pickle.loads(self.mailbox[(name, call, rank, key)]) for rank, key in taken]

    @staticmethod
    def _root(group: Any, rank: int | None, in_group: int | None) -> int:
        return _members(group)[in_group] if in_group is not None else 0 if rank is None else rank

    def all_gather(self, object_list: list[Any], obj: Any, group: Any = None) -> None:
        members = _members(group)
        if self.rank in members:
            object_list[: len(members)] = self.meet(
                group, "all_gather_object", [(None, obj)], [(r, None) for r in members]
            )

    def gather(
        self,
        obj: Any,
        object_gather_list: list[Any] | None = None,
        dst: int | None = None,
        group: Any = None,
        group_dst: int | None = None,
    ) -> None:
        members = _members(group)
        if self.rank not in members:
            return
        here = self._root(group, dst, group_dst) == self.rank
        taken = self.meet(
            group, "gather_object", [(None, obj)], [(r, None) for r in members] if here else []
        )
        if here:
            if object_gather_list is None:
                # as in PyTorch
                raise ValueError(
                    "Argument object_gather_list must be specified on destination rank."
                )
            object_gather_list[: len(members)] = taken

    def broadcast(
        self,
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        if self.rank not in _members(group):
            return
        root = self._root(group, src, group_src)
        given = self.meet(
            group,
            "broadcast_object_list",
            [(None, list(object_list))] if root == self.rank else [],
            [(root, None)],
        )[0]
        if len(given) != len(object_list):
            raise RuntimeError(
                f"broadcast_object_list: rank {root} gives {len(given)} objects, rank {self.rank} "
                f"takes {len(object_list)}"
            )
        if root != self.rank:
            object_list[:] = given

    def scatter(
        self,
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        src: int | None = None,
        group: Any = None,
        group_src: int | None = None,
    ) -> None:
        members = _members(group)
        if self.rank not in members:
            return
        root = self._root(group, src, group_src)
        giving = list(zip(members, scatter_object_input_list or [])) if root == self.rank else []
        scatter_object_output_list[0] = self.meet(
            group, "scatter_object_list", giving, [(root, self.rank)]
        )[0]


@contextlib.contextmanager
def objects_exchanged(
    mailbox: Mailbox, rank: int, next_call: Callable[[str], str]
) -> Iterator[None]:
    """Inside, these replace PyTorch's. next_call: the index of a call of that name."""
    ours = _Objects(mailbox, rank, next_call)
    with changes() as undo:
        replace_everywhere(
            [
                (c10d.all_gather_object, ours.all_gather),
                (c10d.gather_object, ours.gather),
                (c10d.broadcast_object_list, ours.broadcast),
                (c10d.scatter_object_list, ours.scatter),
            ],
            undo,
        )
        yield
