# SPDX-License-Identifier: Apache-2.0
"""Memory as segments.

Views, in-place writes, `out=` and flat buffers become values in single assignment. A storage is a
list of segments that do not overlap. Each is a value with sizes, strides and an offset. A read of a
view finds the segment that contains it, and writes the view as slices, permutations and reshapes of
its value. A view that spans several segments is their concatenation.

Offsets and strides are in elements. Complex tensors are stored as real ones with a last dimension
of 2.
"""

from __future__ import annotations

from typing import Any

from .geometry import (
    Geometry,
    Place,
    Segment,
    contiguous,
    interleaved,
    locate,
    positions_of,
    same_places,
    stretches_of,
)
from .graph import Graph
from .values import Complex, Filled, Named, Poison, Reason, Unsupported, Value, numel

FEW = 256  # elements of a view that are taken one by one


class Storage:
    """The contents of one block of memory."""

    def __init__(self, keep: Any) -> None:
        self.keep = keep  # the real storage: its address names this one as long as it lives
        self.segments: list[Segment] = []
        self.freed = False  # given back once
        # asynchronous operators that were not waited for: the elements that they write, and what
        # they are
        self.pending: dict[object, tuple[int, int, str]] = {}
        self.sent: dict[object, tuple[int, int, str]] = {}  # of these the elements that they read
        self._cache: dict[Geometry, Value] = {}

    def being_sent(self, at: Geometry) -> str | None:
        """The asynchronous operator that still reads what is in a view, if there is one."""
        low, high = at.span()
        return next((name for a, b, name in self.sent.values() if a < high and low < b), None)

    def unfinished(self, at: Geometry) -> str | None:
        """The asynchronous operator that still writes into a view, if there is one."""
        low, high = at.span()
        return next((name for a, b, name in self.pending.values() if a < high and low < b), None)

    def clear(self, at: Geometry) -> None:
        """Drops the segments inside a dense view."""
        low, high = at.span()
        self._cache.clear()
        self.segments = [
            s for s in self.segments if not (low <= s.at.span()[0] and s.at.span()[1] <= high)
        ]

    def write(self, g: Graph, value: Value, at: Geometry, loc: str) -> None:
        """Replaces the elements of the view."""
        if 0 in at.size:
            return
        self._cache.clear()
        low, high = at.span()
        base = value.base if isinstance(value, Named) else None
        if base is not None and at == contiguous(at.size, at.offset):
            value, at = base, contiguous(base.shape, at.offset)  # the shape it was made in
        touched = [
            s
            for s in self.segments
            if s.at.span()[0] < high and low < s.at.span()[1] and not interleaved(s.at, at)
        ]
        hidden = [
            s
            for s in touched
            if at.is_dense()
            and low <= s.at.span()[0]
            and s.at.span()[1] <= high
            or same_places(s.at, at)
        ]
        left = [s for s in touched if s not in hidden]
        if not left:
            self.segments = [s for s in self.segments if s not in hidden] + [Segment(value, at)]
            return
        if (
            len(left) == 1
            and len(left[0].at.size) == 1
            and numel(at.size) > 1
            and not isinstance(left[0].value, Poison)
            and self._write_parts(g, value, at, left, hidden, loc)
        ):
            return  # a stretch of a flat buffer of several tensors: they stay apart
        if len(left) == 1 and not isinstance(left[0].value, Poison):
            old = left[0]
            place = locate(old.at, at)
            if place is not None and not place.expanded:
                new = update(g, old, place, value, at)
                self.segments = [s for s in self.segments if s not in hidden and s is not old] + [
                    Segment(new, old.at)
                ]
                return
        if self._write_parts(g, value, at, left, hidden, loc):
            return
        if len(left) == 1 and not hidden and _write_one_by_one(g, self, left[0], value, at):
            return
        reason = Reason(
            "a write to a view that overlaps earlier ones in a way that is not understood", loc
        )
        self.segments = [
            Segment(Poison(s.value.shape, reason), s.at) if s in touched else s
            for s in self.segments
        ]
        self.segments.append(Segment(Poison(value.shape, reason), at))

    def cut_in(self, g: Graph, value: Value, at: Geometry, loc: str) -> None:
        """Writes a stretch of memory so that nothing refers to what was there before.

        What is left of earlier tensors is cut off from them.
        """
        low, high = at.span()
        self._cache.clear()
        touched = [s for s in self.segments if s.at.span()[0] < high and low < s.at.span()[1]]
        if not self._write_parts(g, value, at, touched, [], loc):
            self.write(g, value, at, loc)

    def _write_parts(
        self,
        g: Graph,
        value: Value,
        at: Geometry,
        left: list[Segment],
        hidden: list[Segment],
        loc: str,
    ) -> bool:
        """A dense write over pieces of dense segments: what is covered is cut off from them."""
        if at != contiguous(at.size, at.offset) or not all(
            s.at == contiguous(s.at.size, s.at.offset) for s in left
        ):
            return False
        low, high = at.span()
        rest = [s for s in self.segments if s not in hidden and s not in left]
        for s in left:
            a, b = s.at.span()
            flat = g.reshape(s.value, (b - a,))
            if a < low:
                rest.append(Segment(g.slice(flat, 0, 0, low - a), contiguous((low - a,), a)))
            if high < b:
                rest.append(
                    Segment(g.slice(flat, 0, high - a, b - a), contiguous((b - high,), high))
                )
        self.segments = rest + [Segment(value, at)]
        return True

    def read(self, g: Graph, at: Geometry, loc: str) -> Value:
        """The value of a view; poison where memory was never written."""
        if 0 in at.size:
            return Filled(0, at.size)
        if at not in self._cache:
            self._cache[at] = self._read(g, at, loc)
        return self._cache[at]

    def _read(self, g: Graph, at: Geometry, loc: str) -> Value:
        low, high = at.span()
        touched = [s for s in self.segments if s.at.span()[0] < high and low < s.at.span()[1]]
        for s in touched:
            place = locate(s.at, at)
            if place is not None:
                return extract(g, s, place, at)
        if len(touched) == 1 and touched[0].at.is_dense():
            found = _from_flat(g, touched[0], at)
            if found is not None:
                return found
            merged = stretches_of(at)
            if merged is not None:  # dimensions that are one stretch, though not in this order
                size, order = merged
                whole = self._read(g, size, loc)
                if not isinstance(whole, Poison):
                    packed = [at.size[i] for i in order]
                    v = g.permute(g.reshape(whole, packed), [order.index(i) for i in sorted(order)])
                    return g.reshape(v, at.size)
            if (
                found is None
                and numel(at.size) <= FEW
                and touched[0].at.span()[0] <= low
                and high <= touched[0].at.span()[1]
                and not isinstance(touched[0].value, Poison)
            ):
                return _one_by_one(g, touched[0], at)
        if len(touched) > 1:
            return self._join(g, touched, at, loc)
        for s in touched:
            if isinstance(s.value, Poison):
                return Poison(at.size, s.value.reason)
        covered = touched and touched[0].at.span()[0] <= low and high <= touched[0].at.span()[1]
        text = (
            "memory that was never written is read"
            if not touched
            else "a view that is not understood"
            if covered
            else "memory of which a part was never written is read"
        )
        return Poison(at.size, Reason(text, loc, hazard=not touched and not self.freed))

    def _join(self, g: Graph, touched: list[Segment], at: Geometry, loc: str) -> Value:
        """A view over several segments: split along one dimension where they meet."""
        for s in touched:
            if isinstance(s.value, Poison):
                return Poison(at.size, s.value.reason)
        for dim in reversed(range(len(at.size))):
            n, t = at.size[dim], at.stride[dim]
            if n == 1 or t == 0:
                continue
            cuts = {0, n}
            for s in touched:
                for edge in s.at.span():
                    k = -(-(edge - at.offset) // t)
                    if 0 < k < n:
                        cuts.add(k)
            bounds = sorted(cuts)
            if len(bounds) < 3:
                continue
            pieces = []
            for a, b in zip(bounds[:-1], bounds[1:]):
                part = Geometry(
                    at.size[:dim] + (b - a,) + at.size[dim + 1 :], at.stride, at.offset + a * t
                )
                piece = self._read(g, part, loc)
                if isinstance(piece, Poison):
                    break
                pieces.append(piece)
            else:
                return g.cat(pieces, dim)
        for dim, (n, t) in enumerate(zip(at.size, at.stride)):
            for wide in sorted(
                {u // t for s in touched for u, _, _ in s.at.packed()[-1:] if t > 0 and u % t == 0}
            ):
                # segments that take turns: real and imaginary parts
                if 1 < wide <= min(n, FEW) and n % wide == 0:
                    turns = [
                        self._read(
                            g,
                            Geometry(
                                at.size[:dim] + (n // wide,) + at.size[dim + 1 :],
                                at.stride[:dim] + (t * wide,) + at.stride[dim + 1 :],
                                at.offset + k * t,
                            ),
                            loc,
                        )
                        for k in range(wide)
                    ]
                    if not any(isinstance(v, Poison) for v in turns):
                        return g.reshape(
                            g.cat(
                                [
                                    g.reshape(v, (*v.shape[: dim + 1], 1, *v.shape[dim + 1 :]))
                                    for v in turns
                                ],
                                dim + 1,
                            ),
                            at.size,
                        )
        packed = at.packed()
        sizes = tuple(n for _, n, _ in packed)
        # one stretch, whatever the order of the dimensions
        if len(packed) > 1 and tuple(t for t, _, _ in packed) == contiguous(sizes).stride:
            flat = self._read(g, contiguous((numel(sizes),), at.offset), loc)
            if not isinstance(flat, Poison):
                order = [i for _, _, i in packed]
                return g.reshape(
                    g.permute(g.reshape(flat, sizes), [order.index(i) for i in sorted(order)]),
                    at.size,
                )
        return Poison(at.size, Reason("memory of which a part was never written is read", loc))

    def pieces(self, g: Graph, at: Geometry) -> list[Segment] | None:
        """The segments of a dense view, in order; None if they do not cover it exactly."""
        low, high = at.span()
        inside = sorted(
            (s for s in self.segments if s.at.span()[0] < high and low < s.at.span()[1]),
            key=lambda s: s.at.offset,
        )
        if any(s.at.span()[0] < low or s.at.span()[1] > high for s in inside):
            return None
        return inside if sum(numel(s.at.size) for s in inside) == high - low else None


def _write_one_by_one(g: Graph, storage: Storage, s: Segment, value: Value, at: Geometry) -> bool:
    """The same, written."""
    base, end = s.at.span()
    low, high = at.span()
    if (
        numel(at.size) > FEW
        or not s.at.is_dense()
        or low < base
        or high > end
        or isinstance(s.value, Poison)
        or isinstance(value, Poison)
    ):
        return False
    positions = positions_of(at, base)
    if len(set(positions)) < len(positions):
        return False
    flat, new = g.reshape(_ordered(g, s), (end - base,)), g.reshape(value, (len(positions),))
    parts: list[Value] = []
    last = 0
    for p, i in sorted((p, i) for i, p in enumerate(positions)):
        if p > last:
            parts.append(g.slice(flat, 0, last, p))
        parts.append(g.slice(new, 0, i, i + 1))
        last = p + 1
    if last < end - base:
        parts.append(g.slice(flat, 0, last, end - base))
    storage.segments = [x for x in storage.segments if x is not s] + [
        Segment(g.cat(parts, 0), contiguous((end - base,), base))
    ]
    return True


def _one_by_one(g: Graph, s: Segment, at: Geometry) -> Value:
    """Elements at positions that follow no dimensions of the segment: a diagonal."""
    base, end = s.at.span()
    flat = g.reshape(_ordered(g, s), (end - base,))
    positions = positions_of(at, base)
    return g.reshape(g.cat([g.slice(flat, 0, p, p + 1) for p in positions], 0), at.size)


def _ordered(g: Graph, s: Segment) -> Value:
    """The segment's value with its dimensions by falling stride, those of size 1 dropped."""
    dims = [i for _, _, i in s.at.packed()]
    ones = [i for i in range(len(s.at.size)) if i not in dims]
    moved = g.permute(s.value, dims + ones)
    return g.reshape(moved, [s.at.size[i] for i in dims])


def extract(g: Graph, s: Segment, place: Place, want: Geometry) -> Value:
    """The view as operators on the segment's value."""
    if s.at.size == want.size and s.at.stride == want.stride and s.at.offset == want.offset:
        return s.value
    v = g.reshape(_ordered(g, s), place.sizes)
    for d, (a, b) in enumerate(zip(place.starts, place.stops)):
        v = g.slice(v, d, a, b)
    unused = [d for d in range(len(place.sizes)) if d not in place.order]
    v = g.permute(v, place.order + unused)
    if place.expanded:
        shape = [1 if j in place.expanded else n for j, n in enumerate(place.view)]
        v = g.expand(g.reshape(v, shape), place.view)
    return g.reshape(v, want.size)


def update(g: Graph, s: Segment, place: Place, value: Value, at: Geometry) -> Value:
    """The segment's value with the view replaced by `value`."""
    if isinstance(value, Poison):
        return Poison(s.value.shape, value.reason)
    if isinstance(s.value, Poison):
        return Poison(s.value.shape, s.value.reason)
    old = g.reshape(_ordered(g, s), place.sizes)
    unused = [d for d in range(len(place.sizes)) if d not in place.order]
    new = g.reshape(value, place.view + [1] * len(unused))
    inverse = [0] * len(place.sizes)
    for j, d in enumerate(place.order + unused):
        inverse[d] = j
    new = g.permute(new, inverse)
    new = _splice(g, old, new, place, 0)
    # back to the segment's own shape
    dims = [i for _, _, i in s.at.packed()]
    ones = [i for i in range(len(s.at.size)) if i not in dims]
    v = g.reshape(new, [s.at.size[i] for i in dims + ones])
    back = [0] * len(s.at.size)
    for j, i in enumerate(dims + ones):
        back[i] = j
    return g.permute(v, back)


def _splice(g: Graph, old: Value, new: Value, place: Place, dim: int) -> Value:
    if dim == len(place.sizes):
        return new
    a, b, n = place.starts[dim], place.stops[dim], place.sizes[dim]
    inner = _splice(g, g.slice(old, dim, a, b), new, place, dim + 1)
    parts = [g.slice(old, dim, 0, a)] if a else []
    parts.append(inner)
    if b < n:
        parts.append(g.slice(old, dim, b, n))
    return g.cat(parts, dim) if len(parts) > 1 else inner


def _from_flat(g: Graph, s: Segment, at: Geometry) -> Value | None:
    """A view of a dense segment whose sizes do not divide.

    The needed stretch is cut out of the flat elements first.
    """
    low, high = at.span()
    base, end = s.at.span()
    if low < base or high > end:
        return None
    flat = g.reshape(_ordered(g, s), (s.at.span()[1] - base,))
    packed = at.packed()
    stretch = packed[0][0] * packed[0][1] if packed else 1
    stop = low + stretch if low + stretch <= s.at.span()[1] else high
    piece = Segment(g.slice(flat, 0, low - base, stop - base), contiguous((stop - low,), low))
    place = locate(piece.at, at)
    return None if place is None else extract(g, piece, place, at)


def pair(g: Graph, v: Value) -> Value:
    """A real value with a last dimension of 2 as complex numbers."""
    if isinstance(v, Poison):
        return Poison(v.shape[:-1], v.reason)
    d = len(v.shape) - 1
    shape = v.shape[:-1]
    return Complex(g.reshape(g.slice(v, d, 0, 1), shape), g.reshape(g.slice(v, d, 1, 2), shape))


def unpair(g: Graph, v: Value) -> Value:
    if isinstance(v, Poison):
        return Poison(v.shape + (2,), v.reason)
    if not isinstance(v, Complex):
        raise Unsupported("a real value is written to a complex tensor")
    return g.cat(
        [g.reshape(v.real, v.shape + (1,)), g.reshape(v.imag, v.shape + (1,))], len(v.shape)
    )
