# SPDX-License-Identifier: Apache-2.0
"""What a worker does: some configurations of a sweep, by the program."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from ..engines.proof_cache import Snapshot, worker_cache
from ..engines.tasks import RefuseTask
from ..program import run_program

_WARNING = re.compile(r"^(?:shardproof: )?warning: (.*)$", re.MULTILINE)
_UNFINISHED = ("not-run", "interrupted")


@dataclasses.dataclass(frozen=True)
class Task:
    """Some configurations.

    folder, config: where the sweep was started, and its configuration file as named there. content:
    of that file. numbers: of the configurations, from 1. plans: (path, bytes) of the plan files
    that they name, and of models. arguments: further ones of `shardproof sweep`.
    """

    folder: str
    config: str
    content: bytes
    numbers: tuple[int, ...]
    plans: tuple[tuple[str, int], ...]
    arguments: tuple[str, ...]
    snapshot: Snapshot


@dataclasses.dataclass(frozen=True)
class Part:
    """report: the JSON file of `shardproof sweep`, compressed. proofs: new ones, as a cache."""

    report: bytes
    proofs: bytes
    warnings: tuple[str, ...]

    def text(self) -> str:
        return zlib.decompress(self.report).decode()


class Unfinished(RuntimeError):
    """The program ended before all configurations had a result."""


def run_configurations(task: Task) -> Part:
    """Runs `shardproof sweep --only`.

    Raises RefuseTask where this worker does not see the plans, and Unfinished.
    """
    with tempfile.TemporaryDirectory(prefix="shardproof-part-") as scratch:
        folder, config = _place(task, Path(scratch))
        result = Path(scratch) / "part.json"
        cache = worker_cache(task.snapshot)
        done = run_program(
            [
                "sweep",
                config,
                "--only",
                ",".join(map(str, task.numbers)),
                "--json",
                result,
                "--cache",
                cache.path,
                "--quiet",
                *task.arguments,
            ],
            folder,
        )
        _check(task.numbers, result, done)
        return Part(
            zlib.compress(result.read_bytes(), 1),
            cache.new_proofs(),
            tuple(_WARNING.findall(done.stderr)),
        )


def _place(task: Task, scratch: Path) -> tuple[Path, str]:
    """The folder to run in, and the configuration file's name there."""
    folder = Path(task.folder)
    try:
        if (folder / task.config).read_bytes() == task.content:
            _check_plans(folder, task.plans)
            return folder, task.config
    except OSError:
        pass
    if task.plans:
        raise RefuseTask(
            f"{folder / task.config} is not there, or is another file, and the sweep has plans: "
            "put both on a file system that all workers see"
        )
    own = scratch / "sweep.json"  # grids only: nothing else is read
    own.write_bytes(task.content)
    return scratch, own.name


def _check_plans(folder: Path, plans: Sequence[tuple[str, int]]) -> None:
    for path, size in plans:
        try:
            found = os.stat(folder / path).st_size
        except OSError as e:
            raise RefuseTask(
                f"{folder / path}: {e.strerror}: put it on a file system that all workers see"
            ) from None
        if found != size:
            raise RefuseTask(
                f"{folder / path}: found {found} bytes, expected {size}: it is another file, or "
                "changes while the sweep runs"
            )


def _check(numbers: Sequence[int], result: Path, done: subprocess.CompletedProcess[str]) -> None:
    try:
        states = [c["state"] for c in json.loads(result.read_text())["configurations"]]
    except (OSError, ValueError, KeyError, TypeError):
        states = []
    if not states or any(states[n - 1] in _UNFINISHED for n in numbers):
        raise Unfinished(
            f"shardproof sweep ended with exit code {done.returncode} before all had a result: "
            f"{done.stderr.strip()[-1000:]}"
        )


__all__ = ["Part", "Task", "run_configurations"]
