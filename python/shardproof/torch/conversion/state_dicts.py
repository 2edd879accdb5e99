# SPDX-License-Identifier: Apache-2.0
"""State dicts: dictionaries and lists, nested in any way, with tensors and other values as leaves.

A leaf is named by its keys, joined by slashes: `0/decoder.weight` is `decoder.weight` of rank 0
where the state dicts of all ranks are a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .identities import SourceTensor
from .symbolic import ConversionError, Session


def leaves(nested: Any, what: str) -> dict[str, Any]:
    """Name to leaf. Raises ConversionError where two have one name."""
    found: dict[str, Any] = {}

    def walk(x: Any, path: tuple[str, ...]) -> None:
        if isinstance(x, Mapping):
            for key, value in x.items():
                walk(value, (*path, str(key)))
        elif isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
            for i, value in enumerate(x):
                walk(value, (*path, str(i)))
        else:
            name = "/".join(path)
            if name in found:
                raise ConversionError(f"two values of the {what} are called {name!r}")
            found[name] = x

    walk(nested, ())
    return found


def mapped(nested: Any, function: Callable[[str, Any], Any]) -> Any:
    """A copy of the dictionaries and lists, with other leaves."""

    def walk(x: Any, path: tuple[str, ...]) -> Any:
        if isinstance(x, Mapping):
            items = [(key, walk(value, (*path, str(key)))) for key, value in x.items()]
            return type(x)(items) if isinstance(x, dict) and _plain(x) else dict(items)
        if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
            values = [walk(value, (*path, str(i))) for i, value in enumerate(x)]
            return values if isinstance(x, list) else tuple(values)
        return function("/".join(path), x)

    return walk(nested, ())


def _plain(x: dict[Any, Any]) -> bool:
    return type(x).__name__ in ("dict", "OrderedDict")


class SymbolicSource:
    """Makes symbolic copies of the source. Tensors that share memory share it in each copy.

    tied: groups of names whose tensors hold the same numbers by assumption.
    Raises ConversionError if the source has no tensors, or some that are not followed.
    """

    def __init__(self, session: Session, source: Any, tied: Iterable[Iterable[str]]) -> None:
        self.session = session
        self.source = source
        self.tensors = {
            name: x for name, x in leaves(source, "source").items() if isinstance(x, torch.Tensor)
        }
        if not self.tensors:
            raise ConversionError("the source has no tensors")
        self._memory: dict[int, torch.Tensor] = {}  # a storage's identities
        self._layout: dict[str, tuple[int, Any, Any, int]] = {}
        self._keep: list[Any] = []
        self._lent: dict[int, torch.Tensor] | None = None
        self._writes = 0  # of the session, when that memory was made
        self._place(tied)
        for name, x in self.tensors.items():
            memory, size, stride, offset = self._layout[name]
            identities = self._memory[memory].as_strided(size, stride, offset)
            session.identities.sources.append(SourceTensor(name, identities, x.dtype))

    def _place(self, tied: Iterable[Iterable[str]]) -> None:
        identities = self.session.identities
        dtypes: dict[int, torch.dtype] = {}
        for name, x in self.tensors.items():
            if x.layout != torch.strided or x.is_quantized or x.is_complex():
                raise ConversionError(
                    f"source tensor {name!r}: only dense real tensors are followed"
                )
            storage = x.untyped_storage()
            self._keep.append(storage)
            key = storage._cdata
            if dtypes.setdefault(key, x.dtype) != x.dtype:
                raise ConversionError(
                    f"source tensor {name!r} shares memory with one of another dtype"
                )
            if key not in self._memory:
                elements = storage.nbytes() // x.element_size()
                self._memory[key] = identities.block(elements, x.dtype)
            self._layout[name] = (key, x.shape, x.stride(), x.storage_offset())
        for group in tied:
            first, *others = [*group]
            for name in (first, *others):
                if name not in self.tensors:
                    raise ConversionError(f"tied: the source has no tensor {name!r}")
            memory, size, stride, offset = self._layout[first]
            values = self._memory[memory].as_strided(size, stride, offset)
            for name in others:
                a, b = self.tensors[first], self.tensors[name]
                if (a.shape, a.dtype) != (b.shape, b.dtype):
                    raise ConversionError(f"tied: {first!r} and {name!r} differ in shape or dtype")
                memory, size, stride, offset = self._layout[name]
                if memory != self._layout[first][0]:
                    self._memory[memory].as_strided(size, stride, offset).copy_(values)

    def copy(self) -> Any:
        """The source with symbolic tensors of new memory; other values as they are."""
        with _disable_current_modes():  # the specification calls this while its mode is active
            return self._made({key: x.clone() for key, x in self._memory.items()})

    def lent(self) -> Any:
        """The same, of memory that is used again unless somebody has written to it since."""
        with _disable_current_modes():
            if self._lent is None or self._writes != self.session.writes:
                self._lent = {key: x.clone() for key, x in self._memory.items()}
                self._writes = self.session.writes
            return self._made(self._lent)

    def _made(self, memory: dict[int, torch.Tensor]) -> Any:
        made: dict[int, torch.Tensor] = {}  # one object stays one

        def leaf(name: str, x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) not in made:
                key, size, stride, offset = self._layout[name]
                identities = memory[key].as_strided(size, stride, offset)
                made[id(x)] = self.session.wrap(identities, x.dtype)
            return made[id(x)]

        return mapped(self.source, leaf)
