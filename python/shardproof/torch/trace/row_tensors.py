# SPDX-License-Identifier: Apache-2.0
"""Tensors whose size depends on data, in the recorded program (terms/rows.py, aten/rows.py).

A fake tensor of rows has the size of all slots. So nothing may read that size as a number: here it
is a `RowCount`, which knows what it counts. Where the program asks whether there are rows at all,
it goes on as if there were (`rows-present`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..aten import rows as lowerings
from ..compat import private
from ..compat.user_code import in_package
from ..intercept.devices import JOINS, SIZES, SPLITS
from ..intercept.row_count import RowCount
from ..terms import arithmetic as ar
from ..terms import assumptions, selection, tables
from ..terms import rows as of_rows
from ..terms.graph import Graph
from ..terms.nodes import MOVES_HERE
from ..terms.row_counts import counts_of
from ..terms.rows import Rows, RowSet, known
from ..terms.values import (
    Filled,
    Known,
    Named,
    Poison,
    Poisoned,
    Table,
    Unsupported,
    Value,
    numel,
)
from .memory import constant

_INDICATORS = frozenset({"one_hot", "relu_backward"})


class RowTensors:
    """The tensors of rows of one recording."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.begun = False
        self._sets: dict[Any, tuple[RowSet, Value]] = {}
        self._ordered: dict[Any, RowSet] = {}
        self._sizes: dict[Any, int] = {}  # of rows that were counted and not yet sorted
        self._group_sets: dict[tuple[RowSet, int], RowSet] = {}
        self._groups: dict[RowSet, tuple[RowSet, int]] = {}

    @property
    def g(self) -> Graph:
        g: Graph = self.recorder.g
        return g

    # ---- what makes such tensors ----
    def call(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator that chooses rows by data; NotImplemented for another one."""
        if name == "aten.nonzero":
            return self._nonzero(args[0])
        if name == "aten.masked_select" and self._by_data(args[1]):
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            with self.recorder:
                return args[0].expand(shape)[args[1].expand(shape)]
        if (
            name == "aten.bincount"
            and [*args[1:2], kwargs.get("weights")].count(None) == len(args[1:2]) + 1
        ):
            n = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
            return self._value(
                (n,), torch.int64, lambda: lowerings.counted(self.g, self._of(args[0]), n)
            )
        if name == "aten.histc":
            return self._histc(*args, **kwargs)
        if name == "aten._grouped_mm" and self.begun:
            return self._grouped(*args, **kwargs)
        if name == "aten.unbind" and self.begun:
            return self._each(args[0], args[1] if len(args) > 1 else 0)
        return NotImplemented

    def _of(self, t: torch.Tensor) -> Value:
        v: Value = self.recorder._read(t)
        ar.check(v)
        return v

    def _value(
        self, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Value]
    ) -> torch.Tensor:
        """A tensor with the value; nothing is known of it where the value cannot be made."""
        try:
            with private.outside():
                value = make()
                if value.shape != shape:
                    raise Unsupported("a result of another shape than ATen has")
        except (Unsupported, Poisoned) as e:
            value = Poison(shape, self.recorder._reason(e))
        return self._made(shape, dtype, value)

    def _histc(self, t: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
        """A histogram of integers, each in a bin of its own."""
        if min != 0 or max not in (bins - 1, bins) or bins < 2 or not self._by_data(t):
            return NotImplemented
        return self._value((bins,), t.dtype, lambda: lowerings.counted(self.g, self._of(t), bins))

    def _grouped(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        offs: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Any:
        if bias is not None or not isinstance(self.recorder.read(a), Rows):
            return NotImplemented
        groups = (offs.shape[0],) if b.dim() == 2 and offs is not None else ()
        shape = (*groups, a.shape[0], b.shape[-1])
        return self._value(
            shape,
            out_dtype or a.dtype,
            lambda: lowerings.grouped(
                self.g, self._of(a), self._of(b), self._of(offs) if offs is not None else None
            ),
        )

    def ordered(self, counted: Any, make: Callable[[], RowSet]) -> RowSet:
        """The sorted rows with these keys."""
        self.begun = True
        if counted not in self._ordered:
            self._ordered[counted] = make()
        return self._ordered[counted]

    def follow(self, name: str, operands: Sequence[Value], results: Sequence[Value | None]) -> None:
        """What results count."""
        if name.removesuffix("_") == "aten.cumsum" and isinstance(results[0], Named):
            counts = counts_of(self.g, operands[0])
            running = counts.running() if counts is not None else None
            if running is not None:
                self.g.row_counts[results[0].name] = running

    def _by_data(self, mask: Any) -> bool:
        return isinstance(self.recorder.numbers(mask), private.FakeTensor)

    def masks_as_positions(self, args: Any) -> Any:
        """Operands of a lookup or write, with masks that depend on data as the positions of their
        rows.
        """
        if not any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1]):
            return args
        if len(args) > 2 and not isinstance(self.recorder.read(args[2]), Rows):
            return args  # the same number everywhere, say
        indices: list[Any] = []
        for i in args[1]:
            if isinstance(i, torch.Tensor) and i.dtype == torch.bool and self._by_data(i):
                with self.recorder:
                    indices += list(self._nonzero(i).unbind(1))
            else:
                indices.append(i)
        return (args[0], indices, *args[2:])

    def _made(self, shape: tuple[int, ...], dtype: torch.dtype, value: Value) -> torch.Tensor:
        t = self.recorder.fake(
            torch.ops.aten.empty.memory_format, (list(shape),), {"dtype": dtype, "device": "cpu"}
        )
        self.recorder.write(t, value)
        self.begun = True
        return t

    def _nonzero(self, mask: torch.Tensor) -> torch.Tensor:
        with private.outside():
            v = self.recorder._read(mask)
            ar.check(v)
            rows = self.chosen(v, tuple(mask.shape))
            n = len(rows.slots)
            grids = torch.meshgrid(*[torch.arange(m) for m in rows.slots], indexing="ij")
            value = Rows(rows, Known(torch.stack(grids, -1)), 0)
        return self._made((rows.count, n), torch.int64, value)

    def chosen(self, mask: Value, shape: tuple[int, ...]) -> RowSet:
        """The rows where a mask is true; the same for the same mask."""
        g = self.g
        if not shape:
            raise Unsupported("the positions in a tensor of no dimensions")
        key = self._key(mask)
        if key not in self._sets:
            keep = mask if _is_indicator(g, mask) else selection.nonzero(g, mask)
            rows = RowSet(shape, keep, f"data chooses at {g.loc}")
            self._sets[key] = (rows, mask)
        return self._sets[key][0]

    def _key(self, mask: Value) -> Any:
        if isinstance(mask, Named):
            return mask.name, mask.shape
        if isinstance(mask, Table):
            return (
                tables._root(self.g, mask.source),
                tuple(mask.entries.tolist()),
                mask.low,
                mask.shape,
            )
        return id(mask)

    # ---- one row after another ----
    def _each(self, t: torch.Tensor, dim: int) -> Any:
        """The rows one by one, as a loop over them takes them: each slot as if it were a row."""
        v = self.recorder.read(t)
        if not isinstance(v, Rows) or v.of is not None or dim % len(v.shape) != v.dim:
            return NotImplemented
        numbers = known(v)
        if numbers is None or len(v.rows.slots) != 1 or v.dim != 0:
            raise Unsupported(f"{self.g.loc}: a loop over rows that {v.rows.what}")
        self.present(self.g.loc)
        with private.outside():
            each = [constant(n.clone()) for n in numbers.expand(v.rows.count, *numbers.shape[1:])]
        return [self._made(n.shape, t.dtype, n) for n in each]

    def present(self, loc: str) -> None:
        """The program goes on as if there were rows."""
        self.g.assume(assumptions.rows_present(loc))

    # ---- sizes ----
    def sized(self, func: Any, size: Any, args: Any) -> Any:
        """A size that the program asks for, with what it counts."""
        t = args[0]
        if not isinstance(t, private.FakeTensor) or self.recorder.paused or in_package():
            return size
        if private.storage_key(t) not in self.recorder.storages:
            return size
        v = self.recorder.read(t)
        if not isinstance(v, Rows):
            return size
        what = SIZES[func]
        count = RowCount(v.rows.count, self, lambda: self._number(v.rows), v.rows)
        if v.of is not None:
            raise Unsupported(f"{self.recorder.where()}: the size of rows that {v.rows.what}")
        if what == "numel":
            return count * (numel(v.shape) // v.rows.count)
        if what == "len":
            return count if v.dim == 0 else size
        if isinstance(size, int):
            d = args[1] if len(args) > 1 else 0
            return count if d % len(v.shape) == v.dim else size
        return torch.Size([count if d == v.dim else n for d, n in enumerate(v.shape)])

    def counts(self, t: Any) -> Any:
        """The numbers of a tensor that counts rows (tolist, item); None for any other tensor."""
        if not isinstance(t, private.FakeTensor) or t.dtype.is_floating_point or t.dim() > 1:
            return None
        v = self.recorder.read(t)
        with private.outside():
            found = counts_of(self.g, v) if isinstance(v, Named) else None
        rows = self._ordered.get(found.rows) if found is not None else None
        if found is None:
            return None
        size = rows.count if rows is not None else self._sizes.get(found.rows, 0)
        flat = [
            RowCount(
                size,
                self,
                lambda i=i: self.g.reshape(  # type: ignore[misc]
                    self.g.slice(self.g.reshape(v, (numel(v.shape),)), 0, i, i + 1), ()
                ),
                (found.rows, keys),
            )
            for i, keys in enumerate(found.keys)
        ]
        return flat[0] if t.dim() == 0 else flat

    # ---- functions of PyTorch that take such numbers ----
    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Pieces of sorted rows, and their concatenation; NotImplemented for another call."""
        if func in SPLITS:
            sizes, dim = ((*args[1:], *kwargs.values(), 0))[:2]
            if isinstance(sizes, (list, tuple)) and any(type(n) is RowCount for n in sizes):
                return self._split(args[0], [self._keys(n) for n in sizes], dim, None)
        if func is torch.Tensor.__getitem__ and (cut := _cut(args[1])) is not None:
            start, stop = cut
            first = self._keys(start)
            return self._split(args[0], [self._keys(stop) - first], 0, first)[0]
        if func in JOINS and self.begun:
            dim = ((*args[1:], *kwargs.values(), 0))[0]
            values = [self.recorder.read(t) for t in args[0]]
            if any(isinstance(v, Rows) and v.dim == dim for v in values):
                return self._joined(list(args[0]), values)
        return NotImplemented

    @staticmethod
    def _keys(n: Any) -> frozenset[Any]:
        counts = n.counts if type(n) is RowCount else None
        if type(counts) is tuple and type(counts[1]) is frozenset:
            return counts[1]
        if type(n) is int and n == 0:
            return frozenset()
        raise Unsupported("rows are cut at numbers of which it is not known what they count")

    def _split(
        self, t: torch.Tensor, pieces: list[frozenset[Any]], dim: int, first: frozenset[Any] | None
    ) -> Any:
        v = self.recorder.read(t)
        where = self.recorder.where()
        if not isinstance(v, Rows) or v.rows.key is None or v.dim != 0 or dim != 0:
            raise Unsupported(
                f"{where}: a tensor is cut at numbers of rows, and is not sorted by data"
            )
        at = sorted(first or ())
        for piece in pieces:
            at += sorted(piece)
        if at != list(range(len(at))) or any(len(p) != 1 for p in pieces):
            raise Unsupported(
                f"{where}: rows that {v.rows.what} are cut at other places than between keys"
            )
        if first is None and len(at) != v.rows.classes:
            raise Unsupported(f"{where}: pieces of sorted rows that leave out some")
        out = _Groups.apply(t, self, [next(iter(p)) for p in pieces])
        return tuple(out)

    def _joined(self, tensors: list[torch.Tensor], values: list[Value]) -> torch.Tensor:
        groups = [self._groups.get(v.rows) if isinstance(v, Rows) else None for v in values]
        rows = next((g[0] for g in groups if g is not None), None)
        if rows is None or groups != [(rows, k) for k in range(rows.classes)]:
            raise Unsupported(
                f"{self.recorder.where()}: a concatenation of rows that is not all of sorted rows, "
                "key by key"
            )
        return _Joined.apply(self, rows, *tensors)

    def group(self, rows: RowSet, key: int) -> RowSet:
        """The sorted rows with one key."""
        if (rows, key) not in self._group_sets:
            assert rows.key is not None
            keep: Value = tables.one_hot(self.g, rows.key, key, key + 1)
            keep = self.g.reshape(keep, rows.plain())
            if rows.keep is not None:
                keep = ar.binary(self.g, "mul", keep, selection.as_numbers(rows.keep))
            made = RowSet(rows.plain(), keep, rows.what)
            self._group_sets[rows, key] = made
            self._groups[made] = rows, key
        return self._group_sets[rows, key]

    def pieces(self, t: torch.Tensor, rows: RowSet, keys: Sequence[int]) -> list[torch.Tensor]:
        def piece(k: int) -> Value:
            v = self._of(t)
            if not isinstance(v, Rows) or v.rows is not rows:
                raise Unsupported(f"other rows than those that {rows.what} are cut")
            return lowerings.group_of(self.g, v, k, self.group(rows, k))

        return [self._value(tuple(t.shape), t.dtype, lambda k=k: piece(k)) for k in keys]  # type: ignore[misc]

    def whole(self, rows: RowSet, pieces: Sequence[Any]) -> torch.Tensor:
        """Sorted rows of those with each key; None for zeros."""
        t = next(p for p in pieces if p is not None)

        def group(k: int, p: Any) -> Value:
            v: Value = self._of(p) if p is not None else Filled(0, t.shape)
            if isinstance(v, Rows) and v.rows is not self.group(rows, k):
                raise Unsupported("rows of another piece than the tensor's")
            if not isinstance(v, Rows) and not (isinstance(v, Filled) and v.fill == 0):
                return of_rows.constant_rows(self.g, self.group(rows, k), v, 0)
            return v

        return self._value(
            tuple(t.shape),
            t.dtype,
            lambda: lowerings.of_groups(
                self.g, rows, [group(k, p) for k, p in enumerate(pieces)], tuple(t.shape)
            ),
        )

    def _number(self, rows: RowSet) -> Value:
        """How many rows there are."""
        g = self.g
        mask = lowerings.mask_of(g, rows, False)
        if mask is None:
            return Filled(rows.count, ())
        return ar.reduce(g, "sum", selection.as_numbers(mask))


class _Groups(torch.autograd.Function):
    """Sorted rows in pieces, one for each of some keys."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, rows: RowTensors, keys: list[int]) -> Any:
        ctx.rows, ctx.keys, ctx.of = rows, keys, rows.recorder.read(t).rows
        return tuple(rows.pieces(t, ctx.of, keys))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        pieces: list[Any] = [None] * ctx.of.classes
        for k, g in zip(ctx.keys, gradients):
            pieces[k] = g
        return ctx.rows.whole(ctx.of, pieces), None, None


class _Joined(torch.autograd.Function):
    """The concatenation of all pieces of sorted rows."""

    @staticmethod
    def forward(ctx: Any, rows: RowTensors, of: RowSet, *pieces: torch.Tensor) -> Any:
        ctx.rows, ctx.of = rows, of
        return rows.whole(of, pieces)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return (None, None, *ctx.rows.pieces(gradient, ctx.of, range(ctx.of.classes)))


def _cut(index: Any) -> tuple[Any, Any] | None:
    """Where a piece begins and ends that numbers of rows cut; None for another index."""
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if not isinstance(index, slice) or type(index.stop) is not RowCount or index.step is not None:
        return None
    return index.start or 0, index.stop


def _is_indicator(g: Graph, v: Value) -> bool:
    """Whether all elements are known to be 0 or 1."""
    if isinstance(v, Table):
        return bool(((v.entries == 0) | (v.entries == 1)).all())
    if not isinstance(v, Named):
        return False
    if v.kind == "bool":
        return True
    node = v.node
    while node is not None and node["op"] in MOVES_HERE and len(node["in"]) == 1:
        node = g.producer(node["in"][0])
    return node is not None and node["op"] in _INDICATORS
