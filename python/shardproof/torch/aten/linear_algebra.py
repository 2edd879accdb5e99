# SPDX-License-Identifier: Apache-2.0
"""Factorizations and inverses.

They are opaque functions of each matrix, whatever dimensions are in front. What is linear in
another operand (a right-hand side, a gradient) is a product with their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms import assumptions
from ..terms.graph import Graph
from ..terms.values import Filled, Named, Shape, Value
from .layout import triangle
from .table import lowering, require


def _of_matrices(
    call: Any,
    g: Graph,
    function: str,
    operands: Sequence[Value],
    results: Sequence[tuple[Shape, torch.dtype]],
    inner: int = 2,
) -> list[Value]:
    """An opaque function of matrices; inner: of how many dimensions of the first operand."""
    recorder = call.recorder
    outs = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in results]
    made = recorder.opaque.call(
        function,
        call.name,
        recorder.modules[-1] if recorder.modules else "",
        operands,
        outs,
        len(operands[0].shape) - inner,
    )
    return [v for v in made if v is not None]


def _inverse(call: Any, g: Graph, function: str, *operands: Value) -> Value:
    g.assume(assumptions.FACTORIZATIONS)
    a = operands[0]
    return _of_matrices(
        call, g, function, operands, [((*a.shape[:-2], a.shape[-1], a.shape[-2]), torch.float32)]
    )[0]


def inverse(call: Any, g: Graph, a: Value) -> Value:
    return _inverse(call, g, "the inverse of a matrix", a)


def _factors(call: Any, g: Graph, a: Value) -> list[Value]:
    """The factors of a matrix (LU) and its row permutation, for systems of equations."""
    g.assume(assumptions.FACTORIZATIONS)
    lu, pivots = _of_matrices(
        call,
        g,
        "the LU factors of a matrix",
        [a],
        [(a.shape, torch.float32), ((*a.shape[:-2], min(a.shape[-2:])), torch.int32)],
    )
    assert isinstance(lu, Named)
    call.recorder.opaque.factors[lu.name] = a
    return [lu, pivots]


def _info(call: Any, g: Graph) -> Value:
    g.assume(assumptions.FACTORIZATIONS)
    return Filled(0, call.shape(len(call.outs) - 1), "int")


def _product(g: Graph, m: Value, b: Value, left: bool, vectors: bool = False) -> Value:
    """m b or b m; vectors: b is a vector for each matrix."""
    if vectors:
        x = ar.matmul(g, m, g.reshape(b, (*b.shape, 1)))
        return g.reshape(x, x.shape[:-1])
    return ar.matmul(g, m, b) if left else ar.matmul(g, b, m)


@lowering("linalg_inv_ex")
def invert(call: Any, g: Graph, a: Value, *, check_errors: bool = False) -> list[Value]:
    return [inverse(call, g, a), _info(call, g)]


@lowering("_linalg_solve_ex")
def solve(
    call: Any, g: Graph, a: Value, b: Value, *, left: bool = True, check_errors: bool = False
) -> list[Value]:
    vectors = len(b.shape) == 1 or b.shape == a.shape[:-1]
    return [
        _product(g, inverse(call, g, a), b, left, vectors),
        *_factors(call, g, a),
        _info(call, g),
    ]


@lowering("linalg_lu_factor_ex")
def lu_factor(
    call: Any, g: Graph, a: Value, *, pivot: bool = True, check_errors: bool = False
) -> list[Value]:
    require(pivot, "factors without an exchange of rows")
    return [*_factors(call, g, a), _info(call, g)]


@lowering("linalg_lu_solve")
def lu_solve(
    call: Any,
    g: Graph,
    lu: Value,
    pivots: Value,
    b: Value,
    *,
    left: bool = True,
    adjoint: bool = False,
) -> Value:
    a = call.recorder.opaque.factors.get((lu.base or lu).name) if isinstance(lu, Named) else None
    m = (
        inverse(call, g, a)
        if a is not None and a.shape == lu.shape
        else _inverse(call, g, "the inverse of the matrix with these LU factors", lu, pivots)
    )
    return _product(g, ar.transposed(g, m) if adjoint else m, b, left)


def _determinant(signs: bool) -> Any:
    def f(call: Any, g: Graph, a: Value) -> list[Value]:
        """The factors are those of the transpose where the matrices are row-major."""
        scalars = [(a.shape[:-2], torch.float32)] * (2 if signs else 1)
        return [
            *_of_matrices(
                call,
                g,
                "the sign and the logarithm of the determinant" if signs else "the determinant",
                [a],
                scalars,
            ),
            *_factors(call, g, ar.transposed(g, a) if call.given[0].is_contiguous() else a),
        ]

    return f


lowering("_linalg_det")(_determinant(False))
lowering("_linalg_slogdet")(_determinant(True))


@lowering("linalg_cholesky_ex")
def cholesky(
    call: Any, g: Graph, a: Value, *, upper: bool = False, check_errors: bool = False
) -> list[Value]:
    factor = _of_matrices(
        call, g, "the Cholesky factor of a matrix", [a], [(a.shape, torch.float32)]
    )[0]
    return [ar.transposed(g, factor) if upper else factor, _info(call, g)]


@lowering("linalg_solve_triangular")
def solve_triangular(
    call: Any,
    g: Graph,
    a: Value,
    b: Value,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Value:
    """Of the other triangle nothing is looked at: the inverse is a function of this one."""
    seen = triangle(g, a, upper, int(unitriangular) * (1 if upper else -1))
    return _product(
        g,
        _inverse(
            call,
            g,
            f"the inverse of the {'upper' if upper else 'lower'} "
            f"triangle{', with ones on the diagonal' if unitriangular else ''}",
            seen,
        ),
        b,
        left,
    )


@lowering("cholesky_solve")
def cholesky_solve(call: Any, g: Graph, b: Value, factor: Value, upper: bool = False) -> Value:
    return _product(g, _of_factor(call, g, factor, upper), b, True)


@lowering("cholesky_inverse")
def cholesky_inverse(call: Any, g: Graph, factor: Value, upper: bool = False) -> Value:
    return _of_factor(call, g, factor, upper)


def _of_factor(call: Any, g: Graph, factor: Value, upper: bool) -> Value:
    return _inverse(
        call,
        g,
        "the inverse of the matrix with this Cholesky factor",
        ar.transposed(g, factor) if upper else factor,
    )
