# SPDX-License-Identifier: Apache-2.0
"""Cut points: tensors inside of a step that both sides have, so that a proof can be cut there."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..compat import private
from ..step.tracked_tensors import CUT_POINT, Placement, TrackedTensor, place, unwrapped
from ..terms import dataflow
from ..terms.values import Named
from .tracker import Tracker


class CutPoints:
    """Operands and results of modules, their gradients, and gradients of parameters.

    calls: module -> how often its forward ran.
    """

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.recorder, self.mesh, self.binding = tracker.recorder, tracker.mesh, tracker.binding
        self.calls: collections.Counter[str] = collections.Counter()
        self.raw_gradients: list[TrackedTensor] = []
        # Parameters as FSDP gathers them, by id, and their names.
        self.gathered: dict[int, tuple[torch.Tensor, str]] = {}
        self.trying = False  # modules run to see what shapes they give
        # what each parameter held when modules used it, in the order of these values
        self._held: dict[str, list[str]] = collections.defaultdict(list)

    def finish(self) -> None:
        """The step has ended: what is known by then of losses and reductions."""
        self._summed()
        self._added_up_next()
        self._several_passes()
        self._multiplied_later()
        self._reduced_later()
        self._exchanged_later()
        self.tracker.tracked += self.raw_gradients
        self._squares()

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        before, self.trying = self.trying, True
        try:
            yield
        finally:
            self.trying = before

    def forward(self, name: str, module: nn.Module, args: Any, output: Any, final: bool) -> None:
        if self.recorder.paused or self.trying:
            return
        if not final:
            self.calls[name] += 1
            self._weights(name, module)
        call = self.calls[name] - 1
        if not final and any(True for _ in module.parameters(recurse=False)):
            self._operands(name, args, call)
        outputs = [
            t
            for t in private.tree_flatten(output)[0]
            if isinstance(t, torch.Tensor) and t.dtype.is_floating_point
        ]
        for i, t in enumerate(outputs):
            local = t._local_tensor if isinstance(t, private.DTensor) else t
            if isinstance(local, private.AsyncCollectiveTensor):
                continue  # reading it would wait for it
            label = name + ".out" + (f".{i}" if len(outputs) > 1 else "")
            self.tracker.track(
                CUT_POINT, label, t, self._result_of(name, module, t), call=call, module=name
            )
            if t.requires_grad and torch.is_grad_enabled():
                t.register_hook(self._gradient(label + ".grad", name, module, call, final))

    def _operands(self, name: str, args: Any, call: int) -> None:
        """The operands of a module with parameters of its own: gradients of weights are products
        with them.
        """
        given = (
            [t for t in args if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
            if isinstance(args, tuple)
            else []
        )
        for i, t in enumerate(given):
            local = t._local_tensor if isinstance(t, private.DTensor) else t
            if not isinstance(local, private.AsyncCollectiveTensor):
                self.tracker.track(
                    CUT_POINT,
                    name + ".in" + (f".{i}" if len(given) > 1 else ""),
                    t,
                    call=call,
                    module=name,
                )

    def _result_of(self, name: str, module: nn.Module, t: torch.Tensor) -> Placement:
        """The placement of a module's result.

        A matrix that is sharded along the dimension that it sums over leaves partial sums, unless
        the module has reduced them itself.
        """
        placement = place(self.recorder, t)
        shard = self.binding.shard_of(f"{name}.weight" if name else "weight")
        weight = module._parameters.get("weight")
        if (
            shard
            and weight is not None
            and weight.dim() == 2
            and not isinstance(t, private.DTensor)
        ):
            reduced = dataflow.reduced_over(self.recorder.g, self.recorder.read(t))
            placement.partial += [a for a, d in shard.items() if d % 2 == 1 and a not in reduced]
        return placement

    def _gradient(
        self, label: str, name: str, module: nn.Module, call: int, final: bool
    ) -> Callable[[Any], None]:
        def hook(grad: Any) -> None:
            if grad is None:
                return  # a function of the step's own returns that: its operand has no gradient
            if torch.is_grad_enabled():
                # it will be differentiated itself (a penalty on gradients), so that nothing says
                # that its scale is the loss's
                return
            if not final:
                self._weights(name, module)
            local = grad._local_tensor if isinstance(grad, private.DTensor) else grad
            if not isinstance(local, private.AsyncCollectiveTensor):
                placement = place(self.recorder, grad)
                if not placement.covered and not local.dtype.is_complex:
                    placement.shared = dataflow.shared_over(
                        self.recorder.g, self.recorder.read(local)
                    )
                self.tracker.track(
                    CUT_POINT, label, grad, placement, call=call, gradient=True, module=name
                )

        return hook

    def _weights(self, name: str, module: nn.Module) -> None:
        """Parameters as the module uses them: whole, where FSDP has gathered them."""
        for key, p in module._parameters.items():
            full = f"{name}.{key}" if name else key
            if p is not None and full in self.binding.parameters:
                self.tracker.track(
                    CUT_POINT,
                    full + self._updated(full, p),
                    p,
                    place(
                        self.recorder,
                        p,
                        self.binding.shard_of(full) if p is self.binding.parameters[full] else None,
                    ),
                )
                if p is not self.binding.parameters[full]:
                    self.gathered[id(p)] = (p, full)

    def _updated(self, name: str, p: torch.Tensor) -> str:
        """What is added to the name of a parameter that was written since its first use."""
        own = self.binding.parameters[name]
        if p is not own and not isinstance(own, private.DTensor):
            return ""  # FSDP 1 puts other tensors there
        value = self.recorder.read(unwrapped(own))
        held = self._held[name]
        if isinstance(value, Named) and value.name not in held:
            held.append(value.name)
        times = held.index(value.name) if isinstance(value, Named) else 0
        return f", updated {times}" if times else ""

    def unreduced(self, p: torch.Tensor, grad: torch.Tensor) -> None:
        """The gradient of a parameter that FSDP gathered, before its ranks add theirs up.

        A sum over many ranks and its sharding are then two proofs.
        """
        _, name = self.gathered.get(id(p), (p, ""))
        if (
            not name
            or self.recorder.paused
            or isinstance(grad, (private.AsyncCollectiveTensor, private.DTensor))
        ):
            return
        placement = place(self.recorder, p)
        placement.mean = [a for a in self.tracker.cuts if a not in placement.covered]
        self.tracker.track(CUT_POINT, f"{name}.grad of backward", grad, placement)

    def _squares(self) -> None:
        """Sums of squares of gradients (for clipping), of which ranks have parts.

        The norm of all is then computed of proved numbers.
        """
        g = self.recorder.g
        products = {
            n["in"][0]: n["out"][0]
            for n in g.nodes
            if n["op"] == "mul" and len(n["in"]) == 2 and n["in"][0] == n["in"][1]
        }
        sums = {
            n["in"][0]: n["out"][0]
            for n in g.nodes
            if n["op"] == "sum" and g.tensors[n["out"][0]]["shape"] == []
        }
        for m in self.raw_gradients:
            total = sums.get(products.get(getattr(m.value, "name", ""), ""))
            if total is not None and (m.placement.covered or self.mesh.world == 1):
                where = Placement(covered=list(m.placement.covered), partial=list(m.placement.cut))
                self.tracker.tracked.append(
                    TrackedTensor(CUT_POINT, f"{m.name}, squares", Named(total, ()), where)
                )

    def _multiplied_later(self) -> None:
        """Gradients that the step multiplies by a number after backward, as schedules of pipelines
        divide by the microbatches, are left out: they are that many times the model's, and what
        the step leaves is compared.
        """
        final = {
            f"{name}.grad of backward": self.recorder.read(unwrapped(p.grad))
            for name, p in self.binding.parameters.items()
            if p.grad is not None
        }
        g = self.recorder.g

        def multiplied(m: TrackedTensor) -> bool:
            value = final.get(m.name)
            node = g.producer((value.base or value).name) if isinstance(value, Named) else None
            return (
                node is not None
                and node["op"] in ("mul", "div")
                and "scalar" in node.get("attrs", {})
                and node["in"][0] in _names_of(m)
            )

        self.raw_gradients = [m for m in self.raw_gradients if not multiplied(m)]

    def _reduced_later(self) -> None:
        """Gradients that the program reduces by hand after backward.

        Until then each was its rank's part of the sum (or the mean).
        """
        # in the shape in which it was made
        made = {
            m.name: (m.value.base or m.value).name
            for m in self.raw_gradients
            if isinstance(m.value, Named) and not m.placement.covered
        }
        later = dataflow.reduced_next(
            self.recorder.g,
            [
                *made.values(),
                *(m.value.name for m in self.raw_gradients if isinstance(m.value, Named)),
            ],
            self.mesh.sizes,
        )
        for m in self.raw_gradients:
            found = (
                later.get(made.get(m.name, "")) or later.get(getattr(m.value, "name", ""))
                if m.name in made
                else None
            )
            if found is not None and not {
                a for a, d in (m.placement.shard or {}).items() if self.mesh.sizes[a] > 1
            }.intersection(found[0]):  # what is cut along them is no sum
                axes, mean = found
                m.placement.mean = [a for a in m.placement.mean or [] if a not in axes] + (
                    axes if mean else []
                )
                m.placement.partial = [a for a in m.placement.partial if a not in axes] + (
                    [] if mean else axes
                )

    def _summed(self) -> None:
        """Gradients of a loss that is a sum over ranks are sums.

        `world.output` gives such a loss, or it was divided by what all ranks have. Only cut points
        depend on that, and they are proved before they are used.
        """
        scalars = [
            m.placement for m in self.tracker.tracked if m.role == "output" and m.value.shape == ()
        ]
        added = dataflow.reduced_last(
            self.recorder.g,
            [
                m.value
                for m in self.tracker.tracked
                if m.role == "output" and m.value.shape == () and not m.placement.mean
            ],
            self.mesh.sizes,
        )
        summed = tuple(
            a
            for a in self.tracker.cuts
            if (a in added or any(a in p.partial for p in scalars))
            and not any(a in (p.mean or []) for p in scalars)
        )
        for m in [*self.tracker.tracked, *self.raw_gradients] if summed else []:
            if m.gradient:
                m.placement.summed = summed
            elif m.role == CUT_POINT and m.placement.mean and m.name.endswith(".grad of backward"):
                m.placement.partial += [a for a in m.placement.mean if a in summed]
                m.placement.mean = [a for a in m.placement.mean if a not in summed]

    def _added_up_next(self) -> None:
        """Operands and results of modules that ranks with the same samples add up next, as those of
        a row of weights: each rank has a part of the sum.
        """
        found = [
            m
            for m in self.tracker.tracked
            if m.role == CUT_POINT and isinstance(m.value, Named) and self._place_unknown(m)
        ]
        later = dataflow.reduced_next(
            self.recorder.g, [name for m in found for name in _names_of(m)], self.mesh.sizes
        )
        for m in found:
            axes, mean = next((later[name] for name in _names_of(m) if name in later), ([], False))
            axes = [a for a in axes if a not in self.tracker.cuts and a not in m.placement.partial]
            if mean:
                m.placement.mean = [*(m.placement.mean or []), *axes]
            else:
                m.placement.partial = [*m.placement.partial, *axes]

    @staticmethod
    def _place_unknown(m: TrackedTensor) -> bool:
        p = m.placement
        return p.shard is None and not p.covered and not p.offset

    def _exchanged_later(self) -> None:
        """Gradients of which the program exchanges pieces by hand after backward, as a ring of
        messages does, are left out if nothing shows over which axes they add up.
        """
        later = dataflow.exchanged_next(
            self.recorder.g,
            [name for m in self.raw_gradients for name in _names_of(m)],
        )

        def unknown(m: TrackedTensor) -> bool:
            axes = next((later[name] for name in _names_of(m) if name in later), None)
            p = m.placement
            known = {*(p.mean or ()), *p.partial, *(p.shard or ()), *p.covered}
            return axes is not None and not (known and axes <= known)

        self.raw_gradients = [m for m in self.raw_gradients if not unknown(m)]

    def _several_passes(self) -> None:
        """Gradients of several backward passes get a name for each pass.

        None of them is the gradient of all passes.
        """
        single: dict[str, list[TrackedTensor]] = collections.defaultdict(list)
        for m in self.tracker.tracked:
            if m.role == CUT_POINT and m.name.endswith(".grad of backward"):
                single[m.name].append(m)
        for name, tracked_tensors in single.items():
            for i, m in enumerate(tracked_tensors if len(tracked_tensors) > 1 else []):
                m.name = f"{name} pass {i + 1}"

    def after_backward(self) -> None:
        """Gradients as backward left them, before clipping.

        Those of the last backward pass stay.
        """
        if self.recorder.paused:
            return
        self.recorder.untracked.differentiated = True
        self.raw_gradients = []
        for name, p in self.binding.parameters.items():
            if p.grad is None or 0 in unwrapped(p.grad).shape or name in self.binding.stretches:
                continue
            shard = self.binding.shard_of(name)
            placement = place(self.recorder, p.grad, shard)
            placement.parameter = name if tuple(p.grad.shape) == tuple(p.shape) else ""
            value = self.recorder.read(unwrapped(p.grad))
            # not reduced yet (by hand), or already (DDP)
            if not isinstance(p.grad, private.DTensor):
                reduced = dataflow.reduced_over(self.recorder.g, value)
                placement.mean = [
                    a for a in self.tracker.cuts if a not in (shard or {}) and a not in reduced
                ]
            self.raw_gradients.append(
                TrackedTensor(CUT_POINT, f"{name}.grad of backward", value, placement)
            )


def _names_of(m: TrackedTensor) -> tuple[str, ...]:
    """What a tensor holds, as it is and in the shape in which it was made."""
    v = m.value
    return (v.name, (v.base or v).name) if isinstance(v, Named) else ()
