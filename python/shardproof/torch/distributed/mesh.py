# SPDX-License-Identifier: Apache-2.0
"""The device mesh of the plan: named axes, slowest first, ranks in row-major order."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence

Stretch = tuple[int, int]  # coordinates of an axis, [low, high)
# axes along which not all ranks were recorded: stretches of coordinates that do the same, in order.
# Together they are all of the axis
RankClasses = Mapping[str, Sequence[Stretch]]


class Mesh:
    """Named axes with sizes of at least 1, slowest first.

    sizes: by axis. names: of the axes, in order. world: the number of ranks. Raises ValueError for
    an empty name, the name `mb`, and a size below 1.
    """

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.sizes: dict[str, int] = {str(a): int(n) for a, n in axes.items()}
        for axis, size in self.sizes.items():
            if size < 1 or axis == "mb" or not axis:
                raise ValueError(
                    f"mesh axis {axis!r} of size {size}: names are not empty and not 'mb', sizes "
                    "at least 1"
                )
        self.names: tuple[str, ...] = tuple(self.sizes)
        self.world = 1
        for size in self.sizes.values():
            self.world *= size

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """The mesh that a text like `dp=2,tp=4` describes. Raises ValueError for any other text."""
        axes: dict[str, int] = {}
        for part in text.split(","):
            name, sep, size = part.partition("=")
            if not sep or not size.strip().isdigit() or name.strip() in axes:
                raise ValueError(f"a mesh is written like dp=2,tp=4, not {text!r}")
            axes[name.strip()] = int(size)
        return cls(axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        at: dict[str, int] = {}
        for axis in reversed(self.names):
            at[axis] = rank % self.sizes[axis]
            rank //= self.sizes[axis]
        return {axis: at[axis] for axis in self.names}

    def position(self, axes: Iterable[str], at: Mapping[str, int]) -> int:
        """That of the rank with these coordinates among those along axes, the first the slowest;
        axes that are not named are at 0.
        """
        found = 0
        for a in axes:
            found = found * self.sizes[a] + at.get(a, 0)
        return found

    def rank(self, at: Mapping[str, int]) -> int:
        """The rank with these coordinates; axes that are not named are at 0."""
        return self.position(self.names, at)

    def stretches(self, axis: str, rank_classes: RankClasses) -> Sequence[Stretch]:
        """The stretches of coordinates that an axis distinguishes: single ones, where all were
        recorded.
        """
        return rank_classes.get(axis) or [(k, k + 1) for k in range(self.sizes[axis])]

    def stretch(self, axis: str, coordinate: int, rank_classes: RankClasses) -> Stretch:
        """The stretch that has the coordinate."""
        return next(s for s in self.stretches(axis, rank_classes) if s[0] <= coordinate < s[1])

    def stands_for(
        self,
        rank: int,
        rank_classes: RankClasses,
        affine_axis: str | None,
        recorded: Container[int],
    ) -> int:
        """The recorded rank that represents this one: itself, or the first of its class.

        affine_axis: an axis along which not all ranks were recorded. They are like the first one
        but for numbers that move evenly.
        """
        first = {a: self.stretch(a, c, rank_classes)[0] for a, c in self.coordinates(rank).items()}
        found = next((r for r in (rank, self.rank(first)) if r in recorded), None)
        return (
            found
            if found is not None
            else self.rank({**first, **({affine_axis: 0} if affine_axis else {})})
        )

    def varying(self, ranks: Iterable[int]) -> list[str]:
        """The axes in which the ranks differ."""
        all_at = [self.coordinates(r) for r in ranks]
        return [a for a in self.names if len({at[a] for at in all_at}) > 1]

    def axes_of(self, ranks: tuple[int, ...], me: int) -> tuple[str, ...] | None:
        """The axes along which a group is: all ranks that differ from `me` in these only, in rank
        order.

        None if there are no such axes.
        """
        axes = tuple(self.varying(ranks))
        at = self.coordinates(me)
        wanted = sorted(
            self.rank({**at, **dict(zip(axes, c))})
            for c in itertools.product(*[range(self.sizes[a]) for a in axes])
        )
        return axes if list(ranks) == wanted and axes else None

    def relative(self, me: int, other: int) -> dict[str, int]:
        """The coordinates in which another rank differs."""
        a, b = self.coordinates(me), self.coordinates(other)
        return {axis: b[axis] for axis in self.names if a[axis] != b[axis]}
