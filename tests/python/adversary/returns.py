# SPDX-License-Identifier: Apache-2.0
"""What a step returns, in all kinds of Python objects."""

from __future__ import annotations

import random

from .steps import Step, base, on_ranks, where_ranks

# (expression of the step's values, whether it is right where the batch is cut)
_VALUES = (
    ("loss", True),
    ("loss.detach()", True),
    ("loss.item()", True),
    ("float(loss)", True),
    ("loss.detach().numpy()", True),
    ("loss.tolist()", True),
    ("h.detach().sum()", False),
    ("h.detach().sum().item()", False),
    ("h.detach()", True),
    ("h.shape[0]", False),
    ("len(h)", False),
    ("float(world.size)", False),
    ("f'{loss.item():.3f}'", False),
    ("str(h.detach().sum().item())", False),
    ("(h > 0).sum()", False),
    ("(h > 0).sum().item()", False),
    ("int((h > 0).sum())", False),
    ("loss.exp()", False),
    ("h.detach().mean(0)", False),
    ("h.detach().max()", False),
    ("h.argmax(-1)", True),
    ("'done'", True),
    ("7", True),
    ("True", True),
    ("None", True),
    ("ps[0].detach().clone()", True),
    ("ps[0].detach().norm()", True),
    ("ps[0].detach().norm().item()", True),
    ("bool(loss > 0.5)", False),
    ("torch.tensor(h.shape[0])", False),
    ("h.dtype.is_floating_point", True),
    ("h.detach().sum(0)", False),
    ("[v.item() for v in h.detach().flatten()[:2]]", False),
    ("h.detach().mean()", True),
    ("loss.detach() * 1", True),
)
_HOLDERS = (
    "{a}",
    "({a}, {b})",
    "[{a}, {b}]",
    "{{'a': {a}, 'b': {b}}}",
    "Pair({a}, {b})",
    "Named({a}, {b})",
    "held({a}, {b})",
    "iter([{a}, {b}])",
    "(v for v in [{a}, {b}])",
    "collections.UserDict(a={a}, b={b})",
    "collections.UserList([{a}, {b}])",
    "collections.OrderedDict(a={a}, b={b})",
    "{{'a': [{a}, ({b},)]}}",
    "collections.deque([{a}, {b}])",
    "{{{a}}}",
    "Pair({a}, [Pair({b}, None)])",
    "types.SimpleNamespace(a={a}, b={b})",
    "map(lambda v: v, [{a}, {b}])",
    "Module({a}, {b})",
    "zip([{a}], [{b}])",
    "{{1: {a}, (2, 3): {b}}}",
    "frozenset([{a}])",
)
_CLASSES = [
    "import types\n",
    "@dataclasses.dataclass\nclass Pair:\n    a: object\n    b: object\n",
    "Named = collections.namedtuple('Named', 'a b')\n",
    "class Held:\n    pass\n\ndef held(a, b):\n    h = Held()\n    h.a, h.b = a, b\n    return h\n",
    (
        "class Module(collections.abc.Mapping):\n    def __init__(s, a, b):\n        s.d = {'a': a,"
        " 'b': b}\n    def __getitem__(s, k):\n        return s.d[k]\n    def __iter__(s):\n       "
        " return iter(s.d)\n    def __len__(s):\n        return 2\n"
    ),
]


def make(rng: random.Random) -> Step:
    step = base(
        rng, rng.choice(["same", "dp", "dp", "ddp"]), optimizer=rng.choice(["none", "sgd", "none"])
    )
    step.classes += _CLASSES
    holder = rng.choice(_HOLDERS)
    values = [rng.choice(_VALUES)[0] for _ in "ab"]
    if rng.random() < 0.4:
        values = [rng.choice([v for v, right in _VALUES if right]) for _ in "ab"]
    wrong = rng.choice(["", "", "", "factor", "swapped", "none", "added", "constant", "type"])
    step.notes += [wrong] if wrong else []
    if wrong == "factor" and values[0] not in ("None", "'done'", "True"):
        values[0] = on_ranks(step, values[0], f"2 * ({values[0]})")
    elif wrong == "none":
        values[1] = (
            on_ranks(step, values[1], "None")
            if step.sometimes(0.5)
            else on_ranks(step, "None", values[1])
        )
    elif wrong == "constant":
        values[1] = on_ranks(step, "1.0", "2.0")
    elif wrong == "type":
        values[1] = on_ranks(step, "loss.detach()", "loss.item()")
    made = holder.format(a=values[0], b=values[1])
    if wrong == "swapped" and "{b}" in holder:
        made = on_ranks(step, made, holder.format(a=values[1], b=values[0]))
    elif wrong == "added":
        made = on_ranks(step, made, f"({made}, loss.detach() * 3)")
    if step.sometimes(0.1):
        step.after.append(
            f"if {where_ranks(step)}:\n    loss = loss.detach() * {step.one_of('2', '1')}"
        )
    step.result = [f"return {made}"]
    return step
