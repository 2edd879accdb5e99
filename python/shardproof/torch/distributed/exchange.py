# SPDX-License-Identifier: Apache-2.0
"""One communication of one group of ranks, as a node of the format."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..terms import arithmetic as ar
from ..terms.graph import Graph
from ..terms.values import Filled, Known, Named, Table, Unsupported, Value, numel
from .mesh import Mesh
from .shared_constants import SharedConstants

_REDUCTIONS = {"sum": "sum", "avg": "mean", "max": "max", "min": "min"}


@dataclasses.dataclass(frozen=True)
class Layouts:
    """The tensors of one communication on one rank, which have to be equal on all of its ranks.

    dtypes: of the tensors. strides: where elements meet by their place in memory, the strides of
    each tensor without dimensions of one element, None where it is contiguous. tag: of a message.
    even: whether the pieces of an all-to-all are equal, as far as this rank knows. rows: of rows
    that data chooses, which are sent. parts: of a buffer that is sent as the tensors that it was
    put together of, how many elements each has.
    """

    dtypes: tuple[str, ...]
    strides: tuple[tuple[int, ...] | None, ...]
    ranks: tuple[int, ...]
    operator: str
    loc: str
    tag: int = 0
    even: bool = True
    rows: str = ""
    parts: tuple[int, ...] = ()
    unknown: str = ""  # why it is not in this rank's program; the others' may have it


def group_of(node: dict[str, Any]) -> Any:
    """The group of a collective, from its node; None for other nodes."""
    return node.get("group") or node.get("group_at")


class Groups:
    """The mesh of one recording, and how often each group has communicated."""

    def __init__(self, mesh: Mesh, rank: int, mailbox: dict[Any, Any] | None = None) -> None:
        self.mesh, self.rank = mesh, rank
        # what other ranks' recordings have sent
        self.mailbox: dict[Any, Any] = {} if mailbox is None else mailbox
        self.count: collections.Counter[str] = collections.Counter()
        self.layouts: dict[str, Layouts] = {}  # by the name under which the members meet
        self.sent: tuple[str, ...] = ()  # dtypes of the call under way
        self.barriers = 0  # of all ranks
        self.under_way = ""  # the communication of the call under way
        self.whole_buffers = False  # a buffer is not sent as the tensors that it is put together of
        self.constants = SharedConstants(self.mailbox, rank)

    def meets(
        self, comm: str, ranks: tuple[int, ...], operator: str, loc: str, tag: int = 0
    ) -> None:
        """What is the same on all members of a communication."""
        self.layouts[comm] = Layouts(self.sent, (), ranks, operator, loc, tag)

    def not_followed(self, why: str) -> None:
        """The call under way is not in the program."""
        found = self.layouts.get(self.under_way)
        if found is not None:
            self.layouts[self.under_way] = dataclasses.replace(found, unknown=why)

    def fields(self, ranks: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
        """The group's name and the node's fields for its members."""
        axes = self.mesh.axes_of(ranks, self.rank)
        if axes is not None:
            return "+".join(axes), {"group": list(axes)}
        varying = self.mesh.varying(ranks)
        members = [{a: self.mesh.coordinates(r)[a] for a in varying} for r in ranks]
        return "ranks " + " ".join(",".join(f"{a}{m[a]}" for a in varying) for m in members), {
            "group_at": members
        }

    def next(self, name: str) -> str:
        """The name under which members of a group meet: the group's, and the index of the call."""
        self.count[name] += 1
        return f"{name} {self.count[name]}"


class Exchange:
    """One collective call on one group."""

    def __init__(self, recorder: Any, ranks: tuple[int, ...]) -> None:
        self.g: Graph = recorder.g
        self.recorder, self.ranks = recorder, ranks
        self.size = len(ranks)
        groups: Groups = recorder.groups
        if self.size > 1:
            name, self.fields = groups.fields(ranks)
            which = getattr(ranks, "which", 0)
            self.comm = groups.next(f"{name} again {which}" if which else name)
            groups.meets(self.comm, ranks, "a collective", self.g.loc)
            groups.under_way = self.comm
        self.parts = 0

    def by_memory(self, tensors: Sequence[torch.Tensor], operator: str) -> None:
        """Elements meet that have the same place in memory.

        Layouts have to be equal on all members, which capture.py compares.
        """
        if self.size > 1:
            strides = tuple(
                [
                    None
                    if t.is_contiguous()
                    else tuple([int(s) for s, n in zip(t.stride(), t.shape) if n != 1])
                    for t in tensors
                ]
            )
            self._state(strides=strides, operator=operator)

    def _state(self, **layouts: Any) -> None:
        """What all members have to have alike of this call (`Layouts`)."""
        if self.size > 1:
            of = self.recorder.groups.layouts
            of[self.comm] = dataclasses.replace(of[self.comm], **layouts)

    def in_parts(self, sizes: Sequence[int]) -> None:
        """How a buffer is sent, for which all members have to agree (capture.py compares)."""
        self._state(parts=tuple(sizes))

    def agree(self, rows: str, operator: str = "all_to_all") -> None:
        """What all members have to state of the rows that they exchange (capture.py compares)."""
        self._state(rows=rows, operator=operator)

    def _comm(self) -> str:
        self.parts += 1
        return self.comm if self.parts == 1 else f"{self.comm}.{self.parts}"

    def _no_counts(self, name: str) -> None:
        """Raises Unsupported for sums of booleans, and for means of integers, which are cut off."""
        if name in ("avg", "premul_sum") and any(
            dtype.startswith(("torch.int", "torch.uint")) for dtype in self.recorder.groups.sent
        ):
            raise Unsupported("a mean of integers over ranks, which is cut off")
        if str(torch.bool) in self.recorder.groups.sent and name not in ("max", "min", "product"):
            raise Unsupported(
                "booleans that are added up, which are true or false in PyTorch and not counts"
            )

    def all_reduce(self, v: Value, reduction: tuple[str, float | None]) -> Value:
        name, factor = reduction
        self._no_counts(name)
        if name == "premul_sum":
            v, name = ar.binary(self.g, "mul", v, factor), "sum"  # type: ignore[arg-type]
        if self.size == 1 and name in (*_REDUCTIONS, "product"):
            return v
        if name == "product":
            n = self.real(v, name)
            return self._product(self.all_gather(self.g.reshape(n, (1,) + n.shape)), n.shape)
        n = self.real(v, _reduce_name(name))
        comm = self._comm()
        result = self.g.one(
            "all_reduce",
            [n],
            n.shape,
            {"reduce": _reduce_name(name)},
            n.kind,
            comm=comm,
            **self.fields,
        )
        if name in ("sum", "avg", "premul_sum"):
            result.of_class = n.of_class
        return self._of_constants(comm, _reduce_name(name), v, result)

    def all_gather(self, v: Value) -> Value:
        """Along dimension 0 of the shape it was made in."""
        if self.size == 1:
            return v
        n = self.real(v)
        n = n.base or n
        if not n.shape:
            n = self.g.named(self.g.reshape(n, (1,)))
        shape = (n.shape[0] * self.size,) + n.shape[1:]
        comm = self._comm()
        result = self.g.one("all_gather", [n], shape, {"dim": 0}, n.kind, comm=comm, **self.fields)
        if self.recorder.groups.sent == (str(torch.bool),):  # on all members
            self.g.masks.add(result.name)
        else:
            self.recorder.rows.counts_gathered(n, result, self)
        return self._of_constants(comm, "gather", self.g.reshape(v, n.shape), result)

    def _of_constants(self, comm: str, how: str, v: Value, result: Named) -> Value:
        constants: SharedConstants = self.recorder.groups.constants
        return constants.result(comm, self.ranks, how, v, result)

    def reduce_scatter(self, v: Value, reduction: tuple[str, float | None]) -> Value:
        name, factor = reduction
        self._no_counts(name)
        if name == "premul_sum":
            v, name = ar.binary(self.g, "mul", v, factor), "sum"  # type: ignore[arg-type]
        if self.size == 1:
            return v
        if name == "product":  # each member gets all members' pieces of its own place
            n = self.real(v, name)
            piece = (numel(n.shape) // self.size,)
            return self._product(self.all_to_all(self.g.reshape(n, (self.size,) + piece)), piece)
        n = self.real(v, _reduce_name(name))
        if n.base is not None and n.base.shape and n.base.shape[0] % self.size == 0:
            n = n.base
        if not n.shape or n.shape[0] % self.size:
            n = self.g.named(self.g.reshape(n, (numel(n.shape),)))
        shape = (n.shape[0] // self.size,) + n.shape[1:]
        return self.g.one(
            "reduce_scatter",
            [n],
            shape,
            {"dim": 0, "reduce": _reduce_name(name)},
            n.kind,
            comm=self._comm(),
            **self.fields,
        )

    def _product(self, pieces: Value, shape: tuple[int, ...]) -> Value:
        """The product of the members' values, of this shape each and one after another.

        The format has no such reduction.
        """
        pieces = self.g.reshape(pieces, (self.size,) + shape)
        factors = [
            self.g.reshape(self.g.slice(pieces, 0, i, i + 1), shape) for i in range(self.size)
        ]
        return functools.reduce(lambda a, b: ar.binary(self.g, "mul", a, b), factors)

    def all_to_all(self, v: Value, idim: int = 0, odim: int = 0) -> Value:
        if self.size == 1:
            return v
        n = self.real(v)
        shape = list(n.shape)
        if shape[idim] % self.size:
            raise Unsupported("an all-to-all of uneven pieces")
        shape[idim] //= self.size
        shape[odim] *= self.size
        return self.g.one(
            "all_to_all",
            [n],
            tuple(shape),
            {"idim": idim, "odim": odim},
            n.kind,
            comm=self._comm(),
            **self.fields,
        )

    def uneven_all_to_all(
        self, pieces: Sequence[Value], sizes: Sequence[tuple[int, ...]], kind: str
    ) -> list[Value]:
        """pieces: for each member, in their order. sizes: the shapes of what each gives.

        A rank knows its own sizes only. So these are messages, each with the size that its sender
        and its receiver expect. They are between two members at a time, in an order of pairs that
        is the same on all, so that none waits for one that waits for it. There are no messages of
        pieces without elements. A rank whose pieces are all equal takes part in a collective
        instead. Where others have unequal ones, that is an error (capture.py compares).
        """
        groups: Groups = self.recorder.groups
        self._state(even=False, operator="all_to_all")
        me = self.ranks.index(groups.rank)
        given: list[Value] = [Filled(0, shape) for shape in sizes]
        for a, b in sorted((min(me, k), max(me, k)) for k in range(self.size)):
            if a == b:
                given[me] = pieces[me]
                continue
            other = self.ranks[b if a == me else a]
            for source in (a, b):
                target = b if source == a else a
                comm = f"piece {self.ranks[source]} to {self.ranks[target]} of {self.comm}"
                if source == me and numel(pieces[self.ranks.index(other)].shape):
                    n = self.real(pieces[self.ranks.index(other)])
                    self.g.emit(
                        "send", [n], [], comm=comm, to=groups.mesh.relative(groups.rank, other)
                    )
                elif source != me and numel(sizes[source]):
                    n = self.g.one(
                        "recv",
                        [],
                        tuple(sizes[source]),
                        None,
                        kind,
                        comm=comm,
                        **{"from": groups.mesh.relative(groups.rank, other)},
                    )
                    given[source] = self._typed(n, kind)
        return given

    def broadcast(self, v: Value | None, root: int, shape: tuple[int, ...], kind: str) -> Value:
        """root: global rank. The root gives a value, the others get one."""
        if self.size == 1:
            assert v is not None
            return v
        groups: Groups = self.recorder.groups
        at = groups.mesh.coordinates(root)
        fields = {**self.fields, "root": {a: at[a] for a in groups.mesh.varying(self.ranks)}}
        if groups.rank == root:
            assert v is not None
            self.g.emit("broadcast", [self.real(v)], [], comm=self._comm(), **fields)
            return v
        return self._typed(
            self.g.one("broadcast", [], shape, None, kind, comm=self._comm(), **fields), kind
        )

    def _typed(self, n: Named, kind: str) -> Named:
        if kind in ("int", "bool"):
            self.g.tensors[n.name]["dtype"] = "int64"
        return n

    def real(self, v: Value, reduction: str | None = None) -> Named:
        # counts; other ranks may have others
        if reduction is not None and isinstance(v, (Filled, Known)) and v.kind == "int":
            v = Filled(v.fill, v.shape) if isinstance(v, Filled) else Known(v.data.double())
        if isinstance(v, Table) and v.kind == "int":
            # positions in a rank's part that are made those in the whole: numbers on all ranks,
            # also where what is added is 0
            v = Table(v.source, v.entries.double(), v.low, v.shape)
        n = self.g.named(v)
        if reduction is not None and n.kind != "real":
            raise Unsupported("a reduction of integers over ranks")
        return n


def _reduce_name(name: str) -> str:
    if name not in _REDUCTIONS:
        raise Unsupported(f"the reduction {name}")
    return _REDUCTIONS[name]
