# SPDX-License-Identifier: Apache-2.0
"""Copies of weights that a script keeps in plain tensors: `shadow[name] = p.clone()`, averaged
after each step.

No module and no optimizer has such a tensor, so it is found by the script's variables, on the
stack: those of its functions, and what lists, dictionaries and objects in them hold. It is compared
if

* it is there when a model is called first, with a parameter's shape;
* it has changed when the script begins its next step, and was computed of a parameter's new value.

If it then holds what the parameter of that rank holds, it is an input from there on, for any value,
as the parameter is: whether the ranks begin with the same is checked of the parameter. Otherwise it
begins with what it holds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ..compat.user_code import user_place
from ..terms.graph import Graph
from ..terms.values import Named, Shape, Value

_MOST_DEPTH, _MOST_OBJECTS = 4, 20_000
_NOT_LOOKED_INTO = (nn.Module, torch.optim.Optimizer, Dataset, DataLoader, type)


def variables(shapes: Iterable[Shape]) -> dict[str, torch.Tensor]:
    """Tensors of these shapes that the script's variables hold, by path. Each memory has one."""
    wanted, budget = set(shapes), [_MOST_OBJECTS]
    frames = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        if user_place(frame):
            frames.append(frame)
        frame = frame.f_back
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for f in reversed(frames):
        for path, t in _tensors(dict(f.f_locals), "", 0, set(), budget):
            if tuple(t.shape) in wanted and id(t) not in seen:
                seen.add(id(t))
                found.setdefault(path, t)
    return found


def _tensors(
    x: Any, path: str, depth: int, inside: set[int], budget: list[int]
) -> Iterator[tuple[str, torch.Tensor]]:
    budget[0] -= 1
    if budget[0] < 0 or depth > _MOST_DEPTH or id(x) in inside:
        return
    if isinstance(x, torch.Tensor):
        if x.dtype.is_floating_point and not x.requires_grad and 0 not in x.shape:
            yield f"variable {path}", x
        return
    items: Iterable[tuple[Any, Any]]
    if isinstance(x, Mapping):
        items = list(x.items())
    elif isinstance(x, (list, tuple)):
        items = list(enumerate(x))
    elif not isinstance(x, _NOT_LOOKED_INTO) and _is_users(x):
        items = list(vars(x).items())
    else:
        return
    for key, y in items:
        if isinstance(key, (str, int)):
            name = f"{path}.{key}" if path else str(key)
            yield from _tensors(y, name, depth + 1, {*inside, id(x)}, budget)


def _is_users(x: Any) -> bool:
    """Whether it is an object of a class of the script's, or of a package for training."""
    package = type(x).__module__.partition(".")[0]
    return (
        hasattr(x, "__dict__")
        and not callable(x)
        and package not in ("torch", "builtins", "shardproof")
    )


def computed_of(g: Graph, v: Value, names: set[str]) -> bool:
    """Whether a value is one of these, or computed of one."""
    if not isinstance(v, Named):
        return False
    todo, seen = [v.name], {v.name}
    while todo:
        at = todo.pop()
        if at in names:
            return True
        node = g.producer(at)
        new = [x for x in node["in"] if x is not None and x not in seen] if node is not None else []
        seen.update(new)
        todo += new
    return False


__all__ = ["computed_of", "variables"]
