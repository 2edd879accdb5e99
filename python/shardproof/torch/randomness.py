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
from . import arithmetic as ar
from .marks import Placement, place
from .values import Filled, Named, Unsupported, Value, kind_of

_LIKE = frozenset({"aten.rand_like", "aten.randn_like", "aten.randint_like"})
_DRAWN_INTO = frozenset(f"aten.{name}_" for name in ("bernoulli", "normal", "uniform", "exponential", "random", "log_normal", "cauchy", "geometric"))
_DRAWN = frozenset({"aten.rand", "aten.randn", "aten.randint", "aten.randperm", "aten.normal"})


@dataclasses.dataclass
class Draw:
    """Random numbers that are an input. key: equal where the numbers are, "" where only their order is known; placement: None where shapes decide where they lie."""

    value: Named
    loc: str
    key: str = ""
    placement: Placement | None = None
    what: str = ""          # distribution and parameters
    by_position: bool = False  # whoever draws them draws by position of the whole tensor (DTensor)


_DEFAULTS = {"uniform": [0.0, 1.0], "normal": [0.0, 1.0], "bernoulli": [0.5]}


def _distribution(what: str, numbers: list[Any]) -> str:
    """From what is drawn: a distribution and its parameters."""
    what = {"rand": "uniform", "randn": "normal"}.get(what, what)
    defaults = _DEFAULTS.get(what, [])
    return f"{what} {[float(x) for x in (*numbers, *defaults[len(numbers):])]}"


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

    def results(self, call: Any, name: str, values: list[Any], keywords: dict[str, Any], generator: Any) -> list[Value | None]:
        """What an operator yields that draws numbers. Raises Unsupported."""
        g = self.recorder.g
        if name == "aten.native_dropout":
            p = float(values[1])
            mask = self.draw(call.outs[1], _distribution("bernoulli", [1 - p]), generator)
            return [ar.binary(g, "mul", values[0], ar.binary(g, "mul", mask, 1 / (1 - p) if p < 1 else 0)), mask]
        what = name[5:].strip("_").removesuffix("_like")
        into = name in _DRAWN_INTO or name == "aten.bernoulli" and call.overload == "p"  # of the first operand only the shape counts
        of_shape = into or name in _LIKE
        given = [v for v in private.tree_flatten((values[1:] if of_shape else values, keywords))[0] if isinstance(v, Value)]
        if given and what == "bernoulli":
            return [self._bernoulli(call.outs[0], given[0], generator)]
        if given and what == "normal":
            mean, deviation = (*values, 1.0)[:2]  # at each position its own, or one number for all
            return [ar.binary(g, "add", mean, ar.binary(g, "mul", self.draw(call.outs[0], _distribution("normal", []), generator), deviation))]
        if given or self.inside and not of_shape and name not in _DRAWN:
            raise Unsupported("random numbers that depend on data, or of an operator that is not known")
        numbers = [x for x in (*values, *keywords.values()) if isinstance(x, (int, float))]
        return [self.draw(t, _distribution(what, numbers), generator) for t in call.outs]

    def _bernoulli(self, t: torch.Tensor, p: Value, generator: Any) -> Value:
        """1 where a number between 0 and 1 is less than p of its position."""
        if isinstance(p, Filled):
            return self.draw(t, _distribution("bernoulli", [p.fill]), generator)
        return ar.step(self.recorder.g, ar.binary(self.recorder.g, "sub", p, self.draw(t, _distribution("uniform", []), generator)))

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
        self.draws.append(Draw(value, g.loc, key, placement, what, spec is not None))
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
