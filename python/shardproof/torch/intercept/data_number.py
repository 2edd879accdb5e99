# SPDX-License-Identifier: Apache-2.0
"""Numbers that depend on data, in the recorded program.

They may be printed and computed with, and nothing may be decided by them. `.item()` of a tensor
that depends on data has no number here. It is not-a-number to Python, and knows its value: sums,
products and the like with other numbers are followed, also where they come back into a tensor by
one of these (`loss / tokens.item()`). Anywhere else not-a-number poisons the tensor that it goes
into.

Python compares not-a-number without complaint (every comparison is false), so `if norm.item() > 1:`
would go one way silently. So these numbers refuse to be compared, rounded to integers, or made into
others that would allow it.
"""

from __future__ import annotations

import builtins
import cmath
import collections.abc
import contextlib
import functools
import itertools
import math
import numbers
import operator
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import torch

from ..compat.private import changes, replace_everywhere, set_attribute
from ..compat.refusals import Refusal
from ..terms import arithmetic as ar

# What is asked of a number: the comparison, and what it is compared with; None: such a number, too.
Question = tuple[str | float | None, ...]


class DataDependent(Refusal):
    """The program uses a number that depends on data to decide something."""


class Follower(Protocol):
    """What computes with the values of numbers: the recorder.

    counting: whether Tensor.item() runs.
    """

    counting: int

    def where(self) -> str: ...

    def computed(self, make: Callable[[Any], Any]) -> Any: ...

    def number_tensor(self, value: Any, dtype: torch.dtype) -> torch.Tensor: ...

    def taken(self) -> tuple[Any, float | None]: ...

    def decided_by_drawn(self, loc: str) -> None: ...

    def decide(self, loc: str, values: Sequence[Any], question: Question) -> bool: ...

    def unknown_text(self, t: torch.Tensor) -> bool: ...

    def row_counts(self, t: torch.Tensor) -> Any: ...

    def printed(self, value: Any) -> None: ...


UNKNOWN = "<depends on data>"  # the text of a number that is not known


class Text(str):
    """The text of such a number. It is no number's text and refuses to be compared."""

    loc: str

    def __new__(cls, loc: str = "", number: float = math.nan) -> Text:
        self = super().__new__(
            cls, UNKNOWN if number != number else float.__format__(number, ".9g")
        )
        self.loc = loc
        return self

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise DataDependent(
            f"{self.loc + ': ' if self.loc else ''}the program asks what the text of a number that "
            "Tensor.item() gave is, which depends on data (it can be printed)"
        )

    def __reduce__(self) -> Any:
        return Text, (self.loc,)

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = __contains__ = refuse
    startswith = endswith = find = rfind = index = rindex = count = refuse


# what such numbers are to code that looks at them as C does, but for a factor between 1 and 2
_stand_in = math.nan
_made = itertools.count()


def _standing_for(value: Any) -> float:
    """What such a number is to C: not-a-number, or numbers that differ, but for one value."""
    if _stand_in != _stand_in:
        return _stand_in
    return _stand_in * (
        1
        + zlib.crc32(
            f"{getattr(value, 'name', '')} {next(_made) if value is None else ''}".encode()
        )
        / (1 << 32)
    )


class DataNumber(float):
    """The result of `.item()`. loc: where it was called; value: its value, None where it is not
    known. drawn: its number in this run, where it depends on nothing but draws.
    """

    loc: str
    value: Any
    follower: Follower | None
    drawn: float | None

    def __new__(
        cls,
        loc: str = "",
        value: Any = None,
        follower: Follower | None = None,
        drawn: float | None = None,
    ) -> DataNumber:
        self = super().__new__(cls, _standing_for(value))
        self.loc, self.value, self.follower = loc if isinstance(loc, str) else "", value, follower
        self.drawn = drawn
        return self

    def __deepcopy__(self, memo: Any) -> DataNumber:
        return self

    def __reduce__(self) -> Any:
        return DataNumber, (self.loc,)

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        at = f"{self.loc}: " if self.loc else ""
        raise DataDependent(
            f"{at}what the program does next depends on data: a number that Tensor.item() gave is "
            "compared, or made into another kind of number "
            "(it can be printed and computed with; what depends on it can be written with tensors: "
            "torch.where, torch.clamp)"
        )

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a function that is not followed."""
        if any(not isinstance(x, (int, float)) for x in args):
            return NotImplemented  # a tensor computes with it itself
        return DataNumber(self.loc, None, self.follower)

    def followed(
        self, make: Callable[..., Any], *others: Any, drawn: Callable[..., Any] | None = None
    ) -> DataNumber:
        """make(graph, this number's value, the others), as a number. drawn: the same of numbers."""
        values = [x.value if type(x) is DataNumber else x for x in others]
        known = (
            self.follower is not None
            and self.value is not None
            and all(
                v is not None and not (isinstance(v, float) and not math.isfinite(v))
                for v in values
            )
        )
        return DataNumber(
            self.loc,
            self.follower.computed(lambda g: make(g, self.value, *values))
            if known and self.follower is not None
            else None,
            self.follower,
            self._of_drawn(drawn, others) if drawn is not None else None,
        )

    def _of_drawn(self, compute: Callable[..., Any], others: Any) -> float | None:
        """What numbers that were drawn make; None where some were not."""
        numbers = [x.drawn if type(x) is DataNumber else x for x in (self, *others)]
        if any(x is None for x in numbers):
            return None
        try:
            made = compute(*numbers)
        except ArithmeticError:
            return None
        return float(made) if isinstance(made, (int, float)) else None

    def text(self, spec: str = "") -> str:
        if self.follower is not None:
            self.follower.printed(self.value)
        return Text(self.loc, float.__add__(self, 0.0))

    __array_ufunc__ = None  # numpy
    __array__ = __complex__ = __divmod__ = __rdivmod__ = refuse
    as_integer_ratio = is_integer = hex = refuse
    __str__ = __repr__ = __format__ = text
    __hash__ = refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __rpow__ = __round__ = __abs__ = computed

    def __index__(self) -> int:
        return int(self)

    def __pos__(self) -> DataNumber:
        return self

    conjugate = __pos__
    real = property(__pos__)

    def __neg__(self) -> DataNumber:
        return self.followed(lambda g, a: ar.binary(g, "mul", a, -1), drawn=operator.neg)

    def __pow__(self, exponent: Any, modulus: None = None) -> Any:
        if type(exponent) not in (int, float):
            return self.computed(exponent)
        return self.followed(lambda g, a: ar.power(g, a, exponent))


_QUESTIONS = frozenset({"__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__"})


def _decision(name: str) -> Callable[..., Any]:
    """A method that decides something by the number: by what was drawn, or by an answer."""

    def decide(self: DataNumber, *others: Any) -> Any:
        numbers = [x.drawn if type(x) is DataNumber else x for x in (self, *others)]
        if self.follower is None:
            return self.refuse()
        if any(x is None for x in numbers):
            if name in _QUESTIONS and all(isinstance(x, (int, float)) for x in others):
                asked = [x.value for x in (self, *others) if type(x) is DataNumber]
                try:
                    known = tuple(None if type(x) is DataNumber else float(x) for x in others)
                except OverflowError:
                    return self.refuse()
                return self.follower.decide(self.loc, asked, (name, *known))
            return self.refuse()
        self.follower.decided_by_drawn(self.loc)
        return getattr(float, name)(*numbers)

    return decide


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "trunc", "floor", "ceil"):
    setattr(DataNumber, f"__{_name}__", _decision(f"__{_name}__"))


_PLAIN_OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}


def _operator(op: str, swapped: bool) -> Callable[[DataNumber, Any], Any]:
    plain = _PLAIN_OPERATORS[op]

    def compute(self: DataNumber, other: Any) -> Any:
        if isinstance(other, complex):
            self.refuse()
        if isinstance(other, numbers.Number) and not isinstance(other, (int, float)):
            other = float(other)  # type: ignore[arg-type]  # one of numpy's
        if not isinstance(other, (int, float)):
            return NotImplemented  # a tensor computes with it itself
        return self.followed(
            (lambda g, a, b: ar.binary(g, op, b, a))
            if swapped
            else (lambda g, a, b: ar.binary(g, op, a, b)),
            other,
            drawn=(lambda a, b: plain(b, a)) if swapped else plain,
        )

    return compute


for _name, _op in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div")):
    setattr(DataNumber, f"__{_name}__", _operator(_op, False))
    setattr(DataNumber, f"__r{_name}__", _operator(_op, True))

_TAKES_A_TENSOR = frozenset(
    {
        "mul",
        "multiply",
        "rmul",
        "imul",
        "div",
        "divide",
        "true_divide",
        "truediv",
        "rdiv",
        "rtruediv",
        "idiv",
        "itruediv",
        "add",
        "radd",
        "iadd",
        "sub",
        "subtract",
        "rsub",
        "isub",
    }
)
_SCALED = frozenset({"add", "add_", "sub", "sub_"})


def is_arithmetic(func: Callable[..., Any]) -> bool:
    """Whether a function of PyTorch takes a tensor in place of a number."""
    return getattr(func, "__name__", "").strip("_") in _TAKES_A_TENSOR


def with_numbers(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of PyTorch with such numbers among its operands.

    Tensors take their place in plain arithmetic. Elsewhere they are not-a-number.
    """
    name = getattr(func, "__name__", "")

    def tensor(x: Any, dtype: torch.dtype | None = None) -> Any:
        return (
            x.follower.number_tensor(x.value, dtype or torch.get_default_dtype())
            if type(x) is DataNumber and x.follower is not None
            else x
        )

    def stacked(x: Any, dtype: torch.dtype) -> Any:
        if isinstance(x, (list, tuple)):
            return torch.stack([stacked(y, dtype) for y in x])
        return tensor(x, dtype) if type(x) is DataNumber else torch.tensor(x, dtype=dtype)

    if (
        name in ("tensor", "as_tensor")
        and len(args) == 1
        and _of_numbers_only(args[0])
        and not kwargs.get("requires_grad")
        and (kwargs.get("dtype") or torch.float32).is_floating_point
    ):
        return stacked(args[0], kwargs.get("dtype") or torch.get_default_dtype())
    if (
        name.removeprefix("_foreach_").strip("_") in _TAKES_A_TENSOR
        and set(kwargs) <= {"alpha"}
        and len(args) == 2
    ):
        args = tuple(
            [list(map(tensor, x)) if isinstance(x, (list, tuple)) else tensor(x) for x in args]
        )
        if (
            type(kwargs.get("alpha")) is DataNumber
            and name in _SCALED
            and isinstance(args[1], torch.Tensor)
        ):
            scale = tensor(kwargs["alpha"])
            if isinstance(scale, torch.Tensor):
                return func(args[0], args[1] * scale)
    return func(*args, **kwargs)


def _of_numbers_only(x: Any) -> bool:
    """Whether it is one of these numbers, or nested lists of numbers with one of these in them."""

    def plain(y: Any) -> bool:
        if isinstance(y, (list, tuple)):
            return bool(y) and all(map(plain, y))
        return type(y) is DataNumber or type(y) in (int, float, bool) and y == y

    return plain(x) and holds_one(x)


def holds_one(x: Any) -> bool:
    """Whether one of these numbers, or its not-a-number, is among operands that are no tensors."""
    if isinstance(x, (float, complex)):
        return type(x) is DataNumber or x != x
    if isinstance(x, (list, tuple)):
        return any(map(holds_one, x))
    return isinstance(x, dict) and any(map(holds_one, x.values()))


_ANSWERS = {"isnan": False, "isinf": False, "isfinite": True}  # as for tensors: Graph.finite
# the others refuse them
_COMPUTED = frozenset(
    {
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "cos",
        "cosh",
        "degrees",
        "dist",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "fabs",
        "fsum",
        "gamma",
        "hypot",
        "lgamma",
        "log",
        "log10",
        "log1p",
        "log2",
        "pow",
        "radians",
        "sin",
        "sinh",
        "sumprod",
        "tan",
        "tanh",
    }
)


def _functions(module: Any) -> list[tuple[str, Callable[..., Any]]]:
    return [
        (name, f) for name, f in vars(module).items() if not name.startswith("_") and callable(f)
    ]


def _first(operands: Any) -> DataNumber | None:
    """The first such number among operands, and lists of them."""
    for x in operands:
        for y in x if isinstance(x, (list, tuple, set, frozenset)) else (x,):
            if type(y) is DataNumber:
                return y
    return None


def _of_numbers(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `math`; name: empty for one that refuses them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and all(type(x) is int or type(x) is float for x in args):
            return f(*args)
        args = tuple([list(x) if isinstance(x, collections.abc.Iterator) else x for x in args])
        x = _first((*args, *kwargs.values()))
        if x is None:
            return f(*args, **kwargs)
        if name == "sqrt":
            return x.followed(lambda g, a: ar.unary(g, "sqrt", a))
        if name == "prod":
            return functools.reduce(operator.mul, *args, *(kwargs.values() or (1,)))
        if name in _ANSWERS:
            follower, value = x.follower, x.value
            known = (
                follower is not None
                and value is not None
                and follower.computed(lambda g: g.definedness.finite(value)) is not None
            )
            return _ANSWERS[name] if known else x.refuse()
        return x.computed() if name in _COMPUTED else x.refuse()

    return functools.wraps(f)(call)


def _of_two(f: Callable[..., Any], follow: Callable[..., Any]) -> Callable[..., Any]:
    """max or min, of a number that depends on data and other numbers."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if (
            len(args) > 1
            and not kwargs
            and any(type(x) is DataNumber for x in args)
            and all(isinstance(x, (int, float)) for x in args)
        ):
            first = next(x for x in args if type(x) is DataNumber)
            others = [x for x in args if x is not first]
            return functools.reduce(lambda a, b: a.followed(follow, b), others, first)
        return f(*args, **kwargs)

    return functools.wraps(f)(call)


@contextlib.contextmanager
def _standing_in(number: float) -> Iterator[None]:
    global _stand_in, _made
    before, _stand_in, _made = _stand_in, number, itertools.count()
    try:
        yield
    finally:
        _stand_in = before


@contextlib.contextmanager
def data_numbers(follower: Follower, stand_in: float = math.nan) -> Iterator[None]:
    """Inside, Tensor.item() gives such numbers, and functions of `math`, max and min know them.

    stand_in: their number where nothing of this follows them. Where another number makes another
    program, something is decided by what depends on data.
    """
    item, to_float, to_int, to_complex, to_list = (
        torch.Tensor.item,
        torch.Tensor.__float__,
        torch.Tensor.__int__,
        torch.Tensor.__complex__,
        torch.Tensor.tolist,
    )

    def known(x: Any) -> Any:
        value, drawn = follower.taken()
        return (
            DataNumber(follower.where(), value, follower, drawn)
            if type(x) is float and math.isnan(x)
            else x
        )

    def as_float(self: torch.Tensor) -> float:
        x: float = to_float(self)
        return DataNumber(follower.where()).refuse() if math.isnan(x) else x

    def as_complex(self: torch.Tensor) -> complex:
        x: complex = to_complex(self)
        return DataNumber(follower.where()).refuse() if x != x else x

    def as_int(self: torch.Tensor) -> int:
        if self.dtype.is_floating_point and math.isnan(to_float(self)):
            DataNumber(follower.where()).refuse()
        return int(to_int(self))

    def as_list(self: torch.Tensor) -> Any:
        def each(x: Any) -> Any:
            return [each(y) for y in x] if isinstance(x, list) else known(x)

        if (counts := follower.row_counts(self)) is not None:
            return counts
        return each(to_list(self)) if self.dtype.is_floating_point else to_list(self)

    def as_number(self: torch.Tensor) -> Any:
        if (counts := follower.row_counts(self)) is not None:
            return counts
        follower.counting += 1  # counts may depend on data, too, where they stay numbers of Python
        try:
            return known(item(self))
        finally:
            follower.counting -= 1

    to_bool, is_nonzero = torch.Tensor.__bool__, torch.Tensor.is_nonzero

    def decided(self: torch.Tensor) -> None:
        """Not-a-number is true to Python."""
        if self.numel() == 1 and self.dtype.is_floating_point and math.isnan(to_float(self)):
            DataNumber(follower.where()).refuse()

    def as_bool(self: torch.Tensor) -> bool:
        decided(self)
        return bool(to_bool(self))

    def as_nonzero(self: torch.Tensor) -> bool:
        decided(self)
        return bool(is_nonzero(self))

    to_text = torch.Tensor.__repr__

    def as_text(self: torch.Tensor, **contents: Any) -> str:
        return (
            Text(follower.where(), _standing_for(None))
            if follower.unknown_text(self)
            else to_text(self, **contents)
        )

    methods = {
        "__repr__": as_text,
        "__bool__": as_bool,
        "is_nonzero": as_nonzero,
        "item": as_number,
        "__float__": as_float,
        "__int__": as_int,
        "__complex__": as_complex,
        "tolist": as_list,
    }
    own = {name: vars(torch.Tensor)[name] for name in methods if name in vars(torch.Tensor)}
    try:
        for name, f in methods.items():
            setattr(torch.Tensor, name, f)
        with _standing_in(stand_in), changes() as undo:
            replace_everywhere(
                [(f, _of_numbers(name, f)) for name, f in _functions(math)]
                + [(f, _of_numbers("", f)) for _, f in _functions(cmath)],
                undo,
            )
            set_attribute(torch, "is_nonzero", as_nonzero, undo)
            for name, follow in (("max", ar.maximum), ("min", ar.minimum)):
                set_attribute(builtins, name, _of_two(getattr(builtins, name), follow), undo)
            yield
    finally:
        for name in methods:
            setattr(torch.Tensor, name, own[name]) if name in own else delattr(torch.Tensor, name)
