# SPDX-License-Identifier: Apache-2.0
"""What a tensor holds while a step is recorded.

It is a name in the graph, a known constant, a table of an integer, or nothing that is known
(poison).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from ..compat.refusals import Refusal

Shape = tuple[int, ...]


def kind_of(dtype: torch.dtype) -> str:
    """The kind of element that the format has (real, int or complex), or bool, an integer in the
    files.
    """
    if dtype.is_complex:
        return "complex"
    if dtype == torch.bool:
        return "bool"
    return "real" if dtype.is_floating_point else "int"


def numel(shape: Shape) -> int:
    n = 1
    for size in shape:
        n *= int(size)
    return n


class Value:
    """The contents of a tensor of one shape. Never changed once made; writes make new ones."""

    __slots__ = ("shape",)

    def __init__(self, shape: Any) -> None:
        self.shape: Shape = tuple(int(size) for size in shape)


class Named(Value):
    """A result of a node, or an input: a tensor of the format.

    base: the value of which this has the same elements in row-major order, in another shape.
    square: the value whose root this is. row_sums: the sum over the last dimension, where it is
    known. masked: (unmasked, keep): this is `unmasked` in the rows whose class `keep` has, zero in
    the others. of_class: the integers, one for each element, of whose class this is a sum over
    classes of indicators times something.
    """

    __slots__ = ("name", "kind", "node", "base", "square", "row_sums", "masked", "of_class")

    def __init__(
        self, name: str, shape: Any, kind: str = "real", node: dict[str, Any] | None = None
    ) -> None:
        super().__init__(shape)
        self.name, self.kind, self.node = name, kind, node
        self.base: Named | None = None
        self.square: Value | None = None
        self.row_sums: Value | None = None
        self.masked: tuple[Named, Table] | None = None
        self.of_class: Named | None = None

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)}"


class Filled(Value):
    """The same number at every position; of any size, as nothing is stored.

    host: as of `Known`.
    """

    __slots__ = ("fill", "kind", "host")

    def __init__(
        self, fill: float | int, shape: Any, kind: str = "real", host: bool = False
    ) -> None:
        super().__init__(shape)
        self.fill, self.kind, self.host = fill, kind, host

    def in_shape(self, shape: Any) -> Filled:
        return Filled(self.fill, shape, self.kind, self.host)

    def __repr__(self) -> str:
        return f"{self.fill}{list(self.shape)}"


class Known(Value):
    """Numbers that do not depend on any input, computed once by ATen itself.

    `data` is never written. host: they come from an array of the program's, as of a file.
    """

    __slots__ = ("data", "host", "_hides", "_made")

    def __init__(self, data: torch.Tensor, host: bool = False) -> None:
        super().__init__(data.shape)
        self.data, self.host = data, host
        self._hides: bool | None = None
        self._made: dict[Any, Known] = {}

    def __reduce__(self) -> Any:
        return Known, (self.data, self.host)  # without what was made of it

    def once(self, key: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Known:
        """A function of these numbers, computed once and one value.

        Every layer computes the same of a rotary table.
        """
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = Known(make(self.data), self.host)
        return made

    def hides(self) -> bool:
        """Whether there are minus infinities. A large table is looked through once."""
        if self._hides is None:
            self._hides = self.kind == "real" and bool(torch.isneginf(self.data).any())
        return self._hides

    @property
    def kind(self) -> str:
        return kind_of(self.data.dtype)

    def __repr__(self) -> str:
        return f"known{list(self.shape)}"


class Complex(Value):
    """A pair of real values."""

    __slots__ = ("real", "imag")
    kind = "complex"

    def __init__(self, real: Value, imag: Value) -> None:
        super().__init__(real.shape)
        self.real, self.imag = real, imag


class Table(Value):
    """A function of one integer, position by position: `entries[c]` where `source` is `low + c`.

    The source is taken to be in [low, low + len(entries)): tokens and labels are classes. The
    recorder lists that as an assumption. beyond: the function of some larger integers; None where
    it is not known.
    """

    __slots__ = ("source", "entries", "low", "beyond")

    def __init__(
        self,
        source: Named,
        entries: torch.Tensor,
        low: int,
        shape: Any,
        beyond: torch.Tensor | None = None,
    ) -> None:
        super().__init__(shape)
        self.source, self.entries, self.low, self.beyond = source, entries, low, beyond

    @property
    def kind(self) -> str:
        return kind_of(self.entries.dtype)


class Hidden(Value):
    """`source` where `keep` is 1, minus infinity where it is 0: scores that attention does not see.

    `keep` is broadcast to the shape.
    """

    __slots__ = ("source", "keep")
    kind = "real"

    def __init__(self, source: Value, keep: Value) -> None:
        super().__init__(source.shape)
        self.source, self.keep = source, keep


class Replaced(Value):
    """Integers: `source` (integers, too) where `keep` is 1, the number `other` elsewhere.

    They are labels of which some do not count, or tokens that are masked. zeros: the source is 0
    there.
    """

    __slots__ = ("source", "keep", "other", "zeros")
    kind = "int"

    def __init__(self, source: Value, keep: Value, other: int, zeros: bool = False) -> None:
        super().__init__(source.shape)
        self.source, self.keep, self.other, self.zeros = source, keep, other, zeros


class Permutation(Value):
    """A random permutation of rows. `parts` [number, size]: part k permutes the rows from k * size
    on among themselves.
    """

    __slots__ = ("parts",)
    kind = "int"

    def __init__(self, parts: Named) -> None:
        super().__init__((numel(parts.shape),))
        self.parts = parts


class Permuted(Value):
    """Integers `source` whose rows are permuted."""

    __slots__ = ("source", "by")
    kind = "int"

    def __init__(self, source: Value, by: Permutation) -> None:
        super().__init__(source.shape)
        self.source, self.by = source, by


class Pick(Value):
    """The element of each row of `source` that an integer names, times a factor, plus an offset.

    Rows are along the last dimension. With `table`, whole rows of a table are picked: the source is
    [rows, d] and the shape ends in d. The position is index.entries[c] where the integer is low +
    c; scale[c] and offset[c] are reals.
    """

    __slots__ = ("source", "index", "scale", "offset", "table")
    kind = "real"

    def __init__(
        self,
        source: Value,
        index: Table,
        scale: torch.Tensor,
        offset: torch.Tensor,
        table: bool,
        shape: Any,
    ) -> None:
        super().__init__(shape)
        self.source, self.index, self.scale, self.offset, self.table = (
            source,
            index,
            scale,
            offset,
            table,
        )


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why a value is not known: what was met, and where.

    range_of: the integer input whose range would help. hazard: the program itself is wrong (it
    reads what nothing has written yet).
    """

    text: str
    loc: str
    range_of: str = ""
    hazard: bool = False


class Poison(Value):
    """Nothing is known of these elements. Whatever is computed from them is poison too."""

    __slots__ = ("reason",)
    kind = "poison"

    def __init__(self, shape: Any, reason: Reason) -> None:
        super().__init__(shape)
        self.reason = reason

    def __repr__(self) -> str:
        return f"poison({self.reason.text})"


class NotFollowed(Refusal):
    """The program does what cannot be followed, and no single tensor is its result."""


class Unsupported(Exception):
    """The call has no lowering. The recorder turns it into poison, never into nothing."""


class Poisoned(Exception):
    """An operand is poison; the result is poison for the same reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason
