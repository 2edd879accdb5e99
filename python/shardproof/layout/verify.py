# SPDX-License-Identifier: Apache-2.0
"""Does a checkpoint have every element of another one, once?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from .layouts import Layout, LayoutError, TensorLayout
from .tiling import Box, box, faults

_SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Part:
    """A box of a target tensor that is a box of a source tensor.

    source: its name. offset, source_offset, shape: of the box in both. With fewer dimensions in the
    source, the target's first ones are of size 1 there, as for layers that are stacked.
    """

    source: str
    offset: tuple[int, ...]
    source_offset: tuple[int, ...]
    shape: tuple[int, ...]


@dataclasses.dataclass
class LayoutReport:
    """The result of verify_layout. Its truth value is whether the layouts agree.

    differences: (tensor, sentence), the tensor "" where it is about a whole checkpoint. elements,
    tensors: of the target. not_compared: names.
    """

    verdict: str  # EQUIVALENT or NOT EQUIVALENT
    differences: list[tuple[str, str]]
    elements: int
    tensors: int
    pieces: int
    not_compared: list[str]
    source: str
    target: str

    @property
    def equivalent(self) -> bool:
        return self.verdict == "EQUIVALENT"

    def __bool__(self) -> bool:
        return self.equivalent

    @property
    def text(self) -> str:
        if self.equivalent:
            head = (
                f"EQUIVALENT: {self.target} has a place for each element of {self.source}, once: "
                f"{self.elements:,} elements of {self.tensors:,} tensors in {self.pieces:,} pieces"
            )
        else:
            n = len(self.differences)
            head = (
                f"NOT EQUIVALENT: {self.target} and {self.source} differ in {n:,} place"
                f"{'s' if n > 1 else ''}"
            )
        lines = [head]
        lines += [
            f"  {name}: {what}" if name else f"  {what}" for name, what in self.differences[:_SHOWN]
        ]
        if len(self.differences) > _SHOWN:
            lines.append(f"  and {len(self.differences) - _SHOWN:,} more")
        if self.not_compared:
            lines += ["Not compared:", *(f"  {n}" for n in self.not_compared[:_SHOWN])]
            if len(self.not_compared) > _SHOWN:
                lines.append(f"  and {len(self.not_compared) - _SHOWN:,} more")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text


Names = Mapping[str, "str | Sequence[Part]"] | Callable[[str], "str | Sequence[Part]"]


def verify_layout(
    source: Layout,
    target: Layout,
    *,
    names: Names | None = None,
    cast: bool = False,
    unused: Iterable[str] = (),
    replicated: Iterable[str] = (),
) -> LayoutReport:
    """Compares two layouts by metadata: shapes, dtypes, and which element is where.

    Each layout has to be right by itself: the pieces of each tensor tile it, without a gap or an
    overlap, and files have the bytes that their headers state. Each target tensor is a source
    tensor, or is tiled by parts of some; each element of the source is in the target once.

    names: from a target tensor to its source tensor or its parts; by default, the same names.
    cast: dtypes may differ. unused, replicated: patterns (as of fnmatch) of source tensors of which
    elements may be in the target not at all, or more than once.

    What elements the files really hold is not read. Values that are no tensors are not compared,
    and listed. Raises LayoutError if a pattern or a part is wrong.
    """
    comparison = _Comparison(source, target, cast, [*unused], [*replicated])
    comparison.alone(source)
    if target is not source:
        comparison.alone(target)
    comparison.across(names)
    elements = sum(math.prod(t.shape) for t in target.tensors.values())
    if not target.tensors:
        raise LayoutError(f"{target.name} has no tensors")
    return LayoutReport(
        "NOT EQUIVALENT" if comparison.differences else "EQUIVALENT",
        comparison.differences,
        elements,
        len(target.tensors),
        sum(len(t.pieces) for t in target.tensors.values()),
        sorted({*source.others, *target.others}),
        source.name,
        target.name,
    )


class _Comparison:
    def __init__(
        self, source: Layout, target: Layout, cast: bool, unused: list[str], replicated: list[str]
    ) -> None:
        self.source = source
        self.target = target
        self.cast = cast
        self.unused = unused
        self.replicated = replicated
        self.differences: list[tuple[str, str]] = []
        for what, patterns in (("unused", unused), ("replicated", replicated)):
            for pattern in patterns:
                if not any(fnmatchcase(n, pattern) for n in source.tensors):
                    raise LayoutError(f"{what}: no source tensor is called {pattern!r}")

    def alone(self, layout: Layout) -> None:
        """The layout's own problems, and tensors that its pieces do not tile."""
        for name, what in layout.problems:
            self.differences.append((name, f"{layout.name}: {what}"))
        for name, tensor in layout.tensors.items():
            boxes = []
            for piece in tensor.pieces:
                made = box(piece.offset, piece.shape, piece.where)
                if not _inside(made, tensor.shape):
                    self.differences.append(
                        (
                            name,
                            f"{layout.name}: {piece.where} has a piece at {list(piece.offset)} of "
                            f"shape {list(piece.shape)}, outside of {list(tensor.shape)}",
                        )
                    )
                else:
                    boxes.append(made)
            self._tiled(name, tensor, boxes, layout.name)

    def _tiled(self, name: str, tensor: TensorLayout, boxes: list[Box], where: str) -> None:
        for fault in faults(box((0,) * len(tensor.shape), tensor.shape), boxes):
            count = f" ({fault.count:,} elements)" if fault.count > 1 else ""
            if fault.labels:
                holders = " and ".join(fault.labels[:3])
                what = f"element {list(fault.index)} is twice in it: in {holders}{count}"
            else:
                what = f"element {list(fault.index)} is in no piece{count}"
            self.differences.append((name, f"{where}: {what}"))

    def across(self, names: Names | None) -> None:
        uses: dict[str, list[Box]] = {name: [] for name in self.source.tensors}
        for name, tensor in self.target.tensors.items():
            if names is None:
                origin: str | Sequence[Part] = name
            elif callable(names):
                origin = names(name)
            elif name in names:
                origin = names[name]
            else:
                self.differences.append((name, "names has no entry for it"))
                continue
            whole = isinstance(origin, str)
            parts = self._whole(name, tensor, origin) if isinstance(origin, str) else [*origin]
            boxes = []
            for part in parts:
                held = self._part(name, tensor, part)
                if held is None:
                    continue
                boxes.append(box(part.offset, part.shape, part.source))
                extra = len(part.offset) - len(part.source_offset)
                uses[part.source].append(box(part.source_offset, part.shape[extra:], name))
            if not whole:
                self._tiled(name, tensor, boxes, "its parts")
        for name, held_boxes in uses.items():
            self._used(name, self.source.tensors[name], held_boxes)

    def _whole(self, name: str, tensor: TensorLayout, origin: str) -> list[Part]:
        found = self.source.tensors.get(origin)
        if found is None:
            self.differences.append((name, f"{self.source.name} has no {origin}"))
            return []
        if found.shape != tensor.shape:
            self.differences.append(
                (name, f"shape {list(tensor.shape)}, but {origin} has {list(found.shape)}")
            )
            return []
        zeros = (0,) * len(tensor.shape)
        return [Part(origin, zeros, zeros, tensor.shape)]

    def _part(self, name: str, tensor: TensorLayout, part: Part) -> TensorLayout | None:
        found = self.source.tensors.get(part.source)
        if found is None:
            self.differences.append((name, f"{self.source.name} has no {part.source}"))
            return None
        extra = len(part.offset) - len(part.source_offset)
        if len(part.shape) != len(part.offset) or extra < 0 or part.shape[:extra] != (1,) * extra:
            raise LayoutError(f"{name}: {part} has other numbers of dimensions")
        inside = _inside(box(part.offset, part.shape), tensor.shape) and _inside(
            box(part.source_offset, part.shape[extra:]), found.shape
        )
        if not inside:
            self.differences.append((name, f"{part} is outside of a tensor"))
            return None
        if found.dtype != tensor.dtype and not self.cast:
            self.differences.append(
                (name, f"dtype {tensor.dtype}, but {part.source} has {found.dtype}")
            )
        return found

    def _used(self, name: str, tensor: TensorLayout, boxes: list[Box]) -> None:
        """Each element of a source tensor is in the target once."""
        lost, twice = (
            any(fnmatchcase(name, p) for p in patterns)
            for patterns in (self.unused, self.replicated)
        )
        for fault in faults(box((0,) * len(tensor.shape), tensor.shape), boxes):
            count = f" ({fault.count:,} elements)" if fault.count > 1 else ""
            if not fault.labels and not lost:
                what = f"no element of {self.target.name} is {name}{list(fault.index)}{count}"
                self.differences.append((name, what))
            elif fault.labels and not twice:
                what = f"{name}{list(fault.index)} is in {' and '.join(fault.labels[:3])}{count}"
                self.differences.append((name, what))


def _inside(b: Box, shape: Sequence[int]) -> bool:
    return len(b.low) == len(b.high) == len(shape) and all(
        0 <= low <= high <= n for low, high, n in zip(b.low, b.high, shape)
    )
