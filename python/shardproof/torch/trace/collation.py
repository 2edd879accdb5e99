# SPDX-License-Identifier: Apache-2.0
"""How a loader's own `collate_fn` puts samples together, found by calling it.

A batch of all ranks' samples is the ranks' batches, one after another along some dimension, if
collation treats samples one by one. It need not: the edges of a batch of graphs are numbered
through. So samples of the first batch are collated, with numbers, and tensors are compared: those
of the samples, of others with other numbers, and of both together. Whoever has drawn anything
meanwhile is put back.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate, default_convert

from ..compat import private
from .containers import mapped

Numbers = Callable[[torch.Tensor], "torch.Tensor | None"]  # of a tensor; None: they are not known


class _NoNumbers(Exception):
    """A sample has a tensor whose numbers are not known."""


def real(items: Sequence[Any], numbers: Numbers) -> list[Any] | None:
    """Copies of samples, with tensors that hold their numbers. None where some are not known."""

    def put(path: str, t: torch.Tensor) -> torch.Tensor:
        found = numbers(t)
        if found is None:
            raise _NoNumbers
        with private.outside():
            return found.clone()

    try:
        return _copies(items, put)
    except Exception:  # samples that cannot be copied are not looked at
        return None


def digest(item: Any) -> str:
    """Of the numbers, names and texts of one sample."""
    found = hashlib.sha256()

    def add(path: str, t: torch.Tensor) -> torch.Tensor:
        flat = t.detach().contiguous().reshape(-1)
        found.update(f"{path} {t.dtype} {tuple(t.shape)}".encode())
        if flat.numel():
            found.update(flat.view(torch.uint8).numpy().tobytes())
        return torch.empty(0)

    with private.outside():
        found.update(repr(_copies([item], add)).encode())
    return found.hexdigest()


@dataclasses.dataclass(frozen=True)
class Samples:
    """What is known of a tensor that a collation makes.

    dim: along which it puts samples one after another, in any order that all tensors of as many
    rows share; None: it makes something else of them together. mixed: by what it draws, samples
    come into each other's rows. ordered: samples follow each other as they are given.
    """

    dim: int | None
    mixed: bool = False
    ordered: bool = False


def sample_dimensions(collate: Any, items: Sequence[Any]) -> dict[str, Samples]:
    """By path of a tensor in what `collate` makes of samples.

    Tensors of which nothing could be found are left out, and so are all of PyTorch's own
    collation, which stacks. items: as of `real`.
    """
    if collate in (default_collate, default_convert) or not items or _has_generator(collate):
        return {}
    try:
        others = _copies(items, lambda path, t: _other(t))
        one, two, again, both, same = _collated(
            collate, (items, others, items, [*items, *others], [*items, *items])
        )
    except Exception:  # what a collation cannot do with these is no concern of the step
        return {}
    found: dict[str, Samples] = {}
    # where nothing is drawn: by the number of rows, tensors and the dimension of these
    rows: dict[int, dict[str, int]] = collections.defaultdict(dict)
    for path, t in one.items():
        if not all(path in other for other in (two, again, both, same)):
            continue
        dim = _longer(t, two[path], both[path])
        if not torch.equal(t, again[path]):
            if dim is not None:
                n = t.shape[dim]
                alone = torch.equal(both[path].narrow(dim, 0, n), same[path].narrow(dim, 0, n))
                found[path] = Samples(dim, not alone)
            continue
        found[path] = Samples(None)
        if dim is not None:
            rows[t.shape[dim]][path] = dim
            if torch.equal(torch.cat([t, two[path]], dim), both[path]):
                found[path] = Samples(dim, ordered=True)
    for dims in rows.values():
        parts = {p: torch.cat([one[p], two[p]], d) for p, d in dims.items()}
        if _rows(parts, dims) == _rows(both, dims):
            found.update({p: Samples(d, ordered=found[p].ordered) for p, d in dims.items()})
    return found


def _collated(collate: Any, batches: Sequence[Sequence[Any]]) -> list[dict[str, torch.Tensor]]:
    """What becomes of each, with the same draws; only the third is drawn anew."""
    found = []
    with _draws_put_back() as put_back, private.outside():
        for i, samples in enumerate(batches):
            if i != 2:
                put_back()
            found.append(_tensors(collate(_copies(samples))))
    return found


def _other(t: torch.Tensor) -> torch.Tensor:
    """Another sample's, with numbers of the same range."""
    if not t.numel():
        return t.clone()
    if t.is_floating_point():
        return t * 0.75 + 0.125
    if t.dtype == torch.bool or t.is_complex():
        return t.clone()
    return t.max() + t.min() - t


def _longer(one: torch.Tensor, two: torch.Tensor, both: torch.Tensor) -> int | None:
    """The dimension in which one tensor is as long as two others."""
    for d in range(one.dim()):
        if (
            one.dim() == two.dim() == both.dim()
            and both.shape[d] == one.shape[d] + two.shape[d] > 0
            and both.shape[:d] == one.shape[:d] == two.shape[:d]
            and both.shape[d + 1 :] == one.shape[d + 1 :] == two.shape[d + 1 :]
        ):
            return d
    return None


def _rows(tensors: Mapping[str, torch.Tensor], dims: Mapping[str, int]) -> list[tuple[bytes, ...]]:
    """The slices of these tensors along their dimensions, in an order of their own."""
    found = []
    for path, dim in dims.items():
        t = tensors[path]
        flat = t.movedim(dim, 0).reshape(t.shape[dim], -1).contiguous()
        found.append([row.view(torch.uint8).numpy().tobytes() for row in flat])
    return sorted(zip(*found))


def _copies(
    items: Sequence[Any], f: Callable[[str, torch.Tensor], torch.Tensor] = lambda _, t: t.clone()
) -> list[Any]:
    """Samples, from which a collation may take something out, with f(path, tensor) in the place of
    each tensor.
    """
    return [mapped(copy.copy(item), f) for item in items]


def _tensors(data: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def note(path: str, t: torch.Tensor) -> torch.Tensor:
        found[path] = t.detach()
        return t

    mapped(data, note)
    return found


def _has_generator(collate: Any) -> bool:
    kept = getattr(collate, "__dict__", {})
    return any(isinstance(x, torch.Generator) for x in kept.values())


def of_all(
    collate: Any,
    samples: Callable[[], Sequence[Any]],
    rows: Mapping[str, tuple[int, int, int]],
    shapes: Mapping[str, tuple[int, ...]],
    own: Any,
) -> Any:
    """What a collation made of some samples, padded as it pads them together with others.

    samples: gives all. rows: by path of a tensor, the dimension of the samples, where the own ones
    begin and how many rows they have. shapes: that tensors of all have, if they are padded to the
    longest. own: what it made of the own ones, which is given where that is not so.
    """
    with _draws_put_back():
        whole = _tensors(collate(list(samples())))
    if any(path not in whole or tuple(whole[path].shape) != s for path, s in shapes.items()):
        return own

    def cut(path: str, t: torch.Tensor) -> torch.Tensor:
        if path not in rows or path not in whole:
            return t
        dim, low, count = rows[path]
        return whole[path].narrow(dim, low, count)

    return mapped(own, cut)


@contextlib.contextmanager
def _draws_put_back() -> Iterator[Callable[[], None]]:
    """Gives what puts all generators back."""
    numpy: Any = sys.modules.get("numpy")
    state = torch.default_generator.get_state()
    of_python, of_numpy = random.getstate(), numpy.random.get_state() if numpy else None

    def put_back() -> None:
        torch.default_generator.set_state(state)
        random.setstate(of_python)
        if numpy:
            numpy.random.set_state(of_numpy)

    try:
        yield put_back
    finally:
        put_back()


__all__ = ["Numbers", "Samples", "digest", "of_all", "real", "sample_dimensions"]
