# SPDX-License-Identifier: Apache-2.0
"""What one element of a symbolic state dict holds, as a 64-bit integer.

Two elements hold the same number for every checkpoint if their integers are equal. The integers are
exact: they are never stored in, or computed by, floating-point arithmetic.

    identity = chain * 2**46 + base

base is an element of the source, a constant, a result of declared arithmetic, or one of the three
special values. chain numbers a sequence of rounding casts, applied to base from left to right. A
cast to a dtype that has all values of the element's own dtype changes no value, so that it is left
out of the chain: bfloat16 to float32 and back is no cast at all, float32 to bfloat16 and back is
"rounded to bfloat16".

The value of a cast must depend on the element's value and the new dtype only, whatever wider dtype
held the value in between. That is so for casts between floating-point dtypes and from integers:
each rounds the value (to nearest, perhaps by way of float32, which is exact for values that fit
it). Casts to integers and booleans that change values are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch

_BASES = 2**46
_CONSTANT = 2**45
_TERM = _CONSTANT + 2**44
UNINITIALIZED = _TERM + 2**43  # memory that nothing has written
RANDOM = UNINITIALIZED + 1  # a number that was drawn
ANYTHING = UNINITIALIZED + 2  # of a specification: an element that is not compared


class _Format(NamedTuple):
    """A binary floating-point format: significand bits, exponents of the smallest and the largest
    power of two, whether it has infinities and a negative zero."""

    bits: int
    low: int
    high: int
    infinite: bool = True
    negative_zero: bool = True


_FORMATS = {
    torch.float64: _Format(53, -1074, 1023),
    torch.float32: _Format(24, -149, 127),
    torch.bfloat16: _Format(8, -133, 127),
    torch.float16: _Format(11, -24, 15),
    torch.float8_e5m2: _Format(3, -16, 15),
    torch.float8_e4m3fn: _Format(4, -9, 8, infinite=False),
    torch.float8_e5m2fnuz: _Format(3, -17, 15, infinite=False, negative_zero=False),
    torch.float8_e4m3fnuz: _Format(4, -10, 7, infinite=False, negative_zero=False),
}
_RANGES = {torch.bool: (0, 1)} | {
    dtype: (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    for dtype in (
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    )
}


def base_of(identities: torch.Tensor) -> torch.Tensor:
    """The identities without rounding casts."""
    return identities % _BASES


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def keeps_values(old: torch.dtype, new: torch.dtype) -> bool:
    """Does a cast keep each value of the old dtype (of NaNs: that it is one)?"""
    if old == new:
        return True
    if old in _FORMATS and new in _FORMATS:
        a, b = _FORMATS[old], _FORMATS[new]
        return bool(
            a.bits <= b.bits
            and a.low >= b.low
            and a.high <= b.high
            and a.infinite <= b.infinite
            and a.negative_zero <= b.negative_zero
        )
    if old in _RANGES and new in _RANGES:
        low, high = _RANGES[old]
        return bool(_RANGES[new][0] <= low and high <= _RANGES[new][1])
    if old in _RANGES and new in _FORMATS:
        low, high = _RANGES[old]
        format = _FORMATS[new]
        return bool(max(-low, high) <= 2 ** min(format.bits, format.high))
    return False


class SourceTensor(NamedTuple):
    """A tensor of the source: the identities of its elements, in its shape."""

    name: str
    identities: torch.Tensor
    dtype: torch.dtype


class Identities:
    """The identities of one verification.

    refuse: raises what ends the verification.
    """

    def __init__(self, refuse: Callable[[str], NoReturn]) -> None:
        self.refuse = refuse
        self.sources: list[SourceTensor] = []
        self._starts: list[int] = []  # of the blocks of source elements, ascending
        self._dtypes: list[torch.dtype] = []  # of each block
        self._elements = 0
        self._constants: list[tuple[str, Any]] = []
        self._constant_of: dict[tuple[str, Any], int] = {}
        self._terms: list[tuple[str, torch.dtype, tuple[int, ...]]] = []
        self._term_of: dict[Any, int] = {}
        self._chains: list[tuple[torch.dtype, ...]] = [()]
        self._chain_of: dict[tuple[torch.dtype, ...], int] = {(): 0}

    # ---- elements of the source

    @property
    def elements(self) -> int:
        """How many there are: they have the numbers below."""
        return self._elements

    def block(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """New identities for so many elements of the source, one-dimensional."""
        self._starts.append(self._elements)
        self._dtypes.append(dtype)
        self._elements += elements
        return torch.arange(self._elements - elements, self._elements, dtype=torch.int64)

    # ---- constants

    def constant(self, value: Any, floating: bool) -> int:
        """The identity of a number. Zeros of both signs differ; all NaNs are one."""
        key: tuple[str, Any]
        if floating:
            value = float(value)
            key = ("nan", 0) if value != value else ("float", value.hex())
        else:
            value = int(value)
            key = ("int", value)
        if key not in self._constant_of:
            self._constant_of[key] = len(self._constants)
            self._constants.append((key[0], value))
        return _CONSTANT + self._constant_of[key]

    def of_values(self, values: torch.Tensor) -> torch.Tensor:
        """The identities of known numbers, in the layout of their tensor."""
        if values.dtype not in _FORMATS and values.dtype not in _RANGES:
            self.refuse(f"constants of dtype {name_of(values.dtype)} are not supported")
        if values.is_meta:
            self.refuse("a tensor on the meta device has no values")
        floating = values.dtype in _FORMATS
        if floating:  # by bits, as 0.0 == -0.0
            wide = values.to(torch.float64).contiguous().view(torch.int64)
        elif values.dtype == torch.uint64:
            wide = values.contiguous().view(torch.int64)
        else:
            wide = values.to(torch.int64)
        unique, where = wide.reshape(-1).unique(return_inverse=True)
        numbers = unique.view(torch.float64) if floating else unique
        found = numbers.tolist()
        if values.dtype == torch.uint64:
            found = [v % 2**64 for v in found]
        table = torch.tensor([self.constant(v, floating) for v in found], dtype=torch.int64)
        result = torch.empty_strided(values.shape, _dense(values), dtype=torch.int64)
        return result.copy_(table[where].view(values.shape) if found else result)

    def all_known(self, identities: torch.Tensor) -> bool:
        """Is each element a constant?"""
        return bool(((identities >= _CONSTANT) & (identities < _TERM)).all())

    def values(self, identities: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The numbers of constants, in the layout of their identities."""
        unique, where = identities.reshape(-1).unique(return_inverse=True)
        numbers = [self._constants[i - _CONSTANT][1] for i in unique.tolist()]
        if dtype == torch.uint64:
            numbers = [n - 2**64 if n >= 2**63 else n for n in numbers]
            table = torch.tensor(numbers, dtype=torch.int64).view(torch.uint64)
        else:
            wide = torch.float64 if dtype in _FORMATS else torch.int64
            table = torch.tensor(numbers, dtype=wide).to(dtype)
        result = torch.empty_strided(identities.shape, _dense(identities), dtype=dtype)
        if numbers:
            picked = (
                table.view(torch.int64)[where].view(torch.uint64)
                if dtype == torch.uint64
                else table[where]
            )
            result.copy_(picked.view(identities.shape))
        return result

    # ---- casts

    def cast(self, identities: torch.Tensor, old: torch.dtype, new: torch.dtype) -> torch.Tensor:
        """What elements of a tensor of the old dtype hold after a cast. The result is a copy."""
        result = identities.clone()
        if old == new:
            return result
        chains, bases = identities // _BASES, identities % _BASES
        known = (bases >= _CONSTANT) & (bases < _TERM)
        if bool(known.any()):
            values = self.values(identities[known], old).to(new)
            result[known] = self.of_values(values)
        kinds = torch.full_like(bases, -1)  # constants, and special values: nothing to do
        blocks = torch.bucketize(bases, torch.tensor(self._starts, dtype=torch.int64), right=True)
        kinds = torch.where(bases < _CONSTANT, blocks - 1, kinds)
        terms = (bases >= _TERM) & (bases < UNINITIALIZED)
        kinds = torch.where(terms, len(self._starts) + bases - _TERM, kinds)
        width = len(self._starts) + len(self._terms) + 1
        for case in (chains * width + kinds + 1).unique().tolist():
            chain, kind = case // width, case % width - 1
            if kind < 0:
                continue
            if self._chains[chain]:
                own = self._chains[chain][-1]
            elif kind < len(self._starts):
                own = self._dtypes[kind]
            else:
                own = self._terms[kind - len(self._starts)][1]
            if keeps_values(own, new):
                continue
            if own not in _FORMATS and own not in _RANGES or new not in _FORMATS:
                self.refuse(
                    f"a cast from {name_of(own)} to {name_of(new)} changes values in a way that is "
                    "not followed (casts to floating-point dtypes are)"
                )
            longer = (*self._chains[chain], new)
            if longer not in self._chain_of:
                self._chain_of[longer] = len(self._chains)
                self._chains.append(longer)
            here = (chains == chain) & (kinds == kind)
            result[here] = bases[here] + self._chain_of[longer] * _BASES
        return result

    # ---- arithmetic

    def term(
        self, key: tuple[Any, ...], text: str, operands: list[torch.Tensor], dtype: torch.dtype
    ) -> torch.Tensor:
        """An elementwise function of operands of one shape. Equal keys and equal operands give
        equal identities. text: with a pair of braces for each operand."""
        shape = operands[0].shape
        rows = torch.stack([o.reshape(-1) for o in operands], 1)
        unique, where = rows.unique(dim=0, return_inverse=True)
        found = []
        for row in unique.tolist():
            whole = (key, tuple(row))
            if whole not in self._term_of:
                self._term_of[whole] = len(self._terms)
                self._terms.append((text, dtype, tuple(row)))
            found.append(_TERM + self._term_of[whole])
        return torch.tensor(found, dtype=torch.int64)[where].view(shape)

    # ---- reports

    def uses(self, held: list[torch.Tensor]) -> torch.Tensor:
        """Of each element of the source, how often the identities are that element, perhaps cast.
        An element inside of terms counts once for all of them."""
        bases = torch.cat([torch.empty(0, dtype=torch.int64), *(x.reshape(-1) for x in held)])
        bases %= _BASES
        pending = bases[(bases >= _TERM) & (bases < UNINITIALIZED)].unique().tolist()
        counts = torch.bincount(bases[bases < _CONSTANT], minlength=self._elements)
        seen, inside = set(pending), set()
        while pending:
            for operand in self._terms[pending.pop() - _TERM][2]:
                base = operand % _BASES
                if base < _CONSTANT:
                    inside.add(base)
                elif _TERM <= base < UNINITIALIZED and base not in seen:
                    seen.add(base)
                    pending.append(base)
        counts[torch.tensor(sorted(inside), dtype=torch.int64)] += 1
        return counts

    def describe(self, identity: int) -> str:
        """The element in words."""
        chain, base = divmod(identity, _BASES)
        text = self._base(base)
        return text + "".join(f" rounded to {name_of(d)}" for d in self._chains[chain])

    def _base(self, base: int) -> str:
        if base == UNINITIALIZED:
            return "memory that nothing has written"
        if base == RANDOM:
            return "a random number"
        if base == ANYTHING:
            return "anything"
        if base >= _TERM:
            text, _, operands = self._terms[base - _TERM]
            return text.format(*(self.describe(o) for o in operands))
        if base >= _CONSTANT:
            return f"the constant {self._constants[base - _CONSTANT][1]}"
        for source in self.sources:
            at = (source.identities == base).nonzero()
            if len(at):
                return f"{source.name}{at[0].tolist()}"
        return "an element that no tensor of the source shows"


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of a copy that keeps the order of dimensions, as clone() makes it."""
    return tuple(torch.empty_like(tensor, device="meta").stride())
