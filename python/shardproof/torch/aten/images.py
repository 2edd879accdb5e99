# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pooling as sums (and maxima) over the positions of the window.

Resampling is products with matrices of weights.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms.graph import Graph
from ..terms.values import Filled, Known, Value
from .layout import taken_back
from .table import lowering, require

MOST = 128  # positions of a window
FEW = 16  # of which each is compared with each


def _each(x: Sequence[int], n: int) -> list[int]:
    """One number for each of n dimensions."""
    return [int(x[0])] * n if len(x) == 1 else [int(i) for i in x]


def _padded(g: Graph, x: Value, pads: Sequence[tuple[int, int]], fill: Value) -> Value:
    """With so many elements added on both sides of the last dimensions."""
    for i, (before, behind) in enumerate(pads):
        dim = len(x.shape) - len(pads) + i
        pieces = [
            g.expand(fill, x.shape[:dim] + (n,) + x.shape[dim + 1 :]) if n else None
            for n in (before, behind)
        ]
        x = g.cat([v for v in (pieces[0], x, pieces[1]) if v is not None], dim)
    return x


def _window(
    g: Graph,
    x: Value,
    at: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    out: Sequence[int],
) -> Value:
    """What position `at` of the window sees, for all positions of the result."""
    for i, (k, s, d, n) in enumerate(zip(at, stride, dilation, out)):
        dim = len(x.shape) - len(out) + i
        x = g.slice(x, dim, k * d, k * d + (n - 1) * s + 1, s)
    return x


def _spread(
    g: Graph,
    grad: Value,
    at: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    size: Sequence[int],
) -> Value:
    """The transpose of _window: the gradient's elements where the window's position saw them, else
    zeros.
    """
    for i, (k, s, d, n) in enumerate(zip(at, stride, dilation, size)):
        dim = len(grad.shape) - len(size) + i
        if s > 1:
            count = grad.shape[dim]
            lead, rest = grad.shape[:dim], grad.shape[dim + 1 :]
            zeros = Filled(0, lead + (count, s - 1) + rest)
            grad = g.reshape(
                g.cat([g.reshape(grad, lead + (count, 1) + rest), zeros], dim + 1),
                lead + (count * s,) + rest,
            )
            grad = g.slice(grad, dim, 0, (count - 1) * s + 1)
        before, after = k * d, n - k * d - grad.shape[dim]
        pieces: list[Value] = [
            *([Filled(0, grad.shape[:dim] + (before,) + grad.shape[dim + 1 :])] if before else []),
            grad,
            *([Filled(0, grad.shape[:dim] + (after,) + grad.shape[dim + 1 :])] if after else []),
        ]
        grad = g.cat(pieces, dim)
    return grad


def _weight_at(g: Graph, w: Value, at: Sequence[int]) -> Value:
    for i, k in enumerate(at):
        w = g.slice(w, 2 + i, k, k + 1)
    return g.reshape(w, w.shape[:2])


def _channels(g: Graph, x: Value, groups: int) -> Value:
    """[N, C, ...] as [N, groups, positions, C / groups]."""
    n, c = x.shape[:2]
    count = 1
    for size in x.shape[2:]:
        count *= size
    return g.permute(g.reshape(x, (n, groups, c // groups, count)), [0, 1, 3, 2])


def _back(g: Graph, x: Value, spatial: Sequence[int]) -> Value:
    """The inverse of _channels."""
    n, groups, _, c = x.shape
    return g.reshape(g.permute(x, [0, 1, 3, 2]), (n, groups * c, *spatial))


def _positions(w: Value) -> list[tuple[int, ...]]:
    """Of a convolution's window."""
    window = list(itertools.product(*[range(n) for n in w.shape[2:]]))
    require(len(window) <= MOST, f"a convolution with a window of more than {MOST} positions")
    return window


@lowering("convolution", "_convolution")
def convolution(
    call: Any,
    g: Graph,
    x: Value,
    w: Value,
    b: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    *rest: Any,
) -> Value:
    n = len(w.shape) - 2
    stride, padding, dilation = _each(stride, n), _each(padding, n), _each(dilation, n)
    out = call.shape()[2:]
    if transposed:
        y = _transposed(g, x, w, stride, padding, dilation, out, groups)
        return y if b is None else ar.binary(g, "add", y, g.reshape(b, (1, b.shape[0]) + (1,) * n))
    window = _positions(w)
    x = _padded(g, x, [(p, p) for p in padding], Filled(0, ()))
    total: Value = Filled(0, ())
    for at in window:
        seen = _channels(g, _window(g, x, at, stride, dilation, out), groups)
        part = _weight_at(g, w, at)
        part = ar.transposed(g, g.reshape(part, (groups, part.shape[0] // groups, part.shape[1])))
        total = ar.binary(g, "add", total, ar.matmul(g, seen, part))
    y = _back(g, total, out)
    return y if b is None else ar.binary(g, "add", y, g.reshape(b, (1, b.shape[0]) + (1,) * n))


def _transposed(
    g: Graph,
    x: Value,
    w: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out: Sequence[int],
    groups: int,
) -> Value:
    """The transpose of a convolution as a function of its operand.

    Each element goes to all positions that its window sees.
    """
    rows = _channels(g, x, groups)  # [N, groups, positions, in / groups]
    size = [n + 2 * p for n, p in zip(out, padding)]
    total: Value = Filled(0, ())
    for at in _positions(w):
        part = _weight_at(g, w, at)
        part = g.reshape(part, (groups, part.shape[0] // groups, part.shape[1]))
        total = ar.binary(
            g,
            "add",
            total,
            _spread(g, _back(g, ar.matmul(g, rows, part), x.shape[2:]), at, stride, dilation, size),
        )
    for i, p in enumerate(padding):
        total = g.slice(total, 2 + i, p, p + out[i])
    return total


def _transposed_backward(
    g: Graph,
    grad: Value,
    x: Value,
    w: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    mask: list[bool],
) -> list[Value | None]:
    padded = _padded(g, grad, [(p, p) for p in padding], Filled(0, ()))
    rows = _channels(g, x, groups)
    dx: Value = Filled(0, ())
    dw: list[Value] = []
    for at in _positions(w):
        seen = _channels(g, _window(g, padded, at, stride, dilation, x.shape[2:]), groups)
        if mask[0]:
            part = _weight_at(g, w, at)
            part = g.reshape(part, (groups, part.shape[0] // groups, part.shape[1]))
            dx = ar.binary(g, "add", dx, ar.matmul(g, seen, ar.transposed(g, part)))
        if mask[1]:
            # [groups, in / groups, out / groups]
            product = ar.reduce(g, "sum", ar.matmul(g, ar.transposed(g, rows), seen), [0])
            dw.append(g.reshape(product, (w.shape[0], w.shape[1], 1)))
    return [
        *([_back(g, dx, x.shape[2:])] if mask[0] else []),
        *([g.reshape(g.cat(dw, 2), w.shape)] if mask[1] else []),
    ]


@lowering("convolution_backward")
def convolution_backward(
    call: Any,
    g: Graph,
    grad: Value,
    x: Value,
    w: Value,
    bias: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    mask: list[bool],
) -> list[Value | None]:
    n = len(w.shape) - 2
    stride, padding, dilation = _each(stride, n), _each(padding, n), _each(dilation, n)
    if transposed:
        return [
            *_transposed_backward(g, grad, x, w, stride, padding, dilation, groups, mask),
            *([ar.reduce(g, "sum", grad, [0, *range(2, n + 2)])] if mask[2] else []),
        ]
    window = _positions(w)
    out = grad.shape[2:]
    padded = _padded(g, x, [(p, p) for p in padding], Filled(0, ()))
    rows = _channels(g, grad, groups)  # [N, groups, positions, out / groups]
    dx: Value = Filled(0, ())
    dw: list[Value] = []
    for at in window:
        part = _weight_at(g, w, at)
        part = g.reshape(part, (groups, part.shape[0] // groups, part.shape[1]))
        if mask[0]:
            back = _back(g, ar.matmul(g, rows, part), out)
            dx = ar.binary(g, "add", dx, _spread(g, back, at, stride, dilation, padded.shape[2:]))
        if mask[1]:
            seen = _channels(g, _window(g, padded, at, stride, dilation, out), groups)
            # [groups, out / groups, in / groups]
            product = ar.reduce(g, "sum", ar.matmul(g, ar.transposed(g, rows), seen), [0])
            dw.append(g.reshape(product, (w.shape[0], w.shape[1], 1)))
    results: list[Value | None] = []
    if mask[0]:
        for i, p in enumerate(padding):
            dx = g.slice(dx, 2 + i, p, p + x.shape[2 + i])
        results.append(dx)
    if mask[1]:
        results.append(g.reshape(g.cat(dw, 2), w.shape))
    if mask[2]:
        results.append(ar.reduce(g, "sum", grad, [0, *range(2, n + 2)]))
    return results


def _first_largest(g: Graph, parts: list[Value]) -> list[Value]:
    """For each of several tensors 1 where it is the first that is largest."""
    if len(parts) > FEW:
        return _first_largest_of_many(g, parts)
    result = []
    for i, x in enumerate(parts):
        first: Value = Filled(1, ())
        for j, y in enumerate(parts):
            if j < i:
                first = ar.binary(g, "mul", first, ar.step(g, ar.binary(g, "sub", x, y)))
            elif j > i:
                first = ar.binary(
                    g, "mul", first, ar.binary(g, "sub", 1, ar.step(g, ar.binary(g, "sub", y, x)))
                )
        result.append(first)
    return result


def _first_largest_of_many(g: Graph, parts: list[Value]) -> list[Value]:
    """The same by the maxima of those before and of those behind."""
    shape = parts[0].shape
    stacked, n = _stacked(g, parts), len(parts)
    result = []
    for i, x in enumerate(parts):
        before, behind = (
            g.reshape(ar.reduce(g, "amax", g.slice(stacked, -1, a, b), [-1]), shape)
            if a < b
            else None
            for a, b in ((0, i), (i + 1, n))
        )
        first: Value = (
            Filled(1, shape) if before is None else ar.step(g, ar.binary(g, "sub", x, before))
        )
        if behind is not None:
            first = ar.binary(
                g, "mul", first, ar.binary(g, "sub", 1, ar.step(g, ar.binary(g, "sub", behind, x)))
            )
        result.append(first)
    return result


def _stacked(g: Graph, parts: list[Value]) -> Value:
    return g.cat([g.reshape(v, v.shape + (1,)) for v in parts], len(parts[0].shape))


@dataclasses.dataclass
class _Pool:
    """Windows of a pooling, in the last dimensions of a tensor.

    pads: how far they reach beyond it on both sides.
    """

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    padding: list[int]
    pads: list[tuple[int, int]]
    out: tuple[int, ...]

    @property
    def positions(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*[range(k) for k in self.kernel]))


def _pool(
    x: Value,
    out: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> _Pool:
    """out: the result's size along these dimensions.

    With ceil_mode the last windows reach beyond the padding.
    """
    n = len(out)
    k = _each(kernel, n)
    s, p, d = _each(stride, n) if stride else k, _each(padding or [0], n), _each(dilation or [1], n)
    require(math.prod(k) <= MOST, f"pooling over more than {MOST} positions")
    pads = [
        (q, max(q, (m - 1) * t + (j - 1) * e + 1 - size - q))
        for size, m, j, t, q, e in zip(x.shape[-n:], out, k, s, p, d)
    ]
    return _Pool(k, s, d, p, pads, tuple(out))


def _replicated(g: Graph, x: Value, pads: Sequence[tuple[int, int]]) -> Value:
    """x with the elements at the border repeated on both sides.

    A window of a maximum that reaches so far has the border, too: in ATen the padding is at most
    half of the window, and windows begin within it or the tensor. So its maximum is that without
    the padding, and the first place of it that of the same element.
    """
    for i, (before, behind) in enumerate(pads):
        dim = len(x.shape) - len(pads) + i
        if before or behind:
            last = x.shape[dim] - 1
            x = g.cat([*_border(g, x, dim, 0, before), x, *_border(g, x, dim, last, behind)], dim)
    return x


def _border(g: Graph, x: Value, dim: int, at: int, n: int) -> list[Value]:
    """The slice at one position of a dimension, n times; no value for n = 0."""
    shape = x.shape[:dim] + (n,) + x.shape[dim + 1 :]
    return [g.expand(g.slice(x, dim, at, at + 1), shape)] if n else []


def _unreplicated(g: Graph, grad: Value, pads: Sequence[tuple[int, int]]) -> Value:
    """The transpose of _replicated."""
    for i, (before, behind) in reversed(list(enumerate(pads))):
        dim = len(grad.shape) - len(pads) + i
        size = grad.shape[dim] - before - behind
        if before or behind:
            grad = taken_back(
                g, grad, dim, [0] * before + list(range(size)) + [size - 1] * behind, size
            )
    return grad


def _lowered(g: Graph, x: Value, pads: Sequence[tuple[int, int]]) -> Value:
    """x with less than any element around it: a window with gaps need not have the border."""
    n = len(pads)
    least = ar.binary(
        g, "sub", ar.reduce(g, "amin", x, list(range(len(x.shape) - n, len(x.shape))), True), 1
    )
    for i, (before, behind) in enumerate(pads):
        dim = len(x.shape) - n + i
        pieces = [
            g.expand(least, x.shape[:dim] + (m,) + x.shape[dim + 1 :]) if m else None
            for m in (before, behind)
        ]
        x = g.cat([v for v in (pieces[0], x, pieces[1]) if v is not None], dim)
    return x


def _maximized(g: Graph, x: Value, p: _Pool) -> tuple[Value, bool]:
    """What maxima are taken of, and whether the border is repeated in it."""
    if not any(map(any, p.pads)) or all(d == 1 for d in p.dilation):
        return _replicated(g, x, p.pads), True
    for size, m, k, s, d, (before, _) in zip(
        x.shape[-len(p.out) :], p.out, p.kernel, p.stride, p.dilation, p.pads
    ):
        require(
            all(any(0 <= i * s - before + j * d < size for j in range(k)) for i in range(m)),
            "a window of a maximum that has nothing but padding",
        )
    return _lowered(g, x, p.pads), False


def _max_pool(name: str, n: int) -> None:
    @lowering(f"{name}_with_indices")
    def forward(
        call: Any,
        g: Graph,
        x: Value,
        kernel: list[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil: bool = False,
    ) -> list[Value | None]:
        p = _pool(x, call.shape()[-n:], kernel, stride, padding, dilation)
        x, _ = _maximized(g, x, p)
        return [
            ar.reduce(
                g,
                "amax",
                _stacked(g, [_window(g, x, at, p.stride, p.dilation, p.out) for at in p.positions]),
                [-1],
            ),
            None,
        ]

    @lowering(f"{name}_with_indices_backward", selective=True)
    def backward(
        call: Any,
        g: Graph,
        grad: Value,
        x: Value,
        kernel: list[int],
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        ceil: bool,
        indices: Value,
    ) -> Value:
        """The gradient goes to the first of the largest elements of a window in row-major order."""
        ar.check(grad, x)
        p = _pool(x, grad.shape[-n:], kernel, stride, padding, dilation)
        x, repeated = _maximized(g, x, p)
        total: Value = Filled(0, ())
        for at, m in zip(
            p.positions,
            _first_largest(
                g, [_window(g, x, at, p.stride, p.dilation, p.out) for at in p.positions]
            ),
        ):
            total = ar.binary(
                g,
                "add",
                total,
                _spread(g, ar.binary(g, "mul", grad, m), at, p.stride, p.dilation, x.shape[-n:]),
            )
        return _unreplicated(g, total, p.pads) if repeated else _cropped(g, total, p.pads)


def _cropped(g: Graph, x: Value, pads: Sequence[tuple[int, int]]) -> Value:
    for i, (before, behind) in enumerate(pads):
        dim = len(x.shape) - len(pads) + i
        x = g.slice(x, dim, before, x.shape[dim] - behind)
    return x


def _divisor(p: _Pool, size: Sequence[int], include_pad: bool, divisor: Any) -> Value | int:
    """The divisor of the sum over a window.

    It is the number of positions within the tensor, or also of those in the padding (but not
    beyond).
    """
    if divisor:
        return int(divisor)
    counts = torch.ones((), dtype=torch.float64)
    for n, m, k, s, q in zip(size, p.out, p.kernel, p.stride, p.padding):
        low, high = (-q, n + q) if include_pad else (0, n)
        here = [min(i * s - q + k, n + q) for i in range(m)]
        counts = counts[..., None] * torch.tensor(
            [min(end, high) - max(i * s - q, low) for i, end in enumerate(here)],
            dtype=torch.float64,
        )
    return (
        int(counts.flatten()[0]) if bool((counts == counts.flatten()[0]).all()) else Known(counts)
    )


def _avg_pool(name: str, n: int) -> None:
    @lowering(name)
    def forward(
        call: Any,
        g: Graph,
        x: Value,
        kernel: list[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil: bool = False,
        include_pad: bool = True,
        divisor: Any = None,
    ) -> Value:
        p = _pool(x, call.shape()[-n:], kernel, stride, padding, [1])
        padded = _padded(g, x, p.pads, Filled(0, ()))
        total: Value = Filled(0, ())
        for at in p.positions:
            total = ar.binary(g, "add", total, _window(g, padded, at, p.stride, p.dilation, p.out))
        return ar.binary(g, "div", total, _divisor(p, x.shape[-n:], include_pad, divisor))

    @lowering(f"{name}_backward")
    def backward(
        call: Any,
        g: Graph,
        grad: Value,
        x: Value,
        kernel: list[int],
        stride: list[int],
        padding: list[int],
        ceil: bool,
        include_pad: bool,
        divisor: Any,
    ) -> Value:
        p = _pool(x, grad.shape[-n:], kernel, stride, padding, [1])
        grad = ar.binary(g, "div", grad, _divisor(p, x.shape[-n:], include_pad, divisor))
        total: Value = Filled(0, ())
        for at in p.positions:
            total = ar.binary(
                g,
                "add",
                total,
                _spread(
                    g,
                    grad,
                    at,
                    p.stride,
                    p.dilation,
                    [m + a + b for m, (a, b) in zip(x.shape[-n:], p.pads)],
                ),
            )
        return _cropped(g, total, p.pads)


for _n in (2, 3):
    _max_pool(f"max_pool{_n}d", _n)
    _avg_pool(f"avg_pool{_n}d", _n)


# ---- adaptive pooling: position i of the result is of the positions from floor(i n / out) up to
# ceil((i + 1) n / out) ----
def _stretch(i: int, n: int, out: int) -> tuple[int, int]:
    return i * n // out, -(-(i + 1) * n // out)


def _adaptive(n: int, out: int) -> Known:
    """The matrix [out, n] of means."""
    m = torch.zeros(out, n, dtype=torch.float64)
    for i in range(out):
        low, high = _stretch(i, n, out)
        m[i, low:high] = 1 / (high - low)
    return Known(m)


def _adaptive_avg_pool(name: str, n: int) -> None:
    @lowering(f"_{name}", name)
    def forward(call: Any, g: Graph, x: Value, size: list[int]) -> Value:
        """Means of equal pieces where the sizes divide, else products with matrices of means."""
        lead, sizes, out = x.shape[:-n], x.shape[-n:], call.shape()[-n:]
        if all(m % k == 0 for m, k in zip(sizes, out)):
            at = len(lead)
            return ar.reduce(
                g,
                "mean",
                g.reshape(x, (*lead, *itertools.chain(*((k, m // k) for m, k in zip(sizes, out))))),
                [at + 1 + 2 * i for i in range(n)],
            )
        g.definedness.both_have_values(x)
        for i in reversed(range(n)):
            x = ar.along(g, x, len(lead) + i, ar.transposed(g, _adaptive(sizes[i], out[i])))
        return x

    @lowering(f"_{name}_backward")
    def backward(call: Any, g: Graph, grad: Value, x: Value) -> Value:
        lead, sizes, out = x.shape[:-n], x.shape[-n:], grad.shape[-n:]
        if all(m % k == 0 for m, k in zip(sizes, out)):
            ones, each = (
                (*lead, *itertools.chain(*((k, 1 if flat else m // k) for m, k in zip(sizes, out))))
                for flat in (True, False)
            )
            return ar.binary(
                g,
                "div",
                g.reshape(g.expand(g.reshape(grad, ones), each), x.shape),
                math.prod(m // k for m, k in zip(sizes, out)),
            )
        for i in reversed(range(n)):
            grad = ar.along(g, grad, len(lead) + i, _adaptive(sizes[i], out[i]))
        return grad


def _adaptive_max_pool(name: str, n: int) -> None:
    def windows(g: Graph, x: Value, out: Sequence[int]) -> list[tuple[tuple[int, ...], Value]]:
        """For each position of the result where its window begins, and the window."""
        require(math.prod(out) <= MOST, f"adaptive pooling to more than {MOST} positions")
        found = []
        for at in itertools.product(*[range(m) for m in out]):
            part, low = x, []
            for i, (k, size, m) in enumerate(zip(at, x.shape[-n:], out)):
                a, b = _stretch(k, size, m)
                part = g.slice(part, len(x.shape) - n + i, a, b)
                low.append(a)
            found.append((tuple(low), part))
        return found

    @lowering(name)
    def forward(call: Any, g: Graph, x: Value, size: list[int]) -> list[Value | None]:
        out = call.shape()
        parts = [
            ar.reduce(g, "amax", part, list(range(len(out) - n, len(out))))
            for _, part in windows(g, x, out[-n:])
        ]
        return [g.reshape(_stacked(g, parts), out), None]

    @lowering(f"{name}_backward", selective=True)
    def backward(call: Any, g: Graph, grad: Value, x: Value, indices: Value) -> Value:
        """The gradient goes to the first of the largest elements of a window in row-major order."""
        ar.check(grad, x)
        lead, out = grad.shape[:-n], grad.shape[-n:]
        rows = g.reshape(grad, (*lead, math.prod(out)))
        total: Value = Filled(0, ())
        for i, (low, part) in enumerate(windows(g, x, out)):
            count = math.prod(part.shape[-n:])
            flat = g.reshape(part, (*lead, count))
            first = _first_largest(g, [g.slice(flat, -1, k, k + 1) for k in range(count)])
            placed = ar.binary(
                g,
                "mul",
                g.cat(first, len(lead)) if count > 1 else Filled(1, (*lead, 1)),
                g.slice(rows, -1, i, i + 1),
            )
            total = ar.binary(
                g,
                "add",
                total,
                _spread(g, g.reshape(placed, part.shape), low, [1] * n, [1] * n, x.shape[-n:]),
            )
        return total


for _n in (2, 3):
    _adaptive_avg_pool(f"adaptive_avg_pool{_n}d", _n)
    _adaptive_max_pool(f"adaptive_max_pool{_n}d", _n)


# ---- padding with elements of the tensor ----
def _padded_positions(reflects: bool, n: int, before: int, behind: int) -> list[int]:
    """Of each position behind the padding the one whose element it has."""
    positions = list(range(-before, n + behind))
    return (
        [n - 1 - abs(n - 1 - abs(i)) for i in positions]
        if reflects
        else [min(max(i, 0), n - 1) for i in positions]
    )


def _padding(name: str, reflects: bool) -> None:
    @lowering(f"{name}_backward")
    def backward(call: Any, g: Graph, grad: Value, x: Value, pads: list[int]) -> Value:
        for i in range(len(pads) // 2):
            dim = len(x.shape) - 1 - i
            grad = taken_back(
                g,
                grad,
                dim,
                _padded_positions(reflects, x.shape[dim], int(pads[2 * i]), int(pads[2 * i + 1])),
                x.shape[dim],
            )
        return grad


for _n in (1, 2, 3):
    _padding(f"replication_pad{_n}d", False)
    _padding(f"reflection_pad{_n}d", True)


# ---- resampling: along each dimension by itself ----
def _weights(
    operator: str, dims: int, n: int, m: int, align: tuple[bool, ...], scale: float | None
) -> Value:
    """[n, m]: the result of ATen's operator for n elements in a row, of each that is 1 alone.

    Operators of other dimensions round otherwise.
    """
    one = torch.eye(n, dtype=torch.float64)
    # along the last dimension: the kernel of torch 2.13 does not move on along the first one of
    # images that are one element wide
    if operator.endswith("_aa"):
        return Known(
            getattr(torch.ops.aten, operator)
            .default(one.reshape(1, n, 1, n), [1, m], *align, None, scale)
            .reshape(n, m)
        )
    made = getattr(torch.ops.aten, operator).default(
        one.reshape(1, n, n, *[1] * (dims - 1)),
        [m] + [1] * (dims - 1),
        *align,
        scale,
        *[None] * (dims - 1),
    )
    return Known(made.reshape(n, m))


def _resampled(
    g: Graph,
    x: Value,
    operator: str,
    sizes: Sequence[int],
    to: Sequence[int],
    align: tuple[bool, ...],
    scales: Sequence[Any],
    backward: bool,
) -> Value:
    """sizes: of the image, before; to: after. backward: from `to` to `sizes` by the transpose."""
    lead = len(x.shape) - len(to)
    for i, (n, m) in enumerate(zip(sizes, to)):
        w = _weights(
            operator, len(to), int(n), int(m), align, scales[i] if i < len(scales) else None
        )
        x = ar.along(g, x, lead + i, ar.transposed(g, w) if backward else w)
    return x


def _resampling(name: str, aligns: bool) -> None:
    @lowering(name)
    def forward(call: Any, g: Graph, x: Value, size: list[int], *rest: Any) -> Value:
        g.definedness.both_have_values(x)
        return _resampled(
            g,
            x,
            name,
            x.shape[2:],
            size,
            tuple(bool(a) for a in rest[:aligns]),
            rest[aligns:],
            False,
        )

    @lowering(f"{name}_backward")
    def backward(
        call: Any, g: Graph, grad: Value, size: list[int], before: list[int], *rest: Any
    ) -> Value:
        return _resampled(
            g,
            grad,
            name,
            before[2:],
            size,
            tuple(bool(a) for a in rest[:aligns]),
            rest[aligns:],
            True,
        )


for _n in (1, 2, 3):
    _resampling(f"upsample_nearest{_n}d", False)
    _resampling(f"_upsample_nearest_exact{_n}d", False)
for _name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    _resampling(_name, True)
for _name in (
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
):
    _resampling(_name, True)


# ---- sampling at places that are given as fractions of an image: x, y from -1 to 1 ----
BILINEAR, NEAREST = 0, 1
ZEROS, BORDER = 0, 1


def _constant_samples(g: Graph, size: Sequence[int], grid: Known, options: Sequence[Any]) -> Value:
    """[batch or 1, points, positions of the image]: ATen's result for each image that is 1 at one
    position.
    """
    h, w = size
    ones = torch.eye(h * w, dtype=torch.float64).reshape(1, h * w, h, w)
    places = grid.data.double()
    made = torch.cat(
        [
            torch.ops.aten.grid_sampler_2d(ones, p[None], *options)
            for p in (places[:1] if bool((places == places[:1]).all()) else places)
        ]
    )
    return Known(made.flatten(2).transpose(1, 2).contiguous())


def _coordinate(g: Graph, c: Value, n: int, padding: int, align: bool) -> tuple[Value, Value]:
    """As a position among n, and its slope."""
    slope: Value = Filled((n - 1) / 2 if align else n / 2, c.shape)
    at = ar.binary(g, "add", ar.binary(g, "mul", c, slope), (n - 1) / 2)
    if padding == BORDER:  # none at the border either
        inside = ar.binary(g, "mul", ar.step(g, at), ar.step(g, ar.binary(g, "sub", n - 1, at)))
        slope, at = ar.binary(g, "mul", inside, slope), ar.minimum(g, ar.maximum(g, at, 0), n - 1)
    return at, slope


def _hats(g: Graph, at: Value, n: int) -> tuple[Value, Value]:
    """[..., n]: the weight of each of n positions between its neighbours, 1 at its own, and its
    slope.

    At a position itself the slope is that towards the next one.
    """
    t = ar.binary(
        g, "sub", g.reshape(at, (*at.shape, 1)), Known(torch.arange(n, dtype=torch.float64))
    )
    weight = ar.relu(g, ar.binary(g, "sub", 1, ar.absolute(g, t)))
    behind = [ar.binary(g, "sub", 1, ar.step(g, ar.binary(g, "sub", k, t))) for k in (-1, 0, 1)]
    return weight, ar.binary(
        g, "add", ar.binary(g, "sub", behind[0], ar.binary(g, "mul", behind[1], 2)), behind[2]
    )


def _samples(
    g: Graph, size: Sequence[int], grid: Value, mode: int, padding: int, align: bool
) -> tuple[Value, Value | None, Value | None]:
    """[batch, points, positions of the image]: the weight of each position, and its slopes in x and
    y.
    """
    if isinstance(grid, Known):
        return _constant_samples(g, size, grid, (mode, padding, align)), None, None
    require(
        mode in (BILINEAR, NEAREST) and padding in (ZEROS, BORDER),
        "an image sampled at places that depend on data, bicubic or with reflections",
    )
    batch, points = grid.shape[0], math.prod(grid.shape[1:3])
    require(
        points * math.prod(size) <= 1 << 20,
        "an image sampled at too many places that depend on data",
    )
    flat = g.reshape(grid, (batch, points, 2))
    found = []
    for i, n in ((1, size[0]), (0, size[1])):
        at, slope = _coordinate(
            g, g.reshape(g.slice(flat, 2, i, i + 1), (batch, points)), n, padding, align
        )
        weight, grows = _hats(g, ar.unary(g, "round", at) if mode == NEAREST else at, n)
        found.append((weight, ar.binary(g, "mul", grows, g.reshape(slope, (batch, points, 1)))))

    def product(a: Value, b: Value) -> Value:
        both = ar.binary(
            g, "mul", g.reshape(a, (*a.shape, 1)), g.reshape(b, (batch, points, 1, b.shape[-1]))
        )
        return g.reshape(both, (batch, points, math.prod(size)))

    (y, dy), (x, dx) = found
    moves = (product(y, dx), product(dy, x)) if mode == BILINEAR else (None, None)
    return (product(y, x), *moves)


def _flat(g: Graph, x: Value) -> Value:
    return g.reshape(x, (*x.shape[:2], math.prod(x.shape[2:])))


@lowering("grid_sampler_2d")
def grid_sampler(
    call: Any, g: Graph, x: Value, grid: Value, mode: int, padding: int, align: bool
) -> Value:
    g.definedness.both_have_values(x)
    weights, _, _ = _samples(g, x.shape[2:], grid, mode, padding, align)
    return g.reshape(ar.matmul(g, _flat(g, x), ar.transposed(g, weights)), call.shape())


@lowering("grid_sampler_2d_backward")
def grid_sampler_backward(
    call: Any,
    g: Graph,
    grad: Value,
    x: Value,
    grid: Value,
    mode: int,
    padding: int,
    align: bool,
    mask: list[bool],
) -> list[Value]:
    weights, *moves = _samples(g, x.shape[2:], grid, mode, padding, align)
    rows = _flat(g, grad)
    results: list[Value] = []
    if mask[0]:
        results.append(g.reshape(ar.matmul(g, rows, weights), x.shape))
    if mask[1]:
        require(
            mode != BILINEAR or moves[0] is not None, "the gradient of places that are constants"
        )
        seen = ar.matmul(g, ar.transposed(g, rows), _flat(g, x))
        parts = [
            Filled(0, (*seen.shape[:2], 1))
            if m is None
            else ar.reduce(g, "sum", ar.binary(g, "mul", seen, m), [-1], True)
            for m in moves
        ]
        results.append(g.reshape(g.cat(parts, 2), grid.shape))
    return results
