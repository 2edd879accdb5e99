# SPDX-License-Identifier: Apache-2.0
"""What the memory of a program holds while it runs: storages, by the tensors that see them.

All reads and writes of tensors go through here. So one place notices what is under way
(asynchronous calls), never written, or freed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch

from ..compat import private
from ..terms import arithmetic
from ..terms.constants import FOLD_LIMIT, number
from ..terms.geometry import Geometry, as_real, geometry_of
from ..terms.graph import Graph
from ..terms.storage import Storage, pair, unpair
from ..terms.values import (
    Complex,
    Filled,
    Known,
    Poison,
    Poisoned,
    Reason,
    Unsupported,
    Value,
    kind_of,
)


def shortest(x: float, dtype: torch.dtype) -> float:
    """The number as which a constant of a short dtype was written.

    It is a fraction of small numbers, else the one with the fewest decimals.
    """
    if not math.isfinite(x) or dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return x
    near = Fraction(x).limit_denominator(1 << 10)
    if near and float(torch.tensor(float(near), dtype=dtype)) == x:
        return float(near)
    for digits in range(1, 10):
        y = float(f"{x:.{digits}g}")
        if float(torch.tensor(y, dtype=dtype)) == x:
            return y
    return x


_MANY = 8  # numbers that make a list a part of a batch


def constant(data: torch.Tensor) -> Value:
    """A real tensor as a value: one number where all are equal."""
    if data._is_zerotensor():  # of forward differentiation: it has no memory
        data = torch.zeros(data.shape, dtype=data.dtype)
    kind = kind_of(data.dtype)
    if kind == "complex":
        return Complex(constant(data.real.contiguous()), constant(data.imag.contiguous()))
    if data.numel() == 0:
        return Filled(0, data.shape, kind)
    first = data.reshape(-1)[0]
    if data.numel() == 1 or bool(data.reshape(-1)[-1] == first) and bool((data == first).all()):
        x = first.item()
        return (
            Filled(
                number(shortest(x, data.dtype) if kind == "real" and not math.isnan(x) else x),
                data.shape,
                kind,
            )
            if not (isinstance(x, float) and math.isnan(x))
            else Known(data)
        )
    return Known(data)


class Memory:
    """Storages of one side. g: its graph; where: the line that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.g = Graph()
        self.storages: dict[int, Storage] = {}
        self.mode: Any = None  # of the fake tensors of this recording
        # what the program does that no order of its communication makes right, and where
        self.hazards: dict[str, str] = {}
        # by the token of an asynchronous operator what it reads and writes
        self._under_way: dict[object, list[Storage]] = {}
        # a token, and that of the operator of whose result the tensor is a copy
        self._stands_for: dict[object, object] = {}
        self._pairs: dict[tuple[int, bool], tuple[Value, Value]] = {}

    def where(self) -> str:
        """The line that runs."""
        raise NotImplementedError

    def _storage(self, t: torch.Tensor) -> Storage:
        key = private.storage_key(t)
        s = self.storages.get(key)
        if s is None:
            s = self.storages[key] = Storage(t.untyped_storage())
            if not isinstance(t, private.FakeTensor) and t.device.type != "meta":
                self._adopt(s, t)
            elif isinstance(t, private.FakeTensor) and t.fake_mode is not self.mode is not None:
                whole = (
                    t.untyped_storage().nbytes() // t.element_size() * (2 if t.is_complex() else 1),
                )
                self._put(
                    s,
                    Poison(
                        whole,
                        Reason(
                            "a tensor that was made while another rank was recorded (or in an "
                            "earlier call of sp.verify) and was kept, in a global or a cache",
                            self.where(),
                        ),
                    ),
                    Geometry(whole, (1,), 0),
                    False,
                )
        return s

    def _adopt(self, s: Storage, t: torch.Tensor) -> None:
        """A real tensor that was made outside: its numbers are constants."""
        with private.outside():
            plain = t.detach()
            size = tuple(plain.shape)
            if plain.numel() > FOLD_LIMIT:
                s.segments = []
                value: Value = Poison(
                    size, Reason("a large tensor that was made before the step", self.where())
                )
            elif not plain.is_complex() and plain.is_floating_point() and bool(plain.isnan().any()):
                value = Poison(
                    size,
                    Reason(
                        "a tensor made of not-a-number, which a number that depends on data is "
                        "here (Tensor.item())",
                        self.where(),
                    ),
                )
            else:
                value = constant(
                    plain.clone().contiguous()
                    if not plain.is_complex()
                    else plain.clone().resolve_conj().contiguous()
                )
                # of NumPy's memory, or a list that is no handful of settings
                many = plain.numel() >= _MANY or not t.untyped_storage().resizable()
                if isinstance(value, Known) and many:
                    value = Known(value.data, host=True)
                elif isinstance(value, Filled) and many:  # others may not be all equal
                    value = Filled(value.fill, value.shape, value.kind, host=True)
            geometry = Geometry(size, tuple(plain.stride()), plain.storage_offset())
        self._put(s, value, geometry, t.is_complex())

    def _put(self, s: Storage, value: Value, at: Geometry, is_complex: bool) -> None:
        if is_complex:
            at, value = as_real(at), unpair(self.g, value)
        if s.sent and (name := s.being_sent(at)) is not None:
            self.hazards.setdefault(
                f"a buffer that an asynchronous {name} still sends is written before its wait",
                self.g.loc,
            )
        if s.pending and (name := s.unfinished(at)) is not None:
            self.hazards.setdefault(
                f"a buffer that an asynchronous {name} still writes is written before its wait",
                self.g.loc,
            )
        s.write(self.g, value, at, self.g.loc)

    @staticmethod
    def geometry(t: torch.Tensor) -> Geometry:
        return geometry_of(t)

    def read(self, t: torch.Tensor) -> Value:
        """What a tensor holds now."""
        with private.outside():
            return self._read(t)

    def numbers(self, x: Any) -> Any:
        """The numbers of a tensor that holds constants, as a real tensor; else x itself."""
        if not isinstance(x, private.FakeTensor):
            return x
        v = self.read(x)
        with private.outside():
            return self.g.data(v) if isinstance(v, (Filled, Known)) else x

    def _read(self, t: torch.Tensor) -> Value:
        if isinstance(t, private.AsyncCollectiveTensor):
            t = t.elem
        inner = private.plain(t)
        if inner is None:
            return Poison(t.shape, Reason("a tensor inside torch.vmap", self.g.loc))
        t = inner
        if t.layout != torch.strided:
            return Poison(t.shape, Reason("a sparse tensor", self.g.loc))
        s = self._storage(t)
        at = self.geometry(t)
        if s.pending and (name := s.unfinished(as_real(at) if t.is_complex() else at)) is not None:
            return Poison(
                t.shape,
                Reason(
                    f"the result of an asynchronous {name} is read before its wait",
                    self.g.loc,
                    hazard=True,
                ),
            )
        try:
            if t.is_complex():
                return self._complex(s.read(self.g, as_real(at), self.g.loc), t.is_conj())
            v = s.read(self.g, at, self.g.loc)
            if t.is_neg():
                v = arithmetic.negate(self.g, v)
            return v
        except Unsupported as e:
            return Poison(t.shape, Reason(str(e), self.g.loc))

    def _complex(self, real: Value, conjugate: bool) -> Value:
        """The pairs of a real value; once for each value."""
        before = self._pairs.get((id(real), conjugate))
        if before is None:
            v = pair(self.g, real)
            if conjugate and isinstance(v, Complex):
                v = Complex(v.real, arithmetic.negate(self.g, v.imag))
            before = self._pairs[(id(real), conjugate)] = (real, v)
        return before[1]

    def write(self, t: torch.Tensor, value: Value) -> None:
        """The tensor's elements become the value, whose shape is broadcast to the tensor's."""
        with private.outside():
            self._write(t, value)

    def _write(self, t: torch.Tensor, value: Value) -> None:
        if isinstance(t, private.AsyncCollectiveTensor):
            t = t.elem
        shape = tuple(int(n) for n in t.shape)
        try:
            if value.shape != shape:
                value = self.g.expand(value, shape)
            if t.is_conj() or t.is_neg():
                raise Unsupported("a write to a conjugate view")
            if not t.is_complex() and isinstance(value, Complex):
                raise Unsupported("a complex value is written to a real tensor")
            if (
                kind_of(t.dtype) in ("int", "bool")
                and getattr(value, "kind", "") != kind_of(t.dtype)
                and isinstance(value, (Filled, Known))
            ):
                value = self._to_integer(value, t.dtype)
            if t.is_complex() and not isinstance(value, (Complex, Poison)):
                value = Complex(value, Filled(0, value.shape))
        except (Unsupported, Poisoned) as e:
            value = Poison(shape, self._reason(e))
        s = self._storage(t)
        self._put(s, value, self.geometry(t), t.is_complex())

    @staticmethod
    def _to_integer(value: Filled | Known, dtype: torch.dtype) -> Value:
        if isinstance(value, Filled):
            return Filled(
                int(value.fill) if dtype != torch.bool else int(value.fill != 0),
                value.shape,
                kind_of(dtype),
            )
        return Known(value.data.to(dtype), value.host)

    def _reason(self, e: Exception) -> Reason:
        return e.reason if isinstance(e, Poisoned) else Reason(str(e), self.g.loc)

    def pend(self, t: torch.Tensor, name: str, token: object) -> None:
        """An asynchronous operator writes the tensor until `finish(token)`."""
        low, high = self.geometry(t).span()
        s = self._storage(t)
        s.pending[token] = (low, high, name)
        self._under_way.setdefault(token, []).append(s)

    def sending(self, t: torch.Tensor, name: str, token: object) -> None:
        """An asynchronous operator reads the tensor until `finish(token)`."""
        low, high = self.geometry(t).span()
        s = self._storage(t)
        s.sent[token] = (low, high, name)
        self._under_way.setdefault(token, []).append(s)

    def also(self, token: object, old: object) -> None:
        """`finish(token)` finishes what `old` stands for, too."""
        self._stands_for[token] = old

    def finish(self, token: object) -> None:
        """What this asynchronous operator reads and writes is no longer under way."""
        for s in self._under_way.pop(token, ()):
            s.pending.pop(token, None)
            s.sent.pop(token, None)
        if token in self._stands_for:
            self.finish(self._stands_for.pop(token))

    def freed(self, key: int) -> None:
        """Memory was given back: what it held is gone."""
        s = self.storages.get(key)
        if s is not None:
            s.segments, s._cache, s.freed = [], {}, True
