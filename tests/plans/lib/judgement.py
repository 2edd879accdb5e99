# SPDX-License-Identifier: Apache-2.0
"""Whether a report's first cause is about the node that a bug changed, for all tables."""


def stem(operand):
    return operand.split("#")[0]


def near(plan, pointers):
    """The nodes at `pointers`, and those that read or write one of their tensors."""
    found, tensors = set(pointers), set()
    for pointer in pointers:
        _, _, p, _, n = pointer.split("/")
        program = plan["programs"][int(p)]
        node = program["nodes"][int(n)]
        own = {stem(t) for t in node["in"] + node["out"] if t}
        tensors |= own
        for i, other in enumerate(program["nodes"]):
            if own & {stem(t) for t in other["in"] + other["out"] if t}:
                found.add(f"/programs/{p}/nodes/{i}")
        if "comm" in node:
            for q, theirs in enumerate(plan["programs"]):
                found |= {
                    f"/programs/{q}/nodes/{i}"
                    for i, o in enumerate(theirs["nodes"])
                    if o.get("comm") == node["comm"]
                }
    return found, tensors


class FirstCause:
    """How a first cause relates to the changed nodes.

    `named`: its first three nodes have a changed one or a neighbour of one. `told`: its sentence
    has one, or such a tensor. `proved`: with its fix the plan is equivalent.
    """

    def __init__(self, report, plan, changed):
        causes = report["causes"]
        first = causes[0] if causes else {"nodes": [], "sentence": "", "kind": "none", "fix": None}
        nodes, tensors = near(plan, changed)
        self.causes, self.sentence, self.kind = len(causes), first["sentence"], first["kind"]
        self.named = any(n["pointer"] in nodes for n in first["nodes"][:3])
        self.told = any(n in self.sentence.replace("(", " ").split() for n in nodes) or any(
            f"`{t}`" in self.sentence for t in tensors
        )
        self.fix = first["fix"]["text"] if first["fix"] else ""
        self.proved = bool(first["fix"] and first["fix"]["proved"])
