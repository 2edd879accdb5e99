# SPDX-License-Identifier: Apache-2.0
"""Constants: numbers as the files write them, and constant values as tensors of the graph."""

from __future__ import annotations

import functools
import hashlib
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol

import torch

from . import assumptions
from .values import Filled, Known, Named, Shape, Unsupported, Value

LITERAL_LIMIT = 4096  # elements of a constant with two values, or of a mask, that is written out
ROUNDINGS = 4  # units in the last place by which a constant that was computed may be off
FOLD_LIMIT = 1 << 24  # elements of a constant that is computed here


def number(x: Any) -> int | float:
    """A Python number as the files write it; whole ones as integers."""
    if isinstance(x, bool):
        return int(x)
    if isinstance(x, int):
        return x
    y = float(x)
    if math.isnan(y):
        raise Unsupported(
            "a number that depends on data (or is no number) is used in a computation"
        )
    if math.isinf(y):
        return y
    return int(y) if y == int(y) and abs(y) < 1e15 else y


@functools.lru_cache(maxsize=1 << 12)
def as_decimal(x: float) -> float | None:
    """The short decimal (1e-05) that was rounded to float32 before it became this double.

    A kernel takes a number of Python's as a float32, and PyTorch shows some with that rounding and
    others without. None where no decimal of few digits is rounded to x.
    """
    if len(repr(x)) <= _LONG or not math.isfinite(x):
        return None
    found = float(f"{x:.{_DIGITS}g}")
    return found if struct.unpack("f", struct.pack("f", found))[0] == x else None


def decimal(graph: Builder, x: float) -> float:
    """The short decimal that a number was before it was rounded to float32, or the number."""
    found = as_decimal(x)
    if found is None:
        return x
    graph.assume(assumptions.fraction(x, repr(found)))
    return found


_LONG = 12  # characters of a double that is no short decimal
_DIGITS = 6  # of a short decimal; float32 has seven to nine


@functools.lru_cache(maxsize=1 << 12)
def as_fraction(x: float) -> tuple[int, int, bool] | None:
    """(p, q, root): x is p/q up to a few roundings, or, with root, the double nearest to sqrt(p/q).

    None where the decimals of x are exact, or no such fraction is near.
    """
    if isinstance(x, int) or not math.isfinite(x) or x == 0:
        return None
    near = Fraction(x).limit_denominator(1 << 18)
    # 0.7 / 12 and half of 0.7 / 6 are two doubles
    if near.numerator and abs(float(near) - x) <= ROUNDINGS * math.ulp(x):
        q = near.denominator
        for prime in (2, 5):
            while q % prime == 0:
                q //= prime
        return (
            (near.numerator, near.denominator, False)
            if (q != 1 or float(near) != x) and abs(near.numerator) < 1 << 20
            else None
        )
    if x > 0:
        near = Fraction(x * x).limit_denominator(1 << 12)
        if (
            near.numerator
            and near.numerator < 1 << 16
            and math.sqrt(near) == x
            and len(repr(x)) > _LONG
        ):
            return near.numerator, near.denominator, True
    return None


def _numbers(x: Any) -> Any:
    return [_numbers(y) for y in x] if isinstance(x, list) else number(x)


class Builder(Protocol):
    """What makes tensors and nodes: the graph."""

    tensors: dict[str, dict[str, Any]]
    loc: str

    def declare(
        self, name: str, shape: Shape, kind: str = "real", role: str | None = None
    ) -> Named: ...

    def one(
        self,
        op: str,
        operands: Sequence[Value | None],
        shape: Shape,
        attrs: dict[str, Any] | None = None,
    ) -> Named: ...

    def expand(self, v: Value, shape: Sequence[int]) -> Value: ...

    def assume(self, assumption: assumptions.Assumption) -> None: ...


class Constants:
    """The constants of one graph. Equal ones are one tensor.

    declared: names and numbers of those that are too large to be written out; they are inputs.
    """

    def __init__(self, graph: Builder) -> None:
        self._graph = graph
        self.declared: list[tuple[str, torch.Tensor]] = []
        self._fills: dict[Any, Named] = {}
        self._known: dict[Any, list[tuple[Named, torch.Tensor]]] = {}
        # By the id of a value, and by the memory of its numbers. Value and numbers are kept, so
        # that no other object gets their id or address.
        self._by_value: dict[int, tuple[Known, Named]] = {}
        self._by_memory: dict[Any, tuple[Named, torch.Tensor]] = {}
        self._by_name: dict[str, Known] = {}
        self.arrays: dict[str, tuple[str, str]] = {}

    def named(self, name: str) -> Known | None:
        """What a tensor of this name holds; None where it is no constant tensor."""
        return self._by_name.get(name)

    def forget(self) -> None:
        self._by_value.clear()
        self._by_name.clear()
        self._by_memory.clear()

    def filled(self, v: Filled) -> Named:
        """One number everywhere. Raises Unsupported for infinities."""
        if not math.isfinite(v.fill):
            raise Unsupported("an infinity or not-a-number is used as a number")
        if v.kind == "real" and isinstance(v.fill, float):
            v = Filled(decimal(self._graph, v.fill), v.shape)
        key = (v.fill, v.shape, v.kind)
        if (
            key not in self._fills
            and v.kind == "real"
            and (q := self._divisor([v.fill])) is not None
        ):
            self._fills[key] = self._graph.expand(
                self._graph.one("div", [Filled(round(v.fill * q), ())], (), {"scalar": q}), v.shape
            )  # type: ignore[assignment]
        if key not in self._fills:
            name = f"%const.{len(self._fills)}"
            self._graph.tensors[name] = {
                "shape": list(v.shape),
                "kind": "constant",
                "value": int(v.fill) if v.kind != "real" else number(v.fill),
            }
            if v.kind != "real":
                self._graph.tensors[name]["dtype"] = "int64"
            self._fills[key] = Named(name, v.shape, v.kind)
        return self._fills[key]

    def known(self, v: Known) -> Named:
        """A constant tensor. Raises Unsupported where it has infinities."""
        before = self._by_value.get(id(v))
        if before is None or before[0] is not v:
            before = self._by_value[id(v)] = (v, self._in_memory(v))
            if not v.host:
                self._by_name.setdefault(before[1].name, v)
            else:
                digest = hashlib.sha256(v.data.contiguous().numpy().tobytes()).hexdigest()
                self.arrays.setdefault(before[1].name, (self._graph.loc, digest))
        return before[1]

    def _in_memory(self, v: Known) -> Named:
        data = v.data
        same = (data.data_ptr(), data.dtype, v.shape, data.stride(), v.kind)
        if same not in self._by_memory:
            self._by_memory[same] = (self._by_numbers(v), data)
        return self._by_memory[same][0]

    def _by_numbers(self, v: Known) -> Named:
        data = v.data
        if data.dtype == torch.bool:
            data = data.to(torch.int64)
        if data.is_floating_point() and not bool(torch.isfinite(data).all()):
            raise Unsupported(
                "a constant tensor with infinities or not-a-numbers is used as numbers"
            )
        equal = self._known.setdefault((v.kind == "real", v.shape), [])
        for tensor, other in equal:
            if torch.equal(data.double(), other.double()):
                return tensor
        if data.untyped_storage().nbytes() > data.numel() * data.element_size():
            # not the memory that it is a part of
            data = data.clone(memory_format=torch.contiguous_format)
        name = f"%known.{sum(map(len, self._known.values()))}"
        if data.numel() <= LITERAL_LIMIT and (
            v.kind != "real" or bool((data == data.round()).all()) or len(torch.unique(data)) <= 2
        ):
            q = self._divisor(torch.unique(data).tolist()) if v.kind == "real" else None
            # a mask, positions or counts: what is proved may depend on the numbers
            tensor = self._graph.declare(name, v.shape, v.kind, "constant")
            self._graph.tensors[name]["value"] = _numbers(
                (self._decimals(v, data) if q is None else (data * q).round()).tolist()
            )
            if q is not None:
                tensor = self._graph.one("div", [tensor], v.shape, {"scalar": q})
            equal.append((tensor, data))
            return tensor
        tensor = self._graph.declare(name, v.shape, v.kind, "input")
        equal.append((tensor, data))
        self.declared.append((name, data))
        return tensor

    def _decimals(self, v: Known, data: torch.Tensor) -> torch.Tensor:
        """With the short decimals of at most two numbers."""
        if v.kind != "real":
            return data
        for x in torch.unique(data.double()).tolist()[:2]:
            data = torch.where(data == x, decimal(self._graph, x), data.double())
        return data

    def _divisor(self, numbers: Sequence[float]) -> int | None:
        """A whole number by which all constants become whole numbers.

        None where their decimals are exact (as_fraction), or there is none.
        """
        found = {x: as_fraction(x) for x in map(float, numbers)}
        if (
            len(found) > 2
            or not any(found.values())
            or any(f is not None and f[2] for f in found.values())
        ):
            return None
        q = math.lcm(
            *(f[1] if f is not None else Fraction(repr(x)).denominator for x, f in found.items())
        )
        if q > 1 << 30:
            return None
        for x, f in found.items():
            if f is not None:
                self._graph.assume(assumptions.fraction(x, f"{f[0]}/{f[1]}"))
        return q
