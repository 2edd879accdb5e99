# SPDX-License-Identifier: Apache-2.0
"""State dicts: dictionaries and lists, nested in any way, with tensors and other values as leaves.

A leaf is named by its keys, joined by slashes: `0/decoder.weight` is `decoder.weight` of rank 0
where the state dicts of all ranks are a list.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .identities import SourceTensor
from .symbolic import ConversionError, Session


def leaves(nested: Any, what: str, paths: dict[str, str] | None = None) -> dict[str, Any]:
    """Name to leaf. Raises ConversionError where two have one name.

    paths: takes each leaf's path in words, in which a list's item 0, a key 0 and a key '0' differ.
    """
    found: dict[str, Any] = {}

    def walk(x: Any, path: tuple[str, ...], words: tuple[str, ...]) -> None:
        if isinstance(x, Mapping):
            for key, value in x.items():
                word = f"key {key!r}" if type(key) is str else f"{type(key).__name__} key {key!r}"
                walk(value, (*path, str(key)), (*words, word))
        elif isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
            for i, value in enumerate(x):
                walk(value, (*path, str(i)), (*words, f"list item {i}"))
        else:
            name = "/".join(path)
            if name in found:
                raise ConversionError(f"two values of the {what} are called {name!r}")
            found[name] = x
            if paths is not None:
                paths[name] = ", ".join(words)

    walk(nested, (), ())
    return found


def mapped(nested: Any, function: Callable[[str, Any], Any]) -> Any:
    """A copy of the dictionaries and lists, with other leaves, and with PyTorch's `_metadata`."""

    def walk(x: Any, path: tuple[str, ...]) -> Any:
        if isinstance(x, Mapping):
            items = [(key, walk(value, (*path, str(key)))) for key, value in x.items()]
            if not isinstance(x, OrderedDict):
                return dict(items)
            made = OrderedDict(items)
            if hasattr(x, "_metadata"):  # the versions that load_state_dict and hooks read
                made._metadata = copy.deepcopy(x._metadata)  # type: ignore[attr-defined]
            return made
        if isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
            values = [walk(value, (*path, str(i))) for i, value in enumerate(x)]
            return values if isinstance(x, list) else tuple(values)
        return function("/".join(path), x)

    return walk(nested, ())


def _check_containers(nested: Any) -> None:
    """Refuses a source with containers that the symbolic source would not be equal to: the
    conversion may read their fields, defaults and attributes."""

    def walk(x: Any, path: tuple[str, ...]) -> None:
        name = f"{'/'.join(path)!r} of the source" if path else "the source"
        if isinstance(x, Mapping):
            if type(x) not in (dict, OrderedDict):
                raise ConversionError(
                    f"{name} is a {type(x).__name__}, of which only the items would be seen; give "
                    "dict(...) of it"
                )
            if others := getattr(x, "__dict__", {}).keys() - {"_metadata"}:
                raise ConversionError(
                    f"{name} has the attribute {min(others)!r}, which would be lost; give "
                    "dict(...) of it"
                )
            for key, value in x.items():
                walk(value, (*path, str(key)))
        elif isinstance(x, (list, tuple)) and not isinstance(x, torch.Size):
            if type(x) not in (list, tuple):
                raise ConversionError(
                    f"{name} is a {type(x).__name__}, of which only the items would be seen; give "
                    f"list(...) or tuple(...) of it"
                )
            for i, value in enumerate(x):
                walk(value, (*path, str(i)))

    walk(nested, ())


def _check_tensor(name: str, x: torch.Tensor) -> None:
    """Refuses a tensor with what a symbolic tensor lacks: the conversion may look at it."""
    lost = ""
    if type(x) is not torch.Tensor:
        lost = f"is a {type(x).__name__}"
    elif x.requires_grad:
        lost = "requires a gradient"
    elif x.grad is not None:
        lost = "has a gradient"
    elif x.__dict__:
        lost = f"has the attribute {min(x.__dict__)!r}"
    if lost:
        raise ConversionError(
            f"source tensor {name!r} {lost}, which the conversion could look at, but would not "
            "see; give .detach() of the tensor"
        )


class SymbolicSource:
    """Makes symbolic copies of the source. Tensors that share memory share it in each copy.

    tied: groups of names whose tensors hold the same numbers by assumption.
    Raises ConversionError if the source has no tensors, or some that are not followed.
    """

    def __init__(self, session: Session, source: Any, tied: Iterable[Iterable[str]]) -> None:
        self.session = session
        self.source = source
        _check_containers(source)
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
            _check_tensor(name, x)
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
        """The source with symbolic tensors of new memory, and deep copies of other values."""
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
        copies: dict[int, Any] = {}  # the same for other values

        def leaf(name: str, x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return _copied(name, x, copies)
            if id(x) not in made:
                key, size, stride, offset = self._layout[name]
                identities = memory[key].as_strided(size, stride, offset)
                made[id(x)] = self.session.wrap(identities, x.dtype)
            return made[id(x)]

        return mapped(self.source, leaf)


def _copied(name: str, x: Any, copies: dict[int, Any]) -> Any:
    """A deep copy, so that what a function does to the value in place stays with that function."""
    try:
        made = copy.deepcopy(x, copies)
    except Exception as error:
        raise ConversionError(
            f"the source's value {name!r} ({type(x).__name__}) cannot be copied: {error}; leave it "
            "out of the source"
        ) from error
    if any(isinstance(part, torch.Tensor) for part in copies.values()):
        raise ConversionError(
            f"the source's value {name!r} ({type(x).__name__}) has tensors in it, which are not "
            "followed; give dictionaries and lists of tensors"
        )
    return made
