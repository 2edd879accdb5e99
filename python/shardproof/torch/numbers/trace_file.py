# SPDX-License-Identifier: Apache-2.0
"""Writes the trace of one rank: safetensors files whose metadata has names and layouts.

docs/numbers.md, "The format of a trace", describes them; `shardproof compare` reads them.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...layout.layouts import SAFETENSORS
from ..distributed.mesh import Mesh
from .layout import Layout, local_of
from .sketch import BUCKETS, sketch

FORMAT = "shardproof-trace 1"
_MOST_BYTES = 1 << 28  # that wait in memory to be written
_MOST_ELEMENTS = 4 * BUCKETS  # of a tensor that is no sketch where sketches are wanted
_DTYPES = {getattr(torch, dtype): name for name, (dtype, _) in SAFETENSORS.items()}


class TraceWriter:
    """What one rank held, in files of a folder.

    only: patterns (*, ?, [...]) of the names that are kept; none: all. sketches: of large tensors
    (sketch.py) in place of their elements. The folder is made; traces of this rank that it has are
    removed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        mesh: Mesh,
        rank: int,
        only: Sequence[str] = (),
        sketches: bool = False,
    ) -> None:
        self.folder, self.mesh, self.rank, self.only = Path(folder), mesh, rank, tuple(only)
        self.sketches = sketches
        self.isolated = False  # modules take and return a reference's numbers
        self.notes: list[str] = []
        self._tensors: dict[str, torch.Tensor] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self._bytes = self._order = self._files = 0
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob(f"rank{rank:05}.*.safetensors"):
            old.unlink()

    def wants(self, name: str) -> bool:
        return not self.only or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.only)

    def note(self, text: str) -> None:
        """States in the trace that something was not recorded."""
        if text not in self.notes:
            self.notes.append(text)

    def add(
        self,
        name: str,
        kind: str,
        t: torch.Tensor,
        layout: Layout,
        call: int = 0,
        like: str = "",
        changed: bool = True,
        module: str = "",
        replaced: str = "",
    ) -> None:
        """Keeps a copy of what a tensor holds now.

        kind: one of those of docs/numbers.md. call: of its module. like: the tensor whose layout it
        has along axes of unknown layout. changed: of a buffer, whether the step changed it.
        module: at whose boundary it is. replaced: the step continued with the reference's numbers;
        how their layout was known.
        """
        if not self.wants(name):
            return
        local = local_of(t).detach()
        if local.is_complex():
            self.note(f"{name} is complex and was not recorded")
            return
        if local.layout != torch.strided:
            self.note(f"{name} is not strided and was not recorded")
            return
        key = f"{name}#{call}"
        described: dict[str, Any] = {"name": name, "kind": kind, "order": self._order}
        if (
            self.sketches
            and local.is_floating_point()
            and local.dtype in _DTYPES
            and local.numel() > _MOST_ELEMENTS
        ):
            copy = sketch(local, layout)
            described["sketch"] = _DTYPES[local.dtype]
        else:
            copy = local.to("cpu", copy=True).contiguous()
        self._tensors[key] = copy
        if call:
            described["call"] = call
        if like:
            described["like"] = like
        if not changed:
            described["changed"] = False
        if module:
            described["module"] = module
        if replaced:
            described["replaced"] = replaced
        if layout.parts != ((0, (0,) * len(layout.shape), layout.shape),):
            described["parts"] = layout.parts
        if layout.shape != tuple(copy.shape):
            described["shape"] = layout.shape
        for field, axes in (
            ("sum", layout.total),
            ("mean", layout.mean),
            ("unknown", layout.unknown),
        ):
            if axes:
                described[field] = axes
        self._described[key] = described
        self._order += 1
        self._bytes += copy.numel() * copy.element_size()
        if self._bytes > _MOST_BYTES:
            self._write()

    def close(self) -> None:
        """Writes what is left. A rank that has nothing writes a file without tensors."""
        if self._tensors or not self._files or self.notes:
            self._write()

    def _write(self) -> None:
        from safetensors.torch import save_file

        described = {
            "rank": self.rank,
            "mesh": list(self.mesh.sizes.items()),
            "only": self.only,
            "notes": self.notes,
            "isolated": self.isolated,
            "tensors": self._described,
        }
        save_file(
            self._tensors,
            self.folder / f"rank{self.rank:05}.{self._files:04}.safetensors",
            {"format": FORMAT, "trace": json.dumps(described)},
        )
        self._files += 1
        self._tensors, self._described, self._bytes = {}, {}, 0
