"""Numbers that depend on data, in the program that is recorded: they may be printed and added up, and nothing may be decided by them.

`.item()` of a tensor that depends on data has no number here. It is not-a-number, which poisons every tensor that it comes back into. Python compares not-a-number without complaint (every
comparison is false), so `if norm.item() > 1:` would go one way silently: these numbers refuse to be compared, rounded to integers, or made into others that would allow it.
"""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any, Callable, Iterator, NoReturn

import torch

from ._private import replace_everywhere


class DataDependent(RuntimeError):
    """The program asks for a number that depends on data."""


class DataNumber(float):
    """What `.item()` gives. loc: where it was asked for."""

    loc: str

    def __new__(cls, loc: str = "") -> "DataNumber":
        self = super().__new__(cls, math.nan)
        self.loc = loc if isinstance(loc, str) else ""
        return self

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        at = f"{self.loc}: " if self.loc else ""
        raise DataDependent(f"{at}what the program does next depends on data: a number that Tensor.item() gave is compared, or made into another kind of number "
                            "(it can be printed and computed with; what depends on it can be written with tensors: torch.where, torch.clamp)")

    def computed(self, *args: Any, **kwargs: Any) -> Any:
        if any(not isinstance(x, (int, float)) for x in args):
            return NotImplemented  # a tensor computes with it itself, and is poisoned
        return DataNumber(self.loc)

    __array_ufunc__ = None  # numpy
    __array__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __bool__ = __int__ = __float__ = __trunc__ = __floor__ = __ceil__ = __divmod__ = __rdivmod__ = refuse  # type: ignore[assignment]
    as_integer_ratio = is_integer = hex = refuse  # type: ignore[assignment]
    __hash__ = float.__hash__
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = computed  # type: ignore[assignment]
    __neg__ = __pos__ = __abs__ = __round__ = computed  # type: ignore[assignment]


_ANSWERS = {"isnan": False, "isinf": False, "isfinite": True}  # as for tensors
_COMPUTED = ("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "fabs", "fsum", "hypot", "tanh", "sin", "cos", "erf")
_REFUSED = ("isclose", "floor", "ceil", "trunc", "copysign", "fmod", "frexp", "modf", "ldexp", "remainder")


def _of_numbers(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        for x in args:
            for y in x if isinstance(x, (list, tuple)) else (x,):
                if type(y) is DataNumber:
                    return _ANSWERS[name] if name in _ANSWERS else y.refuse() if name in _REFUSED else y.computed()
        return f(*args, **kwargs)

    return functools.wraps(f)(call)


@contextlib.contextmanager
def data_numbers(where: Callable[[], str]) -> Iterator[None]:
    """Tensor.item() gives such numbers inside, and functions of `math` know them. where: the line that runs."""
    undo: list[tuple[Any, str, Any]] = []
    item, to_float, to_int, to_list = torch.Tensor.item, torch.Tensor.__float__, torch.Tensor.__int__, torch.Tensor.tolist

    def known(x: Any) -> Any:
        return DataNumber(where()) if type(x) is float and math.isnan(x) else x

    def as_float(self: torch.Tensor) -> float:
        x = to_float(self)
        return DataNumber(where()).refuse() if math.isnan(x) else x

    def as_int(self: torch.Tensor) -> int:
        if self.dtype.is_floating_point and math.isnan(to_float(self)):
            DataNumber(where()).refuse()
        return to_int(self)

    def as_list(self: torch.Tensor) -> Any:
        def each(x: Any) -> Any:
            return [each(y) for y in x] if isinstance(x, list) else known(x)

        return each(to_list(self)) if self.dtype.is_floating_point else to_list(self)

    methods = {"item": lambda self: known(item(self)), "__float__": as_float, "__int__": as_int, "tolist": as_list}
    own = {name: vars(torch.Tensor)[name] for name in methods if name in vars(torch.Tensor)}
    try:
        for name, f in methods.items():
            setattr(torch.Tensor, name, f)
        replace_everywhere([(getattr(math, name), _of_numbers(name, getattr(math, name))) for name in (*_ANSWERS, *_COMPUTED, *_REFUSED)], undo)
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)
        for name in methods:
            setattr(torch.Tensor, name, own[name]) if name in own else delattr(torch.Tensor, name)
