# SPDX-License-Identifier: Apache-2.0
"""What one device runs, as steps on named values.

nnScaler's generated code keeps a tensor in a variable, named by the tensor's number; each
microbatch has variables of its own, but for attributes (weights). A weight's gradient is added up
in one variable of the weight, by all of its uses and microbatches. Here each write to a variable is
a new value, so that a value is written once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..inert_pickle import Inert
from .graph import PlanError, Tensor, field, integer, integers, kind_of, tensors
from .operators import FUSED, PLAIN, Fused, translated

Variable = tuple[str, int]  # its name and microbatch, -1 for attributes


@dataclasses.dataclass
class Value:
    """name: unique on the device but for the microbatch. kind: "input" (data or an attribute that
    the device is given), "constant" (the gradient of the loss) or "" (a step makes it)."""

    name: str
    tensor: Tensor
    per_microbatch: bool
    kind: str = ""


@dataclasses.dataclass
class Step:
    """A node of our files, for one microbatch (None: for none).

    start: of a gather's operand and a reduce-scatter's result, where its annotation has its piece.
    """

    key: Any  # equal for the microbatches' executions of one operator
    microbatch: int | None
    op: str
    operands: list[str | None]
    results: list[str | None]
    attributes: dict[str, Any]
    communication: dict[str, Any]
    place: str
    start: int | None = None


@dataclasses.dataclass
class Program:
    """samples: of each data variable's read, (value name, microbatch): the how-manieth read of the
    data loader it is. data: for each position among the loader's outputs, the value's name. grads:
    weight to the last value of its gradient."""

    device: int
    steps: list[Step] = dataclasses.field(default_factory=list)
    values: dict[str, Value] = dataclasses.field(default_factory=dict)
    samples: dict[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    data: dict[str, int] = dataclasses.field(default_factory=dict)
    gradients: dict[int, str] = dataclasses.field(default_factory=dict)
    weights: dict[int, Tensor] = dataclasses.field(default_factory=dict)
    losses: dict[str, Tensor] = dataclasses.field(default_factory=dict)


class Microbatches:
    """Which microbatch each execution of a cell belongs to.

    An execution of a cell for the first microbatch has the cell's own tensors, one for another has
    others, which belong to that microbatch only. So executions that share such tensors, that are
    forward and backward of each other, or that are one execution on several devices, are of one
    microbatch. They are numbered in the order in which devices first run them.
    """

    def __init__(self, sequences: dict[int, list[Inert]]) -> None:
        self._parent: dict[Any, Any] = {}
        executions = [
            c for d in sorted(sequences) for c in sequences[d] if c.kind == "ExeReuseCell"
        ]
        for cell in executions:
            mine = ("cell", field(cell, "_id", int))
            mirror = cell.get("_mirror")
            if isinstance(mirror, Inert):
                self._join(mine, ("cell", field(mirror, "_id", int)))
            for own, base in self._pairs(cell):
                # The first microbatch has the cell's own tensors.
                self._join(mine, "first" if own == base else ("tensor", own))
        self._numbers: dict[Any, int] = {}
        for cell in executions:
            root = self._root(("cell", field(cell, "_id", int)))
            self._numbers.setdefault(root, len(self._numbers))
        seen = set()
        for d in sorted(sequences):
            for cell in sequences[d]:
                reused = cell.kind == "ExeReuseCell"
                inner: Inert = field(cell, "_cell", Inert) if reused else cell
                run = (d, id(inner), self.of(cell) if reused else 0)
                if run in seen:
                    raise PlanError(f"device {d} runs {_place(inner)} twice for one microbatch")
                seen.add(run)
        self.count = max(1, len(self._numbers))

    @staticmethod
    def _pairs(cell: Inert) -> list[tuple[int, int]]:
        base = field(cell, "_cell", Inert)
        return [
            (a.number, b.number)
            for name in ("_inputs", "_outputs")
            for a, b in zip(tensors(cell, name), tensors(base, name))
            if not a.is_attribute
        ]

    def _root(self, x: Any) -> Any:
        while self._parent.setdefault(x, x) != x:
            self._parent[x] = self._parent[self._parent[x]]
            x = self._parent[x]
        return x

    def _join(self, a: Any, b: Any) -> None:
        self._parent[self._root(a)] = self._root(b)

    def of(self, cell: Inert) -> int:
        return self._numbers[self._root(("cell", field(cell, "_id", int)))]


def sequences_of(plan: Inert) -> dict[int, list[Inert]]:
    """Device to the cells that it runs."""
    found: dict[int, list[Inert]] = field(field(plan, "execplan", Inert), "_seq", dict)
    for device, cells in found.items():
        if not isinstance(device, int) or not isinstance(cells, list):
            raise PlanError("the execution plan's sequences are not lists by device")
        for cell in cells:
            if not isinstance(cell, Inert):
                raise PlanError(f"device {device} runs {kind_of(cell)}")
    return found


class Reader:
    """Makes the program of one device.

    devices: of one replica of the plan; replicas: how many there are (data parallelism). annotated:
    chunks are those that annotations state, and not by rank.
    """

    def __init__(
        self,
        device: int,
        cells: list[Inert],
        microbatches: Microbatches,
        devices: int,
        replicas: int,
        annotated: bool,
    ) -> None:
        self.program = Program(device)
        self.microbatches = microbatches
        self.devices = devices
        self.replicas = replicas
        self.annotated = annotated
        self._latest: dict[Variable, str] = {}
        self._versions: dict[Variable, int] = {}
        self._weight_of: dict[int, int] = {}  # gradient to weight
        self._reads = 0
        for i, cell in enumerate(cells):
            reused = cell.kind == "ExeReuseCell"
            base = field(cell, "_cell", Inert) if reused else cell
            self._cell(base, microbatches.of(cell) if reused else 0, (i,))

    # ---- values

    def _variable(self, t: Tensor, microbatch: int) -> Variable:
        if t.is_attribute and t.is_gradient:
            weight = self._weight_of.get(t.number)
            if weight is None:
                raise PlanError(f"no forward operator uses the weight of {t.full_name}")
            return f"t{weight}.grad", -1
        return f"t{t.number}", microbatch

    def _read(self, t: Tensor, microbatch: int) -> str:
        variable = self._variable(t, microbatch)
        if variable in self._latest:
            return self._latest[variable]
        if t.is_attribute and not t.is_gradient:
            return self._given(t, "input", False)
        if t.is_loss and t.is_gradient:
            return self._given(t, "constant", False)
        # Nothing has made it: our program reports that as a defect of the plan.
        name = f"{variable[0]}.0"
        self.program.values.setdefault(name, Value(name, t, variable[1] >= 0))
        return name

    def _given(self, t: Tensor, kind: str, per_microbatch: bool) -> str:
        name = f"t{t.number}.0"
        self.program.values.setdefault(name, Value(name, t, per_microbatch, kind))
        return name

    def _written(self, t: Tensor, microbatch: int) -> str:
        variable = self._variable(t, microbatch)
        version = self._versions[variable] = self._versions.get(variable, 0) + 1
        name = f"{variable[0]}.{version}"
        self.program.values.setdefault(name, Value(name, t, variable[1] >= 0))
        self._latest[variable] = name
        if t.is_loss and not t.is_gradient:
            self.program.losses[name] = t
        return name

    def _results(
        self, written: list[Tensor], microbatch: int, step: Step, autograd: bool = False
    ) -> list[str]:
        """Values for the results of a step. Autograd adds a gradient to what is there: to that of
        the weight's other uses, or to that of a segment's result which came from outside."""
        names: list[str] = []
        sums: list[Step] = []
        for t in written:
            adds = autograd and t.is_gradient
            before = self._latest.get(self._variable(t, microbatch)) if adds else None
            names.append(self._written(t, microbatch))
            if before is not None:
                total = self._written(t, microbatch)
                operands: list[str | None] = [before, names[-1]]
                key = ("sum", step.key, len(sums))
                sums.append(
                    Step(key, microbatch, "add", operands, [total], {}, {}, f"{step.place} (sum)")
                )
        self.program.steps.append(step)
        self.program.steps += sums
        return names

    # ---- cells

    def _cell(self, cell: Inert, microbatch: int, key: tuple[Any, ...]) -> None:
        number = cell.get("_id")
        # The same operator has the same key for each microbatch, wherever that is executed.
        key = (number,) if number is not None else key
        if cell.kind == "IRDataOperation":
            self._data(cell, microbatch)
        elif cell.kind in ("IRSegment", "IRGraph"):
            for i, node in enumerate(field(cell, "_nodes", (list, tuple))):
                self._cell(node, microbatch, (*key, i))
        elif cell.kind == "IRDimops":
            self._forward(cell, microbatch, key)
        elif cell.kind == "IRBpOperation":
            self._backward(cell, microbatch, key)
        elif cell.kind == "IRAdapter":
            self._adapter(cell, microbatch, key)
        elif cell.kind == "IRWeightReducer":
            self._reducer(cell, key)
        else:
            raise PlanError(f"cell {number}: {cell.kind} is not supported")

    def _data(self, cell: Inert, microbatch: int) -> None:
        for position, t in enumerate(tensors(cell, "_outputs")):
            name = f"t{t.number}.0"
            self.program.values.setdefault(name, Value(name, t, True, "input"))
            self._latest[self._variable(t, microbatch)] = name
            self.program.data[name] = position
            self.program.samples[name, microbatch] = self._reads
        self._reads += 1

    def _forward(self, cell: Inert, microbatch: int, key: Any) -> None:
        op, attributes = translated(cell)
        operands = tensors(cell, "_inputs")
        for t in operands:
            if t.is_attribute and not t.is_gradient and t.gradient is not None:
                self._weight_of[t.gradient] = t.number
                self.program.weights[t.number] = t
        names: list[str | None] = [self._read(t, microbatch) for t in operands]
        step = Step(key, microbatch, op, names, [], attributes, {}, _place(cell))
        step.results = [*self._results(tensors(cell, "_outputs"), microbatch, step)]

    def _backward(self, cell: Inert, microbatch: int, key: Any) -> None:
        """Operands of NAME_backward: a gradient for each result of the forward operator, then its
        operands. Results: a gradient for each operand."""
        forward = field(cell, "_mirror", Inert)
        op, attributes = translated(forward)
        given = {t.number: t for t in tensors(cell, "_inputs")}
        wanted = tensors(cell, "_outputs")
        operands: list[str | None] = []
        used = set()
        for t in tensors(forward, "_outputs"):
            gradient = given.get(t.gradient) if t.gradient is not None else None
            if gradient is None:
                operands.append(None)
                continue
            used.add(gradient.number)
            # A copy that nothing uses on this device has no gradient there.
            absent = op == "multiref" and self._variable(gradient, microbatch) not in self._latest
            operands.append(None if absent else self._read(gradient, microbatch))
        if used != set(given):
            raise PlanError(f"{_place(cell)}: a gradient belongs to no result of {_place(forward)}")
        inputs = tensors(forward, "_inputs")
        if op in ("identity", "multiref"):  # the gradients are all that they read
            inputs_read: list[str | None] = []
        else:
            inputs_read = [self._read(t, microbatch) for t in inputs]
        remaining = list(wanted)
        order: list[Tensor | None] = []
        for t in inputs:
            match = next((w for w in remaining if w.number == t.gradient), None)
            if match is not None:
                remaining.remove(match)
            order.append(match)
        if remaining:
            raise PlanError(
                f"{_place(cell)}: a gradient belongs to no operand of {_place(forward)}"
            )
        step = Step(
            key,
            microbatch,
            f"{op}_backward",
            operands + inputs_read,
            [],
            attributes,
            {},
            f"gradient of {_place(forward)}",
        )
        made = iter(self._results([t for t in order if t is not None], microbatch, step, True))
        step.results = [None if t is None else next(made) for t in order]

    # ---- communication

    def _adapter(self, cell: Inert, microbatch: int, key: Any) -> None:
        forward = bool(cell.get("_forward"))
        primitives = field(cell, "_prims", (list, tuple))
        numbers: dict[Any, int] = {}
        for i, primitive in enumerate(primitives):
            if not isinstance(primitive, Inert):
                raise PlanError(f"{_place(cell)}: a primitive is {kind_of(primitive)}")
            fused = FUSED.get(primitive.kind)
            if fused is not None:
                if len(primitives) != 1:
                    raise PlanError(f"{_place(cell)} has more than a fused primitive")
                source, what = cell, fused[0 if forward else 1]
            elif primitive.kind in PLAIN:
                source, what = primitive, PLAIN[primitive.kind]
            elif primitive.kind in ("MovePrim", "BroadcastPrim"):
                self._sent(cell, primitive, microbatch, (*key, i))
                continue
            else:
                raise PlanError(f"{_place(cell)}: {primitive.kind} is not supported")
            ranks = sorted(integers(self._keywords(primitive).get("ranks", [])))
            group = (what.name, *ranks)
            again = numbers.get(group, 0)
            numbers[group] = again + 1
            self._collective(cell, source, primitive, what, microbatch, (*key, i), again)

    @staticmethod
    def _keywords(primitive: Inert) -> dict[str, Any]:
        found: dict[str, Any] = field(primitive, "kwargs", dict)
        return found

    def _ranks(self, keywords: dict[str, Any], place: str) -> list[int]:
        """The members of a group, sorted, as the runtime's are."""
        ranks = sorted(integers(keywords.get("ranks")))
        if not ranks or ranks[0] < 0 or ranks[-1] >= self.devices or len({*ranks}) != len(ranks):
            raise PlanError(f"{place}: its ranks are {ranks}, the plan has {self.devices} devices")
        return ranks

    def _collective(
        self,
        cell: Inert,
        source: Inert,
        primitive: Inert,
        what: Fused,
        microbatch: int,
        key: Any,
        again: int,
    ) -> None:
        keywords = self._keywords(primitive)
        operands, results = tensors(source, "_inputs"), tensors(source, "_outputs")
        place = f"{primitive.kind} of adapter {cell.get('_id')}"
        if len(results) != 1 or (len(operands) != 1 and what.name != "cat"):
            raise PlanError(f"{place}: {len(operands)} operands, {len(results)} results")
        if what.name == "identity" and operands[0].number == results[0].number:
            return  # nothing is moved
        attributes: dict[str, Any] = {}
        for theirs, ours in what.keywords.items():
            if theirs not in keywords:
                raise PlanError(f"{place} has no {theirs}")
            attributes[ours] = integer(keywords[theirs])
        communication: dict[str, Any] = {}
        if what.name not in ("identity", "cat"):
            # The runtime makes its groups by torch.distributed.new_group, which sorts the ranks,
            # whatever order the adapter lists.
            ranks = self._ranks(keywords, place)
            if self.program.device not in ranks:
                raise PlanError(f"{place}: device {self.program.device} is not among its ranks")
            if what.name == "chunk":
                attributes["index"] = ranks.index(self.program.device)
                attributes["parts"] = len(ranks)
            else:
                communication = {
                    "comm": f"{what.name}.{cell.get('_id')}.{again}",
                    "group_at": [{"device": r} for r in ranks],
                }
        names: list[str | None] = [self._read(t, microbatch) for t in operands]
        step = Step(key, microbatch, what.name, names, [], attributes, communication, place)
        if what.name in ("all_gather", "reduce_scatter", "chunk"):
            piece = operands[0] if what.name == "all_gather" else results[0]
            low, high = piece.box[attributes["dim"]]
            step.start = low
            if what.name == "chunk" and self.annotated:
                attributes["index"] = low // (high - low)
        autograd = source is cell and not cell.get("_forward")
        step.results = [*self._results(results, microbatch, step, autograd)]

    def _sent(self, cell: Inert, primitive: Inert, microbatch: int, key: Any) -> None:
        """A message, or a broadcast. The sender's primitive has no result, a receiver's no
        operand."""
        keywords = self._keywords(primitive)
        source = integer(keywords.get("src"))
        operands, results = tensors(primitive, "_inputs"), tensors(primitive, "_outputs")
        place = f"{primitive.kind} of adapter {cell.get('_id')}"
        sends = source == self.program.device
        mine = operands if sends else results
        if len(mine) != 1 or (not sends and operands):
            raise PlanError(f"{place}: {len(operands)} operands, {len(results)} results")
        if primitive.kind == "MovePrim":
            target = integer(keywords.get("dst"))
            if source == target:
                raise PlanError(f"{place}: device {source} sends to itself")
            op = "send" if sends else "recv"
            communication: dict[str, Any] = {
                "comm": f"move.{cell.get('_id')}.{mine[0].number}.{source}.{target}",
                **({"to": {"device": target}} if sends else {"from": {"device": source}}),
            }
        else:
            op = "broadcast"
            communication = {
                "comm": f"broadcast.{cell.get('_id')}.{mine[0].number}.{source}",
                "group_at": [{"device": r} for r in self._ranks(keywords, place)],
                "root": {"device": source},
            }
        read: list[str | None] = [self._read(mine[0], microbatch)] if sends else []
        step = Step(key, microbatch, op, read, [], {}, communication, place)
        if sends:
            self.program.steps.append(step)
        else:
            step.results = [*self._results([mine[0]], microbatch, step)]

    def _reducer(self, cell: Inert, key: Any) -> None:
        """Adds the gradients of weights up over all replicas of the devices that it lists."""
        devices = sorted(integers(field(cell, "_device", (list, tuple))))
        for t in tensors(cell, "_inputs"):
            variable = (f"t{t.number}.grad", -1)
            if t.number not in self.program.weights:
                raise PlanError(
                    f"{_place(cell)}: device {self.program.device} does not use {t.full_name}"
                )
            before = self._latest.get(variable, f"{variable[0]}.0")
            version = self._versions[variable] = self._versions.get(variable, 0) + 1
            after = f"{variable[0]}.{version}"
            gradient = self.program.values.get(before)
            shape = gradient.tensor if gradient else t
            self.program.values.setdefault(before, Value(before, shape, False))
            self.program.values[after] = Value(after, shape, False)
            self._latest[variable] = after
            self.program.steps.append(
                Step(
                    (*key, t.number),
                    None,
                    "all_reduce",
                    [before],
                    [after],
                    {},
                    {
                        "comm": f"reducer.{cell.get('_id')}.{t.number}",
                        "group_at": [
                            {"dp": replica, "device": device}
                            for replica in range(self.replicas)
                            for device in devices
                        ],
                    },
                    f"reducer {cell.get('_id')} of {t.full_name}",
                )
            )

    def finished(self) -> Program:
        for number in self.program.weights:
            last = self._latest.get((f"t{number}.grad", -1))
            if last is not None:
                self.program.gradients[number] = last
        return self.program


def program_of(
    device: int,
    cells: list[Inert],
    microbatches: Microbatches,
    devices: int,
    replicas: int,
    annotated: bool,
) -> Program:
    return Reader(device, cells, microbatches, devices, replicas, annotated).finished()


def order_by_annotation(programs: list[Program]) -> None:
    """Gathers and reduce-scatters have their members in the order of the annotated pieces."""
    starts: dict[Any, dict[int, int]] = {}
    for program in programs:
        for step in program.steps:
            if step.start is not None and step.communication:
                comm = step.communication["comm"], step.microbatch
                starts.setdefault(comm, {})[program.device] = step.start
    for program in programs:
        for step in program.steps:
            if step.start is not None and step.communication:
                found = starts[step.communication["comm"], step.microbatch]
                step.communication["group_at"].sort(
                    key=lambda at, found=found: (found.get(at["device"], 0), at["device"])
                )


def _place(cell: Inert) -> str:
    return f"{cell.get('name')} (cell {cell.get('_id')})"
