# SPDX-License-Identifier: Apache-2.0
"""A process beside a worker of an engine, which forks one for each share of ranks.

It has no threads, and has imported PyTorch, which takes longer than recording a rank. What a
share's step does in Python's memory ends with its own process.

Started as `python -m shardproof.torch.session.rank_process`; standard input and output are for
requests: the length of a pickle and the pickle come in, a line with an exit code goes out.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...engines.rank_shares import LENGTH, Origin, Share
from .remote_ranks import loaded_now


def _record(folder: str, origin: Origin, ranks: Sequence[int]) -> Share:
    from .capture import no_collection, one_thread
    from .ranks import RankRecorder

    if torch.__version__ != origin.torch_version:
        return Share(
            refused=f"it has torch {torch.__version__}, expected {origin.torch_version}: install "
            "the same version on all workers"
        )
    with no_collection(), one_thread():
        start: Any = pickle.loads(zlib.decompress(origin.recorder))
        recorder = RankRecorder.on_worker(start)
        try:
            recordings = recorder.light(ranks, f"{folder}/whole")
        except Exception:  # the process that submitted the share meets it itself
            return Share(loaded=loaded_now())
        whole = {
            rank: zlib.compress(Path(side.kept).read_bytes(), 1)
            for rank, side in recordings.items()
            if side.kept
        }
        content = pickle.dumps((recordings, recorder.mailbox), protocol=pickle.HIGHEST_PROTOCOL)
        return Share(zlib.compress(content, 1), whole, loaded_now())


def _child(message: bytes) -> None:
    folder, origin, ranks, _ = pickle.loads(message)
    os.environ.update(origin.variables)
    os.chdir(origin.folder)
    sys.path[:] = list(dict.fromkeys([*(p for p in origin.path if os.path.exists(p)), *sys.path]))
    share = _record(folder, origin, ranks)
    from .isolated_processes import is_installed

    imported = [name for name in sys.modules if is_installed(name)]
    made = Path(folder) / "making"
    made.write_bytes(pickle.dumps((share, imported), protocol=pickle.HIGHEST_PROTOCOL))
    made.rename(Path(folder) / "share")


def main() -> None:
    from .isolated_processes import fork, import_modules, warm_up

    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    warm_up()
    while head := requests.read(LENGTH.size):
        message = requests.read(LENGTH.unpack(head)[0])
        _, origin, _, modules = pickle.loads(message)
        import_modules(modules, origin.devices, None)
        pid = fork()
        if pid == 0:
            code = 1
            try:
                _child(message)
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        answers.write(f"{code}\n".encode())
        answers.flush()


if __name__ == "__main__":
    main()
