# SPDX-License-Identifier: Apache-2.0
"""The program under construction: values become nodes, and constants are folded away."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from ...operators import WithTrait
from . import rows as of_rows
from .constants import FOLD_LIMIT, Constants, number
from .definedness import Definedness
from .integer_inputs import IntegerInputs
from .nodes import Nodes
from .rows import Rows
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

_ELEMENTWISE = WithTrait("elementwise")

# How values of a class become values of the graph. Modules that know such a class enter it here:
# they need the graph, which therefore cannot import them.
WRITERS: dict[type[Value], Callable[[Graph, Any], Value]] = {}


class Graph(Nodes):
    """Nodes, tensors and constants of one side.

    definedness: which tensors may be no numbers. integers: what is known of integer inputs.
    gave_numbers: where Tensor.item() first gave a number that depends on data; empty: nowhere.
    factors: of products of matrices, by the name of the product. row_counts: what tensors count, by
    their names (row_counts.py).
    """

    def __init__(self) -> None:
        super().__init__()
        self._constants = Constants(self)
        self.definedness = Definedness(self)
        self.integers = IntegerInputs(self, self._constants.declared)
        self.gave_numbers = ""
        self.factors: dict[str, tuple[Value, Value]] = {}
        self.row_counts: dict[str, Any] = {}
        self.masks: set[str] = set()  # tensors of ones and zeros
        self._seen: dict[Any, list[Named | None]] = {}
        self._ends: dict[tuple[str, int], tuple[int, ...] | None] = {}
        # Concatenations of constants, by the ids of these, which are kept.
        self._joined: dict[Any, tuple[Known, Sequence[Value]]] = {}

    @property
    def constants(self) -> list[tuple[str, torch.Tensor]]:
        """Names and numbers of constant tensors that are declared as inputs."""
        return self._constants.declared

    def arrays(self) -> dict[str, tuple[str, str]]:
        """Constants that are arrays of the program's: where each is used first, and a digest."""
        return self._constants.arrays

    def forget(self) -> None:
        super().forget()
        self._constants.forget()
        self._joined.clear()
        self._ends.clear()
        self.factors.clear()
        self.row_counts.clear()
        self.definedness.forget()

    def named(self, v: Value) -> Named:
        """The value as a tensor of the format. Raises Poisoned and Unsupported."""
        if isinstance(v, Named):
            return v
        if isinstance(v, Poison):
            raise Poisoned(v.reason)
        if isinstance(v, Filled):
            return self._constants.filled(v)
        if isinstance(v, Known):
            return self._constants.known(v)
        if (write := WRITERS.get(type(v))) is not None:
            return self.named(write(self, v))
        if isinstance(v, Rows):
            raise Unsupported(f"rows that {v.rows.what} are used other than row by row")
        if isinstance(v, Hidden):
            raise Unsupported("scores with minus infinities are used other than by exp and softmax")
        raise Unsupported("a complex tensor is used as a whole")

    # ---- nodes ----
    def emit(
        self,
        op: str,
        operands: Sequence[Value | None],
        shapes: Sequence[Shape | None],
        attrs: dict[str, Any] | None = None,
        kind: str = "real",
        **fields: Any,
    ) -> list[Named | None]:
        """One node and its results. A shape None is a result that is not wanted.

        Equal calls are made once, unless they communicate (`fields`). Raises Poisoned and
        Unsupported for operands that are no tensors.
        """
        ins = [None if v is None else self.named(v).name for v in operands]
        key = (
            (op, tuple(ins), repr(sorted((attrs or {}).items())), tuple(s is None for s in shapes))
            if not fields
            else None
        )
        if key is not None and key in self._seen:
            return self._seen[key]
        node, results = self.append(op, ins, shapes, attrs, kind, fields)
        self.definedness.note(node, bool(fields))
        if key is not None:
            self._seen[key] = results
        return results

    def one(
        self,
        op: str,
        operands: Sequence[Value | None],
        shape: Shape,
        attrs: dict[str, Any] | None = None,
        kind: str = "real",
        **fields: Any,
    ) -> Named:
        result = self.emit(op, operands, [shape], attrs, kind, **fields)[0]
        assert result is not None
        return result

    def produce(self, declared: str, value: Named) -> None:
        """A tensor that was declared as an input is made by a node: it is what `value` is."""
        entry = self.tensors[declared]
        self.tensors[declared] = {k: v for k, v in entry.items() if k != "kind"}
        self.nodes.append({"op": "view", "in": [value.name], "out": [declared]})
        self.nodes[-1]["attrs"] = {"size": list(value.shape)}

    def made(self, op: str, operands: Sequence[Value]) -> Named | None:
        """The result of an operator without attributes that was applied to these before."""
        found = self._seen.get((op, tuple(self.named(v).name for v in operands), "[]", (False,)))
        return found[0] if found is not None else None

    # ---- layout; each folds constants and goes into pairs and tables ----
    def reshape(self, v: Value, shape: Sequence[int]) -> Value:
        to = tuple(int(n) for n in shape)
        if v.shape == to:
            return v
        if numel(v.shape) != numel(to):
            raise Unsupported(f"{list(v.shape)} cannot be seen as {list(to)}")
        if isinstance(v, Rows):
            return of_rows.reshape(self, v, to)
        if isinstance(v, Filled):
            return v.in_shape(to)
        if isinstance(v, Known):
            return v.once(to, lambda data: data.reshape(to))
        if isinstance(v, Complex):
            return Complex(self.reshape(v.real, to), self.reshape(v.imag, to))
        if isinstance(v, Hidden):
            return Hidden(
                self.reshape(v.source, to), self.reshape(self.expand(v.keep, v.shape), to)
            )
        if isinstance(v, Replaced):
            return Replaced(self.reshape(v.source, to), self.reshape(v.keep, to), v.other, v.zeros)
        if isinstance(v, Poison):
            return Poison(to, v.reason)
        if isinstance(v, Table):
            source = self.reshape(self._expand_source(v), to)
            return Table(cast("Named", source), v.entries, v.low, to)
        if isinstance(v, Pick) and not v.table and numel(v.index.shape) == numel(to):
            index = self.reshape(v.index, to)
            source = self.reshape(v.source, to + v.source.shape[-1:])
            if isinstance(index, Table) and v.source.shape[:-1] == v.index.shape:
                return Pick(source, index, v.scale, v.offset, False, to)
        if (
            isinstance(v, Pick)
            and v.table
            and len(v.source.shape) == 2
            and v.index.shape == v.shape[:-1]
            and to[-1:] == v.shape[-1:]
        ):
            index_of_rows = cast("Table", self.reshape(v.index, to[:-1]))
            return Pick(v.source, index_of_rows, v.scale, v.offset, True, to)
        n = self.named(v)
        base = n.base or n
        if base.shape == to:
            return base
        if n.square is not None:
            return self.root(self.reshape(n.square, to))
        r = self.one("view", [base], to, {"size": list(to)}, n.kind)
        r.base = base
        if n.of_class is not None and r.of_class is None:
            r.of_class = self.named(self.reshape(n.of_class, to))
        if n.masked is not None and to and to[-1] == n.shape[-1]:
            rows, keep = n.masked
            r.masked = (
                cast("Named", self.reshape(rows, to)),
                cast("Table", self.reshape(keep, to[:-1])),
            )
        return r

    def _expand_source(self, v: Table) -> Named:
        source = v.source
        if source.shape != v.shape:
            source = self.expand(source, v.shape)  # type: ignore[assignment]
        return source

    def permute(self, v: Value, dims: Sequence[int]) -> Value:
        dims = [d % len(v.shape) for d in dims]
        if dims == list(range(len(dims))):
            return v
        shape = tuple(v.shape[d] for d in dims)
        if isinstance(v, Rows):
            return of_rows.permute(self, v, list(dims))
        if isinstance(v, Filled):
            return v.in_shape(shape)
        if isinstance(v, Known):
            return v.once(("permute", *dims), lambda data: data.permute(dims))
        if isinstance(v, Complex):
            return Complex(self.permute(v.real, dims), self.permute(v.imag, dims))
        if isinstance(v, Hidden):
            return Hidden(
                self.permute(v.source, dims), self.permute(self.expand(v.keep, v.shape), dims)
            )
        if isinstance(v, Replaced):
            return Replaced(
                self.permute(v.source, dims), self.permute(v.keep, dims), v.other, v.zeros
            )
        if isinstance(v, Poison):
            return Poison(shape, v.reason)
        if isinstance(v, Table):
            source = self.permute(self._expand_source(v), dims)
            return Table(cast("Named", source), v.entries, v.low, shape)
        moving = [d for d in dims if v.shape[d] != 1]
        if moving == sorted(moving):
            return self.reshape(v, shape)
        n = self.named(v)
        if n.node is not None and n.node["op"] == "permute":
            before = n.node["attrs"]["dims"]
            source = n.node["in"][0]
            inner = self.value_of(source, n.kind)
            return self.permute(inner, [before[d] for d in dims])
        return self.one("permute", [n], shape, {"dims": list(dims)}, n.kind)

    def slice(self, v: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
        dim %= len(v.shape)
        if start == 0 and stop >= v.shape[dim] and step == 1:
            return v
        if isinstance(v, Rows):
            return of_rows.cut(self, v, dim, start, stop, step)
        shape = v.shape[:dim] + (len(range(start, stop, step)),) + v.shape[dim + 1 :]
        if isinstance(v, Filled):
            return v.in_shape(shape)
        if isinstance(v, Known):
            return v.once(
                ("slice", dim, start, stop, step),
                lambda data: data[(slice(None),) * dim + (slice(start, stop, step),)],
            )
        if isinstance(v, Complex):
            return Complex(
                self.slice(v.real, dim, start, stop, step),
                self.slice(v.imag, dim, start, stop, step),
            )
        if isinstance(v, Hidden):
            return Hidden(
                self.slice(v.source, dim, start, stop, step),
                self.slice(self.expand(v.keep, v.shape), dim, start, stop, step),
            )
        if isinstance(v, Replaced):
            return self.ignored(
                self.slice(v.source, dim, start, stop, step),
                self._one_number(self.slice(v.keep, dim, start, stop, step)),
                v.other,
                v.zeros,
            )
        if isinstance(v, Poison):
            return Poison(shape, v.reason)
        if isinstance(v, Table):
            source = self.slice(self._expand_source(v), dim, start, stop, step)
            return Table(cast("Named", source), v.entries, v.low, shape)
        if 0 in shape:
            return Filled(0, shape, self.named(v).kind)
        n = self.named(v)
        inner = self._slice_of_parts(n, dim, start, stop) if step == 1 else None
        if inner is not None:
            return inner
        attrs = {"dim": dim, "start": start, "stop": stop}
        if step != 1:
            attrs["step"] = step
        return self.one("slice", [n], shape, attrs, n.kind)

    def _slice_of_parts(self, n: Named, dim: int, start: int, stop: int) -> Value | None:
        """A slice of a concatenation, or of what is computed of one element by element, taken from
        the parts.

        None where one part is cut and others are needed, too.
        """
        ends = self._ends_of_parts(n, dim)
        if n.node is None or ends is None:
            return None
        inside = [at for at in ends if start < at < stop]
        if inside and not {start, stop} <= {0, *ends}:
            return None
        if n.node["op"] != "cat":
            operands = [self._operand(name, "real") for name in n.node["in"]]
            at = dim - len(n.shape)  # counted from the last dimension, as broadcasting does
            sliced = [
                self.slice(v, at, start, stop)
                if len(v.shape) >= -at and v.shape[at] == n.shape[dim]
                else v
                for v in operands
            ]
            shape = n.shape[:dim] + (stop - start,) + n.shape[dim + 1 :]
            return self.one(n.node["op"], sliced, shape, n.node.get("attrs"), n.kind)
        parts, begin = [], 0
        for name, end in zip(n.node["in"], ends):
            if begin < stop and start < end:
                low, high = max(start, begin), min(stop, end)
                part = self._operand(name, n.kind)
                parts.append(self.slice(part, dim, low - begin, high - begin))
            begin = end
        return self.cat(parts, dim) if len(parts) > 1 else parts[0]

    def _operand(self, name: str, kind: str) -> Value:
        return self._constants.named(name) or self.value_of(name, kind)

    def _ends_of_parts(self, n: Named, dim: int) -> tuple[int, ...] | None:
        """Where the parts end along a dimension, of a concatenation and of what is computed of it
        element by element. None of what is neither.
        """
        node = n.node
        if node is None:
            return None
        if node["op"] == "cat":
            if node["attrs"]["dim"] != dim:
                return None
            sizes = (self.tensors[name]["shape"][dim] for name in node["in"])
            return tuple(itertools.accumulate(sizes))
        if node["op"] not in _ELEMENTWISE or n.kind != "real" or n.of_class is not None:
            return None
        key = n.name, dim
        if key not in self._ends:
            self._ends[key] = None
            for name in node["in"]:
                shape = tuple(self.tensors[name]["shape"])
                if shape == n.shape and (made := self.producer(name)) is not None:
                    found = self._ends_of_parts(Named(name, shape, n.kind, made), dim)
                    if found is not None:
                        self._ends[key] = found
                        break
        return self._ends[key]

    def parts(self, v: Value) -> list[Value]:
        """The parts of which a tensor is the concatenation along dimension 0, also where it is
        computed of one element by element; constants as such.
        """
        ends = self._ends_of_parts(v, 0) if isinstance(v, Named) and v.shape else None
        if ends is None:
            return [v]
        return [self.slice(v, 0, low, high) for low, high in itertools.pairwise((0, *ends))]

    @staticmethod
    def _one_number(v: Value) -> Value:
        """A constant that is one number everywhere as that."""
        if isinstance(v, Known) and numel(v.shape) and bool((v.data == v.data.flatten()[0]).all()):
            return Filled(number(v.data.flatten()[0].item()), v.shape, v.kind)
        return v

    def expand(self, v: Value, shape: Sequence[int]) -> Value:
        to = tuple(int(n) for n in shape)
        if v.shape == to:
            return v
        if isinstance(v, Rows):
            return of_rows.expand(self, v, to)
        if isinstance(v, Filled):
            return v.in_shape(to)
        if isinstance(v, Known) and numel(to) <= FOLD_LIMIT:
            return v.once(("expand", *to), lambda data: data.expand(to))
        if isinstance(v, Complex):
            return Complex(self.expand(v.real, to), self.expand(v.imag, to))
        if isinstance(v, Hidden):
            return Hidden(self.expand(v.source, to), v.keep)
        if isinstance(v, Replaced):
            return Replaced(self.expand(v.source, to), self.expand(v.keep, to), v.other, v.zeros)
        if isinstance(v, Poison):
            return Poison(to, v.reason)
        if isinstance(v, Table):
            return Table(v.source, v.entries, v.low, to)
        n = self.named(v)
        return self.one("expand", [n], to, {"size": list(to)}, n.kind)

    def cat(self, values: Sequence[Value], dim: int) -> Value:
        values = [v for v in values if v.shape != (0,)] or list(values[:1])
        if len(values) > 1:
            values = [v for v in values if v.shape[dim] != 0] or list(values[:1])
        if len(values) == 1:
            return values[0]
        dim %= len(values[0].shape)
        shape = list(values[0].shape)
        shape[dim] = sum(v.shape[dim] for v in values)
        for v in values:
            if isinstance(v, Poison):
                return Poison(shape, v.reason)
        if any(isinstance(v, Rows) for v in values):
            return of_rows.joined(self, list(values), dim)
        first = values[0]
        if all(
            isinstance(v, Filled) and v.fill == first.fill and v.kind == first.kind
            for v in values
            if isinstance(first, Filled)
        ) and isinstance(first, Filled):
            return Filled(first.fill, shape, first.kind)
        pairs = [v for v in values if isinstance(v, Complex)]
        if len(pairs) == len(values):
            real = self.cat([v.real for v in pairs], dim)
            return Complex(real, self.cat([v.imag for v in pairs], dim))
        if (
            all(isinstance(v, (Filled, Known)) for v in values)
            and numel(tuple(shape)) <= FOLD_LIMIT
        ):
            key = (dim, *map(id, values))
            if key not in self._joined:
                # the parts are kept, so that their ids stay their own
                self._joined[key] = (
                    Known(
                        torch.cat([self.data(v) for v in values], dim),
                        any(isinstance(v, Known) and v.host for v in values),
                    ),
                    values,
                )
            return self._joined[key][0]
        ignored = self._ignored(values, dim)
        if ignored is not None:
            return ignored
        squares = [self._squared(v) for v in values]
        if any(isinstance(v, Named) for v in values) and None not in squares:
            return self.root(self.cat([s for s in squares if s is not None], dim))
        joined = self._rejoined(values, dim)
        if joined is not None:
            return joined
        tables = [v for v in values if isinstance(v, Table)]
        if len(tables) == len(values):
            a = tables[0]
            if all(
                v.low == a.low and v.kind == a.kind and torch.equal(v.entries, a.entries)
                for v in tables
            ):
                source = self.cat([self._expand_source(v) for v in tables], dim)
                return Table(cast("Named", source), a.entries, a.low, shape)
        ns = [self.named(v) for v in values]
        # masks of data are zeros and ones, so that those of constants have to be, too
        if any(n.kind == "real" for n in ns):
            ns = [self.named(self._as_real(v)) for v in values]
        kinds = {n.kind for n in ns}
        return self.one(
            "cat",
            ns,
            tuple(shape),
            {"dim": dim},
            kinds.pop() if len(kinds) == 1 else "real" if "real" in kinds else "int",
        )

    def _ignored(self, values: Sequence[Value], dim: int) -> Value | None:
        """Labels beside a number that is no class; None where there is no such number."""
        values = (
            [self._of_classes(v) for v in values]
            if not all(isinstance(v, Table) for v in values)
            else values
        )
        others = {
            v.other if isinstance(v, Replaced) else int(v.fill)
            for v in values
            if isinstance(v, Replaced) or isinstance(v, Filled) and v.kind == "int" and v.fill < 0
        }
        if (
            len(others) != 1
            or not any(isinstance(v, (Replaced, Named)) for v in values)
            or any(getattr(v, "kind", "") != "int" for v in values)
        ):
            return None
        other = others.pop()
        parts = [
            (v.source, v.keep)
            if isinstance(v, Replaced)
            else (Filled(0, v.shape, "int"), Filled(0, v.shape))
            if isinstance(v, Filled) and v.fill == other
            else (v, Filled(1, v.shape))
            for v in values
        ]
        return self.ignored(
            self.cat([source for source, _ in parts], dim),
            self.cat([keep for _, keep in parts], dim),
            other,
            all(v.zeros for v in values if isinstance(v, Replaced)),
        )

    def _of_classes(self, v: Value) -> Value:
        """A table of classes of which some are replaced by one number below 0, as such; else v
        itself.
        """
        if not isinstance(v, Table) or v.kind != "int" or v.low or v.entries.dtype == torch.bool:
            return v
        counts = v.entries == torch.arange(len(v.entries))
        others = v.entries[~counts].unique().tolist()
        return (
            Replaced(
                self._expand_source(v), Table(v.source, counts.double(), 0, v.shape), others[0]
            )
            if len(others) == 1 and others[0] < 0
            else v
        )

    @staticmethod
    def ignored(source: Value, keep: Value, other: int, zeros: bool) -> Value:
        """`source` where `keep` is 1, else the number `other`."""
        if isinstance(keep, Filled):
            return source if keep.fill else Filled(other, source.shape, "int")
        return Replaced(source, keep, other, zeros)

    @staticmethod
    def _as_real(v: Value) -> Value:
        """A constant of any kind as real numbers."""
        if isinstance(v, Filled):
            return Filled(float(v.fill), v.shape)
        return Known(v.data.double()) if isinstance(v, Known) else v

    @staticmethod
    def _squared(v: Value) -> Value | None:
        """The value of which v is the root, where it is known. Norms of no elements are the root of
        zero.
        """
        if isinstance(v, Filled) and v.kind == "real" and v.fill >= 0:
            return Filled(v.fill * v.fill, v.shape)
        return v.square if isinstance(v, Named) else None

    def _rejoined(self, values: Sequence[Value], dim: int) -> Value | None:
        """The value that was cut into consecutive slices along this dimension and is joined now."""
        source, at = None, 0
        for v in values:
            if not isinstance(v, Named) or v.node is None or v.node["op"] != "slice":
                return None
            a = v.node["attrs"]
            if (
                a["dim"] != dim
                or a["start"] != at
                or "step" in a
                or (source is not None and v.node["in"][0] != source)
            ):
                return None
            source, at = v.node["in"][0], a["stop"]
        whole = self.value_of(source, values[0].kind)  # type: ignore[arg-type, attr-defined]
        return whole if whole.shape[dim] == at else None

    # ---- arithmetic ----
    def data(self, v: Value) -> torch.Tensor:
        """The numbers of a constant."""
        if isinstance(v, Known):
            return v.data
        assert isinstance(v, Filled)
        return torch.full(
            v.shape,
            v.fill,
            dtype={"int": torch.int64, "bool": torch.bool}.get(v.kind, torch.float64),
        )

    def root(self, square: Value) -> Value:
        """The square root. Its square is the operand, where that is known not to be negative."""
        if isinstance(square, Filled):
            return Filled(math.sqrt(square.fill), square.shape)
        if isinstance(square, Known):
            return Known(square.data.sqrt())
        r = self.one("sqrt", [square], square.shape)
        if r.square is None and never_negative(self, square, on_ranks=True):
            r.square = square
        return r
