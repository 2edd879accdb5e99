# SPDX-License-Identifier: Apache-2.0
"""Ray's tasks as an Executor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import ray

T = TypeVar("T")


class RayTasks(Executor):
    """Tasks of the cluster that this process is connected to, one processor each."""

    def __init__(self) -> None:
        self._references: dict[Future[Any], Any] = {}

    def submit(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        # map_tasks submits what was lost once more, and counts how often.
        remote = ray.remote(num_cpus=1, max_retries=0)(function)
        reference = remote.remote(*args, **kwargs)
        future: Future[T] = reference.future()
        self._references[future] = reference
        future.add_done_callback(lambda done: self._references.pop(done, None))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As of an Executor."""
        for future, reference in list(self._references.items()):
            if cancel_futures:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)
            elif wait:
                future.exception()

    def __exit__(self, *exception: Any) -> None:
        self.shutdown(cancel_futures=exception[0] is not None)


__all__ = ["RayTasks"]
