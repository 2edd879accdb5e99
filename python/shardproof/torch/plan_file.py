"""The plan's file from the recordings of ranks: programs, what tells them apart, and lineage."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from typing import Any, Mapping, Sequence

import torch

from .boxes import Box, NoPlace, locate
from .marks import Mark
from .mesh import Mesh
from .model_file import COMMUNICATION, Model, literal, live, tensor_of, tensors_of
from .record import CaptureError, Recording
from .values import Filled, Poison, Shape, numel


@dataclasses.dataclass
class _Tie:
    role: str
    tensor: str       # the model's
    local: str
    shape: Shape
    box: Box
    label: str = ""   # of an output: two may be one tensor of the model

    def identity(self) -> tuple[str, str, str, Shape, tuple[str, ...]]:
        return self.role, self.tensor, self.local, self.shape, self.box.total


@dataclasses.dataclass
class Program:
    """One rank's program and its ties to the model."""

    text: str
    tensors: dict[str, Any]
    nodes: list[dict[str, Any]]
    ties: list[_Tie]
    skipped: dict[str, str]
    guessed: list[str]
    own_constants: list[str]  # constants that are no part of one of the model's


def _constants(side: Recording, model: Model) -> list[tuple[Mark | None, str, tuple[int, ...], torch.Tensor]]:
    """Each constant tensor of the rank: the model's that has the same numbers, and where; or its own."""
    found: list[tuple[Mark | None, str, tuple[int, ...], torch.Tensor]] = []
    for name, data in side.graph.constants:
        candidates = sorted(model.constants, key=lambda c: (c[1].dtype != data.dtype, c[1].shape != data.shape))
        match = next(((n, low) for n, whole in candidates if (low := _inside(data, whole)) is not None), None)
        found.append((None, match[0] if match else "", match[1] if match else (), data))
    return found


def _inside(part: torch.Tensor, whole: torch.Tensor) -> tuple[int, ...] | None:
    """Where a tensor occurs in another, shifted along at most one dimension."""
    if part.dim() != whole.dim() or part.dtype.is_floating_point != whole.dtype.is_floating_point:
        return None
    differing = [d for d in range(part.dim()) if part.shape[d] != whole.shape[d]]
    if not differing:
        return (0,) * part.dim() if torch.equal(part.double(), whole.double()) else None
    if len(differing) > 1 or part.shape[differing[0]] > whole.shape[differing[0]]:
        return None
    d = differing[0]
    n = part.shape[d]
    for start in range(0, whole.shape[d] - n + 1, n):
        if torch.equal(whole.narrow(d, start, n).double(), part.double()):
            return tuple(start if i == d else 0 for i in range(part.dim()))
    return None


def program_of(side: Recording, model: Model, keep: set[str], checkpoints: bool = True) -> Program:
    """keep: names of communications of the construction that some rank needs. Raises CaptureError."""
    g, mesh, at = side.graph, side.mesh, side.mesh.coordinates(side.rank)
    ties: list[_Tie] = []
    skipped: dict[str, str] = {}
    guessed: list[str] = []
    divided: dict[str, tuple[str, int]] = {}
    seen: set[tuple[str, str]] = set()
    for mark in side.marks:
        if mark.role == "checkpoint" and not checkpoints:
            continue
        tie = _tie(side, model, mark, at, skipped, divided)
        if tie is None:
            continue
        if tie.box.guessed and mark.role != "checkpoint":
            guessed.append(mark.name)
        key = (tie.tensor, tie.local)
        if mark.role == "checkpoint" and key in seen:
            continue
        seen.add(key)
        ties.append(tie)
    keep_indices = [i for i, n in enumerate(g.nodes) if n["op"] in COMMUNICATION and (i >= side.started or n["comm"] in keep)]
    nodes = live(g, [t.local for t in ties], keep_indices)
    nodes = _threaded(g, nodes, divided)
    used = {name for n in nodes for name in n["in"]} | {t.local for t in ties}
    tensors = {n: dict(t) for n, t in tensors_of(g, nodes, [t.local for t in ties]).items()}
    own_constants: list[str] = []
    for i, (_, whole, low, data) in enumerate(_constants(side, model)):
        name = g.constants[i][0]
        if name not in used:
            continue
        if whole:
            ties.append(_Tie("input", whole, name, tuple(data.shape), Box(low)))
        else:
            own_constants.append(name)
            tensors[name] = {**tensors[name], "kind": "constant", "value": literal(data)}
    for v, loc in side.random_inputs:
        if v.name in used:
            if v.name not in model.random:
                raise CaptureError(f"random numbers that the single device does not draw at {loc}: use world.input() for the batch")
            mark = Mark("input", v.name, v, _nothing_said())
            try:
                box = locate(mark, model.shapes[v.name], v.shape, mesh, at, side.cuts)
            except NoPlace as e:
                raise CaptureError(f"random numbers drawn at {loc}: {e}") from None
            guessed.append(f"random numbers drawn at {loc}")
            ties.append(_Tie("input", v.name, v.name, v.shape, box))
    text = json.dumps([tensors, nodes, [t.identity() for t in ties]], sort_keys=True)
    return Program(text, tensors, nodes, ties, skipped, guessed, own_constants)


def _threaded(g: Any, nodes: list[dict[str, Any]], divided: Mapping[str, tuple[str, int]]) -> list[dict[str, Any]]:
    """What a checkpoint divides is computed with as the checkpoint times the divisor: the same number, and the proof goes through the checkpoint."""
    made = {n["out"][0]: n for n in nodes if n["op"] == "div" and n["out"][0] in {d for d, _ in divided.values()}}
    restored: dict[str, str] = {}
    result: list[dict[str, Any]] = []

    def checkpoint(name: str) -> None:
        part, divisor = divided[name]
        if part not in made or name in restored:
            return
        whole = f"{part} restored"
        g.tensors[whole] = dict(g.tensors[part])
        result.append(made[part])
        result.append({"op": "mul", "in": [part], "out": [whole], "attrs": {"scalar": divisor}, **({"loc": made[part]["loc"]} if "loc" in made[part] else {})})
        restored[name] = whole

    produced = {name for n in nodes for name in n["out"]}
    for name in divided:
        if name not in produced:
            checkpoint(name)
    for n in nodes:
        if n["out"] and n["out"][0] in made and made[n["out"][0]] is n:
            continue
        result.append({**n, "in": [restored.get(name, name) for name in n["in"]]})
        for name in n["out"]:
            if name in divided:
                checkpoint(name)
    return [n for n in result if not (n["op"] == "mul" and n["out"][0] in restored.values() and not any(n["out"][0] in m["in"] for m in result))]


def _nothing_said() -> Any:
    from .marks import Placement

    return Placement()


def _tie(side: Recording, model: Model, mark: Mark, at: Mapping[str, int], skipped: dict[str, str], divided: dict[str, tuple[str, int]]) -> _Tie | None:
    call, microbatch, microbatches = mark.call, 0, 1
    if mark.role == "checkpoint" and (".out" in mark.name):
        module = mark.name[: mark.name.rindex(".out")]
        here, there = side.calls.get(module, 1), model.calls.get(module, 1)
        if here != there and there and here % there == 0:
            microbatches = here // there
            microbatch, call = divmod(mark.call, there)
        elif here == there > 1 and _slices_batch(side, here):
            skipped[mark.name] = "each rank and the single device cut their batches into microbatches of their own"
            return None
        elif here != there:
            skipped[mark.name] = f"the module runs {here} times, on the single device {there} times"
            return None
    tensor = model.tied.get((mark.role, mark.name, call)) or (model.tied.get(("input", mark.name, 0)) if mark.role == "checkpoint" else None)
    if tensor is None:
        if mark.role == "checkpoint":
            skipped[mark.name] = "not in the model"
            return None
        raise CaptureError(f"{mark.role} {mark.name!r} of rank {side.rank} is not on the single device")
    local = tensor_of(side.graph, mark)
    if local is None:
        skipped[mark.name] = mark.value.reason.text if isinstance(mark.value, Poison) else "no tensor"
        return None
    try:
        box = locate(mark, model.shapes[tensor], local.shape, side.mesh, at, side.cuts, microbatches, microbatch)
    except NoPlace as e:
        if mark.role == "checkpoint":
            skipped[mark.name] = str(e)
            return None
        raise CaptureError(f"{mark.role} {mark.name!r} on rank {side.rank}: {e}. Say where it lies by shard=") from None
    if box.divisor != 1:
        whole, local = local, side.graph.one("div", [local], local.shape, {"scalar": box.divisor})
        divided[whole.name] = (local.name, box.divisor)
    return _Tie(mark.role, tensor, local.name, local.shape, box, mark.name if mark.role == "output" else "")


def _slices_batch(side: Recording, count: int) -> bool:
    """Whether so many microbatches are slices of an input that ranks share: a rank's k-th is then no part of the single device's k-th."""
    g = side.graph
    shared = {m.name for m in side.marks if m.role == "input" and m.placement.shard and any(d == 0 and side.mesh.sizes[a] > 1 for a, d in m.placement.shard.items())}
    return any(n["op"] == "slice" and n["in"][0] in shared and n["attrs"]["dim"] == 0 and (n["attrs"]["stop"] - n["attrs"]["start"]) * count == g.tensors[n["in"][0]]["shape"][0]
               for n in g.nodes)


def plan_of(sides: Sequence[Recording], model: Model, model_file: str, alike: Sequence[str] = (), checkpoints: bool = True) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The plan's file, checkpoints that were left out and why, and what was guessed.

    sides: recordings of ranks; alike: axes along which ranks that were not recorded are taken to be like those that were. Raises CaptureError.
    """
    mesh = sides[0].mesh
    _one_shape(sides)
    programs = _programs(sides, model, checkpoints)
    if model.constants and any(p.own_constants for p in programs):
        # Numbers that are no part of the model's stand for themselves: so must the model's then, or a step that is right for these numbers would be compared with any.
        model.write_constants()
        programs = _programs(sides, model, checkpoints)
    by_rank = {side.rank: p for side, p in zip(sides, programs)}
    fixed = _distinguishing(mesh, {r: p.text for r, p in by_rank.items()}, alike)
    free = [a for a in mesh.names if a not in fixed]
    out_programs, shards = [], collections.defaultdict(list)
    moves: dict[Any, dict[str, list[int]]] = {}  # where the second rank along an axis was recorded for some programs only, the others move alike
    for c in itertools.product(*[range(mesh.sizes[a]) for a in fixed]):
        here = dict(zip(fixed, c))
        ranks = [r for r in by_rank if all(mesh.coordinates(r)[a] == v for a, v in here.items())]
        if not ranks or any(mesh.coordinates(min(ranks))[a] for a in free):
            raise CaptureError(f"the first rank at {here} was not recorded")
        first = by_rank[min(ranks)]
        out_programs.append({**({"at": here} if here else {}), "tensors": first.tensors, "nodes": first.nodes})
        count: collections.Counter[tuple[str, str, str]] = collections.Counter()
        for i, tie in enumerate(first.ties):
            key = (tie.role, tie.tensor, tie.label)
            count[key] += 1
            step = _step(mesh, free, {r: by_rank[r].ties[i].box.low for r in ranks}, tie, moves.setdefault((key, count[key]), {}))
            shards[(tie.role, tie.tensor, tie.label)].append((here, tie, step))
    lineage = _lineage(shards, fixed, mesh)
    _unused_constants(model, out_programs, lineage)
    _check_outputs(model, lineage)
    js = {"format": "shardproof-plan", "version": 1, "model": model_file, "mesh": [[a, n] for a, n in mesh.sizes.items()], "programs": out_programs, "lineage": lineage}
    guessed = list(dict.fromkeys(g for p in programs for g in p.guessed))
    return js, {k: v for p in programs for k, v in p.skipped.items()}, guessed


def _one_shape(sides: Sequence[Recording]) -> None:
    """A rank whose part of a flat buffer is nothing but padding sends constants, of which only the number of elements is known: they take the shape that the others send."""
    shapes: dict[str, Shape] = {}
    for side in sides:
        for n in side.graph.nodes:
            if "comm" in n and n["op"] == "all_gather" and not n["in"][0].startswith("%const."):
                shapes.setdefault(n["comm"], tuple(side.graph.tensors[n["in"][0]]["shape"]))
    for side in sides:
        g = side.graph
        for i in reversed(range(len(g.nodes))):
            n = g.nodes[i]
            if "comm" not in n or n["op"] != "all_gather" or not n["in"][0].startswith("%const."):
                continue
            have, want = tuple(g.tensors[n["in"][0]]["shape"]), shapes.get(n["comm"], ())
            if have == want or not want or numel(have) != numel(want):
                continue
            constant = g.tensors[n["in"][0]]
            operand = g.named(Filled(constant["value"], want, "int" if "dtype" in constant else "real")).name
            out = n["out"][0]
            whole = f"{out} gathered"
            members = g.tensors[out]["shape"][0] // have[0]
            g.tensors[whole] = {**g.tensors[out], "shape": [want[0] * members, *want[1:]]}
            view = {"op": "view", "in": [whole], "out": [out], "attrs": {"size": list(g.tensors[out]["shape"])}, **({"loc": n["loc"]} if "loc" in n else {})}
            g.nodes[i:i + 1] = [{**n, "in": [operand], "out": [whole]}, view]
            if i < side.started:
                side.started += 1


def _programs(sides: Sequence[Recording], model: Model, checkpoints: bool) -> list[Program]:
    """A communication of the construction that one rank needs is kept on all."""
    keep: set[str] = set()
    while True:
        programs = [program_of(side, model, keep, checkpoints) for side in sides]
        needed = {n["comm"] for side, p in zip(sides, programs) for n in p.nodes if "comm" in n}
        built = {n["comm"] for side in sides for n in side.graph.nodes[: side.started] if "comm" in n}
        if (needed & built) <= keep:
            return programs
        keep |= needed & built


def _distinguishing(mesh: Mesh, text: Mapping[int, str], alike: Sequence[str]) -> tuple[str, ...]:
    """The fewest axes whose coordinates determine the program."""
    candidates = [a for a in mesh.names if mesh.sizes[a] > 1 and a not in alike]
    for k in range(len(candidates) + 1):
        for axes in itertools.combinations(candidates, k):
            by: dict[tuple[int, ...], str] = {}
            if all(by.setdefault(tuple(mesh.coordinates(r)[a] for a in axes), t) == t for r, t in text.items()):
                return axes
    raise CaptureError(f"ranks that differ only in {', '.join(alike)} run different programs: record all of them (ranks='all')")


def _step(mesh: Mesh, free: Sequence[str], lows: Mapping[int, tuple[int, ...]], tie: _Tie, moves: dict[str, list[int]]) -> dict[str, list[int]]:
    """By how much the box moves along each axis; `moves`: by how much it did in other programs, which is added to. Raises CaptureError where it does not move evenly."""
    base = min(lows)
    start, origin = mesh.coordinates(base), lows[base]
    step: dict[str, list[int]] = {}
    for axis in free:
        for r, low in lows.items():
            c = mesh.coordinates(r)
            if c[axis] == start[axis] + 1 and all(c[b] == start[b] for b in mesh.names if b != axis):
                move = [x - y for x, y in zip(low, origin)]
                moves[axis] = move
        if any(moves.get(axis, ())):
            step[axis] = moves[axis]
    for r, low in lows.items():
        c = mesh.coordinates(r)
        want = tuple(o + sum(step[a][d] * (c[a] - start[a]) for a in step) for d, o in enumerate(origin))
        if want != tuple(low):
            raise CaptureError(f"{tie.role} {tie.tensor!r}: the ranks' parts do not follow each other evenly")
    return step


def _lineage(shards: Mapping[tuple[str, str, str], list[tuple[dict[str, int], _Tie, dict[str, list[int]]]]], fixed: Sequence[str], mesh: Mesh) -> list[dict[str, Any]]:
    order = {"input": 0, "checkpoint": 1, "output": 2}
    lineage = []
    for (role, tensor, _), entries in shards.items():
        for group in _entries(entries, fixed):
            lineage.append({"tensor": tensor, "role": role, "shards": group})
    lineage.sort(key=lambda e: order[e["role"]])
    return lineage


def _entries(entries: list[tuple[dict[str, int], _Tie, dict[str, list[int]]]], fixed: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Shards of one tensor. Parts that add up over an axis that tells programs apart are listed together; a rank's second tensor of that name starts a new entry."""
    turns: dict[int, list[tuple[dict[str, int], _Tie, dict[str, list[int]]]]] = collections.defaultdict(list)
    count: collections.Counter[str] = collections.Counter()
    for here, tie, step in entries:
        key = json.dumps(here)
        turns[count[key] if tie.role != "output" else 0].append((here, tie, step))
        count[key] += 1
    result = []
    for turn in turns.values():
        groups: dict[str, list[tuple[dict[str, int], _Tie, dict[str, list[int]]]]] = collections.defaultdict(list)
        for here, tie, step in turn:
            summed = [a for a in tie.box.total if a in fixed]
            groups[json.dumps([{a: v for a, v in here.items() if a not in summed}, tie.box.low, tie.shape, tie.box.total if summed else tie.local], sort_keys=True)].append((here, tie, step))
        shards = []
        for members in groups.values():
            here, tie, step = members[0]
            low = tie.box.low
            shard: dict[str, Any] = {"box": [[a, a + n] for a, n in zip(low, tie.shape)],
                                     "parts": [{"local": t.local, **({"at": h} if h else {})} for h, t, _ in members]}
            if step:
                shard["step"] = step
            free_sum = [a for a in tie.box.total if a not in fixed]
            if free_sum:
                shard["sum"] = free_sum
            shards.append(shard)
        result.append(shards)
    return result


def _unused_constants(model: Model, programs: list[dict[str, Any]], lineage: list[dict[str, Any]]) -> None:
    """Constants of the single device that no rank needs are given to all ranks: every input of the model must be somewhere."""
    have = {e["tensor"] for e in lineage if e["role"] == "input"}
    for name, data in model.constants:
        if name not in have:
            local = f"{name} of the single device"
            for program in programs:
                program["tensors"] = {**program["tensors"], local: model.json["tensors"][name]}
            parts = [{"local": local, **({"at": p["at"]} if "at" in p else {})} for p in programs]
            lineage.insert(0, {"tensor": name, "role": "input", "shards": [{"box": [[0, n] for n in data.shape], "parts": [part]} for part in parts]})


def _check_outputs(model: Model, lineage: Sequence[dict[str, Any]]) -> None:
    """An output or input that one side lacks is an error, not a narrower claim."""
    have = {(e["role"], e["tensor"]) for e in lineage}
    for tensor in model.json["outputs"]:
        if ("output", tensor) not in have:
            raise CaptureError(f"output {tensor!r} of the single device is on no rank")
    for name, t in model.json["tensors"].items():
        if t.get("kind") in ("input", "parameter") and ("input", name) not in have:
            raise CaptureError(f"{t['kind']} {name!r} of the single device is on no rank")

