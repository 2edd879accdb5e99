# SPDX-License-Identifier: Apache-2.0
"""The program under construction: nodes in single assignment over the operators of docs/operators.md, with what can be said at once folded away."""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any, Iterable, Mapping, Sequence

import torch

from . import assumptions
from .values import Complex, Filled, Hidden, Ignored, Known, Named, Pick, Poison, Poisoned, Shape, Table, Unsupported, Value, numel

MOVES_HERE = ("view", "permute", "slice", "expand", "cat", "identity")  # elements of what this rank has
_MOVES = (*MOVES_HERE, "recv", "broadcast", "all_gather")
LITERAL_LIMIT = 4096  # elements of a constant with two values, or of a mask, that is written out
ROUNDINGS = 4         # units in the last place by which a constant that was computed may be off
FOLD_LIMIT = 1 << 24  # elements of a constant that is computed here


def number(x: Any) -> int | float:
    """A Python number as the files write it; whole ones as integers."""
    if isinstance(x, bool):
        return int(x)
    if isinstance(x, int):
        return x
    x = float(x)
    if math.isnan(x):
        raise Unsupported("a number that depends on data (or is no number) is used in a computation")
    if math.isinf(x):
        return x
    return int(x) if x == int(x) and abs(x) < 1e15 else x


@functools.lru_cache(maxsize=1 << 12)
def as_fraction(x: float) -> tuple[int, int, bool] | None:
    """(p, q, root): x is, but for a few roundings, p/q or, with root, the double nearest to sqrt(p/q), which its decimals do not say exactly; None: take the decimals."""
    if isinstance(x, int) or not math.isfinite(x) or x == 0:
        return None
    near = Fraction(x).limit_denominator(1 << 18)
    if near.numerator and abs(float(near) - x) <= ROUNDINGS * math.ulp(x):  # 0.7 / 12 and half of 0.7 / 6 are two doubles
        q = near.denominator
        for prime in (2, 5):
            while q % prime == 0:
                q //= prime
        return (near.numerator, near.denominator, False) if (q != 1 or float(near) != x) and abs(near.numerator) < 1 << 20 else None
    if x > 0:
        near = Fraction(x * x).limit_denominator(1 << 12)
        if near.numerator and near.numerator < 1 << 16 and math.sqrt(near) == x and len(repr(x)) > 12:
            return near.numerator, near.denominator, True
    return None


def _numbers(x: Any) -> Any:
    return [_numbers(y) for y in x] if isinstance(x, list) else number(x)


_FINITE = frozenset({"exp", "softmax", "sigmoid", "tanh", "relu", "relu_backward", "cross_entropy_backward"})  # what these make of minus infinities is none; where a row has nothing else it is nothing at all


_TOTAL = frozenset({
    "view", "permute", "slice", "expand", "cat", "identity", "recv", "broadcast", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "add", "sub", "mul", "neg", "matmul", "exp", "sigmoid", "tanh",
    "silu", "relu", "relu_backward", "gelu", "sin", "cos", "erf", "floor", "ceil", "round", "trunc", "sum", "mean", "amax", "amin", "softmax", "log_softmax", "one_hot", "embedding", "embedding_backward",
    "layer_norm", "rms_norm", "cross_entropy", "cross_entropy_backward", "softmax_backward", "silu_backward", "gelu_backward"})  # numbers where their operands are


def moved(node: Mapping[str, Any], operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """What a node of MOVES_HERE makes of tensors in the place of its operands."""
    t, attrs = operands[0], node.get("attrs", {})
    if node["op"] == "cat":
        return torch.cat(list(operands), attrs["dim"])
    if node["op"] == "slice":
        return t[(slice(None),) * (attrs["dim"] % t.dim()) + (slice(attrs.get("start", 0), attrs.get("stop"), attrs.get("step", 1)),)]
    if node["op"] == "permute":
        return t.permute(attrs["dims"])
    if node["op"] == "identity":
        return t
    return t.reshape(attrs["size"]) if node["op"] == "view" else t.expand(attrs["size"])


MOST_POSITIONS = 1 << 22  # elements of a tensor whose positions are followed


class Positions:
    """Of tensors that only move elements of one input: which input, and the position of each element in it.

    inputs: of which the given tensors are parts, where these begin, and their shapes. wholes: shapes of the inputs.
    """

    def __init__(self, nodes: Sequence[Mapping[str, Any]], inputs: Mapping[str, tuple[str, Shape, Shape]], wholes: Mapping[str, Shape]) -> None:
        self.producers = {n["out"][0]: n for n in nodes if n["op"] in MOVES_HERE}
        self.inputs, self.wholes = inputs, wholes
        self.known: dict[str, tuple[str, torch.Tensor] | None] = {}

    def of(self, name: str) -> tuple[str, torch.Tensor] | None:
        todo = [name]
        while todo:
            at = todo[-1]
            node = self.producers.get(at)
            missing = [n for n in node["in"] if n not in self.known] if node is not None and at not in self.known else []
            if missing:
                todo += missing
                continue
            if at not in self.known:
                self.known[at] = self._given(at) if node is None else self._moved(node, [self.known[n] for n in node["in"]])
            todo.pop()
        return self.known[name]

    def _given(self, name: str) -> tuple[str, torch.Tensor] | None:
        source, low, part = self.inputs.get(name, ("", (), ()))
        if not source or math.prod(self.wholes[source]) > MOST_POSITIONS:
            return None
        whole = torch.arange(math.prod(self.wholes[source])).view(self.wholes[source])
        return source, whole[tuple(slice(a, a + n) for a, n in zip(low, part))]

    def _moved(self, node: Mapping[str, Any], operands: list[tuple[str, torch.Tensor] | None]) -> tuple[str, torch.Tensor] | None:
        known = [o for o in operands if o is not None]
        if len(known) < len(operands) or len({source for source, _ in known}) != 1:
            return None
        if math.prod(node.get("attrs", {}).get("size", ())) > MOST_POSITIONS or sum(o.numel() for _, o in known) > MOST_POSITIONS:
            return None
        return known[0][0], moved(node, [o for _, o in known])


@dataclasses.dataclass
class Integers:
    """What a tensor of integers is put together from: inputs and choices (origins), and constants, of which the least and the greatest."""

    origins: dict[str, None] = dataclasses.field(default_factory=dict)
    least: int = 0
    most: int = -1

    def add(self, constants: torch.Tensor) -> None:
        self.least, self.most = min(self.least, int(constants.min())), max(self.most, int(constants.max()))


class Graph:
    """Nodes, tensors and constants of one side."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.tensors: dict[str, dict[str, Any]] = {}
        self.loc = ""
        self._named_constants: dict[int, tuple[Known, Named]] = {}
        self._known_memory: dict[Any, tuple[Named, torch.Tensor]] = {}
        self._joined: dict[Any, tuple[Known, Sequence[Value]]] = {}
        self.constants: list[tuple[str, torch.Tensor]] = []  # names of tensors that hold known numbers
        self.assumptions: dict[assumptions.Assumption, None] = {}
        self.not_compared: dict[assumptions.NotCompared, None] = {}
        self.opaque: set[str] = set()    # results of functions of which nothing is known
        self.hiding: set[str] = set()    # tensors in which there may be minus infinities
        self.closed: set[str] = set()    # tensors that depend on rows of scores of which all are masked
        self.gave_numbers = ""  # where Tensor.item() first gave a number that depends on data
        self.masked_by_data: set[str] = set()  # tensors that depend on softmax of scores that data masks
        self._has_value: dict[str, bool] = {}
        self.brought: set[str] = set()   # tensors that depend on what other ranks have
        self.gives_hiding = ""           # where the first of `hiding` is given to other ranks
        self.relies_on_brought = ""      # where one of `brought` is first taken to have no infinities
        self.classes: dict[str, int] = {}      # integer inputs whose range is known: 0 up to so many
        self.chosen_from: dict[str, int] = {}  # integer inputs that chose among so many rows or classes here
        self.ranges: dict[str, int] = {}       # integer inputs that are said to be below so many
        self.tabulated: set[str] = set()       # integer inputs whose range was asked for
        self.indexing: set[str] = set()        # integer inputs that index a table: none of them is ignored
        self.bounded: set[str] = set()         # integer inputs that are compared with a number above 0
        self.ignorable: dict[str, int] = {}    # integer inputs that are classes or this number (labels.py)
        self.labelled: dict[str, Any] = {}     # integer inputs that met a number which ignores them -> labels.Met
        self.label_names: Any = None           # who names the number in the loss that runs
        self._count = 0
        self._seen: dict[Any, Any] = {}
        self.factors: dict[str, tuple[Value, Value]] = {}  # of products of matrices
        self._fills: dict[Any, Named] = {}
        self._known: dict[Any, list[tuple[Named, torch.Tensor]]] = {}

    def forget(self) -> None:
        """What was only kept to be quicker is dropped: a recording is kept, and sent from process to process."""
        self._named_constants.clear()
        self._known_memory.clear()
        self._joined.clear()
        self.factors.clear()
        self.__dict__.pop("_producer_index", None)
        self.__dict__.pop("_producer_done", None)
        for names in (self.opaque, self.hiding, self.closed, self.masked_by_data, self.brought, self._has_value):
            names.clear()

    # ---- tensors ----
    def declare(self, name: str, shape: Shape, kind: str = "real", role: str | None = None) -> Named:
        """A tensor that no node makes. role: `input` or `parameter`."""
        if name in self.tensors:
            raise ValueError(f"{name} is declared twice")
        entry: dict[str, Any] = {"shape": list(shape)}
        if role:
            entry["kind"] = role
        if kind in ("int", "bool"):
            entry["dtype"] = "int64"
        self.tensors[name] = entry
        return Named(name, shape, kind)

    def named(self, v: Value) -> Named:
        """The value as a tensor of the format. Raises Poisoned and Unsupported."""
        if isinstance(v, Named):
            return v
        if isinstance(v, Poison):
            raise Poisoned(v.reason)
        if isinstance(v, Filled):
            return self._filled(v)
        if isinstance(v, Known):
            return self._known_tensor(v)
        if isinstance(v, (Table, Pick)):
            from . import tables  # it needs this module

            return self.named(tables.real(self, v))
        if isinstance(v, Hidden):
            raise Unsupported("scores with minus infinities are used other than by exp and softmax")
        if isinstance(v, Ignored):
            raise Unsupported("labels of which some do not count are used other than in a loss")
        raise Unsupported("a complex tensor is used as a whole")

    def _filled(self, v: Filled) -> Named:
        if not math.isfinite(v.fill):
            raise Unsupported("an infinity or not-a-number is used as a number")
        key = (v.fill, v.shape, v.kind)
        if key not in self._fills and v.kind == "real" and (q := self._divisor([v.fill])) is not None:
            self._fills[key] = self.expand(self.one("div", [Filled(round(v.fill * q), ())], (), {"scalar": q}), v.shape)  # type: ignore[assignment]
        if key not in self._fills:
            name = f"%const.{len(self._fills)}"
            self.tensors[name] = {"shape": list(v.shape), "kind": "constant", "value": int(v.fill) if v.kind != "real" else number(v.fill)}
            if v.kind != "real":
                self.tensors[name]["dtype"] = "int64"
            self._fills[key] = Named(name, v.shape, v.kind)
        return self._fills[key]

    def _known_tensor(self, v: Known) -> Named:
        before = self._named_constants.get(id(v))
        if before is None or before[0] is not v:
            before = self._named_constants[id(v)] = (v, self._declare_known(v))  # the value is kept, so that its id stays its own
        return before[1]

    def _declare_known(self, v: Known) -> Named:
        data = v.data
        same = (data.data_ptr(), data.dtype, v.shape, data.stride(), v.kind)
        if same not in self._known_memory:
            self._known_memory[same] = (self._declared(v), data)  # the memory is kept, so that its address stays its own
        return self._known_memory[same][0]

    def _declared(self, v: Known) -> Named:
        data = v.data
        if data.dtype == torch.bool:
            data = data.to(torch.int64)
        if data.is_floating_point() and not bool(torch.isfinite(data).all()):
            raise Unsupported("a constant tensor with infinities or not-a-numbers is used as numbers")
        alike = self._known.setdefault((v.kind == "real", v.shape), [])
        for tensor, other in alike:
            if torch.equal(data.double(), other.double()):
                return tensor
        if data.untyped_storage().nbytes() > data.numel() * data.element_size():
            data = data.clone(memory_format=torch.contiguous_format)  # not the memory that it is a part of
        name = f"%known.{sum(map(len, self._known.values()))}"
        if data.numel() <= LITERAL_LIMIT and (v.kind != "real" or bool((data == data.round()).all()) or len(torch.unique(data)) <= 2):
            q = self._divisor(torch.unique(data).tolist()) if v.kind == "real" else None
            tensor = self.declare(name, v.shape, v.kind, "constant")  # a mask, positions or counts: what is proved may depend on the numbers
            self.tensors[name]["value"] = _numbers((data if q is None else (data * q).round()).tolist())
            if q is not None:
                tensor = self.one("div", [tensor], v.shape, {"scalar": q})
            alike.append((tensor, data))
            return tensor
        tensor = self.declare(name, v.shape, v.kind, "input")
        alike.append((tensor, data))
        self.constants.append((name, data))
        return tensor

    def _divisor(self, numbers: Sequence[float]) -> int | None:
        """A whole number by which constants are whole numbers, where their decimals do not say them exactly (as_fraction); None: there is none."""
        found = {x: as_fraction(x) for x in map(float, numbers)}
        if len(found) > 2 or not any(found.values()) or any(f is not None and f[2] for f in found.values()):
            return None
        q = math.lcm(*(f[1] if f is not None else Fraction(repr(x)).denominator for x, f in found.items()))
        if q > 1 << 30:
            return None
        for x, f in found.items():
            if f is not None:
                self.assume(assumptions.fraction(x, f"{f[0]}/{f[1]}"))
        return q

    def integers(self, v: Named) -> Integers | None:
        """Of which inputs, choices and constants a tensor of integers is a rearrangement, or None."""
        found = Integers()
        todo, seen = [v.name], {v.name}
        while todo:
            name = todo.pop()
            entry, node = self.tensors[name], self._producers().get(name)
            if entry.get("kind") == "constant":
                found.add(torch.tensor(entry["value"]))
            elif name.startswith("%known.") and entry.get("kind") == "input":
                found.add(next(data for known, data in self.constants if known == name))
            elif entry.get("kind") == "input" or node is not None and node["op"] == "moe_gate":
                found.origins[name] = None
            elif "kind" in entry or node is None or node["op"] not in _MOVES or not node["in"] or None in node["in"]:
                return None
            else:
                todo += [n for n in node["in"] if n not in seen]
                seen.update(node["in"])
        return found

    def reduced_over(self, v: Value) -> set[str]:
        """The mesh axes over which the value was summed already, so far as moves and factors let it be seen."""
        name = v.name if isinstance(v, Named) else ""
        while name in self.tensors:
            node = self._producers().get(name)
            if node is None or not node["in"]:
                break
            if node["op"] in ("all_reduce", "reduce_scatter"):
                return set(node.get("group", ()))
            operands = [n for n in node["in"] if n is not None]
            if node["op"] == "add":  # a bias is added to the sum
                operands = [n for n in operands if not self._is_given(n)]
            elif node["op"] not in _MOVES and not (node["op"] in ("mul", "div", "neg") and len(node["in"]) == 1):
                break
            if not operands or node["op"] == "add" and len(operands) > 1:
                break
            name = operands[0]
        return set()

    def _is_given(self, name: str) -> bool:
        """Whether it is an input of the program, or a view of one."""
        node = self._producers().get(name)
        while node is not None and node["op"] in _MOVES and len(node["in"]) == 1:
            name = node["in"][0]
            node = self._producers().get(name)
        return node is None

    def shared_over(self, v: Value) -> tuple[str, ...]:
        """The mesh axes whose ranks all have the value, so far as moves and factors behind an all_gather or all_reduce let it be seen."""
        found: dict[str, None] = {}
        node = self._producers().get(v.name) if isinstance(v, Named) else None
        while node is not None and node["in"] and node["in"][0] is not None:
            if node["op"] in ("all_gather", "all_reduce"):
                found.update(dict.fromkeys(node.get("group", ())))
            elif node["op"] not in _MOVES and not (node["op"] in ("mul", "div", "neg") and len(node["in"]) == 1):
                break
            if node["op"] == "cat" and len(node["in"]) > 1 or node["op"] == "recv":
                break
            node = self._producers().get(node["in"][0])
        return tuple(found)

    def reduced_last(self, values: Iterable[Value], sizes: Mapping[str, int]) -> set[str]:
        """The mesh axes over which one of the values was added up last, and not divided by their ranks."""
        found: set[str] = set()
        for v in values:
            name, factor = v.name if isinstance(v, Named) else "", Fraction(1)
            node = self._producers().get(name)
            while node is not None and node["in"] and node["in"][0] is not None and (node["op"] in _MOVES or node["op"] in ("mul", "div") and len(node["in"]) == 1):
                by = Fraction(node["attrs"]["scalar"]) if node["op"] in ("mul", "div") else Fraction(1)
                factor *= 1 / by if node["op"] == "div" else by
                node = self._producers().get(node["in"][0])
            if node is not None and node["op"] == "all_reduce" and node["attrs"]["reduce"] == "sum" and factor * math.prod(sizes[a] for a in node.get("group", ())) != 1:
                found.update(node.get("group", ()))
        return found

    def reduced_next(self, names: Iterable[str], sizes: Mapping[str, int]) -> dict[str, tuple[list[str], bool]]:
        """For tensors that an all_reduce takes, also divided by its ranks: the axes over which they are added up, and whether the ranks' mean is taken (before or after)."""
        wanted = set(names)
        divided: dict[str, tuple[str, dict[str, Any]]] = {}  # by what a factor makes of it: the tensor, and the node
        made: dict[str, tuple[str, list[str]]] = {}
        found: dict[str, tuple[list[str], bool]] = {}

        def divides(node: dict[str, Any], by: int) -> bool:
            factor = node["attrs"].get("scalar", 0)
            return by > 1 and (factor == by if node["op"] == "div" else factor * by == 1)

        for node in self.nodes:
            source = node["in"][0] if node["in"] else None
            if node["op"] == "all_reduce" and "group" in node:
                name, by = divided.get(source, (source, None))
                ranks = math.prod(sizes[a] for a in node["group"])
                if name in wanted and name not in found:
                    found[name] = (list(node["group"]), by is not None and divides(by, ranks) or node["attrs"]["reduce"] == "mean")
                    made[node["out"][0]] = (name, list(node["group"]))
            elif node["op"] in ("div", "mul") and len(node["in"]) == 1:
                if source in wanted and source not in found:
                    divided.setdefault(node["out"][0], (source, node))
                elif source in made and divides(node, math.prod(sizes[a] for a in made[source][1])):
                    found[made[source][0]] = (made[source][1], True)
        return found

    # ---- nodes ----
    def emit(self, op: str, operands: Sequence[Value | None], shapes: Sequence[Shape | None], attrs: dict[str, Any] | None = None, kind: str = "real",
             **fields: Any) -> list[Named | None]:
        """One node; a shape None is a result that is not wanted. Equal calls are made once, unless they communicate (`fields`)."""
        ins = [None if v is None else self.named(v).name for v in operands]
        key = (op, tuple(ins), repr(sorted((attrs or {}).items())), tuple(s is None for s in shapes)) if not fields else None
        if key is not None and key in self._seen:
            return self._seen[key]
        results: list[Named | None] = []
        node: dict[str, Any] = {"op": op, "in": ins, "out": []}
        for shape in shapes:
            if shape is None:
                results.append(None)
                node["out"].append(None)
                continue
            name = f"%{self._count}"
            self._count += 1
            self.tensors[name] = {"shape": [int(n) for n in shape]}
            results.append(Named(name, shape, kind, node))
            node["out"].append(name)
        if attrs:
            node["attrs"] = attrs
        if self.loc:
            node["loc"] = self.loc
        node.update(fields)
        self._note_infinities(node, bool(fields))
        self.nodes.append(node)
        if key is not None:
            self._seen[key] = results
        return results

    def _note_infinities(self, node: dict[str, Any], communicates: bool) -> None:
        made = [name for name in node["out"] if name is not None]
        for names in (self.closed, self.masked_by_data):
            if not names.isdisjoint(node["in"]):
                names.update(made)
        hides = not self.hiding.isdisjoint(node["in"])
        if communicates and hides:
            self.gives_hiding = self.gives_hiding or self.loc or node["op"]
        if node["op"] in _FINITE:
            return
        if hides or node["op"] == "apply_mask":
            self.hiding.update(made)
        if communicates or not self.brought.isdisjoint(node["in"]):
            self.brought.update(made)

    def has_a_value(self, v: Value) -> bool:
        """Whether the nodes show at once that each element is a number, whatever the inputs are."""
        if isinstance(v, (Hidden, Table, Pick, Ignored, Filled)):
            return True
        if isinstance(v, Known):
            return not v.data.is_floating_point() or not bool(v.data.isnan().any())
        return isinstance(v, Named) and self._total(v.name)

    def _total(self, name: str) -> bool:
        todo = [name]
        while todo:
            at = todo[-1]
            if at in self._has_value:
                todo.pop()
                continue
            node = self._producers().get(at)
            if at in self.opaque or at in self.hiding or at in self.closed:
                self._has_value[at] = False
            elif node is None:
                self._has_value[at] = True
            else:
                attrs = node.get("attrs", {})
                plain = node["op"] in _TOTAL or node["op"] == "div" and len(node["in"]) == 1 or node["op"] == "pow" and attrs.get("scalar", -1) in (1, 2, 3, 4) or self._of_what_is_not_negative(node)
                missing = [n for n in node["in"] if n is not None and n not in self._has_value] if plain else []
                if missing:
                    todo += missing
                    continue
                self._has_value[at] = plain and all(self._has_value[n] for n in node["in"] if n is not None)
            todo.pop()
        return self._has_value[name]

    def _of_what_is_not_negative(self, node: dict[str, Any]) -> bool:
        """A root of that, or a root, power, quotient or logarithm of a number above 0 more."""
        from .arithmetic import never_negative  # it needs this module

        if node["op"] not in ("sqrt", "rsqrt", "pow", "div", "log"):
            return False
        of = node["in"][-1] if node["op"] == "div" else node["in"][0]
        if node["op"] == "sqrt" and never_negative(self, self._value(of, "real")):
            return True
        made = self._producers().get(of)
        return made is not None and made["op"] == "add" and len(made["in"]) == 1 and made["attrs"].get("scalar", 0) > 0 and never_negative(self, self._value(made["in"][0], "real"))

    def times_zero_is_zero(self, v: Value) -> bool:
        """Whether zero times the value is zero, whatever the inputs are: not where it may be no number."""
        if not self.has_a_value(v):
            return False
        if isinstance(v, Named) and v.name in self.brought:
            self.assume(assumptions.BROUGHT_IS_NUMBER)
        return True

    def both_have_values(self, *values: Value) -> None:
        """A choice is written as products with ones and zeros, so that what is not chosen has to have a value, too."""
        if not all(self.has_a_value(v) for v in values if isinstance(v, Value)):
            self.assume(assumptions.BOTH_CHOICES_ARE_NUMBERS)

    def finite(self, v: Value) -> Value:
        """The value, of which the program is told that it is no infinity and not not-a-number. Raises Unsupported where it may be one: attention's scores are minus infinity where they are masked."""
        if isinstance(v, Hidden) or isinstance(v, Named) and (v.name in self.hiding or v.name in self.closed):
            raise Unsupported("it is asked whether masked scores, or what is computed with them, are infinite or not-a-number")
        if isinstance(v, Named) and v.name in self.masked_by_data:
            self.assume(assumptions.EACH_ROW_SEEN)
        if isinstance(v, Named) and v.name in self.brought:
            self.relies_on_brought = self.relies_on_brought or self.loc or "?"
        self.assume(assumptions.NO_INFINITIES)
        return v

    def one(self, op: str, operands: Sequence[Value | None], shape: Shape, attrs: dict[str, Any] | None = None, kind: str = "real", **fields: Any) -> Named:
        result = self.emit(op, operands, [shape], attrs, kind, **fields)[0]
        assert result is not None
        return result

    def made(self, op: str, operands: Sequence[Value]) -> Named | None:
        """The result of an operator without attributes that was applied to these before."""
        found = self._seen.get((op, tuple(self.named(v).name for v in operands), "[]", (False,)))
        return found[0] if found is not None else None

    def assume(self, assumption: assumptions.Assumption) -> None:
        """Notes what the verdict will rest on beside the theorem."""
        self.assumptions[assumption] = None

    def leave_out(self, what: str, because: str) -> None:
        """Notes what the verdict will not cover."""
        self.not_compared[assumptions.NotCompared(what, because)] = None

    # ---- layout; each folds constants and goes into pairs and tables ----
    def reshape(self, v: Value, shape: Sequence[int]) -> Value:
        to = tuple(int(n) for n in shape)
        if v.shape == to:
            return v
        if numel(v.shape) != numel(to):
            raise Unsupported(f"{list(v.shape)} cannot be seen as {list(to)}")
        if isinstance(v, Filled):
            return Filled(v.fill, to, v.kind)
        if isinstance(v, Known):
            return v.once(to, lambda data: data.reshape(to))
        if isinstance(v, Complex):
            return Complex(self.reshape(v.real, to), self.reshape(v.imag, to))
        if isinstance(v, Hidden):
            return Hidden(self.reshape(v.source, to), self.reshape(self.expand(v.keep, v.shape), to))
        if isinstance(v, Ignored):
            return Ignored(self.reshape(v.source, to), self.reshape(v.keep, to), v.other, v.zeros)
        if isinstance(v, Poison):
            return Poison(to, v.reason)
        if isinstance(v, Table):
            return Table(self.reshape(self._expand_source(v), to), v.entries, v.low, to)  # type: ignore[arg-type]
        if isinstance(v, Pick) and not v.table and numel(v.index.shape) == numel(to):
            index = self.reshape(v.index, to)
            source = self.reshape(v.source, to + v.source.shape[-1:])
            if isinstance(index, Table) and v.source.shape[:-1] == v.index.shape:
                return Pick(source, index, v.scale, v.offset, False, to)
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
        if isinstance(v, Filled):
            return Filled(v.fill, shape, v.kind)
        if isinstance(v, Known):
            return v.once(("permute", *dims), lambda data: data.permute(dims))
        if isinstance(v, Complex):
            return Complex(self.permute(v.real, dims), self.permute(v.imag, dims))
        if isinstance(v, Hidden):
            return Hidden(self.permute(v.source, dims), self.permute(self.expand(v.keep, v.shape), dims))
        if isinstance(v, Ignored):
            return Ignored(self.permute(v.source, dims), self.permute(v.keep, dims), v.other, v.zeros)
        if isinstance(v, Poison):
            return Poison(shape, v.reason)
        if isinstance(v, Table):
            return Table(self.permute(self._expand_source(v), dims), v.entries, v.low, shape)  # type: ignore[arg-type]
        moving = [d for d in dims if v.shape[d] != 1]
        if moving == sorted(moving):
            return self.reshape(v, shape)
        n = self.named(v)
        if n.node is not None and n.node["op"] == "permute":
            before = n.node["attrs"]["dims"]
            source = n.node["in"][0]
            inner = self._value(source, n.kind)
            return self.permute(inner, [before[d] for d in dims])
        return self.one("permute", [n], shape, {"dims": list(dims)}, n.kind)

    def _value(self, name: str, kind: str) -> Value:
        entry = self.tensors[name]
        if entry.get("kind") == "constant" and not isinstance(entry["value"], list):
            return Filled(entry["value"], entry["shape"], kind)
        producer = self._producers().get(name)
        return Named(name, self.tensors[name]["shape"], kind, producer)

    def producer(self, name: str) -> dict[str, Any] | None:
        """The node that makes a tensor; None for one that is given."""
        return self._producers().get(name)

    def _producers(self) -> dict[str, dict[str, Any]]:
        index: dict[str, dict[str, Any]] = self.__dict__.setdefault("_producer_index", {})
        done: int = self.__dict__.setdefault("_producer_done", 0)
        for node in self.nodes[done:]:
            for out in node["out"]:
                if out is not None:
                    index[out] = node
        self.__dict__["_producer_done"] = len(self.nodes)
        return index

    def slice(self, v: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
        dim %= len(v.shape)
        if start == 0 and stop >= v.shape[dim] and step == 1:
            return v
        shape = v.shape[:dim] + (len(range(start, stop, step)),) + v.shape[dim + 1:]
        if isinstance(v, Filled):
            return Filled(v.fill, shape, v.kind)
        if isinstance(v, Known):
            return v.once(("slice", dim, start, stop, step), lambda data: data[(slice(None),) * dim + (slice(start, stop, step),)])
        if isinstance(v, Complex):
            return Complex(self.slice(v.real, dim, start, stop, step), self.slice(v.imag, dim, start, stop, step))
        if isinstance(v, Hidden):
            return Hidden(self.slice(v.source, dim, start, stop, step), self.slice(self.expand(v.keep, v.shape), dim, start, stop, step))
        if isinstance(v, Ignored):
            return self.ignored(self.slice(v.source, dim, start, stop, step), self._one_number(self.slice(v.keep, dim, start, stop, step)), v.other, v.zeros)
        if isinstance(v, Poison):
            return Poison(shape, v.reason)
        if isinstance(v, Table):
            return Table(self.slice(self._expand_source(v), dim, start, stop, step), v.entries, v.low, shape)  # type: ignore[arg-type]
        if 0 in shape:
            return Filled(0, shape, self.named(v).kind)
        n = self.named(v)
        inner = self._slice_of_cat(n, dim, start, stop) if step == 1 else None
        if inner is not None:
            return inner
        attrs = {"dim": dim, "start": start, "stop": stop}
        if step != 1:
            attrs["step"] = step
        return self.one("slice", [n], shape, attrs, n.kind)

    def _slice_of_cat(self, n: Named, dim: int, start: int, stop: int) -> Value | None:
        """What lies in the parts of a concatenation, taken from them; None where a part is cut and others are needed, too."""
        if n.node is None or n.node["op"] != "cat" or n.node["attrs"]["dim"] != dim:
            return None
        at, parts = 0, []
        for name in n.node["in"]:
            part = self._value(name, n.kind)
            end = at + part.shape[dim]
            if at <= start and stop <= end:
                return self.slice(part, dim, start - at, stop - at)
            if at < stop and start < end:
                if at < start or end > stop:
                    return None
                parts.append(part)
            at = end
        return self.cat(parts, dim)

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
        if isinstance(v, Filled):
            return Filled(v.fill, to, v.kind)
        if isinstance(v, Known) and numel(to) <= FOLD_LIMIT:
            return v.once(("expand", *to), lambda data: data.expand(to))
        if isinstance(v, Complex):
            return Complex(self.expand(v.real, to), self.expand(v.imag, to))
        if isinstance(v, Hidden):
            return Hidden(self.expand(v.source, to), v.keep)
        if isinstance(v, Ignored):
            return Ignored(self.expand(v.source, to), self.expand(v.keep, to), v.other, v.zeros)
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
        first = values[0]
        if all(isinstance(v, Filled) and v.fill == first.fill and v.kind == first.kind for v in values if isinstance(first, Filled)) and isinstance(first, Filled):
            return Filled(first.fill, shape, first.kind)
        if all(isinstance(v, Complex) for v in values):
            return Complex(self.cat([v.real for v in values], dim), self.cat([v.imag for v in values], dim))  # type: ignore[attr-defined]
        if all(isinstance(v, (Filled, Known)) for v in values) and numel(tuple(shape)) <= FOLD_LIMIT:
            key = (dim, *map(id, values))
            if key not in self._joined:
                self._joined[key] = (Known(torch.cat([self.data(v) for v in values], dim)), values)  # the parts are kept, so that their ids stay their own
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
        if all(isinstance(v, Table) for v in values):
            a = values[0]
            if all(v.low == a.low and v.kind == a.kind and torch.equal(v.entries, a.entries) for v in values):  # type: ignore[attr-defined]
                source = self.cat([self._expand_source(v) for v in values], dim)  # type: ignore[arg-type]
                return Table(source, a.entries, a.low, shape)  # type: ignore[arg-type, attr-defined]
        ns = [self.named(v) for v in values]
        if any(n.kind == "real" for n in ns):  # masks of data are zeros and ones, so that those of constants have to be, too
            ns = [self.named(self._as_real(v)) for v in values]
        kinds = {n.kind for n in ns}
        return self.one("cat", ns, tuple(shape), {"dim": dim}, kinds.pop() if len(kinds) == 1 else "real" if "real" in kinds else "int")

    def _ignored(self, values: Sequence[Value], dim: int) -> Value | None:
        """Labels beside a number that is no class; None where there is no such number."""
        values = [self._of_classes(v) for v in values] if not all(isinstance(v, Table) for v in values) else values
        others = {v.other if isinstance(v, Ignored) else int(v.fill) for v in values if isinstance(v, Ignored) or isinstance(v, Filled) and v.kind == "int" and v.fill < 0}
        if len(others) != 1 or not any(isinstance(v, (Ignored, Named)) for v in values) or any(getattr(v, "kind", "") != "int" for v in values):
            return None
        other = others.pop()
        parts = [(v.source, v.keep) if isinstance(v, Ignored) else (Filled(0, v.shape, "int"), Filled(0, v.shape)) if isinstance(v, Filled) and v.fill == other else (v, Filled(1, v.shape)) for v in values]
        return self.ignored(self.cat([source for source, _ in parts], dim), self.cat([keep for _, keep in parts], dim), other, all(v.zeros for v in values if isinstance(v, Ignored)))

    def _of_classes(self, v: Value) -> Value:
        """A table of classes of which some are replaced by one number below 0 as such; anything else as it is."""
        if not isinstance(v, Table) or v.kind != "int" or v.low or v.entries.dtype == torch.bool:
            return v
        counts = v.entries == torch.arange(len(v.entries))
        others = v.entries[~counts].unique().tolist()
        return Ignored(self._expand_source(v), Table(v.source, counts.double(), 0, v.shape), others[0]) if len(others) == 1 and others[0] < 0 else v

    @staticmethod
    def ignored(source: Value, keep: Value, other: int, zeros: bool) -> Value:
        """`source` where `keep` is 1, else the number `other`."""
        if isinstance(keep, Filled):
            return source if keep.fill else Filled(other, source.shape, "int")
        return Ignored(source, keep, other, zeros)

    @staticmethod
    def _as_real(v: Value) -> Value:
        """A constant of any kind as real numbers."""
        if isinstance(v, Filled):
            return Filled(float(v.fill), v.shape)
        return Known(v.data.double()) if isinstance(v, Known) else v

    @staticmethod
    def _squared(v: Value) -> Value | None:
        """What a value is the root of, where that is known; of norms that a rank has no elements for, zero."""
        if isinstance(v, Filled) and v.kind == "real" and v.fill >= 0:
            return Filled(v.fill * v.fill, v.shape)
        return v.square if isinstance(v, Named) else None

    def _rejoined(self, values: Sequence[Value], dim: int) -> Value | None:
        """What was cut into consecutive slices along the very dimension and is put together again."""
        source, at = None, 0
        for v in values:
            if not isinstance(v, Named) or v.node is None or v.node["op"] != "slice":
                return None
            a = v.node["attrs"]
            if a["dim"] != dim or a["start"] != at or "step" in a or (source is not None and v.node["in"][0] != source):
                return None
            source, at = v.node["in"][0], a["stop"]
        whole = self._value(source, values[0].kind)  # type: ignore[arg-type, attr-defined]
        return whole if whole.shape[dim] == at else None

    # ---- arithmetic ----
    def data(self, v: Value) -> torch.Tensor:
        """The numbers of a constant."""
        if isinstance(v, Known):
            return v.data
        assert isinstance(v, Filled)
        return torch.full(v.shape, v.fill, dtype={"int": torch.int64, "bool": torch.bool}.get(v.kind, torch.float64))

    def root(self, square: Value) -> Value:
        """The square root; squaring it gives the operand back, where that is known not to be negative."""
        if isinstance(square, Filled):
            return Filled(math.sqrt(square.fill), square.shape)
        if isinstance(square, Known):
            return Known(square.data.sqrt())
        from .arithmetic import never_negative  # it needs this module

        r = self.one("sqrt", [square], square.shape)
        if r.square is None and never_negative(self, square, on_ranks=True):
            r.square = square
        return r
