# SPDX-License-Identifier: Apache-2.0
"""Reductions of gradients: missing, doubled, over the wrong group, with a wrong factor."""

from __future__ import annotations

import random

from .steps import CALLS, LOOPS, REDUCTIONS, Step, base, on_ranks, reduction, update, where_ranks


def make(rng: random.Random) -> Step:
    kind = rng.choice(["dp", "dp", "two axes", "ddp", "fsdp", "accumulated"])
    return {
        "dp": _dp,
        "two axes": _two_axes,
        "ddp": _ddp,
        "fsdp": _fsdp,
        "accumulated": _accumulated,
    }[kind](rng)


def _dp(rng: random.Random) -> Step:
    step = base(rng, "same", style=rng.choice([*LOOPS, *CALLS]), optimizer="none")
    step.inputs = [
        (
            line.replace(f"{step.width})", f'{step.width}), shard={{"dp": 0}}')
            if "shard" not in line and "int64" not in line
            else line.replace("torch.int64, ", 'torch.int64, shard={"dp": 0}, ')
        )
        for line in step.inputs
    ]
    wrong = rng.choice(
        ["", "", "missing", "doubled", "factor", "operator", "one rank", "early", "loss reduced"]
    )
    step.notes += [wrong] if wrong else []
    kind = rng.choice(REDUCTIONS)
    if wrong == "missing":
        pass
    elif wrong == "factor":
        reduction(
            step,
            rng.choice(["sum", "flat", "scaled loss", "gathered"]),
            count=step.one_of("1", "4", "world.size ** 2") if kind != "gathered" else "world.size",
        )
        if kind == "gathered":
            step.reduce.append("if not world.single:\n    for p in ps:\n        p.grad *= 2")
    elif wrong == "operator":
        step.reduce += [
            "if not world.single:",
            "    for p in ps:",
            (
                "        dist.all_reduce(p.grad,"
                f" op=dist.ReduceOp.{step.one_of('MAX', 'MIN', 'SUM', 'PRODUCT')})"
            ),
        ]
    elif wrong == "one rank":
        step.reduce += [
            "if not world.single:",
            "    for p in ps:",
            "        dist.reduce(p.grad, 0)",
            "        p.grad /= world.size",
        ]
    elif wrong == "early":
        step.backward = ["for p in ps:\n    p.grad = torch.zeros_like(p)"]
        reduction(step, "average")
        step.reduce.append("loss.backward()")
    elif wrong == "loss reduced":
        step.backward = [
            "if not world.single:\n    loss = df.all_reduce(loss) / world.size",
            "loss.backward()",
        ]
        if step.sometimes(0.5):
            reduction(step, rng.choice(["average", "sum"]))
    else:
        reduction(step, kind)
        if wrong == "doubled":
            reduction(
                step,
                rng.choice(["average", "sum", "flat"]) if step.sometimes(0.3) else "flat",
                count=step.one_of("1", "world.size"),
            )
    update(step, step.one_of("sgd", "adamw", "momentum", "by hand", "none"))
    if step.sometimes(0.3):
        step.after.append("for p in ps:\n    p.grad = None")
    return step


def _two_axes(rng: random.Random) -> Step:
    """Batch and columns: which group is which."""
    step = Step(rng, {"dp": 2, "tp": 2})
    step.build.append('n = world.sizes["tp"]')
    step.classes.append(
        "class Pair(nn.Module):\n    def __init__(s, n):\n        super().__init__()\n        s.a ="
        " nn.Parameter(torch.randn(8 // n, 4))\n        s.b = nn.Parameter(torch.randn(4, 8 //"
        " n))\n        s.c = nn.Parameter(torch.ones(4))\n    def forward(s, x):\n        return"
        " F.linear(torch.tanh(F.linear(x, s.a)), s.b)\n"
    )
    step.build += [
        "m = Pair(n)",
        "ps = [m.a, m.b, m.c]",
        'watch("a", m, "a", cut={"tp": 0})',
        'watch("b", m, "b", cut={"tp": 1})',
        'watch("c", m, "c")',
        'world.parameters(m, shard={"a": {"tp": 0}, "b": {"tp": 1}})',
    ]
    wrong = rng.choice(["", "", "group", "world", "forward group", "left out", "twice"])
    step.notes += [wrong] if wrong else []
    step.inputs.append('x = world.input("x", (8, 4), shard={"dp": 0})')
    over = "dp" if wrong == "forward group" else "tp"
    step.forward += [
        "h = m(x)",
        "if not world.single:",
        "    s = h.detach().clone()",
        f'    dist.all_reduce(s, group=world.group("{over}"))',
        "    h = h + (s - h.detach())",
        "h = h * m.c",
        "loss = (h * h).mean()",
    ]
    step.backward = ["loss.backward()"]
    group = {"group": 'world.group("tp")', "world": ""}.get(wrong, 'world.group("dp")')
    reduction(
        step,
        rng.choice(["average", "sum", "flat"]),
        "ps[:2]" if wrong == "left out" else "ps",
        group=group,
        count="2",
    )
    if wrong == "twice":
        reduction(step, "sum", "ps[2:]", group='world.group("tp")', count=step.one_of("1", "2"))
    update(step, step.one_of("sgd", "adamw", "by hand", "none"))
    return step


def _ddp(rng: random.Random) -> Step:
    step = base(rng, "ddp")
    wrong = rng.choice(["", "twice", "no sync", "outside", "factor", "inner"])
    step.notes += [wrong] if wrong else []
    if wrong == "twice":  # an average again changes nothing, a sum does
        reduction(step, rng.choice(["average", "flat"]), count=step.one_of("1", "world.size"))
    elif wrong == "no sync":
        step.backward = [
            "with (f.no_sync() if not world.single else contextlib.nullcontext()):",
            "    loss.backward()",
        ]
        at = next(i for i, line in enumerate(step.forward) if "f(" in line)
        if step.sometimes(0.6):
            line = step.forward[at]
            step.forward[at] = (
                f"with (f.no_sync() if not world.single else contextlib.nullcontext()):\n    {line}"
            )
    elif wrong == "outside":
        step.backward = [
            f"loss = loss + (m.{step.one_of('scale', 'layers[0].weight')} ** 2).mean() * x.mean()",
            "loss.backward()",
        ]
    elif wrong == "factor":
        step.backward = [
            f"(loss * {on_ranks(step, '1', step.one_of('world.size', '0.5', '1'))}).backward()"
        ]
    elif wrong == "inner":
        step.forward = [line.replace("f(", "m(") for line in step.forward]
    return step


def _fsdp(rng: random.Random) -> Step:
    step = base(rng, "fsdp")
    wrong = rng.choice(["", "divide", "extra", "factor"])
    step.notes += [wrong] if wrong else []
    layers = "(m.values() if isinstance(m, nn.ModuleDict) else m)"
    if wrong == "divide":
        step.build += [
            f"for l in {layers}:",
            (
                f"    l.set_gradient_divide_factor({step.one_of('1.0', '2.0', '4.0')} if not"
                " world.single else 1.0)"
            ),
        ]
    elif wrong == "extra":
        step.build += [f"extra = nn.Parameter(torch.ones({step.width}))", 'watch("extra", extra)']
        step.forward += ["loss = loss + (extra * x).mean()"]
        if step.sometimes(0.5):
            reduction(step, rng.choice(["average", "sum"]), "[extra]")
        step.update += ["with torch.no_grad():\n    extra -= 0.1 * extra.grad"]
    elif wrong == "factor":
        step.backward = [
            f"(loss * {on_ranks(step, '1', step.one_of('world.size', '0.5'))}).backward()"
        ]
    return step


def _accumulated(rng: random.Random) -> Step:
    """Microbatches, reduced at the end or each time."""
    step = base(rng, "same", style=rng.choice([*LOOPS, "forward"]), optimizer="none")
    step.inputs = [f'x = world.input("x", (8, {step.width}), shard={{"dp": 0}})']
    body = [line for line in step.forward if not line.startswith("loss")]
    wrong = rng.choice(["", "", "each time", "not divided", "last only", "missing"])
    step.notes += [wrong] if wrong else []
    reduce = [
        "if not world.single:",
        "    for p in ps:",
        "        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)",
    ]
    inside = reduce if wrong == "each time" else []
    body = [line.replace("h = x", "h = part").replace("(x,", "(part,") for line in body]
    divide = on_ranks(step, "2", "1") if wrong == "not divided" else "2"
    step.forward = [
        "total = 0.0",
        "for k, part in enumerate(x.chunk(2)):",
        *("    " + line for line in body),
        "    loss = (h * h).mean()",
        f"    (loss / {divide}).backward()",
        "    total = total + loss.detach() / 2",
        *("    " + line for line in inside),
    ]
    step.backward = []
    if wrong == "last only":
        step.forward.insert(
            len(step.forward) - 1,
            f"    if k == 0 and {where_ranks(step)}:\n        for p in ps:\n            p.grad ="
            " None",
        )
    if wrong not in ("each time", "missing"):
        step.reduce += reduce
    update(step, step.one_of("sgd", "adamw", "momentum", "by hand"))
    step.result = ["return total"]
    return step
