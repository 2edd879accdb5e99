# SPDX-License-Identifier: Apache-2.0
"""Slurm's job arrays, by submitit, as an Executor.

A result is a file in the folder of jobs, which all nodes have to see. Whether a job that has none
is still there is looked up with squeue: sacct, which submitit uses, needs an accounting database.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, TypeVar

from .tasks import EngineError

T = TypeVar("T")
_New = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]

# Tasks that are submitted within this time become one array.
ARRAY_SECONDS = 0.2
POLL_SECONDS = 0.5
QUEUE_SECONDS = 5.0  # between calls of squeue
# A controller that restarts refuses jobs for a moment.
SUBMISSIONS, SUBMISSION_SECONDS = 3, 5.0
# A job that is no longer queued has ended: its result may reach this machine so much later.
FILE_SECONDS = 15.0


class WorkerLost(RuntimeError):
    """A job ended without a result."""


@contextlib.contextmanager
def job_folder(parent: str | None) -> Iterator[Path]:
    """A new folder for scripts and results of jobs, removed at the end.

    parent: on a file system that all nodes see; None: the current directory.
    """
    try:
        folder = tempfile.mkdtemp(prefix="shardproof-jobs-", dir=parent or os.getcwd())
    except OSError as e:
        raise EngineError(
            f"no folder for Slurm's jobs can be made in {parent or os.getcwd()}: {e}; name one "
            "that all nodes see in $SHARDPROOF_JOBS_FOLDER"
        ) from e
    with tempfile.TemporaryDirectory(dir=folder, prefix="jobs-") as inner:
        yield Path(inner)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


class SlurmArrays(Executor):
    """Jobs of a submitit executor.

    A thread submits what was given together as one array, and looks for results.
    """

    starts_processes = True  # one for each task, so that tasks should be large

    def __init__(self, submitter: Any) -> None:
        self._submitter = submitter
        self._lock = threading.Condition()
        self._new: list[_New] = []
        self._running: dict[Future[Any], Any] = {}
        self._gone: dict[Future[Any], float] = {}  # when squeue had it no more
        self._ending = self._cancelling = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        if kwargs:
            raise TypeError("keyword arguments are not submitted")
        future: Future[T] = Future()
        with self._lock:
            if self._ending:
                raise RuntimeError("cannot submit after shutdown")
            self._new.append((future, function, args))
            self._lock.notify()
        return future

    def _serve(self) -> None:
        looked = 0.0
        while True:
            with self._lock:
                if not self._new and not self._running:
                    if self._ending:
                        return
                    self._lock.wait()
            time.sleep(ARRAY_SECONDS)
            with self._lock:
                new, self._new = self._new, []
                cancelling = self._cancelling
            if cancelling:
                self._cancel(new)
                return
            self._submit([task for task in new if task[0].set_running_or_notify_cancel()])
            self._collect()
            if self._running and time.monotonic() - looked > QUEUE_SECONDS:
                looked = time.monotonic()
                self._look(looked)
            time.sleep(POLL_SECONDS - ARRAY_SECONDS)

    def _cancel(self, new: Sequence[_New]) -> None:
        for future, _, _ in new:
            future.cancel()
        for job in self._running.values():
            with contextlib.suppress(Exception):
                job.cancel(check=False)

    def _submit(self, new: Sequence[_New]) -> None:
        if not new:
            return
        for attempt in range(SUBMISSIONS):
            try:
                with self._submitter.batch():
                    jobs = [self._submitter.submit(function, *args) for _, function, args in new]
                _ = [job.job_id for job in jobs]  # raises where the array was not taken
            except Exception as e:
                if attempt + 1 == SUBMISSIONS:
                    for future, _, _ in new:
                        future.set_exception(EngineError(f"Slurm takes no jobs: {e}"))
                time.sleep(SUBMISSION_SECONDS)
            else:
                self._running.update({future: job for (future, _, _), job in zip(new, jobs)})
                return

    def _collect(self) -> None:
        for folder in {job.paths.folder for job in self._running.values()}:
            with contextlib.suppress(OSError):  # makes a network file system look once more
                os.chmod(folder, folder.stat().st_mode)
        for future, job in list(self._running.items()):
            if not job.paths.result_pickle.exists():
                continue
            del self._running[future]
            self._gone.pop(future, None)
            try:
                with open(job.paths.result_pickle, "rb") as f:
                    kind, value = pickle.load(f)
            except Exception as e:
                future.set_exception(WorkerLost(f"job {job.job_id}: its result is damaged: {e}"))
                continue
            if kind != "success":
                future.set_exception(WorkerLost(f"job {job.job_id}: {value}"))
            else:
                future.set_result(value)

    def _look(self, now: float) -> None:
        queued = _queued()
        if queued is None:
            return
        for future, job in list(self._running.items()):
            if job.job_id in queued:
                self._gone.pop(future, None)
            elif now - self._gone.setdefault(future, now) > FILE_SECONDS:
                del self._running[future], self._gone[future]
                future.set_exception(WorkerLost(f"job {job.job_id} ended without a result"))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As of an Executor; with cancel_futures jobs are cancelled."""
        with self._lock:
            self._ending = True
            self._cancelling = cancel_futures
            self._lock.notify()
        if wait:
            self._thread.join()

    def __exit__(self, *exception: Any) -> None:
        self.shutdown(cancel_futures=exception[0] is not None)


def _queued() -> set[str] | None:
    """Numbers of this user's jobs that are waiting, running or ending, as ARRAY_INDEX.

    None where Slurm does not answer: a controller that restarts loses no job.
    """
    try:
        done = subprocess.run(
            ["squeue", "--noheader", "--array", "--me", "--format=%i"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return set(done.stdout.split()) if done.returncode == 0 else None


__all__ = ["SlurmArrays", "WorkerLost", "job_folder"]
