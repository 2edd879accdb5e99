"""Fused optimizers, as the core's `adamw`."""

from __future__ import annotations

from typing import Any

from .. import arithmetic as ar
from ..graph import Graph, number
from ..values import Value
from .table import line, require, scalar


def _fused(decoupled: bool) -> Any:
    def f(call: Any, g: Graph, ps: list[Value], gs: list[Value], ms: list[Value], vs: list[Value], maxima: list[Value], steps: list[Value], *, lr: Any, beta1: float, beta2: float,
          weight_decay: float, eps: float, amsgrad: bool, maximize: bool, grad_scale: Value | None = None, found_inf: Value | None = None) -> list[Value]:
        require(not amsgrad and grad_scale is None and found_inf is None, "a fused optimizer with amsgrad or a gradient scaler")
        new: list[list[Value]] = [[], [], [], []]
        for p, grad, m, v, step in zip(ps, gs, ms, vs, steps):
            new[1].append(grad)  # the schema says that gradients are written, too
            if maximize:
                grad = ar.negate(g, grad)
            if weight_decay and not decoupled:
                grad = ar.binary(g, "add", grad, ar.binary(g, "mul", p, weight_decay))
            attrs = {"lr": number(scalar(lr)), "step": int(scalar(step)), "beta1": number(beta1), "beta2": number(beta2), "eps": number(eps),
                     "weight_decay": number(weight_decay) if decoupled else 0}
            r = g.emit("adamw", [p, grad, m, v], [p.shape, p.shape, p.shape], attrs)
            new[0].append(r[0])  # type: ignore[arg-type]
            new[2].append(r[1])  # type: ignore[arg-type]
            new[3].append(r[2])  # type: ignore[arg-type]
        return [*new[0], *new[1], *new[2], *new[3]]

    return f


line("_fused_adamw_", "_fused_adamw")(_fused(True))
line("_fused_adam_", "_fused_adam")(_fused(False))
