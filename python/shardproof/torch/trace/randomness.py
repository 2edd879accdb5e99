# SPDX-License-Identifier: Apache-2.0
"""Random numbers: by which generator in which state they are drawn, and their place in the model's.

Draws are distinguished by the state of the generator, by what is drawn, and by its shape: two ranks
whose generators have the same state draw the same numbers. The state of the real generators is
used, and advanced by what was drawn, so that seeds, forked generators and activation checkpointing
are followed. All draws are inputs. Those that are made while a module runs are named after it,
others are counted.

A step begins with one state of PyTorch's generator on all ranks and the single device. A script
(`python -m shardproof.torch`) begins with a state of its own on each, as real processes do.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..compat import private
from ..step.tracked_tensors import Placement, place
from ..terms import arithmetic as ar
from ..terms.graph import Graph
from ..terms.values import Filled, Named, Permutation, Unsupported, Value, kind_of

_LIKE = frozenset({"aten.rand_like", "aten.randn_like", "aten.randint_like"})
_DRAWN_INTO = frozenset(
    f"aten.{name}_"
    for name in (
        "bernoulli",
        "normal",
        "uniform",
        "exponential",
        "random",
        "log_normal",
        "cauchy",
        "geometric",
    )
)
_DRAWN = frozenset({"aten.rand", "aten.randn", "aten.randint", "aten.randperm", "aten.normal"})
# what takes a size, of which the first one may be the batch's
_OF_ROWS = frozenset({"aten.rand", "aten.randn", "aten.randint"})


@dataclasses.dataclass(eq=False)
class Draw:
    """Random numbers that are an input.

    key: equal where the numbers are. placement: None where shapes decide.
    """

    value: Named
    loc: str
    key: str
    placement: Placement | None = None
    what: str = ""  # distribution and parameters
    by_position: bool = False  # whoever draws them draws by position of the whole tensor (DTensor)
    seed: str = ""  # how the generator was seeded
    # where only the seed of "cuda" leads to these numbers: the seed that the CPU has
    cpu: str | None = None
    more: bool = False  # the step may draw more rows of them: it is only their number
    in_rest: bool = False  # a script draws them after its optimizers have stepped


AT_FIRST = "%random at first."  # names of what is drawn for first values of parameters
INSIDE = "%random of "  # names of what is drawn while the step computes begin with it
STEP_SEED = 0x5EED5EED5EED5  # of a step that seeds nothing: a seed that is set nowhere


_DEFAULTS = {"uniform": [0.0, 1.0], "normal": [0.0, 1.0], "bernoulli": [0.5]}


def _distribution(what: str, numbers: list[Any]) -> str:
    """From what is drawn: a distribution and its parameters."""
    what = {"rand": "uniform", "randn": "normal"}.get(what, what)
    defaults = _DEFAULTS.get(what, [])
    return f"{what} {[float(x) for x in (*numbers, *defaults[len(numbers) :])]}"


class Randomness:
    """The draws of one side."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.inside = False  # the step computes
        self.draws: list[Draw] = []
        self._count: collections.Counter[str] = collections.Counter()
        self._before: dict[str, Value] = {}
        self._spec: Any = None
        self.distribute_region_enabled = True
        self.own = False  # the generator began with a state that no other process has
        self._first = STEP_SEED
        self._cpu = "none"  # the seed that the program gave to the CPU
        self._device_seeds: set[str] = set()  # those that it gave to "cuda" alone
        # memory on "cuda", as far as that is known; it is kept, so that its number stays
        # its own
        self._there: dict[int, Any] = {}
        self._on_device = False  # what is drawn now is requested on "cuda"
        # draws of which the single device draws so many times the rows: a batch of all ranks
        # (initial_state.py)
        self.batch: dict[str, int] = {}
        self._rows = False  # an operator of _OF_ROWS runs
        # what the integers that are drawn now are below, where none is below zero
        self._below: int | None = None
        # permutations of a batch: of so many parts, those of ranks along axes
        self.permuted: dict[str, int] = {}
        self.of_permuted: Mapping[str, tuple[str, ...]] = {}
        self.on_moved: Callable[[Any], Any] = lambda made: made
        self._limits: list[int] = []  # of these integers, as the operator is given them

    def begin(self, rank: int, world: int, own: bool) -> None:
        """Seeds PyTorch's generator as a process finds it.

        own: with a state that no other process has.
        """
        self.own = own
        if own:
            self._first = int.from_bytes(
                hashlib.sha256(f"rank {rank} of {world}".encode()).digest()[:7], "little"
            )
        torch.manual_seed(self._first)

    def device_seeded(self, seed: int, cpu: bool) -> None:
        """The program seeds "cuda", which is the CPU here. cpu: so does it the CPU."""
        if cpu:
            self._cpu = str(seed)
            self._device_seeds.discard(str(seed))
        elif str(seed) != self._cpu:
            self._device_seeds.add(str(seed))

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        """What is drawn inside is drawn on "cuda"."""
        before, self._on_device = self._on_device, True
        try:
            yield
        finally:
            self._on_device = before

    def placed_there(self, made: Any) -> None:
        """A tensor that was made on "cuda" or moved there."""
        if isinstance(made, torch.Tensor) and not isinstance(made, private.DTensor):
            self._there[private.storage_key(made)] = made.untyped_storage()

    def moved(self, made: Any) -> Any:
        """What the program has of a tensor that it moved to a device."""
        return made if self.recorder.reading.now else self.on_moved(made)

    def sized(self, func: Any, size: Any, args: Any) -> Any:
        """A size that the program asks for, which may depend on data."""
        return self.recorder.rows.sized(func, size, args) if self.recorder.rows.begun else size

    def of_rows(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call with numbers of rows, or tensors with rows; NotImplemented for any other."""
        return self.recorder.rows.called(func, args, kwargs)

    def _of_cpu(self, seed: str, t: torch.Tensor) -> str | None:
        """The seed of the CPU, where only that of "cuda" leads to what is drawn.

        None where the program shows that it is drawn on "cuda".
        """
        there = self._on_device or private.storage_key(t) in self._there
        return self._cpu if seed in self._device_seeds and not there else None

    def of_all_ranks(self, name: str, args: Any) -> Any:
        """The arguments of an operator that draws, with the rows of all ranks' batches."""
        times = self.batch.get(self._name(False)[0], 1) if name in _OF_ROWS else 1
        if times == 1:
            return args
        return tuple(
            [x[0] * times, *x[1:]] if isinstance(x, (list, tuple)) and x else x for x in args
        )

    # ---- what DTensor uses of a tracker of random states ----
    @contextlib.contextmanager
    def _distribute_region(self, spec: Any, generator: Any = None) -> Iterator[None]:
        self._spec = spec
        try:
            yield
        finally:
            self._spec = None

    def results(
        self, call: Any, name: str, values: list[Any], keywords: dict[str, Any], generator: Any
    ) -> list[Value | None]:
        """What an operator yields that draws numbers. Raises Unsupported."""
        g = self.recorder.g
        if name == "aten.native_dropout":
            p = float(values[1])
            mask = self.draw(call.outs[1], _distribution("bernoulli", [1 - p]), generator)
            return [
                ar.binary(
                    g, "mul", values[0], ar.binary(g, "mul", mask, 1 / (1 - p) if p < 1 else 0)
                ),
                mask,
            ]
        self._rows = name in _OF_ROWS
        what = name[5:].strip("_").removesuffix("_like")
        # of the first operand only the shape counts
        into = name in _DRAWN_INTO or name == "aten.bernoulli" and call.overload == "p"
        of_shape = into or name in _LIKE
        given = [
            v
            for v in private.tree_flatten((values[1:] if of_shape else values, keywords))[0]
            if isinstance(v, Value)
        ]
        if given and what == "bernoulli":
            return [self._bernoulli(call.outs[0], given[0], generator)]
        if given and what == "normal":
            mean, deviation = (*values, 1.0)[:2]  # at each position its own, or one number for all
            return [
                ar.binary(
                    g,
                    "add",
                    mean,
                    ar.binary(
                        g,
                        "mul",
                        self.draw(call.outs[0], _distribution("normal", []), generator),
                        deviation,
                    ),
                )
            ]
        if given or not of_shape and name not in _DRAWN:
            raise Unsupported(
                "random numbers that depend on data, or of an operator that is not known"
            )
        numbers = [x for x in (*values, *keywords.values()) if isinstance(x, (int, float))]
        if what == "randint" or what == "random" and kind_of(call.outs[0].dtype) == "int":
            limits = [x for x in values if isinstance(x, int) and not isinstance(x, bool)]
            if not limits and call.outs[0].dtype != torch.int64:
                limits = [0, torch.iinfo(call.outs[0].dtype).max + 1]
            if limits and min(limits) >= 0:
                self._below = limits[-1]
            self._limits = limits
        try:
            return [self.draw(t, _distribution(what, numbers), generator) for t in call.outs]
        finally:
            self._below, self._limits = None, []

    def _bernoulli(self, t: torch.Tensor, p: Value, generator: Any) -> Value:
        """1 where a number between 0 and 1 is less than p of its position."""
        if isinstance(p, Filled):
            return self.draw(t, _distribution("bernoulli", [p.fill]), generator)
        return ar.step(
            self.recorder.g,
            ar.binary(
                self.recorder.g, "sub", p, self.draw(t, _distribution("uniform", []), generator)
            ),
        )

    def draw(self, t: torch.Tensor, what: str, generator: Any) -> Value:
        """Numbers for a tensor.

        what: operator and parameters, which distinguish draws in the same state.
        """
        shape = tuple(int(n) for n in t.shape)
        if 0 in shape:
            return Filled(0, shape)
        spec = self._spec
        whole = tuple(int(n) for n in spec.shape) if spec is not None else shape
        seed = self._seed(generator)
        key = self.advance(generator, f"{what} {whole}")
        if key in self._before:
            return self._before[key]
        name, path = self._name(what.startswith("random ") and shape == ())
        self._count[path] += 1
        g: Graph = self.recorder.g
        if name in self.permuted:
            return self._permutation(name, shape[0], key, seed)
        value = g.declare(name, shape, "int" if kind_of(t.dtype) == "int" else "real", "input")
        if what.startswith("randperm "):
            g.integers.permutations.add(name)
        if value.kind == "int" and self._below is not None:
            g.integers.ranges[name] = self._below
        placement = (
            place(self.recorder, private.DTensor(t, spec, requires_grad=False))
            if spec is not None
            else None
        )
        self.draws.append(
            Draw(
                value,
                g.loc,
                key,
                placement,
                what,
                spec is not None,
                seed,
                self._of_cpu(seed, t),
                self._rows and spec is None and bool(shape),
                self.recorder.in_rest,
            )
        )
        self._rows = False
        self._before[key] = value
        if spec is None:
            distribution, _, numbers = what.partition(" ")
            self.recorder.drawn.draw(t, value, distribution, json.loads(numbers), self._limits, key)
        return value

    def _permutation(self, name: str, rows: int, key: str, seed: str) -> Value:
        """A permutation of a batch, of which each rank permutes its own part."""
        g, count, axes = self.recorder.g, self.permuted[name], self.of_permuted[name]
        size = rows // count
        value = g.declare(name, (count, size), "int", "input")
        g.integers.ranges[name] = size
        self.draws.append(
            Draw(
                value,
                g.loc,
                key,
                Placement(shard=dict.fromkeys(axes, 0)),
                f"randperm {[size]}",
                seed=seed,
                in_rest=self.recorder.in_rest,
            )
        )
        self._before[key] = made = Permutation(value)
        return made

    def kept(self, v: Value) -> None:
        """A module keeps these numbers: they are no batch."""
        for d in self.draws:
            if d.value is v:
                d.more = False

    def _name(self, seed: bool) -> tuple[str, str]:
        """The name of the next numbers, and what they are counted by.

        A rank may draw fewer of those that torch.nn.init draws than the single device, and more
        seeds, as samplers of accelerate do: they are counted alone.
        """
        if self.inside:
            path = (
                self.recorder.modules[-1]
                if self.recorder.modules and self.recorder.modules[-1]
                else "step"
            )
            return f"{INSIDE}{path}.{self._count[path]}", path
        path = " at first" if private.initialising() else " seed" if seed else ""
        return f"%random{path}.{self._count[path]}", path

    def _seed(self, generator: Any) -> str:
        g = generator if generator is not None else torch.default_generator
        seed = int(g.initial_seed())
        return (
            str(seed)
            if generator is not None or seed != self._first
            else "none"
            if self.own
            else ""
        )

    @staticmethod
    def advance(generator: Any, what: str) -> str:
        """The key of these numbers.

        The generator advances to a state that no other history leads to. Its seed stays the one
        that was set.
        """
        g = generator if generator is not None else torch.default_generator
        with private.outside():
            seed = g.initial_seed()
            digest = hashlib.sha256(g.get_state().numpy().tobytes() + what.encode()).digest()
            g.manual_seed(int.from_bytes(digest[:7], "little"))
            state = g.get_state()
            # which a CPU generator's state begins with
            state[:8] = torch.frombuffer(
                bytearray((seed % (1 << 64)).to_bytes(8, sys.byteorder)), dtype=torch.uint8
            )
            g.set_state(state)
        return digest.hex()
