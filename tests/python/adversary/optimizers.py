# SPDX-License-Identifier: Apache-2.0
"""Settings of optimizers, clipping, schedules, averaged copies."""

from __future__ import annotations

import random

from .steps import CALLS, Step, base, on_ranks, where_ranks

_SETTINGS = {  # optimizer -> setting -> values
    "SGD": {
        "lr": ("0.1", "0.2"),
        "momentum": ("0.9", "0.8"),
        "weight_decay": ("0.01", "0.1"),
        "dampening": ("0.0", "0.5"),
        "maximize": ("False", "True"),
    },
    "Adam": {
        "lr": ("0.1", "0.2"),
        "betas": ("(0.9, 0.999)", "(0.8, 0.999)"),
        "eps": ("1e-8", "1e-4"),
        "weight_decay": ("0.01", "0.1"),
        "amsgrad": ("False", "True"),
    },
    "AdamW": {
        "lr": ("0.1", "0.11"),
        "betas": ("(0.9, 0.999)", "(0.9, 0.99)"),
        "eps": ("1e-8", "1e-3"),
        "weight_decay": ("0.01", "0.02"),
    },
    "RMSprop": {
        "lr": ("0.1", "0.2"),
        "alpha": ("0.99", "0.9"),
        "eps": ("1e-8", "1e-3"),
        "momentum": ("0.0", "0.9"),
    },
    "Adagrad": {"lr": ("0.1", "0.2"), "weight_decay": ("0.0", "0.1"), "lr_decay": ("0.0", "0.1")},
}


def make(rng: random.Random) -> Step:
    step = base(rng, rng.choice(["same", "dp", "dp", "ddp", "fsdp"]), optimizer="none")
    name = rng.choice([*_SETTINGS, "AdamW", "SGD"])
    chosen = {k: v[0] for k, v in _SETTINGS[name].items() if step.sometimes(0.6) or k == "lr"}
    wrong = rng.choice(["", "", "setting", "setting", "class", "share", "schedule", "clip", "hook"])
    step.notes += [wrong] if wrong else []
    if wrong == "setting":
        key = rng.choice(list(_SETTINGS[name]))
        chosen[key] = on_ranks(step, *_SETTINGS[name][key])
        step.notes.append(key)
    settings = ", ".join(f"{k}={v}" for k, v in chosen.items())
    made = f"torch.optim.{name}"
    if wrong == "class":
        name, other = rng.choice([("Adam", "AdamW"), ("AdamW", "Adam"), ("SGD", "RMSprop")])
        settings = "lr=0.1, weight_decay=0.1" if name != "SGD" else "lr=0.1, momentum=0.9"
        made = on_ranks(step, f"torch.optim.{name}", f"torch.optim.{other}")
    ps = on_ranks(step, "ps", rng.choice(["ps[1:]", "ps[:-1]"])) if wrong == "share" else "ps"
    if step.sometimes(0.3):
        ps = f'[{{"params": {ps}, "weight_decay": {on_ranks(step, "0.0", "0.0")}}}]'
    step.build += [f"o = {made}({ps}, {settings})", "watch.optimizer(o)"]
    if wrong == "clip" or step.sometimes(0.25):
        if step.share == "fsdp" and name:
            step.reduce.append(
                "nn.utils.clip_grad_value_(ps,"
                f" {on_ranks(step, '0.01', '0.02') if wrong == 'clip' else '0.01'})"
            )
        else:
            limit = (
                on_ranks(step, "0.05", step.one_of("0.1", "0.051")) if wrong == "clip" else "0.05"
            )
            kind = step.one_of("norm", "value", "kind", "early")
            if kind == "norm" or (kind in ("kind", "early") and wrong != "clip"):
                step.reduce.append(f"nn.utils.clip_grad_norm_(ps, {limit})")
            elif kind == "value":
                step.reduce.append(f"nn.utils.clip_grad_value_(ps, {limit})")
            elif kind == "kind":
                step.reduce.append(
                    f"nn.utils.clip_grad_norm_(ps, 0.05, norm_type={on_ranks(step, '2', '1')})"
                )
            else:  # each rank clips what it has before the reduction
                step.reduce.insert(0, "nn.utils.clip_grad_norm_(ps, 0.05)")
    if wrong == "hook":
        step.build.append(
            f"if {where_ranks(step)}:\n    ps[0].register_hook(lambda g: g *"
            f" {step.one_of('2', '1', '0.5')})"
        )
    step.update = ["o.step()"]
    if wrong == "schedule" or step.sometimes(0.2):
        gamma = on_ranks(step, "0.5", "0.1") if wrong == "schedule" else "0.5"
        step.build.append(
            step.one_of(
                f"s = torch.optim.lr_scheduler.StepLR(o, 1, gamma={gamma})",
                f"s = torch.optim.lr_scheduler.LambdaLR(o, lambda k: {gamma} ** k)",
            )
        )
        step.update.append("s.step()")
    if (
        step.share in ("same", "dp")
        and step.style
        in (
            "module list",
            "module dict",
            "functional",
            "blocks",
            "sequential",
            *CALLS,
        )
        and step.sometimes(0.3)
    ):
        step.build += ["e = copy.deepcopy(m)", *_copies(step)]
        lerp = on_ranks(step, "0.1", "0.2") if step.sometimes(0.5) else "0.1"
        step.after += [
            "with torch.no_grad():",
            "    for a, b in zip(e.parameters(), m.parameters()):",
            f"        a.lerp_(b, {lerp})",
        ]
    if step.sometimes(0.3):
        step.after.append("o.zero_grad()")
    return step


def _copies(step: Step) -> list[str]:
    """The same names for the averaged copies."""
    return [
        line.replace('watch("', 'watch("average ').replace(", m", ", e")
        for line in step.build
        if line.startswith('watch("') and ", m" in line
    ]
