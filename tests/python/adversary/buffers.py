# SPDX-License-Identifier: Apache-2.0
"""Buffers: statistics, counts and averages of modules that are called, and of others."""

from __future__ import annotations

import random

from .steps import Step, loss, on_ranks, reduction, update, where_ranks


def make(rng: random.Random) -> Step:
    step = Step(rng, {"dp": 2}, width=4)
    step.share = rng.choice(["same", "dp", "dp", "ddp"])
    cut = "" if step.share == "same" else ', shard={"dp": 0}'
    called = step.share == "ddp" or step.sometimes(0.5)
    kind = rng.choice(["average", "average", "count", "rows", "last", "largest", "norm", "queue"])
    inside = step.sometimes(0.6) or step.share == "ddp"
    wrong = rng.choice(["", "", "factor", "local", "one rank", "never", "train"])
    step.notes += [kind, *([wrong] if wrong else [])]
    dtype = ", dtype=torch.long" if kind in ("count", "rows") else ""
    shape = {"count": "()", "rows": "()", "queue": "(8, 4)"}.get(kind, "(4,)")
    zeros = rng.choice(["zeros", "ones"])
    init = f"torch.{zeros}({shape}{dtype})"
    # A count that is not saved is no result: where it holds a constant it is not compared.
    persistent = "" if dtype or step.sometimes(0.8) else ", persistent=False"
    # What the ranks' statistics are of the whole batch.
    reduce = (
        ""
        if step.share == "same" or wrong == "local"
        else "if not s.single:\n    dist.all_reduce(v)\n    v = v / 2\n"
    )
    factor = (
        on_ranks(step, "0.9", "0.8").replace("world.", "s.world.") if wrong == "factor" else "0.9"
    )
    rate = "1"
    if wrong == "factor" and kind in ("count", "rows", "last", "largest", "norm", "queue"):
        rate = on_ranks(step, "1", "2").replace("world.", "s.world.")
    of_all = " * (1 if s.single else 2)" if step.share != "same" and wrong != "local" else ""
    change = {
        "average": f"v = y.detach().mean(0)\n{reduce}s.seen.mul_({factor}).add_(v, alpha=0.1)",
        "count": f"s.seen += {rate}",
        "rows": f"s.seen += y.shape[0] * {rate}{of_all}",
        "last": f"v = y.detach().mean(0)\n{reduce}s.seen.copy_(v * {rate})",
        "largest": (
            f"v = y.detach().mean(0)\n{reduce}s.seen.copy_(torch.maximum(s.seen, v * {rate}))"
        ),
        "norm": f"v = (y.detach() ** 2).mean(0)\n{reduce}s.seen = s.seen * 0.9 + v * 0.1 * {rate}",
        "queue": f"s.seen[:y.shape[0]] = y.detach() * {rate}",
    }[kind]
    if wrong == "never":
        change = "if s.single:\n" + "\n".join("    " + line for line in change.split("\n"))
    elif wrong == "one rank":
        change = "if s.single or s.world.rank == 0:\n" + "\n".join(
            "    " + line for line in change.split("\n")
        )
        if "all_reduce" in change:
            change = (
                f"s.seen.mul_({on_ranks(step, '0.9', '0.8').replace('world.', 's.world.')})"
                if not dtype
                else f"s.seen += {on_ranks(step, '1', '2').replace('world.', 's.world.')}"
            )
    normal = step.sometimes(0.25)
    extra = "        s.bn = nn.BatchNorm1d(4)\n" if normal else ""
    through = "s.bn(s.a(x))" if normal else "s.a(x)"
    name = "forward" if called else "run"

    def lines(text: str, deep: int) -> str:
        return "".join("    " * deep + line + "\n" for line in text.rstrip("\n").split("\n"))

    step.classes.append(
        "class Net(nn.Module):\n    def __init__(s, world):\n        super().__init__()\n       "
        f" s.a, s.b = nn.Linear(4, 4), nn.Linear(4, 4)\n{extra}        s.register_buffer('seen',"
        f" {init}{persistent})\n        s.world, s.single = world, world.single\n    def {name}(s,"
        " x):\n        y ="
        f" torch.tanh({through})\n{'        s.note(y)' if inside else '        pass'}\n       "
        " return s.b(y)\n    @torch.no_grad()\n    def note(s, y):\n" + lines(change, 2)
    )
    step.build += [
        "m = Net(world)",
        *(f'watch("{v}.{k}", m.{v}, "{k}")' for v in "ab" for k in ("weight", "bias")),
    ]
    begin = ", begin=False" if kind in ("count", "rows") or persistent else ""
    step.build.append(f'watch("seen", m, "seen"{begin})')
    if normal:
        step.build += [
            f'watch("bn.{k}", m.bn, "{k}"{", begin=False" if k == "num_batches_tracked" else ""})'
            for k in ("weight", "bias", "running_mean", "num_batches_tracked")
        ]
    if wrong == "train":
        step.build.append(f"if {where_ranks(step)}:\n    m.eval()")
    step.build.append("ps = list(m.parameters())")
    step.inputs.append(f'x = world.input("x", (8, 4){cut})')
    if step.share == "ddp":
        step.build.append(
            "f = m if world.single else DDP(m)"
            if step.sometimes(0.5)
            else "f = m if world.single else DDP(m, broadcast_buffers=False)"
        )
        step.forward.append("h = f(x)")
    else:
        step.forward.append(f"h = m{'' if called else '.run'}(x)")
    if not inside:
        step.forward.append("m.note(h)")
    loss(step, cut)
    step.backward = ["loss.backward()"]
    if step.share == "dp":
        reduction(step, rng.choice(["average", "sum", "flat"]))
    update(step, rng.choice(["sgd", "none", "adamw"]))
    return step
