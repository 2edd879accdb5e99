#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz targets.

They are small models and plans that together use every operator and every field of the format.

usage: seeds.py DIRECTORY PROGRAM
writes DIRECTORY/TARGET/NAME. PROGRAM is shardproof. It verifies the plans, which must be
equivalent, and so makes a proof cache; its stages are seeds too. Inputs that the fuzzer found, and
that are worth keeping, are in corpus/TARGET.
"""

import gzip
import json
import pathlib
import re
import sqlite3
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH = 4  # tensors whose first dimension this is are cut over ranks


def header(kind, value):
    return {"format": f"shardproof-{kind}", "version": 1, **value}


def model(tensors, nodes, outputs):
    """`tensors`: name -> shape, or a pair of the shape and other fields."""
    made = {
        n: {"shape": t[0], **t[1]} if isinstance(t, tuple) else {"shape": t}
        for n, t in tensors.items()
    }
    return header("model", {"tensors": made, "nodes": nodes, "outputs": outputs})


def node(op, operands, results, **attrs):
    return {"op": op, "in": operands, "out": results, **({"attrs": attrs} if attrs else {})}


def whole(shape):
    return [[0, d] for d in shape]


def on_one_rank(m):
    """The model as its own plan."""
    tensors = {n: {k: v for k, v in t.items() if k != "grad_of"} for n, t in m["tensors"].items()}
    return header(
        "plan",
        {
            "mesh": [],
            "programs": [{"at": {}, "tensors": tensors, "nodes": m["nodes"]}],
            "lineage": lineage(
                m, lambda name, t: {"box": whole(t["shape"]), "parts": [{"local": name}]}
            ),
        },
    )


def on_two_ranks(m):
    """Rows of the batch on two ranks, as one program of a free axis, else per microbatch."""

    def cut(t):
        shape = t["shape"]
        made = {k: v for k, v in t.items() if k != "grad_of"}
        return {**made, "shape": [BATCH // 2, *shape[1:]]} if shape[:1] == [BATCH] else made

    def shard(name, t):
        local = cut(t)["shape"]
        return {
            "box": whole(local),
            "parts": [{"local": name}],
            **(
                {"step": {"dp": [BATCH // 2] + [0] * (len(local) - 1)}}
                if local != t["shape"]
                else {}
            ),
        }

    tensors = {n: cut(t) for n, t in m["tensors"].items()}
    return header(
        "plan",
        {
            "mesh": [["dp", 2]],
            "programs": [{"at": {}, "tensors": tensors, "nodes": m["nodes"]}],
            "lineage": lineage(m, shard),
        },
    )


def lineage(m, shard):
    entries = []
    for name, t in m["tensors"].items():
        role = {"input": "input", "parameter": "input", "constant": None}.get(
            t.get("kind"), "output" if name in m["outputs"] else "cut_point"
        )
        if role:
            entries.append({"tensor": name, "role": role, "shards": [shard(name, t)]})
    return entries


X, W, IDS = {"kind": "input"}, {"kind": "parameter"}, {"kind": "input", "dtype": "int64"}
COMPLEX = {"kind": "input", "dtype": "complex64"}

# Models whose rows do not depend on one another: they are run on two ranks as well.
BY_ROWS = {
    "elementwise": model(
        {"x": ([4, 3], X), "a": [4, 3], "b": [4, 3], "c": [4, 3], "d": [4, 3], "e": [4, 3]},
        [
            node("silu", ["x"], ["a"]),
            node("mul", ["a"], ["b"], scalar=0.5),
            node("add", ["b", "x"], ["c"], alpha=2),
            node("exp", ["c"], ["d"]),
            node("div", ["x", "d"], ["e"]),
        ],
        ["e"],
    ),
    "roots": model(
        {"x": ([4, 2], X), "a": [4, 2], "b": [4, 2], "c": [4, 2], "d": [4, 2]},
        [
            node("square", ["x"], ["a"]),
            node("add", ["a"], ["b"], scalar=1e-5),
            node("rsqrt", ["b"], ["c"]),
            node("log", ["b"], ["d"]),
        ],
        ["c", "d"],
    ),
    "functions": model(
        {
            "x": ([4, 2], X),
            "a": [4, 2],
            "b": [4, 2],
            "c": [4, 2],
            "d": [4, 2],
            "e": [4, 2],
            "g": [4, 2],
        },
        [
            node("gelu", ["x"], ["a"], approximate="tanh"),
            node("relu", ["a"], ["b"]),
            node("tanh", ["b"], ["c"]),
            node("sigmoid", ["c"], ["d"]),
            node("pow", ["d"], ["e"], scalar=1.5),
            node("relu_backward", ["e", "a"], ["g"]),
        ],
        ["g"],
    ),
    "layout": model(
        {
            "a": ([4, 2, 3], X),
            "b": [4, 3, 2],
            "c": [4, 3, 1],
            "d": [4, 3],
            "e": [4, 1, 3],
            "f": [4, 5, 3],
            "g": [4, 5, 3],
            "h": [4, 8, 3],
        },
        [
            node("transpose", ["a"], ["b"], dim0=1, dim1=2),
            node("slice", ["b"], ["c"], dim=2, start=1, stop=2),
            node("squeeze", ["c"], ["d"], dim=-1),
            node("unsqueeze", ["d"], ["e"], dim=1),
            node("expand", ["e"], ["f"], size=[-1, 5, 3]),
            node("contiguous", ["f"], ["g"]),
            node("pad", ["g"], ["h"], pad=[0, 0, 1, 2]),
        ],
        ["h"],
    ),
    "rows": model(
        {
            "x": ([4, 3], X),
            "w": ([5, 3], W),
            "b": ([5], W),
            "y": [4, 5],
            "s": [4, 5],
            "n": [4, 5],
            "g": ([5], W),
            "m": [4],
        },
        [
            node("linear", ["x", "w", "b"], ["y"]),
            node("softmax", ["y"], ["s"], dim=-1),
            node("rms_norm", ["s", "g"], ["n"], eps=0.01),
            node("logsumexp", ["n"], ["m"], dim=[1]),
        ],
        ["m"],
    ),
    "embedding": model(
        {
            "i": ([4, 2], IDS),
            "w": ([6, 3], W),
            "e": [4, 2, 3],
            "n": [4, 2, 3],
            "g": ([3], W),
            "b": ([3], W),
            "h": ([4, 2], {"dtype": "int64", "kind": "input"}),
            "o": [4, 2, 6],
            "l": [4, 2],
        },
        [
            node("embedding", ["i", "w"], ["e"]),
            node("layer_norm", ["e", "g", "b"], ["n"], eps=1e-5),
            node("linear", ["n", "w"], ["o"]),
            node("cross_entropy", ["o", "h"], ["l"], reduction="none"),
        ],
        ["l"],
    ),
    "dropout": model(
        {"x": ([4, 3], X), "a": [4, 3], "b": [4, 3]},
        [node("dropout", ["x"], ["a"], p=0.1, seed=7), node("identity", ["a"], ["b"])],
        ["b"],
    ),
    "experts": model(
        {
            "x": ([4, 3], X),
            "w": ([3, 3], W),
            "k": [4, 2],
            "i": ([4, 2], {"dtype": "int64"}),
            "a": ([3, 2, 3], W),
            "b": ([3, 2, 3], W),
            "c": ([3, 3, 2], W),
            "y": [4, 3],
        },
        [
            node(
                "moe_gate",
                ["x", "w"],
                ["k", "i"],
                n_groups=1,
                topk_groups=1,
                topk=2,
                score_func="softmax",
                route_scale=1,
            ),
            node(
                "moe_experts",
                ["x", "i", "k", "a", "b", "c"],
                ["y"],
                n_routed_experts=3,
                local_expert_start=0,
                local_expert_end=3,
            ),
        ],
        ["y"],
    ),
}
# And some whose rows do.
OTHERS = {
    "reductions": model(
        {"x": ([2, 3], X), "a": [3], "b": [2, 1], "c": [], "d": [2, 3]},
        [
            node("sum", ["x"], ["a"], dim=[0]),
            node("amax", ["x"], ["b"], dim=[1], keepdim=True),
            node("mean", ["x"], ["c"]),
            node("sub", ["x", "b"], ["d"]),
        ],
        ["a", "c", "d"],
    ),
    "products": model(
        {
            "x": ([2, 3, 4], X),
            "y": ([2, 4, 3], X),
            "a": [2, 3, 3],
            "b": [3, 2, 3],
            "c": [3, 3],
            "d": [3, 1],
            "e": [3, 4],
            "v": [6, 3],
        },
        [
            node("matmul", ["x", "y"], ["a"]),
            node("permute", ["a"], ["b"], dims=[1, 0, 2]),
            node("einsum", ["b", "a"], ["c"], equation="ijk,jkl->il"),
            node("chunk", ["c"], ["d"], dim=1, parts=3, index=1),
            node("cat", ["c", "d"], ["e"], dim=1),
            node("reshape", ["b"], ["v"], size=[6, -1]),
        ],
        ["e", "v"],
    ),
    "attention": model(
        {
            "q": ([1, 1, 3, 2], X),
            "k": ([1, 1, 2, 3], X),
            "z": ([3, 3], {"kind": "constant", "value": 0}),
            "s": [1, 1, 3, 3],
            "t": [1, 1, 3, 3],
            "p": [1, 1, 3, 3],
        },
        [
            node("matmul", ["q", "k"], ["s"]),
            node("apply_mask", ["s", "z"], ["t"]),
            node("softmax", ["t"], ["p"], dim=-1),
        ],
        ["p"],
    ),
    "step": model(
        {
            "x": ([3, 2], X),
            "w": ([2, 2], W),
            "y": [3, 2],
            "l": [],
            "one": ([], {"kind": "constant", "value": 1}),
            "gy": [3, 2],
            "gw": ([2, 2], {"grad_of": "w"}),
            "n": [],
            "cg": [2, 2],
            "m": ([2, 2], W),
            "v": ([2, 2], W),
            "w2": [2, 2],
            "m2": [2, 2],
            "v2": [2, 2],
        },
        [
            node("linear", ["x", "w"], ["y"]),
            node("sum", ["y"], ["l"]),
            node("sum_backward", ["one", "y"], ["gy"]),
            node("linear_backward", ["gy", "x", "w"], [None, "gw"]),
            node("grad_norm", ["gw"], ["n"]),
            node("clip_grad", ["gw", "n"], ["cg"], max_norm=1),
            node("adamw", ["w", "cg", "m", "v"], ["w2", "m2", "v2"], lr=0.125, step=1),
        ],
        ["l", "gw", "w2"],
    ),
    "constants": model(
        {
            "c": ([2, 2], {"kind": "constant", "value": [[1, 0.25], [1e-3, -2]]}),
            "x": ([2, 2], X),
            "y": [2, 2],
            "i": ([2], {"kind": "constant", "dtype": "int64", "value": [0, 1]}),
            "h": [2, 2],
        },
        [node("mul", ["c", "x"], ["y"]), node("one_hot", ["i"], ["h"], start=0, stop=2)],
        ["y", "h"],
    ),
    "rotary": model(
        {
            "q": ([1, 2, 1, 4], X),
            "k": ([1, 2, 1, 4], X),
            "f": ([2, 2], COMPLEX),
            "a": [1, 2, 1, 4],
            "b": [1, 2, 1, 4],
        },
        [node("apply_rotary_emb", ["q", "k", "f"], ["a", "b"])],
        ["a", "b"],
    ),
}


def communication():
    """One plan of four ranks with every kind of communication in sequence on the same value."""
    m = model(
        {"x": ([4, 4], X), "y": [4, 4], "s": [4, 4]},
        [node("identity", ["x"], ["y"]), node("mul", ["y"], ["s"], scalar=4)],
        ["y", "s"],
    )
    part, full, piece = [4, 2], [4, 4], [2, 4]
    tensors = {
        "x": {"shape": part, "kind": "input"},
        "g": {"shape": full},
        "r": {"shape": piece},
        "a": {"shape": part},
        "s": {"shape": part},
        "m": {"shape": piece},
    }
    tp, programs = {"group": ["tp"]}, []
    for pp in (0, 1):
        nodes = [
            dict(node("all_gather", ["x"], ["g"], dim=1), comm="g", **tp),
            dict(node("reduce_scatter", ["g"], ["r"], dim=0), comm="r", **tp),
            dict(node("all_to_all", ["r"], ["a"], idim=1, odim=0), comm="a", **tp),
            dict(node("all_reduce", ["a"], ["s"], reduce="sum"), comm="s", group=["pp"]),
            dict(
                node("all_reduce", ["r"], ["m"], reduce="mean"),
                comm="m",
                group_at=[{"pp": 0}, {"pp": 1}],
            ),
        ]
        here = dict(tensors)
        if pp == 0:
            here["x"] = {"shape": part, "kind": "input"}
            nodes = [
                dict(node("send", ["x"], []), comm="p", tag=3, to={"pp": 1}),
                dict(node("broadcast", ["x"], []), comm="b", root={"pp": 0}, group=["pp"]),
                *nodes,
            ]
        else:
            here.update({"x": {"shape": part}, "b": {"shape": part}})
            nodes = [
                dict(node("recv", [], ["x"]), comm="p", tag=3, **{"from": {"pp": 0}}),
                dict(node("broadcast", [], ["b"]), comm="b", root={"pp": 0}, group=["pp"]),
                *nodes,
            ]
        programs.append({"at": {"pp": pp}, "tensors": here, "nodes": nodes})
    at0 = {"pp": 0}
    entries = [
        {
            "tensor": "x",
            "role": "input",
            "shards": [
                {"box": whole(part), "step": {"tp": [0, 2]}, "parts": [{"local": "x", "at": at0}]}
            ],
        },
        {
            "tensor": "y",
            "role": "cut_point",
            "shards": [
                {
                    "box": whole(part),
                    "step": {"tp": [0, 2]},
                    "parts": [{"local": "b", "at": {"pp": 1}}],
                }
            ],
        },
        {
            "tensor": "y",
            "role": "output",
            "shards": [{"box": whole(full), "parts": [{"local": "g", "at": {"pp": 1}}]}],
        },
        {
            "tensor": "s",
            "role": "output",
            "shards": [
                {
                    "box": whole(part),
                    "step": {"tp": [0, 2]},
                    "parts": [{"local": "s", "at": {"pp": 0}}],
                }
            ],
        },
    ]
    return m, header(
        "plan", {"mesh": [["pp", 2], ["tp", 2]], "programs": programs, "lineage": entries}
    )


def microbatches():
    """Sums over microbatches, once by lineage and once by the plan, in a stated order."""
    m = model({"x": ([4, 2], X), "y": [2]}, [node("sum", ["x"], ["y"], dim=[0])], ["y"])
    tensors = {
        "x": {"shape": [2, 2], "kind": "input", "per_mb": True},
        "p": {"shape": [2], "per_mb": True},
        "y": {"shape": [2]},
    }
    nodes = [
        dict(node("sum", ["x"], ["p"], dim=[0]), mb=0),
        dict(node("sum", ["x"], ["p"], dim=[0]), mb=1),
        node("add", ["p#0", "p#1"], ["y"]),
    ]
    entries = [
        {
            "tensor": "x",
            "role": "input",
            "shards": [
                {"box": [[0, 2], [0, 2]], "step": {"mb": [2, 0]}, "parts": [{"local": "x"}]}
            ],
        },
        {
            "tensor": "y",
            "role": "cut_point",
            "shards": [{"box": [[0, 2]], "parts": [{"local": "p"}], "sum": ["mb"]}],
        },
        {
            "tensor": "y",
            "role": "cut_point",
            "shards": [
                {"box": [[0, 2]], "parts": [{"local": "p", "mb": 0}, {"local": "p", "mb": 1}]}
            ],
        },
        {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2]], "parts": [{"local": "y"}]}]},
    ]
    return m, header(
        "plan",
        {
            "mesh": [["dp", 3]],
            "microbatches": 2,
            "programs": [{"at": {}, "order": "issue", "tensors": tensors, "nodes": nodes}],
            "lineage": entries,
        },
    )


def text(value):
    return json.dumps(value, separators=(",", ":"))


def both(m, plan):
    return f"{text(m)}\n%%\n{text(plan)}".encode()


def demo():
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(
            [sys.executable, ROOT / "scripts" / "make_demo_plan.py", directory],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        for name in ("mlp", "mlp_dropped_all_reduce"):
            yield (
                name,
                text(
                    json.loads((pathlib.Path(directory) / f"{name}.plan.json").read_text())
                ).encode(),
            )


def prove(program, problems):
    """The forms of all stages, the smallest first, and a small cache."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        for name, (m, plan) in problems.items():
            (directory / "m.json").write_text(text(m))
            file = directory / f"{name}.plan.json"
            file.write_text(text(plan))
            caches = ["all.db"] + (["small.db"] if name == "microbatches" else [])
            for cache in caches:
                done = subprocess.run(
                    [
                        program,
                        "verify",
                        "-q",
                        "-j",
                        "1",
                        "-m",
                        directory / "m.json",
                        "-p",
                        file,
                        "--cache",
                        directory / cache,
                    ],
                    capture_output=True,
                    text=True,
                )
                if done.returncode != 0:
                    sys.exit(f"{name}: exit {done.returncode}: {done.stdout}{done.stderr}")
        with sqlite3.connect(directory / "all.db") as database:
            forms = [
                zlib.decompress(row[0])
                for row in database.execute("SELECT form FROM proofs ORDER BY length(form), form")
            ]
        database.close()
        return forms, (directory / "small.db").read_bytes()


def hlo_programs():
    """(name, bytes) of the programs of tests/plans/hlo, without source locations.

    Single operators, and pairs of whole steps.
    """

    def short(program):
        return re.sub(
            r", metadata=\{[^}]*\}",
            "",
            re.sub(
                r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(.+\n)*", "\n", program
            ),
        )

    folder = ROOT / "tests" / "plans" / "hlo"
    with gzip.open(folder / "operators.json.gz", "rt") as file:
        for k, case in enumerate(json.load(file)):
            yield f"operator{k}", short(case["hlo"]).encode()
    for single in sorted(folder.glob("*.single.hlo.gz")):
        name = single.name.removesuffix(".single.hlo.gz")
        texts = []
        for kind in ("single", "spmd"):
            with gzip.open(folder / f"{name}.{kind}.hlo.gz", "rt") as file:
                texts.append(short(file.read()))
        yield name, "\n%%\n".join(texts).encode()


def trace_file():
    """A rank's trace with the fields of docs/numbers.md: boxes, summands, calls, several dtypes."""
    described = {
        "w": {
            "name": "w",
            "kind": "gradient",
            "order": 0,
            "shape": [4, 2],
            "parts": [[0, [1, 0], [2, 2]], [4, [3, 0], [1, 1]]],
            "sum": ["dp"],
            "call": 1,
        },
        "v": {"name": "v", "kind": "initial", "order": 1, "unknown": ["dp"], "changed": False},
    }
    details = {"rank": 0, "mesh": [["dp", 1]], "notes": ["a note"], "tensors": described}
    entries = {
        "__metadata__": {"format": "shardproof-trace 1", "trace": json.dumps(details)},
        "w": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]},
        "v": {"dtype": "BF16", "shape": [2], "data_offsets": [20, 24]},
    }
    start = json.dumps(entries).encode()
    return len(start).to_bytes(8, "little") + start + bytes(24)


def main():
    directory, program = pathlib.Path(sys.argv[1]), sys.argv[2]

    def write(target, name, content):
        path = directory / target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    problems = {f"{n}_1": (m, on_one_rank(m)) for n, m in {**BY_ROWS, **OTHERS}.items()}
    problems |= {f"{n}_2": (m, on_two_ranks(m)) for n, m in BY_ROWS.items()}
    problems |= {"communication": communication(), "microbatches": microbatches()}
    for name, (m, plan) in problems.items():
        for target in ("read_problem", "verify_plan"):
            write(target, name, both(m, plan))
        write("mutate_plan", name, text(plan).encode())
    for name, plan in demo():
        write("read_problem", name, plan)
        write("read_problem", f"{name}_gz", gzip.compress(plan, mtime=0))
        write("verify_plan", name, plan)
        write("mutate_plan", name, plan)
    for name, program_text in hlo_programs():
        write("read_hlo", name, program_text)
    for target in ("write_report", "cache_file"):
        write(target, "zeros", bytes(64))
        write(target, "ramp", bytes(range(256)))
    write("trace", "parts", trace_file())
    forms, cache = prove(program, problems)
    for i, form in enumerate(forms):
        write("canonical_form", f"form{i}", form)
    write("cache_file", "whole", cache)


if __name__ == "__main__":
    main()
