# SPDX-License-Identifier: Apache-2.0
"""How often a step moves schedulers of learning rates on."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch.optim.lr_scheduler as schedulers

from ..compat.private import changes, set_attribute

# accelerate moves a scheduler on once for each process, by design.
_OF_ACCELERATE = "accelerate.scheduler"


@dataclasses.dataclass
class SchedulerSteps:
    """count: calls of `step()`, beside those that schedulers make of one another, and those with
    which accelerate counts its processes.
    """

    count: int = 0
    _within: bool = False

    def call(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._within:
            return step(*args, **kwargs)
        self._within = True
        try:
            if sys._getframe(2).f_globals.get("__name__") != _OF_ACCELERATE:
                self.count += 1
            return step(*args, **kwargs)
        finally:
            self._within = False


@contextlib.contextmanager
def counted_schedulers() -> Iterator[SchedulerSteps]:
    """The steps of all schedulers of PyTorch, and of classes that are made of them."""
    counted = SchedulerSteps()

    def counting(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def call(*args: Any, **kwargs: Any) -> Any:
            return counted.call(step, *args, **kwargs)

        return call

    with changes() as undo:
        for _, cls in inspect.getmembers(schedulers, inspect.isclass):
            if issubclass(cls, schedulers.LRScheduler) and "step" in vars(cls):
                set_attribute(cls, "step", counting(vars(cls)["step"]), undo)
        yield counted


__all__ = ["SchedulerSteps", "counted_schedulers"]
