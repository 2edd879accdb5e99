# SPDX-License-Identifier: Apache-2.0
"""torch.utils.data while a step is recorded. As private as `private`.

Which samples make a batch is drawn with real numbers, in this process.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler
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


class Dealing:
    """The samples that DistributedSampler deals out.

    seen: the number of ranks, and the samples in a batch of one. together: on the single device,
    the number of ranks whose batches make its own, and the size of each. Their rows follow rank by
    rank. DistributedSampler has other rows in each place for one rank, but the same batch.
    """

    def __init__(self) -> None:
        self.seen: tuple[int, int] | None = None
        self.together: tuple[int, int] | None = None

    def batches(self, batch_sampler: Any, original: Any) -> Iterator[list[int]]:
        dealt = batch_sampler.sampler
        if type(dealt) is not DistributedSampler:
            return iter(original(batch_sampler))
        self.seen = self.seen or (dealt.num_replicas, batch_sampler.batch_size)
        if self.together is None or dealt.num_replicas != 1:
            return iter(original(batch_sampler))
        ranks, size = self.together
        parts = [
            DistributedSampler(dealt.dataset, ranks, r, dealt.shuffle, dealt.seed, dealt.drop_last)
            for r in range(ranks)
        ]
        for part in parts:
            part.set_epoch(dealt.epoch)
        of_ranks = [BatchSampler(list(part), size, batch_sampler.drop_last) for part in parts]
        return iter(
            [
                [i for batch in batches for i in batch]
                for batches in zip(*(list(original(b)) for b in of_ranks))
            ]
        )


def in_this_process(undo: Undo, dealing: Dealing) -> None:
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

    begin = loading._BaseDataLoaderIter.__init__

    @functools.wraps(begin)
    def start(self: Any, loader: Any) -> None:
        with outside():
            begin(self, loader)

    batches = BatchSampler.__iter__
    set_attribute(BatchSampler, "__iter__", lambda self: dealing.batches(self, batches), undo)
    set_attribute(DataLoader, "__init__", init, undo)
    set_attribute(loading._BaseDataLoaderIter, "__init__", start, undo)
    for sampler in (RandomSampler, SubsetRandomSampler, DistributedSampler):
        set_attribute(sampler, "__iter__", _indices(sampler.__iter__), undo)


__all__ = ["Dealing", "in_this_process"]
