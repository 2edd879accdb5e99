# SPDX-License-Identifier: Apache-2.0
"""The proof cache (docs/usage.md, "Keeping proofs") of many workers.

Workers share no file, as locks of SQLite are not to be relied on across machines. Each has a cache
of its own, which begins as a copy of a snapshot where it sees that file. What it adds travels with
its results, and the process that gave out the tasks merges it. A proof that is lost on the way
costs time only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.util import Finalize
from pathlib import Path

from ..program import run_program
from .identity import digest_of

DIRECTORY_ENDING = ".proofs"  # of files in a directory of caches
_LAST_ROW = re.compile(r"the last row is (\d+)")
_NO_ROW = 1 << 62  # no row has a higher number


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A cache that stays as it is. job: of the tasks that use it. path: empty where there is none.

    sha256: of the file, as a worker may see another one under the same path.
    """

    job: str
    path: str = ""
    sha256: str = ""


def merge(into: Path, caches: Sequence[Path], after: int = 0) -> int | None:
    """Adds the proofs of caches to another one, which is made if there is none.

    after: only rows with a higher number. Returns the number of the last cache's last row, None
    where it cannot be read or written. Raises ProgramError where there is no program.
    """
    done = run_program(["cache", "merge", into, *caches, "--after", str(after)])
    found = _LAST_ROW.findall(done.stdout)
    return int(found[-1]) if done.returncode == 0 and found else None


class WorkerCache:
    """Of one thread of a worker, for all tasks of a job."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shardproof-cache-")
        # Also at the end of a process of multiprocessing, which has no atexit.
        self._end = Finalize(None, self._folder.cleanup, exitpriority=10)
        self.path = Path(self._folder.name) / "cache"
        self._last = 0
        with contextlib.suppress(OSError):
            if snapshot.path and digest_of(snapshot.path) == snapshot.sha256:
                shutil.copyfile(snapshot.path, self.path)
                self._last = merge(self._delta(), [self.path], _NO_ROW) or 0

    def close(self) -> None:
        self._end()

    def _delta(self) -> Path:
        return Path(self._folder.name) / f"delta-{secrets.token_hex(8)}"

    def new_proofs(self) -> bytes:
        """A cache with what was added since the last call; empty if nothing was."""
        if not self.path.exists():
            return b""
        delta = self._delta()
        last = merge(delta, [self.path], self._last)
        if last is None or last <= self._last:
            delta.unlink(missing_ok=True)
            return b""
        self._last = last
        content = delta.read_bytes()
        delta.unlink()
        return content


_own = threading.local()


def worker_cache(snapshot: Snapshot) -> WorkerCache:
    """The cache of this thread; that of an earlier job is removed."""
    if getattr(_own, "job", None) != snapshot.job:
        if getattr(_own, "cache", None) is not None:
            _own.cache.close()
        _own.cache, _own.job = WorkerCache(snapshot), snapshot.job
    cache: WorkerCache = _own.cache
    return cache


class SharedCache:
    """The cache that a job is given, and gets its new proofs.

    A file is merged into, with SQLite's locks. A directory gets one new file, which is whole when
    it has its name and never changes: that needs no locks, so that jobs on several machines may
    share a directory on a network file system.
    """

    def __init__(self, path: str | None, scratch: Path) -> None:
        """path: a file, which need not exist; or a directory; None: proofs are not kept."""
        self.warnings: list[str] = []
        self._scratch = scratch
        self._parts: list[Path] = []
        self._path = Path(os.path.abspath(path)) if path else None
        self._is_directory = self._path is not None and self._path.is_dir()
        self.snapshot = Snapshot(job=secrets.token_hex(16))
        if self._path is not None:
            self._take_snapshot(self._path)

    def _take_snapshot(self, path: Path) -> None:
        if self._is_directory:
            files = []
            for k, file in enumerate(sorted(path.glob(f"*{DIRECTORY_ENDING}"))):
                with contextlib.suppress(OSError):
                    files.append(Path(shutil.copyfile(file, self._scratch / f"known-{k}")))
        else:
            files = [path] if path.exists() else []
        if not files:
            return
        made = self._scratch / "snapshot"
        if merge(made, files) is None:
            self.warnings.append(f"{path}: cannot be read as a proof cache; going on without it")
            return
        seen = (path if self._is_directory else path.parent) / f".{path.name}.{self.snapshot.job}"
        try:
            shutil.copyfile(made, seen)
        except OSError as e:
            self.warnings.append(f"{seen}: {e.strerror}: workers begin without its proofs")
            return
        self.snapshot = Snapshot(self.snapshot.job, str(seen), digest_of(seen))

    def add(self, proofs: bytes) -> None:
        """What a task returned of WorkerCache.new_proofs."""
        if proofs and self._path is not None:
            part = self._scratch / f"part-{len(self._parts)}"
            part.write_bytes(proofs)
            self._parts.append(part)

    def keep(self, last: bool = False) -> None:
        """Puts what was added into the file, or, at the end, into the directory."""
        if self._is_directory and not last:
            return
        parts, self._parts = self._parts, []
        path = self._path
        if path is None or not parts:
            return
        if not self._is_directory:
            if merge(path, parts) is None:
                self.warnings.append(f"{path}: new proofs cannot be written to it, and are lost")
            return
        made = self._scratch / f"new-{secrets.token_hex(4)}"
        host = re.sub(r"\W", "-", socket.gethostname())
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{host}-{secrets.token_hex(8)}"
        try:
            if merge(made, parts) is None:
                raise OSError(0, "the parts cannot be merged")
            hidden = path / f".{name}"
            shutil.copyfile(made, hidden)
            hidden.rename(path / f"{name}{DIRECTORY_ENDING}")
        except OSError as e:
            self.warnings.append(f"{path}: {e.strerror}: new proofs are lost")

    def close(self) -> None:
        """Removes the snapshot."""
        if self.snapshot.path:
            Path(self.snapshot.path).unlink(missing_ok=True)


__all__ = ["SharedCache", "Snapshot", "WorkerCache", "merge", "worker_cache"]
