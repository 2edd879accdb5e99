# SPDX-License-Identifier: Apache-2.0
"""Parameters of modules that nobody calls, of methods, and without a module: is each compared?"""

from __future__ import annotations

import random

from .steps import CALLS, LOOPS, REDUCTIONS, Step, base, on_ranks, reduction, update, where_ranks


def make(rng: random.Random) -> Step:
    if rng.random() < 0.25:
        return _tensor_parallel(rng)
    style = rng.choice([s for s in (*LOOPS, *CALLS) if s != "sequential"])
    share = rng.choice(["same", "dp", "dp"])
    wrong = rng.choice(["", "", "left out", "lr", "gradient", "update left out", "decay"])
    step = base(rng, share, style=style, optimizer="none")
    kind = step.one_of("sgd", "momentum", "adamw", "by hand", "data", "foreach", "none")
    if wrong == "left out" and share == "dp":
        one = step.rng.randrange(2)
        step.reduce, step.backward = [], ["loss.backward()"]
        step.build = [line for line in step.build if "post_accumulate" not in line]
        step.build = _without_empty_hooks(step.build)
        reduction(
            step,
            rng.choice([r for r in REDUCTIONS if r not in ("scaled loss", "hooks")]),
            step.one_of("ps[:-1]", "ps[1:]", f"ps[{one}:{one + 1}]"),
        )
        step.notes.append(wrong)
    elif wrong == "gradient":
        step.reduce += [
            f"if {where_ranks(step)}:",
            "    for p in ps[-1:]:",
            f"        p.grad = p.grad * {step.one_of('2', '0.5', '-1', '0')}",
        ]
        step.notes.append(wrong)
    lr, decay = "0.1", "0.01"
    if wrong == "lr":
        lr = on_ranks(step, "0.1", "0.3")
        step.notes.append(wrong)
    elif wrong == "decay":
        decay = on_ranks(step, "0.01", "0.5")
        step.notes.append(wrong)
    ps = "ps"
    if wrong == "update left out":
        step.build.append(f"chosen = {on_ranks(step, 'ps', step.one_of('ps[:-1]', 'ps[1:]'))}")
        ps = "chosen"
        step.notes.append(wrong)
    update(step, kind, lr=lr, parameters=ps, decay=decay)
    if step.sometimes(0.4):
        step.after.append("for p in ps:\n    p.grad = None")
    return step


def _without_empty_hooks(lines: list[str]) -> list[str]:
    """The lines without a loop that has no body any more."""
    found: list[str] = []
    skip = False
    for i, line in enumerate(lines):
        if (
            line == "if not world.single:"
            and i + 1 < len(lines)
            and lines[i + 1].startswith("    for p in ps:")
            and (i + 2 >= len(lines) or not lines[i + 2].startswith("        "))
        ):
            skip = True
            continue
        if skip:
            skip = False
            continue
        found.append(line)
    return found


def _tensor_parallel(rng: random.Random) -> Step:
    """Column and row by hand, with parameters that have parts of the model's."""
    step = Step(rng, {"tp": 2})
    module = step.one_of("bare", "method", "forward")
    step.build.append('n = world.sizes["tp"]')
    if module == "bare":
        step.build += [
            "a, b = nn.Parameter(torch.randn(8 // n, 4)), nn.Parameter(torch.randn(4, 8 // n))",
            'watch("a", a, cut={"tp": 0})',
            'watch("b", b, cut={"tp": 1})',
            "ps = [a, b]",
        ]
        call = "F.linear(torch.tanh(F.linear(x, a)), b)"
    else:
        step.classes.append(
            "class Pair(nn.Module):\n    def __init__(s, n):\n        super().__init__()\n       "
            " s.a = nn.Parameter(torch.randn(8 // n, 4))\n        s.b ="
            " nn.Parameter(torch.randn(4, 8 // n))\n    def"
            f" {'forward' if module == 'forward' else 'run'}(s, x):\n        return"
            " F.linear(torch.tanh(F.linear(x, s.a)), s.b)\n"
        )
        step.build += [
            "m = Pair(n)",
            'watch("a", m, "a", cut={"tp": 0})',
            'watch("b", m, "b", cut={"tp": 1})',
            "ps = list(m.parameters())",
        ]
        call = "m(x)" if module == "forward" else "m.run(x)"
    wrong = rng.choice(["", "", "not reduced", "lr", "local gradient", "decay", "gradient"])
    step.notes += [wrong] if wrong else []
    step.inputs.append('x = world.input("x", (8, 4))')
    step.forward.append(f"h = {call}")
    if wrong == "local gradient":  # the sum is right, the gradient is as often as there are ranks
        step.forward += [
            "if not world.single:",
            '    h = df.all_reduce(h, group=world.group("tp"))',
        ]
    elif wrong != "not reduced":
        step.forward += [
            "if not world.single:",
            "    s = h.detach().clone()",
            '    dist.all_reduce(s, group=world.group("tp"))',
            "    h = h + (s - h.detach())",
        ]
    step.forward.append("loss = (h * h).mean()")
    step.backward = ["loss.backward()"]
    if wrong == "gradient":
        step.reduce += [f"if {where_ranks(step)}:", f"    ps[{rng.randrange(2)}].grad.mul_(2)"]
    update(
        step,
        step.one_of("sgd", "momentum", "adamw", "by hand", "none"),
        lr=on_ranks(step, "0.1", "0.3") if wrong == "lr" else "0.1",
        decay=on_ranks(step, "0.01", "0.5") if wrong == "decay" else "0.01",
    )
    if step.sometimes(0.4):
        step.after.append("for p in ps:\n    p.grad = None")
    return step
