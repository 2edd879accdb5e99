# SPDX-License-Identifier: Apache-2.0
"""Records what one rank holds while a step runs with numbers.

A step function begins with numbers that are drawn by name, and declares its layouts
(`world.input`, `world.parameters`, DTensor). A script begins with its own numbers, and what is no
DTensor has a layout that is not known: `shardproof compare` finds it by numbers.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim

from ..compat import private
from ..distributed.mesh import Mesh
from ..session.numeric import Numbers
from ..session.numeric import draw as draw_of_name
from ..step.binding import Binding
from ..step.several_steps import numbered
from ..trace.results import results as results_of
from . import layout as layouts
from .boundaries import Boundaries
from .layout import Layout, LayoutError, local_of
from .main_copies import MainCopies
from .perturbation import PerturbedOperators, moved
from .reference_values import Given, ReferenceValues
from .trace_file import TraceWriter


class Tracer(Numbers):
    """Backend of the world and listener of the binding: writes a trace.

    draw: 0, or the number of a perturbed trace. own_values: parameters, buffers and states of
    optimizers begin with the script's own numbers, and layouts that nobody declared are unknown.
    modules: what each module takes is recorded, with its gradient. reference: what modules take and
    return is recorded and replaced by the reference's numbers. seed: of what is drawn by name.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        writer: TraceWriter,
        draw: int = 0,
        own_values: bool = False,
        modules: bool = False,
        reference: ReferenceValues | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(mesh, rank)
        self.seed = seed
        self.reference = reference
        self.boundaries = Boundaries(self) if modules or reference is not None else None
        self.binding = Binding(self, primes=not own_values)
        self.writer, self.perturbed, self.own_values = writer, draw, own_values
        self._calls: collections.Counter[str] = collections.Counter()
        # tensors that were recorded, by id: what one module returns, another takes
        self._seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._recorded: set[str] = set()
        self._axes = tuple(a for a in mesh.names if mesh.sizes[a] > 1)
        self._main = MainCopies()

    # ---- the numbers in which the step begins ----
    def _moved(self, t: torch.Tensor, name: str) -> torch.Tensor:
        return moved(t, f"{name} of draw {self.perturbed}") if self.perturbed else t

    def drawn(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, high: int | None = None
    ) -> torch.Tensor:
        return self._moved(draw_of_name(name, shape, dtype, high, self.seed), name)

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        shard: Mapping[str, int],
        box: list[tuple[int, int]],
        high: int | None,
    ) -> torch.Tensor:
        t = super().input(name, shape, dtype, shard, box, high)
        low, size = [a for a, _ in box], [b - a for a, b in box]
        self.writer.add(f"input {name}", "batch", t, layouts.box(shape, low, size))
        self._note(t)
        return t

    def bound(self, parameters: dict[str, nn.Parameter]) -> None:
        if not self.own_values:
            super().bound(parameters)
        elif self.perturbed:
            with torch.no_grad():
                for name, p in parameters.items():
                    local = local_of(p)
                    local.copy_(self._moved(local, name))
        for name, p in parameters.items():
            self._add_parameter(name, "", "initial", p)

    def buffers(self, buffers: dict[str, tuple[torch.Tensor, bool]]) -> None:
        super().buffers(buffers)
        for name, (b, saved) in buffers.items():
            if saved and b.numel():
                self._add_parameter(name, "", "initial", b)

    def states(
        self, optimizer: Any, states: list[tuple[str, str, torch.Tensor, nn.Parameter]]
    ) -> None:
        super().states(optimizer, states)
        for name, key, value, _ in states:
            self._add_parameter(name, f".{key}", "initial", value)

    # ---- layouts ----
    def _layout(self, t: torch.Tensor, declared: bool) -> Layout:
        """declared: along axes that no DTensor has, ranks have copies."""
        if isinstance(t, private.DTensor):
            layout, covered = layouts.of_dtensor(t, self.mesh, self.rank)
        else:
            layout, covered = layouts.of_shard(t, None, self.mesh, self.rank), ()
        if declared:
            return layout
        return dataclasses.replace(layout, unknown=tuple(a for a in self._axes if a not in covered))

    def _add_parameter(self, name: str, suffix: str, kind: str, t: Any, **more: Any) -> None:
        """What belongs to a parameter or a buffer, and has its layout.

        Numbers that are one for a whole parameter are copies on all ranks.
        """
        label = f"{name}{suffix}" + ("" if kind == "initial" else ".new" * (kind != "gradient"))
        label = f"{name}.grad" if kind == "gradient" else label
        self._add_as(label, name, suffix, kind, t, **more)

    def _add_as(self, label: str, name: str, suffix: str, kind: str, t: Any, **more: Any) -> None:
        if not self.writer.wants(label) and name not in self.binding.stretches:
            return
        parameter = self.binding.parameters.get(name)
        parts = self.binding.stretches.get(name)
        if parts is not None and t.numel() == (parameter.numel() if parameter is not None else 0):
            flat = local_of(t).detach().reshape(-1)
            for part in parts:
                if part.count:
                    self.writer.add(
                        label.replace(name, part.name, 1),
                        kind,
                        flat[part.at : part.at + part.count],
                        layouts.of_stretch(part),
                        **more,
                    )
            return
        shard = self.binding.shard_of(name)
        if t.shape == () or isinstance(t, private.DTensor) or not shard:
            whole = t.shape == () and suffix != ""
            layout = self._layout(t, declared=not self.own_values or whole)
        else:
            layout = layouts.of_shard(t, shard, self.mesh, self.rank)
        like = name if layout.unknown and label != name else ""
        self.writer.add(label, kind, t, layout, like=like, **more)

    # ---- modules ----
    def uses(self) -> contextlib.AbstractContextManager[Any]:
        # a script's models are called, or found by their optimizers; without it, what
        # torch.compile has made runs as it does elsewhere
        return contextlib.nullcontext() if self.own_values else super().uses()

    @contextlib.contextmanager
    def listening(self, own_random_state: bool = False) -> Iterator[None]:
        with (
            super().listening(own_random_state),
            contextlib.ExitStack() as stack,
            private.changes() as undo,
        ):
            for handle in (
                nn_module.register_module_forward_pre_hook(self._before_module),
                optim.register_optimizer_step_pre_hook(self._before_optimizer),
            ):
                stack.callback(handle.remove)
            if self.perturbed:
                stack.enter_context(PerturbedOperators(self.perturbed))
            clips = [torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_]
            private.replace_everywhere([(f, self._before_clipping(f)) for f in clips], undo)
            if self.own_values:
                private.set_attribute(
                    torch.Tensor, "backward", self._with_loss(torch.Tensor.backward), undo
                )
            yield

    def _is_forward(self) -> bool:
        """Outside of recomputation, and of what makes the state of optimizers."""
        return private.current_node() is None and not self.binding.priming

    def _note(self, t: torch.Tensor) -> None:
        self._seen[id(t)] = weakref.ref(t)

    def _is_noted(self, t: torch.Tensor) -> bool:
        return self._seen.get(id(t), lambda: None)() is t

    def _before_module(self, module: nn.Module, args: Any) -> Any:
        name = self.binding.modules.get(id(module))
        if name is None:
            return None
        if self.boundaries is not None and (name or not self._is_forward()):
            return self.boundaries.before(name, module, args)
        if not self._is_forward():
            return None
        call = self._calls[f"{name} in"]
        self._calls[f"{name} in"] += 1
        found = private.tensors(*args)
        for i, t in enumerate(found):
            if not self._is_noted(t):
                label = f"{name or 'model'}.in" + (f".{i}" if len(found) > 1 else "")
                self._add_activation(label, "input" if name else "batch", t, call)
        if self.boundaries is not None:
            self.boundaries.hook()
        return None

    # ---- for the boundaries of modules ----
    def modules(self) -> dict[str, nn.Module]:
        # of wrappers that have one name the innermost, which the single device has, too
        return {
            name: m
            for model in self.binding.models()
            for m in model.modules()
            if (name := self.binding.modules.get(id(m)))
        }

    def priming(self) -> bool:
        return self.binding.priming

    def given(self, label: str, call: int, t: torch.Tensor) -> Given | None:
        if self.reference is None:
            return None
        try:
            return self.reference.local(label, call, t, self._layout(t, declared=False))
        except LayoutError:
            return None

    def record(
        self, module: str, label: str, kind: str, t: torch.Tensor, call: int
    ) -> Given | None:
        given = self.given(label, call, t)
        try:
            self.writer.add(
                label,
                kind,
                t,
                self._layout(t, declared=False),
                call,
                module=module,
                replaced="" if given is None else given.placed,
            )
        except LayoutError as e:
            self.writer.note(f"{label} was not recorded: {e}")
        return given

    def forward(self, name: str, module: nn.Module, args: Any, output: Any, final: bool) -> None:
        if not final or self.boundaries is not None or not self._is_forward():
            return
        call = self._calls[f"{name} out"]
        self._calls[f"{name} out"] += 1
        leaves = [
            t for t in private.tree_flatten(output)[0] if isinstance(t, torch.Tensor) and t.numel()
        ]
        for i, t in enumerate(leaves):
            label = f"{name}.out" + (f".{i}" if len(leaves) > 1 else "")
            self._add_activation(label, "output", t, call)
            if t.requires_grad and self.writer.wants(f"{label}.grad"):
                t.register_hook(functools.partial(self._add_gradient, f"{label}.grad", call))

    def _add_activation(self, label: str, kind: str, t: torch.Tensor, call: int) -> None:
        if not self.writer.wants(label):
            return
        self._note(t)
        try:
            self.writer.add(label, kind, t, self._layout(t, declared=False), call)
        except LayoutError as e:
            self.writer.note(f"{label} was not recorded: {e}")

    def _add_gradient(self, label: str, call: int, gradient: torch.Tensor) -> None:
        # a graph that is walked several times adds up; the first time is recorded
        if f"{label}#{call}" not in self._recorded:
            self._recorded.add(f"{label}#{call}")
            self._add_activation(label, "output gradient", gradient, call)

    def _before_clipping(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(clip)
        def call(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(parameters, torch.Tensor):
                parameters = list(parameters)
            names = {id(p): name for name, p in self.binding.parameters.items()}
            for p in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
                name = names.get(id(p))
                if name is not None and p.grad is not None:
                    count = self._calls[f"{name} clipped"]
                    self._calls[f"{name} clipped"] += 1
                    self._add_as(
                        f"{name}.grad before clipping",
                        name,
                        "",
                        "unclipped gradient",
                        p.grad,
                        call=count,
                    )
            return clip(parameters, *args, **kwargs)

        return call

    # ---- main copies of parameters ----
    def _before_optimizer(self, optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.binding.priming:
            return
        for name, t in self._main.find(optimizer, self.binding.parameters):
            self._add_as(f"{name}.main", name, ".main", "main copy", t)
            if t.grad is not None:
                self._add_as(f"{name}.main.grad", name, ".main", "main gradient", t.grad)

    def _finish_main_copies(self) -> None:
        for name, (optimizer, t) in self._main.named.items():
            self._add_as(f"{name}.main.new", name, ".main", "main copy", t)
            for key, value in optimizer.state.get(t, {}).items():
                if isinstance(value, torch.Tensor):
                    suffix = f".main.{key}"
                    self._add_as(f"{name}{suffix}.new", name, suffix, "main copy", value)
        if self._main.unknown:
            self.writer.note(
                f"{self._main.unknown} tensors that optimizers step are neither parameters nor "
                "copies of parameters of their shape, and were not recorded"
            )

    def _with_loss(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """A script's loss is what it calls backward() of."""

        @functools.wraps(backward)
        def call(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            count = self._calls["loss"]
            self._calls["loss"] += 1
            self.writer.add("loss", "result", loss, self._layout(loss, declared=False), count)
            return backward(loss, *args, **kwargs)

        return call

    # ---- results ----
    def output(
        self,
        name: str,
        tensor: torch.Tensor,
        shard: Mapping[str, int] | None,
        mean: Sequence[str] | None,
        total: Sequence[str],
    ) -> None:
        self.output_memory.add(local_of(tensor).data_ptr())
        self._add_result(name, tensor, shard, mean, total)

    def _add_result(
        self,
        name: str,
        t: torch.Tensor,
        shard: Mapping[str, int] | None,
        mean: Sequence[str] | None,
        total: Sequence[str] = (),
    ) -> None:
        covered: Sequence[str] = ()
        if isinstance(t, private.DTensor):
            layout, covered = layouts.of_dtensor(t, self.mesh, self.rank)
        else:
            where = {a: d for a, d in (shard or {}).items() if a in self.mesh.sizes}
            layout = layouts.of_shard(t, where, self.mesh, self.rank)
        mean = self.means(t, shard, mean, total, covered)
        axes = set(self._axes)
        layout = dataclasses.replace(
            layout,
            total=(*layout.total, *(a for a in total if a in axes)),
            mean=(*layout.mean, *(a for a in mean if a in axes)),
        )
        self.writer.add(name, "result", t, layout)

    def keep(self, result: Any, number: int = 1) -> None:
        for label, t in results_of(result):
            if isinstance(t, torch.Tensor):
                scalar = None if t.shape == () else ()
                self._add_result(numbered(label, number), t, None, scalar)

    def finish(self, result: Any) -> None:
        self.keep(result)
        binding = self.binding
        binding.take_back_gradients()
        for name, p in binding.parameters.items():
            if p.grad is not None:
                self._add_parameter(name, "", "gradient", p.grad)
        for name, held in binding.held().items():
            self._add_parameter(name, "", "parameter", held)
        for (name, key), value in self._states().items():
            if isinstance(value, torch.Tensor):
                self._add_parameter(name, key, "state", value)
        self._finish_main_copies()
        for name, b in self.saved_buffers().items():
            before = self.buffers_before.get(name)
            changed = before is None or not torch.equal(before, local_of(b))
            self._add_parameter(name, "", "buffer", b, changed=changed)
        main = {id(t) for _, t in self._main.named.values()}
        for name, kept in binding.of_optimizers().items():
            if id(kept) in main:
                continue
            t = kept if isinstance(kept, torch.Tensor) else torch.tensor(float(kept)).double()
            self.writer.add(f"{name}.new", "optimizer", t, self._layout(t, declared=True))
            if t.requires_grad and t.grad is not None:
                self.writer.add(
                    f"{name}.grad", "optimizer", t.grad, self._layout(t.grad, declared=True)
                )

    def _states(self) -> dict[tuple[str, str], Any]:
        if self.own_values:
            return {
                (name, f".{key}"): value
                for _, name, p, key, value in self.binding.first_states()
                if any(p is q for q in self.binding.parameters.values())
            }
        states = {
            (name, key): optimizer.state[p][key[1:]]
            for (name, key), (optimizer, p) in self.states_of.items()
        }
        states.update(
            {
                which: value
                for which, (value, _) in self.binding.later_states(self.states_of).items()
            }
        )
        return states
