# SPDX-License-Identifier: Apache-2.0
"""A reference's numbers as the parts that ranks of a candidate have.

`shardproof compare --json` states where each tensor of a module is in the whole one. With that, a
rank takes its part of what the reference recorded. A rank of a sum takes a multiple of the whole
tensor; the multiples differ between the ranks, so that a sum is not taken for a mean.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..distributed.mesh import Mesh
from .layout import Layout, local_of

_CALLS = "calls"  # the report's name of the axis of a module's calls


class UnusableReference(ValueError):
    """The report or the reference cannot be used; the message has the file."""


@dataclasses.dataclass(frozen=True)
class Given:
    """A rank's part of a reference's tensor. placed: how its layout is known, as the report has
    it: `declared`, `numbers`, or `shape` (a guess).
    """

    tensor: torch.Tensor
    placed: str


class ReferenceValues:
    """The numbers of the reference that a report of `shardproof compare` names.

    report: of a candidate of the same mesh. out: the folder that the trace goes to. Raises
    UnusableReference where the report or the reference cannot be read, are those of another mesh,
    or would be overwritten.
    """

    def __init__(
        self, report: str | os.PathLike[str], mesh: Mesh, rank: int, out: str | os.PathLike[str]
    ) -> None:
        self.mesh, self.rank = mesh, rank
        try:
            found = json.loads(Path(report).read_text())
        except (OSError, ValueError) as e:
            raise UnusableReference(
                f"{report}: {e}; expected what shardproof compare --json has written"
            ) from None
        if not isinstance(found, dict) or found.get("format") != "shardproof-comparison":
            raise UnusableReference(
                f"{report}: format is not shardproof-comparison; expected what shardproof compare "
                "--json has written"
            )
        if "modules" in found:
            raise UnusableReference(
                f"{report}: is of an isolated run; expected the report of an ordinary one, which "
                "has the layouts"
            )
        axes = [[a, n] for a, n in mesh.sizes.items()]
        if found.get("mesh") != axes:
            raise UnusableReference(
                f"{report}: mesh is {found.get('mesh')}, and here it is {axes}: compare a trace of "
                "this mesh first"
            )
        self._placed: dict[tuple[str, int | None], dict[str, Any]] = {
            (t["base"], t.get("call")): t["placed"] for t in found["tensors"] if "placed" in t
        }
        folder = Path(found["reference"])
        if Path(out).resolve() == folder.resolve():
            raise UnusableReference(
                f"{out}: is the reference of {report}; expected another folder for the trace"
            )
        self._pieces = _pieces(folder)
        if any("sketch" in d for pieces in self._pieces.values() for _, _, d in pieces):
            raise UnusableReference(
                f"{folder}: has sketches (--sketches), and modules take elements: record the "
                "reference without"
            )

    def local(self, name: str, call: int, t: torch.Tensor, layout: Layout) -> Given | None:
        """This rank's part of a tensor, or None where its layout is not known.

        name, call: as recorded. t: the candidate's, whose shape and dtype the result has. layout:
        what is declared of it.
        """
        joined = (name, None) in self._placed
        placed = self._placed.get((name, None if joined else call))
        if placed is None:
            return None
        whole = self._whole(name, 0 if joined else call)
        if whole is None:
            return None
        sizes = {**self.mesh.sizes, _CALLS: placed.get("calls", 1)}
        at = {**self.mesh.coordinates(self.rank), _CALLS: call}
        if at[_CALLS] >= sizes[_CALLS] > 1:
            return None
        index = [0] * len(layout.shape)
        shape = list(layout.shape)
        summed: list[tuple[str, bool]] = [(a, False) for a in layout.total]
        summed += [(a, True) for a in layout.mean]
        for axis, along, dim in placed["choices"]:
            if along == "cut":
                index[dim] = index[dim] * sizes[axis] + at[axis]
                shape[dim] *= sizes[axis]
            elif along in ("sum", "mean"):
                summed.append((axis, along == "mean"))
        if list(whole.shape) != shape:
            return None
        local = local_of(t)
        values = torch.empty(local.numel(), dtype=torch.float64)
        filled = 0
        for first, low, size in layout.parts:
            box = whole[
                tuple(
                    slice(k * n + a, k * n + a + b)
                    for k, n, a, b in zip(index, layout.shape, low, size)
                )
            ]
            values[first : first + box.numel()] = box.reshape(-1).double()
            filled += box.numel()
        if filled != local.numel():
            return None
        factor = _share([(sizes[a], at[a], mean) for a, mean in summed]) / placed["scale"]
        if factor != 1:
            values *= factor
        if not local.is_floating_point() and factor != 1:
            return None
        # the same strides, as a kernel may go wrong with them
        result = torch.empty_like(local, requires_grad=False)
        result.copy_(values.reshape(local.shape))
        return Given(result, placed["by"])

    def _whole(self, name: str, call: int) -> torch.Tensor | None:
        """The reference's tensor. Ranks of a reference that has several give their parts."""
        pieces = self._pieces.get((name, call))
        if not pieces:
            return None
        from safetensors import safe_open

        whole: torch.Tensor | None = None
        for path, key, described in pieces:
            if any(described.get(field) for field in ("sum", "mean", "unknown")):
                return None
            with safe_open(path, "pt") as file:
                local = file.get_tensor(key)
            if "parts" not in described and "shape" not in described:
                return local
            shape = described.get("shape", list(local.shape))
            if whole is None:
                whole = torch.empty(shape, dtype=local.dtype)
            for first, low, size in described["parts"]:
                count = torch.Size(size).numel()
                box = tuple(slice(a, a + b) for a, b in zip(low, size))
                whole[box] = local.reshape(-1)[first : first + count].reshape(size)
        return whole


def _share(summed: Sequence[tuple[int, int, bool]]) -> float:
    """What a rank's summand is of the whole: (size of the axis, the rank's place, a mean)."""
    share = 1.0
    for size, place, mean in summed:
        share *= (place + 1) / (size * (size + 1) / 2) * (size if mean else 1)
    return share


def _pieces(folder: Path) -> dict[tuple[str, int], list[tuple[str, str, dict[str, Any]]]]:
    """Of each tensor and call: the files, their keys, and what they state of it."""
    from safetensors import safe_open

    found: dict[tuple[str, int], list[tuple[str, str, dict[str, Any]]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            described = json.loads(file.metadata()["trace"])["tensors"]
        for key, tensor in described.items():
            place = (tensor["name"], tensor.get("call", 0))
            found.setdefault(place, []).append((str(path), key, tensor))
    if not found:
        raise UnusableReference(
            f"{folder}: has no *.safetensors; expected the reference of the report, as it was "
            "named there"
        )
    return found
