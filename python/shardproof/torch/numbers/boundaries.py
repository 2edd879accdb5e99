# SPDX-License-Identifier: Apache-2.0
"""Records what modules take and return, with gradients, and can replace it by a reference's.

At each boundary of a module stands an identity of autograd. Forward, it records what was computed
and continues with the reference's numbers; backward, it does the same with the gradient. So what a
module computes depends on itself alone: an early mistake does not reach later modules, and what
differs is wrong by itself. The method is TTrace's (Ju et al., 2025). Its inputs are random; the
reference's own numbers fit what a module expects (probabilities, masks, positive numbers), and
the reference needs no second run.
"""

from __future__ import annotations

import collections
import functools
import hashlib
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from ..compat import private
from .layout import local_of
from .reference_values import Given


class Recorder(Protocol):
    """What the tracer does for the boundaries."""

    def modules(self) -> dict[str, nn.Module]:
        """Those of all models by name, without the models themselves."""

    def priming(self) -> bool:
        """Whether the states of optimizers are being made."""

    def record(
        self, module: str, label: str, kind: str, t: torch.Tensor, call: int
    ) -> Given | None:
        """Writes a tensor; returns what the reference has in its place."""

    def given(self, label: str, call: int, t: torch.Tensor) -> Given | None:
        """What the reference has in the place of a tensor that is computed once more."""


class Boundaries:
    """Of all modules of a step, but of the models themselves."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._hooked: dict[int, nn.Module] = {}
        self._calls: collections.Counter[str] = collections.Counter()
        # of each call of a module, a fingerprint of what it took: recomputation takes the same
        self._taken: dict[str, list[bytes]] = {}
        self._running: dict[str, int | None] = {}
        self._gradients: set[tuple[str, int]] = set()

    def before(self, name: str, module: nn.Module, args: Any) -> Any:
        """Of a module that is called, before its own hooks. Returns other arguments, or None."""
        if id(module) in self._hooked:
            return None
        self.hook()
        # hooks that a module gets while it is called begin with its next call
        entered = self._enter(name, module, args, {}) if id(module) in self._hooked else None
        return None if entered is None else entered[0]

    def hook(self) -> None:
        """Once for each module. The hooks of wrappers (FSDP, DTensor) stand before these."""
        for name, module in self.recorder.modules().items():
            if id(module) in self._hooked:
                continue
            self._hooked[id(module)] = module  # kept, so that no other has its id
            module.register_forward_pre_hook(functools.partial(self._enter, name), with_kwargs=True)
            module.register_forward_hook(functools.partial(self._leave, name))

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.recorder.priming():
            return None
        taken = _fingerprint(args, kwargs)
        recomputed = private.current_node() is not None
        if recomputed:
            earlier = self._taken.get(name, [])
            # of calls that took the same, any will do
            call = earlier.index(taken) if taken in earlier else None
        else:
            call = self._calls[name]
            self._calls[name] += 1
            self._taken.setdefault(name, []).append(taken)
        self._running[name] = call
        # what it computes in the memory of its input is what its caller reads later
        if call is None or getattr(module, "inplace", False):
            return None
        cross = functools.partial(self._cross, name, ".in", "input", call, recomputed)
        return (
            _mapped(args, cross),
            {k: _mapped(v, functools.partial(_below, cross, k)) for k, v in kwargs.items()},
        )

    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> Any:
        call = self._running.get(name)
        if call is None or self.recorder.priming():
            return None
        cross = functools.partial(
            self._cross, name, ".out", "output", call, private.current_node() is not None
        )
        return _mapped(output, cross)

    def _cross(
        self,
        module: str,
        side: str,
        kind: str,
        call: int,
        recomputed: bool,
        suffix: str,
        t: torch.Tensor,
    ) -> torch.Tensor:
        """What continues in the place of a tensor at a boundary."""
        label = module + side + suffix
        if not t.numel() or t.is_complex() or local_of(t).layout != torch.strided:
            return t
        # Recomputation does not write: its numbers are those of the first time.
        given = (
            self.recorder.given(label, call, t)
            if recomputed
            else self.recorder.record(module, label, kind, t, call)
        )
        value = None if given is None else _as(t, given.tensor)
        if t.requires_grad and torch.is_grad_enabled():
            return _Boundary.apply(
                t,
                value,
                functools.partial(
                    self._gradient, module, f"{label}.grad", f"{kind} gradient", call
                ),
            )
        return t if value is None else value

    def _gradient(
        self, module: str, label: str, kind: str, call: int, gradient: torch.Tensor
    ) -> torch.Tensor:
        # a graph that is walked several times adds up; the first time is recorded
        if (label, call) in self._gradients:
            return gradient
        self._gradients.add((label, call))
        given = self.recorder.record(module, label, kind, gradient, call)
        return gradient if given is None else _as(gradient, given.tensor)


class _Boundary(torch.autograd.Function):
    """The identity, or other numbers in the tensor's place; `backward` maps the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        t: torch.Tensor,
        value: torch.Tensor | None,
        gradient: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.gradient = gradient
        # no view: a module may write into what it takes
        return t.clone() if value is None else value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else ctx.gradient(gradient), None, None


def _as(t: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Numbers of a rank as a tensor like another one."""
    if not isinstance(t, private.DTensor):
        return local
    with torch.no_grad():
        return private.DTensor.from_local(
            local, t.device_mesh, t.placements, run_check=False, shape=t.shape, stride=t.stride()
        )


def _below(cross: Callable[..., Any], key: str, suffix: str, t: torch.Tensor) -> torch.Tensor:
    """Of an argument that has a name."""
    return cross(f".{key}{suffix}", t)


def _mapped(x: Any, cross: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    """The same containers with other tensors.

    `cross` takes the tensor's number after a dot, where there are several, and the tensor.
    """
    leaves = [t for t in private.tree_flatten(x)[0] if isinstance(t, torch.Tensor) and t.numel()]
    numbers = {id(t): i for i, t in enumerate(leaves)}
    several = len(leaves) > 1

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.numel():
            return leaf
        return cross(f".{numbers[id(leaf)]}" if several else "", leaf)

    return private.tree_map(one, x)


def _fingerprint(args: Any, kwargs: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for t in private.tensors(args, kwargs):
        local = local_of(t).detach()
        if local.numel() and local.layout == torch.strided:
            raw = local.to("cpu").contiguous().reshape(-1).view(torch.uint8)
            digest.update(raw.numpy().tobytes())
    return digest.digest()
