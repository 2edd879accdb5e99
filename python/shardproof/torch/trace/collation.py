# SPDX-License-Identifier: Apache-2.0
"""How a loader's own `collate_fn` puts samples together, found by calling it.

A batch of all ranks' samples is the ranks' batches, one after another along some dimension, if
collation treats samples one by one. It need not: the edges of a batch of graphs are numbered
through. So the samples of the first batch are collated once, and twice over, with numbers, and
tensors are compared. Whoever has drawn anything meanwhile is put back.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
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
        return [mapped(copy.copy(item), put) for item in items]
    except Exception:  # samples that cannot be copied are not looked at
        return None


def digest(item: Any) -> str:
    """Of the numbers, names and texts of one sample."""
    found = hashlib.sha256()

    def add(path: str, t: torch.Tensor) -> torch.Tensor:
        with private.outside():
            flat = t.detach().contiguous().reshape(-1)
            found.update(f"{path} {t.dtype} {tuple(t.shape)}".encode())
            if flat.numel():
                found.update(flat.view(torch.uint8).numpy().tobytes())
        return torch.empty(0)

    with private.outside():
        found.update(repr(mapped(item, add)).encode())
    return found.hexdigest()


def sample_dimensions(collate: Any, items: Sequence[Any]) -> dict[str, int | None]:
    """By path of a tensor in what `collate` makes of samples: the dimension along which it puts
    them one after another, in any order; None: it makes something else of them together.

    Tensors of which nothing could be found are left out, and so are all of PyTorch's own
    collation, which stacks. items: as of `real`.
    """
    if collate in (default_collate, default_convert) or not items or _has_generator(collate):
        return {}
    found: dict[str, int | None] = {}
    try:
        with _draws_put_back(), private.outside():
            once, again, both = (
                _tensors(collate(_copies(samples))) for samples in (items, items, [*items, *items])
            )
            for path, t in once.items():
                if path in again and path in both:
                    found.update(_dimension(path, t, again[path], both[path]))
    except Exception:  # what a collation cannot do with these is no concern of the step
        return {}
    return found


def _dimension(
    path: str, once: torch.Tensor, again: torch.Tensor, both: torch.Tensor
) -> dict[str, int | None]:
    longer = [
        d
        for d in range(once.dim())
        if both.dim() == once.dim()
        and tuple(both.shape) == (*once.shape[:d], 2 * once.shape[d], *once.shape[d + 1 :])
        and once.shape[d]
    ]
    if not torch.equal(once, again):  # it draws: masked tokens
        return {path: longer[0]} if longer else {}
    for d in longer:
        if _rows(torch.cat([once, once], d), d) == _rows(both, d):
            return {path: d}
    return {path: None}


def _rows(t: torch.Tensor, dim: int) -> list[bytes]:
    """The slices along a dimension, in an order of their own."""
    rows = t.movedim(dim, 0).reshape(t.shape[dim], -1).contiguous()
    return sorted(row.view(torch.uint8).numpy().tobytes() for row in rows)


def _copies(items: Sequence[Any]) -> list[Any]:
    """Samples, from which a collation may take something out."""
    return [mapped(copy.copy(item), lambda path, t: t.clone()) for item in items]


def _tensors(data: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def note(path: str, t: torch.Tensor) -> torch.Tensor:
        found[path] = t.detach()
        return t

    mapped(data, note)
    return found


def _has_generator(collate: Any) -> bool:
    return (
        any(isinstance(x, torch.Generator) for x in vars(collate).values())
        if hasattr(collate, "__dict__")
        else False
    )


@contextlib.contextmanager
def _draws_put_back() -> Iterator[None]:
    numpy: Any = sys.modules.get("numpy")
    state = torch.default_generator.get_state()
    of_python, of_numpy = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        random.setstate(of_python)
        if numpy:
            numpy.random.set_state(of_numpy)


__all__ = ["Numbers", "digest", "real", "sample_dimensions"]
