# SPDX-License-Identifier: Apache-2.0
"""Numbers of rows that depend on data, in the recorded program.

To PyTorch such a number is the size that the fake tensor has. Whatever reads it as a number would
read that size: so it may be a size again, and be compared with none at all. Other arithmetic makes
it a `DataNumber`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..terms import arithmetic as ar
from .data_number import DataDependent, DataNumber, Text


class RowCount(int):
    """rows: RowTensors. number: makes the value of the number. counts: what it counts."""

    rows: Any
    number: Callable[[], Any]
    counts: Any

    def __new__(cls, size: int, rows: Any, number: Callable[[], Any], counts: Any) -> RowCount:
        self = super().__new__(cls, size)
        self.rows, self.number, self.counts = rows, number, counts
        return self

    def refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise DataDependent(
            f"{self.rows.recorder.where()}: a number of rows that depends on data is used "
            "other than as a size, or to ask whether there are any"
        )

    def data_number(self) -> DataNumber:
        recorder = self.rows.recorder
        return DataNumber(recorder.where(), recorder.computed(lambda g: self.number()), recorder)

    def _present(self, answer: bool) -> bool:
        self.rows.present(self.rows.recorder.where())
        return answer

    def __bool__(self) -> bool:
        return self._present(True)

    def _compared(self, other: Any, name: str) -> bool:
        if (
            type(other) is RowCount
            and other.counts == self.counts
            and int.__index__(other) == int.__index__(self)
        ):
            return name in ("eq", "le", "ge")
        if type(other) is RowCount and (more := self._more(other)):
            # one counts all that the other counts, and more
            return self._present(name in (("ne", "gt", "ge") if more > 0 else ("ne", "lt", "le")))
        if type(other) is int and other in (0, 1):
            some = {("eq", 0): False, ("ne", 0): True, ("gt", 0): True, ("le", 0): False}
            some |= {("lt", 1): False, ("ge", 1): True}
            if (name, other) in some:
                return self._present(some[name, other])
            if (name, other) in (("ge", 0), ("lt", 0)):
                return name == "ge"
        return self.refuse()

    def _keys_with(self, other: RowCount) -> tuple[frozenset[Any], frozenset[Any]] | None:
        """What two numbers count, if it is rows of the same tensor."""
        a, b = self.counts, other.counts
        if not (type(a) is type(b) is tuple and len(a) == len(b) == 2 and a[0] == b[0]):
            return None
        return (a[1], b[1]) if type(a[1]) is type(b[1]) is frozenset else None

    def _more(self, other: RowCount) -> int:
        keys = self._keys_with(other)
        if keys is None or keys[0] == keys[1]:
            return 0
        return 1 if keys[0] > keys[1] else -1 if keys[0] < keys[1] else 0

    def __eq__(self, other: Any) -> bool:
        return self._compared(other, "eq")

    def __ne__(self, other: Any) -> bool:
        return self._compared(other, "ne")

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, "lt")

    def __le__(self, other: Any) -> bool:
        return self._compared(other, "le")

    def __gt__(self, other: Any) -> bool:
        return self._compared(other, "gt")

    def __ge__(self, other: Any) -> bool:
        return self._compared(other, "ge")

    def __add__(self, other: Any) -> Any:
        if type(other) is int and other == 0:
            return self
        keys = self._keys_with(other) if type(other) is RowCount else None
        if keys is None or keys[0] & keys[1]:
            return self.refuse()
        return RowCount(
            int.__index__(self),
            self.rows,
            lambda: ar.binary(self.rows.g, "add", self.number(), other.number()),
            (self.counts[0], keys[0] | keys[1]),
        )

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        if type(other) is int:
            if other == 1:
                return self
            return RowCount(
                int.__mul__(self, other),
                self.rows,
                lambda: ar.binary(self.rows.g, "mul", self.number(), other),
                (self.counts, other),
            )
        return self.data_number() * other if isinstance(other, float) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self.data_number() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.data_number()

    def __float__(self) -> Any:
        return self.data_number()

    def __str__(self) -> str:
        return Text(self.rows.recorder.where())

    def __format__(self, spec: str) -> str:
        return Text(self.rows.recorder.where())

    __repr__ = __str__
    __hash__ = __array__ = refuse
    __sub__ = __rsub__ = refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __pow__ = __rpow__ = refuse
    __neg__ = __abs__ = __int__ = __round__ = __lshift__ = __rshift__ = __and__ = __or__ = refuse


class RowCounts(list[Any]):
    """What `numpy()` of a tensor of such numbers gives: an array as far as it is iterated."""

    def tolist(self) -> list[Any]:
        return list(self)

    def sum(self) -> Any:
        return sum(self)


class RowShape(tuple[int, ...]):
    """The shape of a tensor of rows. torch.Size would multiply its numbers in C++."""

    def numel(self) -> Any:
        product: Any = 1
        for n in self:
            product = n * product
        return product


# of tensors that have such rows already
_SHAPED = frozenset({"view", "reshape", "expand", "unflatten"})
_MADE = frozenset({"new_zeros", "new_ones", "zeros", "ones"})
_SIZED = _SHAPED | _MADE | {"new_empty", "empty", "all_to_all_single"}  # row_exchange.py


def count_among(args: Sequence[Any]) -> RowCount | None:
    """The first such number among operands, and lists of them."""
    for x in args:
        if type(x) is RowCount:
            return x
        if isinstance(x, slice):
            x = (x.start, x.stop, x.step)
        if isinstance(x, (tuple, list)) and (found := count_among(x)) is not None:
            return found
    return None


def sized_call(func: Any, count: RowCount, args: Any, kwargs: Any) -> Any:
    """A call with a number of rows as a size.

    Raises DataDependent for any other call: PyTorch would read the size of a fake tensor.
    """
    name = getattr(func, "__name__", "")
    if name == "arange":
        return count.rows.positions(args, kwargs)
    if name == "repeat_interleave":
        count.rows.repeats(args, kwargs)
        return func(*args, **kwargs)
    if name not in _SIZED or name in _SHAPED and not count.rows.has_rows(args[0]):
        count.rows.check(args[0] if args else None)
        count.refuse()
    made = func(*args, **kwargs)
    if name in _MADE:
        count.rows.made_like(made, args[1:] if name.startswith("new_") else args, kwargs)
    return made
