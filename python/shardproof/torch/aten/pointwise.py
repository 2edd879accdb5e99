# SPDX-License-Identifier: Apache-2.0
"""Arithmetic, comparisons and elementwise functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms import assumptions, indicators, tables
from ..terms.dataflow import ancestors
from ..terms.graph import Graph
from ..terms.labels import bounded, note
from ..terms.selection import as_numbers, at_least, choose, complement, greater
from ..terms.signs import never_negative
from ..terms.values import (
    Complex,
    Filled,
    Hidden,
    Known,
    Named,
    Replaced,
    Table,
    Unsupported,
    Value,
)
from .layout import cast
from .table import lowering, require, scalar


@lowering("add")
def add(call: Any, g: Graph, a: Any, b: Any, alpha: Any = 1) -> Value:
    return ar.binary(g, "add", a, b, scalar(alpha))


@lowering("sub", "subtract")
def sub(call: Any, g: Graph, a: Any, b: Any, alpha: Any = 1) -> Value:
    return ar.binary(g, "sub", a, b, scalar(alpha))


@lowering("rsub")
def rsub(call: Any, g: Graph, a: Any, b: Any, alpha: Any = 1) -> Value:
    return ar.binary(g, "sub", b, a, scalar(alpha))


@lowering("mul", "multiply")
def mul(call: Any, g: Graph, a: Any, b: Any) -> Value:
    return ar.binary(g, "mul", a, b)


@lowering("div", "divide", "true_divide")
def div(call: Any, g: Graph, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        rounded: Value = _of_classes(
            lambda x, y: torch.div(x, y, rounding_mode=rounding_mode), _quotient(rounding_mode)
        )(call, g, a, b)
        return rounded
    return ar.binary(g, "div", a, b)


def _of_classes(function: Any, real: Any = None) -> Any:
    """A function of integers that are classes.

    Of anything else it is `real`; None: an opaque function of each element.
    """

    def f(call: Any, g: Graph, a: Any, b: Any) -> Any:
        a, b = ar.lift(a), ar.lift(b)
        t = tables.apply(g, function, [a, b], call.shape())
        if t is not None:
            return tables.constant_table(g, t) or t
        return NotImplemented if real is None else real(g, ar.numbers(g, a), ar.numbers(g, b))

    return f


def _quotient(step: str) -> Any:
    return lambda g, a, b: ar.unary(g, step, ar.binary(g, "div", a, b))


def _rest(step: str) -> Any:
    """What is left of a where it is divided by b and the quotient is cut off."""
    whole = _quotient(step)
    return lambda g, a, b: ar.binary(g, "sub", a, ar.binary(g, "mul", whole(g, a, b), b))


for _name, _real in (
    ("remainder", _rest("floor")),
    ("fmod", _rest("trunc")),
    ("floor_divide", _quotient("floor")),
):
    lowering(_name)(_of_classes(getattr(torch, _name), _real))
for _name in ("left_shift", "right_shift"):
    lowering(f"bitwise_{_name}", f"__{_name[0]}shift__", f"__i{_name[0]}shift__")(
        _of_classes(getattr(torch, f"bitwise_{_name}"))
    )


@lowering("addcmul")
def addcmul(call: Any, g: Graph, x: Any, a: Any, b: Any, value: Any = 1) -> Value:
    return ar.binary(g, "add", x, ar.binary(g, "mul", ar.binary(g, "mul", a, b), scalar(value)))


@lowering("addcdiv")
def addcdiv(call: Any, g: Graph, x: Any, a: Any, b: Any, value: Any = 1) -> Value:
    return ar.binary(g, "add", x, ar.binary(g, "mul", ar.binary(g, "div", a, b), scalar(value)))


@lowering("lerp")
def lerp(call: Any, g: Graph, a: Any, b: Any, weight: Any) -> Value:
    return ar.binary(g, "add", a, ar.binary(g, "mul", ar.binary(g, "sub", b, a), weight))


@lowering("pow")
def power(call: Any, g: Graph, a: Any, exponent: Any) -> Value:
    base, by = ar.lift(a), ar.lift(exponent)
    return (
        g.expand(ar.power(g, base, by.fill), call.shape())
        if isinstance(by, Filled)
        else ar.exponential(g, base, by)
    )


def _plain(name: str) -> Any:
    def f(call: Any, g: Graph, a: Value, **kwargs: Any) -> Value:
        return ar.unary(g, name, a)

    return f


for _name in ("neg", "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "silu", "relu"):
    lowering(_name)(_plain(_name))
for _name in ("sin", "cos", "erf", "floor", "ceil", "trunc"):
    lowering(_name, f"prims.{_name}")(_plain(_name))


@lowering("logaddexp")
def logaddexp(call: Any, g: Graph, a: Value, b: Value) -> Value:
    return ar.unary(g, "log", ar.binary(g, "add", ar.unary(g, "exp", a), ar.unary(g, "exp", b)))


@lowering("round", "prims.round")
def rounded(call: Any, g: Graph, a: Value, *, decimals: int = 0) -> Value:
    if decimals == 0:
        return ar.unary(g, "round", a)
    up, down = ("mul", "div") if decimals > 0 else ("div", "mul")
    return ar.binary(
        g, down, ar.unary(g, "round", ar.binary(g, up, a, 10 ** abs(decimals))), 10 ** abs(decimals)
    )


@lowering("erfc", "prims.erfc")
def erfc(call: Any, g: Graph, a: Value) -> Value:
    return ar.binary(g, "sub", 1, ar.unary(g, "erf", a))


@lowering("_amp_foreach_non_finite_check_and_unscale_")
def unscale(
    call: Any, g: Graph, gradients: list[Value], found: Value, inverse: Value
) -> list[Value]:
    """A gradient scaler's: real numbers are finite."""
    return [
        *[ar.binary(g, "mul", g.definedness.finite(v), g.reshape(inverse, ())) for v in gradients],
        found,
    ]


@lowering("_amp_update_scale_")
def update_scale(
    call: Any,
    g: Graph,
    scale: Value,
    tracker: Value,
    found: Value,
    growth: float,
    backoff: float,
    interval: int,
) -> list[Value]:
    require(
        isinstance(found, Filled) and isinstance(tracker, Filled),
        "a gradient scaler whose state depends on data",
    )
    assert isinstance(found, Filled) and isinstance(tracker, Filled)
    if found.fill:
        return [ar.binary(g, "mul", scale, backoff), Filled(0, tracker.shape, "int")]
    grows = int(tracker.fill) + 1 >= interval
    return [
        ar.binary(g, "mul", scale, growth) if grows else scale,
        Filled(0 if grows else int(tracker.fill) + 1, tracker.shape, "int"),
    ]


@lowering("log1p", "prims.log1p")
def log1p(call: Any, g: Graph, a: Value) -> Value:
    return ar.unary(g, "log", ar.binary(g, "add", a, 1))


@lowering("expm1", "prims.expm1")
def expm1(call: Any, g: Graph, a: Value) -> Value:
    return ar.binary(g, "sub", ar.unary(g, "exp", a), 1)


@lowering("log2")
def log2(call: Any, g: Graph, a: Value) -> Value:
    return ar.binary(g, "div", ar.unary(g, "log", a), math.log(2))


@lowering("exp2")
def exp2(call: Any, g: Graph, a: Value) -> Value:
    return ar.unary(g, "exp", ar.binary(g, "mul", a, math.log(2)))


@lowering("reciprocal")
def reciprocal(call: Any, g: Graph, a: Value) -> Value:
    return ar.reciprocal(g, a)


@lowering("gelu")
def gelu(call: Any, g: Graph, a: Value, approximate: str = "none") -> Value:
    return g.one("gelu", [a], a.shape, {"approximate": approximate})


@lowering("gelu_backward")
def gelu_backward(call: Any, g: Graph, grad: Value, a: Value, approximate: str = "none") -> Value:
    return g.one("gelu_backward", [grad, a], a.shape, {"approximate": approximate})


@lowering("silu_backward")
def silu_backward(call: Any, g: Graph, grad: Value, a: Value) -> Value:
    return g.one("silu_backward", [grad, a], a.shape)


@lowering("tanh_backward")
def tanh_backward(call: Any, g: Graph, grad: Value, y: Value) -> Value:
    return ar.binary(g, "mul", grad, ar.binary(g, "sub", 1, ar.binary(g, "mul", y, y)))


@lowering("sigmoid_backward")
def sigmoid_backward(call: Any, g: Graph, grad: Value, y: Value) -> Value:
    return ar.binary(g, "mul", grad, ar.binary(g, "mul", y, ar.binary(g, "sub", 1, y)))


@lowering("log_sigmoid_forward")
def log_sigmoid(call: Any, g: Graph, a: Value) -> list[Value]:
    """The second result, which only the backward takes, is not followed."""
    return [ar.unary(g, "log", ar.unary(g, "sigmoid", a))]


@lowering("log_sigmoid_backward", selective=True)
def log_sigmoid_backward(call: Any, g: Graph, grad: Value, a: Value, buffer: Value) -> Value:
    ar.check(grad, a)
    return ar.binary(g, "mul", grad, ar.unary(g, "sigmoid", ar.negate(g, a)))


@lowering("logit_backward")
def logit_backward(call: Any, g: Graph, grad: Value, a: Value, eps: Any = None) -> Value:
    """With eps, 0 outside of [eps, 1 - eps].

    Without eps, the result is no number outside of (0, 1), being a logarithm of a negative number.
    """
    slope = ar.binary(g, "div", grad, ar.binary(g, "mul", a, ar.binary(g, "sub", 1, a)))
    if eps is None:
        return slope
    bound = float(scalar(eps))
    return choose(
        g,
        ar.binary(g, "mul", at_least(g, a, bound), at_least(g, 1 - bound, a)),
        slope,
        Filled(0, ()),
        a.shape,
    )


@lowering("rrelu_with_noise", selective=True)
def rrelu(
    call: Any,
    g: Graph,
    a: Value,
    noise: Value,
    lower: Any = 1 / 8,
    upper: Any = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> list[Value | None]:
    """Where it is not trained the slope is the mean; noise is written only where it is."""
    require(not training, "slopes that are drawn")
    ar.check(a)
    result = ar.binary(
        g,
        "sub",
        ar.relu(g, a),
        ar.binary(g, "mul", ar.relu(g, ar.negate(g, a)), (scalar(lower) + scalar(upper)) / 2),
    )
    return [noise, result]


@lowering("threshold_backward")
def threshold_backward(call: Any, g: Graph, grad: Value, a: Value, threshold: Any) -> Value:
    return g.one("relu_backward", [grad, ar.binary(g, "sub", a, scalar(threshold))], a.shape)


@lowering("abs")
def absolute(call: Any, g: Graph, a: Value) -> Value:
    return ar.absolute(g, a)


@lowering("sign", "sgn")
def sign(call: Any, g: Graph, a: Value) -> Value:
    if isinstance(a, Complex):
        length = ar.absolute(g, a)
        parts = [
            ar.one_of(g, ar.step(g, length), ar.binary(g, "div", v, length), Filled(0, ()), a.shape)
            for v in (a.real, a.imag)
        ]
        return Complex(*parts)
    return ar.binary(g, "sub", ar.step(g, a), ar.step(g, ar.negate(g, a)))


@lowering("maximum")
def maximum(call: Any, g: Graph, a: Any, b: Any) -> Value:
    return ar.maximum(g, a, b)


@lowering("minimum")
def minimum(call: Any, g: Graph, a: Any, b: Any) -> Value:
    return ar.minimum(g, a, b)


def _clamp_table(g: Graph, a: Value, low: Any, high: Any) -> Value | None:
    return (
        tables.apply(g, lambda x: torch.clamp(x, low, high), [a], a.shape)
        if isinstance(a, Table) or getattr(a, "kind", "") == "int"
        else None
    )


def _beyond(g: Graph, a: Value, bound: Any, dtype: torch.dtype) -> int:
    """-1 if no finite number of the dtype is below the bound, 1 if none is above it, else 0.

    Libraries clamp to the least number of a dtype so that infinities become finite. The value is
    taken to be finite then, and 0 is the answer where it may not be (masked scores).
    """
    if not isinstance(bound, (int, float)) or not dtype.is_floating_point:
        return 0
    limits = torch.finfo(dtype)
    found = -1 if bound <= limits.min else 1 if bound >= limits.max else 0
    d = g.definedness
    if not found or not isinstance(a, Named) or a.name in d.hiding or a.name in d.closed:
        return 0
    if _of_large_constants(g, a, limits.max / 4):
        return 0
    d.finite(a)
    return found


def _of_large_constants(g: Graph, a: Named, size: float) -> bool:
    """Whether a value is computed of constants with numbers that large, so that it may overflow (a
    mask that is added twice), or of masks.
    """
    for name in {a.name, *ancestors(g, [a.name])}:
        node = g.producer(name)
        if node is None:
            kind = g.tensors[name].get("kind")
            if kind not in ("input", "parameter") or name.startswith(("%const", "%known")):
                return True  # a constant tensor
            continue
        if node["op"] == "apply_mask" or any(
            isinstance(x, (int, float)) and abs(x) >= size for x in node.get("attrs", {}).values()
        ):
            return True
    return False


@lowering("clamp", "clip")
def clamp(call: Any, g: Graph, a: Value, min: Any = None, max: Any = None) -> Value:
    if not isinstance(min, Value) and not isinstance(max, Value):
        if (
            isinstance(a, Replaced)
            and a.zeros
            and torch.tensor(a.other).clamp(min, max) == torch.tensor(0).clamp(min, max)
        ):
            a = a.source
        if isinstance(a, Replaced) and not isinstance(min, float) and not isinstance(max, float):
            source = clamp(call, g, a.source, min, max)
            if getattr(source, "kind", "") == "int":
                return Replaced(source, a.keep, int(torch.tensor(a.other).clamp(min, max)))
        t = _clamp_table(g, a, min, max)
        if t is not None:
            return t
    require(min != math.inf and max != -math.inf, "clamp to an infinity")
    low, high = (_beyond(g, a, bound, call.given[0].dtype) for bound in (min, max))
    min, max = None if low < 0 else min, None if high > 0 else max
    if min is not None and not (isinstance(min, (int, float)) and math.isinf(min)):
        a = ar.maximum(g, a, min)
    if max is not None and not (isinstance(max, (int, float)) and math.isinf(max)):
        a = ar.minimum(g, a, max)
    return a


@lowering("clamp_min")
def clamp_min(call: Any, g: Graph, a: Value, min: Any) -> Value:
    return clamp(call, g, a, min, None)


@lowering("clamp_max")
def clamp_max(call: Any, g: Graph, a: Value, max: Any) -> Value:
    return clamp(call, g, a, None, max)


@lowering("hardtanh")
def hardtanh(call: Any, g: Graph, a: Value, min_val: Any = -1, max_val: Any = 1) -> Value:
    return clamp(call, g, a, min_val, max_val)


_COMPARISONS: dict[str, tuple[Any, Callable[..., Value]]] = {
    "lt": (torch.lt, lambda g, a, b: greater(g, b, a)),
    "gt": (torch.gt, greater),
    "ge": (torch.ge, at_least),
    "le": (torch.le, lambda g, a, b: at_least(g, b, a)),
    "eq": (torch.eq, lambda g, a, b: ar.binary(g, "mul", at_least(g, a, b), at_least(g, b, a))),
    "ne": (
        torch.ne,
        lambda g, a, b: complement(g, ar.binary(g, "mul", at_least(g, a, b), at_least(g, b, a))),
    ),
}


def _classes_in_a_row(g: Graph, x: Named, y: Known) -> Value | None:
    """classes[..., None] == arange(start, stop): the one-hot rows."""
    n = y.shape[-1] if y.shape else 0
    flat = y.data.reshape(-1)
    if (
        x.shape[-1:] != (1,)
        or len(flat) != n
        or n == 0
        or not torch.equal(flat, torch.arange(n) + flat[0])
    ):
        return None
    start = int(flat[0])
    return tables.one_hot(g, g.reshape(x, x.shape[:-1]), start, start + n)


def _same_class(g: Graph, a: Value, b: Value) -> Value | None:
    """Where two tensors of classes are equal: the sum over the classes of both indicators.

    A number below 0 equals none.
    """
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Replaced) and x.other < 0 and isinstance(y, Named):
            same = _same_class(g, x.source, y)
            return ar.binary(g, "mul", same, as_numbers(x.keep)) if same is not None else None
    of_a, of_b = (tables.table_of(g, v) if isinstance(v, Named) else None for v in (a, b))
    if of_a is None or of_b is None:
        return None
    g.assume(assumptions.CLASSES)
    n = max(len(of_a.entries), len(of_b.entries))
    return ar.reduce(
        g, "sum", ar.binary(g, "mul", tables.one_hot(g, a, 0, n), tables.one_hot(g, b, 0, n)), [-1]
    )


def _of_replaced(
    f: Any, function: Any, call: Any, g: Graph, x: Replaced, y: Filled, flip: bool
) -> Value:
    """A comparison of replaced integers with a number.

    It is that of the integer where it is kept, else that of the number in its place.
    """
    inside = f(call, g, *((y, x.source) if flip else (x.source, y)))
    other, number = torch.tensor(x.other), torch.tensor(y.fill)
    outside = int(function(number, other) if flip else function(other, number))
    keep = g.expand(x.keep, call.shape())
    if isinstance(inside, Filled):
        if bool(inside.fill) == bool(outside):
            return inside
        return keep if inside.fill else complement(g, keep)
    holds = ar.binary(g, "mul", as_numbers(inside), as_numbers(keep))
    return ar.binary(g, "add", holds, complement(g, keep)) if outside else holds


def _note_ignored(g: Graph, name: str, x: Named, y: Filled, flip: bool) -> None:
    """Notes labels that are ignored: they are compared with a number below 0, or tested for being
    below 0.
    """
    if name in ("eq", "ne"):
        below = y.fill < 0
    else:  # x < y and x >= y are about numbers below y; x <= y and x > y about those up to y
        below = y.fill <= 0 if name in (("gt", "le") if flip else ("lt", "ge")) else y.fill < 0
    if name not in ("eq", "ne") and y.fill > 0:
        bounded(g, x)
    if below:
        note(
            g,
            x,
            int(y.fill) if name in ("eq", "ne") else min(int(y.fill), 0) - 1,
            by_loss=False,
            window=y.fill == 0,
        )


# Comparisons with a bound that no number is below (-1), or above (1), and that none fulfils.
_NEVER = {("lt", -1), ("gt", 1)}
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def _comparison(name: str) -> Any:
    function, real = _COMPARISONS[name]

    def f(call: Any, g: Graph, a: Any, b: Any) -> Value:
        a, b = ar.lift(a), ar.lift(b)
        for x, y, flip in ((a, b, False), (b, a, True)):
            if isinstance(x, Replaced) and isinstance(y, Filled):
                return _of_replaced(f, function, call, g, x, y, flip)
            if isinstance(x, Named) and x.kind == "int" and isinstance(y, Filled):
                _note_ignored(g, name, x, y, flip)
        t = tables.apply(g, function, [a, b], call.shape())
        if t is not None:
            same = tables.constant_table(g, t)
            if same is not None:
                g.assume(assumptions.CLASSES)
            return same if same is not None else t
        for x, y, flip in ((a, b, False), (b, a, True)):
            if name == "eq" and isinstance(x, Named) and x.kind == "int" and isinstance(y, Known):
                hot = _classes_in_a_row(g, x, y)
                if hot is not None and hot.shape == call.shape():
                    return hot
            if (
                isinstance(y, Filled)
                and math.isinf(y.fill)
                and getattr(x, "kind", "real") == "real"
            ):
                if isinstance(x, Hidden) and y.fill < 0 and name in ("eq", "ne"):
                    g.definedness.finite(x.source)
                    return g.expand(x.keep if name == "ne" else complement(g, x.keep), call.shape())
                g.definedness.finite(x)
                below = (y.fill > 0) != flip
                return Filled(
                    int(
                        {
                            "eq": False,
                            "ne": True,
                            "lt": below,
                            "le": below,
                            "gt": not below,
                            "ge": not below,
                        }[name]
                    ),
                    call.shape(),
                    "bool",
                )
        # whether it is not-a-number
        if (
            name in ("eq", "ne")
            and isinstance(a, Named)
            and isinstance(b, Named)
            and a.name == b.name
            and a.kind == "real"
        ):
            g.definedness.finite(a)
            return Filled(int(name == "eq"), call.shape(), "bool")
        if name in ("eq", "ne"):
            equal = _same_class(g, a, b)
            if equal is not None:
                return g.expand(equal if name == "eq" else complement(g, equal), call.shape())
        compared = indicators.with_constants(g, function, a, b, call.shape())
        if compared is not None:
            return compared
        if name in _OPPOSITE and isinstance(b, Filled):
            beyond = _beyond(g, a, b.fill, call.given[0].dtype)
            never, always = ((n, beyond) in _NEVER for n in (name, _OPPOSITE[name]))
            if never or always and g.definedness.has_a_value(a):  # not-a-number is not at least it
                return Filled(int(always), call.shape(), "bool")
        if name in ("lt", "ge") and isinstance(b, Filled) and b.fill <= 0:
            # Python may test for a negative one, too. What is not-a-number is not below it either.
            shown = name == "lt" or g.definedness.has_a_value(a)
            if shown and never_negative(g, a):
                return Filled(int(name == "ge"), call.shape(), "bool")
            if name == "lt" and never_negative(g, a, on_ranks=True):
                g.assume(assumptions.NOT_BELOW_ZERO)
                return Filled(0, call.shape(), "bool")
        return g.expand(real(g, ar.numbers(g, a), ar.numbers(g, b)), call.shape())

    return f


for _name in _COMPARISONS:
    lowering(_name)(_comparison(_name))


def _logical(function: Any, real: Any, bitwise: Any) -> Any:
    def f(call: Any, g: Graph, *args: Any) -> Value:
        dtypes = iter([t.dtype for t in call.given])
        operands = [
            _as_truth(g, a, next(dtypes))
            if isinstance(a, Value) and call.outs[0].dtype == torch.bool
            else ar.lift(a)
            for a in args
        ]
        if call.outs[0].dtype != torch.bool:
            t = tables.apply(g, bitwise, operands, call.shape())
            if t is None:
                raise Unsupported("a bitwise operator on integers that are not classes")
            return tables.constant_table(g, t) or t
        t = tables.apply(g, function, [_as_bool(g, v) for v in operands], call.shape())
        if t is not None:
            same = tables.constant_table(g, t)
            return same if same is not None else t
        return g.expand(real(g, *[as_numbers(v) for v in operands]), call.shape())

    return f


def _as_truth(g: Graph, v: Value, dtype: torch.dtype) -> Value:
    """What is not 0 of numbers; what is true or false as it is."""
    return (
        v
        if dtype == torch.bool or isinstance(v, Named) and v.kind == "int"
        else cast(g, v, torch.bool)
    )


def _as_bool(g: Graph, v: Value) -> Value:
    if isinstance(v, Filled):
        return Filled(int(v.fill != 0), v.shape, "bool")
    if isinstance(v, Table) and v.entries.dtype != torch.bool:
        raise Unsupported("a bitwise operator on classes")
    return v


_and = _logical(
    lambda a, b: a.bool() & b.bool(), lambda g, a, b: ar.binary(g, "mul", a, b), torch.bitwise_and
)
_or = _logical(
    lambda a, b: a.bool() | b.bool(),
    lambda g, a, b: complement(g, ar.binary(g, "mul", complement(g, a), complement(g, b))),
    torch.bitwise_or,
)
_xor = _logical(
    lambda a, b: a.bool() ^ b.bool(),
    lambda g, a, b: ar.binary(
        g, "sub", ar.binary(g, "add", a, b), ar.binary(g, "mul", ar.binary(g, "mul", a, b), 2)
    ),
    torch.bitwise_xor,
)
_not = _logical(lambda a: ~a.bool(), complement, torch.bitwise_not)
lowering("bitwise_and", "__and__", "__iand__", "logical_and")(_and)
lowering("bitwise_or", "__or__", "__ior__", "logical_or")(_or)
lowering("bitwise_xor", "__xor__", "__ixor__", "logical_xor")(_xor)
lowering("bitwise_not", "logical_not")(_not)


@lowering("hardshrink_backward", "softshrink_backward")
def hardshrink_backward(call: Any, g: Graph, grad: Value, a: Value, lambd: Any) -> Value:
    """No gradient where a is between -lambd and lambd, both included."""
    bound = scalar(lambd)
    between = ar.binary(g, "mul", at_least(g, a, -bound), at_least(g, bound, a))
    return choose(g, between, Filled(0, a.shape), grad, a.shape)


@lowering("where")
def where(call: Any, g: Graph, mask: Value, a: Any, b: Any) -> Value:
    if isinstance(mask, Filled):  # the other one may be no number at all
        return g.expand(ar.lift(a if mask.fill else b), call.shape())
    return choose(g, mask, ar.lift(a), ar.lift(b), call.shape())


@lowering("masked_fill")
def masked_fill(call: Any, g: Graph, x: Value, mask: Value, value: Any) -> Value:
    return choose(g, mask, ar.lift(value), x, x.shape)


@lowering("isnan", "isinf")
def never(call: Any, g: Graph, a: Value) -> Value:
    g.definedness.finite(a)
    return Filled(0, a.shape, "bool")
