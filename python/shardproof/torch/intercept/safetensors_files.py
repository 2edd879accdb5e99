# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors that a script reads and writes: as those of `torch.load` and `torch.save`.

safetensors makes tensors from memory that it has mapped, which no recorded tensor can be. So it
reads outside of the recording. What the script has written in this run is kept, as it is by
`torch.save`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..compat.private import Undo, outside, replace_everywhere

SaveFile = Callable[[Any, Any], None]
# what was saved in this run; KeyError for other files
Saved = Callable[[Any], Mapping[str, torch.Tensor]]


class _Slice:
    """A tensor of a file, of which parts can be read."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def __getitem__(self, key: Any) -> Any:
        with outside():
            return self._opened[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)


class _File:
    """An open file."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def __enter__(self) -> _File:
        self._opened.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._opened.__exit__(*exception)

    def get_tensor(self, name: str) -> torch.Tensor:
        with outside():
            return self._opened.get_tensor(name)

    def get_tensors(self, *args: Any, **kwargs: Any) -> Any:
        with outside():
            return self._opened.get_tensors(*args, **kwargs)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._opened.get_slice(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)


class _SavedSlice:
    """The same of a tensor that was saved in this run."""

    def __init__(self, t: torch.Tensor) -> None:
        self._tensor = t

    def __getitem__(self, key: Any) -> torch.Tensor:
        return self._tensor[key]

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)


class _SavedFile:
    """A file that was saved in this run."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __enter__(self) -> _SavedFile:
        return self

    def __exit__(self, *exception: Any) -> None:
        """Nothing was opened."""

    def keys(self) -> list[str]:
        return sorted(self._tensors)

    offset_keys = keys

    def metadata(self) -> None:
        """What `save_file` was given is not kept."""

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return dict(self._tensors)

    def get_slice(self, name: str) -> _SavedSlice:
        return _SavedSlice(self._tensors[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


def patch_safetensors(undo: Undo, save: SaveFile, saved: Saved) -> None:
    """Where safetensors is installed."""
    if importlib.util.find_spec("safetensors") is None:
        return
    import safetensors
    import safetensors.torch as of_torch

    open_file, load_file, load = safetensors.safe_open, of_torch.load_file, of_torch.load

    def opened(filename: Any, framework: str = "pt", *args: Any, **kwargs: Any) -> Any:
        try:
            return _SavedFile(saved(filename))
        except KeyError:
            if framework not in ("pt", "torch", "pytorch"):
                return open_file(filename, framework, *args, **kwargs)
        if args or "device" in kwargs:  # every device is the CPU here
            args, kwargs = ("cpu", *args[1:]), {k: v for k, v in kwargs.items() if k != "device"}
        return _File(open_file(filename, framework, *args, **kwargs))

    def load_it(filename: Any, device: Any = "cpu", *args: Any, **kwargs: Any) -> Any:
        try:
            return dict(saved(filename))
        except KeyError:
            with outside():
                return load_file(filename, "cpu", *args, **kwargs)

    def load_bytes(data: bytes) -> Any:
        with outside():
            return load(data)

    def save_it(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> None:
        save(dict(tensors), filename)

    replace_everywhere(
        [
            (open_file, opened),
            (load_file, load_it),
            (load, load_bytes),
            (of_torch.save_file, save_it),
        ],
        undo,
    )


__all__ = ["patch_safetensors"]
