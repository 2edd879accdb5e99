# SPDX-License-Identifier: Apache-2.0
"""Fused optimizers: Adam as the core's `adamw`, the others as their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..terms import arithmetic as ar
from ..terms.constants import number
from ..terms.graph import Graph
from ..terms.values import Filled, Value
from .table import lowering, require, scalar


def _gradient(
    g: Graph, p: Value, grad: Value, options: dict[str, Any], decay: float
) -> tuple[Value, Value]:
    """(the gradient that is left, the gradient of the update).

    A gradient scaler's factor is taken out. A weight decay that is a part of the loss is put in.
    """
    found = options.get("found_inf")
    require(
        found is None or isinstance(found, Filled) and not found.fill,
        "a fused optimizer that may leave its step out",
    )
    if options.get("grad_scale") is not None:
        grad = ar.binary(g, "div", g.definedness.finite(grad), g.reshape(options["grad_scale"], ()))
    by = ar.negate(g, grad) if options["maximize"] else grad
    return grad, ar.binary(g, "add", by, ar.binary(g, "mul", p, decay)) if decay else by


def _listed(columns: list[list[Value]], rows: list[list[Value]]) -> list[Value]:
    """Results as the schema has them, column by column; empty columns have none."""
    return [row[i] for i, column in enumerate(columns) for row in rows if column]


def _adam(decoupled: bool) -> Callable[..., list[Value]]:
    def f(
        call: Any,
        g: Graph,
        ps: list[Value],
        gs: list[Value],
        ms: list[Value],
        vs: list[Value],
        maxima: list[Value],
        steps: list[Value],
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        **options: Any,
    ) -> list[Value]:
        rows = []
        for i, (p, grad, m, v, step) in enumerate(zip(ps, gs, ms, vs, steps)):
            left, grad = _gradient(g, p, grad, options, 0 if decoupled else weight_decay)
            decay, rate, count = (
                weight_decay if decoupled else 0,
                float(scalar(lr)),
                int(scalar(step)),
            )
            if not amsgrad:
                r = g.emit(
                    "adamw",
                    [p, grad, m, v],
                    [p.shape, p.shape, p.shape],
                    {
                        "lr": number(rate),
                        "step": count,
                        "beta1": number(beta1),
                        "beta2": number(beta2),
                        "eps": number(eps),
                        "weight_decay": number(decay),
                    },
                )
                rows.append([r[0], left, r[1], r[2]])
                continue
            m = ar.binary(g, "add", m, ar.binary(g, "mul", ar.binary(g, "sub", grad, m), 1 - beta1))
            v = ar.binary(
                g,
                "add",
                ar.binary(g, "mul", v, beta2),
                ar.binary(g, "mul", ar.power(g, grad, 2), 1 - beta2),
            )
            largest = ar.maximum(g, maxima[i], v)
            root = ar.binary(
                g,
                "add",
                ar.binary(g, "div", ar.unary(g, "sqrt", largest), (1 - beta2**count) ** 0.5),
                eps,
            )
            p = ar.binary(g, "mul", p, 1 - rate * decay) if decay else p
            rows.append(
                [
                    ar.binary(
                        g,
                        "sub",
                        p,
                        ar.binary(
                            g, "mul", ar.binary(g, "div", m, root), rate / (1 - beta1**count)
                        ),
                    ),
                    left,
                    m,
                    v,
                    largest,
                ]
            )
        return _listed([ps, gs, ms, vs, maxima], rows)  # type: ignore[arg-type]

    return f


lowering("_fused_adamw_", "_fused_adamw")(_adam(True))
lowering("_fused_adam_", "_fused_adam")(_adam(False))


# the first step finds buffers that nothing has written
@lowering("_fused_sgd_", "_fused_sgd", selective=True)
def sgd(
    call: Any,
    g: Graph,
    ps: list[Value],
    gs: list[Value],
    buffers: list[Value],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    is_first_step: bool,
    **options: Any,
) -> list[Value]:
    ar.check(*ps, *gs, *([] if is_first_step else buffers))
    rows = []
    for i, (p, grad) in enumerate(zip(ps, gs)):
        left, grad = _gradient(g, p, grad, options, weight_decay)
        kept = []
        if momentum:
            kept = [
                grad
                if is_first_step
                else ar.binary(
                    g,
                    "add",
                    ar.binary(g, "mul", buffers[i], momentum),
                    ar.binary(g, "mul", grad, 1 - dampening),
                )
            ]
            grad = (
                ar.binary(g, "add", grad, ar.binary(g, "mul", kept[0], momentum))
                if nesterov
                else kept[0]
            )
        rows.append([ar.binary(g, "sub", p, ar.binary(g, "mul", grad, scalar(lr))), left, *kept])
    return _listed([ps, gs, buffers if momentum else []], rows)


@lowering("_fused_adagrad_", "_fused_adagrad")
def adagrad(
    call: Any,
    g: Graph,
    ps: list[Value],
    gs: list[Value],
    sums: list[Value],
    steps: list[Value],
    *,
    lr: Any,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    **options: Any,
) -> list[Value]:
    rows = []
    for p, grad, total, step in zip(ps, gs, sums, steps):
        left, grad = _gradient(g, p, grad, options, weight_decay)
        total = ar.binary(g, "add", total, ar.power(g, grad, 2))
        rate = scalar(lr) / (1 + (scalar(step) - 1) * lr_decay)
        rows.append(
            [
                ar.binary(
                    g,
                    "sub",
                    p,
                    ar.binary(
                        g,
                        "mul",
                        ar.binary(
                            g, "div", grad, ar.binary(g, "add", ar.unary(g, "sqrt", total), eps)
                        ),
                        rate,
                    ),
                ),
                left,
                total,
                step,
            ]
        )
    return _listed([ps, gs, sums, [] if call.overload == "tensor_lr" else steps], rows)
