# SPDX-License-Identifier: Apache-2.0
"""What loaders yield: tensors in mappings, sequences and dataclasses, by their path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch


def _inside(path: str, key: Any) -> str:
    """The path of what lies under a key of what has this path."""
    return f"{path}.{key}" if path else str(key)


def mapped(data: Any, f: Callable[[str, torch.Tensor], torch.Tensor], path: str = "") -> Any:
    """What a loader yields, with f(path, tensor) in the place of each tensor."""
    if isinstance(data, torch.Tensor):
        return f(path, data)
    if isinstance(data, Mapping):
        made = {k: mapped(v, f, _inside(path, k)) for k, v in data.items()}
        if type(data) is dict:
            return made
        if isinstance(data, MutableMapping):  # of tokenizers, for one: it stays what it is
            for k, v in made.items():
                data[k] = v
        return data
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(mapped(v, f, _inside(path, k)) for k, v in zip(data._fields, data)))
    if type(data) in (list, tuple):
        return type(data)(mapped(v, f, _inside(path, i)) for i, v in enumerate(data))
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = [field.name for field in dataclasses.fields(data) if field.init]
        return dataclasses.replace(
            data, **{n: mapped(getattr(data, n), f, _inside(path, n)) for n in fields}
        )
    return data


_PLAIN = (str, bytes, bool, type(None))  # of a batch: names, texts and switches


def beside_tensors(data: Any, path: str = "") -> dict[str, str]:
    """What a loader yields that is no tensor and may be data: its path, and its type."""
    found: dict[str, str] = {}

    if isinstance(data, (torch.Tensor, *_PLAIN)):
        return found
    if isinstance(data, Mapping):
        for k, v in data.items():
            found.update(beside_tensors(v, _inside(path, k)))
    elif type(data) in (list, tuple) or isinstance(data, tuple) and hasattr(data, "_fields"):
        for i, v in enumerate(data):
            found.update(beside_tensors(v, _inside(path, i)))
    elif dataclasses.is_dataclass(data) and not isinstance(data, type):
        for field in dataclasses.fields(data):
            found.update(beside_tensors(getattr(data, field.name), _inside(path, field.name)))
    else:
        found[path] = type(data).__name__
    return found


__all__ = ["beside_tensors", "mapped"]
