# SPDX-License-Identifier: Apache-2.0
"""What a script does as one of several processes: it starts them, and saves and loads files.

The processes that a script starts (`torch.multiprocessing.spawn`) are the ranks, and one of them is
recorded at a time. So its function is called here, with this rank. On the single device a number
of processes among its arguments is 1, as the script would give it on one device.

`torch.save` writes no file, as its tensors hold no numbers. What was saved is kept, and
`torch.load` of the same file gives it back. What another rank has saved is not followed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ..compat.private import changes, outside, replace_everywhere, tree_map
from ..distributed.mailbox import Mailbox
from ..distributed.mesh import Mesh
from ..terms import assumptions
from ..terms.assumptions import Assumption
from ..terms.values import NotFollowed


class Processes:
    """The processes and files of one recording. assume: notes an assumption."""

    def __init__(
        self, mesh: Mesh, rank: int, mailbox: Mailbox, assume: Callable[[Assumption], None]
    ) -> None:
        self.mesh, self.rank, self.mailbox, self.assume = mesh, rank, mailbox, assume
        self.files: dict[Any, Any] = {}

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Calls of PyTorch arrive here inside."""
        self._load, self._init = torch.load, dist.init_process_group
        with changes() as undo:
            replace_everywhere(
                [
                    (mp.spawn, self._spawn),
                    (mp.start_processes, self._spawn),
                    (torch.save, self._save),
                    (torch.load, self._loaded),
                    (dist.init_process_group, self._initialised),
                ],
                undo,
            )
            yield

    def _count(self, count: int, call: str) -> None:
        """A script has so many processes. Raises NotFollowed where the mesh has others."""
        if self.mesh.world > 1 and count != self.mesh.world:
            raise NotFollowed(
                f"{call} is for {count} processes, and the mesh has {self.mesh.world} ranks"
            )

    def _spawn(
        self,
        fn: Callable[..., Any],
        args: Any = (),
        nprocs: int = 1,
        join: bool = True,
        *others: Any,
        **options: Any,
    ) -> Any:
        self._count(nprocs, "torch.multiprocessing.spawn")
        if self.mesh.world == 1 and nprocs != 1:
            if any(type(x) is int and x == nprocs for x in args):
                self.assume(assumptions.processes_among_arguments(nprocs))
            args = tuple(1 if type(x) is int and x == nprocs else x for x in args)
        fn(self.rank, *args)
        return None if join else _Joined()

    def _initialised(self, *args: Any, **kwargs: Any) -> None:
        size = args[3] if len(args) > 3 else kwargs.get("world_size", -1)
        if type(size) is int and size > 0 and size != self.mesh.world:
            self._count(size, "init_process_group")
            self.assume(assumptions.other_world_size(size))
        self._init(*args, **kwargs)

    def _save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        key = _file(f)
        self.files[key] = _copied(obj)
        if isinstance(key, str):
            self.mailbox["saved", key] = self.rank

    def _loaded(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        key = _file(f)
        if key in self.files:
            return _copied(self.files[key])
        if ("saved", key) in self.mailbox:
            raise NotFollowed(
                f"torch.load of a file that rank {self.mailbox['saved', key]} has saved in this "
                f"run ({os.path.basename(key)}) is not followed on rank {self.rank}"
            )
        # the file's numbers, on the CPU, which every device is here
        without = {k: v for k, v in kwargs.items() if k != "map_location"}
        with outside():
            return self._load(f, "cpu", *args[1:], **without)


class _Joined:
    """Processes that have ended."""

    processes: tuple[Any, ...] = ()

    def join(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


def _file(f: Any) -> Any:
    if isinstance(f, (str, os.PathLike)):
        return os.path.abspath(os.fspath(f))
    return id(f)


def _copied(obj: Any) -> Any:
    """With tensors of their own memory, as a file has them."""

    def copied(x: Any) -> Any:
        return x.detach().clone() if isinstance(x, torch.Tensor) else x

    with torch.no_grad():
        return tree_map(copied, obj)


__all__ = ["Processes"]
