# SPDX-License-Identifier: Apache-2.0
"""What a script does as one of several processes: it starts them, and saves and loads files.

The processes that a script starts (`torch.multiprocessing.spawn`, `multiprocessing.Process`) are
the ranks, and one of them is recorded at a time. So its function is called here, with this rank. On
the single device a number of processes among its arguments is 1, as the script would give it on one
device.

`torch.save` (`safetensors.torch.save_file`) writes no file, as its tensors hold no numbers. What
was saved is kept, and `torch.load` of the same file gives it back. On another rank it gives tensors
that begin with what the saving rank had (`Files`), where a barrier is between. The file exists for
the program until it removes it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import io
import math
import multiprocessing
import os
import pathlib
import pickle
import re
import shutil
import types
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed import device_mesh

from ..compat.private import changes, outside, replace_everywhere, set_attribute, tree_map
from ..compat.user_code import is_own
from ..distributed.exchange import Groups
from ..distributed.mailbox import MissingMetadata
from ..terms import assumptions
from ..terms.assumptions import Assumption
from ..terms.values import NotFollowed
from .safetensors_files import patch_safetensors

_MOST_LOOKS = 100  # for a file that is not there
FOUND_A_FILE = "found a file of another rank"  # in the mailbox


class Files(Protocol):
    """The tensors in files that other ranks load: the side."""

    def saved(self, t: torch.Tensor) -> Any:
        """What a tensor holds, for another rank; None where that is not followed."""

    def arrived(self, saved: Any, file: str, rank: int) -> torch.Tensor:
        """A tensor that holds what rank `rank` saved."""


class Processes:
    """The processes and files of one recording."""

    def __init__(
        self, groups: Groups, side: Files, assume: Callable[[Assumption], None], ranks: int
    ) -> None:
        """assume: notes an assumption. ranks: that the script has where it is no single device."""
        self.mesh, self.rank, self.mailbox = groups.mesh, groups.rank, groups.mailbox
        self.groups, self.side, self.assume, self.ranks = groups, side, assume, ranks
        self.started = 0  # processes
        self.files: dict[Any, Any] = {}
        self.removed: set[str] = set()

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Calls of PyTorch arrive here inside."""
        self._load, self._init = torch.load, dist.init_process_group
        self._make_mesh = device_mesh.init_device_mesh
        with changes() as undo:
            replace_everywhere(
                [
                    (mp.spawn, self._spawn),
                    (mp.start_processes, self._spawn),
                    (torch.save, self._save),
                    (torch.load, self._loaded),
                    (dist.init_process_group, self._initialised),
                    (self._make_mesh, self._meshed),
                    (multiprocessing.set_start_method, _nothing),
                ],
                undo,
            )
            set_attribute(BaseProcess, "start", self._start(BaseProcess.start), undo)
            for owner, name, function in (
                (os.path, "exists", self._exists),
                (os.path, "isfile", self._exists),
                (pathlib.Path, "exists", self._exists),
                (pathlib.Path, "is_file", self._exists),
                (os, "remove", self._remove),
                (os, "unlink", self._remove),
                (os, "rename", self._renamed),
                (os, "replace", self._renamed),
                (shutil, "move", self._renamed),
                (shutil, "copyfile", self._duplicated),
                (shutil, "copy", self._duplicated),
                (shutil, "copy2", self._duplicated),
            ):
                set_attribute(owner, name, function(getattr(owner, name)), undo)
            patch_safetensors(undo, self._save, self._saved)
            yield

    def _saved(self, f: Any) -> Any:
        """What this rank or another one has saved. Raises KeyError for other files."""
        key = _file(f)
        if key not in self.files and not (("saved", key) in self.mailbox and self._there(f)):
            raise KeyError(key)
        return self._loaded(f)

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
        fn(self.rank, *self._of_one(nprocs, args))
        return None if join else _Joined()

    def _of_one(self, count: int, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments of a process, which is the only one on the single device.

        Of objects with options, those that are named as numbers of processes are looked at.
        """
        if self.mesh.world > 1 or count == 1:
            return args
        found = tuple(_options_of_one(count, x) for x in args)
        if any(x is not y for x, y in zip(found, args)):
            several = sum(type(x) is int and x == count for x in args) > 1
            self.assume(assumptions.processes_among_arguments(count, several))
        return found

    def _start(self, original: Callable[..., None]) -> Callable[..., None]:
        """Process.start: the process of this rank runs here and now, and others end at once.

        Processes of libraries are started. Those of the script are its ranks, in this order.
        """

        def start(process: Any) -> None:
            function = process._target or type(process).run
            if not is_own(getattr(getattr(function, "__code__", None), "co_filename", "")):
                original(process)
                return
            number, self.started = self.started, self.started + 1
            args, named = process._args, process._kwargs
            values = tuple(named.values())
            if not any(type(x) is int and x == number for x in (*args, *values)):
                raise NotFollowed(
                    f"process {number} that the script starts does not have its rank {number} "
                    "among its arguments: processes that are no ranks are not followed"
                )
            process._popen = _Ended()
            if number == self.rank:
                process._args = self._of_one(self.ranks, args)
                process._kwargs = dict(zip(named, self._of_one(self.ranks, values)))
                process.run()

        return start

    def _meshed(self, device_type: Any, mesh_shape: Any, *args: Any, **kwargs: Any) -> Any:
        """A mesh of fixed sizes has one rank on the single device."""
        sizes = tuple(mesh_shape)
        if self.mesh.world == 1 and self.ranks > 1 and math.prod(sizes) == self.ranks:
            self.assume(assumptions.other_mesh(sizes))
            sizes = (1,) * len(sizes)
        return self._make_mesh(device_type, sizes, *args, **kwargs)

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
            self.removed.discard(key)
            self.mailbox["saved", key] = self.rank, self.groups.barriers, self._pickled(obj)

    def _pickled(self, obj: Any) -> bytes | None:
        """What is saved, for other ranks; None where it is not followed."""
        file = io.BytesIO()
        try:
            _Pickler(file, self.side).dump(obj)
        except Exception:
            return None  # what is no data, such as a generator
        return file.getvalue()

    def _loaded(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        key = _file(f)
        if key in self.files:
            return _copied(self.files[key])
        if ("saved", key) in self.mailbox and self._there(f) is not False:
            rank, barriers, data = self.mailbox["saved", key]
            name = os.path.basename(key)
            what = f"torch.load of a file that rank {rank} has saved in this run ({name})"
            if self.groups.barriers <= barriers:
                raise NotFollowed(
                    f"{what}, on rank {self.rank}: no barrier is between, so that the file may not "
                    "be there yet"
                )
            if data is None:
                raise NotFollowed(f"{what} is not followed on rank {self.rank}")
            return _Unpickler(io.BytesIO(data), self.side, name, rank).load()
        if self.rank and isinstance(key, str) and not os.path.lexists(key) and not self.mailbox:
            raise MissingMetadata(f"torch.load of {key}, which no rank has saved", 0)
        # the file's numbers, on the CPU, which every device is here
        without = {k: v for k, v in kwargs.items() if k != "map_location"}
        with outside():
            return self._load(f, "cpu", *args[1:], **without)

    def _there(self, path: Any) -> bool | None:
        """Whether a file is there that was saved in this run; None of others."""
        key = _file(path) if isinstance(path, (str, os.PathLike)) else None
        if key in self.removed:
            return False
        if key in self.files:
            return True
        now = self.groups.barriers
        if ("saved", key) in self.mailbox and now > self.mailbox["saved", key][1]:
            self.mailbox[FOUND_A_FILE] = True
            return ("removed", key) not in self.mailbox or now <= self.mailbox["removed", key]
        return None

    def _exists(self, original: Callable[..., bool]) -> Callable[..., bool]:
        looks: collections.Counter[Any] = collections.Counter()

        def exists(path: Any, *args: Any, **kwargs: Any) -> bool:
            there = self._there(path)
            found = original(path, *args, **kwargs) if there is None else there
            looks[str(path)] += not found
            if looks[str(path)] > _MOST_LOOKS:
                raise NotFollowed(
                    f"the script waits for {path}, which no process has written: a file of another "
                    "rank is there after a barrier"
                )
            return found

        return exists

    def _remove(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
            return self._gone(path) if self._there(path) else original(path, *args, **kwargs)

        return remove

    def _gone(self, path: Any) -> None:
        key = _file(path)
        self.removed.add(key)
        self.files.pop(key, None)
        self.mailbox["removed", key] = self.groups.barriers

    def _duplicated(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def duplicated(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            key = _file(source) if self._there(source) else ""
            if key not in self.files:
                return original(source, target, *args, **kwargs)
            to = _file(target)
            if os.path.isdir(to):
                to = os.path.join(to, os.path.basename(key))
            self.removed.discard(to)
            self.files[to] = self.files[key]
            rank, _, data = self.mailbox["saved", key]
            self.mailbox["saved", to] = rank, self.groups.barriers, data
            return target

        return duplicated

    def _renamed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        duplicate = self._duplicated(original)

        def renamed(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            saved = self._there(source) and _file(source) in self.files
            done = duplicate(source, target, *args, **kwargs)
            if saved:
                self._gone(source)
            return done

        return renamed


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, side: Files) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.side = side

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return None
        saved = self.side.saved(obj)
        if saved is None:
            raise pickle.PicklingError("a tensor that is not followed")
        return id(obj), isinstance(obj, torch.nn.Parameter), obj.requires_grad, saved


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, side: Files, file: str, rank: int) -> None:
        super().__init__(data)
        self.side, self.file, self.rank = side, file, rank
        self.made: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        number, is_parameter, requires_grad, saved = pid
        if number not in self.made:
            t = self.side.arrived(saved, self.file, self.rank)
            self.made[number] = (
                torch.nn.Parameter(t, requires_grad)
                if is_parameter
                else t.requires_grad_(requires_grad)
            )
        return self.made[number]


_OF_PROCESSES = re.compile(r"world_?size|procs?$|nproc|n_?gpus?|num_gpus?|gpus_per_node", re.I)


def _options_of_one(count: int, given: Any) -> Any:
    """An argument of a process: a number of processes, or an object with it, for one process."""
    if type(given) is int:
        return 1 if given == count else given
    if not isinstance(given, (argparse.Namespace, types.SimpleNamespace)):
        return given
    names = [
        n
        for n, x in vars(given).items()
        if type(x) is int and x == count and _OF_PROCESSES.search(n)
    ]
    if not names:
        return given
    one = copy.copy(given)
    for name in names:
        setattr(one, name, 1)
    return one


class _Ended:
    """What a process that has ended is to Python."""

    returncode, pid, sentinel = 0, 0, 0

    def wait(self, timeout: float | None = None) -> int:
        return 0

    poll = wait

    def terminate(self) -> None:
        """It has ended."""

    kill = close = terminate


def _nothing(*args: Any, **kwargs: Any) -> None:
    """How processes are started makes no difference."""


class _Joined:
    """Processes that have ended."""

    processes: tuple[Any, ...] = ()

    def join(self, *args: Any, **kwargs: Any) -> bool:
        return True

    def pids(self) -> list[int]:
        return []


def _file(f: Any) -> Any:
    name = f if isinstance(f, (str, os.PathLike)) else getattr(f, "name", None)
    return os.path.abspath(os.fspath(name)) if isinstance(name, (str, os.PathLike)) else id(f)


def _copied(obj: Any) -> Any:
    """With tensors of their own memory, as a file has them."""

    def copied(x: Any) -> Any:
        return x.detach().clone() if isinstance(x, torch.Tensor) else x

    with torch.no_grad():
        return tree_map(copied, obj)


__all__ = ["FOUND_A_FILE", "Processes"]
