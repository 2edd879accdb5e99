# SPDX-License-Identifier: Apache-2.0
"""What parameters hold when a model is called first: which of them are known to be equal.

From there on they are inputs, for any value. Their first values come from the program: from draws,
constants, and arithmetic on these. The **origin** of a value is a digest of that expression, in
which a draw stands for the state of its generator (randomness.py). What came from other ranks
refers to what these sent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...operators import WithTrait
from ..compat import private
from ..distributed.mesh import Mesh
from ..terms.graph import Graph
from ..terms.nodes import MOVES_HERE
from ..terms.positions import MOST_POSITIONS, Elements, number_of, numbered
from ..terms.values import Complex, Filled, Known, Named, Value
from .randomness import Draw

# whose result all members get
_SAME_FOR_ALL = (
    "all_reduce",
    "all_gather",
    "broadcast",
    "recv",
)


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a communication gives to a rank: op and attributes, its name, and the ranks whose
    operands it is made of, in order.
    """

    op: str
    comm: str
    ranks: tuple[int, ...]
    mine: int  # the rank's place among them, where that matters


_ELEMENTWISE = WithTrait("elementwise")
_ODD = 0x2545F4914F6CDD1D  # a multiplier of xorshift generators (Vigna, 2016): it mixes bits

# A digest; (text, origins) of an expression in which something is communicated; None: not known
Origin = Any


@dataclasses.dataclass(frozen=True)
class Saved:
    """A tensor that a rank saved in a file, for ranks that load it.

    value: it itself, where it is a constant; else origin: what it was, and the numbers of its
    elements, where these are known.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    value: Filled | Known | None
    origin: Origin
    elements: Any = None  # Origins.elements, as an array of numpy: a tensor would be saved itself


@dataclasses.dataclass(frozen=True)
class Initial:
    """The first value of a parameter on one rank. drawn: its distributions; where: places and seeds
    of its draws; by_position: DTensor drew it; flat: it is a stretch of a flat buffer, in which
    other parameters lie.
    """

    origin: Origin
    drawn: frozenset[str] = frozenset()
    where: tuple[tuple[str, str], ...] = ()
    by_position: bool = False
    why: str = ""  # nothing is known of it
    constant: float | None = None  # it is this number everywhere
    flat: bool = False
    keys: frozenset[str] = frozenset()  # what distinguishes its draws
    given: bool = False  # DistributedDataParallel gave the first rank's to all
    from_others: bool = False  # it is made of what a file, or another rank, gave
    of_sent: bool = False  # it is a part of what another rank sent, of several tensors maybe
    synchronised: bool = False  # DistributedDataParallel gave it, to ranks that had made as much
    draws: frozenset[tuple[str, tuple[int, ...]]] = frozenset()  # keys and shapes
    # of draws to which only the seed of "cuda" leads: place, and the seed that the CPU has
    by_device: tuple[tuple[str, str], ...] = ()

    @property
    def seeded(self) -> bool:
        """Whether the step determines what is drawn."""
        return any(seed for _, seed in self.where)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Origins:
    """Of the values of one recording."""

    def __init__(self, g: Graph, mesh: Mesh, rank: int) -> None:
        self.g, self.mesh, self.rank = g, mesh, rank
        self.sent: dict[str, Origin] = {}  # communication -> what this rank gave
        self._known: dict[str, tuple[Origin, frozenset[Draw]]] = {}
        self._draws: dict[str, Draw] = {}
        self._looked = 0
        self.files: dict[str, tuple[Origin, str]] = {}  # what files gave: name -> what, and which
        # what DistributedDataParallel gave to this rank -> what it had before
        self.before: dict[str, Value] = {}
        self.file_elements: dict[str, torch.Tensor] = {}  # of what files gave

    def of(self, v: Value) -> Initial:
        """After `look`."""
        origin, found = self._value(v)
        within, leaves = self._made_of(v)
        made = [n for n in map(self.g.producer, within) if n is not None]
        ordered = sorted(found, key=lambda d: d.value.name)
        return Initial(
            origin,
            frozenset(d.what for d in ordered),
            tuple(dict.fromkeys((d.loc, d.seed) for d in ordered)),
            any(d.by_position for d in ordered),
            getattr(getattr(v, "reason", None), "text", "") if origin is None else "",
            v.fill if isinstance(v, Filled) else None,
            keys=frozenset(d.key for d in ordered),
            from_others=isinstance(origin, tuple) or any(name in self.files for name in leaves),
            synchronised=any(name in self.before for name in leaves),
            draws=frozenset((d.key, tuple(d.value.shape)) for d in ordered),
            of_sent=isinstance(origin, tuple) and any(n["op"] == "slice" for n in made),
            by_device=tuple(dict.fromkeys((d.loc, d.cpu) for d in ordered if d.cpu is not None)),
        )

    def elements(self, v: Value, sent: torch.Tensor | None = None) -> torch.Tensor | None:
        """A number for each element of a first value: elements with one number are equal, on all
        sides that run one code. None where none are known. After `look`.

        sent: the numbers of what another rank has sent, if that is to be assumed.
        """
        with private.outside():
            if isinstance(v, Named):
                return Elements(
                    self.g.nodes,
                    lambda name: self._numbered(name, sent),
                    dict.fromkeys(_ELEMENTWISE, _computed),
                ).of(v.name)
            if isinstance(v, Known) and v.data.is_floating_point():
                return v.data.double().contiguous().view(torch.int64)
            return None

    def zeros(self, v: Value) -> torch.Tensor | None:
        """Which elements of a first value are known to be zero; None where it is too large."""

        def given(name: str) -> torch.Tensor | None:
            shape = tuple(self.g.tensors[name]["shape"])
            if math.prod(shape) > MOST_POSITIONS:
                return None
            known = self._constant(name)
            return (known == 0).expand(shape) if known is not None else torch.zeros(shape).bool()

        with private.outside():
            if isinstance(v, Named):
                return Elements(self.g.nodes, given).of(v.name)
            if isinstance(v, Known):
                return v.data == 0
            if isinstance(v, Filled) and math.prod(v.shape) <= MOST_POSITIONS:
                return torch.full(v.shape, v.fill == 0)
            return None

    def _numbered(self, name: str, sent: torch.Tensor | None) -> torch.Tensor | None:
        """Of a tensor that is no movement of another, and no operation on each element."""
        if (given := self.before.get(name)) is not None:
            return self.elements(given, sent)
        if name in self.file_elements:
            return self.file_elements[name]
        origin, shape = self._name(name)[0], tuple(self.g.tensors[name]["shape"])
        if isinstance(origin, str):
            return numbered(f"{origin} {list(shape)}", shape)
        return sent if sent is not None and tuple(sent.shape) == shape else None

    def _made_of(self, v: Value) -> tuple[list[str], list[str]]:
        """The tensors of which the elements of a first value are moved or computed: those that are
        moved or computed themselves, and others.
        """
        within: dict[str, None] = {}
        leaves: dict[str, None] = {}
        todo = [v.name] if isinstance(v, Named) else []
        while todo:
            node = self.g.producer(name := todo.pop())
            if node is not None and (node["op"] in MOVES_HERE or node["op"] in _ELEMENTWISE):
                within[name] = None
                todo += [n for n in node["in"] if n is not None]
            else:
                leaves[name] = None
        return list(within), list(leaves)

    def stages(self, v: Value) -> list[tuple[str, torch.Tensor]]:
        """What a first value is made of, one after another: origins, and numbers of elements."""
        found = []
        for name in itertools.chain(*self._made_of(v)):
            origin = self._name(name)[0]
            shape = tuple(self.g.tensors[name]["shape"])
            numbers = self.elements(Named(name, shape)) if isinstance(origin, str) else None
            if numbers is not None:
                found.append((origin, numbers))
        return found

    def sender(self, v: Value) -> tuple[str, int] | None:
        """The communication, and its sender, that gave this rank all of which a first value is."""
        leaves = self._made_of(v)[1]
        origin = self._name(leaves[0])[0] if len(leaves) == 1 else None
        if not isinstance(origin, tuple) or leaves[0] in self.before:
            return None
        given = origin[1][0] if len(origin[1]) == 1 else None
        if isinstance(given, Sent) and given.op in ("broadcast", "recv"):
            return given.comm, given.ranks[0]
        return None

    def look(self, draws: list[Draw]) -> None:
        """Takes in what was drawn, and what was given to communications, until now."""
        self._draws.update({d.value.name: d for d in draws})
        for node in self.g.nodes[self._looked :]:
            if "comm" in node and node["in"]:
                self.sent[node["comm"]] = self._name(node["in"][0])[0]
        self._looked = len(self.g.nodes)

    def _value(self, v: Value) -> tuple[Origin, frozenset[Draw]]:
        if isinstance(v, Named):
            return self._name(v.name)
        if isinstance(v, Filled):
            return _digest("filled", float(v.fill), v.shape), frozenset()
        if isinstance(v, Known):
            return _of_numbers(v.data), frozenset()
        if isinstance(v, Complex):
            parts = self._value(v.real), self._value(v.imag)
            return _made("complex", [p[0] for p in parts]), parts[0][1] | parts[1][1]
        return None, frozenset()

    def _name(self, name: str) -> tuple[Origin, frozenset[Draw]]:
        todo = [name]
        while todo:
            at = todo[-1]
            node = self.g.producer(at)
            operands = [n for n in node["in"] if n is not None] if node is not None else []
            missing = [n for n in operands if n not in self._known] if at not in self._known else []
            if missing:
                todo += missing
                continue
            todo.pop()
            if at not in self._known:
                self._known[at] = (
                    self._given(at)
                    if node is None
                    else self._node(node, at, [self._known[n] for n in operands])
                )
        return self._known[name]

    def _given(self, name: str) -> tuple[Origin, frozenset[Draw]]:
        if name in self._draws:
            d = self._draws[name]
            return _digest("drawn", d.value.name if d.by_position else d.key, d.what), frozenset(
                {d}
            )
        if name in self.files:
            return self.files[name][0], frozenset()
        known = self._constant(name)
        return _of_numbers(known) if known is not None else _digest("input", name), frozenset()

    def _constant(self, name: str) -> torch.Tensor | None:
        """The numbers of a constant."""
        entry = self.g.tensors[name]
        if entry.get("kind") == "constant":
            with private.outside():
                return torch.tensor(entry["value"], dtype=torch.float64).expand(entry["shape"])
        return next((data for n, data in self.g.constants if n == name), None)

    def _node(
        self, node: Mapping[str, Any], name: str, operands: list[tuple[Origin, frozenset[Draw]]]
    ) -> tuple[Origin, frozenset[Draw]]:
        if node["op"] == "view":
            # a view of a view is one of what that is a view of, which may have its shape: what was
            # put into a flat buffer is what it was
            base = self._viewed(node["in"][0])
            if self.g.tensors[base]["shape"] == self.g.tensors[name]["shape"]:
                return self._known[base]
            operands = [self._known[base]]
        drawn: frozenset[Draw] = frozenset().union(*(d for _, d in operands))
        text = _digest(
            node["op"], json.dumps(node.get("attrs", {}), sort_keys=True), node["out"].index(name)
        )
        if "comm" not in node:
            return _made(text, [o for o, _ in operands]), drawn
        ranks = self._taking_part(node)
        mine = 0 if node["op"] in _SAME_FOR_ALL else ranks.index(self.rank)
        return (text, (Sent(node["op"], node["comm"], ranks, mine),)), drawn

    def _viewed(self, name: str) -> str:
        """What a tensor is a view of; itself where it is none."""
        while (node := self.g.producer(name)) is not None and node["op"] == "view":
            name = node["in"][0]
        return name

    def _taking_part(self, node: Mapping[str, Any]) -> tuple[int, ...]:
        """The ranks whose operands a communication takes, in order."""
        here = self.mesh.coordinates(self.rank)
        if "root" in node or "from" in node:
            return (self.mesh.rank({**here, **node.get("root", node.get("from"))}),)
        if "group_at" in node:
            return tuple(self.mesh.rank({**here, **at}) for at in node["group_at"])
        axes = node["group"]
        return tuple(
            r
            for r in range(self.mesh.world)
            if all(c == here[a] for a, c in self.mesh.coordinates(r).items() if a not in axes)
        )


def _computed(node: Mapping[str, Any], operands: list[torch.Tensor]) -> torch.Tensor | None:
    """Numbers of the elements of what an operator computes element by element."""
    text = f"{node['op']} {json.dumps(node.get('attrs', {}), sort_keys=True)}"
    try:
        operands = list(torch.broadcast_tensors(*operands))
    except RuntimeError:
        return None
    found = torch.full_like(operands[0], number_of(text))
    for o in operands:
        found = (found ^ (found >> 29)) * _ODD + o
    return (found ^ (found >> 32)) * _ODD


def _of_numbers(data: torch.Tensor) -> Origin:
    with private.outside():
        if data.numel() and bool((data == data.reshape(-1)[0]).all()):
            return _digest("filled", float(data.reshape(-1)[0]), tuple(data.shape))
        return _digest(
            "numbers",
            tuple(data.shape),
            hashlib.sha256(data.detach().double().contiguous().numpy().tobytes()).hexdigest(),
        )


def _made(text: str, operands: list[Origin]) -> Origin:
    if any(o is None for o in operands):
        return None
    return (
        _digest(text, *operands)
        if all(isinstance(o, str) for o in operands)
        else (text, tuple(operands))
    )


def resolved(origin: Origin, sent: Callable[[int, str], Origin], depth: int = 0) -> str | None:
    """An origin as a digest alone. sent: what a rank gave to a communication, None where that is
    not known.
    """
    if origin is None or isinstance(origin, str):
        return origin
    if depth > 200:
        return None
    parts: list[str | None] = []
    for o in origin[1]:
        given = (
            [resolved(sent(r, o.comm), sent, depth + 1) for r in o.ranks]
            if isinstance(o, Sent)
            else [resolved(o, sent, depth + 1)]
        )
        if isinstance(o, Sent) and o.op in ("broadcast", "recv"):
            return given[0]  # the value that was sent
        parts += [*given, str(o.mine)] if isinstance(o, Sent) else given
    return None if None in parts else _digest(origin[0], *parts)
