"""torch.utils.data while a step is recorded: which samples make a batch is drawn with real numbers, in this process. As private as `_private`."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler
from torch.utils.data import dataloader as loading
from torch.utils.data.distributed import DistributedSampler

from ._private import outside, set_attribute

_HERE = {"num_workers": 0, "pin_memory": False, "persistent_workers": False, "prefetch_factor": None, "timeout": 0, "multiprocessing_context": None, "worker_init_fn": None}
_POSITIONAL = 5  # of DataLoader's arguments: up to `batch_sampler`; what follows goes by name


def _indices(original: Any) -> Any:
    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        with outside():
            return iter(list(original(self)))

    return iterate


def in_this_process(undo: list[tuple[Any, str, Any]]) -> None:
    """Loaders have no workers, and draw their seeds and permutations as if nothing were recorded: these are numbers of the program, not of its data."""
    original = DataLoader.__init__
    names = original.__code__.co_varnames[1:original.__code__.co_argcount]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names[_POSITIONAL:], args[_POSITIONAL:])), **kwargs}
        with outside():
            original(self, *args[:_POSITIONAL], **{**given, **_HERE})

    begin = loading._BaseDataLoaderIter.__init__

    @functools.wraps(begin)
    def start(self: Any, loader: Any) -> None:
        with outside():
            begin(self, loader)

    set_attribute(DataLoader, "__init__", init, undo)
    set_attribute(loading._BaseDataLoaderIter, "__init__", start, undo)
    for sampler in (RandomSampler, SubsetRandomSampler, DistributedSampler):
        set_attribute(sampler, "__iter__", _indices(sampler.__iter__), undo)


__all__ = ["in_this_process"]
