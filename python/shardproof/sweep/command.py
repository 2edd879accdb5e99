# SPDX-License-Identifier: Apache-2.0
"""`shardproof-sweep`: gives a sweep's configurations to an engine, and puts the results together.

The program does both ends. `shardproof sweep --parts` reads the configurations, so that this file
knows nothing of them but their numbers; it later makes the table, the JSON file, JUnit, the
comparison with a baseline and the exit code of the workers' results, as it does of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from .. import progress
from ..engines.addresses import FORMS, engine
from ..engines.proof_cache import SharedCache
from ..engines.tasks import ATTEMPTS, EngineError, Lost, map_tasks
from ..program import ProgramError, find_program
from .configurations import Part, Task, run_configurations

# A save waits until the work since the last one took so many times as long (as the program does).
WORK_PER_SAVE = 20
# Of Slurm, where each task is a job: so many at most.
MOST_JOBS = 200
# Exit codes of a sweep that are worse than an interruption (docs/sweep.md).
_WORSE_THAN_INTERRUPTED = (6, 2, 10)
_INPUT, _INTERNAL = 2, 6


class _Stopped(BaseException):
    """SIGTERM or Ctrl-C."""

    def __init__(self, number: int) -> None:
        self.number = number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardproof-sweep",
        allow_abbrev=False,
        description="Runs `shardproof sweep` on many machines (docs/engines.md). Options without "
        "a text are those of `shardproof sweep`.",
    )
    parser.add_argument("config", metavar="CONFIG", help="what to run (docs/sweep.md)")
    parser.add_argument("--engine", required=True, metavar="ADDRESS", help=FORMS)
    parser.add_argument(
        "--batch",
        type=_positive,
        metavar="N",
        help="configurations of one task (default: 1; of Slurm, so many that there are at most "
        f"{MOST_JOBS} jobs)",
    )
    parser.add_argument(
        "--attempts",
        type=_positive,
        default=ATTEMPTS,
        metavar="N",
        help="of a task whose worker is lost (default: %(default)s)",
    )
    parser.add_argument(
        "--cache",
        metavar="PATH",
        help="proofs are read from it, and new ones go into it: a file, or a directory in which "
        "each run leaves a file of its own, for network file systems without locks",
    )
    for name in ("--json", "--junit", "--baseline", "--keep"):
        parser.add_argument(name, metavar="PATH")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument(
        "-j", "--jobs", default="1", metavar="N", help="processes of one task (default: 1)"
    )
    parser.add_argument("-t", "--timeout", metavar="S")
    for name in ("--stage-timeout", "--memory", "--memory-limit", "--checker", "--infer"):
        parser.add_argument(name, metavar="VALUE")
    for name in ("--accept", "--allow-uncompared"):
        parser.add_argument(name, action="append", default=[], metavar="NAME")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1")
    return int(text)


def _limits(options: argparse.Namespace) -> list[str]:
    """Options that results depend on: the same for workers and for what puts them together."""
    found = []
    for name in ("timeout", "stage_timeout", "memory", "memory_limit", "checker", "infer"):
        if (value := getattr(options, name)) is not None:
            found += [f"--{name.replace('_', '-')}", value]
    for name in ("accept", "allow_uncompared"):
        for value in getattr(options, name):
            found += [f"--{name.replace('_', '-')}", value]
    return found


class _Sweep:
    """One run. scratch: a folder for files of this run only."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options, self.scratch = options, scratch
        self.limits = _limits(options)
        self.parts = scratch / "parts"
        self.parts.mkdir()
        self.json = Path(os.path.realpath(options.json)) if options.json else None
        self.before = scratch / "before.json"  # the results that are taken over
        if self.json is not None and options.resume and self.json.exists():
            shutil.copyfile(self.json, self.before)
        self.document: dict[str, Any] = {}
        self.warned: set[str] = set()

    def _program(
        self, json_file: Path, *arguments: str, resume: bool = False, shown: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """`shardproof sweep --parts`. Ctrl-C is for this process only."""
        stream = None if shown else subprocess.PIPE
        return subprocess.run(
            [
                find_program(),
                "sweep",
                self.options.config,
                "--parts",
                str(self.parts),
                "--json",
                str(json_file),
                *(["--resume"] if resume else []),
                *self.limits,
                *arguments,
            ],
            stdout=stream,
            stderr=stream,
            text=True,
            start_new_session=True,
        )

    def read(self) -> int:
        """The configurations. Returns the exit code where there is nothing to be run: none can be
        read, or a file of the options cannot be written.
        """
        options = self.options
        named = self.scratch / "open.json"
        target = self.json or named
        before = _version(target)
        done = self._program(
            target,
            "--quiet",
            *(["--junit", options.junit] if options.junit else []),
            *(["--baseline", options.baseline] if options.baseline else []),
            resume=options.resume,
        )
        try:
            written = _version(target) != before
            self.document = json.loads(target.read_text()) if written else {}
        except (OSError, ValueError):
            self.document = {}
        if not self.document or done.returncode in (1, _INTERNAL):
            sys.stderr.write(done.stderr)
            return done.returncode or _INTERNAL
        return 0

    def tasks(self, shared: SharedCache) -> dict[int, tuple[Task]]:
        """What is to be run: first number -> task."""
        options = self.options
        every = self.document["configurations"]
        open_ones = [k for k, c in enumerate(every) if c["state"] == "not-run"]
        size = options.batch or (
            math.ceil(len(open_ones) / MOST_JOBS) if options.engine.startswith("slurm:") else 1
        )
        content = Path(options.config).read_bytes()
        keep = ["--keep", os.path.abspath(options.keep)] if options.keep else []
        found = {}
        for begin in range(0, len(open_ones), max(1, size)):
            chosen = open_ones[begin : begin + size]
            plans = {
                path: os.stat(path).st_size
                for k in chosen
                for field in ("plan", "model")
                if (path := every[k]["configuration"].get(field)) and os.path.isfile(path)
            }
            found[chosen[0] + 1] = (
                Task(
                    os.getcwd(),
                    options.config,
                    content,
                    tuple(k + 1 for k in chosen),
                    tuple(plans.items()),
                    ("--jobs", options.jobs, *keep, *self.limits),
                    shared.snapshot,
                ),
            )
        return found

    def take(self, number: int, task: Task, result: Part | Lost) -> bytes:
        """Keeps a task's results. Returns its new proofs."""
        file = self.parts / f"{number}.json"
        if isinstance(result, Part):
            file.write_text(result.text())
            self.warn(result.warnings)
            return result.proofs
        lost = [dict(self.document["configurations"][n - 1]) for n in task.numbers]
        for configuration in lost:
            configuration.update(
                state="crashed",
                outcome="crashed",
                reason=f"no worker finished it in {result.attempts} attempts: {result.failure}",
            )
        file.write_text(json.dumps({**self.document, "configurations": lost}))
        return b""

    def warn(self, warnings: Sequence[str]) -> None:
        for text in warnings:
            if text not in self.warned:
                self.warned.add(text)
                progress.clear()
                print(f"shardproof-sweep: warning: {text}", file=sys.stderr)

    def save(self) -> None:
        """The JSON file, with the results so far."""
        if self.json is None:
            return
        done = self._merged()
        if not (self.scratch / "merged.json").exists():
            self.warn([f"{self.json}: the results so far are not written: {done.stderr.strip()}"])
            return
        self._replace(self.scratch / "merged.json", self.json)

    def _merged(self, *arguments: str, shown: bool = False) -> subprocess.CompletedProcess[str]:
        merged = self.scratch / "merged.json"
        merged.unlink(missing_ok=True)
        resume = self.before.exists()
        if resume:
            shutil.copyfile(self.before, merged)
        return self._program(
            merged, *([] if shown else ["--quiet"]), *arguments, resume=resume, shown=shown
        )

    @staticmethod
    def _replace(file: Path, target: Path) -> None:
        """The target is the old one or the new one, never a part."""
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(file, beside)
        os.replace(beside, target)

    def finish(self) -> int:
        """The report of all, on standard output. Returns the exit code."""
        options = self.options
        sys.stdout.flush()
        done = self._merged(
            *(["--quiet"] if options.quiet else []),
            *(["--junit", options.junit] if options.junit else []),
            *(["--baseline", options.baseline] if options.baseline else []),
            shown=True,
        )
        merged = self.scratch / "merged.json"
        if self.json is not None and merged.exists():
            self._replace(merged, self.json)
        return done.returncode

    def run(self) -> int:
        """Raises EngineError, and ProgramError where there is no program."""
        code = self.read()
        if code:
            return code
        shared = SharedCache(self.options.cache, self.scratch)
        stopped = 0
        try:
            self.warn(shared.warnings)
            tasks = self.tasks(shared)
            try:
                with _stoppable():
                    self._give(tasks, shared)
            except _Stopped as e:
                stopped = e.number
            except EngineError:
                self.save()  # for --resume
                raise
            finally:
                shared.keep(last=True)
            self.warn(shared.warnings)
        finally:
            shared.close()
        code = self.finish()
        return 128 + stopped if stopped and code not in _WORSE_THAN_INTERRUPTED else code

    def _give(self, tasks: dict[int, tuple[Task]], shared: SharedCache) -> None:
        if not tasks:
            return
        saved, took = time.monotonic(), 0.0
        with (
            progress.showing(),
            engine(self.options.engine) as executor,
            contextlib.closing(
                map_tasks(
                    executor,
                    run_configurations,
                    tasks,
                    doing="sweep",
                    attempts=self.options.attempts,
                )
            ) as results,
        ):
            for number, result in results:
                shared.add(self.take(number, tasks[number][0], result))
                if time.monotonic() - saved > WORK_PER_SAVE * took:
                    start = time.monotonic()
                    self.save()
                    shared.keep()
                    saved, took = time.monotonic(), time.monotonic() - start


def _version(file: Path) -> tuple[int, int] | None:
    """Another one for each content, as the program writes a new file and renames it."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGINT and SIGTERM raise _Stopped, once: what is done then is finished."""

    def stop(number: int, _: FrameType | None) -> None:
        for other in (signal.SIGINT, signal.SIGTERM):
            signal.signal(other, signal.SIG_IGN)
        raise _Stopped(number)

    before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code: as of `shardproof sweep` (docs/sweep.md), and 2 where the
    engine cannot be used.
    """
    parser = _parser()
    parser.exit_on_error = True
    try:
        options = parser.parse_args(arguments)
    except SystemExit as e:
        return 1 if e.code else 0
    try:
        with tempfile.TemporaryDirectory(prefix="shardproof-sweep-") as scratch:
            return _Sweep(options, Path(scratch)).run()
    except (EngineError, ProgramError) as e:
        print(f"shardproof-sweep: {e}", file=sys.stderr)
        return _INPUT
    except OSError as e:
        print(f"shardproof-sweep: {e.filename or options.config}: {e.strerror}", file=sys.stderr)
        return _INTERNAL


__all__ = ["main"]
