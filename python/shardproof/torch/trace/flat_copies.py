# SPDX-License-Identifier: Apache-2.0
"""Copies and multiples of flat buffers of several tensors, tensor by tensor.

The tensors stay apart, so that a proof sees them instead of stretches of memory.
"""

from __future__ import annotations

from typing import Any

import torch

from ..compat import private
from ..compat.fake_answers import Answers
from ..terms.geometry import Geometry, Segment, contiguous
from ..terms.values import Poison, Poisoned, Unsupported, Value, kind_of
from .memory import Memory
from .operator_calls import Call


class FlatCopies:
    """The flat buffers in the memory of one side. fake: runs operators on fake tensors."""

    def __init__(self, memory: Memory, fake: Answers) -> None:
        self.memory, self.fake = memory, fake

    def copy(self, target: Any, source: Any) -> bool:
        """Copies a flat buffer of several tensors as these. False where it is no such buffer."""
        if (
            not isinstance(source, torch.Tensor)
            or target.dtype.is_complex
            or source.dtype.is_complex
            or kind_of(target.dtype) != kind_of(source.dtype)
        ):
            return False
        if (
            any(type(t) is not private.FakeTensor or t.is_neg() for t in (target, source))
            or target.numel() != source.numel()
        ):
            return False
        with private.outside():
            a, b = self.memory.geometry(source), self.memory.geometry(target)
            s, d = self.memory._storage(source), self.memory._storage(target)
            if (
                s is d
                or s.pending
                or a != contiguous(a.size, a.offset)
                or b != contiguous(b.size, b.offset)
            ):
                return False
            parts = s.pieces(self.memory.g, a)
            if parts is None or len(parts) < 2 or any(isinstance(p.value, Poison) for p in parts):
                return False
            d.clear(b)
            for p in parts:
                d.write(
                    self.memory.g,
                    p.value,
                    Geometry(p.at.size, p.at.stride, p.at.offset - a.offset + b.offset),
                    self.memory.g.loc,
                )
        return True

    def copied(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A copy of a flat buffer of several tensors, also in another dtype, as these tensors.

        None where it is no such buffer.
        """
        source = args[0]
        if (
            type(source) is not private.FakeTensor
            or source.is_complex()
            or source.is_neg()
            or kind_of(kwargs.get("dtype") or source.dtype) != kind_of(source.dtype)
        ):
            return None
        with private.outside():
            at = self.memory.geometry(source)
            s = self.memory._storage(source)
            if (
                s.pending
                or at != contiguous(at.size, at.offset)
                or len(s.segments) < 2
                or len(s.pieces(self.memory.g, at) or ()) < 2
            ):
                return None
        out = self.fake(func, args, kwargs)
        if not self.copy(out, source):
            self.memory.write(out, self.memory.read(source))
        return out

    def scale(self, name: str, func: Any, lowering: Any, args: Any, kwargs: Any) -> bool:
        """Multiplies each tensor of a flat buffer by a number. False where it is no such buffer."""
        found = self._products(name, func, lowering, args, kwargs)
        if found is None:
            return False
        self.fake(func, args, {})
        with private.outside():
            for p, v in found:
                self.memory._storage(args[0]).write(self.memory.g, v, p.at, self.memory.g.loc)
        return True

    def scaled(self, name: str, func: Any, lowering: Any, args: Any, kwargs: Any) -> Any:
        """The same where the product is a new buffer. None where it is no such buffer.

        Both buffers need the same layout, element by element.
        """
        t = args[0]
        if type(t) is not private.FakeTensor or not t.is_floating_point():
            return None
        with private.outside():
            at = self.memory.geometry(t)
            if at != contiguous(at.size, at.offset) or len(self.memory._storage(t).segments) < 2:
                return None
        found = self._products(name, func, lowering, args, kwargs)
        if found is None:
            return None
        out = self.fake(func, args, {})
        with private.outside():
            to = self.memory.geometry(out)
            if out.dtype != t.dtype or to != contiguous(at.size, to.offset):
                return None
            s = self.memory._storage(out)
            s.clear(to)
            for p, v in found:
                s.write(
                    self.memory.g,
                    v,
                    Geometry(p.at.size, p.at.stride, p.at.offset - at.offset + to.offset),
                    self.memory.g.loc,
                )
        return out

    def _products(
        self, name: str, func: Any, lowering: Any, args: Any, kwargs: Any
    ) -> list[tuple[Segment, Value]] | None:
        """The tensors of which a flat buffer is made, each times a number (or divided by it)."""
        t, factor = args[0], args[1]
        if (
            kwargs
            or t.is_complex()
            or type(t) is not private.FakeTensor
            or isinstance(factor, torch.Tensor)
            and factor.numel() != 1
        ):
            return None
        with private.outside():
            s = self.memory._storage(t)
            if s.pending or t.is_neg():
                return None
            parts = s.pieces(self.memory.g, self.memory.geometry(t))
            if parts is None or len(parts) < 2 or any(isinstance(p.value, Poison) for p in parts):
                return None
            by: Any = self.memory._read(factor) if isinstance(factor, torch.Tensor) else factor
            if isinstance(by, Value):
                if isinstance(by, Poison):
                    return None
                by = self.memory.g.reshape(by, ())
            call = Call(self.memory, name, func._overloadname, [t])
            try:
                return [(p, lowering(call, self.memory.g, p.value, by)) for p in parts]
            except (Unsupported, Poisoned):
                return None
