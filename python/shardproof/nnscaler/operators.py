# SPDX-License-Identifier: Apache-2.0
"""nnScaler's operators in terms of ours.

Each operator lists the keywords that it may have: those that become attributes of ours, and those
that must have one value, as another one would change what the operator computes. An operator or a
keyword that is not listed is an error.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..inert_pickle import Inert
from .graph import PlanError, integers, is_tensor

_ANY = object()  # a keyword without effect on values


class _Operator(NamedTuple):
    """name: ours. attributes: keywords that are attributes. fixed: keywords with the only value
    that is supported. scalar: may the last operand be a number?"""

    name: str
    attributes: tuple[str, ...] = ()
    fixed: dict[str, Any] = {}
    scalar: bool = False


_OPERATORS = {
    "add": _Operator("add", fixed={"alpha": 1}, scalar=True),
    "apply_mask": _Operator("apply_mask"),
    "apply_rotary_emb": _Operator("apply_rotary_emb"),
    "contiguous": _Operator("contiguous"),
    "create_mask": _Operator("create_mask"),
    "div": _Operator("div", fixed={"rounding_mode": None}, scalar=True),
    "embedding": _Operator("embedding", ("start", "stop"), {"padding_idx": None}),
    "float": _Operator("float"),
    "gate_fw": _Operator(
        "moe_gate",
        ("score_func", "n_groups", "topk_groups", "topk", "route_scale"),
        {"bias": None},
    ),
    "gelu": _Operator("gelu", fixed={"approximate": "none"}),
    "identity": _Operator("identity"),
    "linear": _Operator("linear", fixed={"bias": None}),
    "matmul": _Operator("matmul"),
    "mean": _Operator("mean", ("dim", "keepdim"), {"dtype": None}),
    "mul": _Operator("mul", scalar=True),
    "multiref": _Operator("multiref", fixed={"times": _ANY}),
    "nnscaler_moe_gmm": _Operator(
        "moe_experts", ("n_routed_experts", "local_expert_start", "local_expert_end")
    ),
    "pow": _Operator("pow", scalar=True),
    "relu": _Operator("relu", fixed={"inplace": False}),
    "rsqrt": _Operator("rsqrt"),
    "silu": _Operator("silu", fixed={"inplace": False}),
    "softmax": _Operator("softmax", ("dim",), {"_stacklevel": _ANY, "dtype": None}),
    "sub": _Operator("sub", fixed={"alpha": 1}, scalar=True),
    "sum": _Operator("sum", ("dim", "keepdim"), {"dtype": None}),
    "to": _Operator("to", fixed={"dtype_or_device": _ANY}),
    "transpose": _Operator("transpose", ("dim0", "dim1")),
    "view": _Operator("view", ("size",)),
}
_KNOWN_MODULES = ("torch.", "nnscaler.runtime.function.")
# Functions of models, known by their names only.
_CUSTOM = ("apply_mask", "apply_rotary_emb", "create_mask", "gate_fw", "nnscaler_moe_gmm")


def translated(cell: Inert) -> tuple[str, dict[str, Any]]:
    """Our operator and its attributes, of a forward operator (`IRDimops`).

    Raises PlanError where it is not supported.
    """
    name = cell.get("name")
    place = f"operator {name} (cell {cell.get('_id')})"
    operator = _OPERATORS.get(name) if isinstance(name, str) else None
    if operator is None:
        raise PlanError(f"{place} is not supported; supported: {', '.join(sorted(_OPERATORS))}")
    # A function of the user's may have the name of one of PyTorch's.
    signature = cell.get("signature")
    if name not in _CUSTOM and not str(signature).startswith(_KNOWN_MODULES):
        raise PlanError(f"{place} is {signature}, which is not supported")
    attributes: dict[str, Any] = {}
    for key, value in (cell.get("_kwargs") or {}).items():
        if key in operator.attributes:
            if value is not None:
                attributes[key] = _plain(value, f"{place}: {key}")
        elif key not in operator.fixed:
            raise PlanError(f"{place} has the keyword {key}, which is not supported")
        elif operator.fixed[key] is not _ANY and (
            operator.fixed[key] != value or type(operator.fixed[key]) is not type(value)
        ):
            raise PlanError(f"{place}: {key} is {value!r}, supported is {operator.fixed[key]!r}")
    operands = cell.get("_inputs") or ()
    for i, operand in enumerate(operands):
        if is_tensor(operand):
            continue
        last = i == len(operands) - 1 and i > 0
        if not operator.scalar or not last or not isinstance(operand, (int, float)):
            raise PlanError(f"{place}: operand {i} is no tensor")
        attributes["scalar"] = operand
    if attributes.get("dim") is not None and operator.name in ("mean", "sum"):
        dims = attributes["dim"]
        attributes["dim"] = dims if isinstance(dims, list) else [dims]
    return operator.name, attributes


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, (list, tuple)):
        return integers(value)
    if isinstance(value, (bool, int, float, str)):
        return value
    raise PlanError(f"{place} is no number, text or list of integers")


class Fused(NamedTuple):
    """What a fused primitive does in one direction: a communication or an operator of ours, and
    which of its keywords is which of ours."""

    name: str
    keywords: dict[str, str] = {}


_DIM = {"dim": "dim"}
# all_to_all(idim, odim) splits its operand along odim and joins the pieces along idim. Ours has the
# names the other way round.
_THERE, _BACK = {"odim": "idim", "idim": "odim"}, {"idim": "idim", "odim": "odim"}
_REDUCE, _GATHER, _SCATTER = (
    Fused("all_reduce"),
    Fused("all_gather", _DIM),
    Fused("reduce_scatter", _DIM),
)
_CHUNK, _SAME = Fused("chunk", _DIM), Fused("identity")
# Primitive: forward, backward. Those with autograd functions (fused) have both directions.
FUSED = {
    "AllReduceIdentityPrim": (_REDUCE, _SAME),
    "IdentityAllreducePrim": (_SAME, _REDUCE),
    "AllReduceAllReducePrim": (_REDUCE, _REDUCE),
    "AllGatherSplitPrim": (_GATHER, _CHUNK),
    "SplitAllGatherPrim": (_CHUNK, _GATHER),
    "AllGatherReduceScatterPrim": (_GATHER, _SCATTER),
    "ReduceScatterAllGatherPrim": (_SCATTER, _GATHER),
    "AllToAllAllToAllPrim": (Fused("all_to_all", _THERE), Fused("all_to_all", _BACK)),
}
PLAIN = {
    "AllReducePrim": _REDUCE,
    "AllGatherPrim": _GATHER,
    "ReduceScatterPrim": _SCATTER,
    "AllToAllPrim": Fused("all_to_all", _THERE),
    "ChunkPrim": _CHUNK,
    "IdentityPrim": _SAME,
    "MergeDimPrim": Fused("cat", _DIM),
}
