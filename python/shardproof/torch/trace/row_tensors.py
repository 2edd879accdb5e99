# SPDX-License-Identifier: Apache-2.0
"""Tensors whose size depends on data, in the recorded program (terms/rows.py, aten/rows.py).

A fake tensor of rows has the size of all slots. So nothing may read that size as a number: here it
is a `RowCount`, which knows what it counts. Where the program asks whether there are rows at all,
it goes on as if there were (`rows-present`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..aten import rows as lowerings
from ..aten.choices import is_choice
from ..compat import private
from ..compat.user_code import in_package
from ..intercept.devices import JOINS, LIKE, SIZES, SPLITS
from ..intercept.row_count import RowCount, RowShape
from ..terms import arithmetic as ar
from ..terms import assumptions, selection, tables
from ..terms import rows as of_rows
from ..terms.graph import Graph
from ..terms.row_counts import Counts, Each, cells_of_mask, counts_of, is_mark
from ..terms.rows import (
    Arranged,
    ByCell,
    Cell,
    Order,
    Place,
    Positions,
    Received,
    Rows,
    RowSet,
    known,
)
from ..terms.values import (
    Filled,
    Known,
    Named,
    NotFollowed,
    Poison,
    Poisoned,
    Reason,
    Table,
    Unsupported,
    Value,
    numel,
)
from .memory import constant


class RowTensors:
    """The tensors of rows of one recording."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.begun = False
        self._sets: dict[Any, tuple[RowSet, Value]] = {}
        self._ordered: dict[Any, RowSet] = {}
        self._received: dict[Any, Received] = {}
        self._numbers: dict[Any, int] = {}  # of rows that ranks exchange, as they meet them
        self._group_sets: dict[tuple[RowSet, int], RowSet] = {}
        # the rows of which others are a piece, and which
        self._groups: dict[RowSet, tuple[RowSet, Any]] = {}
        self._arranged: dict[Received, Arranged] = {}

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
        if name == "aten.repeat_interleave" and func._overloadname == "Tensor":
            return self._repeated(args[0])
        if name == "aten.histc":
            return self._histc(*args, **kwargs)
        if name == "aten._grouped_mm":
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
        if bias is not None or not isinstance(self.recorder.read(a), (Rows, Poison)):
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
            with private.outside():
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
            v = self._of(mask)
            if isinstance(v, Rows):
                raise NotFollowed(
                    f"{self.g.loc}: rows that {v.rows.what} are chosen from once more"
                )
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
            known = _is_indicator(g, mask)
            keep = mask if known else selection.nonzero(g, mask)
            counted, size = cells_of_mask(g, mask, self._is_choice) if known else ({}, 0)
            if counted:  # by what is no number nothing is chosen
                g.definedness.taken_as_number(keep)
            rows = RowSet(shape, keep, f"data chooses at {g.loc}", counted=counted)
            rows.count = size or rows.count
            self._sets[key] = (rows, mask)
        return self._sets[key][0]

    def _is_choice(self, index: Value) -> bool:
        return is_choice(self.g, index, len(index.shape) - 1)

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
            raise NotFollowed(f"{self.g.loc}: a loop over rows that {v.rows.what}")
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
        if isinstance(v, (Order, Positions, Place)):
            v = Rows(v.rows, v, 0, v.shape)
        if not isinstance(v, Rows) or v.rows.keep is None:
            return size  # an order changes no size
        what = SIZES[func]
        count = RowCount(v.rows.count, self, lambda: self._number(v.rows), v.rows)
        if v.of is not None:
            raise NotFollowed(f"{self.recorder.where()}: the size of rows that {v.rows.what}")
        if what == "numel":
            return count * (numel(v.shape) // v.rows.count)
        if what == "len":
            if v.dim == 0:  # Python makes a plain number of it
                raise NotFollowed(
                    f"{self.recorder.where()}: len() of rows that {v.rows.what} depends on data "
                    "(.shape[0] gives a number that is followed)"
                )
            return size
        if isinstance(size, int):
            d = args[1] if len(args) > 1 else 0
            return count if d % len(v.shape) == v.dim else size
        return RowShape(count if d == v.dim else n for d, n in enumerate(v.shape))

    def counts(self, t: Any) -> Any:
        """The numbers of a tensor that counts rows (tolist, item); None for any other tensor."""
        if not isinstance(t, private.FakeTensor) or t.dtype.is_floating_point or t.dim() > 2:
            return None
        v = self.recorder.read(t)
        with private.outside():
            found = counts_of(self.g, v) if isinstance(v, Named) else None
        if found is None:
            return None
        flat = [
            RowCount(
                found.size,
                self,
                lambda i=i: self.g.reshape(  # type: ignore[misc]
                    self.g.slice(self.g.reshape(v, (numel(v.shape),)), 0, i, i + 1), ()
                ),
                (found.of(i), keys),
            )
            for i, keys in enumerate(found.keys)
        ]
        if t.dim() == 2:
            n = t.shape[1]
            return [flat[i : i + n] for i in range(0, len(flat), n)]
        return flat[0] if t.dim() == 0 else flat

    # ---- functions of PyTorch that take such numbers ----
    def called(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Pieces of sorted rows, and their concatenation; NotImplemented for another call."""
        if func in LIKE and any(self.has_rows(t) for t in args[1:]) and not self.has_rows(args[0]):
            raise NotFollowed(
                f"{self.recorder.where()}: a tensor takes the shape of one whose rows data chooses"
            )
        if func in SPLITS:
            sizes = args[1] if len(args) > 1 else next(iter(kwargs.values()))
            dim = args[2] if len(args) > 2 else kwargs.get("dim", 0)
            if isinstance(sizes, (list, tuple)) and any(type(n) is RowCount for n in sizes):
                return self._split(args[0], [_counted(n) for n in sizes], dim, None)
        if func is torch.Tensor.__getitem__ and (cut := _cut(args[1])) is not None:
            start, stop = (_counted(n) for n in cut)
            if start[0] not in (None, stop[0]):
                raise NotFollowed("rows are cut between numbers of different rows")
            return self._split(args[0], [(stop[0], stop[1] - start[1])], 0, start[1])[0]
        if func in JOINS and self.begun and "out" not in kwargs:
            dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
            values = [self.recorder.read(t) for t in (args[0] if args else kwargs["tensors"])]
            if any(isinstance(v, Rows) and v.dim == dim for v in values):
                return self._joined(list(args[0]), values)
        return NotImplemented

    def _split(
        self,
        t: torch.Tensor,
        pieces: list[tuple[Any, frozenset[Any]]],
        dim: int,
        first: frozenset[Any] | None,
    ) -> Any:
        """Sorted rows between numbers of rows. first: what comes before; None: these are all."""
        v = self.recorder.read(t)
        where = self.recorder.where()
        if isinstance(v, Poison):
            raise NotFollowed(f"{v.reason.text} at {v.reason.loc}")
        pieced = isinstance(v, Rows) and (v.rows.pieces or isinstance(v.rows, Received))
        if not isinstance(v, Rows) or not pieced or v.dim != 0 or dim != 0:
            raise NotFollowed(
                f"{where}: a tensor is cut at numbers of rows, and is not sorted by data"
            )
        if isinstance(v.rows, (Received, Arranged)) and first is None:
            of = of_rows.received(v.rows)
            assert of is not None
            cells = [of.cells_of(*piece) for piece in pieces]
            if [c[0] for c in cells if c is not None and len(c) == 1] == v.rows.order:
                return tuple(_Groups.apply(t, self, list(v.rows.order)))
        signs = {sign for sign, _ in pieces}
        keys: list[list[int]] = []
        if len(signs) == 1:
            given = [first] if first else []
            given += [piece for _, piece in pieces]
            sign = signs.pop()
            with contextlib.suppress(Unsupported):
                keys = [lowerings.part_of_keys(v.rows.counted, sign, piece) for piece in given]
        found = [k for piece in keys for k in piece]
        own = keys[1:] if first else keys
        if not found or found != list(range(len(found))) or any(len(piece) != 1 for piece in own):
            raise NotFollowed(
                f"{where}: rows that {v.rows.what} are cut at numbers of which it is not known "
                "that they are those of rows with each key"
            )
        if first is None and len(found) != v.rows.classes:
            raise NotFollowed(f"{where}: pieces of sorted rows that leave out some")
        return tuple(_Groups.apply(t, self, [piece[0] for piece in own]))

    def _joined(self, tensors: list[torch.Tensor], values: list[Value]) -> torch.Tensor:
        groups = [self._groups.get(v.rows) if isinstance(v, Rows) else None for v in values]
        rows = next((g[0] for g in groups if g is not None), None)
        if rows is not None and groups == [(rows, k) for k in range(rows.classes)]:
            return _Joined.apply(self, rows, list(range(rows.classes)), *tensors)
        if isinstance(rows, Received) and all(g is not None and g[0] is rows for g in groups):
            order = [g[1] for g in groups if g is not None]
            for target in (rows, self.arranged(rows)):
                if order == target.order:
                    return _Joined.apply(self, target, order, *tensors)
        raise NotFollowed(
            f"{self.recorder.where()}: a concatenation of rows that is not all of sorted rows, "
            "key by key"
        )

    def arranged(self, of: Received) -> Arranged:
        """Received rows by key."""
        if of not in self._arranged:
            key = keep = None
            if of.keys is not None:
                key, keep = self.g.named(of.keys), of.keep
            else:
                assert of.keep is not None
                keep = self.g.permute(of.keep, [1, 0, *range(2, len(of.slots))])
            self._arranged[of] = Arranged(of, key, keep, f"are in an order by data at {self.g.loc}")
        return self._arranged[of]

    def part(self, rows: RowSet, which: Any) -> RowSet:
        """A piece: the rows with one key, or those received of one rank with one key."""
        if isinstance(which, int):
            return self.group(rows, which)
        of = of_rows.received(rows)
        assert of is not None and of.keep is not None
        if (of, which) not in self._group_sets:
            r, k = which
            if of.keys is not None:
                hot = tables.one_hot(self.g, of.keys, k, k + 1)
                keep = self.g.reshape(hot, of.slots)
            else:
                keep = self.g.slice(of.keep, 1, k - of.owned[of.me][0], k - of.owned[of.me][0] + 1)
            keep = self.g.slice(keep, 0, r, r + 1)
            size = of.slots[1:] if of.keys is not None else of.slots[2:]
            made = Cell(of, which, self.g.reshape(keep, size))
            self._group_sets[of, which] = made
            self._groups[made] = of, which
        return self._group_sets[of, which]

    def group(self, rows: RowSet, key: int) -> RowSet:
        """The rows with one key."""
        if (rows, key) not in self._group_sets:
            keep: Value
            if rows.key is None:
                assert rows.keep is not None
                keep = self.g.slice(rows.keep, 0, key, key + 1)
                keep, plain = self.g.reshape(keep, rows.slots[1:]), rows.slots[1:]
            else:
                at, plain = rows.first + key, rows.plain()
                keep = self.g.reshape(tables.one_hot(self.g, rows.key, at, at + 1), plain)
                if rows.keep is not None and not rows.implied:
                    keep = ar.binary(self.g, "mul", keep, selection.as_numbers(rows.keep))
            made = RowSet(plain, keep, rows.what)
            made.count = rows.count  # the size of what numbers of these rows make
            self._group_sets[rows, key] = made
            self._groups[made] = rows, key
        return self._group_sets[rows, key]

    def pieces(self, t: torch.Tensor, rows: RowSet, which: Sequence[Any]) -> list[torch.Tensor]:
        def piece(k: Any) -> Value:
            v = self._of(t)
            if not isinstance(v, Rows) or v.rows is not rows:
                raise Unsupported(f"other rows than those that {rows.what} are cut")
            part = self.part(rows, k)
            if isinstance(part, Cell):
                return lowerings.cell_of(self.g, v, part.of, part)
            return lowerings.group_of(self.g, v, k, part)

        return [
            self._value(
                (self.part(rows, k).count, *t.shape[1:]),
                t.dtype,
                lambda k=k: piece(k),  # type: ignore[misc]
            )
            for k in which
        ]

    def whole(self, rows: RowSet, pieces: dict[Any, Any]) -> torch.Tensor:
        """Rows of their pieces; None for zeros."""
        t = next(p for p in pieces.values() if p is not None)
        shape = (rows.count, *t.shape[1:])

        def group(k: Any, p: Any) -> Value:
            part = self.part(rows, k)
            v: Value = self._of(p) if p is not None else Filled(0, (part.count, *t.shape[1:]))
            if isinstance(v, Rows) and v.rows is not part:
                raise Unsupported("rows of another piece than the tensor's")
            if not isinstance(v, Rows) and not (isinstance(v, Filled) and v.fill == 0):
                return of_rows.constant_rows(self.g, part, v, 0)
            return v

        def made() -> Value:
            given = {k: group(k, p) for k, p in pieces.items()}
            if isinstance(rows, (Received, Arranged)) and isinstance(next(iter(given)), tuple):
                of = of_rows.received(rows)
                assert of is not None
                by_key = self.arranged(of)
                return lowerings.of_cells(self.g, rows, by_key, given, shape)
            return lowerings.of_groups(self.g, rows, list(given.values()), shape)

        return self._value(shape, t.dtype, made)

    # ---- rows that ranks exchange ----
    def number_of(self, sign: Any) -> int:
        """How ranks name rows that they exchange: by the order in which they first do."""
        return self._numbers.setdefault(sign, len(self._numbers))

    def counts_sent(self, sent: Value, made: Value, exchange: Any) -> Value:
        """What is received of numbers of rows that an all-to-all of equal pieces exchanges. made:
        its result.
        """
        found = counts_of(self.g, sent) if isinstance(sent, Named) else None
        if found is None or found.rows is None or not isinstance(made, Named):
            return made
        if exchange.size == 1:  # a tensor of its own: it counts what is received, not what is sent
            made = self.g.one("view", [made], made.shape, {"size": list(made.shape)}, made.kind)
        size, ranks = exchange.size, tuple(exchange.ranks)
        n = len(found.keys) // size
        me = ranks.index(self.recorder.groups.rank)
        exchange.agree(
            f"numbers of rows {self.number_of(found.rows)}, of the keys "
            f"{[sorted(map(repr, k)) for k in found.keys]}"
        )
        mine = found.keys[me * n : (me + 1) * n]
        keys = tuple(frozenset((r, k) for k in cell) for r in ranks for cell in mine)
        rows = of_rows.GATHERED, found.rows
        self.g.row_counts[made.name] = Counts(rows, keys, made.shape, found.size * size)
        return made

    def counts_gathered(self, given: Value, made: Named, exchange: Any) -> None:
        """Numbers of rows that all ranks of a group get from each other."""
        found = counts_of(self.g, given) if isinstance(given, Named) else None
        if found is None or found.rows is None or isinstance(found.rows, Each):
            return
        exchange.agree(
            f"numbers of rows {self.number_of(found.rows)}, gathered, of the keys "
            f"{[sorted(map(repr, k)) for k in found.keys]}",
            "all_gather",
        )
        keys = tuple(frozenset((r, k) for k in cell) for r in exchange.ranks for cell in found.keys)
        rows = of_rows.GATHERED, found.rows
        self.g.row_counts[made.name] = Counts(rows, keys, made.shape, found.size * exchange.size)

    def exchange(
        self,
        out: torch.Tensor | None,
        t: torch.Tensor,
        received: Sequence[Any],
        sent: Sequence[Any],
        exchange: Any,
    ) -> torch.Tensor:
        """The result of an all-to-all of numbers of rows. out: where it is written."""
        try:
            value = self._exchanged(t, received, sent, exchange)
            if out is not None and tuple(out.shape) != value.shape:
                raise Unsupported(
                    "rows are received in a tensor of which it is not known that it has as many"
                )
        except (Unsupported, Poisoned) as e:
            shape = tuple(out.shape) if out is not None else tuple(t.shape)
            value = Poison(shape, self.recorder._reason(e))
        if out is None:
            return self._made(value.shape, t.dtype, value)
        self.recorder.write(out, value)
        return out

    def _exchanged(
        self, t: torch.Tensor, received: Sequence[Any], sent: Sequence[Any], exchange: Any
    ) -> Value:
        """Rows that an all-to-all sends to the owners of their keys, or back."""
        v = self._of(t)
        if not isinstance(v, Rows) or v.of is not None or v.dim != 0:
            raise Unsupported("an all-to-all of numbers of rows, of a tensor without such rows")
        size = exchange.size
        if len(received) != size or len(sent) != size:
            raise Unsupported("an all-to-all of other than one piece for each rank")
        given, taken = [_counted(n) for n in sent], [_counted(n) for n in received]
        if isinstance(v.rows, Received):
            rows: Received = v.rows
            self._check_received(rows, given, "sent back")
            if self._owned(rows.source, taken)[0] != rows.owned:
                raise Unsupported(
                    "rows that are sent back in pieces of other sizes than those that were sent"
                )
            exchange.agree(f"rows {self.number_of(rows.own)} back, of the keys {rows.owned}")
            return self._sent_back(v, rows, exchange)
        source = v.rows
        owned, sign = self._owned(source, given)
        rows = self._sent(source, owned, sign, exchange)
        self._check_received(rows, taken, "received")
        exchange.agree(f"rows {self.number_of(rows.own)}, of the keys {owned}")
        if rows.keys is None:
            whole = self._to_owners(of_rows.spread(self.g, v, source.slots), rows, exchange)
            self.g.definedness.taken_as_number(whole)
            return Rows(rows, whole, 0)
        flat = lowerings.collapsed(self.g, v)
        held, rest = flat.held[1:], flat.shape[1:]
        if isinstance(flat.inner, Named) and self._is_key(flat):
            return Rows(rows, rows.keys, 0)
        whole = exchange.all_gather(self.g.reshape(flat.inner, (1, *held, *rest)))
        whole = self.g.reshape(whole, (size, *held, *rest))
        self.g.definedness.taken_as_number(whole)
        return Rows(rows, whole, 0)

    def _to_owners(self, v: Value, rows: Received, exchange: Any) -> Value:
        """[keys, ...] of the source as [ranks, own keys, ...]."""
        if len({n for _, n in rows.owned}) != 1:
            raise Unsupported("rows that a mask chooses are sent to ranks with unequal parts of it")
        made = exchange.all_to_all(v)
        return self.g.reshape(made, (exchange.size, v.shape[0] // exchange.size, *v.shape[1:]))

    def _sent_back(self, v: Rows, rows: Received, exchange: Any) -> Value:
        """Received rows where they came from."""
        g = self.g
        if rows.keys is None:
            whole = of_rows.spread(g, v, rows.slots)
            shape = (rows.slots[0] * rows.slots[1], *rows.slots[2:], *v.shape[1:])
            total = exchange.all_to_all(g.reshape(whole, shape))
            total = g.reshape(total, (*rows.source.slots, *v.shape[1:]))
        else:
            # each slot is a row on exactly one rank
            whole = of_rows.spread(g, lowerings.masked(g, v), rows.slots)
            total = exchange.reduce_scatter(whole, ("sum", None))
            total = g.reshape(total, (1, *rows.source.plain(), *v.shape[1:]))
        g.definedness.taken_as_number(total)
        return Rows(rows.source, total, 0)

    def _is_key(self, v: Rows) -> bool:
        key = v.rows.key
        name = getattr(_base(v.inner), "name", "")
        return isinstance(key, Named) and v.shape == (v.rows.count,) and name == _base(key).name

    def _owned(
        self, rows: RowSet, pieces: Sequence[tuple[Any, frozenset[Any]]]
    ) -> tuple[tuple[tuple[int, int], ...], Any]:
        """The keys of each of the pieces of rows: the first, and how many; by whose rows these are
        counted.
        """
        if not rows.pieces or rows.key is not None and rows.keep is not None:
            raise Unsupported(f"rows that {rows.what} are exchanged, and are not sorted by data")
        owned, at = [], 0
        for sign, keys in pieces:
            found = lowerings.part_of_keys(rows.counted, sign, keys)
            if found != list(range(at, at + len(found))):
                raise Unsupported(
                    "rows are exchanged in pieces that are not those of one key after another"
                )
            owned.append((at, len(found)))
            at += len(found)
        signs = {sign for sign, _ in pieces}
        if at != rows.classes or len(signs) != 1:
            raise Unsupported("rows are exchanged, and some of them are not sent")
        return tuple(owned), signs.pop()

    def _check_received(
        self, rows: Received, pieces: Sequence[tuple[Any, frozenset[Any]]], what: str
    ) -> None:
        for r, (sign, keys) in enumerate(pieces):
            if sign != rows.own or keys != rows.cells(r):
                raise Unsupported(
                    f"rows are {what} in pieces of which it is not known that they have as many "
                    "rows as the ranks exchange"
                )

    def _sent(
        self, source: RowSet, owned: tuple[tuple[int, int], ...], sign: Any, exchange: Any
    ) -> Received:
        """What this rank receives where each sends the rows of these keys to their owners."""
        ranks = tuple(exchange.ranks)
        key = source, owned, sign, ranks
        if key not in self._received:
            g = self.g
            me, what = ranks.index(self.recorder.groups.rank), f"ranks send at {g.loc}"
            if source.key is None:
                assert source.keep is not None
                made = Received(source, owned, me, None, source.keep, sign, ranks, what)
                keep = selection.as_numbers(source.keep)
                made.keep = self._to_owners(keep, made, exchange)
            else:
                slots = (exchange.size, *source.plain())
                keys = exchange.all_gather(g.reshape(source.key, (1, *source.plain())))
                if isinstance(keys, Named) and "kind" not in g.tensors[keys.name]:
                    g.tensors[keys.name]["dtype"] = "int64"
                keys = g.named(g.reshape(keys, slots))
                first, n = owned[me]
                entries = torch.zeros(source.classes, dtype=torch.bool)
                entries[first : first + n] = True
                table = Table(keys, entries, 0, slots)
                made = Received(source, owned, me, keys, table, sign, ranks, what)
            self._received[key] = made
        return self._received[key]

    def _repeated(self, repeats: torch.Tensor) -> Any:
        """The index of the number of rows that a received row is counted by (repeat_interleave)."""
        v = self.recorder.read(repeats)
        with private.outside():
            found = counts_of(self.g, v) if isinstance(v, Named) else None
        if found is None:
            return NotImplemented
        rows = next((r for r in self._received.values() if r.own == found.rows), None)
        if rows is None or len(found.shape) != 1:
            raise NotFollowed(
                f"{self.g.loc}: numbers are repeated for rows that no other rank has sent yet"
            )
        cells = [rows.cells_of(found.rows, keys) for keys in found.keys]
        first, n = rows.owned[rows.me]
        for target in (rows, self.arranged(rows)):
            if cells != [[c] for c in target.order]:
                continue
            with private.outside():
                numbers = torch.zeros(len(rows.owned), n, dtype=torch.int64)
                for i, (r, k) in enumerate(target.order):
                    numbers[r, k - first] = i
            made = Rows(target, ByCell(target, numbers), 0)
            return self._made((rows.count,), torch.int64, made)
        raise NotFollowed(f"{self.g.loc}: numbers are repeated for other rows, or in another order")

    def repeats(self, args: Any, kwargs: Any) -> None:
        """repeat_interleave with a number of rows as the size of its result: that has to be the
        number of all that is repeated.
        """
        size = kwargs.get("output_size")
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats", args[0])
        counts = self.counts(repeats.flatten()) if isinstance(repeats, torch.Tensor) else None
        if counts is not None and type(size) is RowCount:
            every = sum(counts).counts
            rows = of_rows.received(size.counts) if isinstance(size.counts, RowSet) else None
            known = (rows.own, frozenset().union(*rows.counts.values())) if rows else size.counts
            if every == known:
                return
        raise NotFollowed(
            f"{self.recorder.where()}: numbers are repeated, and the size of the result is not "
            "known to be right"
        )

    def positions(self, args: Any, kwargs: Any) -> Any:
        """arange(n), where n is the number of rows of a tensor: their positions."""
        rows = args[0].counts if len(args) == 1 and type(args[0]) is RowCount else None
        if not isinstance(rows, RowSet):
            raise NotFollowed(
                f"{self.recorder.where()}: numbers up to a number of rows that depends on data"
            )
        order = rows.order if isinstance(rows, (Received, Arranged)) else []
        value = Place(rows, 1, {c: {} for c in order})
        return self._made(value.shape, kwargs.get("dtype") or torch.int64, value)

    def check(self, t: Any) -> None:
        """Raises NotFollowed with the reason why nothing is known of a tensor, if so."""
        v = self.recorder.read(t) if isinstance(t, private.FakeTensor) else None
        if isinstance(v, Poison):
            raise NotFollowed(f"{v.reason.text} at {v.reason.loc}")

    def has_rows(self, t: Any) -> bool:
        return isinstance(t, private.FakeTensor) and isinstance(self.recorder.read(t), Rows)

    def made_like(self, t: torch.Tensor, args: Any, kwargs: Any) -> None:
        """A tensor of one number was made with a number of rows as a size."""
        sizes = args[0] if args and isinstance(args[0], (tuple, list)) else args
        sizes = kwargs.get("size", sizes)
        at = [d for d, n in enumerate(sizes) if type(n) is RowCount]
        v = self.recorder.read(t)
        rows = sizes[at[0]].counts if at else None
        if len(at) == 1 and isinstance(rows, RowSet) and isinstance(v, Filled):
            one = (*v.shape[: at[0]], *(1 for _ in rows.slots), *v.shape[at[0] + 1 :])
            made: Value = Rows(rows, Filled(v.fill, one, v.kind), at[0])
        else:
            made = Poison(
                v.shape,
                Reason("numbers for rows of which it is not known which", self.recorder.where()),
            )
        self.recorder.write(t, made)

    def _number(self, rows: RowSet) -> Value:
        """How many rows there are."""
        g = self.g
        mask = lowerings.mask_of(g, rows, False)
        if mask is None:
            return Filled(rows.count, ())
        return ar.reduce(g, "sum", selection.as_numbers(mask))


class _Groups(torch.autograd.Function):
    """Rows in pieces, one for each of some keys."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, rows: RowTensors, keys: list[Any]) -> Any:
        ctx.rows, ctx.keys, ctx.of = rows, keys, rows.recorder.read(t).rows
        return tuple(rows.pieces(t, ctx.of, keys))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        of = ctx.of
        every = of.order if isinstance(ctx.keys[0], tuple) else range(of.classes)
        pieces = dict.fromkeys(every, None) | dict(zip(ctx.keys, gradients))
        return ctx.rows.whole(of, pieces), None, None


class _Joined(torch.autograd.Function):
    """The concatenation of all pieces of rows."""

    @staticmethod
    def forward(
        ctx: Any, rows: RowTensors, of: RowSet, keys: list[Any], *pieces: torch.Tensor
    ) -> Any:
        ctx.rows, ctx.of, ctx.keys = rows, of, keys
        return rows.whole(of, dict(zip(keys, pieces)))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return (None, None, None, *ctx.rows.pieces(gradient, ctx.of, ctx.keys))


def _base(v: Any) -> Any:
    """The tensor in the shape in which it was made."""
    return getattr(v, "base", None) or v


def _counted(n: Any) -> tuple[Any, frozenset[Any]]:
    """Whose rows a number counts, and of which keys."""
    counts = n.counts if type(n) is RowCount else None
    if type(counts) is tuple and type(counts[1]) is frozenset:
        return counts
    if type(n) is int and n == 0:
        return None, frozenset()
    raise NotFollowed("rows are cut at numbers of which it is not known what they count")


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
    return v.kind == "bool" or is_mark(g, v.name)
