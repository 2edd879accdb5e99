# SPDX-License-Identifier: Apache-2.0
"""Tensors that a script's variables hold: those of its functions on the stack, and what lists,
dictionaries, objects, closures and modules in them hold.

The search is breadth first, so that what is near is found whatever else there is.
Objects of PyTorch, data sets and loaders are not looked into.
"""

from __future__ import annotations

import collections
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ..compat.user_code import is_own, user_place

_MOST_DEPTH, _MOST_OBJECTS = 8, 50_000
_NOT_LOOKED_INTO = (Dataset, DataLoader)
_NOT_THE_USERS = frozenset({"torch", "builtins", "shardproof", "numpy"})
_PLAIN = (str, bytes, int, float, complex, type(None))
_OF_MODULES = frozenset(vars(nn.Module()))
_OF_OPTIMIZERS = frozenset({"state", "param_groups", "defaults"})


class Variables:
    """The variables of one script while it runs.

    A tensor has a path for each way in which it is held. What holds it keeps the path by which it
    was found first, though other variables may lead to it later.
    """

    def __init__(self) -> None:
        # what holds something -> by which path; kept, so that no other has its id
        self._paths: dict[int, tuple[str, Any]] = {}

    def tensors(
        self,
        wanted: Callable[[torch.Tensor], bool],
        left: Mapping[str, Any] | None = None,
    ) -> list[tuple[str, torch.Tensor]]:
        """All that are wanted, with each path; those of the outermost frame first.

        left: the variables that the script has left, where it has ended.
        """
        found: dict[str, torch.Tensor] = {}
        seen: dict[int, Any] = {}
        for names in [left] if left is not None else _frames():
            self._search(names, wanted, found, seen)
        self._paths = {key: held for key, held in self._paths.items() if key in seen}
        return list(found.items())

    def _search(
        self,
        names: Mapping[str, Any],
        wanted: Callable[[torch.Tensor], bool],
        found: dict[str, torch.Tensor],
        seen: dict[int, Any],
    ) -> None:
        todo = collections.deque((name, x, 0) for name, x in _named(names))
        while todo and len(seen) < _MOST_OBJECTS:
            path, x, depth = todo.popleft()
            if isinstance(x, torch.Tensor):
                if wanted(x):
                    found.setdefault(f"variable {path}", x)
                continue
            if isinstance(x, _PLAIN) or id(x) in seen or depth == _MOST_DEPTH:
                continue
            seen[id(x)] = x
            inside = _inside(x)
            if inside:
                path = self._paths.setdefault(id(x), (path, x))[0]
                todo.extend((f"{path}.{name}", y, depth + 1) for name, y in inside)


def _frames() -> Iterator[Mapping[str, Any]]:
    """The variables of the script's frames, the outermost first, and of their modules."""
    frames: list[Any] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        if user_place(frame):
            frames.append(frame)
        frame = frame.f_back
    seen: set[int] = set()
    for f in reversed(frames):
        for names in (f.f_globals, f.f_locals):
            if id(names) not in seen:
                seen.add(id(names))
                yield dict(names)


def _inside(x: Any) -> Sequence[tuple[str, Any]]:
    """What an object holds, by names that are the same in each process."""
    if isinstance(x, (dict, collections.UserDict, types.MappingProxyType)):
        return [
            (str(key) if isinstance(key, (str, int)) else f"#{i}", y)
            for i, (key, y) in enumerate(list(x.items()))
        ]
    if isinstance(x, (list, tuple, collections.deque)):
        return [(str(i), y) for i, y in enumerate(list(x))]
    if isinstance(x, types.FunctionType):
        return _of_function(x)
    if isinstance(x, types.MethodType):
        return [("self", x.__self__), ("function", x.__func__)]
    if isinstance(x, functools.partial):
        return [("function", x.func), ("arguments", x.args), ("keywords", x.keywords)]
    if isinstance(x, types.GeneratorType):
        return list(x.gi_frame.f_locals.items()) if x.gi_frame is not None else []
    if isinstance(x, types.ModuleType):
        return _named(vars(x)) if is_own(getattr(x, "__file__", None) or "") else []
    if isinstance(x, type):
        module = sys.modules.get(x.__module__)
        return _named(vars(x)) if is_own(getattr(module, "__file__", None) or "") else []
    if isinstance(x, nn.Module):
        return _of_modules(x)
    if isinstance(x, torch.optim.Optimizer):
        return [
            (name, _in_order(y) if name.endswith("hooks") else y)
            for name, y in vars(x).items()
            if name not in _OF_OPTIMIZERS
        ]
    package = type(x).__module__.partition(".")[0]
    if isinstance(x, _NOT_LOOKED_INTO) or package in _NOT_THE_USERS:
        return []
    slots = [
        name
        for c in type(x).__mro__
        for name in _texts(vars(c).get("__slots__", ()))
        if name not in ("__dict__", "__weakref__")
    ]
    return [
        *(vars(x).items() if hasattr(x, "__dict__") else ()),
        *((name, getattr(x, name)) for name in slots if hasattr(x, name)),
    ]


def _of_function(f: types.FunctionType) -> list[tuple[str, Any]]:
    """Its closure, what it keeps, and of a function of the user's own the globals that it names."""
    found = []
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
        try:
            found.append((name, cell.cell_contents))
        except ValueError:  # it holds nothing yet
            continue
    found += [("defaults", f.__defaults__), ("keywords", f.__kwdefaults__), *vars(f).items()]
    if is_own(f.__code__.co_filename):
        found += [
            (name, f.__globals__[name]) for name in f.__code__.co_names if name in f.__globals__
        ]
    return found


def _of_modules(root: nn.Module) -> list[tuple[str, Any]]:
    """Attributes of a model's modules that are no parameters, buffers or modules."""
    found = []
    for path, m in root.named_modules():
        for name, x in vars(m).items():
            if isinstance(x, _PLAIN):
                continue
            if name.endswith("_hooks") and isinstance(x, dict):
                x = _in_order(x)
            elif name in _OF_MODULES:
                continue
            found.append((f"{path}.{name}" if path else name, x))
    return found


def _in_order(hooks: Any) -> Any:
    """Hooks without their keys, which are counted from the start of the process."""
    return list(hooks.values()) if isinstance(hooks, dict) else hooks


def _named(names: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, x) for name, x in names.items() if not name.startswith("__")]


def _texts(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


__all__ = ["Variables"]
