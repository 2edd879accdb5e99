"""Memory as segments, so that views, in-place writes, `out=` and flat buffers become values in single assignment.

A storage is a list of segments that do not overlap. Each is a value with sizes, strides and an offset. Reading a view finds the segment that it lies in and writes the view as slices, permutations
and reshapes of its value; a view that spans several segments is their concatenation. Offsets and strides are in elements; complex tensors are stored as real ones with a last dimension of 2.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable

from .graph import Graph
from .values import Complex, Filled, Named, Poison, Reason, Shape, Unsupported, Value, numel


@dataclasses.dataclass(frozen=True)
class Geometry:
    """A view of a storage: sizes and strides for each dimension, and an offset, in elements."""

    size: Shape
    stride: Shape
    offset: int

    def packed(self) -> list[tuple[int, int, int]]:
        """(stride, size, dimension) of the dimensions that move, largest stride first."""
        return sorted(((t, n, i) for i, (n, t) in enumerate(zip(self.size, self.stride)) if n != 1), key=lambda d: (-d[0], d[2]))

    def span(self) -> tuple[int, int]:
        """The first element and one past the last."""
        if 0 in self.size:
            return self.offset, self.offset
        return self.offset, self.offset + 1 + sum((n - 1) * t for n, t in zip(self.size, self.stride))

    def is_dense(self) -> bool:
        """Every element of the span exactly once."""
        low, high = self.span()
        return numel(self.size) == high - low and all(t > 0 for t, _, _ in self.packed())


def contiguous(shape: Iterable[int], offset: int = 0) -> Geometry:
    size = tuple(int(n) for n in shape)
    stride, step = [0] * len(size), 1
    for i in reversed(range(len(size))):
        stride[i] = step
        step *= max(size[i], 1)
    return Geometry(size, tuple(stride), offset)


@dataclasses.dataclass(frozen=True)
class Segment:
    value: Value
    at: Geometry


@dataclasses.dataclass
class Place:
    """A view inside a segment: the segment's value refined into `sizes`, cut to [starts, stops) in each dimension; `order` lists the refined dimensions of the view."""

    sizes: list[int]
    starts: list[int]
    stops: list[int]
    order: list[int]     # refined dimensions in the order of the view's refined dimensions; those that are not listed have extent 1
    expanded: list[int]  # positions (in the view's refined dimensions) that repeat (stride 0)
    view: list[int]      # sizes of the view's refined dimensions, repeats included


def locate(seg: Geometry, want: Geometry) -> Place | None:
    """How a view lies in a segment, or None if it does not (or not as a box)."""
    cells = [[t, n] for t, n, _ in seg.packed()]  # largest stride first
    lows, highs = seg.span(), want.span()
    if highs[0] < lows[0] or highs[1] > lows[1]:
        return None
    target: list[list[int]] = []  # [stride, size] in the order of the view's dimensions
    for n, t in zip(want.size, want.stride):
        if n == 1:
            continue
        target.append([t, n])
    # 1. refine: every stride of the view is one of the segment's, and no size of the view goes beyond its cell
    i = 0
    while i < len(target):
        t, n = target[i]
        if t == 0:
            i += 1
            continue
        k = _cell(cells, t)
        if k is None:
            return None
        ct, cn = cells[k]
        if ct != t:  # split the cell: the view's stride is inside it
            if t % ct or cn % (t // ct):
                return None
            inner = t // ct
            cells[k: k + 1] = [[t, cn // inner], [ct, inner]]
            cn = cn // inner
        if n > cn:  # the view's dimension goes on in the next larger cell
            if k == 0 or cells[k - 1][0] != t * cn or n % cn:
                return None
            target[i: i + 1] = [[t * cn, n // cn], [t, cn]]
            continue
        i += 1
    # 2. where the view starts, in mixed radix
    rest = want.offset - seg.offset
    starts, stops, used = [], [], {t: n for t, n in target if t}
    if len(used) != sum(1 for t, _ in target if t):
        return None
    for t, n in cells:
        starts.append(rest // t if t else 0)
        rest -= starts[-1] * t
        stops.append(starts[-1] + used.get(t, 1))
        if stops[-1] > n:
            return None
    if rest:
        return None
    index = {t: k for k, (t, _) in enumerate(cells)}
    order = [index[t] for t, _ in target if t]
    return Place([n for _, n in cells], starts, stops, order, [j for j, (t, _) in enumerate(target) if t == 0], [n for _, n in target])


def _cell(cells: list[list[int]], stride: int) -> int | None:
    for k, (t, n) in enumerate(cells):
        if t <= stride < t * n:
            return k
    return None


class Storage:
    """The contents of one block of memory."""

    def __init__(self, keep: Any) -> None:
        self.keep = keep  # the real storage: its address names this one as long as it lives
        self.segments: list[Segment] = []
        self.pending: dict[object, tuple[int, int, str]] = {}  # asynchronous operators that were not waited for: the elements that they write, and what they are
        self._cache: dict[Geometry, Value] = {}

    def unfinished(self, at: Geometry) -> str | None:
        """The asynchronous operator that still writes into a view, if there is one."""
        low, high = at.span()
        return next((name for a, b, name in self.pending.values() if a < high and low < b), None)

    def clear(self, at: Geometry) -> None:
        """Forgets what lies inside a dense view."""
        low, high = at.span()
        self._cache.clear()
        self.segments = [s for s in self.segments if not (low <= s.at.span()[0] and s.at.span()[1] <= high)]

    def write(self, g: Graph, value: Value, at: Geometry, loc: str) -> None:
        """Replaces the elements of the view."""
        if 0 in at.size:
            return
        self._cache.clear()
        low, high = at.span()
        base = value.base if isinstance(value, Named) else None
        if base is not None and at == contiguous(at.size, at.offset):
            value, at = base, contiguous(base.shape, at.offset)  # the shape it was made in
        touched = [s for s in self.segments if s.at.span()[0] < high and low < s.at.span()[1] and not _interleaved(s.at, at)]
        hidden = [s for s in touched if at.is_dense() and low <= s.at.span()[0] and s.at.span()[1] <= high or _same(s.at, at)]
        left = [s for s in touched if s not in hidden]
        if not left:
            self.segments = [s for s in self.segments if s not in hidden] + [Segment(value, at)]
            return
        if len(left) == 1:
            old = left[0]
            place = locate(old.at, at)
            if place is not None and not place.expanded:
                new = update(g, old, place, value, at)
                self.segments = [s for s in self.segments if s not in hidden and s is not old] + [Segment(new, old.at)]
                return
        if self._write_parts(g, value, at, left, hidden, loc):
            return
        reason = Reason("a write to a view that overlaps earlier ones in a way that is not understood", loc)
        self.segments = [Segment(Poison(s.value.shape, reason), s.at) if s in touched else s for s in self.segments]
        self.segments.append(Segment(Poison(value.shape, reason), at))

    def _write_parts(self, g: Graph, value: Value, at: Geometry, left: list[Segment], hidden: list[Segment], loc: str) -> bool:
        """A dense write over pieces of dense segments: what is covered is cut off from them."""
        if at != contiguous(at.size, at.offset) or not all(s.at == contiguous(s.at.size, s.at.offset) for s in left):
            return False
        low, high = at.span()
        rest = [s for s in self.segments if s not in hidden and s not in left]
        for s in left:
            a, b = s.at.span()
            flat = g.reshape(s.value, (b - a,))
            if a < low:
                rest.append(Segment(g.slice(flat, 0, 0, low - a), contiguous((low - a,), a)))
            if high < b:
                rest.append(Segment(g.slice(flat, 0, high - a, b - a), contiguous((b - high,), high)))
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
        if len(touched) > 1:
            return self._join(g, touched, at, loc)
        for s in touched:
            if isinstance(s.value, Poison):
                return Poison(at.size, s.value.reason)
        covered = touched and touched[0].at.span()[0] <= low and high <= touched[0].at.span()[1]
        text = "memory that was never written is read" if not touched else "a view that is not understood" if covered else "memory of which a part was never written is read"
        return Poison(at.size, Reason(text, loc))

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
                part = Geometry(at.size[:dim] + (b - a,) + at.size[dim + 1:], at.stride, at.offset + a * t)
                piece = self._read(g, part, loc)
                if isinstance(piece, Poison):
                    break
                pieces.append(piece)
            else:
                return g.cat(pieces, dim)
        if at == contiguous(at.size, at.offset) and len(at.size) > 1:
            flat = self._read(g, contiguous((numel(at.size),), at.offset), loc)
            if not isinstance(flat, Poison):
                return g.reshape(flat, at.size)
        return Poison(at.size, Reason("memory of which a part was never written is read", loc))

    def pieces(self, g: Graph, at: Geometry) -> list[Segment] | None:
        """The segments that make up a dense view, each inside it, in order; None if they do not cover it exactly."""
        low, high = at.span()
        inside = sorted((s for s in self.segments if s.at.span()[0] < high and low < s.at.span()[1]), key=lambda s: s.at.offset)
        if any(s.at.span()[0] < low or s.at.span()[1] > high for s in inside):
            return None
        return inside if sum(numel(s.at.size) for s in inside) == high - low else None


def _same(a: Geometry, b: Geometry) -> bool:
    return a.offset == b.offset and [d[:2] for d in a.packed()] == [d[:2] for d in b.packed()]


def _interleaved(a: Geometry, b: Geometry) -> bool:
    """Two strided views that share a span and no element: columns of one matrix."""
    pa, pb = a.packed(), b.packed()
    if not pa or not pb:
        return False
    row = max(pa[0][0], pb[0][0])
    for p, q in ((pa, pb), (pb, pa)):
        if p[0][0] != row:
            return False
    low_a, low_b = a.offset % row, b.offset % row
    wide_a = 1 + sum((n - 1) * t for t, n, _ in pa[1:])
    wide_b = 1 + sum((n - 1) * t for t, n, _ in pb[1:])
    if low_a + wide_a > row or low_b + wide_b > row:
        return False
    return low_a + wide_a <= low_b or low_b + wide_b <= low_a


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
    """A view of a dense segment whose sizes do not divide: cut the needed stretch out of the flat elements first."""
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


def as_real(at: Geometry) -> Geometry:
    """A complex view as a real one with a last dimension of 2."""
    return Geometry(at.size + (2,), tuple(2 * t for t in at.stride) + (1,), 2 * at.offset)


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
    return g.cat([g.reshape(v.real, v.shape + (1,)), g.reshape(v.imag, v.shape + (1,))], len(v.shape))
