"""Random numbers: which are drawn, by which generator in which state, and where they lie in what the single device draws.

Drawn before the step computes, they are inputs, counted in the order in which they are drawn. Inside the step (dropout, noise) each draw is an input of its own, named by the module that
draws it. What tells draws apart is the state of the generator: two ranks whose generators have the same state draw the same numbers. The state of the real generators is used, and moved on by
what was drawn, so that seeds, forked generators and activation checkpointing are seen as they are.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
from typing import Any, Iterator

import torch

from . import _private as private
from .marks import Placement, place
from .values import Filled, Named, Value, kind_of


@dataclasses.dataclass
class Draw:
    """Random numbers that are an input. key: equal where the numbers are, "" where only their order is known; placement: None where shapes decide where they lie."""

    value: Named
    loc: str
    key: str = ""
    placement: Placement | None = None
    by_position: bool = False  # whoever draws them draws by position of the whole tensor (DTensor)


class Randomness:
    """The draws of one side."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.inside = False  # the step computes
        self.draws: list[Draw] = []
        self._count: collections.Counter[str] = collections.Counter()
        self._before: dict[str, Named] = {}
        self._spec: Any = None
        self.distribute_region_enabled = True

    # ---- what DTensor asks of a tracker of random states ----
    @contextlib.contextmanager
    def _distribute_region(self, spec: Any, generator: Any = None) -> Iterator[None]:
        self._spec = spec
        try:
            yield
        finally:
            self._spec = None

    def draw(self, t: torch.Tensor, what: str, generator: Any) -> Value:
        """Numbers for a tensor. what: operator and parameters, which tell apart what is drawn in the same state."""
        shape = tuple(int(n) for n in t.shape)
        if 0 in shape:
            return Filled(0, shape)
        spec = self._spec if self.inside else None
        whole = tuple(int(n) for n in spec.shape) if spec is not None else shape
        key = self._advance(generator, f"{what} {whole}") if self.inside else ""
        if key in self._before:
            return self._before[key]
        name = f"%random.{len(self.draws)}"
        if self.inside:
            path = self.recorder.modules[-1] if self.recorder.modules and self.recorder.modules[-1] else "step"
            name = f"%random of {path}.{self._count[path]}"
            self._count[path] += 1
        g = self.recorder.g
        value = g.declare(name, shape, "int" if kind_of(t.dtype) == "int" else "real", "input")
        placement = place(self.recorder, private.DTensor(t, spec, requires_grad=False)) if spec is not None else None
        self.draws.append(Draw(value, g.loc, key, placement, spec is not None))
        if key:
            self._before[key] = value
        return value

    @staticmethod
    def _advance(generator: Any, what: str) -> str:
        """What tells these numbers from others; the generator goes on to a state that no other history leads to."""
        g = generator if generator is not None else torch.default_generator
        with private.outside():
            digest = hashlib.sha256(g.get_state().numpy().tobytes() + what.encode()).digest()
            g.manual_seed(int.from_bytes(digest[:7], "little"))
        return digest.hex()
