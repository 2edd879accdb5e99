# SPDX-License-Identifier: Apache-2.0
"""What a step function returned: its tensors and numbers, with names."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..intercept.data_number import DataNumber
from ..step.world import World

PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum)
# compared otherwise, or no data
_NO_RESULTS = (
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    World,
    type,
)


def results(result: Any) -> list[tuple[str, Any]]:
    """Tensors, and numbers that depend on data, that the step returned, with names."""
    return [
        (label, found)
        for label, found in leaves_of(result)
        if isinstance(found, (torch.Tensor, DataNumber))
    ]


def leaves_of(result: Any, name: str = "", inside: tuple[int, ...] = ()) -> list[tuple[str, Any]]:
    """All that the step returned, with names.

    A tensor is `loss`. Items of a dictionary are named by their keys, an object's by its
    attributes, those of a list `result.` and their index.
    """
    if result is None and not name or isinstance(result, _NO_RESULTS) or id(result) in inside:
        return []
    if isinstance(result, (torch.Tensor, DataNumber, nn.Module, *PLAIN)) or result is None:
        return [(name or "loss", result)]
    inside = (*inside, id(result))
    if isinstance(result, Mapping):
        of_data = [isinstance(k, (torch.Tensor, DataNumber)) for k in result]
        keys = [
            f"key {i}" if is_data else str(k) for i, (k, is_data) in enumerate(zip(result, of_data))
        ]
        unknown = [(f"{name}.keys" if name else "keys", result.keys())] if any(of_data) else []
        items = [
            found
            for k, v in zip(keys, result.values())
            for found in leaves_of(v, f"{name}.{k}" if name else k, inside)
        ]
        return unknown + items + _attributes_of(result, name, items)
    if isinstance(result, (list, tuple, collections.deque, collections.UserList)):
        items = [
            found
            for i, v in enumerate(result)
            for found in leaves_of(
                v, f"{name}.{i}" if name else "loss" if i == 0 else f"result.{i}", inside
            )
        ]
        return items + _attributes_of(result, name, items)
    if dataclasses.is_dataclass(result):
        items = [
            found
            for f in dataclasses.fields(result)
            for found in leaves_of(
                getattr(result, f.name), f"{name}.{f.name}" if name else f.name, inside
            )
        ]
        return items + _attributes_of(result, name, items)
    if (
        type(result).__module__ != "builtins"
        and hasattr(result, "__dict__")
        and not callable(result)
        and not isinstance(result, collections.abc.Iterator)
    ):
        return [
            found
            for k, v in vars(result).items()
            for found in leaves_of(v, f"{name}.{k}" if name else k, inside)
        ]
    return [(name or "loss", result)]


def _attributes_of(result: Any, name: str, items: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Tensors that a list, a dictionary or a dataclass has as attributes beside its items."""
    have = {id(v) for _, v in items}
    return [
        (f"{name}.{k}" if name else k, v)
        for k, v in getattr(result, "__dict__", {}).items()
        if isinstance(v, (torch.Tensor, DataNumber)) and id(v) not in have
    ]
