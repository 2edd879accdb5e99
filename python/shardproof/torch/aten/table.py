# SPDX-License-Identifier: Apache-2.0
"""Lowerings of ATen's operators, and which operators need none.

A lowering is a function of (call, graph, the operator's arguments with tensors as values). It
returns the result's value or a list of them, and raises Unsupported for what it does not translate.
In-place operators, `out=` and `_foreach_` use the lowering of the out-of-place operator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from ..compat.sync_batch_norm import batch_norm, batch_norm_backward
from ..terms.graph import Graph
from ..terms.values import Filled, Unsupported, Value

Lowering = Callable[..., Any]
F = TypeVar("F", bound=Lowering)
LOWERINGS: dict[str, Lowering] = {}

RANDOM = frozenset(
    "aten." + name
    for name in (
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "randint",
        "randint_like",
        "randperm",
        "normal",
        "normal_",
        "uniform",
        "uniform_",
        "bernoulli",
        "bernoulli_",
        "exponential",
        "exponential_",
        "random",
        "random_",
        "log_normal_",
        "cauchy_",
        "geometric_",
        "multinomial",
        "native_dropout",
        "normal_functional",
    )
)
UNDEFINED = frozenset(
    f"{space}.{name}"
    for space in ("aten", "prims")
    for name in (
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "resize",
        "resize_",
        "_resize_output_",
    )
)
NOT_FOLDED = (
    RANDOM
    | UNDEFINED
    | {
        "aten._fused_adamw_",
        "aten._fused_adam_",
        "aten._fused_sgd_",
        "aten._fused_adagrad_",
        "aten.copy_",
        "aten.clone",
        "aten._foreach_copy_",
    }
)


# Operators that choose by integers: which operand these are, and among how many. Where nothing is
# known of the integers but where they come from, that is their range.
CHOOSING: dict[str, tuple[int, Callable[[Any], int]]] = {
    "aten.embedding": (1, lambda values: values[0].shape[0]),
    "aten.nll_loss_forward": (1, lambda values: values[0].shape[-1]),
    "aten.gather": (2, lambda values: values[0].shape[values[1]]),
    "aten.index_select": (2, lambda values: values[0].shape[values[1]]),
}


# Operators without a line on matrices, each by itself, in whatever dimensions are in front: how
# many dimensions of each tensor are not these. Of operands and of results.
_OF_MATRICES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    f"aten.{name}": inner
    for name, inner in {
        "linalg_lu": ((2,), (2, 2, 2)),
        "lu_unpack": ((2, 1), (2, 2, 2)),
        "_linalg_eigh": ((2,), (1, 2)),
        "_linalg_svd": ((2,), (2, 1, 2)),
        "linalg_qr": ((2,), (2, 2)),
        "geqrf": ((2,), (2, 1)),
        "linalg_householder_product": ((2, 1), (2,)),
        "ormqr": ((2, 1, 2), (2,)),
        "linalg_matrix_exp": ((2,), (2,)),
        "linalg_pinv": ((2,), (2,)),
        "linalg_ldl_factor_ex": ((2,), (2, 1, 0)),
    }.items()
}


def inner_dimensions(
    name: str, operands: Sequence[Sequence[int]], results: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The number of dimensions of one matrix, for each operand and each result of an operator on
    matrices.

    None for another operator.
    """
    found = _OF_MATRICES.get(name)
    if found is None or len(found[0]) != len(operands) or len(found[1]) < results:
        return None
    return found[0], found[1][:results]


def lowering(*names: str, selective: bool = False) -> Callable[[F], F]:
    """Enters a function for operators `aten.NAME`.

    selective: it handles poisoned operands itself.
    """

    def enter(f: F) -> F:
        f.reads_selectively = selective  # type: ignore[attr-defined]
        for name in names:
            LOWERINGS[name if "." in name else f"aten.{name}"] = f
        return f

    return enter


def lookup(name: str, overload: str) -> Lowering | None:
    """The line for an operator, or None."""
    if name in LOWERINGS:
        return LOWERINGS[name]
    if name.startswith("aten._foreach_"):
        plain = "aten." + name[len("aten._foreach_") :].rstrip("_")
        plain = {"aten.norm": "aten.linalg_vector_norm"}.get(plain, plain)
        return _each(LOWERINGS[plain]) if plain in LOWERINGS else None
    if name.endswith("_") and name[:-1] in LOWERINGS:
        return LOWERINGS[name[:-1]]
    return None


@functools.cache
def _each(f: Lowering) -> Lowering:
    def each(call: Any, g: Graph, *args: Any, **kwargs: Any) -> list[Value]:
        count = max(len(a) for a in (*args, *kwargs.values()) if isinstance(a, list))
        results = []
        for i in range(count):
            results.append(
                f(
                    call.of_result(i),
                    g,
                    *[a[i] if isinstance(a, list) else a for a in args],
                    **{k: a[i] if isinstance(a, list) else a for k, a in kwargs.items()},
                )
            )
        return results

    each.__wrapped__ = f  # type: ignore[attr-defined]
    return each


@functools.lru_cache(maxsize=1)
def _decompositions() -> dict[Any, Any]:
    from torch._decomp import global_decomposition_table

    ours = {
        torch.ops.aten.native_batch_norm.default: batch_norm,
        torch.ops.aten.native_batch_norm_backward.default: batch_norm_backward,
    }
    return {**global_decomposition_table["post_autograd"], **ours}


def decomposition(func: Any) -> Any:
    """ATen's own decomposition; None where there is none, or its parts are the operator itself."""
    return _decompositions().get(func)


def is_elementwise(func: Any) -> bool:
    """Whether ATen tags the operator as elementwise.

    `prims` have names of their own (erf_inv for erfinv), and most of them have no tag.
    """
    name = func._opname
    names = (
        [
            name,
            name.replace("_", ""),
            name.removeprefix("bessel_"),
            f"special_{name}",
            f"special_{name.removeprefix('bessel_')}",
        ]
        if func.namespace == "prims"
        else []
    )
    named = [func, *(getattr(torch.ops.aten, n, None) for n in names)]
    overloads = [
        o
        for f in named
        if f is not None
        for o in ([f] if hasattr(f, "tags") else [getattr(f, n) for n in f.overloads()])
    ]
    return any(torch.Tag.pointwise in o.tags for o in overloads)


def scalar(x: Any) -> Any:
    """A number that ATen passed as a number or as a tensor of one known element."""
    if isinstance(x, Filled):
        return x.fill
    if isinstance(x, Value):
        raise Unsupported("a number that depends on data")
    return x


def require(condition: bool, text: str) -> None:
    """Raises Unsupported unless the condition holds."""
    if not condition:
        raise Unsupported(text)


__all__ = [
    "LOWERINGS",
    "NOT_FOLDED",
    "RANDOM",
    "UNDEFINED",
    "decomposition",
    "lowering",
    "lookup",
    "require",
    "scalar",
    "torch",
]
