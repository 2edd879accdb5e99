# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms, as products with matrices of cosines and sines along each dimension."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import torch

from ..terms import arithmetic as ar
from ..terms.graph import Graph
from ..terms.values import Complex, Filled, Known, Value
from .table import lowering, require

MOST = 1024  # numbers along a dimension


@functools.lru_cache(maxsize=64)
def _waves(n: int, backward: bool) -> tuple[Known, Known]:
    """[n, n]: real and imaginary parts of exp(-+ 2 pi i j k / n).

    Those that are 0 or 1 are exact.
    """
    turns = (torch.arange(n)[:, None] * torch.arange(n)[None]).remainder(n)
    angle = turns.double() * (2 * math.pi / n)
    real, imag = angle.cos(), angle.sin() * (1 if backward else -1)
    return tuple(
        Known(torch.where((m - m.round()).abs() < 1e-12, m.round(), m)) for m in (real, imag)
    )  # type: ignore[return-value]


def _transform(g: Graph, x: Complex, dim: int, backward: bool) -> Complex:
    n = x.shape[dim]
    require(n <= MOST, f"a Fourier transform of more than {MOST} numbers")
    g.definedness.both_have_values(x.real, x.imag)
    c, s = _waves(n, backward)
    (rc, ic), (rs, js) = (tuple(ar.along(g, v, dim, w) for v in (x.real, x.imag)) for w in (c, s))
    return Complex(ar.binary(g, "sub", rc, js), ar.binary(g, "add", rs, ic))


def _complex(x: Value) -> Complex:
    return x if isinstance(x, Complex) else Complex(x, Filled(0, x.shape))


def _scaled(g: Graph, x: Value, count: int, normalization: int) -> Value:
    """normalization: none, by the root of the count, by the count."""
    return (
        ar.binary(g, "mul", x, (1, 1 / math.sqrt(count), 1 / count)[normalization])
        if normalization
        else x
    )


def _count(shape: Sequence[int], dims: Sequence[int]) -> int:
    return math.prod(shape[d] for d in dims)


@lowering("_fft_c2c")
def complex_to_complex(
    call: Any, g: Graph, x: Value, dims: list[int], normalization: int, forward: bool
) -> Value:
    made = _complex(x)
    for d in dims:
        made = _transform(g, made, d % len(x.shape), not forward)
    return _scaled(g, made, _count(x.shape, dims), normalization)


@lowering("_fft_r2c")
def real_to_complex(
    call: Any, g: Graph, x: Value, dims: list[int], normalization: int, onesided: bool
) -> Value:
    made = _complex(x)
    for d in reversed(dims):
        made = _transform(g, made, d % len(x.shape), False)
        if onesided and d == dims[-1]:
            made = cast("Complex", g.slice(made, d % len(x.shape), 0, x.shape[d] // 2 + 1))
    return _scaled(g, made, _count(x.shape, dims), normalization)


@lowering("_fft_c2r")
def complex_to_real(
    call: Any, g: Graph, x: Value, dims: list[int], normalization: int, last: int
) -> Value:
    """The numbers that are not given are those that make the result real.

    Each of the others counts twice, but for the first and, of an even number, the last.
    """
    made, at = _complex(x), dims[-1] % len(x.shape)
    for d in dims[:-1]:
        made = _transform(g, made, d % len(x.shape), True)
    n, m = int(last), int(last) // 2 + 1
    require(
        m <= x.shape[at] and n <= MOST,
        "a Fourier transform of fewer numbers than there are, or of many",
    )
    g.definedness.both_have_values(made.real, made.imag)
    counts = torch.full((m, 1), 2.0, dtype=torch.float64)
    counts[0] = 1
    if n % 2 == 0:
        counts[-1] = 1
    c, s = (Known(w.data[:m] * counts) for w in _waves(n, True))
    parts = [ar.along(g, g.slice(v, at, 0, m), at, w) for v, w in ((made.real, c), (made.imag, s))]
    return _scaled(
        g, ar.binary(g, "sub", parts[0], parts[1]), _count(call.shape(), dims), normalization
    )
