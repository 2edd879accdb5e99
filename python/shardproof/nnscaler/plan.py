# SPDX-License-Identifier: Apache-2.0
"""From two pickles to a model file and a plan file.

The model is the plan of one device. The plan has the mesh axes `dp` (replicas of the whole plan)
and `device` (nnScaler's devices). What is compared is the loss, and the gradient of each weight
when all reductions are done. Lineage is by nnScaler's own description of each tensor: the name of
the full tensor and the box of it.
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from ..inert_pickle import Inert
from ..program import verify_files
from ..report import Report
from .graph import PlanError, Tensor, field, integers, read_plan
from .programs import (
    Microbatches,
    Program,
    Step,
    order_by_annotation,
    program_of,
    sequences_of,
)

_SHARED = ("float32", "float64", "float16", "bfloat16", "")  # kinds that need no dtype

_ANNOTATED = (
    {
        "name": "annotated-order",
        "class": "risk",
        "text": "gathers and chunks have their pieces in the order of annotations; the runtime "
        "sorts by rank",
    },
)


class _Plan:
    """A pickle or a live plan, read. devices: of one replica. programs: one for each device."""

    def __init__(self, source: Any, order: str = "runtime") -> None:
        if order not in ("runtime", "annotation"):
            raise PlanError(f"order is {order!r}, expected 'runtime' or 'annotation'")
        self.annotated = order == "annotation"
        self.name, raw = read_plan(source)
        try:
            self._read(raw)
        except PlanError as error:
            raise PlanError(f"{self.name}: {error}") from None

    def _read(self, raw: Inert) -> None:
        self.devices = integers(field(raw, "devices", (list, tuple)))
        if self.devices != list(range(len(self.devices))):
            raise PlanError(f"devices are {self.devices}, expected 0, 1, ...")
        all_devices = field(raw, "runtime_ndevs", int)
        self.replicas = all_devices // len(self.devices)
        if self.replicas * len(self.devices) != all_devices or (
            self.replicas > 1 and not raw.get("enable_dp")
        ):
            raise PlanError(
                f"{all_devices} devices run a plan for {len(self.devices)}, "
                "and it is not said that they are replicas"
            )
        sequences = sequences_of(raw)
        if sorted(sequences) != self.devices:
            raise PlanError("not every device has a sequence")
        self.microbatches = Microbatches(sequences)
        self.programs = [
            program_of(
                d,
                sequences[d],
                self.microbatches,
                len(self.devices),
                self.replicas,
                self.annotated,
            )
            for d in self.devices
        ]
        if self.annotated:
            order_by_annotation(self.programs)


def convert(single: Any, parallel: Any, prefix: Any, order: str = "runtime") -> str:
    """Writes PREFIX.model.json and PREFIX.plan.json. Returns a line that tells what was read.

    single: the plan of one device, which is the specification: the path of its pickle, or the live
    `ModuleCodeGen`. parallel: the plan to verify, of the same model. order: of pieces in gathers
    and chunks: "runtime" is that of ranks, "annotation" that of the tensors' descriptions. Nothing
    of the pickles is executed. Raises PlanError, which names the file, if one is no plan, would
    call something that is not part of a plan, or has something unsupported.
    """
    one, many = _Plan(single), _Plan(parallel, order)
    if len(one.devices) != 1 or one.replicas != 1 or one.microbatches.count != 1:
        raise PlanError(f"{one.name}: the specification is a plan of one device and microbatch")
    prefix = os.fspath(prefix)
    model, names = _model(one)
    plan = _plan(one, many, names, os.path.basename(prefix))
    pathlib.Path(f"{prefix}.model.json").write_text(json.dumps(model))
    pathlib.Path(f"{prefix}.plan.json").write_text(json.dumps(plan))
    nodes = sum(len(p["nodes"]) for p in plan["programs"])
    return (
        f"{prefix}.plan.json: {many.replicas} x {len(many.devices)} devices, "
        f"{many.microbatches.count} microbatches, {nodes:,} nodes"
    )


def verify(
    single: Any, parallel: Any, arguments: Sequence[str] = (), order: str = "runtime"
) -> Report:
    """Proves that a plan computes what the plan of one device computes.

    single, parallel, order: as for `convert`. arguments: further options of `shardproof verify`.
    Raises PlanError as `convert` does, and ProgramError if the program fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        is_file = isinstance(parallel, (str, os.PathLike))
        prefix = os.path.join(folder, pathlib.Path(parallel).stem if is_file else "live")
        convert(single, parallel, prefix, order)
        return verify_files(f"{prefix}.plan.json", None, arguments)


# ---- the model


class _Names:
    """Values of the model by what they are: data by position among the loader's outputs, attributes
    by name, gradients by their weight's name, the loss."""

    def __init__(self) -> None:
        self.data: dict[int, tuple[str, Tensor]] = {}
        self.attributes: dict[str, tuple[str, Tensor]] = {}
        self.gradients: dict[str, str] = {}
        self.losses: list[str] = []


def _entry(t: Tensor, kind: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"shape": list(t.shape)}
    if kind == "constant":
        return entry | {"kind": "constant", "value": 1}
    if kind:
        entry["kind"] = kind
        if t.dtype not in _SHARED:
            entry["dtype"] = t.dtype
    return entry


def _node(step: Step) -> dict[str, Any]:
    node: dict[str, Any] = {"op": step.op, "in": step.operands, "out": step.results}
    node |= step.communication
    if step.attributes:
        node["attrs"] = step.attributes
    return node | {"loc": step.place}


def _used(program: Program) -> set[str]:
    return {n for s in program.steps for n in (*s.operands, *s.results) if n is not None}


def _model(one: _Plan) -> tuple[dict[str, Any], _Names]:
    program = one.programs[0]
    names = _Names()
    tensors = {}
    used = _used(program)
    for value in program.values.values():
        if value.name not in used:
            continue
        t = value.tensor
        kind = value.kind
        if kind == "input" and value.name not in program.data:
            kind = "parameter" if t.gradient is not None else "input"
            known = names.attributes.setdefault(t.full_name, (value.name, t))
            if known[0] != value.name:
                raise PlanError(f"{one.name}: two attributes are called {t.full_name}")
            if t.shape != t.full_shape:
                raise PlanError(f"{one.name}: attribute {t.full_name} is cut")
        elif value.name in program.data:
            names.data[program.data[value.name]] = value.name, t
        tensors[value.name] = _entry(t, kind)
    for number, last in program.gradients.items():
        weight = program.weights[number]
        names.gradients[weight.full_name] = last
        tensors[last]["grad_of"] = names.attributes[weight.full_name][0]
    names.losses = [n for n in program.losses if n in used]
    if len(names.losses) != 1:
        raise PlanError(f"{one.name}: {len(names.losses)} tensors are the loss, expected 1")
    model = {
        "format": "shardproof-model",
        "version": 1,
        "name": pathlib.Path(one.name).stem,
        "source": "nnScaler execution plan",
        "tensors": tensors,
        "nodes": [_node(s) for s in program.steps],
        "outputs": [*names.losses, *names.gradients.values()],
    }
    return model, names


# ---- the plan


def _plan(one: _Plan, many: _Plan, names: _Names, base: str) -> dict[str, Any]:
    count = many.microbatches.count
    lineage = _Lineage(many, names)
    programs = []
    for program in many.programs:
        used = _used(program)
        tensors = {}
        for value in program.values.values():
            if value.name not in used:
                continue
            kind = value.kind
            if kind == "input" and value.tensor.gradient is not None and not value.per_microbatch:
                kind = "parameter"
            entry = _entry(value.tensor, kind)
            if value.per_microbatch:
                entry["per_mb"] = True
            tensors[value.name] = entry
            if value.kind == "input":
                lineage.given(program, value.name)
        lineage.outputs(program, used)
        nodes = _nodes(program, count, many.name)
        programs.append({"at": {"device": program.device}, "tensors": tensors, "nodes": nodes})
    return {
        "format": "shardproof-plan",
        "version": 1,
        "name": base,
        "source": "nnScaler execution plan",
        "model": f"{base}.model.json",
        "mesh": [["dp", many.replicas], ["device", len(many.devices)]],
        "microbatches": count,
        "programs": programs,
        "lineage": lineage.entries(),
        "capture": {
            "source": ", ".join(os.path.basename(p.name) for p in (one, many)),
            "compared": {
                "loss": names.losses,
                "gradients": [*names.gradients.values()],
            },
            "assumptions": [
                *(_ANNOTATED if many.annotated else ()),
                {
                    "name": "samples",
                    "class": "checkable",
                    "text": "the data loader of each replica gives all its devices the same "
                    "samples, replica by replica and microbatch by microbatch those of the "
                    "single device's batch",
                },
                {
                    "name": "summed-loss",
                    "class": "checkable",
                    "text": "the loss of the step is the sum over replicas and microbatches, as "
                    "the gradients are",
                },
            ],
        },
    }


def _nodes(program: Program, count: int, name: str) -> list[dict[str, Any]]:
    """One node for all microbatches where they only differ in it; in an order that is that of each
    microbatch."""
    groups: dict[Any, list[tuple[int, Step]]] = {}
    first: dict[Any, int] = {}
    for i, step in enumerate(program.steps):
        first.setdefault(_place_key(step.key), i)
        # Equal but for the microbatch.
        same = (step.key, step.op, *map(tuple, (step.operands, step.results)), str(step.attributes))
        groups.setdefault(same, []).append((i, step))
    placed: list[tuple[int, int, dict[str, Any], Step]] = []
    per_microbatch = {v.name for v in program.values.values() if v.per_microbatch}
    for steps in groups.values():
        position = first[_place_key(steps[0][1].key)]
        names = [n for _, s in steps for n in (*s.operands, *s.results) if n is not None]
        results = [n for _, s in steps for n in s.results if n is not None]
        shared = all(n in per_microbatch for n in results) and any(
            n in per_microbatch for n in names
        )
        if sorted(s.microbatch or 0 for _, s in steps) == list(range(count)) and shared:
            placed.append((position, steps[0][0], _node(steps[0][1]) | {"mb": "*"}, steps[0][1]))
            continue
        for i, step in steps:
            node = _node(step)
            if any(n in per_microbatch for n in (*step.operands, *step.results)):
                node["mb"] = step.microbatch
            placed.append((position, i, node, step))
    placed.sort(key=lambda p: p[:2])
    # Is that each microbatch's own order? Then reading what comes later is the plan's defect.
    for microbatch in range(count):
        mine = [s for s in program.steps if s.microbatch in (microbatch, None)]
        order = {s.key: i for i, s in enumerate(mine)}
        now = [
            order[s.key]
            for _, _, node, s in placed
            if node.get("mb") in ("*", microbatch, None) and s.key in order
            if node.get("mb") is not None or s.microbatch in (microbatch, None)
        ]
        if now != sorted(now):
            raise PlanError(
                f"{name}: device {program.device} runs the operators of microbatch {microbatch} "
                "in another order than those of the first"
            )
    return [node for _, _, node, _ in placed]


def _place_key(key: Any) -> Any:
    """Where a gradient is added up, its sum has the place of the operator that makes it."""
    return key[1] if key[0] == "sum" else key


class _Lineage:
    """Entries about the inputs and outputs, collected device by device."""

    def __init__(self, plan: _Plan, names: _Names) -> None:
        self.plan = plan
        self.names = names
        self.parts = plan.replicas * plan.microbatches.count
        self.shards: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def _error(self, program: Program, what: str) -> PlanError:
        return PlanError(f"{self.plan.name}: device {program.device}: {what}")

    def _add(self, role: str, name: str, shard: dict[str, Any]) -> None:
        self.shards.setdefault((name, role), []).append(shard)

    def given(self, program: Program, name: str) -> None:
        """Data, or an attribute."""
        t = program.values[name].tensor
        at = {"device": program.device}
        if t.part != (0, 1):
            raise self._error(program, f"input {t.full_name} is a term of a sum")
        if name in program.data:
            self._data(program, name, t)
            return
        known = self.names.attributes.get(t.full_name)
        if known is None or known[1].full_shape != t.full_shape:
            raise self._error(
                program, f"the model has no attribute {t.full_name} of shape {list(t.full_shape)}"
            )
        self._add("input", known[0], {"box": _box(t), "parts": [{"local": name, "at": at}]})

    def _data(self, program: Program, name: str, t: Tensor) -> None:
        """The k-th read of the data loader, on replica d of D with n microbatches, has the
        (d n + k)-th part of the model's data."""
        model = self.names.data.get(program.data[name])
        if model is None:
            raise self._error(program, f"the model does not read data {t.full_name}")
        whole = model[1].full_shape
        cut = [d for d, (a, b) in enumerate(zip(t.full_shape, whole)) if a != b]
        fits = len(whole) == len(t.full_shape) and (
            (self.parts == 1 and not cut)
            or (len(cut) == 1 and t.full_shape[cut[0]] * self.parts == whole[cut[0]])
        )
        if not fits:
            raise self._error(
                program,
                f"data {t.full_name} of shape {list(t.full_shape)} is not one of {self.parts} "
                f"parts of the model's {list(whole)}",
            )
        count = self.plan.microbatches.count
        piece = t.full_shape[cut[0]] if cut else 0

        def steps(**of: int) -> dict[str, Any]:
            found = {
                axis: [n * piece if cut and d == cut[0] else 0 for d in range(len(whole))]
                for axis, n in of.items()
            }
            return {"step": found} if cut and found else {}

        mine = {m: k for (n, m), k in program.samples.items() if n == name}
        part: dict[str, Any] = {"local": name, "at": {"device": program.device}}
        replica = {"dp": count} if self.plan.replicas > 1 else {}
        if mine == {m: m for m in range(count)}:
            every = {"mb": 1} if count > 1 else {}
            self._add(
                "input", model[0], {"box": _box(t), "parts": [part], **steps(**replica, **every)}
            )
            return
        if sorted(mine) != list(range(count)):
            raise self._error(program, f"data {t.full_name} is not read for each microbatch")
        for microbatch, k in mine.items():
            box = [
                [low + k * piece, high + k * piece] if cut and d == cut[0] else [low, high]
                for d, (low, high) in enumerate(t.box)
            ]
            shard = {"box": box, "parts": [{**part, "mb": microbatch}], **steps(**replica)}
            self._add("input", model[0], shard)

    def outputs(self, program: Program, used: set[str]) -> None:
        """The gradient of each weight in its last version, and the loss where it is computed."""
        at = {"device": program.device}
        for number, last in program.gradients.items():
            weight = program.weights[number]
            name = self.names.gradients.get(weight.full_name)
            if name is None:
                raise self._error(program, f"the model has no gradient of {weight.full_name}")
            shard = {"box": _box(weight), "parts": [{"local": last, "at": at}]}
            self._add("output", name, shard)
        axes = [
            *(["dp"] if self.plan.replicas > 1 else []),
            *(["mb"] if self.plan.microbatches.count > 1 else []),
        ]
        for local, t in program.losses.items():
            if t.part == (0, 1) and local in used:
                shard = {"box": _box(t), "parts": [{"local": local, "at": at}]}
                self._add("output", self.names.losses[0], shard | ({"sum": axes} if axes else {}))

    def entries(self) -> list[dict[str, Any]]:
        order = {"input": 0, "output": 1}
        return [
            {"tensor": name, "role": role, "shards": shards}
            for (name, role), shards in sorted(
                self.shards.items(), key=lambda entry: order[entry[0][1]]
            )
        ]


def _box(t: Tensor) -> list[list[int]]:
    return [list(b) for b in t.box]
