# SPDX-License-Identifier: Apache-2.0
"""Orders of layers: which module of several alike does which part of the work."""

from __future__ import annotations

import random

from .steps import CALLS, LOOPS, Step, apply, base, network, on_ranks, update


def make(rng: random.Random) -> Step:
    kind = rng.choice(["order", "order", "order", "networks", "pipeline", "groups"])
    return {"order": _order, "networks": _networks, "pipeline": _pipeline, "groups": _groups}[kind](
        rng
    )


def _other(rng: random.Random, n: int) -> list[int]:
    order = list(range(n))
    rng.shuffle(order)
    return order


def _order(rng: random.Random) -> Step:
    share = rng.choice(["same", "dp", "ddp", "fsdp"])
    made = base(rng, share, order="ORDER")
    n = made.depth
    right, wrong = list(range(n)), list(range(n))
    if made.sometimes(0.3):
        rng.shuffle(right)
        wrong = list(right)
    if made.sometimes(0.65):
        wrong = _other(rng, n)
        made.notes.append("order")
    text = (
        on_ranks(made, str(right), str(wrong))
        if wrong != right or made.sometimes(0.5)
        else str(right)
    )
    made.forward = [line.replace("ORDER", text) for line in made.forward]
    return made


def _networks(rng: random.Random) -> Step:
    """Two networks called by hand, one of which is trained or both."""
    step = Step(rng, {"dp": 2}, width=4)
    new = "nn.Linear(4, 4)" if step.sometimes(0.6) else "nn.Sequential(nn.Linear(4, 4))"
    layer = "" if "Sequential" not in new else "[0]"
    step.build += [
        f"g = {new}",
        f"d = {new}",
        *(f'watch("{v}.{k}", {v}{layer}, "{k}")' for v in "gd" for k in ("weight", "bias")),
    ]
    wrong = step.sometimes(0.6)
    pair = on_ranks(step, "(g, d)", "(d, g)") if wrong else "(g, d)"
    step.notes += ["networks swapped"] if wrong else []
    step.inputs.append('x = world.input("x", (8, 4))')
    step.build.append(f"a, b = {pair}")
    teacher = step.sometimes(0.4)
    if teacher:
        step.forward += ["with torch.no_grad():", "    t = b(x)", "loss = F.mse_loss(a(x), t)"]
    else:
        step.forward += ["loss = (b(torch.tanh(a(x))) ** 2).mean()"]
    step.backward = ["loss.backward()"]
    trained = step.one_of(
        "[*g.parameters()]", "[*a.parameters()]", "[*a.parameters(), *b.parameters()]"
    )
    if teacher:
        trained = "[*a.parameters()]"
    elif trained == "[*g.parameters()]":
        pass
    update(step, step.one_of("sgd", "adamw", "none"), parameters=trained)
    if step.sometimes(0.3):
        swapped = step.sometimes(0.5)
        copies = (
            on_ranks(step, "[(ea, g), (eb, d)]", "[(ea, d), (eb, g)]")
            if swapped
            else "[(ea, g), (eb, d)]"
        )
        step.build += [
            f"ea, eb = {new}, {new}",
            *(
                f'watch("{v}.{k}", {v}{layer}, "{k}")'
                for v in ("ea", "eb")
                for k in ("weight", "bias")
            ),
        ]
        step.after += [
            "with torch.no_grad():",
            f"    for e, m in {copies}:",
            "        for p, q in zip(e.parameters(), m.parameters()):",
            "            p.mul_(0.9).add_(q, alpha=0.1)",
        ]
        step.notes += ["averages swapped"] if swapped else []
    return step


def _pipeline(rng: random.Random) -> Step:
    """Two stages, one layer each, messages by hand."""
    step = Step(rng, {"pp": 2}, width=4, depth=2)
    network(step, step.one_of("module list", "list", "sequential", "variables", "parameters"))
    wrong = step.sometimes(0.5)
    step.notes += ["stages swapped"] if wrong else []
    mine = "1 - world.rank" if wrong else "world.rank"
    step.inputs.append('x = world.input("x", (8, 4))')
    if "ps" in step.parameters and step.build[-1].startswith("ps"):
        step.build.pop()
    # Each rank has its own stage; what else its objects hold nobody trains.
    step.build = [
        (
            f"if world.single or k == {i}:\n    {line}"
            if line.startswith(f'watch("{kind}{i}"')
            else line
        )
        for line in step.build
        for kind, i in [(line[7:8], line[8:9])]
    ]
    step.build.insert(0, f"k = {mine}")
    step.build += [
        "own = m if world.single else [m[k]]",
        "ps = [p for l in own for p in (l.parameters() if isinstance(l, nn.Module) else [l])]",
    ]
    update(step, step.one_of("sgd", "adamw", "none"))
    scale = step.one_of("", "", " * 2")
    if scale:
        step.notes.append("gradient scaled")
    step.forward += [
        "if world.single:",
        f"    h = torch.tanh({apply(step, '0', 'x')})",
        f"    loss = ({apply(step, '1')} ** 2).mean()",
        "    loss.backward()",
        "elif world.rank == 0:",
        f"    h = torch.tanh({apply(step, 'k', 'x')})",
        "    dist.send(h.detach(), 1)",
        "    g = torch.empty_like(h)",
        "    dist.recv(g, 1)",
        "    h.backward(g)",
        "    loss = None",
        "else:",
        "    h = torch.empty(8, 4)",
        "    dist.recv(h, 0)",
        "    h.requires_grad_()",
        f"    loss = ({apply(step, 'k')} ** 2).mean()",
        "    loss.backward()",
        f"    dist.send(h.grad{scale}, 0)",
    ]
    return step


def _groups(rng: random.Random) -> Step:
    """Groups of an optimizer: which layer has which learning rate."""
    made = base(
        rng, rng.choice(["same", "dp"]), style=rng.choice([*LOOPS, *CALLS]), optimizer="none"
    )
    wrong = made.sometimes(0.6)
    pair = (
        on_ranks(made, "(ps[:1], ps[1:2])", "(ps[1:2], ps[:1])") if wrong else "(ps[:1], ps[1:2])"
    )
    made.notes += ["groups swapped"] if wrong else []
    made.build += [
        f"one, two = {pair}",
        'o = torch.optim.SGD([{"params": one, "lr": 0.1}, {"params": two, "lr": 0.3}])',
        "watch.optimizer(o)",
    ]
    made.update = ["o.step()"]
    return made
