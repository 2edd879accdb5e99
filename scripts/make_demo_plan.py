#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a small training step and a plan that runs it on 4 ranks, in the format of docs/format.md.

The model: y = linear(silu(linear(x, w1)), w2); loss = sum(y^2); the gradients of w1 and w2; one
step of gradient descent.

The plan: mesh dp x tp. The first linear is cut by columns and the second by rows over tp, so each
rank holds a partial sum of y until the all_reduce. The batch is cut over dp and microbatches.
Gradients are accumulated over microbatches, then all-reduced over dp.

usage: make_demo_plan.py DIRECTORY
writes mlp.model.json, mlp.plan.json, and mlp_dropped_all_reduce.plan.json, which lacks the forward
all_reduce.
"""

import json
import pathlib
import sys

DP, TP, MICROBATCHES = 2, 2, 2
BATCH, FEATURES, HIDDEN = 16, 8, 12
LEARNING_RATE = 0.01


def node(op, operands, results, **fields):
    return {"op": op, "in": operands, "out": results, **fields}


def make_model():
    data, hidden = [BATCH, FEATURES], [BATCH, HIDDEN]
    w1, w2 = [HIDDEN, FEATURES], [FEATURES, HIDDEN]
    tensors = {
        "x": {"shape": data, "kind": "input"},
        "w1": {"shape": w1, "kind": "parameter"},
        "w2": {"shape": w2, "kind": "parameter"},
        "loss.grad": {"shape": [], "kind": "constant", "value": 1},
        "h": {"shape": hidden},
        "a": {"shape": hidden},
        "y": {"shape": data},
        "y.square": {"shape": data},
        "loss": {"shape": []},
        "y.square.grad": {"shape": data},
        "y.grad": {"shape": data},
        "a.grad": {"shape": hidden},
        "h.grad": {"shape": hidden},
        "w1.grad": {"shape": w1, "grad_of": "w1"},
        "w2.grad": {"shape": w2, "grad_of": "w2"},
        "w1.step": {"shape": w1},
        "w2.step": {"shape": w2},
        "w1.new": {"shape": w1},
        "w2.new": {"shape": w2},
    }
    nodes = [
        node("linear", ["x", "w1"], ["h"], loc="mlp.py:10"),
        node("silu", ["h"], ["a"], loc="mlp.py:11"),
        node("linear", ["a", "w2"], ["y"], loc="mlp.py:12"),
        node("pow", ["y"], ["y.square"], attrs={"scalar": 2}, loc="mlp.py:13"),
        node("sum", ["y.square"], ["loss"], loc="mlp.py:14"),
        node("sum_backward", ["loss.grad", "y.square"], ["y.square.grad"], loc="mlp.py:14"),
        node(
            "pow_backward", ["y.square.grad", "y"], ["y.grad"], attrs={"scalar": 2}, loc="mlp.py:13"
        ),
        node("linear_backward", ["y.grad", "a", "w2"], ["a.grad", "w2.grad"], loc="mlp.py:12"),
        node("silu_backward", ["a.grad", "h"], ["h.grad"], loc="mlp.py:11"),
        node("linear_backward", ["h.grad", "x", "w1"], [None, "w1.grad"], loc="mlp.py:10"),
    ]
    for w in ("w1", "w2"):
        nodes.append(
            node(
                "mul",
                [f"{w}.grad"],
                [f"{w}.step"],
                attrs={"scalar": LEARNING_RATE},
                loc="mlp.py:20",
            )
        )
        nodes.append(node("sub", [w, f"{w}.step"], [f"{w}.new"], loc="mlp.py:20"))
    return {
        "format": "shardproof-model",
        "version": 1,
        "name": "mlp",
        "tensors": tensors,
        "nodes": nodes,
        "outputs": ["loss", "w1.grad", "w2.grad", "w1.new", "w2.new"],
    }


def make_program(drop_all_reduce):
    """One program for all ranks: dp and tp are both free."""
    rows, columns = BATCH // (DP * MICROBATCHES), HIDDEN // TP
    data, hidden, w1, w2 = (
        [rows, FEATURES],
        [rows, columns],
        [columns, FEATURES],
        [FEATURES, columns],
    )
    tensors = {
        "w1": {"shape": w1, "kind": "parameter"},
        "w2": {"shape": w2, "kind": "parameter"},
        "loss.grad": {"shape": [], "kind": "constant", "value": 1},
        "x": {"shape": data, "kind": "input", "per_mb": True},
    }
    for name, shape in [
        ("h", hidden),
        ("a", hidden),
        ("y.part", data),
        ("y", data),
        ("y.square", data),
        ("y.square.grad", data),
        ("y.grad", data),
        ("a.grad", hidden),
        ("h.grad", hidden),
    ]:
        tensors[name] = {"shape": shape, "per_mb": True}

    def each(op, operands, results, **fields):
        return node(op, operands, results, mb="*", **fields)

    def apart(op, operands, results, accumulated, **fields):
        """Each microbatch has its own node, whose contribution goes to its own tensor."""
        return [
            node(
                op,
                operands,
                [f"{r}.mb{k}" if r == accumulated else r for r in results],
                mb=k,
                **fields,
            )
            for k in range(MICROBATCHES)
        ]

    if drop_all_reduce:
        reduce_y = each("identity", ["y.part"], ["y"], loc="mlp.py:12")
    else:
        reduce_y = each(
            "all_reduce", ["y.part"], ["y"], comm="forward.y", group=["tp"], loc="mlp.py:12"
        )
    nodes = [
        each("linear", ["x", "w1"], ["h"], loc="mlp.py:10"),
        each("silu", ["h"], ["a"], loc="mlp.py:11"),
        each("linear", ["a", "w2"], ["y.part"], loc="mlp.py:12"),
        reduce_y,
        each("pow", ["y"], ["y.square"], attrs={"scalar": 2}, loc="mlp.py:13"),
        *apart("sum", ["y.square"], ["loss"], "loss", loc="mlp.py:14"),
        each("sum_backward", ["loss.grad", "y.square"], ["y.square.grad"], loc="mlp.py:14"),
        each(
            "pow_backward", ["y.square.grad", "y"], ["y.grad"], attrs={"scalar": 2}, loc="mlp.py:13"
        ),
        *apart(
            "linear_backward",
            ["y.grad", "a", "w2"],
            ["a.grad", "w2.grad"],
            "w2.grad",
            loc="mlp.py:12",
        ),
        each("silu_backward", ["a.grad", "h"], ["h.grad"], loc="mlp.py:11"),
        *apart(
            "linear_backward", ["h.grad", "x", "w1"], [None, "w1.grad"], "w1.grad", loc="mlp.py:10"
        ),
    ]
    for name, shape in [("loss", []), ("w1.grad", w1), ("w2.grad", w2)]:
        tensors.update({f"{name}.mb{k}": {"shape": shape} for k in range(MICROBATCHES)})
        total = f"{name}.mb0"
        for k in range(1, MICROBATCHES):
            tensors[f"{name}.acc{k}"] = {"shape": shape}
            nodes.append(node("add", [total, f"{name}.mb{k}"], [f"{name}.acc{k}"]))
            total = f"{name}.acc{k}"
        tensors[name] = {"shape": shape}
        nodes.append(node("all_reduce", [total], [name], comm=f"reduce.{name}", group=["dp"]))
    for name, shape in [("w1", w1), ("w2", w2)]:
        tensors[f"{name}.step"] = {"shape": shape}
        tensors[f"{name}.new"] = {"shape": shape}
        nodes.append(
            node(
                "mul",
                [f"{name}.grad"],
                [f"{name}.step"],
                attrs={"scalar": LEARNING_RATE},
                loc="mlp.py:20",
            )
        )
        nodes.append(node("sub", [name, f"{name}.step"], [f"{name}.new"], loc="mlp.py:20"))
    return {"at": {}, "tensors": tensors, "nodes": nodes}


def make_lineage():
    rows, columns = BATCH // (DP * MICROBATCHES), HIDDEN // TP
    batch = {"dp": [MICROBATCHES * rows, 0], "mb": [rows, 0]}
    data_box, w1_box, w2_box = (
        [[0, rows], [0, FEATURES]],
        [[0, columns], [0, FEATURES]],
        [[0, FEATURES], [0, columns]],
    )
    hidden_box = [[0, rows], [0, columns]]
    hidden_step = {**batch, "tp": [0, columns]}
    w1_step, w2_step = {"tp": [columns, 0]}, {"tp": [0, columns]}

    def entry(tensor, role, box, step=None, local=None, sum_over=None):
        shard = {"box": box, "parts": [{"local": local or tensor}]}
        if step:
            shard["step"] = step
        if sum_over:
            shard["sum"] = sum_over
        return {"tensor": tensor, "role": role, "shards": [shard]}

    last = MICROBATCHES - 1
    return [
        entry("x", "input", data_box, batch),
        entry("w1", "input", w1_box, w1_step),
        entry("w2", "input", w2_box, w2_step),
        entry("h", "cut_point", hidden_box, hidden_step),
        entry("a", "cut_point", hidden_box, hidden_step),
        entry("y", "cut_point", data_box, batch, local="y.part", sum_over=["tp"]),
        entry("y", "cut_point", data_box, batch),
        entry("loss", "cut_point", [], local=f"loss.acc{last}", sum_over=["dp"]),
        entry("y.grad", "cut_point", data_box, batch),
        entry("h.grad", "cut_point", hidden_box, hidden_step),
        entry("w1.grad", "cut_point", w1_box, w1_step, local=f"w1.grad.acc{last}", sum_over=["dp"]),
        entry("w2.grad", "cut_point", w2_box, w2_step, local=f"w2.grad.acc{last}", sum_over=["dp"]),
        entry("loss", "output", []),
        entry("w1.grad", "output", w1_box, w1_step),
        entry("w2.grad", "output", w2_box, w2_step),
        entry("w1.new", "output", w1_box, w1_step),
        entry("w2.new", "output", w2_box, w2_step),
    ]


def make_plan(drop_all_reduce=False):
    return {
        "format": "shardproof-plan",
        "version": 1,
        "name": "mlp" + ("_dropped_all_reduce" if drop_all_reduce else ""),
        "model": "mlp.model.json",
        "mesh": [["dp", DP], ["tp", TP]],
        "microbatches": MICROBATCHES,
        "programs": [make_program(drop_all_reduce)],
        "lineage": make_lineage(),
    }


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_demo_plan.py DIRECTORY")
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in [
        ("mlp.model.json", make_model()),
        ("mlp.plan.json", make_plan()),
        ("mlp_dropped_all_reduce.plan.json", make_plan(drop_all_reduce=True)),
    ]:
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")
        print(directory / name)


if __name__ == "__main__":
    main()
