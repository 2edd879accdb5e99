# SPDX-License-Identifier: Apache-2.0
"""Copies of weights that a script keeps in plain tensors: `shadow[name] = p.clone()`, averaged
after each step.

No module and no optimizer has such a tensor, so it is found by the script's variables
(variables.py). These are looked at when a model is called first, before later steps, and when the
script begins its next step. A tensor is compared if

* it was there at an earlier look, and has changed since;
* it was a copy of parameters when a model was called first, or was computed of a value that a
  parameter had after a step, or of nothing but parameters;
* it has a parameter's shape; or it is another whole tensor (a vector of all weights) that was
  updated in place, or computed of what it held.

If it then holds what the parameters of that rank hold, or a rearrangement of it, it is an input
from there on, for any value, as the parameters are: whether the ranks begin with the same is
checked of the parameters, and the rearrangement has to be the single device's. Otherwise it begins
with what it holds.

A copy that was made in the step is **begun**: how it is updated is seen in the next step only. So
is one whose update precedes the step (`later`): it was computed of first values of parameters
before the model was called first.
"""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..compat import private
from ..step.tracked_tensors import unwrapped
from ..terms.dataflow import ancestors
from ..terms.graph import Graph
from ..terms.values import Named, Shape, Value
from .variables import Variables

_REARRANGED = frozenset({"view", "permute", "slice", "cat", "concat", "identity"})


@dataclasses.dataclass(frozen=True)
class _Held:
    """What a variable held at a look, and the memory of its tensor."""

    value: Value
    memory: int


class Copies:
    """Those of one side.

    read: what a tensor holds. parameters: those of models that were taken in, and what stands in
    their places now. updated: those that are compared.
    arrangements: of those that are inputs, how they are made of parameters, and their shapes.
    begun, later: those that only a further step shows.
    """

    def __init__(
        self,
        g: Graph,
        read: Callable[[torch.Tensor], Value],
        parameters: Callable[[], Sequence[torch.Tensor]],
        same: Callable[[Value, Value], bool],
    ) -> None:
        self.g, self.read, self.parameters, self.same = g, read, parameters, same
        self.ended = False  # the script has no next step
        self.watching = False  # a script's rest is recorded
        self._script = Variables()
        self._earlier: dict[str, list[_Held]] = {}
        self._inputs: set[str] = set()
        self._next_step: int | None = None  # at which node the last step begins
        self._has_stepped = False
        self._weights: set[str] = set()  # names of what parameters held after a step
        self._last: set[str] = set()  # after the last one
        self._first_weights: set[str] = set()  # of what they held when models were taken in
        self._now: list[tuple[str, torch.Tensor]] = []
        # others that something holds, and what is in them
        self._living: list[tuple[torch.Tensor, Named]] = []
        self.updated: list[str] = []
        self.arrangements: dict[str, tuple[str, Shape]] = {}
        self.begun: list[str] = []
        self.later: list[str] = []

    @property
    def has_inputs(self) -> bool:
        return bool(self._inputs)

    # ---- looks ----
    def begin(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A model with these parameters is taken in. Copies of them that are to be inputs, too."""
        if not self.watching:
            return {}
        values = {
            name: (private.storage_key(unwrapped(p)), self.read(unwrapped(p)))
            for name, p in parameters.items()
            if 0 not in unwrapped(p).shape
        }
        memory = {key for key, _ in values.values()}
        names = {v.name: name for name, (_, v) in values.items() if isinstance(v, Named)}
        self._first_weights.update(names)
        found: dict[str, torch.Tensor] = {}
        for path, t in self._variables():
            key = private.storage_key(unwrapped(t))
            if key in memory or path in self._inputs:
                continue
            v = self.read(unwrapped(t))
            self._earlier.setdefault(path, []).append(_Held(v, key))
            if not isinstance(v, Named) or any(t is other for other in found.values()):
                continue
            how = next((n for n, (_, other) in values.items() if self.same(v, other)), None)
            how = how or self._arrangement(v.name, names)
            if how is not None:
                found[path] = t
                self.arrangements[path] = how, tuple(t.shape)
        return found

    def given(self, path: str, t: torch.Tensor) -> None:
        """It is an input from here on."""
        self._inputs.add(path)
        self._earlier[path] = [_Held(self.read(unwrapped(t)), private.storage_key(unwrapped(t)))]

    def stepped(self) -> None:
        """An optimizer has stepped."""
        self._has_stepped = True
        if self.watching:
            self._weights.update(self._new_weights())

    def next_begins(self) -> None:
        """The script asks for a batch, or calls a model."""
        if self._has_stepped:
            self._next_step, self._has_stepped = len(self.g.nodes), False

    def all_stepped(self) -> None:
        """All optimizers have, and what is computed of parameters from here on is no activation."""
        if self.watching:
            self._last.update(self._new_weights())
            self._weights.update(self._last)

    def _new_weights(self) -> set[str]:
        """Names of what parameters hold, without those that hold what the step began with."""
        names = _names(self.read(unwrapped(t)) for t in self.parameters())
        return {name for name in names if self.g.producer(name) is not None}

    def look(self) -> None:
        """A further step is about to end."""
        if self.watching:
            for path, t in self._variables():
                self._earlier.setdefault(path, []).append(
                    _Held(self.read(unwrapped(t)), private.storage_key(unwrapped(t)))
                )

    def look_last(
        self,
        others: Iterable[torch.Tensor],
        held_by: Iterable[object],
        left: Mapping[str, Any] | None = None,
    ) -> None:
        """The script begins its next step, or has ended and leaves these variables.

        others: tensors that have other names. held_by: what holds tensors and is not the script's.
        """
        if not self.watching:
            return
        self.all_stepped()
        self.ended = left is not None
        self._now = self._variables(left)
        named = [*others, *(t for _, t in self._now)]
        known = {private.storage_key(unwrapped(t)) for t in named}
        of_weights = descendants(self.g, self._last)
        gc.collect()
        self._living = [
            (t, v)
            for t in gc.get_objects()
            if isinstance(t, private.FakeTensor)
            and t.dtype.is_floating_point
            and _is_whole(t)
            and private.storage_key(t) not in known
            and isinstance(v := self.read(t), Named)
            and v.name in of_weights
        ]
        ignored = {id(self._living), *map(id, self._living), *map(id, held_by)}
        self._living = [(t, v) for t, v in self._living if _is_held(t, ignored)]

    def of_weights(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, Value]:
        """Those that hold what was computed of parameters."""
        if not self.watching or not self._weights:
            return {}
        values = {name: self.read(unwrapped(t)) for name, t in tensors.items()}
        return {
            n: v
            for n, v in values.items()
            if isinstance(v, Named) and self._of_parameters_only(v.name)
        }

    def _variables(self, left: Mapping[str, Any] | None = None) -> list[tuple[str, torch.Tensor]]:
        shapes = {tuple(p.shape) for p in self.parameters()}
        return self._script.tensors(
            lambda t: (
                t.dtype.is_floating_point
                and not isinstance(t, torch.nn.Parameter)
                and not (t.requires_grad and t.is_leaf)
                and 0 not in t.shape
                and (tuple(t.shape) in shapes or _is_whole(t))
            ),
            left,
        )

    # ---- at the end ----
    def finish(
        self, others: Iterable[torch.Tensor], roots: Iterable[str] = ()
    ) -> dict[str, torch.Tensor]:
        """Copies that are compared. others: tensors that have other names. roots: what was
        differentiated.
        """
        if not self._now:
            return {}
        known = {private.storage_key(unwrapped(t)) for t in others}
        self.all_stepped()
        shapes = {tuple(p.shape) for p in self.parameters()}
        least = min((p.numel() for p in self.parameters()), default=0)
        of_weights = descendants(self.g, self._last)
        of_first = descendants(self.g, self._first_weights)
        in_loss = ancestors(self.g, roots)
        found: dict[str, torch.Tensor] = {}
        for path, t in self._one_path_each():
            key = private.storage_key(unwrapped(t))
            if key in known:
                continue
            now = self.read(unwrapped(t))
            earlier = self._earlier.get(path)
            has_shape = tuple(t.shape) in shapes
            if not isinstance(now, Named) or not (
                path in self._inputs or now.name in of_weights or self._of_parameters_only(now.name)
            ):
                if earlier and has_shape and self._is_averaged(now, of_first):
                    self.later.append(path)
                continue
            if not earlier:
                if t.requires_grad and now.name in in_loss:
                    continue  # an activation, such as a temperature's exponential
                if has_shape or t.numel() >= least > 1:
                    self.begun.append(path)
            elif all(self.same(e.value, now) for e in earlier):
                continue
            elif (
                path in self._inputs
                or any(e.memory == key for e in earlier)
                or not self._is_left_over(earlier[-1].value, now)
                and (has_shape or now.name in descendants(self.g, _names(e.value for e in earlier)))
            ):
                found[path] = t
        self.updated = list(found)
        return found

    def _of_parameters_only(self, name: str) -> bool:
        """Whether a value is computed of parameters, and of nothing else but copies of them, their
        first values, and constants.
        """
        inputs = {f"{path} before" for path in self._inputs}
        todo, seen, uses = [name], {name}, False
        while todo:
            at = todo.pop()
            node = self.g.producer(at)
            if at in self._first_weights:
                continue
            if node is None:
                kind = self.g.tensors[at].get("kind")
                if kind not in ("parameter", "constant") and at not in inputs:
                    return False
                uses = uses or kind == "parameter"
            elif at in self._weights:
                uses = True
            else:
                new = [x for x in node["in"] if x is not None and x not in seen]
                seen.update(new)
                todo += new
        return uses

    def _one_path_each(self) -> list[tuple[str, torch.Tensor]]:
        """Of each tensor the path by which it was known before, if there is one."""
        paths: dict[int, list[str]] = {}
        for path, t in self._now:
            paths.setdefault(id(t), []).append(path)
        found = []
        for _, t in self._now:
            mine = paths.pop(id(t), None)
            if mine is not None:
                mine.sort(key=lambda p: (p not in self._inputs, p not in self._earlier))
                found.append((mine[0], t))
        return found

    def _is_left_over(self, v: Value, now: Named) -> bool:
        """Whether what a variable holds after a step is not read in the next. v: what it held after
        the step before. A parameter's value may be read as the parameter's: a variable that has one
        after each step is compared as that.
        """
        if self._next_step is None or not isinstance(v, Named):
            return False
        if v.name in self._weights:
            return now.name in self._weights
        later = self.g.nodes[self._next_step :]
        made = self.g.producer(v.name)
        return not any(made is n or v.name in n["in"] for n in later)

    def _is_averaged(self, v: Value, of_first: set[str]) -> bool:
        """Whether a value was computed of first values of parameters, and is none of them."""
        return (
            isinstance(v, Named)
            and v.name in of_first
            and v.name not in self._first_weights
            and v.node is not None
        )

    def unreached(self) -> list[tuple[Shape, str]]:
        """Tensors that live on, hold what was computed of new weights, and that no variable was
        found to hold: shapes, and where each was computed.
        """
        found: dict[int, tuple[Shape, str]] = {}
        for t, v in self._living:
            node = self.g.producer(v.name)
            loc = node.get("loc", "") if node is not None else ""
            found.setdefault(private.storage_key(t), (tuple(t.shape), loc))
        return list(found.values())

    def _arrangement(self, name: str, parameters: Mapping[str, str]) -> str | None:
        """How a value is put together of parameters, and of constants; None if it is not."""
        texts: dict[str, str] = {}
        todo, uses = [name], False
        while todo:
            at = todo[-1]
            node = self.g.producer(at)
            if at in parameters:
                texts[at], uses = parameters[at], True
            elif node is None:
                entry = self.g.tensors[at]
                if entry.get("kind") != "constant":
                    return None
                texts[at] = json.dumps([entry["value"], entry["shape"]])
            elif node["op"] not in _REARRANGED:
                return None
            else:
                missing = [x for x in node["in"] if x not in texts]
                if missing:
                    todo += missing
                    continue
                parts = [node["op"], node.get("attrs", {}), [texts[x] for x in node["in"]]]
                text = json.dumps(parts, sort_keys=True)
                texts[at] = hashlib.sha256(text.encode()).hexdigest()
            todo.pop()
        return texts[name] if uses else None


def is_copy(name: str) -> bool:
    """Whether an input is what a copy of weights begins with."""
    return name.startswith("variable ") and name.endswith(" before")


def descendants(g: Graph, names: Iterable[str]) -> set[str]:
    """These values, and what is computed of them."""
    found = set(names)
    for node in g.nodes if found else ():
        if not found.isdisjoint(node["in"]):
            found.update(name for name in node["out"] if name is not None)
    return found


def _names(values: Iterable[Value]) -> Iterator[str]:
    return (v.name for v in values if isinstance(v, Named))


def _is_whole(t: torch.Tensor) -> bool:
    """Whether a tensor was made while the step was recorded, and is all of its memory."""
    local = unwrapped(t)
    return (
        isinstance(local, private.FakeTensor)
        and local.numel() > 1
        and local.is_contiguous()
        and local.numel() * local.element_size() == local.untyped_storage().nbytes()
    )


def _is_held(t: torch.Tensor, ignored: set[int]) -> bool:
    """Whether something of Python's holds a tensor, other than what is ignored."""
    return any(
        id(x) not in ignored and not isinstance(x, types.FrameType) for x in gc.get_referrers(t)
    )


__all__ = ["Copies", "descendants", "is_copy"]
