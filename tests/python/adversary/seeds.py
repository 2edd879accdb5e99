# SPDX-License-Identifier: Apache-2.0
"""Seeds, random numbers in and before the step, and initial values.

Ranks draw whole tensors, as one device does, so that equal seeds give equal numbers. Wrong is what
makes replicas draw other numbers than each other, or numbers that are distributed in another way:
that all ranks draw others than the single device, alike, is none of the step's mistakes.
"""

from __future__ import annotations

import random

from .steps import CALLS, LOOPS, Step, base, on_ranks, where_ranks

_SEEDS = (
    "torch.manual_seed({s})",
    "random.seed({s}); torch.manual_seed(random.randrange(1000))",
    "torch.manual_seed({s}); torch.rand(3)",
    "",
)


def make(rng: random.Random) -> Step:
    begin = rng.random() < 0.4
    if begin:
        return _initial(rng)
    share = rng.choice(["same", "same", "dp"])
    step = base(rng, share, style=rng.choice([*LOOPS, *CALLS]))
    wrong = rng.choice(["", "", "seed", "seed", "extra draw", "distribution", "again"])
    if share == "dp" and wrong in ("seed", "extra draw"):
        wrong = ""
    step.notes += [wrong] if wrong else []
    seed = step.one_of("0", "1234")
    other = step.one_of("{s} + world.rank", "world.rank", "{s} - world.rank").format(s=seed)
    how = rng.choice(_SEEDS) if wrong != "seed" else rng.choice([s for s in _SEEDS if s])
    line = how.format(s=other if wrong == "seed" else seed)
    where = rng.choice(["first", "first", "after build", "after inputs"])
    {"first": step.seeds, "after build": step.build, "after inputs": step.inputs}[where] += (
        [line] if line else []
    )
    if wrong == "extra draw":
        step.inputs.append(
            "if world.rank == 1:\n   "
            f" {step.one_of('torch.rand(3)', 'torch.randn(8, 4)', 'nn.Linear(4, 4)')}"
        )
    d = step.width
    draw = step.one_of(
        f"torch.randn(8, {d})",
        f"torch.rand(8, {d})",
        f"torch.empty(8, {d}).normal_()",
        f"torch.empty(8, {d}).uniform_()",
        f"torch.bernoulli(torch.full((8, {d}), 0.5))",
        f"F.dropout(torch.ones(8, {d}), 0.5)",
        f"torch.randint(0, 5, (8, {d})).to(torch.get_default_dtype())",
    )
    if wrong == "distribution":
        draw = (
            on_ranks(step, f"torch.rand(8, {d})", f"torch.randn(8, {d})")
            if step.sometimes(0.5)
            else f"torch.randn(8, {d}) * {on_ranks(step, '1.0', '2.0')}"
        )
    elif wrong == "again":
        draw = f"(once - torch.rand(8, {d}))"  # which is nothing where the seed is the same again
        first = f"torch.manual_seed({seed})"
        step.inputs += [
            first,
            f"once = torch.rand(8, {d})",
            f"if {where_ranks(step)}:\n    {step.one_of(first, 'pass')}",
        ]
    part = ".chunk(world.size)[world.rank]" if share == "dp" else ""
    noise = [f"noise = ({draw}){part}"]
    kind = step.one_of("input", "input", "output", "between", "permuted")
    if kind == "permuted" and share == "same" and wrong != "again":
        noise = ["order = torch.randperm(8)", "x = x[order][:4]", "noise = 0.0"]
        step.forward = [line for line in step.forward if not line.startswith("loss")] + [
            "loss = (h * h).mean()"
        ]
        step.inputs = [line for line in step.inputs if not line.startswith("y")]
    elif kind == "between":
        step.forward.insert(
            max(i for i, line in enumerate(step.forward) if line.startswith("loss")),
            f"h = h + ({draw}){part}",
        )
        noise = ["noise = 0.0"]
    if kind == "output":
        at = max(i for i, line in enumerate(step.forward) if line.startswith("loss"))
        step.forward[at:at] = [*noise, "h = h + noise"]
    else:
        step.inputs += [*noise, "x = x + noise"]
    if step.sometimes(0.15):  # nothing may be drawn of the state that is left
        step.inputs.append(
            "with torch.random.fork_rng():\n    torch.manual_seed(5)\n    torch.rand(4)"
        )
    return step


def _initial(rng: random.Random) -> Step:
    """The step makes the weights that it begins with."""
    share = rng.choice(["same", "dp", "dp", "ddp"])
    style = rng.choice([*LOOPS, *CALLS]) if share != "ddp" else ""
    step = base(rng, share, style=style)
    step.build = [
        line[:-1] + ", begin=False)" if line.startswith("watch(") else line for line in step.build
    ]
    wrong = rng.choice(["", "", "seed", "seed", "scale", "zeros", "extra draw"])
    step.notes += ["initial", *([wrong] if wrong else [])]
    line = "torch.manual_seed(0)"
    if wrong == "seed":
        line = f"torch.manual_seed({step.one_of('world.rank', '7 + world.rank', '3 * world.rank')})"
    step.seeds.append(line)
    at = next(i for i, text in enumerate(step.build) if text.startswith("ps ="))
    if wrong == "scale":
        step.build.insert(
            at + 1,
            f"if {where_ranks(step)}:\n    with torch.no_grad():\n       "
            f" ps[0].mul_({step.one_of('2', '5', '1')})",
        )
    elif wrong == "zeros":
        step.build.insert(
            at + 1, f"nn.init.{step.one_of('zeros_', 'ones_')}(ps[{on_ranks(step, '0', '-1')}])"
        )
    elif wrong == "extra draw":
        step.seeds.append("if world.rank == 1:\n    torch.rand(4)")
    elif step.sometimes(0.5):  # all have the first rank's
        step.build.insert(
            at + 1, "if not world.single:\n    for p in ps:\n        dist.broadcast(p.data, 0)"
        )
        step.seeds = ["torch.manual_seed(world.rank)"]
    return step
