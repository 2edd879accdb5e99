# SPDX-License-Identifier: Apache-2.0
"""Edits that change nothing of what a plan computes: the verdict must stay "equivalent".

Wrong cut points on a right plan: equivalent as well, with that lineage reported as wrong.
"""

import copy
import math
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import known_defects
from lineage import is_cut_point
from plan_edit import (
    EQUIVALENT,
    LLAMA,
    LLAMA_TP8,
    MOE,
    SLOW,
    UNDECIDED,
    Failure,
    Plan,
    Runner,
    expect_code,
    operands,
    shuffled,
    skip_unless_shared,
    split_axis,
    split_microbatches,
)


def check(runner, plan_name, edit, *arguments):
    plan = Plan(plan_name)
    edit(plan, *arguments)
    result = runner.verify_plan(plan)
    expect_code(result, EQUIVALENT)
    report = result.report
    if report["outputs_proved"] != report["outputs"] or report["defects"]:
        raise Failure("not all outputs are proved: " + result.summary())
    return f"{report['statistics']['stages']} stages, {report['statistics']['classes']} classes"


# ---- names and order ----


def renamed(plan, seed):
    """Every local tensor of every program gets a name of its own, drawn at random."""
    for p, program in enumerate(plan.programs):
        order = shuffled(program["tensors"], seed + p)
        new = {old: f"x{p}_{i}" if seed % 2 else f"p{i:04}" for i, old in enumerate(order)}
        program["tensors"] = {new[t]: program["tensors"][t] for t in order}

        def name(t, new=new):
            if t is None:
                return None
            base, mark, k = t.partition("#")
            return new[base] + mark + k

        for node in program["nodes"]:
            node["in"], node["out"] = [name(t) for t in node["in"]], [name(t) for t in node["out"]]
        for entry in plan.lineage:
            for shard in entry["shards"]:
                for part in shard["parts"]:
                    if all(program["at"].get(a) == c for a, c in part["at"].items()):
                        part.setdefault("renamed", new[part["local"]])
    for entry in plan.lineage:
        for shard in entry["shards"]:
            for part in shard["parts"]:
                part["local"] = part.pop("renamed")


def communications_renamed(plan):
    """Tensors of the report's messages stay; only the ids by which nodes meet change."""
    new = {}
    for program in plan.programs:
        for node in program["nodes"]:
            if "comm" in node:
                node["comm"] = new.setdefault(node["comm"], f"meet{len(new)}")


def sums_turned(plan, seed):
    draw = random.Random(seed)
    for program in plan.programs:
        for node in program["nodes"]:
            if node["op"] == "add" and len(node["in"]) == 2 and draw.random() < 0.7:
                node["in"].reverse()
            if node["op"] == "mul" and len(node["in"]) == 2 and draw.random() < 0.7:
                node["in"].reverse()
            if node["op"] == "multiref_backward" and draw.random() < 0.7:
                draw.shuffle(node["in"])


def lineage_shuffled(plan, seed):
    draw = random.Random(seed)
    draw.shuffle(plan.lineage)
    for entry in plan.lineage:
        draw.shuffle(entry["shards"])
        for shard in entry["shards"]:
            draw.shuffle(shard["parts"])


def programs_shuffled(plan, seed):
    plan.json["programs"] = shuffled(plan.programs, seed)


# ---- detours ----


def fresh_like(plan, p, tensor, node):
    """A tensor for a node's additional result.

    Once per microbatch if the node runs so, also where the operand exists once.
    """
    new = plan.new_tensor(p, tensor)
    if node.get("mb") == "*":
        plan.tensor(p, new)["per_mb"] = True
    return new


def detour(plan, p, node, slot, *operators):
    """Operand `slot` of `node` goes through one-operand operators (name, attrs) first."""
    made, tensor = [], node["in"][slot]
    for op, attrs in operators:
        new = fresh_like(plan, p, tensor, node)
        step = {"op": op, "in": [tensor], "out": [new]}
        if "mb" in node:
            step["mb"] = node["mb"]
        if attrs:
            step["attrs"] = dict(attrs)
        made.append(step)
        tensor = new
    node["in"][slot] = tensor
    plan.insert_before(p, node, *made)


def result_detour(plan, p, node, slot, *operators):
    tensor = node["out"][slot]
    made = []
    for op, attrs in reversed(operators):
        new = fresh_like(plan, p, tensor, node)
        step = {"op": op, "in": [new], "out": [tensor]}
        if "mb" in node:
            step["mb"] = node["mb"]
        if attrs:
            step["attrs"] = dict(attrs)
        made.insert(0, step)
        tensor = new
    node["out"][slot] = tensor
    plan.insert_after(p, node, *made)


def not_real(plan, p):
    """Tensors of indices and of complex numbers.

    The dtype is written where a tensor is given; copies and choices of experts follow from it.
    """
    found = {
        t
        for t, d in plan.programs[p]["tensors"].items()
        if d.get("dtype", "float32").startswith(("int", "complex"))
    }
    for node in plan.programs[p]["nodes"]:
        if node["op"] == "moe_gate":
            found.add(node["out"][1])
        if node["op"] in (
            "multiref",
            "identity",
            "chunk",
            "send",
            "recv",
            "all_gather",
        ) and found & set(operands(node)):
            found.update(node["out"])
    return found


def real_operands(plan, p, node, others):
    return [i for i, t in enumerate(node["in"]) if t and t.split("#")[0] not in others]


def identities(plan, seed, share):
    draw = random.Random(seed)
    for p, program in enumerate(plan.programs):
        others = not_real(plan, p)
        for node in list(program["nodes"]):
            slots = real_operands(plan, p, node, others)
            if slots and draw.random() < share:
                op = draw.choice(["identity", "contiguous", "float", "to"])
                detour(plan, p, node, draw.choice(slots), *[(op, None)] * draw.choice([1, 2]))


def scaled_and_back(plan, seed, share):
    draw = random.Random(seed)
    for p, program in enumerate(plan.programs):
        others = not_real(plan, p)
        for node in list(program["nodes"]):
            slots = real_operands(plan, p, node, others)
            if (
                slots
                and node["op"] not in ("apply_mask", "softmax", "float")
                and draw.random() < share
            ):
                detour(
                    plan,
                    p,
                    node,
                    draw.choice(slots),
                    ("mul", {"scalar": 8}),
                    ("mul", {"scalar": 0.125}),
                )


LINEAR = {
    "linear": (0, 1),
    "matmul": (0, 1),
    "transpose": (0,),
    "view": (0,),
    "contiguous": (0,),
    "to": (0,),
    "sum": (0,),
    "mean": (0,),
    "chunk": (0,),
    "linear_backward": (0,),
    "matmul_backward": (0,),
    "multiref_backward": (),
    "softmax_backward": (0,),
    "silu_backward": (0,),
    "pow_backward": (0,),
    "rsqrt_backward": (0,),
    "mean_backward": (0,),
    "embedding_backward": (0,),
    "mul_backward": (0,),
    "view_backward": (0,),
    "transpose_backward": (0,),
    "float_backward": (0,),
    "all_reduce": (0,),
    "all_gather": (0,),
    "embedding": (1,),
}


def scaled_around(plan, op, seed, many):
    """operand * 8 -> the operator -> every result * 1/8; communication on all members alike."""
    slots = LINEAR[op]
    for p, program in enumerate(plan.programs):
        for k, node in enumerate([n for n in program["nodes"] if n["op"] == op]):
            # By position, so that all members of a communication do the same.
            if not many and k != seed % 3:
                continue
            detour(plan, p, node, slots[(k + seed) % len(slots)], ("mul", {"scalar": 8}))
            for slot, t in enumerate(node["out"]):
                if t:
                    result_detour(plan, p, node, slot, ("mul", {"scalar": 0.125}))


def scaled_in_two_steps(plan):
    """8 before a linear layer, 1/2 and 1/4 behind it, as a division and a multiplication."""
    for p, program in enumerate(plan.programs):
        for node in [n for n in program["nodes"] if n["op"] in ("linear", "matmul")]:
            detour(plan, p, node, 0, ("mul", {"scalar": 8}))
            result_detour(plan, p, node, 0, ("div", {"scalar": 2}), ("mul", {"scalar": 0.25}))


def scaled_rotary(plan):
    """apply_rotary_emb is linear in both of its operands."""
    for p, program in enumerate(plan.programs):
        for node in [n for n in program["nodes"] if n["op"] == "apply_rotary_emb"]:
            for slot in (0, 1):
                detour(plan, p, node, slot, ("mul", {"scalar": 8}))
                result_detour(plan, p, node, slot, ("mul", {"scalar": 0.125}))


def doubled_by_adding(plan):
    """x * 8 / 8 as (x + x) / 2."""
    for p, program in enumerate(plan.programs):
        for node in [n for n in program["nodes"] if n["op"] == "linear"]:
            tensor = node["in"][0]
            twice, back = plan.new_tensor(p, tensor), plan.new_tensor(p, tensor)
            node["in"][0] = back
            plan.insert_before(
                p,
                node,
                {"op": "add", "in": [tensor, tensor], "out": [twice], "mb": node["mb"]},
                {
                    "op": "div",
                    "in": [twice],
                    "out": [back],
                    "attrs": {"scalar": 2},
                    "mb": node["mb"],
                },
            )


# ---- lineage thinned out ----


def cut_points_removed(plan, seed, kept):
    draw = random.Random(seed)
    plan.json["lineage"] = [e for e in plan.lineage if not is_cut_point(e) or draw.random() < kept]


def cut_points_of_one_phase(plan, first_half):
    cut_points = [e for e in plan.lineage if is_cut_point(e)]
    half = len(cut_points) // 2
    gone = cut_points[:half] if first_half else cut_points[half:]
    plan.json["lineage"] = [e for e in plan.lineage if not any(e is g for g in gone)]


def without_cut_points(runner, plan_name):
    """How far it gets depends on the size of the remaining stage.

    It must end, and never be refuted.
    """
    plan = Plan(plan_name)
    cut_points_removed(plan, 0, 0)
    result = runner.verify_plan(plan, "--stage-timeout", 20)
    expect_code(result, EQUIVALENT, UNDECIDED)
    return (
        f"{result.report['verdict']} in {result.seconds:.1f} s, "
        f"{result.report['outputs_proved']} of {result.report['outputs']} outputs proved"
    )


# ---- the same computation in other operators ----


def axis_written_out(plan, *axes):
    for axis in axes:
        split_axis(plan, axis)


def microbatches_written_out(plan):
    for p, program in enumerate(plan.programs):
        for node in list(program["nodes"]):
            if node.get("mb") == "*" and "comm" not in node:
                split_microbatches(plan, p, node)


def tokens_named(plan):
    """Each microbatch's embedding reads its own tokens by name."""
    for p in range(len(plan.programs)):
        for node in plan.nodes(p, "embedding"):
            for k, each in enumerate(split_microbatches(plan, p, node)):
                each["in"][0] += f"#{k}"


def all_reduce_in_two(plan, axis):
    """all_reduce as reduce_scatter and all_gather, along the first dimension that divides."""
    size = dict(map(tuple, plan.json["mesh"]))[axis]
    for p in range(len(plan.programs)):
        for node in plan.nodes(p, "all_reduce", group=[axis]):
            shape = plan.tensor(p, node["in"][0])["shape"]
            dim = next(d for d, s in enumerate(shape) if s % size == 0)
            piece = plan.new_tensor(
                p, node["out"][0], [s // size if d == dim else s for d, s in enumerate(shape)]
            )
            gather = {
                "op": "all_gather",
                "in": [piece],
                "out": node["out"],
                "comm": node["comm"] + ".gather",
                "group": [axis],
                "attrs": {"dim": dim},
            }
            if "mb" in node:
                gather["mb"] = node["mb"]
            node["op"], node["out"], node["attrs"] = "reduce_scatter", [piece], {"dim": dim}
            plan.insert_after(p, node, gather)


def all_reduce_in_two_uneven(plan, axis, first):
    """The same with pieces of which the first has length `first`; 0: the first member has none."""
    members = dict(map(tuple, plan.json["mesh"]))[axis]
    for p, program in enumerate(plan.programs):
        place = program["at"][axis]
        for node in plan.nodes(p, "all_reduce", group=[axis]):
            shape = plan.tensor(p, node["in"][0])["shape"]
            dim = next((d for d, s in enumerate(shape) if s > first * members), None)
            if dim is None:
                continue
            sizes = [first] * (members - 1) + [shape[dim] - first * (members - 1)]
            pieces = []
            if sizes[place]:
                pieces = [
                    plan.new_tensor(
                        p,
                        node["out"][0],
                        [sizes[place] if d == dim else s for d, s in enumerate(shape)],
                    )
                ]
            gather = {
                "op": "all_gather",
                "in": pieces,
                "out": node["out"],
                "comm": node["comm"] + ".gather",
                "group": [axis],
                "attrs": {"dim": dim},
                "sizes": sizes,
            }
            if "mb" in node:
                gather["mb"] = node["mb"]
            node["op"], node["out"], node["attrs"], node["sizes"] = (
                "reduce_scatter",
                pieces,
                {"dim": dim},
                sizes,
            )
            plan.insert_after(p, node, gather)


def sizes_said(plan):
    """Equal pieces, with their sizes."""
    mesh = dict(map(tuple, plan.json["mesh"]))
    for p in range(len(plan.programs)):
        for op in ("all_gather", "reduce_scatter", "all_to_all"):
            for node in plan.nodes(p, op):
                members = (
                    len(node["group_at"])
                    if "group_at" in node
                    else math.prod(mesh[a] for a in node["group"])
                )
                whole = plan.tensor(p, node["out" if op == "all_gather" else "in"][0])["shape"]
                size = whole[node["attrs"]["idim" if op == "all_to_all" else "dim"]] // members
                node["sizes"] = (
                    [[size] * members] * members if op == "all_to_all" else [size] * members
                )


def all_reduce_listed(plan, reverse):
    """A sum does not depend on the order of its group."""
    for p in range(len(plan.programs)):
        for node in plan.nodes(p, "all_reduce"):
            axis = node.pop("group")[0]
            size = dict(map(tuple, plan.json["mesh"]))[axis]
            node["group_at"] = [{axis: c} for c in range(size)]
            if reverse:
                node["group_at"].reverse()


def mean_times_members(plan):
    """A sum over two ranks is twice their mean."""
    for p in range(len(plan.programs)):
        for node in plan.nodes(p, "all_reduce", group=["dp"]):
            node["attrs"] = {"reduce": "mean"}
            result_detour(plan, p, node, 0, ("mul", {"scalar": 2}))


def gather_reversed_and_turned_back(plan):
    """A gather in reverse, cut in two and put together in the right order."""
    for p in range(len(plan.programs)):
        for node in plan.nodes(p, "all_gather", group=["tp"]):
            dim, whole = node["attrs"]["dim"], node["out"][0]
            shape = plan.tensor(p, node["in"][0])["shape"]
            node.pop("group")
            node["group_at"] = [{"tp": 1}, {"tp": 0}]
            turned, first, second = (
                plan.new_tensor(p, whole),
                plan.new_tensor(p, whole, shape),
                plan.new_tensor(p, whole, shape),
            )
            node["out"] = [turned]
            plan.insert_after(
                p,
                node,
                *[
                    {
                        "op": "chunk",
                        "in": [turned],
                        "out": [t],
                        "attrs": {"dim": dim, "parts": 2, "index": i},
                        "mb": "*",
                    }
                    for i, t in ((0, second), (1, first))
                ],
                {
                    "op": "cat",
                    "in": [first, second],
                    "out": [whole],
                    "attrs": {"dim": dim},
                    "mb": "*",
                },
            )


def chunks_as_slices(plan):
    for p in range(len(plan.programs)):
        for node in plan.nodes(p, "chunk"):
            a, size = node["attrs"], plan.tensor(p, node["out"][0])["shape"]
            start = a["index"] * size[a["dim"]]
            node["op"], node["attrs"] = (
                "slice",
                {"dim": a["dim"], "start": start, "stop": start + size[a["dim"]]},
            )


def vocabulary_in_shards(plan, cut):
    """The embedding table cut over tp at row `cut`, masked lookups summed."""
    entry = plan.entry(plan.nodes(0, "embedding")[0]["in"][1], "input")
    for tp in (0, 1):
        p = plan.program(pp=0, tp=tp)
        node = plan.node(p, "embedding")
        rows, hidden = plan.tensor(p, node["in"][1])["shape"]
        start, stop = ((0, cut), (cut, rows))[tp]
        part = plan.new_tensor(p, node["in"][1], [stop - start, hidden])
        plan.tensor(p, part)["kind"] = "parameter"
        partial = plan.new_tensor(p, node["out"][0])
        reduce = {
            "op": "all_reduce",
            "in": [partial],
            "out": node["out"],
            "comm": "edit.embedding",
            "group": ["tp"],
            "mb": "*",
        }
        node["in"][1], node["out"], node["attrs"] = part, [partial], {"start": start, "stop": stop}
        plan.insert_after(p, node, reduce)
        entry["shards"].append(
            {
                "box": [[start, stop], [0, hidden]],
                "parts": [{"local": part, "at": {"pp": 0, "tp": tp}}],
            }
        )


def mask_added_to_itself(plan):
    """The causal mask is sent whole and summed over tp, where its halves were gathered.

    0 + 0 and -inf + -inf change nothing.
    """
    known_defects.all_gather_to_all_reduce(plan, 1, 0, True)


def dead_code(plan):
    """Nodes whose results nobody reads."""
    for p, program in enumerate(plan.programs):
        for node in [n for n in program["nodes"] if n["op"] == "silu"]:
            for op in ("exp", "silu", "neg"):
                plan.insert_after(
                    p,
                    node,
                    {
                        "op": op,
                        "in": [node["out"][0]],
                        "out": [plan.new_tensor(p, node["out"][0])],
                        "mb": "*",
                    },
                )


def squares_as_products(plan):
    for p in range(len(plan.programs)):
        for node in plan.nodes(p, "pow"):
            if node["attrs"]["scalar"] == 2:
                node["op"], node["in"] = "mul", [node["in"][0]] * 2
                node.pop("attrs")


def silu_written_out(plan):
    for p in range(len(plan.programs)):
        for node in plan.nodes(p, "silu"):
            sigmoid = plan.new_tensor(p, node["out"][0])
            plan.insert_before(
                p, node, {"op": "sigmoid", "in": node["in"], "out": [sigmoid], "mb": node["mb"]}
            )
            node["op"], node["in"] = "mul", [node["in"][0], sigmoid]


# ---- wrong cut points on a right plan ----


def forward_cut_point(plan, nth=0):
    """A cut point about one local tensor on each tp rank, for each dp and microbatch."""
    return [
        e
        for e in plan.lineage
        if is_cut_point(e)
        and "step" in e["shards"][0]
        and len(e["shards"][0]["parts"]) == 1
        and "sum" not in e["shards"][0]
        and len(e["shards"][0]["box"]) == 3
    ][nth]


def points_to_another_tensor(plan, nth):
    entry = forward_cut_point(plan, nth)
    for shard in entry["shards"]:
        part = shard["parts"][0]
        p = plan.program(**part["at"])
        shape = plan.tensor(p, part["local"])
        others = [
            t
            for t in plan.programs[p]["tensors"]
            if plan.programs[p]["tensors"][t] == shape and t != part["local"]
        ]
        mentioned = {
            q["local"]
            for e in plan.lineage
            if e["tensor"] == entry["tensor"]
            for s in e["shards"]
            for q in s["parts"]
        }
        part["local"] = next(t for t in reversed(others) if t not in mentioned)
    return entry


def on_one_rank_points_to_another_tensor(plan, nth):
    entry = forward_cut_point(plan, nth)
    keep = copy.deepcopy(entry["shards"][1:])
    points_to_another_tensor(plan, nth)
    entry["shards"][1:] = keep
    return entry


def sum_missing(plan, nth):
    entry = [e for e in plan.lineage if is_cut_point(e) and "sum" in e["shards"][0]][nth]
    for shard in entry["shards"]:
        shard.pop("sum")
    return entry


def sum_too_many(plan, nth):
    entry = [
        e
        for e in plan.lineage
        if is_cut_point(e)
        and all("tp" in q["at"] for s in e["shards"] for q in s["parts"])
        and "step" not in e["shards"][0]
        and "sum" not in e["shards"][0]
    ][nth]
    for shard in entry["shards"]:
        shard["sum"] = ["dp"]
    return entry


def part_missing(plan, nth):
    entry = [e for e in plan.lineage if is_cut_point(e) and len(e["shards"][0]["parts"]) > 1][nth]
    for shard in entry["shards"]:
        shard["parts"].pop()
    return entry


def step_wrong(plan, nth):
    entry = forward_cut_point(plan, nth)
    for shard in entry["shards"]:
        shard["step"]["dp"], shard["step"]["mb"] = shard["step"]["mb"], shard["step"]["dp"]
    return entry


def box_shifted(plan, nth):
    entry = forward_cut_point(plan, nth)
    for shard in entry["shards"]:
        shard["step"].pop("mb")
    return entry


def boxes_exchanged(plan, nth):
    entry = [
        e
        for e in plan.lineage
        if is_cut_point(e)
        and len(e["shards"]) == 2
        and e["shards"][0]["box"] != e["shards"][1]["box"]
    ][nth]
    first, second = entry["shards"]
    first["box"], second["box"] = second["box"], first["box"]
    return entry


def several_wrong(plan):
    first, second = points_to_another_tensor(plan, 3), sum_missing(plan, 2)
    third = step_wrong(plan, 9)
    return [first, second, third]


def check_wrong_lineage(runner, plan_name, edit, *arguments):
    plan = Plan(plan_name)
    made = edit(plan, *arguments)
    wrong = {plan.entry_index(e) for e in (made if isinstance(made, list) else [made])}
    result = runner.verify_plan(plan)
    expect_code(result, EQUIVALENT)
    stages = result.stages()
    for e in wrong:
        if stages[e]["verdict"] != "wrong-lineage":
            raise Failure(
                f"/lineage/{e} ({stages[e]['tensor']}) is reported as {stages[e]['verdict']}: "
                f"{result.summary()}"
            )
    others = [e for e, s in stages.items() if s["verdict"] == "wrong-lineage" and e not in wrong]
    if others:
        raise Failure(
            f"right lineage is reported as wrong: "
            f"{', '.join(f'/lineage/{e}' for e in others[:5])} ({len(others)}): "
            f"{result.summary()}"
        )
    if result.report["outputs_proved"] != result.report["outputs"]:
        raise Failure("not all outputs are proved: " + result.summary())
    return f"/lineage/{' '.join(map(str, sorted(wrong)))} wrong"


def gate_attribute(plan, name, value):
    """Two experts for each token, no bias: the two best are always in the two best groups."""
    for p in range(len(plan.programs)):
        for node in plan.nodes(p, "moe_gate") + plan.nodes(p, "moe_gate_backward"):
            assert node["attrs"]["topk"] == 2 and len([t for t in node["in"] if t]) <= 4
            node["attrs"][name] = value
            plan.touch(node)


# ---- the list ----


def cases(runner):
    def add(name, edit, *arguments, plan=LLAMA):
        runner.case(name, check, plan, edit, *arguments)

    def add_wrong(name, edit, *arguments, plan=LLAMA):
        runner.case("wrong_cut_point." + name, check_wrong_lineage, plan, edit, *arguments)

    add("moe.more_groups_compete", gate_attribute, "topk_groups", 3, plan=MOE)
    add("moe.fewer_groups", gate_attribute, "n_groups", 4, plan=MOE)
    for plan, kind in ((LLAMA, "llama"), (MOE, "moe")):
        for seed in (0, 1):
            add(f"{kind}.renamed.{seed}", renamed, seed, plan=plan)
            add(f"{kind}.sums_turned.{seed}", sums_turned, seed, plan=plan)
            add(f"{kind}.identities.{seed}", identities, seed, 0.4, plan=plan)
            add(f"{kind}.scaled_and_back.{seed}", scaled_and_back, seed, 0.3, plan=plan)
        for seed in range(5):
            add(f"{kind}.lineage_shuffled.{seed}", lineage_shuffled, seed, plan=plan)
            add(f"{kind}.half_the_cut_points.{seed}", cut_points_removed, seed, 0.5, plan=plan)
        add(f"{kind}.quarter_of_the_cut_points", cut_points_removed, 7, 0.25, plan=plan)
        add(f"{kind}.communications_renamed", communications_renamed, plan=plan)
        add(f"{kind}.programs_shuffled", programs_shuffled, 1, plan=plan)
        add(f"{kind}.cut_points_of_the_second_half", cut_points_of_one_phase, True, plan=plan)
        add(f"{kind}.dp_written_out", axis_written_out, "dp", plan=plan)
        add(f"{kind}.microbatches_written_out", microbatches_written_out, plan=plan)
        add(f"{kind}.tokens_named", tokens_named, plan=plan)
        for axis in ("tp", "dp"):
            add(f"{kind}.all_reduce_in_two.{axis}", all_reduce_in_two, axis, plan=plan)
        for first in (0, 1, 3):
            add(
                f"{kind}.all_reduce_in_two_uneven.{first}",
                all_reduce_in_two_uneven,
                "tp",
                first,
                plan=plan,
            )
        add(f"{kind}.sizes_said", sizes_said, plan=plan)
        for reverse in (False, True):
            add(f"{kind}.all_reduce_listed.{reverse}", all_reduce_listed, reverse, plan=plan)
        add(f"{kind}.mean_times_members", mean_times_members, plan=plan)
        add(f"{kind}.gather_reversed_and_turned_back", gather_reversed_and_turned_back, plan=plan)
        add(f"{kind}.chunks_as_slices", chunks_as_slices, plan=plan)
        add(f"{kind}.vocabulary_in_shards", vocabulary_in_shards, 25600, plan=plan)
        add(f"{kind}.vocabulary_in_uneven_shards", vocabulary_in_shards, 7, plan=plan)
        add(f"{kind}.dead_code", dead_code, plan=plan)
        add(f"{kind}.squares_as_products", squares_as_products, plan=plan)
        add(f"{kind}.silu_written_out", silu_written_out, plan=plan)
        for op in LINEAR:
            if LINEAR[op]:
                add(f"{kind}.scaled_around.{op}", scaled_around, op, 0, True, plan=plan)
        add(f"{kind}.scaled_around.linear.one", scaled_around, "linear", 1, False, plan=plan)
        add(f"{kind}.scaled_around.matmul.one", scaled_around, "matmul", 1, False, plan=plan)
        add(f"{kind}.scaled_in_two_steps", scaled_in_two_steps, plan=plan)
        add(f"{kind}.scaled_rotary", scaled_rotary, plan=plan)
        add(f"{kind}.doubled_by_adding", doubled_by_adding, plan=plan)
        runner.case(f"{kind}.without_cut_points", without_cut_points, plan)
        for nth in (0, 20, 60):
            add_wrong(f"{kind}.another_tensor.{nth}", points_to_another_tensor, nth, plan=plan)
        add_wrong(
            f"{kind}.another_tensor_on_one_rank", on_one_rank_points_to_another_tensor, 5, plan=plan
        )
        for nth in (0, 5):
            add_wrong(f"{kind}.sum_missing.{nth}", sum_missing, nth, plan=plan)
        add_wrong(f"{kind}.part_missing", part_missing, 1, plan=plan)
        for nth in (0, 12, 50):
            add_wrong(f"{kind}.step_wrong.{nth}", step_wrong, nth, plan=plan)
        add_wrong(f"{kind}.box_shifted", box_shifted, 4, plan=plan)
        add_wrong(f"{kind}.boxes_exchanged", boxes_exchanged, 0, plan=plan)
        add_wrong(f"{kind}.boxes_exchanged.2", boxes_exchanged, 2, plan=plan)
        add_wrong(f"{kind}.several", several_wrong, plan=plan)
    add("llama.mask_added_to_itself", mask_added_to_itself)
    add("tp8.dp_written_out", axis_written_out, "dp", plan=LLAMA_TP8)
    add("tp8.half_the_cut_points", cut_points_removed, 0, 0.5, plan=LLAMA_TP8)
    add("tp8.lineage_shuffled", lineage_shuffled, 0, plan=LLAMA_TP8)
    add("tp8.all_reduce_in_two", all_reduce_in_two, "dp", plan=LLAMA_TP8)
    add("tp8.all_reduce_in_two_uneven", all_reduce_in_two_uneven, "tp", 1, plan=LLAMA_TP8)


def main():
    skip_unless_shared(LLAMA, MOE, LLAMA_TP8)
    runner = Runner(sys.argv[1])
    cases(runner)
    runner.slow(
        *(
            f"{kind}.{which}"
            for kind in ("llama", "moe")
            for which in (
                "without_cut_points",
                "cut_points_of_the_second_half",
                "quarter_of_the_cut_points",
            )
        )
    )
    return runner.run(most_open=12 if SLOW else 1)  # by default: mask_added_to_itself


if __name__ == "__main__":
    sys.exit(main())
