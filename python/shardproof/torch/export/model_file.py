# SPDX-License-Identifier: Apache-2.0
"""The model's file from the recording of the single device.

Also what both files share: live nodes, names, constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..step.tracked_tensors import CUT_POINT, STATES, TrackedTensor
from ..terms import assumptions
from ..terms.constants import number
from ..terms.graph import Graph
from ..terms.liveness import COMMUNICATION
from ..terms.values import Named, Poison, Poisoned, Shape, Unsupported
from ..trace.initial_parameters import Initial
from ..trace.initial_state import InitialState
from ..trace.opaque import Call, followed
from ..trace.recording import CaptureError, Hazard, Recording
from .place_names import PlaceNames

LITERAL_LIMIT = 1 << 16  # elements of a constant that is written out in a file


def tensor_of(graph: Graph, tracked: TrackedTensor) -> Named | None:
    """The tracked value as a tensor of the graph; None for a cut point of which nothing is known.

    Raises CaptureError and Hazard for inputs and outputs.
    """
    try:
        graph.loc = ""
        return graph.named(tracked.value)
    except (Poisoned, Unsupported) as e:
        if tracked.role == CUT_POINT:
            return None
        reason = e.reason if isinstance(e, Poisoned) else None
        where = f" at {reason.loc}" if reason and reason.loc else ""
        if reason is not None and reason.hazard:
            raise Hazard(
                f"{tracked.role} {tracked.name!r} cannot be followed: {reason.text}",
                reason.loc,
                tracked.name,
            ) from None
        raise CaptureError(
            f"{tracked.role} {tracked.name!r} cannot be followed: "
            f"{reason.text if reason else e}{where}"
        ) from None


def tensors_of(graph: Graph, nodes: list[dict[str, Any]], extra: Iterable[str]) -> dict[str, Any]:
    """Declarations of all tensors that nodes and `extra` mention."""
    names: dict[str, None] = dict.fromkeys(extra)
    for node in nodes:
        for name in (*node["in"], *node["out"]):
            if name is not None:
                names[name] = None
    return {name: graph.tensors[name] for name in names}


def through_cut_points(
    nodes: list[dict[str, Any]], tensors: dict[str, Any], claimed: Iterable[str]
) -> list[dict[str, Any]]:
    """Nodes that read a tensor read it by way of a cut point that is a view or permutation of it.

    The elements are the same, and the proof goes through the cut point. Declares the tensors that
    it adds.
    """
    claimed = set(claimed)
    produced = {name for n in nodes for name in n["out"]}
    by: dict[str, dict[str, Any]] = {}
    for n in nodes:
        if n["op"] in _WAYS_BACK and n["out"][0] in claimed and n["in"][0] in produced - claimed:
            by.setdefault(n["in"][0], n)
    if not by:
        return nodes

    def directly(n: dict[str, Any]) -> bool:
        return n["op"] == "view" and n["in"][0] in by and by[n["in"][0]]["op"] == "view"

    back = {
        whole: f"{whole} by its cut point"
        for n in nodes
        if not directly(n)
        for whole in n["in"]
        if whole in by and by[whole] is not n
    }
    result: list[dict[str, Any]] = []
    for n in nodes:
        if n["op"] in _WAYS_BACK and by.get(n["in"][0]) is n:
            continue
        result.append(
            {
                **n,
                "in": by[n["in"][0]]["out"]
                if directly(n)
                else [back.get(name, name) for name in n["in"]],
            }
        )
        for whole in (name for name in n["out"] if name in by):
            result.append(by[whole])
            if whole in back:
                tensors[back[whole]] = dict(tensors[whole])
                loc = {"loc": by[whole]["loc"]} if "loc" in by[whole] else {}
                result.append(
                    {
                        "op": by[whole]["op"],
                        "in": by[whole]["out"],
                        "out": [back[whole]],
                        "attrs": _WAYS_BACK[by[whole]["op"]](by[whole], tensors[whole]["shape"]),
                        **loc,
                    }
                )
    return result


# of a node and the shape of its operand
_WAYS_BACK: dict[str, Callable[[dict[str, Any], Any], dict[str, Any]]] = {
    "view": lambda node, shape: {"size": list(shape)},
    "permute": lambda node, shape: {
        "dims": [node["attrs"]["dims"].index(d) for d in range(len(shape))]
    },
}


def literal(data: torch.Tensor) -> Any:
    """Nested lists of exact numbers. Raises CaptureError where there are too many."""
    if data.numel() > LITERAL_LIMIT:
        raise CaptureError(
            f"a constant tensor of shape {list(data.shape)} that the single device does not have: "
            f"more than {LITERAL_LIMIT} elements cannot be written out"
        )

    def walk(x: Any) -> Any:
        return [walk(y) for y in x] if isinstance(x, list) else number(x)

    return walk(data.tolist())


def repeats(data: torch.Tensor) -> list[int]:
    """The dimensions along which a constant repeats itself."""
    return [
        d
        for d, n in enumerate(data.shape)
        if n > 1 and torch.equal(data, data.narrow(d, 0, 1).expand_as(data))
    ]


def once(data: torch.Tensor, dims: Iterable[int]) -> torch.Tensor:
    """Without its repetitions along these dimensions."""
    for d in dims:
        data = data.narrow(d, 0, 1)
    return data


def repeated(name: str, data: torch.Tensor) -> tuple[str, dict[str, Any]]:
    """What a constant without its repetitions is called, and the node that repeats it."""
    return f"{name} once", {
        "op": "expand",
        "in": [f"{name} once"],
        "out": [name],
        "attrs": {"size": list(data.shape)},
    }


@dataclasses.dataclass
class Model:
    """The model's file and what ties ranks to it.

    tensors: (name, call) of a tracked tensor -> the model's tensor, by role.
    """

    json: dict[str, Any]
    shapes: dict[str, Shape]
    tied: dict[tuple[str, str, int], str]
    constants: list[tuple[str, torch.Tensor]]
    outputs: list[str]
    calls: dict[str, int]
    # random numbers that are inputs -> what distinguishes them (randomness.py)
    random: dict[str, str]
    classes: dict[str, int]
    assumptions: list[assumptions.Assumption]
    opaque: dict[str, str]  # label of an opaque call -> the function; their arguments are outputs
    distributions: dict[str, str]  # of random inputs: from what they are drawn
    initial_state: InitialState  # of ranks
    kinds: dict[str, str]  # of outputs: how the report counts them
    models: tuple[tuple[str, frozenset[str]], ...]  # Recording.models of the single device
    # first values of parameters, by the model's tensor; none where ranks run other code
    initial: dict[str, Initial]
    first_values: Callable[[str], torch.Tensor | None]  # numbers of the elements of each
    # what each is made of (Origins.stages)
    stages: Callable[[str], list[tuple[str, torch.Tensor]]]
    ignorable: dict[str, int]  # integer inputs that are classes or this number (labels.py)
    # outputs that are claimed where all ranks have those that go together
    # (tracked_tensors.together)
    beside: dict[str, Shape]
    # states of optimizers that no rank has: inputs of the single device alone
    unheld: list[str] = dataclasses.field(default_factory=list)

    def compared(self) -> dict[str, list[str]]:
        """The outputs by kind; one that has several names counts once."""
        found: dict[str, list[str]] = {}
        seen: set[str] = set()
        for label in self.outputs:
            tensor = self.tied["output", label, 0]
            if tensor not in seen:
                found.setdefault(self.kinds[label], []).append(tensor)
            seen.add(tensor)
        return found

    def without(self, beside: Iterable[str]) -> None:
        """Some rank has others."""
        gone = set(beside)
        self.outputs = [label for label in self.outputs if label not in gone]
        self.json["outputs"] = list(
            dict.fromkeys(self.tied["output", label, 0] for label in self.outputs)
        )
        self.beside = {label: shape for label, shape in self.beside.items() if label not in gone}

    def states_in(self, tensor: str) -> list[str]:
        """The outputs that are states of optimizers and this tensor; none where others are, too."""
        found = [label for label in self.outputs if self.tied["output", label, 0] == tensor]
        return found if all(self.kinds[label] == STATES for label in found) else []

    def write_constants(self) -> None:
        """Constants that are inputs, for whatever numbers, are written with their numbers.

        Raises CaptureError for one that is too large.
        """
        for name, data in self.constants:
            self.json["tensors"][name] = {
                **{k: v for k, v in self.json["tensors"][name].items() if k != "kind"},
                "kind": "constant",
                "value": literal(data),
            }
        self.constants = []


def _key(tracked: TrackedTensor) -> tuple[str, str, int]:
    return tracked.role, tracked.name, tracked.call


def model_of(side: Recording, name: str, changed: Iterable[str] = ()) -> Model:
    """The model's file. changed: what is kept that ranks change.

    Raises CaptureError if an output or an input cannot be followed.
    """
    changed = side.changed.union(changed)
    kept = changed.union(side.beside)
    g = side.graph
    tied: dict[tuple[str, str, int], str] = {}
    outputs: list[str] = []
    kinds: dict[str, str] = {}
    for tracked in side.tracked:
        if tracked.role == "kept":
            if tracked.name not in kept:
                continue
            tracked = dataclasses.replace(tracked, role="output")
        tensor = tensor_of(g, tracked)
        if tensor is None or isinstance(tracked.value, Poison):
            continue
        tied.setdefault(_key(tracked), tensor.name)
        # the shape that it was made in, from which others read it, too
        if tracked.role == CUT_POINT and tensor.base is not None:
            tied.setdefault(("base", tracked.name, tracked.call), tensor.base.name)
        if tracked.role == "output":
            outputs.append(tracked.name)
            kinds[tracked.name] = tracked.kind
    lacking = changed - set(outputs)
    if lacking:
        raise CaptureError(
            f"output {min(lacking)!r}, a buffer that ranks change, is not on the single device"
        )
    if not outputs:
        raise CaptureError(
            "the step has no outputs: it returned no tensor, and no model was called"
        )
    wanted = list(dict.fromkeys(tied.values()))
    nodes, opaque = followed(g, side.opaque, wanted, [])
    for c in opaque:
        for label, value in c.arguments().items():
            tied[("output", label, 0)] = value.name
            outputs.append(label)
            kinds[label] = "arguments of opaque functions"
    wanted = list(dict.fromkeys(tied.values()))
    if any(node["op"] in COMMUNICATION for node in nodes):
        raise CaptureError("the single device communicates")
    given = [
        n
        for n, t in g.tensors.items()
        if t.get("kind") in ("input", "parameter")
        and (not n.startswith("%") or _used(n, nodes, wanted))
    ]
    tensors = tensors_of(g, nodes, [*given, *wanted])
    rename = _readable(tied, tensors, nodes)

    def to(n: str | None) -> str | None:
        return None if n is None else rename.get(n, n)

    declared = {rename.get(n, n): dict(t) for n, t in tensors.items()}
    for n, count in {**g.integers.chosen_from, **g.integers.ranges, **g.integers.classes}.items():
        if declared.get(n, {}).get("kind") == "input":
            # what is drawn then is one of the classes (or ignored): others may have no value
            declared[n]["known"] = {"within": [[0, count + (n in g.integers.ignorable)]]}
    tied = {k: rename.get(n, n) for k, n in tied.items()}
    for label in outputs:
        parameter = label.removesuffix(".grad")
        tensor_name = tied[("output", label, 0)]
        if (
            label.endswith(".grad")
            and declared.get(parameter, {}).get("kind") == "parameter"
            and "kind" not in declared[tensor_name]
        ):
            declared[tensor_name]["grad_of"] = parameter
    constants: list[tuple[str, torch.Tensor]] = []
    repeating: list[dict[str, Any]] = []
    for (
        n,
        data,
    ) in (
        g.constants
    ):  # it is proved for all numbers in their place: what is repeated has to be the same number
        dims = repeats(data) if n in declared else []
        if dims:
            short, node = repeated(n, data)
            repeating.append(node)
            declared[short] = {**declared[n], "shape": list(once(data, dims).shape)}
            declared[n] = {k: v for k, v in declared[n].items() if k != "kind"}
            constants.append((short, once(data, dims)))
        elif n in declared:
            constants.append((n, data))
    js = {
        "format": "shardproof-model",
        "version": 1,
        "name": name,
        "tensors": declared,
        "nodes": repeating
        + [{**n, "in": [to(x) for x in n["in"]], "out": [to(x) for x in n["out"]]} for n in nodes],
        "outputs": list(dict.fromkeys(tied[("output", label, 0)] for label in outputs)),
    }
    used = set(declared)
    return Model(
        js,
        {n: tuple(t["shape"]) for n, t in declared.items()},
        tied,
        constants,
        outputs,
        side.calls,
        {d.value.name: d.key for d in side.random_inputs if d.value.name in used},
        dict(g.integers.chosen_from),
        list(g.assumptions) + _opaque_assumptions(opaque),
        {c.label: c.function for c in opaque},
        {d.value.name: d.what for d in side.random_inputs},
        side.initial_state.of_ranks(side.any_buffers, side.steps_by_hand),
        kinds,
        side.models,
        dict(side.initial),
        side.elements_of,
        side.stages_of,
        dict(g.integers.ignorable),
        dict(side.beside),
    )


def _opaque_assumptions(calls: list[Call]) -> list[assumptions.Assumption]:
    return list(
        dict.fromkeys(
            assumptions.opaque(
                f"{c.function} at {c.loc} is a function of {c.of()}, of which nothing else is "
                "known but that its results are numbers"
            )
            for c in calls
        )
    )


def _used(name: str, nodes: list[dict[str, Any]], wanted: list[str]) -> bool:
    return name in wanted or any(name in node["in"] for node in nodes)


def _readable(
    tied: dict[tuple[str, str, int], str], tensors: dict[str, Any], nodes: list[dict[str, Any]]
) -> dict[str, str]:
    """Names of modules and results for tensors that nodes make; for others names by place."""
    rename: dict[str, str] = {}
    taken = set(tensors)
    for role in ("output", CUT_POINT, "base"):
        for (r, label, call), name in tied.items():
            if r != role or name in rename or tensors[name].get("kind", "constant") != "constant":
                continue
            text = (label if call == 0 else f"{label} call {call}") + (
                ", as it was made" if role == "base" else ""
            )
            if text not in taken:
                rename[name] = text
                taken.add(text)
    places = PlaceNames(taken)
    for node in nodes:
        for name in node["out"]:
            if name is not None and name not in rename and name in tensors:
                rename[name] = places.of(name, node)
    return rename
