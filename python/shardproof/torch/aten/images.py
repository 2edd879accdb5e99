"""Convolutions and pooling, as sums (and maxima) over the positions of the window; resampling, as products with matrices of weights."""

from __future__ import annotations

import itertools
from typing import Any, Sequence

import torch

from .. import arithmetic as ar
from ..graph import Graph
from ..values import Filled, Known, Value
from .table import line, require

MOST = 128  # positions of a window


def _each(x: Sequence[int], n: int) -> list[int]:
    """One number for each of n dimensions."""
    return [int(x[0])] * n if len(x) == 1 else [int(i) for i in x]


def _padded(g: Graph, x: Value, pads: Sequence[int], fill: Value) -> Value:
    """With so many elements added on both sides of the last dimensions."""
    for i, n in enumerate(pads):
        dim = len(x.shape) - len(pads) + i
        if n:
            piece = g.expand(fill, x.shape[:dim] + (n,) + x.shape[dim + 1:])
            x = g.cat([piece, x, piece], dim)
    return x


def _window(g: Graph, x: Value, at: Sequence[int], stride: Sequence[int], dilation: Sequence[int], out: Sequence[int]) -> Value:
    """What position `at` of the window sees, for all positions of the result."""
    for i, (k, s, d, n) in enumerate(zip(at, stride, dilation, out)):
        dim = len(x.shape) - len(out) + i
        x = g.slice(x, dim, k * d, k * d + (n - 1) * s + 1, s)
    return x


def _spread(g: Graph, grad: Value, at: Sequence[int], stride: Sequence[int], dilation: Sequence[int], size: Sequence[int]) -> Value:
    """The transpose of _window: the gradient's elements where the window's position saw them, zeros elsewhere."""
    for i, (k, s, d, n) in enumerate(zip(at, stride, dilation, size)):
        dim = len(grad.shape) - len(size) + i
        if s > 1:
            count = grad.shape[dim]
            lead, rest = grad.shape[:dim], grad.shape[dim + 1:]
            zeros = Filled(0, lead + (count, s - 1) + rest)
            grad = g.reshape(g.cat([g.reshape(grad, lead + (count, 1) + rest), zeros], dim + 1), lead + (count * s,) + rest)
            grad = g.slice(grad, dim, 0, (count - 1) * s + 1)
        before, after = k * d, n - k * d - grad.shape[dim]
        pieces: list[Value] = [*([Filled(0, grad.shape[:dim] + (before,) + grad.shape[dim + 1:])] if before else []), grad,
                               *([Filled(0, grad.shape[:dim] + (after,) + grad.shape[dim + 1:])] if after else [])]
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


@line("convolution", "_convolution")
def convolution(call: Any, g: Graph, x: Value, w: Value, b: Value | None, stride: list[int], padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int],
                groups: int, *rest: Any) -> Value:
    n = len(w.shape) - 2
    stride, padding, dilation = _each(stride, n), _each(padding, n), _each(dilation, n)
    out = call.shape()[2:]
    if transposed:
        y = _transposed(g, x, w, stride, padding, dilation, out, groups)
        return y if b is None else ar.binary(g, "add", y, g.reshape(b, (1, b.shape[0]) + (1,) * n))
    window = _positions(w)
    x = _padded(g, x, padding, Filled(0, ()))
    total: Value = Filled(0, ())
    for at in window:
        seen = _channels(g, _window(g, x, at, stride, dilation, out), groups)
        part = _weight_at(g, w, at)
        part = ar.transposed(g, g.reshape(part, (groups, part.shape[0] // groups, part.shape[1])))
        total = ar.binary(g, "add", total, ar.matmul(g, seen, part))
    y = _back(g, total, out)
    return y if b is None else ar.binary(g, "add", y, g.reshape(b, (1, b.shape[0]) + (1,) * n))


def _transposed(g: Graph, x: Value, w: Value, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], out: Sequence[int], groups: int) -> Value:
    """The transpose of a convolution as a function of its operand: each element goes to all that its window sees."""
    rows = _channels(g, x, groups)  # [N, groups, positions, in / groups]
    size = [n + 2 * p for n, p in zip(out, padding)]
    total: Value = Filled(0, ())
    for at in _positions(w):
        part = _weight_at(g, w, at)
        part = g.reshape(part, (groups, part.shape[0] // groups, part.shape[1]))
        total = ar.binary(g, "add", total, _spread(g, _back(g, ar.matmul(g, rows, part), x.shape[2:]), at, stride, dilation, size))
    for i, p in enumerate(padding):
        total = g.slice(total, 2 + i, p, p + out[i])
    return total


def _transposed_backward(g: Graph, grad: Value, x: Value, w: Value, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
                         mask: list[bool]) -> list[Value | None]:
    padded = _padded(g, grad, padding, Filled(0, ()))
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
            product = ar.reduce(g, "sum", ar.matmul(g, ar.transposed(g, rows), seen), [0])  # [groups, in / groups, out / groups]
            dw.append(g.reshape(product, (w.shape[0], w.shape[1], 1)))
    return [*([_back(g, dx, x.shape[2:])] if mask[0] else []), *([g.reshape(g.cat(dw, 2), w.shape)] if mask[1] else [])]


@line("convolution_backward")
def convolution_backward(call: Any, g: Graph, grad: Value, x: Value, w: Value, bias: Any, stride: list[int], padding: list[int], dilation: list[int], transposed: bool,
                         output_padding: list[int], groups: int, mask: list[bool]) -> list[Value | None]:
    n = len(w.shape) - 2
    stride, padding, dilation = _each(stride, n), _each(padding, n), _each(dilation, n)
    if transposed:
        return [*_transposed_backward(g, grad, x, w, stride, padding, dilation, groups, mask), *([ar.reduce(g, "sum", grad, [0, *range(2, n + 2)])] if mask[2] else [])]
    window = _positions(w)
    out = grad.shape[2:]
    padded = _padded(g, x, padding, Filled(0, ()))
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
            product = ar.reduce(g, "sum", ar.matmul(g, ar.transposed(g, rows), seen), [0])  # [groups, out / groups, in / groups]
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
    result = []
    for i, x in enumerate(parts):
        first: Value = Filled(1, ())
        for j, y in enumerate(parts):
            if j < i:
                first = ar.binary(g, "mul", first, ar.step(g, ar.binary(g, "sub", x, y)))
            elif j > i:
                first = ar.binary(g, "mul", first, ar.binary(g, "sub", 1, ar.step(g, ar.binary(g, "sub", y, x))))
        result.append(first)
    return result


def _pool(x: Value, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool) -> tuple[list[int], ...]:
    require(not ceil, "pooling with ceil_mode")
    k = _each(kernel, 2)
    result = k, _each(stride, 2) if stride else k, _each(padding or [0], 2), _each(dilation or [1], 2)
    require(k[0] * k[1] <= 16, "pooling over more than 16 positions")
    require(result[2] == [0, 0] or result[3] == [1, 1], "pooling with padding and dilation")
    return result


def _replicated(g: Graph, x: Value, pads: Sequence[int]) -> Value:
    """With the elements at the border again on both sides. A window of a maximum that reaches so far has the border, too (ATen: the padding is at most half of the window), so that its maximum is
    that without the padding, and the first place of it that of the same element."""
    for i, n in enumerate(pads):
        dim = len(x.shape) - len(pads) + i
        if n:
            def border(at: int) -> Value:
                return g.expand(g.slice(x, dim, at, at + 1), x.shape[:dim] + (n,) + x.shape[dim + 1:])  # noqa: B023  called at once

            x = g.cat([border(0), x, border(x.shape[dim] - 1)], dim)
    return x


def _unreplicated(g: Graph, grad: Value, pads: Sequence[int]) -> Value:
    """The transpose of _replicated."""
    for i, n in reversed(list(enumerate(pads))):
        dim = len(grad.shape) - len(pads) + i
        if n:
            size = grad.shape[dim]
            first, last = (ar.reduce(g, "sum", g.slice(grad, dim, a, b), [dim], True) for a, b in ((0, n + 1), (size - n - 1, size)))
            if size == 2 * n + 1:
                grad = ar.reduce(g, "sum", grad, [dim], True)
            else:
                grad = g.cat([first, *([g.slice(grad, dim, n + 1, size - n - 1)] if size > 2 * n + 2 else []), last], dim)
    return grad


@line("max_pool2d_with_indices")
def max_pool(call: Any, g: Graph, x: Value, kernel: list[int], stride: list[int] = [], padding: list[int] = [0], dilation: list[int] = [1],  # noqa: B006  ATen's own defaults
             ceil: bool = False) -> list[Value | None]:
    k, s, p, d = _pool(x, kernel, stride, padding, dilation, ceil)
    x = _replicated(g, x, p)
    out = call.shape()[-2:]
    parts = [_window(g, x, at, s, d, out) for at in itertools.product(range(k[0]), range(k[1]))]
    stacked = g.cat([g.reshape(v, v.shape + (1,)) for v in parts], len(x.shape))
    return [ar.reduce(g, "amax", stacked, [-1]), None]


@line("max_pool2d_with_indices_backward", selective=True)
def max_pool_backward(call: Any, g: Graph, grad: Value, x: Value, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool, indices: Value) -> Value:
    """The gradient goes to the first of the largest elements of a window, in row-major order."""
    ar.check(grad, x)
    k, s, p, d = _pool(x, kernel, stride, padding, dilation, ceil)
    x = _replicated(g, x, p)
    positions = list(itertools.product(range(k[0]), range(k[1])))
    where = _first_largest(g, [_window(g, x, at, s, d, grad.shape[-2:]) for at in positions])
    total: Value = Filled(0, ())
    for at, m in zip(positions, where):
        total = ar.binary(g, "add", total, _spread(g, ar.binary(g, "mul", grad, m), at, s, d, x.shape[-2:]))
    return _unreplicated(g, total, p)


def _divisor(k: Sequence[int], s: Sequence[int], p: Sequence[int], size: Sequence[int], include_pad: bool, divisor: Any) -> Value | int:
    """By what the sum over a window is divided: by so many positions for all, or by those within the image."""
    if divisor or include_pad or not any(p):
        return int(divisor or k[0] * k[1])
    ones = torch.ones(1, 1, *size, dtype=torch.float64)
    return Known((torch.nn.functional.avg_pool2d(ones, k, s, p) * (k[0] * k[1])).round()[0, 0])


@line("avg_pool2d")
def avg_pool(call: Any, g: Graph, x: Value, kernel: list[int], stride: list[int] = [], padding: list[int] = [0], ceil: bool = False,  # noqa: B006  ATen's own defaults
             include_pad: bool = True, divisor: Any = None) -> Value:
    k, s, p, d = _pool(x, kernel, stride, padding, [1], ceil)
    padded = _padded(g, x, p, Filled(0, ()))
    total: Value = Filled(0, ())
    for at in itertools.product(range(k[0]), range(k[1])):
        total = ar.binary(g, "add", total, _window(g, padded, at, s, d, call.shape()[-2:]))
    return ar.binary(g, "div", total, _divisor(k, s, p, x.shape[-2:], include_pad, divisor))


@line("avg_pool2d_backward")
def avg_pool_backward(call: Any, g: Graph, grad: Value, x: Value, kernel: list[int], stride: list[int], padding: list[int], ceil: bool, include_pad: bool, divisor: Any) -> Value:
    k, s, p, d = _pool(x, kernel, stride, padding, [1], ceil)
    grad = ar.binary(g, "div", grad, _divisor(k, s, p, x.shape[-2:], include_pad, divisor))
    total: Value = Filled(0, ())
    for at in itertools.product(range(k[0]), range(k[1])):
        total = ar.binary(g, "add", total, _spread(g, grad, at, s, d, [n + 2 * q for n, q in zip(x.shape[-2:], p)]))
    for i, (n, q) in enumerate(zip(x.shape[-2:], p)):
        total = g.slice(total, len(total.shape) - 2 + i, q, q + n)
    return total


def _adaptive(n: int, out: int) -> Known:
    """The matrix [out, n] of means: position i of the result is the mean from floor(i n / out) up to ceil((i + 1) n / out) (ATen's AdaptiveAveragePooling)."""
    m = torch.zeros(out, n, dtype=torch.float64)
    for i in range(out):
        low, high = i * n // out, -(-(i + 1) * n // out)
        m[i, low:high] = 1 / (high - low)
    return Known(m)


@line("_adaptive_avg_pool2d", "adaptive_avg_pool2d")
def adaptive_avg_pool(call: Any, g: Graph, x: Value, size: list[int]) -> Value:
    """Where the sizes divide the means of equal pieces, else products with matrices of means from both sides."""
    lead, (h, w), (a, b) = x.shape[:-2], x.shape[-2:], call.shape()[-2:]
    if h % a == 0 and w % b == 0:
        n = len(lead)
        return ar.reduce(g, "mean", g.reshape(x, (*lead, a, h // a, b, w // b)), [n + 1, n + 3])
    g.both_have_values(x)
    return ar.matmul(g, _adaptive(h, a), ar.matmul(g, x, ar.transposed(g, _adaptive(w, b))))


@line("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool_backward(call: Any, g: Graph, grad: Value, x: Value) -> Value:
    lead, (h, w), (a, b) = x.shape[:-2], x.shape[-2:], grad.shape[-2:]
    if h % a == 0 and w % b == 0:
        spread = g.expand(g.reshape(grad, (*lead, a, 1, b, 1)), (*lead, a, h // a, b, w // b))
        return ar.binary(g, "div", g.reshape(spread, x.shape), (h // a) * (w // b))
    return ar.matmul(g, ar.transposed(g, _adaptive(h, a)), ar.matmul(g, grad, _adaptive(w, b)))


# ---- resampling: along each dimension by itself ----
def _weights(operator: str, dims: int, n: int, m: int, align: tuple[bool, ...], scale: float | None) -> Value:
    """[n, m]: what ATen's operator makes of n elements in a row, of each that is 1 alone. Operators of other dimensions round otherwise."""
    one = torch.eye(n, dtype=torch.float64).reshape(1, n, n, *[1] * (dims - 1))
    made = getattr(torch.ops.aten, operator).default(one, [m] + [1] * (dims - 1), *align, scale, *[None] * (dims - 1))
    return Known(made.reshape(n, m))


def _resampled(g: Graph, x: Value, operator: str, sizes: Sequence[int], to: Sequence[int], align: tuple[bool, ...], scales: Sequence[Any], backward: bool) -> Value:
    """sizes: of the image, before; to: after. backward: from `to` to `sizes` by the transpose."""
    lead = len(x.shape) - len(to)
    for i, (n, m) in enumerate(zip(sizes, to)):
        w = _weights(operator, len(to), int(n), int(m), align, scales[i] if i < len(scales) else None)
        order = [d for d in range(len(x.shape)) if d != lead + i] + [lead + i]
        moved = ar.matmul(g, g.permute(x, order), ar.transposed(g, w) if backward else w)
        x = g.permute(moved, [order.index(d) for d in range(len(order))])
    return x


def _resampling(name: str, aligns: bool) -> None:
    @line(name)
    def forward(call: Any, g: Graph, x: Value, size: list[int], *rest: Any) -> Value:
        g.both_have_values(x)
        return _resampled(g, x, name, x.shape[2:], size, tuple(bool(a) for a in rest[:aligns]), rest[aligns:], False)

    @line(f"{name}_backward")
    def backward(call: Any, g: Graph, grad: Value, size: list[int], before: list[int], *rest: Any) -> Value:
        return _resampled(g, grad, name, before[2:], size, tuple(bool(a) for a in rest[:aligns]), rest[aligns:], True)


for _n in (1, 2, 3):
    _resampling(f"upsample_nearest{_n}d", False)
    _resampling(f"_upsample_nearest_exact{_n}d", False)
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"):
    _resampling(_name, True)
