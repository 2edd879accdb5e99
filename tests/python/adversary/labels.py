# SPDX-License-Identifier: Apache-2.0
"""Losses over labels, of which some do not count."""

from __future__ import annotations

import random

from .steps import CALLS, LOOPS, Step, base, on_ranks, reduction, run_network, update


def make(rng: random.Random) -> Step:
    share = rng.choice(["same", "dp", "dp", "dp", "ddp"])
    step = base(
        rng, share, style="" if share == "ddp" else rng.choice([*LOOPS, *CALLS]), optimizer="none"
    )
    cut = "" if share == "same" else ', shard={"dp": 0}'
    d = step.width
    order = rng.choice(["", "", "3", "0"])
    ignored = order or "-100"  # of the default the labels' name tells the judge that there are such
    name = "target" if order else "labels"
    sequence = step.sometimes(0.3)
    shape = "(8, 3)" if sequence else "(8,)"
    if sequence:
        step.inputs = [f'x = world.input("x", (8, 3, {d}){cut})']
    else:
        step.inputs = [f'x = world.input("x", (8, {d}){cut})']
    # `high` would promise that all labels are classes, where nothing names the default -100.
    high = f", high={d}" if order else ""
    step.inputs.append(f'y = world.input("{name}", {shape}, torch.int64{high}{cut})')
    step.forward = run_network(step, wrapped=share == "ddp")
    logits, labels = ("h.flatten(0, 1)", "y.flatten()") if sequence else ("h", "y")
    argument = f", ignore_index={order}" if order else step.one_of("", "", ", ignore_index=-100")
    step.forward.append(f"logits, labels = {logits}, {labels}")
    step.reduce, step.backward = [], ["loss.backward()"]
    step.build = [line for line in step.build if "post_accumulate" not in line]
    while step.build and step.build[-1] in ("if not world.single:", "    for p in ps:"):
        step.build.pop()
    kind = rng.choice(
        [
            "mean",
            "mean",
            "counted",
            "sum",
            "local count",
            "masked",
            "selected",
            "every",
            "smoothed",
            "replaced",
            "shifted",
        ]
    )
    step.notes.append(kind)
    count = f"(labels != {ignored}).sum()"
    summed = f"F.cross_entropy(logits, labels, reduction='sum'{argument})"
    average = True
    if kind == "mean":
        mean = step.one_of(
            f"F.cross_entropy(logits, labels{argument})",
            f"F.nll_loss(logits.log_softmax(-1), labels{argument})",
        )
        step.forward.append(f"loss = {mean}")
    elif kind == "smoothed":
        step.forward.append(
            f"loss = F.cross_entropy(logits, labels, label_smoothing=0.1{argument})"
        )
    elif kind == "counted":  # right: the count of all ranks
        wrong = step.sometimes(0.3)
        step.forward += [
            f"n = {count}.to(logits.dtype)",
            *(
                []
                if wrong or share == "same"
                else ["if not world.single:", "    dist.all_reduce(n)"]
            ),
            f"loss = {summed} / n",
        ]
        average = wrong or step.sometimes(0.3) or share == "same"
        if not average:  # sums of parts
            step.result = [
                "l = loss.detach().clone()",
                *([] if share == "same" else ["if not world.single:", "    dist.all_reduce(l)"]),
                "return l",
            ]
    elif kind == "sum":
        step.forward.append(f"loss = {summed} / {step.one_of('labels.numel()', '8')}")
    elif kind == "local count":
        step.forward.append(f"loss = {summed} / {count}.clamp(min=1)")
    elif kind == "masked":
        step.forward += [
            f"each = F.cross_entropy(logits, labels, reduction='none'{argument})",
            f"mask = (labels != {ignored}).to(each.dtype)",
            step.one_of("loss = (each * mask).sum() / mask.sum()", "loss = (each * mask).mean()"),
        ]
    elif kind == "selected":
        step.forward.append(
            "loss = (F.cross_entropy(logits, labels,"
            f" reduction='none'{argument})).{step.one_of('mean()', 'sum() / 8')}"
        )
    elif kind == "every":
        step.forward.append(
            "loss = F.cross_entropy(logits,"
            f" labels.clamp(min=0){', ignore_index=-1' if not order else ''})"
        )
    elif kind == "replaced":
        step.forward += [
            f"labels = torch.where(labels == 1, {ignored}, labels)",
            f"loss = F.cross_entropy(logits, labels{argument})",
        ]
    else:
        step.forward += [
            (
                "labels = F.pad(labels, (0, 1), value=-100)[1:]"
                if not order
                else "labels = labels.roll(1)"
            ),
            f"loss = F.cross_entropy(logits, labels{argument})",
        ]
    if step.sometimes(0.15):
        step.notes.append("other class left out")
        old = [
            line
            for line in step.forward
            if "ignore_index" in line or "F.cross_entropy(logits, labels)" in line
        ]
        for line in old:
            changed = line.replace(", ignore_index=3", ", ignore_index=1").replace(
                ", ignore_index=0", ", ignore_index=1"
            )
            if changed != line:
                at = step.forward.index(line)
                target = "loss" if line.startswith("loss") else "each"
                right, other = (t.split(" = ", 1)[1] for t in (line, changed))
                step.forward[at] = f"{target} = {on_ranks(step, right, other)}"
    if share == "dp":
        if average:
            reduction(step, rng.choice(["average", "sum", "flat", "gathered"]))
        else:
            step.reduce += [
                "if not world.single:",
                "    for p in ps:",
                "        dist.all_reduce(p.grad)",
            ]
    elif share == "ddp" and not average:
        step.backward = ["(loss * world.size).backward()"]
    update(step, rng.choice(["sgd", "adamw", "none", "by hand"]))
    return step
