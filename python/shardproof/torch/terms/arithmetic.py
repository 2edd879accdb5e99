# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on values.

It folds constants, keeps tables and picked elements as long as they can be, and writes exact
constants.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch

from . import assumptions, tables
from .causal_masks import hide
from .constants import FOLD_LIMIT, as_fraction, decimal, number
from .graph import WRITERS, Graph
from .nodes import MOVES_HERE
from .signs import never_negative
from .values import (
    Complex,
    Filled,
    Hidden,
    Known,
    Named,
    Pick,
    Poison,
    Poisoned,
    Replaced,
    Shape,
    Table,
    Unsupported,
    Value,
    numel,
)

_FUNCTIONS = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}
_NUMBERS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}


def constant(x: float | int | bool, kind: str | None = None) -> Filled:
    return Filled(number(x), (), kind or ("int" if isinstance(x, (int, bool)) else "real"))


def lift(x: Value | complex) -> Value:
    if isinstance(x, complex):
        return Complex(constant(x.real), constant(x.imag))
    return x if isinstance(x, Value) else constant(x)


def is_constant(v: Value) -> bool:
    return isinstance(v, (Filled, Known))


def check(*values: Value) -> None:
    """Raises Poisoned if one of them is."""
    for v in values:
        if isinstance(v, Poison):
            raise Poisoned(v.reason)


def broadcast(*values: Value) -> Shape:
    return _broadcast(*[v.shape for v in values])


@functools.lru_cache(maxsize=1 << 12)
def _broadcast(*shapes: Shape) -> Shape:
    return tuple(torch.broadcast_shapes(*shapes))


def binary(
    g: Graph, op: str, a: Value | float | int, b: Value | float | int, alpha: float | int = 1
) -> Value:
    """add, sub, mul or div with broadcasting; for the first two b is multiplied by alpha."""
    a, b = lift(a), lift(b)
    check(a, b)
    shape = broadcast(a, b)
    if alpha != 1:
        b = binary(g, "mul", b, alpha)
    if is_constant(a) and is_constant(b):
        return _fold(g, op, a, b, shape)
    if isinstance(a, Complex) or isinstance(b, Complex):
        return _complex(g, op, a, b)
    a, b = _hidden(g, a), _hidden(g, b)
    if isinstance(a, Hidden) or isinstance(b, Hidden):
        return _with_hidden(g, op, a, b)
    if 0 in shape:
        return Filled(0, shape)
    if isinstance(a, Replaced) or isinstance(b, Replaced):
        replaced = _replaced(g, op, a, b, shape)
        if replaced is not None:
            return replaced
        a, b = (numbers(g, v) if isinstance(v, Replaced) else v for v in (a, b))
    special = tables.binary(g, op, a, b, shape)
    if special is not None:
        return special
    if isinstance(b, Filled):
        return g.expand(with_scalar(g, op, g.named(a), b.fill), shape)
    if isinstance(a, Filled):
        if op in ("add", "mul"):
            return g.expand(with_scalar(g, op, g.named(b), a.fill), shape)
        if op == "sub":
            return g.expand(with_scalar(g, "add", negate(g, b), a.fill), shape)
        return g.expand(with_scalar(g, "mul", reciprocal(g, b), a.fill), shape)
    if (
        op == "mul"
        and isinstance(a, Named)
        and a.square is not None
        and isinstance(b, Named)
        and b.name == a.name
    ):
        return a.square
    a, b = numbers(g, a), numbers(g, b)
    if op == "mul":
        for x, keep in ((a, b), (b, a)):
            if (
                isinstance(x, Named)
                and x.kind == "real"
                and isinstance(keep, Table)
                and tables.keeps_rows(keep, x.shape)
                and shape == x.shape
            ):
                kept = g.one(op, [x, g.named(keep)], shape)
                note_masked_rows(g, kept, x, keep)
                return kept
    return _of_classes(g, op, g.named(a), g.named(b), shape)


def note_masked_rows(g: Graph, kept: Value, x: Value, keep: Value) -> None:
    """`kept` is x in the rows of the classes that a table keeps, and zero in others."""
    if (
        isinstance(kept, Named)
        and isinstance(x, Named)
        and x.kind == "real"
        and x.shape == kept.shape
        and isinstance(keep, Table)
        and tables.keeps_rows(keep, x.shape)
    ):
        kept.masked = (x, g.reshape(keep, x.shape[:-1]))  # type: ignore[assignment]


def numbers(g: Graph, v: Value) -> Value:
    """Integers, and constants, as real numbers; anything else as it is.

    Raises Unsupported where they are inputs whose range is not known.
    """
    if isinstance(v, Known):
        return Known(v.data.double(), v.host) if v.kind != "real" else v
    if getattr(v, "kind", "") != "int" or isinstance(v, Filled):
        return v
    if isinstance(v, Replaced):
        kept = binary(g, "mul", numbers(g, v.source), v.keep)
        return binary(g, "add", kept, binary(g, "mul", binary(g, "sub", 1, v.keep), v.other))
    t = tables.table_of(g, v)
    if t is None:
        raise Unsupported("arithmetic on integers whose range is not known")
    return Table(t.source, t.entries.double(), t.low, t.shape)


WRITERS[Replaced] = numbers


def _replaced(g: Graph, op: str, a: Value, b: Value, shape: Shape) -> Value | None:
    """Arithmetic of replaced integers and one integer, which stays that; None: it does not."""
    for x, y, flip in ((a, b, False), (b, a, True)):
        if isinstance(x, Replaced) and isinstance(y, Filled) and y.kind == "int" and op != "div":
            source = binary(g, op, *((y, x.source) if flip else (x.source, y)))
            other = _NUMBERS[op](*((y.fill, x.other) if flip else (x.other, y.fill)))
            return Replaced(g.expand(source, shape), g.expand(x.keep, shape), int(other))
    return None


def _of_classes(g: Graph, op: str, a: Named, b: Named, shape: Shape) -> Value:
    """A sum over classes plus something else is written as a sum over classes (_every_class)."""
    ids = a.of_class or b.of_class
    if (
        ids is not None
        and op in ("add", "sub")
        and a.shape == b.shape == shape == ids.shape
        and (a.of_class is None or b.of_class is None)
        and (ones := _every_class(g, ids)) is not None
    ):
        a, b = (v if v.of_class is not None else g.one("mul", [v, ones], shape) for v in (a, b))
    result = g.one(op, [a, b], shape)
    if (
        ids is not None
        and ids.shape == shape
        and (op in ("add", "sub", "mul") or b.of_class is None)
    ):
        result.of_class = ids
    return result


def _every_class(g: Graph, ids: Named) -> Value | None:
    """1 for each integer, as the sum of the indicators of all classes; None where their number is
    unknown.

    The proof treats indicators as opaque numbers, so it cannot know that they sum to 1 over the
    windows of all ranks. What is added to a sum over classes is therefore written as such a sum,
    too: a shift of all logits then cancels class by class.
    """
    t = tables.table_of(g, ids)
    if t is None:
        return None
    g.assume(assumptions.CLASSES)
    return reduce(g, "sum", tables.one_hot(g, ids, 0, len(t.entries)), [-1])


def _hidden(g: Graph, v: Value) -> Value:
    """A constant tensor with minus infinities (an additive mask) as numbers and what is hidden."""
    if isinstance(v, Filled) and v.fill == -math.inf:
        return Hidden(Filled(0, v.shape), Filled(0, v.shape))
    if isinstance(v, Known) and v.hides():
        hidden = torch.isneginf(v.data)
        return Hidden(
            Known(torch.where(hidden, torch.zeros_like(v.data), v.data)), Known((~hidden).double())
        )
    if isinstance(v, Table) and v.kind == "real" and bool(torch.isneginf(v.entries).any()):
        hidden = torch.isneginf(v.entries)
        rest = Table(
            v.source, torch.where(hidden, torch.zeros_like(v.entries), v.entries), v.low, v.shape
        )
        return Hidden(
            rest if bool((rest.entries != 0).any()) else Filled(0, v.shape),
            Table(v.source, (~hidden).double(), v.low, v.shape),
        )
    return v


def _with_hidden(g: Graph, op: str, a: Value, b: Value) -> Value:
    """Minus infinity plus or minus a number, or times a positive one, is minus infinity."""
    if op in ("mul", "div") and isinstance(a, Hidden) and isinstance(b, Filled) and b.fill > 0:
        return Hidden(binary(g, op, a.source, b), a.keep)
    if op == "mul" and isinstance(b, Hidden) and isinstance(a, Filled) and a.fill > 0:
        return Hidden(binary(g, op, b.source, a), b.keep)
    if op not in ("add", "sub") or op == "sub" and isinstance(b, Hidden):
        raise Unsupported(f"{op} of minus infinities")
    source = binary(
        g, op, a.source if isinstance(a, Hidden) else a, b.source if isinstance(b, Hidden) else b
    )
    keeps = [v.keep for v in (a, b) if isinstance(v, Hidden)]
    keep = keeps[0] if len(keeps) == 1 else binary(g, "mul", keeps[0], keeps[1])
    keep = g.reshape(keep, (1,) * (len(source.shape) - len(keep.shape)) + keep.shape)
    if isinstance(keep, Known):
        return masked(g, source, keep.data == 0, source.shape)
    return Hidden(source, keep)


def masked(g: Graph, x: Value, hidden: torch.Tensor, shape: tuple[int, ...]) -> Value:
    """x with minus infinity where `hidden`, which is what attention does not see."""
    if not bool(hidden.any()):
        return g.expand(x, shape)
    if isinstance(x, Hidden):
        kept = binary(g, "mul", x.keep, Known((~hidden).double()))
        return Hidden(
            g.expand(x.source, shape),
            g.reshape(kept, (1,) * (len(shape) - len(kept.shape)) + kept.shape),
        )
    return hide(g, x, hidden, shape)


def softmax_of_hidden(g: Graph, a: Hidden, dim: int) -> Value:
    e = exp_of_hidden(g, a)
    result = binary(g, "div", e, reduce(g, "sum", e, [dim], True))
    if isinstance(result, Named):
        if not isinstance(a.keep, (Filled, Known)):
            g.definedness.masked_by_data.add(result.name)
        elif bool((g.data(a.keep).expand(a.shape) == 0).all(dim).any()):
            g.definedness.closed.add(result.name)
    return result


def seen(v: Value) -> Value:
    """A part of scores without those that are masked, if none of it is."""
    if isinstance(v, Hidden) and isinstance(v.keep, Known) and bool((v.keep.data != 0).all()):
        return v.source
    return v


def rows_see(keep: torch.Tensor, shape: Shape, dim: int) -> bool:
    """Whether no row along a dimension is nothing but minus infinity."""
    return bool((keep != 0).expand(shape).any(dim).all())


def exp_of_hidden(g: Graph, a: Hidden) -> Value:
    return binary(g, "mul", unary(g, "exp", a.source), cast_real(a.keep))


def cast_real(v: Value) -> Value:
    return Known(v.data.double()) if isinstance(v, Known) else v


def _fold(g: Graph, op: str, a: Value, b: Value, shape: Shape) -> Value:
    reals = op == "div" or "real" in (getattr(a, "kind", ""), getattr(b, "kind", ""))
    kind = "real" if reals else "int"
    if isinstance(a, Filled) and isinstance(b, Filled):
        x, y = a.fill, b.fill
        if op == "div" and y == 0:
            raise Unsupported("a constant is divided by zero")
        return Filled(_folded(g, op, x, y), shape, kind)
    if numel(shape) > FOLD_LIMIT:
        raise Unsupported("a constant tensor that is too large to be computed")
    return Known(_FUNCTIONS[op](g.data(a), g.data(b)))


def _folded(g: Graph, op: str, x: float, y: float) -> float | int:
    """x op y. Where one of them stands for a fraction, the double nearest to that of the fractions:
    9 times 1 - 0.999 is 0.009, as it is where it is computed as a tensor.
    """
    result = _NUMBERS[op](x, y)
    if isinstance(x, int) and isinstance(y, int) or not math.isfinite(result):
        return number(result)
    exact = [_stands_for(g, x), _stands_for(g, y)]
    if None in exact:
        return number(result)
    found = float(_NUMBERS[op](*exact))
    return number(found) if math.isfinite(found) else number(result)


def _stands_for(g: Graph, x: float | int) -> Fraction | None:
    """The number that a constant stands for; None for a root."""
    if isinstance(x, float):
        x = decimal(g, x)
    found = as_fraction(x) if isinstance(x, float) else None
    if found is None:
        return Fraction(repr(x)) if math.isfinite(x) else None
    p, q, root = found
    if root:
        return None
    g.assume(assumptions.fraction(x, f"{p}/{q}"))
    return Fraction(p, q)


def with_scalar(g: Graph, op: str, v: Value, x: float | int) -> Value:
    """v op x, where x stands for the fraction or root whose nearest double it is."""
    a = g.named(numbers(g, v))
    if not math.isfinite(x):
        raise Unsupported("arithmetic with an infinity")
    if isinstance(x, float):
        x = decimal(g, x)
    if (op in ("mul", "div") and x == 1) or (op in ("add", "sub") and x == 0):
        return a
    if op == "mul" and x == 0 and g.definedness.times_zero_is_zero(a):
        return Filled(0, a.shape)
    if op == "div" and x == 0:
        raise Unsupported("division by zero")
    exact = as_fraction(x) if isinstance(x, float) else None
    if exact is not None and op in ("mul", "div"):
        p, q, root = exact
        if op == "div":
            p, q = q, p
        g.assume(
            assumptions.fraction(
                x, f"{'sqrt(' if root else ''}{exact[0]}/{exact[1]}{')' if root else ''}"
            )
        )
        if not root:
            return _scale(g, a, p, q)
        if a.square is not None:
            return g.root(_scale(g, g.named(a.square), p, q))
        factor = (
            g.root(g.one("div", [Filled(p, ())], (), {"scalar": q}))
            if q != 1
            else g.one("sqrt", [Filled(p, ())], ())
        )
        return g.one("mul", [a, factor], a.shape)
    # as decimals, 1/480 of the single device and half of a rank's 1/240 are two numbers
    if exact is not None and not exact[2]:
        g.assume(assumptions.fraction(x, f"{exact[0]}/{exact[1]}"))
        return g.one(
            op, [a, g.one("div", [Filled(exact[0], ())], (), {"scalar": exact[1]})], a.shape
        )
    result = g.one(op, [a], a.shape, {"scalar": number(x)})
    if op in ("mul", "div"):
        result.of_class = a.of_class
    return result


def _scale(g: Graph, a: Named, p: int, q: int) -> Named:
    of_class = a.of_class
    if p != 1:
        a = g.one("mul", [a], a.shape, {"scalar": p})
    if q != 1:
        a = g.one("div", [a], a.shape, {"scalar": q})
    a.of_class = of_class
    return a


def _complex(g: Graph, op: str, a: Value, b: Value) -> Value:
    """Arithmetic on pairs; a real operand has no imaginary part."""
    ar, ai = (a.real, a.imag) if isinstance(a, Complex) else (a, Filled(0, a.shape))
    br, bi = (b.real, b.imag) if isinstance(b, Complex) else (b, Filled(0, b.shape))
    if op in ("add", "sub"):
        return Complex(binary(g, op, ar, br), binary(g, op, ai, bi))
    if op == "div":
        if not isinstance(b, Complex):
            return Complex(binary(g, op, ar, b), binary(g, op, ai, b))
        return binary(
            g, "div", _complex(g, "mul", a, Complex(br, negate(g, bi))), _squared_length(g, b)
        )
    return Complex(
        binary(g, "sub", binary(g, "mul", ar, br), binary(g, "mul", ai, bi)),
        binary(g, "add", binary(g, "mul", ar, bi), binary(g, "mul", ai, br)),
    )


def _squared_length(g: Graph, a: Complex) -> Value:
    return binary(g, "add", binary(g, "mul", a.real, a.real), binary(g, "mul", a.imag, a.imag))


_UNARY = {
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
    "relu": torch.relu,
    "square": torch.square,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
}
_STEPS = ("floor", "ceil", "round", "trunc")  # their values are whole numbers


def unary(g: Graph, op: str, a: Value) -> Value:
    """An elementwise function that the core has under the same name."""
    check(a)
    if 0 in a.shape:
        return a
    if isinstance(a, Filled):
        r = float(_UNARY[op](torch.tensor(a.fill, dtype=torch.float64)))
        if not math.isfinite(r) and not (op in ("neg", "relu", "square") and math.isinf(r)):
            raise Unsupported(f"{op} of {a.fill}")
        return Filled(number(r), a.shape)
    if isinstance(a, Known):
        return a.once(op, _UNARY[op])
    if isinstance(a, Complex):
        if op == "neg":
            return Complex(unary(g, op, a.real), unary(g, op, a.imag))
        if op == "exp":
            length = unary(g, "exp", a.real)
            return Complex(
                binary(g, "mul", length, unary(g, "cos", a.imag)),
                binary(g, "mul", length, unary(g, "sin", a.imag)),
            )
        raise Unsupported(f"{op} of complex numbers")
    if isinstance(a, Hidden) and op == "exp":
        return exp_of_hidden(g, a)
    if op in _STEPS and getattr(a, "kind", "") == "int":
        return a
    if op == "neg" and (isinstance(a, (Table, Pick)) or getattr(a, "kind", "") == "int"):
        return binary(g, "mul", a, -1)
    a = numbers(g, a)
    if op == "square":
        return power(g, a, 2)
    if op == "sqrt":
        return g.root(g.named(a))
    if isinstance(a, Table) and op not in ("exp", "log", "rsqrt"):
        return Table(a.source, _UNARY[op](a.entries.to(torch.float64)), a.low, a.shape)
    n = g.named(a)
    if op == "neg" and n.node is not None and n.node["op"] == "neg":
        return g.value_of(n.node["in"][0], n.kind)
    if op == "exp":
        return _exp(g, n)
    result = _sigmoid_of_logarithms(g, n) if op == "sigmoid" else None
    if result is not None:
        return result
    result = g.one(op, [n], n.shape)
    if op == "neg":
        result.of_class = n.of_class
    return result


def _difference(g: Graph, n: Named) -> tuple[Value, Value] | None:
    """Of what and what a value is the difference."""
    if n.node is None or n.node["op"] != "sub" or len(n.node["in"]) != 2 or n.node.get("attrs"):
        return None
    a, b = (g.value_of(name, "real") for name in n.node["in"])
    return a, b


def _exp(g: Graph, n: Named) -> Value:
    """exp of a log-softmax is the softmax; exp(log s) is s; exp(x - log s) is exp(x) / s."""
    if n.node is not None and n.node["op"] == "log_softmax":
        return g.one(
            "softmax", [g.value_of(n.node["in"][0], "real")], n.shape, dict(n.node["attrs"])
        )
    difference = _difference(g, n)
    if difference is not None:
        total = of_logarithm(g, difference[1])
        if total is not None:
            return binary(g, "div", unary(g, "exp", difference[0]), total)
    whole = of_logarithm(g, n)
    return whole if whole is not None else g.one("exp", [n], n.shape)


def _sigmoid_of_logarithms(g: Graph, n: Named) -> Value | None:
    """sigmoid(log a - log b) is a / (a + b).

    Rings of attention weigh the parts of a softmax by that, each of which has a log-sum-exp.
    """
    difference = _difference(g, n)
    if difference is None:
        return None
    a, b = (of_logarithm(g, v) for v in difference)
    return binary(g, "div", a, binary(g, "add", a, b)) if a is not None and b is not None else None


def of_logarithm(g: Graph, v: Value, depth: int = 24) -> Value | None:
    """The value of which this is the logarithm, where nodes show it; None elsewhere.

    Its elements may be moved. It is never negative.
    """
    if not isinstance(v, Named) or v.node is None or depth == 0:
        return None
    op, attrs = v.node["op"], v.node.get("attrs", {})
    if op == "log":
        total = g.value_of(v.node["in"][0], "real")
        return total if never_negative(g, total, on_ranks=True) else None
    if op == "logsumexp":
        x = g.value_of(v.node["in"][0], "real")
        return reduce(g, "sum", unary(g, "exp", x), attrs["dim"], bool(attrs.get("keepdim", False)))
    difference = _difference(g, v)
    if op in MOVES_HERE or difference is not None:
        parts = [of_logarithm(g, g.value_of(name, "real"), depth - 1) for name in v.node["in"]]
        found = [p for p in parts if p is not None]
        if len(found) < len(parts):
            return None
        return _of_difference(g, *found) if difference is not None else _moved_likewise(g, v, found)
    return None


def _of_difference(g: Graph, a: Value, b: Value) -> Value:
    """log a - log b is the logarithm of a / b, which is c where b is a / c and a is not 0."""
    if (
        isinstance(b, Named)
        and b.node is not None
        and b.node["op"] == "div"
        and len(b.node["in"]) == 2
        and isinstance(a, Named)
        and b.node["in"][0] == a.name
        and positive(g, a)
    ):
        return g.value_of(b.node["in"][1], "real")
    return binary(g, "div", a, b)


def _moved_likewise(g: Graph, v: Named, parts: list[Value]) -> Value:
    """Other values in the places that a node moves its operands to."""
    assert v.node is not None
    op, attrs = v.node["op"], v.node.get("attrs", {})
    if op == "cat":
        return g.cat(parts, attrs["dim"])
    if op == "permute":
        return g.permute(parts[0], attrs["dims"])
    if op == "slice":
        return g.slice(parts[0], attrs["dim"], attrs["start"], attrs["stop"], attrs.get("step", 1))
    return (
        {"view": g.reshape, "expand": g.expand}[op](parts[0], v.shape)
        if op != "identity"
        else parts[0]
    )


def positive(g: Graph, v: Value, depth: int = 24) -> bool:
    """Whether the nodes show at once that each element is above 0, whatever the inputs are.

    Those are exponentials of numbers, their sums and quotients. A row of masked scores has one that
    is seen.
    """
    if isinstance(v, Filled):
        return v.fill > 0
    if not isinstance(v, Named) or v.node is None or depth == 0 or v.name in g.definedness.closed:
        return False
    op, operands = v.node["op"], [g.value_of(name, "real") for name in v.node["in"]]
    if op == "exp":
        return g.definedness.has_a_value(operands[0])
    if op == "sum" and isinstance(operands[0], Named):
        inner = operands[0].node
        scores = g.producer(inner["in"][0]) if inner is not None and inner["op"] == "exp" else None
        if (
            scores is not None
            and scores["op"] == "apply_mask"
            and reduced_dims(operands[0].shape, v.node.get("attrs", {}).get("dim"))
            == [len(operands[0].shape) - 1]
        ):
            return g.definedness.has_a_value(g.value_of(scores["in"][0], "real"))
    return (
        op in MOVES_HERE or op in ("add", "mul", "div") and len(operands) == 2 or op == "sum"
    ) and all(positive(g, x, depth - 1) for x in operands)


def negate(g: Graph, a: Value) -> Value:
    return unary(g, "neg", a)


def reciprocal(g: Graph, a: Value) -> Value:
    return power(g, a, -1)


def exponential(g: Graph, a: Value, exponent: Value | float) -> Value:
    """a to any power, by its logarithm. Raises Unsupported for what is known not to be positive."""
    if isinstance(a, Filled) and a.fill <= 0 or isinstance(a, Known) and bool((a.data <= 0).any()):
        raise Unsupported("a power, not known before, of a number that is not positive")
    if not isinstance(a, (Filled, Known)):
        g.assume(assumptions.POSITIVE)
    return _by_logarithm(g, a, exponent)


def _by_logarithm(g: Graph, a: Value, exponent: Value | float) -> Value:
    return unary(g, "exp", binary(g, "mul", unary(g, "log", a), exponent))


def power(g: Graph, a: Value, exponent: float | int) -> Value:
    """a to a constant power.

    The core has integer and half-integer powers. Quarters and smaller fractions are powers of
    roots. Other powers go by the logarithm.
    """
    check(a)
    exponent = number(exponent)
    if 0 in a.shape:
        return a
    if isinstance(a, Filled):
        return Filled(number(float(a.fill) ** exponent), a.shape)
    if isinstance(a, Known):
        return Known(a.data.double() ** exponent)
    n = g.named(numbers(g, a))
    if exponent == 1:
        return n
    if exponent == 2 and n.square is not None:
        return n.square
    if exponent == 0.5:
        return g.root(n)
    if exponent == -0.5:
        return g.one("rsqrt", [n], n.shape)
    if exponent == 2:
        return g.one("mul", [n, n], n.shape)
    if not isinstance(exponent, int) and not float(exponent * 2).is_integer():
        return (
            power(g, g.root(n), 2 * exponent)
            if float(exponent * 16).is_integer()
            else _fractional_power(g, n, exponent)
        )
    if abs(exponent) > MOST_POWER:
        raise Unsupported(f"the power {exponent}")
    return g.one("pow", [n], n.shape, {"scalar": exponent})


MOST_POWER = 1000  # of the core's `pow`


def _fractional_power(g: Graph, a: Named, exponent: float) -> Value:
    """A power by way of the logarithm.

    0 to a positive power is 0, as its root is. Neither is a number for negative operands.
    """
    if not math.isfinite(exponent):
        raise Unsupported(f"the power {exponent}")
    positive = _by_logarithm(g, a, exponent)
    return (
        positive
        if exponent < 0
        else g.one("where", [step(g, a), positive, unary(g, "sqrt", a)], a.shape)
    )


def step(g: Graph, a: Value) -> Value:
    """1 where a > 0, else 0."""
    check(a)
    if is_constant(a):
        return Known(g.data(a) > 0)
    n = g.named(numbers(g, a))
    return g.one("relu_backward", [Filled(1, n.shape), n], n.shape)


def absolute(g: Graph, a: Value) -> Value:
    """The absolute value; of what is never negative itself."""
    if isinstance(a, Complex):
        return g.root(_squared_length(g, a))
    return a if never_negative(g, a) else binary(g, "add", relu(g, a), relu(g, negate(g, a)))


def relu(g: Graph, a: Value) -> Value:
    return unary(g, "relu", a)


def maximum(g: Graph, a: Value | float, b: Value | float) -> Value:
    """max(a, b) = b + relu(a - b). What is hidden, minus infinity, is below every number."""
    a, b = _hidden(g, lift(a)), _hidden(g, lift(b))
    if isinstance(a, Hidden) or isinstance(b, Hidden):
        return _maximum_of_hidden(g, a, b)
    return binary(g, "add", b, relu(g, binary(g, "sub", a, b)))


def _maximum_of_hidden(g: Graph, a: Value, b: Value) -> Value:
    """Where one is hidden it is the other, and where both are it is."""
    shape = broadcast(a, b)
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Hidden) and isinstance(one.keep, Filled) and one.keep.fill == 0:
            return g.expand(other, shape)
    sources = [v.source if isinstance(v, Hidden) else v for v in (a, b)]
    found = maximum(g, *sources)
    hidden: Value | None = None  # where both are
    for v, other in zip((a, b), reversed(sources)):
        if not isinstance(v, Hidden):
            continue
        keep = g.expand(cast_real(v.keep), shape)
        found = one_of(g, keep, found, other, shape)
        gone = binary(g, "sub", 1, keep)
        hidden = gone if hidden is None else binary(g, "mul", hidden, gone)
    if hidden is None or not isinstance(a, Hidden) or not isinstance(b, Hidden):
        return found
    return Hidden(found, binary(g, "sub", 1, hidden))


def _largest_of_hidden(g: Graph, a: Hidden, dims: list[int], keepdim: bool) -> Value:
    """The largest of what is not hidden: what is hidden counts as the smallest of all."""
    keep = g.expand(cast_real(a.keep), a.shape)
    seen = one_of(g, keep, a.source, reduce(g, "amin", a.source, dims, True), a.shape)
    found, some = (reduce(g, "amax", v, dims, keepdim) for v in (seen, keep))
    if isinstance(some, (Filled, Known)) and bool((g.data(some) != 0).all()):
        return found
    return Hidden(found, some)


def minimum(g: Graph, a: Value | float, b: Value | float) -> Value:
    return binary(g, "sub", b, relu(g, binary(g, "sub", b, a)))


def reduced_dims(shape: Shape, dims: int | Sequence[int] | None) -> list[int]:
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(len(shape)))
    return sorted(
        {d % len(shape) if shape else 0 for d in ([dims] if isinstance(dims, int) else dims)}
    )


def reduce(
    g: Graph, op: str, a: Value, dims: int | Sequence[int] | None = None, keepdim: bool = False
) -> Value:
    """sum, mean, amax or amin over dimensions (None: all)."""
    check(a)
    if a.shape == ():
        return a
    dims = reduced_dims(a.shape, dims)
    count = numel(tuple(a.shape[d] for d in dims))
    kept = tuple(1 if i in dims else n for i, n in enumerate(a.shape))
    shape = kept if keepdim else tuple(n for i, n in enumerate(a.shape) if i not in dims)
    if count == 0 and op == "sum":
        return Filled(0, shape)
    if 0 in a.shape:
        raise Unsupported(f"{op} of an empty tensor")
    if isinstance(a, Filled):
        return Filled(number(a.fill * count) if op == "sum" else a.fill, shape, a.kind)
    if isinstance(a, Known):
        f = {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin}[op]
        return Known(f(a.data, dims, keepdim))
    if isinstance(a, Complex):
        return Complex(reduce(g, op, a.real, dims, keepdim), reduce(g, op, a.imag, dims, keepdim))
    if count == 1:
        return g.reshape(a, shape)
    if isinstance(a, Hidden) and op == "amax":
        return _largest_of_hidden(g, a, dims, keepdim)
    n = g.named(numbers(g, a))
    last = len(a.shape) - 1
    if op == "sum" and dims == [last] and n.row_sums is not None:
        return g.reshape(n.row_sums, shape)
    attrs: dict[str, object] = {} if len(dims) == len(a.shape) and not keepdim else {"dim": dims}
    if keepdim:
        attrs = {"dim": dims, "keepdim": True}
    return g.one(op, [n], shape, attrs)


def matmul(g: Graph, a: Value, b: Value) -> Value:
    check(a, b)
    if isinstance(a, Complex) or isinstance(b, Complex):
        (p, q), (r, s) = (
            (v.real, v.imag) if isinstance(v, Complex) else (v, Filled(0, v.shape)) for v in (a, b)
        )
        return Complex(
            binary(g, "sub", matmul(g, p, r), matmul(g, q, s)),
            binary(g, "add", matmul(g, p, s), matmul(g, q, r)),
        )
    if (
        is_constant(a)
        and is_constant(b)
        and numel(a.shape) * (b.shape[-1] if b.shape else 1) < FOLD_LIMIT
    ):
        return Known(torch.matmul(g.data(a).double(), g.data(b).double()))
    if len(a.shape) > 1 and len(b.shape) > 1:
        shape = tuple(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])) + (
            a.shape[-2],
            b.shape[-1],
        )
    else:
        shape = tuple(
            torch.empty(a.shape, device="meta").matmul(torch.empty(b.shape, device="meta")).shape
        )
    if 0 in shape or 0 in a.shape:
        return Filled(0, shape)
    if any(
        isinstance(x, Filled) and x.fill == 0 and g.definedness.times_zero_is_zero(y)
        for x, y in ((a, b), (b, a))
    ):
        return Filled(0, shape)
    product = g.one("matmul", [g.named(a), g.named(b)], shape)
    g.factors[product.name] = a, b
    return product


def rows_of(g: Graph, a: Value, dim: int) -> tuple[Value, Callable[[Value], Value]]:
    """The dimension moved to the end, and the way back."""
    dim %= len(a.shape)
    order = [i for i in range(len(a.shape)) if i != dim] + [dim]
    return g.permute(a, order), lambda v: g.permute(v, [order.index(i) for i in range(len(order))])


def are_real(*values: Value) -> bool:
    return all(isinstance(v, Filled) or getattr(v, "kind", "") == "real" for v in values)


def one_of(g: Graph, condition: Value, a: Value, b: Value, shape: tuple[int, ...]) -> Value:
    """a where the condition (0 or 1) is 1, else b: reals.

    The one that is not chosen may be no number.
    """
    a, b = (Filled(float(v.fill), v.shape) if isinstance(v, Filled) else v for v in (a, b))
    return g.expand(
        g.one(
            "where", [condition, a, b], torch.broadcast_shapes(condition.shape, a.shape, b.shape)
        ),
        shape,
    )


def taken(g: Graph, x: Value, hot: Value, dims: Sequence[int]) -> Value:
    """The sum over dimensions of the elements where `hot` (0 or 1) is 1.

    The other elements may be no numbers.
    """
    if g.definedness.has_a_value(x) or not isinstance(x, Named) or not are_real(x):
        g.definedness.both_have_values(x)
        return reduce(g, "sum", binary(g, "mul", x, hot), dims)
    return reduce(
        g, "sum", one_of(g, hot, x, Filled(0, ()), torch.broadcast_shapes(x.shape, hot.shape)), dims
    )


def along(g: Graph, x: Value, dim: int, w: Value) -> Value:
    """The product with a matrix along one dimension."""
    rows, back = rows_of(g, x, dim)
    return back(matmul(g, rows, w))


def transposed(g: Graph, a: Value) -> Value:
    """The last two dimensions swapped."""
    dims = list(range(len(a.shape)))
    dims[-1], dims[-2] = dims[-2], dims[-1]
    return g.permute(a, dims)


def softmax(g: Graph, a: Value, dim: int, log: bool = False) -> Value:
    if isinstance(a, Hidden) and not log:
        return softmax_of_hidden(g, a, dim)
    if isinstance(a, Hidden) and isinstance(a.keep, Known) and rows_see(a.keep.data, a.shape, dim):
        total = reduce(g, "sum", exp_of_hidden(g, a), [dim], True)
        return Hidden(binary(g, "sub", a.source, unary(g, "log", total)), a.keep)
    n = g.named(a)
    return g.one("log_softmax" if log else "softmax", [n], n.shape, {"dim": dim % len(n.shape)})


def _attended(g: Graph, grad: Value, y: Value, dim: int) -> Value | None:
    """sum(grad * y) along the last dimension as sum(w * (y @ v)) along theirs; None elsewhere.

    That is where grad is w @ v^T and y @ v was computed before.
    """
    product = (grad.base or grad) if isinstance(grad, Named) else None
    if (
        product is None
        or product.name not in g.factors
        or dim % len(y.shape) != len(y.shape) - 1
        or numel(product.shape) != numel(y.shape)
        or product.shape[-1:] != y.shape[-1:]
    ):
        return None
    w, right = g.factors[product.name]
    if len(w.shape) < 2 or len(right.shape) < 2:
        return None
    v = transposed(g, right)
    base = right.base if isinstance(right, Named) else None
    # only dimensions in front of the matrices were joined
    if base is not None and base.shape[-2:] == right.shape[-2:]:
        v = g.reshape(transposed(g, base), v.shape)
    out = g.made("matmul", [g.reshape(y, product.shape), v])
    if out is None or out.shape != w.shape:
        return None
    return g.reshape(reduce(g, "sum", binary(g, "mul", w, out), [-1], True), y.shape[:-1] + (1,))


def softmax_gradient(g: Graph, grad: Value, y: Value, dim: int) -> Value:
    """y * (grad - sum(grad * y)).

    For attention the sum is that of out * (gradient of out). Kernels, and rings that combine the
    softmax from parts, compute it so.
    """
    rows = _attended(g, grad, y, dim)
    if rows is not None:
        return binary(g, "mul", y, binary(g, "sub", grad, rows))
    gy = binary(g, "mul", grad, y)
    return binary(g, "sub", gy, binary(g, "mul", y, reduce(g, "sum", gy, [dim], True)))
