# SPDX-License-Identifier: Apache-2.0
"""Tasks on an executor whose workers may be lost.

A task is a pure function of its arguments, and its result belongs to its key. So it may run twice:
the first result counts, and any later one is ignored. Nothing is lost, as a task without a result
is submitted again; nothing counts twice, as a key has one result. The engine does the scheduling.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, TypeVar

from .. import progress
from .identity import Identity, difference, identity

Key = TypeVar("Key", str, int)

ATTEMPTS = 3
# The oldest open task is submitted once more after so many seconds in which no task ended, or after
# STRAGGLER_FACTOR times what the longest one took, whichever is longer; twice as many when as much
# time has passed again. So one that hangs is found soon, and long ones that wait for their turn are
# mostly left alone.
STRAGGLER_SECONDS = 120.0
STRAGGLER_FACTOR = 4.0


class EngineError(RuntimeError):
    """The engine cannot be used; the message has what to change."""


class Refused(EngineError):
    """A worker cannot run these tasks at all: another version, or files that it does not see."""


class RefuseTask(Exception):
    """Raised by a task's function: no attempt on such a worker can succeed."""


@dataclasses.dataclass(frozen=True)
class Lost:
    """In place of a result: a task that failed in every attempt.

    failure: how the last attempt ended.
    """

    attempts: int
    failure: str


@dataclasses.dataclass(frozen=True)
class _Answer:
    """What a worker returns. kind: done, failed or refused. seconds: that the function ran."""

    kind: str
    key: str | int
    value: Any
    seconds: float = 0.0


def _run(
    wanted: Identity,
    key: str | int,
    submission: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> _Answer:
    """In the worker. Exceptions are returned as text: not every engine can pickle them.

    submission: another number each time, as some engines know a task by its arguments, and would
    return the failure of an earlier attempt.
    """
    start = time.monotonic()
    try:
        other = difference(wanted, identity())
        if other:
            return _Answer("refused", key, f"worker {socket.gethostname()}: {other}")
        return _Answer("done", key, function(*arguments), time.monotonic() - start)
    except RefuseTask as e:
        return _Answer("refused", key, f"worker {socket.gethostname()}: {e}")
    except Exception as e:
        text = "".join(traceback.format_exception_only(type(e), e)).strip()
        return _Answer("failed", key, f"worker {socket.gethostname()}: {text}")


@dataclasses.dataclass
class _Task:
    futures: set[Future[Any]] = dataclasses.field(default_factory=set)
    failures: int = 0
    failure: str = ""
    repeated: bool = False  # a straggler, once


def map_tasks(
    executor: Executor,
    function: Callable[..., Any],
    tasks: Mapping[Key, tuple[Any, ...]],
    *,
    doing: str,
    attempts: int = ATTEMPTS,
    straggler_seconds: float = STRAGGLER_SECONDS,
) -> Generator[tuple[Key, Any], None, None]:
    """Runs function(*arguments) for each task; yields each key once, as results arrive.

    executor: any `concurrent.futures.Executor`. function: of a module that workers can import,
    without effects but its result. tasks: key -> arguments. doing: for the progress. attempts: of a
    task, after which a Lost stands in place of its result. straggler_seconds: see
    STRAGGLER_SECONDS.

    Raises Refused where a worker has another version of shardproof or does not see what a task
    needs, and EngineError where the executor takes no more tasks. What is still running is
    cancelled when the iteration ends early.
    """
    wanted = identity()
    ended: queue.SimpleQueue[tuple[Key, Future[Any]]] = queue.SimpleQueue()
    open_tasks: dict[Key, _Task] = {}
    longest, again, submissions, stragglers = 0.0, 0, 0, 1

    def submit(key: Key) -> None:
        nonlocal submissions
        submissions += 1
        try:
            future = executor.submit(_run, wanted, key, submissions, function, tasks[key])
        except Exception as e:  # engines have their own for a pool or a cluster that is gone
            raise EngineError(
                f"the executor takes no more tasks ({type(e).__name__}: {e}): pass one that "
                "replaces workers which it lost, such as shardproof.engines.engine('local:4')"
            ) from e
        open_tasks[key].futures.add(future)
        future.add_done_callback(lambda done: ended.put((key, done)))

    try:
        for key in tasks:
            open_tasks[key] = _Task()
            submit(key)
        last = time.monotonic()
        while open_tasks:
            repeated = f", {again} tried again" if again else ""
            progress.phase(
                f"{doing}: {len(tasks) - len(open_tasks)} of {len(tasks)} tasks done{repeated}"
            )
            try:
                key, future = ended.get(timeout=1.0)
            except queue.Empty:
                _check_connection(executor)
                if time.monotonic() - last > max(straggler_seconds, STRAGGLER_FACTOR * longest):
                    oldest = [k for k, t in open_tasks.items() if not t.repeated][:stragglers]
                    for key in oldest:
                        open_tasks[key].repeated = True
                        again += 1
                        submit(key)
                    last, stragglers = time.monotonic(), 2 * stragglers
                continue
            task = open_tasks.get(key)
            if task is None:
                continue  # a later result of a task that has one
            task.futures.discard(future)
            answer = _answer_of(key, future)
            if answer.kind == "refused":
                raise Refused(str(answer.value))
            last, stragglers = time.monotonic(), 1
            if answer.kind == "done":
                longest = max(longest, answer.seconds)
                del open_tasks[key]
                for other in task.futures:
                    other.cancel()
                yield key, answer.value
                continue
            task.failures += 1
            task.failure = str(answer.value)
            if task.failures < attempts:
                again += 1
                submit(key)
            elif not task.futures:
                del open_tasks[key]
                yield key, Lost(task.failures, task.failure)
    finally:
        for task in open_tasks.values():
            for future in task.futures:
                with contextlib.suppress(Exception):  # of engines that cannot
                    future.cancel()


def _check_connection(executor: Executor) -> None:
    """Raises EngineError where Dask's client has lost its scheduler: its tasks stay pending."""
    status = getattr(getattr(executor, "_client", None), "status", None)
    if status in ("closing", "closed"):
        raise EngineError(
            "the connection to Dask's scheduler is lost, and no task can end: start the scheduler "
            "and the run once more (a sweep with --resume)"
        )


def _answer_of(key: str | int, future: Future[Any]) -> _Answer:
    """What a future has: an answer to this task, or how the worker was lost."""
    try:
        answer = future.result()
    except EngineError:
        raise
    except CancelledError:
        return _Answer("failed", key, "the engine cancelled it")
    except Exception as e:
        text = " ".join(str(e).split())
        if "No module named 'shardproof" in f"{text} {e.__cause__}":
            return _Answer(
                "refused", key, "a worker has no package shardproof: install it on all workers"
            )
        return _Answer("failed", key, f"the worker was lost ({type(e).__name__}: {text[:500]})")
    if not isinstance(answer, _Answer) or answer.key != key:
        return _Answer(
            "failed", key, f"the engine returned no answer to it: {type(answer).__name__}"
        )
    return answer


__all__ = ["ATTEMPTS", "EngineError", "Lost", "RefuseTask", "Refused", "map_tasks"]
