# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine, each replaced when it dies.

The standard library's ProcessPoolExecutor fails all its tasks when one process dies, and takes no
more. Here each process is a pool of its own, so that a death costs the one task that it had.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import (
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from concurrent.futures.process import BrokenProcessPool
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def _end(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # another one would disturb the removal of files
    sys.exit(128 + number)


def _begin(parent: int) -> None:
    """In a process of the pool: how it ends.

    Ctrl-C in a terminal reaches it, too, and is for the parent. What ends it, the parent or that
    the parent was killed, ends its task, so that files of both are removed.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    threading.Thread(target=watch, daemon=True).start()


class LocalProcesses(Executor):
    """N processes. They are started when a task needs one, and import what it needs."""

    def __init__(self, processes: int) -> None:
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="shardproof-engine")
        self._own = threading.local()  # each thread's process
        self._lock = threading.Lock()
        self._pools: set[ProcessPoolExecutor] = set()
        self._running, self._cancelling = 0, False

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return self._threads.submit(self._in_process, function, args, kwargs)

    def _in_process(
        self, function: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        pool: ProcessPoolExecutor | None = getattr(self._own, "pool", None)
        if pool is None:
            # Not forked: this process has threads.
            pool = ProcessPoolExecutor(
                1,
                multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(os.getpid(),),
            )
            self._own.pool = pool
            with self._lock:
                self._pools.add(pool)
        with self._lock:
            self._running += 1
        try:
            if self._cancelling:
                raise CancelledError
            return pool.submit(function, *args, **kwargs).result()
        except BrokenProcessPool:
            self._own.pool = None
            with self._lock:
                self._pools.discard(pool)
            pool.shutdown(wait=False)
            raise
        finally:
            with self._lock:
                self._running -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As of an Executor. What has begun is not waited for where tasks are cancelled: its
        process is ended.
        """
        self._cancelling = cancel_futures
        self._threads.shutdown(wait=False, cancel_futures=cancel_futures)
        while cancel_futures:
            with self._lock:
                pools, running = list(self._pools), self._running
            for pool in pools:  # also one whose process has only just started
                for process in list((pool._processes or {}).values()):
                    process.terminate()
            if not running:
                break
            time.sleep(0.1)
        self._threads.shutdown(wait=wait)
        with self._lock:
            pools = list(self._pools)
        for pool in pools:
            pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def __exit__(self, *exception: Any) -> None:
        self.shutdown(cancel_futures=exception[0] is not None)


__all__ = ["LocalProcesses"]
