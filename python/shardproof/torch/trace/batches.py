# SPDX-License-Identifier: Apache-2.0
"""The batches of DataLoaders, as inputs of the step.

A tensor that a loader yields is an input: what is proved holds for every batch of that shape, not
for the samples that were read. On the ranks of data-parallel axes it is a part of the single
device's, whose batch is theirs, one after another in the order of ranks.

Which axes these are is found by recording twice. The first recordings show what each rank reads
(`Read`), and which axes read other samples. These make a plan (`Shared`), by which the single
device and the ranks are recorded again. On the single device the sampler is not asked then: its
batches have the samples of all ranks, so that lists and texts beside the tensors are right, too.

Where a loader's collation pads the samples of each rank to a length of its own, each rank gets its
rows of what collation makes of the samples of all ranks: as long as on the single device.

A tensor stays what was read where no dimension of it is that of the samples: a number of the batch.
"""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.utils.data import IterableDataset
from torch.utils.data.distributed import DistributedSampler

from ..compat import private
from ..compat.user_code import nearest_user_place, own_frame, own_place, user_place
from ..distributed.mesh import Mesh
from ..step.tracked_tensors import Placement
from ..terms.assumptions import Assumption, as_read, loaded_below, mixed_samples, padded
from ..terms.values import Shape
from . import collation
from .containers import beside_tensors, mapped
from .initial_parameters import Origin

Key = str  # FILE:LINE where a loader was made; of further ones that were made there, with a number


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A tensor that was read. origin: what it is made of (initial_parameters.py).

    below: what its integers are below, where none is below zero. by_program: the program limits
    them so, and not just those that were read. negative: some that were read are below zero.
    """

    shape: Shape
    origin: Origin
    below: int | None = None
    by_program: bool = True
    negative: bool = False


@dataclasses.dataclass(frozen=True)
class Batch:
    """samples: what the sampler gave, or None for each of an IterableDataset. tensors: by their
    path in what the loader yields. beside: what else there is that may be data, and its type.
    dims: along which dimension of a tensor its collation puts samples (collation.py). digests: of
    the samples, where their numbers are known.
    """

    samples: tuple[Any, ...]
    tensors: Mapping[str, Loaded]
    beside: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dims: Mapping[str, collation.Samples] = dataclasses.field(default_factory=dict)
    digests: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Dealt:
    """How a DistributedSampler deals out samples. replicas: to how many ranks."""

    replicas: int
    seed: int
    epoch: int
    shuffle: bool
    drop_last: bool
    samples: int

    @classmethod
    def by(cls, loader: Any) -> Dealt | None:
        """None for a loader with any other sampler."""
        within = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        sampler = next(
            (
                s
                for s in (getattr(loader, "sampler", None), within)
                if isinstance(s, DistributedSampler)
            ),
            None,
        )
        if sampler is None:
            return None
        return cls(
            sampler.num_replicas,
            sampler.seed,
            sampler.epoch,
            sampler.shuffle,
            sampler.drop_last,
            sampler.total_size,
        )


@dataclasses.dataclass(frozen=True)
class Read:
    """What one side reads of one loader.

    ends: after how many batches an iterator had no more. length: of the loader, where it has one.
    dealt: by its sampler, when the first batch was read. loaded: by a loader; else these are
    tensors that a line of the program moves to a device. before_step: batches when an optimizer of
    a script had first stepped; None where none has.
    """

    batches: tuple[Batch, ...]
    ends: frozenset[int]
    length: int | None
    dealt: Dealt | None
    loaded: bool = True
    before_step: int | None = None

    @property
    def of_step(self) -> int:
        """Batches of the first step of an optimizer; all where that is not known."""
        return len(self.batches) if self.before_step is None else self.before_step


@dataclasses.dataclass(frozen=True)
class Cut:
    """The place of a rank's tensor in the single device's: rows from `low` of dimension `dim`.

    lengths: where collation pads the tensors of ranks to several lengths, these.
    """

    dim: int
    low: int
    whole: Shape
    rows: int
    lengths: tuple[int, ...] = ()

    def shape(self, single: bool) -> Shape:
        """Of the rank's tensor, or of the single device's."""
        if single:
            return self.whole
        return (*self.whole[: self.dim], self.rows, *self.whole[self.dim + 1 :])


@dataclasses.dataclass(frozen=True)
class Shared:
    """How the batches of ranks make those of the single device.

    axes: along which ranks have batches of their own. batches: by their number, of the ranks along
    these axes in order. together: the batches of one number are one of the single device's; else
    they follow each other, as where a script accumulates more of them on one device. alone: how
    many samples the script reads at once on one device of its own accord. replicas: to how many
    ranks a DistributedSampler deals out samples; 0 without one. loaded: as of `Read`. there: what
    the single device calls the loader.
    """

    axes: tuple[str, ...]
    batches: tuple[tuple[Batch, ...], ...]
    together: bool
    ends: frozenset[int]
    length: int | None
    alone: int
    replicas: int = 0
    loaded: bool = True
    there: Key = ""

    @property
    def ranks(self) -> int:
        return len(self.batches[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples in the first batch of each rank."""
        return tuple(len(b.samples) for b in self.batches[0])

    def of_single(self, number: int) -> tuple[Batch, ...] | None:
        """The ranks' batches that are one of the single device's; None where there is none."""
        which, rank = (number, None) if self.together else divmod(number, self.ranks)
        if which >= len(self.batches):
            return None
        return self.batches[which] if rank is None else (self.batches[which][rank],)

    def ends_at(self, number: int) -> bool:
        """Whether an iterator of the single device ends before the batch of this number."""
        return (number if self.together else number / self.ranks) in self.ends

    def below(self, path: str) -> tuple[int | None, bool]:
        """What all integers of a tensor are below, and whether the program limits them so."""
        read = self._read(path)
        limits = [t.below for t in read]
        known = [n for n in limits if n is not None]
        if len(known) < len(limits):
            return None, False
        return max(known), all(t.by_program for t in read)

    def negative(self, path: str) -> bool:
        """Whether some integers of a tensor that were read are below zero."""
        return any(t.negative for t in self._read(path))

    def _read(self, path: str) -> list[Loaded]:
        """The tensors of one path in all batches of all ranks."""
        return [b.tensors[path] for same in self.batches for b in same if path in b.tensors]

    def number_of(self, number: int, rank: int) -> int:
        """The single device's batch that a rank's batch belongs to. rank: among `ranks`."""
        return number if self.together else number * self.ranks + rank


def cut_of(batches: tuple[Batch, ...], path: str, rank: int) -> Cut | None:
    """Where one rank's tensor lies in all ranks' together. None where they make no such tensor."""
    found = [b.tensors.get(path) for b in batches]
    shapes = [f.shape for f in found if f is not None]
    counts = [len(b.samples) for b in batches]
    if len(shapes) < len(batches) or not counts[0] or len({len(s) for s in shapes}) > 1:
        return None
    collated = {b.dims[path].dim for b in batches if path in b.dims}
    if collated:
        dim = collated.pop() if len(collated) == 1 else None
        ordered = all(path in b.dims and b.dims[path].ordered for b in batches)
        return _cut_along(shapes, dim, rank, may_pad=ordered)
    dims = [
        d
        for d in range(len(shapes[0]))
        if all(s[d] == n * shapes[0][d] // counts[0] and s[d] > 0 for s, n in zip(shapes, counts))
        and shapes[0][d] % counts[0] == 0
        and all(s[:d] + s[d + 1 :] == shapes[0][:d] + shapes[0][d + 1 :] for s in shapes)
    ]
    # the first that is as long as there are samples; else the first dimension, where each sample
    # has several rows
    exact = [d for d in dims if shapes[0][d] == counts[0]]
    return _cut_along(shapes, exact[0] if exact else 0 if 0 in dims else None, rank)


def _cut_along(
    shapes: list[Shape], dim: int | None, rank: int, may_pad: bool = False
) -> Cut | None:
    """None where tensors of these shapes cannot follow each other along the dimension. may_pad:
    those that are longer in other dimensions may be padded.
    """
    if dim is None or any(not s[dim] for s in shapes):
        return None
    rows = [s[dim] for s in shapes]
    longest = [max(s[d] for s in shapes) for d in range(len(shapes[0]))]
    padded = [d for d in range(len(longest)) if d != dim and len({s[d] for s in shapes}) > 1]
    if padded and not may_pad:
        return None
    lengths = tuple(dict.fromkeys(s[padded[0]] for s in shapes)) if padded else ()
    whole = (*longest[:dim], sum(rows), *longest[dim + 1 :])
    return Cut(dim, sum(rows[:rank]), whole, rows[rank], lengths)


def rows_of(shared: Shared) -> str:
    """The shapes of one rank's tensors, and which dimension is that of the samples."""
    texts = []
    for path, tensor in shared.batches[0][0].tensors.items():
        cut = cut_of(shared.batches[0], path, 0)
        if cut is not None:
            along = f" along dimension {cut.dim}" if cut.dim else ""
            texts.append(f"{path or 'a tensor'} {list(tensor.shape)}{along}")
    return ", ".join(texts[:_MOST_SHAPES]) + (", ..." if len(texts) > _MOST_SHAPES else "")


def _of_a_module() -> bool:
    """Whether nn.Module.to moves what is moved."""
    f: Any = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        f = f.f_back
        if f is None:
            return False
        if f.f_code.co_name == "_apply" and f.f_code.co_filename == _MODULE:
            return True
    return False


_MODULE = torch.nn.Module._apply.__code__.co_filename
_MOST_SHAPES = 4  # in one sentence
_MOST_FRAMES = 12  # between nn.Module._apply and what follows a tensor


@dataclasses.dataclass
class _Loader:
    """One loader while a side is recorded. number: of batches that were read."""

    key: Key
    loader: Any
    batches: list[Batch] = dataclasses.field(default_factory=list)
    ends: set[int] = dataclasses.field(default_factory=set)
    length: int | None = None
    number: int = 0
    samples: tuple[Any, ...] = ()  # of the batch that is being read
    digests: tuple[str, ...] = ()  # of these
    dims: Mapping[str, collation.Samples] | None = None  # None: no batch was collated yet
    dealt: Dealt | None = None
    before_step: int | None = None


class Tensors(Protocol):
    """Who knows what tensors hold: the recording of a side."""

    def look(self, t: torch.Tensor) -> Loaded: ...

    def loaded(
        self,
        name: str,
        shape: Shape,
        dtype: torch.dtype,
        placement: Placement,
        below: int | None,
        by_program: bool,
    ) -> torch.Tensor:
        """A new input of the step. below: what its integers are below; by_program: the program
        limits them so.
        """

    def negative(self, name: str) -> None:
        """Some integers of an input are below zero."""

    def assume(self, assumption: Assumption) -> None: ...

    def of_loader(self, t: torch.Tensor) -> None:
        """A loader yields it: it holds no numbers of an array of the program's."""

    def reading(self) -> AbstractContextManager[None]:
        """Inside, a batch is read: nothing is recorded (reading.py)."""

    def numbers(self, t: torch.Tensor) -> torch.Tensor | None:
        """What a tensor holds while a batch is read; None where that is not known."""

    def from_array(self, t: torch.Tensor) -> bool:
        """Whether it holds numbers of an array of the program's, as of a file."""

    def error(self, text: str) -> Exception: ...


class Loaders:
    """Follows the loaders of one side."""

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        shared: Mapping[Key, Shared],
        as_read: bool,
        side: Tensors,
    ) -> None:
        """as_read: batches are constants, of the samples that `shared` has."""
        self.mesh, self.rank, self.shared, self.side = mesh, rank, shared, side
        self.as_read = as_read
        self._by_id: dict[int, _Loader] = {}
        # of what is moved to a device: the instruction that moves it; whether it is for training
        self._by_place: dict[tuple[str, int, bool], _Loader] = {}
        self._count: collections.Counter[str] = collections.Counter()
        # a batch is asked for, or an array is moved to a device
        self.asked: Callable[[], None] = lambda: None
        # what the single device calls a loader -> what ranks call it
        self._theirs = {s.there: key for key, s in shared.items() if s.there}

    @property
    def single(self) -> bool:
        return self.mesh.world == 1

    # ---- what loaders do (compat.data_loading) ----
    def reading(self) -> AbstractContextManager[None]:
        return self.side.reading()

    def made(self, loader: Any) -> None:
        key = self._key(own_place() or nearest_user_place())
        self._by_id[id(loader)] = _Loader(key, loader)

    def length(self, loader: Any, length: Callable[[], int]) -> int:
        """len() of a loader: on the single device that of a rank's, whose batches it has."""
        known = self._by_id.get(id(loader))
        shared = self.shared.get(known.key) if known is not None else None
        if self.single and shared is not None and shared.together and shared.length is not None:
            return shared.length
        n = length()
        if known is not None:
            known.length = n
        return n

    def next_samples(self, loader: Any, next_of_sampler: Callable[[], Any]) -> Any:
        self.asked()
        known = self._by_id.get(id(loader))
        if known is None:
            return next_of_sampler()
        shared = self.shared.get(known.key)
        if self.single and shared is not None:
            given = self._planned(known, shared)
            if given is not None:
                known.samples = tuple(given)
                return given
        try:
            found = next_of_sampler()
        except StopIteration:
            known.ends.add(known.number)
            raise
        known.samples = tuple(found) if isinstance(found, (list, tuple)) else ()
        return found

    def collated(self, loader: Any, collate: Callable[[Any], Any], items: Any) -> Any:
        """What the loader's collation makes of samples.

        They are looked at where batches are read to see how the ranks' make the single device's,
        and where the latter's are constants.
        """
        known = self._by_id.get(id(loader))
        if known is None or not isinstance(items, list):
            return collate(items)
        shared = self.shared.get(known.key)
        if shared is not None and not self.as_read:
            return self._padded(known, shared, collate, items)
        numbers = collation.real(items, self.side.numbers)
        known.digests = tuple(map(collation.digest, numbers)) if numbers is not None else ()
        if known.dims is None:
            known.dims = (
                collation.sample_dimensions(collate, numbers) if numbers is not None else {}
            )
        return collate(items)

    def _padded(
        self, known: _Loader, shared: Shared, collate: Callable[[Any], Any], items: Any
    ) -> Any:
        """What collation makes of a rank's samples, padded as on the single device."""
        own = collate(items)
        batches = shared.of_single(shared.number_of(known.number, 0)) if shared.together else None
        if self.single or batches is None:
            return own
        at = self._among(shared)
        cuts = {path: cut_of(batches, path, at) for path in batches[at].tensors}
        rows = {path: (c.dim, c.low, c.rows) for path, c in cuts.items() if c is not None}
        shapes = {path: c.whole for path, c in cuts.items() if c is not None}
        samples = [s for b in batches for s in b.samples]
        if not any(c.lengths for c in cuts.values() if c is not None) or None in samples:
            return own
        return collation.of_all(
            collate, lambda: [known.loader.dataset[s] for s in samples], rows, shapes, own
        )

    def _among(self, shared: Shared) -> int:
        """Which of the ranks that share a batch this is."""
        at = 0
        coordinates = self.mesh.coordinates(self.rank)
        for axis in shared.axes:
            at = at * self.mesh.sizes[axis] + coordinates[axis]
        return at

    def batch(self, loader: Any, data: Any) -> Any:
        """What the loader yields, where it has read `data`."""
        known = self._by_id.get(id(loader))
        return data if known is None else self._next(known, data)

    def _next(self, known: _Loader, data: Any) -> Any:
        number, known.number = known.number, known.number + 1
        shared = self.shared.get(known.key)
        if shared is None:
            self._read(known, data)
            return data
        if self.as_read:
            return self._as_read(known, shared, number, data)
        return self._given(known.key, shared, number, data)

    def _key(self, place: str) -> Key:
        self._count[place] += 1
        key = place if self._count[place] == 1 else f"{place} ({self._count[place]})"
        return self._theirs.get(key, key) if self.single else key

    def moved(self, t: Any) -> Any:
        """What the program has of a tensor that it moves to a device: batches of its own making,
        which no loader yields.
        """
        plain = isinstance(t, torch.Tensor) and type(t) in (torch.Tensor, private.FakeTensor)
        if not plain or not t.dim() or t.requires_grad or not self.side.from_array(t):
            return t
        frame = own_frame()
        if frame is None or _of_a_module():
            return t
        self.asked()
        place, trains = user_place(frame), torch.is_grad_enabled()
        at = place, frame.f_lasti, trains
        known = self._by_place.get(at)
        if known is None:
            key = self._key(place if trains else f"{place} without gradients")
            known = self._by_place[at] = _Loader(key, None)
        known.samples = (None,) * int(t.shape[0])
        return self._next(known, t)

    def stepped(self) -> None:
        """An optimizer of a script has stepped."""
        for known in (*self._by_id.values(), *self._by_place.values()):
            if known.before_step is None and known.batches:
                known.before_step = len(known.batches)

    def read(self) -> dict[Key, Read]:
        """By loader, what was read."""
        return {
            k.key: Read(
                tuple(k.batches),
                frozenset(k.ends),
                k.length,
                k.dealt,
                k.loader is not None,
                k.before_step,
            )
            for k in (*self._by_id.values(), *self._by_place.values())
            if k.batches
        }

    # ---- ----
    def _planned(self, known: _Loader, shared: Shared) -> list[Any] | None:
        """The samples of the single device's next batch; None where its sampler gives them."""
        if shared.ends_at(known.number) and known.number not in known.ends:
            known.ends.add(known.number)
            raise StopIteration
        batches = shared.of_single(known.number)
        if batches is None:
            raise self.side.error(
                f"the single device reads more batches of the DataLoader at {known.key} than the "
                f"ranks do ({known.number} of them)"
            )
        samples = [s for b in batches for s in b.samples]
        return samples if samples and all(s is not None for s in samples) else None

    def _read(self, known: _Loader, data: Any) -> None:
        tensors: dict[str, Loaded] = {}

        def look(path: str, t: torch.Tensor) -> torch.Tensor:
            tensors[path] = self.side.look(t)
            if known.loader is not None:
                self.side.of_loader(t)
            return t

        mapped(data, look)
        samples = known.samples
        if not samples and isinstance(getattr(known.loader, "dataset", None), IterableDataset):
            # it yields batches itself
            rows = next((t.shape[0] for t in tensors.values() if t.shape), 0)
            samples = (None,) * rows
        if not known.batches:
            known.dealt = Dealt.by(known.loader)
        known.batches.append(
            Batch(samples, tensors, beside_tensors(data), known.dims or {}, known.digests)
        )

    def _as_read(self, known: _Loader, shared: Shared, number: int, data: Any) -> Any:
        """The batch, where the single device's is of the samples that the ranks read."""
        if self.single and shared.axes:
            theirs = [d for b in shared.of_single(number) or () for d in b.digests]
            if not theirs or list(known.digests) != theirs:
                raise self.side.error(
                    f"the samples of {known.key} are not the same when they are read again"
                )

        def note(path: str, t: torch.Tensor) -> torch.Tensor:
            if known.loader is not None:
                self.side.of_loader(t)
            return t

        return mapped(data, note)

    def _given(self, key: Key, shared: Shared, number: int, data: Any) -> Any:
        at = 0 if self.single else self._among(shared)
        which = number if self.single else shared.number_of(number, at)
        batches = shared.of_single(which)
        if batches is None:
            return data  # of the single device there is none either
        rank = at if shared.together and not self.single else 0

        def put(path: str, t: torch.Tensor) -> torch.Tensor:
            cut = cut_of(batches, path, rank)
            if cut is None or cut.lengths and tuple(t.shape) != cut.shape(self.single):
                apart = any(path in b.dims and b.dims[path].dim is None for b in batches)
                self.side.assume(as_read(key, path, f"a tensor of shape {list(t.shape)}", apart))
                return t
            if any(path in b.dims and b.dims[path].mixed for b in batches):
                self.side.assume(mixed_samples(key, path))
            if cut.lengths:
                self.side.assume(padded(key, cut.lengths))
            name = f"{key} batch {which}" + (f" {path}" if path else "")
            shape, place = cut.whole, Placement()
            if not self.single:
                shape = tuple(int(n) for n in t.shape)
                low = tuple(cut.low if d == cut.dim else 0 for d in range(len(shape)))
                axes, others = list(shared.axes), list[str]()
                if not shared.together:
                    axes, others = others, axes
                place = Placement(
                    offset=low,
                    shape=cut.whole,
                    covered=list(self.mesh.names),
                    cut=axes,
                    others=others,
                )
            below, by_program = shared.below(path)
            if below is not None and not by_program and not t.dtype.is_floating_point:
                self.side.assume(loaded_below(f"{key} {path}".strip(), below))
            if shared.negative(path):
                self.side.negative(name)
            return self.side.loaded(name, shape, t.dtype, place, below, by_program)

        for path, kind in beside_tensors(data).items():
            self.side.assume(as_read(key, path, f"a {kind}"))
        return mapped(data, put)


__all__ = [
    "Batch",
    "Cut",
    "Dealt",
    "Key",
    "Loaded",
    "Loaders",
    "Read",
    "Shared",
    "cut_of",
]
