# SPDX-License-Identifier: Apache-2.0
"""What exporters get wrong: each mistake in the demo's files is an input error with place and fix.

Several mistakes at once are all reported, with each file named once.

exporter_mistakes.py PROGRAM [--table]    # --table: the messages, for people
"""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DELETE = object()


def put(*path_and_value):
    *path, value = path_and_value

    def edit(root):
        for key in path[:-1]:
            root = root[key]
        if value is DELETE:
            del root[path[-1]]
        else:
            root[path[-1]] = value

    return edit


def rename(*path_and_name):
    *path, name = path_and_name

    def edit(root):
        for key in path[:-1]:
            root = root[key]
        root[name] = root.pop(path[-1])

    return edit


N = ("programs", 0, "nodes")  # of the plan: 0 linear, 3 all_reduce
T = ("programs", 0, "tensors")
L = ("lineage",)

# what, which file, edit, place, fix (parts of the message)
MISTAKES = [
    (
        "grad_of in the plan",
        "plan",
        put(*T, "h", "grad_of", "w1"),
        "/programs/0/tensors/h/grad_of",
        "`grad_of` belongs in the model",
    ),
    (
        "per_mb in the model",
        "model",
        put("tensors", "h", "per_mb", True),
        "/tensors/h/per_mb",
        "`per_mb` belongs in the plan",
    ),
    (
        "group is a string",
        "plan",
        put(*N, 3, "group", "tp"),
        "/programs/0/nodes/3/group",
        'write ["tp"]',
    ),
    (
        "group is a list of ranks",
        "plan",
        put(*N, 3, "group", [0, 1]),
        "/programs/0/nodes/3/group/0",
        "`group_at` lists members",
    ),
    (
        "sum is a string",
        "plan",
        put(*L, 5, "shards", 0, "sum", "tp"),
        "/lineage/5/shards/0/sum",
        'write ["tp"]',
    ),
    ("in is a string", "plan", put(*N, 1, "in", "h"), "/programs/0/nodes/1/in", 'write ["h"]'),
    (
        "operands are called inputs",
        "plan",
        rename(*N, 0, "in", "inputs"),
        "/programs/0/nodes/0/inputs",
        "called `in`",
    ),
    (
        "attributes are called kwargs",
        "model",
        rename("nodes", 3, "attrs", "kwargs"),
        "/nodes/3/kwargs",
        "`attrs`",
    ),
    (
        "a node has a name",
        "plan",
        put(*N, 0, "name", "linear_1"),
        "/programs/0/nodes/0/name",
        "`loc`",
    ),
    (
        "requires_grad of a tensor",
        "model",
        put("tensors", "w1", "requires_grad", True),
        "/tensors/w1/requires_grad",
        "left out",
    ),
    (
        "an operator of ATen",
        "model",
        put("nodes", 3, "op", "aten.pow.Tensor_Scalar"),
        "/nodes/3/op",
        'did you mean "pow"',
    ),
    (
        "an operator in place",
        "model",
        put("nodes", 1, "op", "silu_"),
        "/nodes/1/op",
        'did you mean "silu"',
    ),
    (
        "a misspelt operator",
        "plan",
        put(*N, 0, "op", "lienar"),
        "/programs/0/nodes/0/op",
        '"linear"',
    ),
    (
        "a collective's name of NCCL",
        "plan",
        put(*N, 3, "op", "AllReduce"),
        "/programs/0/nodes/3/op",
        '"all_reduce"',
    ),
    (
        "a collective in the model",
        "model",
        put("nodes", 1, "op", "all_reduce"),
        "/nodes/1/op",
        "only in a plan",
    ),
    (
        "to with a dtype",
        "plan",
        put(
            *N,
            1,
            {"op": "to", "in": ["h"], "out": ["a"], "mb": "*", "attrs": {"dtype": "bfloat16"}},
        ),
        "/programs/0/nodes/1",
        "`to` takes no dtype: precision is not modelled",
    ),
    ("axis for dim", "model", put("nodes", 4, "attrs", {"axis": 0}), "/nodes/4", "write `dim`"),
    (
        "keepdims of NumPy",
        "model",
        put("nodes", 4, "attrs", {"keepdims": True}),
        "/nodes/4",
        "write `keepdim`",
    ),
    (
        "an attribute that is null",
        "model",
        put("nodes", 4, "attrs", {"dim": None}),
        "/nodes/4/attrs/dim",
        "left out",
    ),
    (
        "a dtype with torch.",
        "model",
        put("tensors", "h", "dtype", "torch.float32"),
        "/tensors/h/dtype",
        '"float32"',
    ),
    (
        "a dtype's short name",
        "model",
        put("tensors", "h", "dtype", "bf16"),
        "/tensors/h/dtype",
        '"bfloat16"',
    ),
    (
        "a dynamic size",
        "model",
        put("tensors", "x", "shape", [-1, 8]),
        "/tensors/x/shape/0",
        "not dynamic",
    ),
    (
        "a symbolic size",
        "plan",
        put(*T, "x", "shape", ["s0", 8]),
        "/programs/0/tensors/x/shape/0",
        "not dynamic",
    ),
    (
        "kind of a weight",
        "model",
        put("tensors", "w1", "kind", "weight"),
        "/tensors/w1/kind",
        '"parameter"',
    ),
    (
        "kind in the plural",
        "model",
        put("tensors", "x", "kind", "inputs"),
        "/tensors/x/kind",
        '"input"',
    ),
    ("role in the plural", "plan", put(*L, 0, "role", "inputs"), "/lineage/0/role", '"input"'),
    (
        "another word for cut point",
        "plan",
        put(*L, 3, "role", "intermediate"),
        "/lineage/3/role",
        '"cut_point"',
    ),
    ("mesh is an object", "plan", put("mesh", {"dp": 2, "tp": 2}), "/mesh", "write [["),
    ("version is text", "plan", put("version", "1"), "/version", "write 1"),
    (
        "reduce is avg",
        "plan",
        put(*N, 3, "attrs", {"reduce": "avg"}),
        "/programs/0/nodes/3/attrs/reduce",
        '"mean"',
    ),
    (
        "reduce beside attrs",
        "plan",
        put(*N, 3, "reduce", "sum"),
        "/programs/0/nodes/3/reduce",
        "goes into `attrs`",
    ),
    (
        "async_op of a collective",
        "plan",
        put(*N, 3, "async_op", False),
        "/programs/0/nodes/3/async_op",
        "left out",
    ),
    (
        "a group by ranks",
        "plan",
        put(*N, 3, "ranks", [0, 1]),
        "/programs/0/nodes/3/ranks",
        "by coordinates",
    ),
    (
        "a program at a rank",
        "plan",
        put("programs", 0, "at", 0),
        "/programs/0/at",
        "by their coordinates",
    ),
    (
        "coordinates without axes",
        "plan",
        put(*L, 0, "shards", 0, "parts", 0, "at", [0, 1]),
        "/lineage/0/shards/0/parts/0/at",
        "names of their axes",
    ),
    (
        "a closed box",
        "plan",
        put(*L, 0, "shards", 0, "box", [[0, 3], [0, 7]]),
        "/lineage/0/shards/0/parts/0/local",
        "half-open",
    ),
    (
        "step is one number",
        "plan",
        put(*L, 0, "shards", 0, "step", "dp", 8),
        "/lineage/0/shards/0/step/dp",
        "for each dimension",
    ),
    (
        "an unknown axis",
        "plan",
        put(*L, 0, "shards", 0, "step", {"ddp": [8, 0]}),
        "/lineage/0/shards/0/step/ddp",
        '"dp"',
    ),
    (
        "an unknown local tensor",
        "plan",
        put(*N, 1, "in", ["hh"]),
        "/programs/0/nodes/1/in/0",
        'did you mean "h"',
    ),
    (
        "an unknown tensor of the model",
        "plan",
        put(*L, 5, "tensor", "y_square"),
        "/lineage/5/tensor",
        'did you mean "y.square"',
    ),
    ("an unknown output", "model", put("outputs", ["los"]), "/outputs/0", 'did you mean "loss"'),
    (
        "nodes out of order",
        "model",
        lambda m: m["nodes"].insert(0, m["nodes"].pop(2)),
        "/nodes/0/in/0",
        "in execution order",
    ),
    (
        "no lineage of a parameter",
        "plan",
        lambda p: p["lineage"].pop(1),
        "/lineage",
        '"role": "input"',
    ),
    (
        "no lineage of an output",
        "plan",
        lambda p: p.update(
            lineage=[e for e in p["lineage"] if e["tensor"] != "w1.new" or e["role"] != "output"]
        ),
        "/lineage",
        '"role": "output"',
    ),
    (
        "a per_mb tensor in a node without mb",
        "plan",
        put(*N, 0, "mb", DELETE),
        "/programs/0/nodes/0",
        "#k",
    ),
]

# Of the text itself.
TEXTS = [
    (
        "NaN of Python's json",
        lambda t: t.replace('"value": 1', '"value": NaN', 1),
        "NaN",
        "allow_nan=False",
    ),
    ("a printed dict", lambda t: t.replace('"', "'"), "byte", "double quotes"),
    ("True of Python", lambda t: t.replace("true", "True", 1), "byte", "true and false"),
    ("a file that is cut off", lambda t: t[: len(t) // 2], "byte", "cut off"),
    ("a comma too many", lambda t: t.rstrip()[:-1].rstrip() + ",}", "byte", "comma too many"),
]


def main():
    program, table = sys.argv[1], "--table" in sys.argv
    failed = count = 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(temporary)
        subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "make_demo_plan.py"), temporary],
            check=True,
            capture_output=True,
        )
        texts = {
            which: (directory / f"mlp.{which}.json").read_text() for which in ("model", "plan")
        }
        right = {which: json.loads(text) for which, text in texts.items()}

        def messages(files):
            for which, text in files.items():
                (directory / f"bad.{which}.json").write_text(text)
            done = subprocess.run(
                [program, "verify", "bad.plan.json", "--model", "bad.model.json"],
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=60,
            )
            return done.returncode, done.stdout, done.stderr

        def check(name, files, which, parts):
            nonlocal failed, count
            count += 1
            code, out, err = messages(files)
            wrong = [p for p in parts if p not in err]
            if code != 2 or out or wrong or f"bad.{which}.json" not in err or ": /:" in err:
                failed += 1
                print(f"FAIL  {name}: exit {code}, without {wrong}: {err.strip()[:400]}")
            elif table:
                print(f"{name}\n    {err.strip()}")

        for name, which, edit, place, fix in MISTAKES:
            edited = copy.deepcopy(right)
            edit(edited[which])
            check(name, {w: json.dumps(v) for w, v in edited.items()}, which, [place, fix])
        for name, edit, place, fix in TEXTS:
            text = json.dumps(right["plan"])
            changed = edit(text)
            if changed == text:
                raise SystemExit(f"{name}: changes nothing")
            check(name, {"plan": changed, "model": texts["model"]}, "plan", [place, fix])

        # Several mistakes at once, in both files: all reported, each file named once, and no more
        # than 20.
        edited = copy.deepcopy(right)
        for edit in (
            put(*N, 3, "group", "tp"),
            put(*T, "h", "grad_of", "w1"),
            put(*L, 0, "role", "inputs"),
        ):
            edit(edited["plan"])
        put("nodes", 1, "op", "silu_")(edited["model"])
        code, _, err = messages({w: json.dumps(v) for w, v in edited.items()})
        several = (
            code == 2
            and err.count("bad.plan.json") == 1
            and err.count("bad.model.json") == 1
            and "3 errors" in err
            and "1 error\n" in err
            and all(
                p in err
                for p in (
                    "/programs/0/nodes/3/group",
                    "/programs/0/tensors/h/grad_of",
                    "/lineage/0/role",
                    "/nodes/1/op",
                )
            )
        )
        edited = copy.deepcopy(right)
        for tensor in edited["plan"]["programs"][0]["tensors"].values():
            tensor["device"] = "cuda"
        code, _, err = messages({w: json.dumps(v) for w, v in edited.items()})
        many = code == 2 and err.count("/programs/0/tensors/") == 20 and "and more" in err
        for name, good in (("several mistakes at once", several), ("more than 20 mistakes", many)):
            count += 1
            if not good:
                failed += 1
                print(f"FAIL  {name}: {err[:600]}")
    print(f"{count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
