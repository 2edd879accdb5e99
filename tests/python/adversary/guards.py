# SPDX-License-Identifier: Apache-2.0
"""Decisions that depend on data, and errors that are caught."""

from __future__ import annotations

import random

from .steps import Step, base, indented, where_ranks

_DECISIONS = (
    "{l}.item() > {t}",
    "float({l}) > {t}",
    "bool({l} > {t})",
    "{l} > {t}",
    "({l} > {t}).item()",
    "{l}.tolist() > {t}",
    "h.detach().abs().max().item() > {t}",
    "float(h.detach().abs().max()) > {t}",
    "h.detach().numpy().max() > {t}",
    "float(f'{{{l}.item():.4f}}') > {t}",
    "math.sqrt({l}.item() ** 2) > {t}",
    "not torch.isfinite({l})",
    "math.isnan({l}.item())",
    "torch.isnan({l}).any()",
    "int((h > 0.5).sum()) > 4",
    "len(h[h > 0.5]) > 4",
    "{l}.item() > -1e9",
    "torch.equal(h, h.relu())",
    "max({l}.item(), {t}) > {t}",
    "any(v > {t} for v in h.detach().flatten().tolist())",
    "ps[0].detach().norm() > {t}",
)
# Decisions that do not: what is caught is not there, or is the step's own business.
_PLAIN = (
    "h.shape[0] > {t}",
    "hasattr(loss, 'missing')",
    "loss.missing > {t}",
    "{{}}['missing'] > {t}",
    "isinstance(loss, torch.Tensor)",
    "loss.requires_grad",
    "int('x') > {t}",
    "world.rank >= 0",
    "len(ps) > {t}",
    "[][0] > {t}",
    "loss.dim() > {t}",
)
_CAUGHT = (
    "Exception",
    "RuntimeError",
    "(ValueError, TypeError, RuntimeError)",
    "BaseException",
    "",
    "Exception as e",
    "(ValueError, KeyError, AttributeError, IndexError)",
)


def make(rng: random.Random) -> Step:
    # The reduction may be left out: what catches errors would hide it.
    missing = rng.random() < 0.25
    share = rng.choice(["same", "dp", "dp"])
    step = base(rng, share, optimizer=rng.choice(["sgd", "adamw", "by hand"]))
    if missing and share == "dp":
        step.reduce, step.backward = [], ["loss.backward()"]
        step.build = [line for line in step.build if "post_accumulate" not in line]
        step.build = [line for i, line in enumerate(step.build) if not _empty(step.build, i)]
        step.notes.append("not reduced")
    plain = step.sometimes(0.4)
    decision = rng.choice(_PLAIN if plain else _DECISIONS).format(
        l=rng.choice(["loss", "loss", "loss.detach()"]), t=rng.choice(["0.2", "1.0", "50.0"])
    )
    action = rng.choice(["factor", "factor", "return", "zero", "raise", "print", "skip"])
    own = rng.choice([True, True, False])
    condition = (
        f"{decision} and {where_ranks(step)}"
        if own and step.sometimes(0.7)
        else f"{where_ranks(step)} and {decision}"
        if own
        else decision
    )
    body = {
        "factor": "factor[0] = 2.0",
        "return": "return loss",
        "zero": "for p in ps:\n    p.grad = torch.zeros_like(p)",
        "raise": "raise RuntimeError('a spike')",
        "print": "factor[0] = 1.0",
        "skip": "skip = True",
    }[action]
    step.notes.append(f"{action}{' on ranks' if own else ''}")
    guard = [f"if {condition}:", *indented([body])]
    step.build.append("factor, skip = [1.0], False")
    caught = rng.choice(
        [*("try",) * 4, "suppress", "finally", "whole", "whole", "function", "none"]
    )
    late = action == "zero"
    rest = [
        *step.backward,
        *step.reduce,
        *(guard if late and caught == "whole" else []),
        *step.update,
    ]
    scale = ["loss = loss * factor[0]"] if action == "factor" else []
    if action == "skip":
        step.update = ["if not skip:", *indented(step.update)]
    elif caught == "whole":
        pass
    except_line = f"except {rng.choice(_CAUGHT)}:".replace(" :", ":")
    if caught == "whole":
        if action == "skip":
            rest = [*step.backward, *step.reduce, *step.update]
        inner = [*([] if late else guard), *scale, *rest]
        step.forward += ["try:", *indented(inner), except_line, "    pass"]
        step.backward, step.reduce, step.update = [], [], []
        return step
    if caught == "try":
        wrapped = ["try:", *indented(guard), except_line, "    pass"]
    elif caught == "suppress":
        wrapped = ["with contextlib.suppress(Exception):", *indented(guard)]
    elif caught == "finally" and action in ("factor", "print"):
        wrapped = [
            "def decide():",
            "    try:",
            *indented(indented(guard)),
            "    finally:",
            "        return",
            "decide()",
        ]
    elif caught == "function":
        wrapped = [
            "def decide():",
            "    try:",
            f"        return bool({condition})",
            f"    {except_line}",
            "        return False",
            "if decide():",
            *indented([body]),
        ]
    else:
        wrapped = guard
    if late:
        step.reduce += wrapped
    else:
        step.forward += wrapped
    step.forward += scale
    return step


def _empty(lines: list[str], i: int) -> bool:
    """Whether a line belongs to a loop over hooks that has no body any more."""
    head = (
        lines[i] == "if not world.single:"
        and i + 1 < len(lines)
        and lines[i + 1] == "    for p in ps:"
    )
    loop = lines[i] == "    for p in ps:" and i > 0 and lines[i - 1] == "if not world.single:"
    at = i + 2 if head else i + 1
    return (head or loop) and (at >= len(lines) or not lines[at].startswith("        "))
