"""The model's file from the recording of the single device, and what both files share: live nodes, names, constants."""

from __future__ import annotations

import dataclasses
from typing import Any, Iterable

import torch

from .graph import Graph, number
from .marks import Mark
from .record import CaptureError, Recording
from .values import Named, Poison, Poisoned, Shape, Unsupported

LITERAL_LIMIT = 1 << 16  # elements of a constant that is written out in a file
COMMUNICATION = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv")


def tensor_of(graph: Graph, mark: Mark) -> Named | None:
    """The marked value as a tensor of the graph; None for a checkpoint of which nothing can be said. Raises CaptureError for outputs."""
    try:
        graph.loc = ""
        return graph.named(mark.value)
    except (Poisoned, Unsupported) as e:
        if mark.role == "checkpoint":
            return None
        reason = e.reason if isinstance(e, Poisoned) else None
        where = f" at {reason.loc}" if reason and reason.loc else ""
        raise CaptureError(f"{mark.role} {mark.name!r} cannot be followed: {reason.text if reason else e}{where}") from None


def live(graph: Graph, wanted: Iterable[str], keep: Iterable[int]) -> list[dict[str, Any]]:
    """The nodes that make the wanted tensors, and those of `keep` (indices), in order."""
    needed, kept = set(wanted), set(keep)
    result: list[dict[str, Any]] = []
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        outs = [o if o in needed else None for o in node["out"]]
        if i not in kept and all(o is None for o in outs):
            continue
        needed.update(name for name in node["in"] if name is not None)
        if node["op"] not in COMMUNICATION:
            node = {**node, "out": outs}
        result.append(node)
    result.reverse()
    return result


def tensors_of(graph: Graph, nodes: list[dict[str, Any]], extra: Iterable[str]) -> dict[str, Any]:
    """Declarations of all tensors that nodes and `extra` mention."""
    names: dict[str, None] = dict.fromkeys(extra)
    for node in nodes:
        for name in (*node["in"], *node["out"]):
            if name is not None:
                names[name] = None
    return {name: graph.tensors[name] for name in names}


def literal(data: torch.Tensor) -> Any:
    """Nested lists of exact numbers. Raises CaptureError where there are too many."""
    if data.numel() > LITERAL_LIMIT:
        raise CaptureError(f"a constant tensor of shape {list(data.shape)} that the single device does not have: more than {LITERAL_LIMIT} elements cannot be written out")

    def walk(x: Any) -> Any:
        return [walk(y) for y in x] if isinstance(x, list) else number(x)

    return walk(data.tolist())


@dataclasses.dataclass
class Model:
    """The model's file and what ties ranks to it. tensors: mark name and call -> the model's tensor, by role."""

    json: dict[str, Any]
    shapes: dict[str, Shape]
    tied: dict[tuple[str, str, int], str]
    constants: list[tuple[str, torch.Tensor]]
    outputs: list[str]
    calls: dict[str, int]
    random: list[str]
    classes: dict[str, int]
    assumptions: list[str]

    def write_constants(self) -> None:
        """Constants that are inputs, for whatever numbers, are written out as theirs. Raises CaptureError for one that is too large."""
        for name, data in self.constants:
            self.json["tensors"][name] = {**{k: v for k, v in self.json["tensors"][name].items() if k != "kind"}, "kind": "constant", "value": literal(data)}
        self.constants = []


def _key(mark: Mark) -> tuple[str, str, int]:
    return mark.role, mark.name, mark.call


def model_of(side: Recording, name: str) -> Model:
    """Raises CaptureError if an output or an input cannot be followed."""
    g = side.graph
    tied: dict[tuple[str, str, int], str] = {}
    outputs: list[str] = []
    for mark in side.marks:
        tensor = tensor_of(g, mark)
        if tensor is None or isinstance(mark.value, Poison):
            continue
        tied.setdefault(_key(mark), tensor.name)
        if mark.role == "output":
            outputs.append(mark.name)
    if not outputs:
        raise CaptureError("the step has no outputs: it returned no tensor, and no model was called")
    wanted = list(dict.fromkeys(tied.values()))
    nodes = live(g, wanted, [])
    if any(node["op"] in COMMUNICATION for node in nodes):
        raise CaptureError("the single device communicates")
    given = [n for n, t in g.tensors.items() if t.get("kind") in ("input", "parameter") and (not n.startswith("%") or _used(n, nodes, wanted))]
    tensors = tensors_of(g, nodes, [*given, *wanted])
    rename = _readable(side, tied, tensors)

    def to(n: str | None) -> str | None:
        return None if n is None else rename.get(n, n)

    declared = {rename.get(n, n): dict(t) for n, t in tensors.items()}
    tied = {k: rename.get(n, n) for k, n in tied.items()}
    for label in outputs:
        parameter = label.removesuffix(".grad")
        tensor_name = tied[("output", label, 0)]
        if label.endswith(".grad") and declared.get(parameter, {}).get("kind") == "parameter" and "kind" not in declared[tensor_name]:
            declared[tensor_name]["grad_of"] = parameter
    js = {"format": "shardproof-model", "version": 1, "name": name, "tensors": declared,
          "nodes": [{**n, "in": [to(x) for x in n["in"]], "out": [to(x) for x in n["out"]]} for n in nodes],
          "outputs": list(dict.fromkeys(tied[("output", label, 0)] for label in outputs))}
    used = {n for n in declared}
    return Model(js, {n: tuple(t["shape"]) for n, t in declared.items()}, tied, [(n, d) for n, d in g.constants if n in used], outputs, side.calls,
                 [v.name for v, _ in side.random_inputs if v.name in used], dict(g.chosen_from), list(g.assumptions))


def _used(name: str, nodes: list[dict[str, Any]], wanted: list[str]) -> bool:
    return name in wanted or any(name in node["in"] for node in nodes)


def _readable(side: Recording, tied: dict[tuple[str, str, int], str], tensors: dict[str, Any]) -> dict[str, str]:
    """Names of modules and results for tensors that nodes make."""
    rename: dict[str, str] = {}
    taken = set(tensors)
    for role in ("output", "checkpoint"):
        for (r, label, call), name in tied.items():
            if r != role or name in rename or "kind" in tensors[name]:
                continue
            text = label if call == 0 else f"{label} call {call}"
            if text not in taken:
                rename[name] = text
                taken.add(text)
    return rename
