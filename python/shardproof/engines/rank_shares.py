# SPDX-License-Identifier: Apache-2.0
"""Shares of ranks that workers record (shardproof.torch.session.remote_ranks gives them out).

A worker needs no PyTorch in its own memory: beside it a process has it, which forks one for each
share (shardproof.torch.session.rank_process). Workers of engines have threads, so they are not
forked themselves.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from .tasks import RefuseTask

LENGTH = struct.Struct("<Q")  # of a request, before it
SERVER = "shardproof.torch.session.rank_process"


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a share of ranks starts from, beside the ranks.

    recorder: a RecorderStart (ranks.py), pickled and compressed. folder: the current one. path:
    sys.path. variables: of the environment. devices: that the step counts.
    """

    recorder: bytes
    folder: str
    path: tuple[str, ...]
    variables: Mapping[str, str]
    devices: int
    torch_version: str


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a share ran.

    own: digests of files of the user's modules. others: versions of packages.
    """

    own: Mapping[str, str]
    others: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Share:
    """What became of a share.

    recordings: pickled, with what they sent, and compressed; empty where the step raised something.
    whole: rank -> the whole recording, where the plan may need it. refused: why this machine cannot
    record.
    """

    recordings: bytes = b""
    whole: Mapping[int, bytes] = dataclasses.field(default_factory=dict)
    loaded: Loaded = Loaded({}, {})
    refused: str = ""


class RankProcess:
    """The worker's end. seed: $PYTHONHASHSEED of the process.

    All workers have the same one, so that sets have one order on all ranks, as where they are
    recorded by forked processes.
    """

    def __init__(self, seed: str) -> None:
        self.seed = seed
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self._imported: list[str] = []  # what the last share had imported of installed packages
        atexit.register(self.close)

    def runs(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        atexit.unregister(self.close)
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def record(self, origin: Origin, ranks: Sequence[int]) -> Share:
        """Raises OSError where the process dies."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with tempfile.TemporaryDirectory(prefix="shardproof-ranks-") as folder:
            message = pickle.dumps((folder, origin, tuple(ranks), self._imported))
            try:
                stdin.write(LENGTH.pack(len(message)) + message)
                stdin.flush()
                answer = stdout.readline().strip()
            except OSError:
                answer = b""
            result = Path(folder) / "share"
            if answer != b"0" or not result.exists():
                # Not by the file's own position, at which the process writes.
                end = os.fstat(self._errors.fileno()).st_size
                last = os.pread(self._errors.fileno(), 1000, max(0, end - 1000))
                if not answer:  # not the share's process alone
                    self.close()
                raise OSError(
                    f"the process that recorded ranks {', '.join(map(str, ranks))} died "
                    f"({answer.decode() or 'no answer'}): {last.decode(errors='replace').strip()}"
                )
            share, self._imported = pickle.loads(result.read_bytes())
            assert isinstance(share, Share)
            return share


_own = threading.local()  # the process that forks


def record_share(origin: Origin, ranks: tuple[int, ...]) -> Share:
    """Records ranks.

    Raises RefuseTask where this machine has another PyTorch or lacks the folder, and OSError where
    the process that records them dies.
    """
    if not os.path.isdir(origin.folder):
        raise RefuseTask(
            f"{origin.folder}, where the step was started, is not there: start it in a folder that "
            "all workers see"
        )
    seed = origin.variables.get("PYTHONHASHSEED", "0")
    process: RankProcess | None = getattr(_own, "process", None)
    if process is None or process.seed != seed or not process.runs():
        if process is not None:
            process.close()
        process = _own.process = RankProcess(seed)
    share = process.record(origin, ranks)
    if share.refused:
        raise RefuseTask(share.refused)
    return share


__all__ = ["LENGTH", "Loaded", "Origin", "RankProcess", "Share", "record_share"]
