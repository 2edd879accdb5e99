# SPDX-License-Identifier: Apache-2.0
"""Ranks that workers of an executor record.

A share of ranks is a task (engines/tasks.py). What it starts from travels with it: the step, the
single device's model, and what ranks have sent so far. The worker records it in a process that is
forked for this share alone (rank_process.py), so that no other share leaves anything in its
memory, and returns what a process that was forked here would.

The step's code has to be the same file for file: each share returns the digests of the user's
modules that it loaded, and the versions of other packages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pickle
import sys
import warnings
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import torch

from ...engines.identity import digest_of
from ...engines.rank_shares import Loaded, Origin, record_share
from ...engines.tasks import EngineError, Lost, Refused, map_tasks
from ..compat.user_code import is_own
from ..distributed.mailbox import Mailbox
from ..trace.recording import Recording

# Each share costs a worker a fork, reading what it starts from, and the step's own imports: about
# what recording a small rank takes.
MOST_SHARES = 64
RANKS_OF_A_SHARE = 4  # at least, where there are more
# Of an engine that starts a process for each task: that imports PyTorch.
RANKS_OF_A_JOB = 16
# Of a machine rather than of a run: a worker has its own.
_OF_THE_MACHINE = frozenset(
    (
        "PATH",
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "HOSTNAME",
        "PWD",
        "OLDPWD",
        "TMPDIR",
        "TMP",
        "TEMP",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYTHONHOME",
        "PYTHONPATH",
        "SHARDPROOF",
        "DISPLAY",
    )
)
_OF_AN_ENGINE = ("SLURM", "SBATCH", "SQUEUE", "RAY_", "DASK_", "OMPI_", "PMI", "SUBMITIT", "XDG_")


class RemoteRanks:
    """An executor that records ranks."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def record(
        self, recorder: Any, ranks: Sequence[int], devices: int, folder: str
    ) -> tuple[dict[int, Recording], list[Mailbox]]:
        """The recordings that succeed, and what they sent. Others are for this process, which meets
        their errors itself; a warning names those whose workers were lost.

        recorder: what a share starts from. folder: for files. Raises EngineError where the step
        cannot be pickled, or a worker has other code.
        """
        origin = Origin(
            zlib.compress(_pickled(recorder), 1),
            os.getcwd(),
            tuple(os.path.abspath(p) for p in sys.path),
            {
                name: value
                for name, value in os.environ.items()
                if name not in _OF_THE_MACHINE and not name.startswith(_OF_AN_ENGINE)
            },
            devices,
            torch.__version__,
        )
        least = (
            RANKS_OF_A_JOB
            if getattr(self.executor, "starts_processes", False)
            else RANKS_OF_A_SHARE
        )
        count = min(MOST_SHARES, -(-len(ranks) // least))
        tasks = {k: (origin, tuple(ranks[k::count])) for k in range(count)}
        found: dict[int, Recording] = {}
        sent: list[Mailbox] = []
        doing = f"recording {len(ranks)} ranks on workers"
        with contextlib.closing(
            map_tasks(self.executor, record_share, tasks, doing=doing)
        ) as results:
            for key, share in results:
                if isinstance(share, Lost):
                    warnings.warn(
                        f"ranks {', '.join(map(str, tasks[key][1]))} are recorded by this process: "
                        f"no worker recorded them in {share.attempts} attempts: {share.failure}",
                        stacklevel=2,
                    )
                    continue
                check_same(share.loaded)
                if not share.recordings:
                    continue
                recordings, mailbox = pickle.loads(zlib.decompress(share.recordings))
                for rank, side in recordings.items():
                    if rank in share.whole:
                        kept = f"{folder}/whole {rank}"
                        with open(kept, "wb") as f:
                            f.write(zlib.decompress(share.whole[rank]))
                        side = dataclasses.replace(side, kept=kept)
                    found[rank] = side
                sent.append(mailbox)
        return found, sent


def _pickled(recorder: Any) -> bytes:
    """By value where modules of the program itself are not to be imported, if cloudpickle is there.

    Raises EngineError.
    """
    try:
        import cloudpickle

        dumps: Callable[[Any], bytes] = cloudpickle.dumps
    except ImportError:
        if sys.modules["__main__"].__name__ == "__main__" and _is_of_main(recorder.step):
            raise EngineError(
                f"the step {recorder.step.__name__} is a function of the program itself "
                "(__main__), which workers cannot import: move it to a module, or install "
                "cloudpickle"
            ) from None
        dumps = functools.partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        return dumps(recorder)
    except Exception as e:
        raise EngineError(
            f"the step cannot be sent to workers: {type(e).__name__}: {e}: make it a function of a "
            "module that they can import, without open files, locks or other objects of this "
            "process"
        ) from e


def _is_of_main(step: Any) -> bool:
    return getattr(step, "__module__", None) == "__main__"


def loaded_now() -> Loaded:
    """Of this process."""
    own: dict[str, str] = {}
    others: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name in ("__main__", "__mp_main__"):
            continue
        if is_own(file):
            with contextlib.suppress(OSError):
                own[name] = digest_of(file)
        elif "." not in name and isinstance(version := getattr(module, "__version__", None), str):
            others[name] = version
    return Loaded(own, others)


def check_same(theirs: Loaded) -> None:
    """Raises Refused where a worker ran other code than is here."""
    ours = loaded_now()
    for name, digest in theirs.own.items():
        if ours.own.get(name, digest) != digest:
            raise Refused(
                f"a worker loaded another {name} than {sys.modules[name].__file__}: put the step's "
                "modules on a file system that all workers see, or install the same version"
            )
    for name, version in theirs.others.items():
        if ours.others.get(name, version) != version:
            raise Refused(
                f"a worker has {name} {version}, expected {ours.others[name]}: install the same "
                "version on all workers"
            )


__all__ = ["RemoteRanks", "check_same", "loaded_now"]
