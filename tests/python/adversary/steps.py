# SPDX-License-Identifier: Apache-2.0
"""A random training step as source text: a network, how ranks share its work, a loss, an optimizer.

A `Step` has slots of source lines; a class of mistakes changes some of them. Without a mistake the
ranks compute what one device does.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

HEAD = """\
import collections, contextlib, copy, dataclasses, math, random
import torch, torch.distributed as dist, torch.distributed.nn.functional as df
import torch.nn as nn, torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
"""


@dataclasses.dataclass
class Step:
    """The parts of a step, in the order in which they run."""

    rng: random.Random
    mesh: dict[str, int]
    classes: list[str] = dataclasses.field(default_factory=list)  # definitions before the step
    seeds: list[str] = dataclasses.field(default_factory=list)
    build: list[str] = dataclasses.field(default_factory=list)
    inputs: list[str] = dataclasses.field(default_factory=list)
    forward: list[str] = dataclasses.field(default_factory=list)
    backward: list[str] = dataclasses.field(default_factory=list)
    reduce: list[str] = dataclasses.field(default_factory=list)
    update: list[str] = dataclasses.field(default_factory=list)
    after: list[str] = dataclasses.field(default_factory=list)
    result: list[str] = dataclasses.field(default_factory=lambda: ["return loss"])
    parameters: str = "ps"  # a list of them, in the step's text
    width: int = 4
    depth: int = 2
    style: str = ""
    share: str = ""  # how ranks share the work
    x: str = "x"  # what goes into the network
    scale: str = ""  # a parameter beside the layers
    notes: list[str] = dataclasses.field(default_factory=list)

    def text(self) -> str:
        lines = [
            line
            for slot in (
                self.seeds,
                self.build,
                self.inputs,
                self.forward,
                self.backward,
                self.reduce,
                self.update,
                self.after,
                self.result,
            )
            for line in slot
        ]
        return "\n".join([HEAD, *self.classes, "def step(world):", *indented(lines), ""])

    def one_of(self, *choices: str) -> str:
        return self.rng.choice(choices)

    def sometimes(self, chance: float) -> bool:
        return self.rng.random() < chance


def indented(lines: Sequence[str]) -> list[str]:
    return ["    " + part for line in lines for part in line.split("\n")]


def on_ranks(step: Step, right: str, wrong: str) -> str:
    """An expression that is another one on all ranks, or on one."""
    if step.sometimes(0.75):
        return f"({right} if world.single else {wrong})"
    return f"({wrong} if not world.single and world.rank == {step.rng.choice([0, 1])} else {right})"


def where_ranks(step: Step) -> str:
    """A condition that holds on all ranks, or on one; not on one device."""
    return (
        "not world.single"
        if step.sometimes(0.75)
        else f"not world.single and world.rank == {step.rng.choice([0, 1])}"
    )


# ---- networks: every layer has the same shape, so that they can be taken for each other ----
LOOPS = (
    "sequential",
    "module list",
    "module dict",
    "list",
    "variables",
    "parameters",
    "parameter dict",
    "parameter list",
    "functional",
    "leaves",
    "blocks",
    "one layer method",
)
CALLS = ("forward", "method", "forward by name")
MODULES = ("sequential", "module list", "module dict", "list", "variables", "blocks")


def network(step: Step, style: str, scale: bool = False) -> None:
    """Builds it, and says what the judge compares. scale: a parameter beside the layers."""
    d, n = step.width, step.depth
    bias = step.sometimes(0.5)
    linear = f"nn.Linear({d}, {d}, bias={bias})"
    step.style = style
    names: list[str] = []  # arguments of watch

    def of_layers(layer: str) -> None:
        for i in range(n):
            names.append(f'"w{i}", {layer.format(i=i)}, "weight"')
            if bias:
                names.append(f'"b{i}", {layer.format(i=i)}, "bias"')

    b = step.build
    if style == "sequential":
        b.append(f"m = nn.Sequential(*[{linear} for _ in range({n})])")
        of_layers("m[{i}]")
    elif style in ("module list", "functional"):
        b.append(f"m = nn.ModuleList([{linear} for _ in range({n})])")
        of_layers("m[{i}]")
    elif style == "module dict":
        b.append(f'm = nn.ModuleDict({{k: {linear} for k in "abcd"[:{n}]}})')
        of_layers('m["abcd"[{i}]]')
    elif style == "list":
        b.append(f"m = [{linear} for _ in range({n})]")
        of_layers("m[{i}]")
    elif style == "variables":
        variables = [f"l{i}" for i in range(n)]
        b += [f"{v} = {linear}" for v in variables]
        b.append(f"m = ({', '.join(variables)},)")
        of_layers("m[{i}]")
    elif style in ("parameters", "leaves", "parameter dict", "parameter list"):
        new = (
            f"nn.Parameter(torch.randn({d}, {d}))"
            if style != "leaves"
            else f"torch.randn({d}, {d}, requires_grad=True)"
        )
        if style == "parameter dict":
            b.append(f"m = {{i: {new} for i in range({n})}}")
        elif style == "parameter list":
            b.append(f"m = nn.ParameterList([{new} for _ in range({n})])")
        else:
            b.append(f"m = [{new} for _ in range({n})]")
        names += [f'"w{i}", m[{i}]' for i in range(n)]
    elif style == "blocks":
        step.classes.append(
            "class Block(nn.Module):\n    def __init__(s):\n        super().__init__()\n       "
            f" s.l = {linear}\n        s.gain = nn.Parameter(torch.ones({d}))\n    def forward(s,"
            " h):\n        return s.l(h) * s.gain\n"
        )
        b.append(f"m = nn.ModuleList([Block() for _ in range({n})])")
        of_layers("m[{i}].l")
        names += [f'"g{i}", m[{i}], "gain"' for i in range(n)]
    else:
        call = "run" if style == "method" else "forward"
        body = (
            "        for i in order:\n            h = torch.tanh(s.layers[i](h))\n        return h"
            " * s.scale\n"
        )
        if style == "one layer method":
            method = "    def layer(s, i, h):\n        return s.layers[i](h)\n"
        else:
            method = f"    def {call}(s, h, order):\n{body}"
        step.classes.append(
            "class Net(nn.Module):\n    def __init__(s):\n        super().__init__()\n"
            f"        s.layers = nn.ModuleList([{linear} for _ in range({n})])\n"
            f"        s.scale = nn.Parameter(torch.ones({d}))\n{method}"
        )
        b.append("m = Net()")
        of_layers("m.layers[{i}]")
        names.append('"scale", m, "scale"')
        scale = style == "one layer method"
    if scale and style != "one layer method":
        b.append(f"scale = nn.Parameter(torch.ones({d}))")
        names.append('"scale", scale')
    b += [f"watch({name})" for name in names]
    ps = {
        "list": "[p for l in m for p in l.parameters()]",
        "variables": "[p for l in m for p in l.parameters()]",
        "parameters": "list(m)",
        "leaves": "list(m)",
        "parameter dict": "list(m.values())",
    }.get(style, "list(m.parameters())")
    b.append(f"ps = {ps}" + (" + [scale]" if scale and style != "one layer method" else ""))
    step.scale = ("m.scale" if style == "one layer method" else "scale") if scale else ""


def apply(step: Step, layer: str = "i", h: str = "h") -> str:
    """The call of one layer."""
    return {
        "sequential": f"m[{layer}]({h})",
        "module list": f"m[{layer}]({h})",
        "module dict": f'm["abcd"[{layer}]]({h})',
        "list": f"m[{layer}]({h})",
        "variables": f"m[{layer}]({h})",
        "blocks": f"m[{layer}]({h})",
        "functional": f"F.linear({h}, m[{layer}].weight, m[{layer}].bias)",
        "one layer method": f"m.layer({layer}, {h})",
    }.get(step.style, f"{h} @ m[{layer}]")


def run_network(step: Step, order: str | None = None, wrapped: bool = False) -> list[str]:
    """Lines that make `h` of the input. order: an expression."""
    order = order or f"range({step.depth})"
    if step.style == "forward":
        return [f"h = {'f' if wrapped else 'm'}({step.x}, {order})"]
    if step.style == "forward by name":
        return [f"h = m.forward({step.x}, {order})"]
    if step.style == "method":
        return [f"h = m.run({step.x}, {order})"]
    lines = [f"h = {step.x}", f"for i in {order}:", f"    h = torch.tanh({apply(step)})"]
    if step.scale:
        lines.append(f"h = h * {step.scale}")
    return lines


# ---- how ranks share the work ----
REDUCTIONS = ("average", "sum", "flat", "scaled loss", "hooks", "gathered")


def reduction(
    step: Step, kind: str, parameters: str = "ps", group: str = "", count: str = "world.size"
) -> None:
    """Gradients over the ranks that have parts of the batch."""
    g = f", group={group}" if group else ""
    loop = f"    for p in {parameters}:"
    if kind == "average":
        step.reduce += [
            "if not world.single:",
            loop,
            f"        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG{g})",
        ]
    elif kind == "sum":
        step.reduce += [
            "if not world.single:",
            loop,
            f"        dist.all_reduce(p.grad{g})",
            f"        p.grad /= {count}",
        ]
    elif kind == "flat":
        step.reduce += [
            "if not world.single:",
            f"    flat = torch.cat([p.grad.flatten() for p in {parameters}])",
            f"    dist.all_reduce(flat{g})",
            "    at = 0",
            loop,
            f"        p.grad.copy_(flat[at:at + p.numel()].view_as(p) / {count})",
            "        at += p.numel()",
        ]
    elif kind == "scaled loss":
        step.backward = [f"(loss / {count}).backward()"]
        step.reduce += ["if not world.single:", loop, f"        dist.all_reduce(p.grad{g})"]
    elif kind == "hooks":
        step.build += [
            "if not world.single:",
            loop,
            (
                "        p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad,"
                f" op=dist.ReduceOp.AVG{g}))"
            ),
        ]
    else:
        step.reduce += [
            "if not world.single:",
            loop,
            f"        parts = [torch.empty_like(p.grad) for _ in range({count})]",
            f"        dist.all_gather(parts, p.grad.contiguous(){g})",
            f"        p.grad = sum(parts) / {count}",
        ]


UPDATES = ("sgd", "momentum", "adam", "adamw", "by hand", "data", "foreach", "none", "groups")


def update(
    step: Step,
    kind: str,
    lr: str = "0.1",
    parameters: str = "ps",
    decay: str = "0.01",
    extra: str = "",
) -> None:
    """The optimizer; its settings are expressions. extra: more arguments."""
    made = {
        "sgd": f"torch.optim.SGD({parameters}, lr={lr}{extra})",
        "momentum": (
            f"torch.optim.SGD({parameters}, lr={lr}, momentum=0.9, weight_decay={decay}{extra})"
        ),
        "adam": f"torch.optim.Adam({parameters}, lr={lr}, weight_decay={decay}{extra})",
        "adamw": f"torch.optim.AdamW({parameters}, lr={lr}, weight_decay={decay}{extra})",
        "groups": (
            f'torch.optim.SGD([{{"params": {parameters}[:1], "lr": {lr}}}, {{"params":'
            f' {parameters}[1:], "lr": 0.2}}], lr=0.1, momentum=0.9{extra})'
        ),
    }.get(kind)
    if made:
        step.build += [f"o = {made}", "watch.optimizer(o)"]
        step.update = ["o.step()"]
    elif kind == "by hand":
        step.update = [
            "with torch.no_grad():",
            f"    for p in {parameters}:",
            f"        p -= {lr} * p.grad",
        ]
    elif kind == "data":
        step.update = [f"for p in {parameters}:", f"    p.data.sub_({lr} * p.grad)"]
    elif kind == "foreach":
        step.update = [
            "with torch.no_grad():",
            f"    torch._foreach_add_({parameters}, [p.grad for p in {parameters}], alpha=-{lr})",
        ]


def loss(step: Step, cut: str) -> None:
    kind = step.one_of("squares", "mse", "cross entropy", "l1")
    d = step.width
    if kind == "mse":
        step.inputs.append(f'y = world.input("y", (8, {d}){cut})')
        step.forward.append("loss = F.mse_loss(h, y)")
    elif kind == "cross entropy":
        step.inputs.append(f'y = world.input("classes", (8,), torch.int64, high={d}{cut})')
        step.forward.append(
            "loss = F.nll_loss(F.log_softmax(h, -1), y, reduction='sum') / h.shape[0]"
        )
    elif kind == "l1":
        step.forward.append("loss = (h * h * h).mean()")
    else:
        step.forward.append("loss = (h * h).mean()")


def base(
    rng: random.Random,
    share: str = "",
    style: str = "",
    optimizer: str = "",
    order: str | None = None,
    **settings: str,
) -> Step:
    """A right step. order, settings: expressions, of the network's and the optimizer's."""
    share = share or rng.choice(["same", "dp", "dp", "dp", "ddp", "fsdp"])
    step = Step(rng, {"dp": 2}, width=rng.choice([4, 6]), depth=rng.choice([2, 2, 3]))
    step.share = share
    if not style:
        style = {"ddp": "forward", "fsdp": rng.choice(MODULES)}.get(share) or rng.choice(
            (*LOOPS, *CALLS)
        )
    network(step, style, scale=share in ("same", "dp") and step.sometimes(0.3))
    cut = "" if share == "same" else ', shard={"dp": 0}'
    if share == "fsdp":
        step.build += [
            "for l in (m.values() if isinstance(m, nn.ModuleDict) else m):",
            '    fully_shard(l, mesh=world.mesh("dp"))',
        ]
        step.build.append(
            "ps = "
            + (
                "[p for l in m for p in l.parameters()]"
                if style in ("list", "variables")
                else "list(m.parameters())"
            )
        )
    if share == "ddp":
        step.build.append("f = m if world.single else DDP(m)")
    step.inputs.append(f'x = world.input("x", (8, {step.width}){cut})')
    step.forward += run_network(step, order, wrapped=share == "ddp")
    loss(step, cut)
    step.backward = ["loss.backward()"]
    if share == "dp":
        reduction(step, rng.choice(REDUCTIONS))
    kind = optimizer or rng.choice(UPDATES)
    if share == "fsdp" and kind in ("data", "foreach", "by hand"):
        kind = "sgd"
    update(step, kind, **settings)
    return step
