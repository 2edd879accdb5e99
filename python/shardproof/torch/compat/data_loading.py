# SPDX-License-Identifier: Apache-2.0
"""torch.utils.data while a step is recorded. As private as `private`.

Which samples make a batch is drawn with real numbers, in this process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler
from torch.utils.data import dataloader as loading
from torch.utils.data.distributed import DistributedSampler

from .private import Undo, outside, set_attribute

_HERE = {
    "num_workers": 0,
    "pin_memory": False,
    "persistent_workers": False,
    "prefetch_factor": None,
    "timeout": 0,
    "multiprocessing_context": None,
    "worker_init_fn": None,
}
_POSITIONAL = 5  # of DataLoader's arguments: up to `batch_sampler`; what follows goes by name


def _indices(original: Any) -> Any:
    @functools.wraps(original)
    def iterate(self: Any) -> Any:
        with outside():
            return iter(list(original(self)))

    return iterate


class Following(Protocol):
    """What follows loaders while a step is recorded. reading: inside, a batch is read."""

    def reading(self) -> AbstractContextManager[None]: ...

    def made(self, loader: Any) -> None: ...

    def length(self, loader: Any, length: Callable[[], int]) -> int: ...

    def next_samples(self, loader: Any, next_of_sampler: Callable[[], Any]) -> Any: ...

    def collated(self, loader: Any, collate: Callable[[Any], Any], items: Any) -> Any: ...

    def batch(self, loader: Any, data: Any) -> Any: ...


def in_this_process(undo: Undo, loaders: Following) -> None:
    """Loaders have no workers.

    They draw their seeds and permutations outside of the recording: these are numbers of the
    program, not of its data.
    """
    original = DataLoader.__init__
    names = original.__code__.co_varnames[1 : original.__code__.co_argcount]

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names[_POSITIONAL:], args[_POSITIONAL:])), **kwargs}
        with outside():
            original(self, *args[:_POSITIONAL], **{**given, **_HERE})
        loaders.made(self)

    begin = loading._BaseDataLoaderIter.__init__

    @functools.wraps(begin)
    def start(self: Any, loader: Any) -> None:
        with outside():
            begin(self, loader)
        self._loader = loader

    def single(self: Any, loader: Any) -> None:
        begin_single(self, loader)
        fetcher = self._dataset_fetcher
        if fetcher.auto_collation:
            fetcher.collate_fn = functools.partial(loaders.collated, loader, fetcher.collate_fn)

    begin_single = loading._SingleProcessDataLoaderIter.__init__

    following = loading._BaseDataLoaderIter._next_index

    def next_index(self: Any) -> Any:
        with loaders.reading():
            return loaders.next_samples(self._loader, lambda: following(self))

    following_batch = loading._BaseDataLoaderIter.__next__

    def next_batch(self: Any) -> Any:
        with loaders.reading():
            data = following_batch(self)
        return loaders.batch(self._loader, data)

    length = DataLoader.__len__
    set_attribute(
        DataLoader, "__len__", lambda self: loaders.length(self, lambda: length(self)), undo
    )
    set_attribute(DataLoader, "__init__", init, undo)
    set_attribute(loading._BaseDataLoaderIter, "__init__", start, undo)
    set_attribute(loading._SingleProcessDataLoaderIter, "__init__", single, undo)
    set_attribute(loading._BaseDataLoaderIter, "_next_index", next_index, undo)
    set_attribute(loading._BaseDataLoaderIter, "__next__", next_batch, undo)
    for sampler in (RandomSampler, SubsetRandomSampler, DistributedSampler):
        set_attribute(sampler, "__iter__", _indices(sampler.__iter__), undo)


__all__ = ["Following", "in_this_process"]
