# SPDX-License-Identifier: Apache-2.0
"""Input that cannot be read as a problem: exit code 2 and a message with the file and the place.

Where the format calls it a defect of the plan, exit code 10. Never a crash, a hang or a pass.
"""

import copy
import gzip
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import (
    INPUT_ERROR,
    LLAMA,
    NOT_EQUIVALENT,
    PLANS,
    REAL,
    Failure,
    Runner,
    expect_code,
    model_of,
    plan_pointers,
    read_json,
)

LIMIT = 60
SLOW = os.environ.get("SHARDPROOF_SLOW_TESTS") == "1"
CRASH_WORDS = (
    "Traceback",
    "terminate called",
    "Assertion",
    "Sanitizer",
    "Segmentation",
    "core dumped",
    "std::",
    "basic_string",
    "vector::",
    "bad_alloc",
)


def long_message(text):
    """One line for each of up to 20 errors, for each file one more."""
    lines = text.splitlines()
    return len(lines) > 24 or any(len(line) > 2000 for line in lines)


def expect_input_error(result, file, pointer):
    """`pointer`: the JSON pointer expected in the message, or several that are all good.

    None: the input has no place.
    """
    if result.code != INPUT_ERROR:
        raise Failure(f"expected exit {INPUT_ERROR}: {result.summary()}")
    if result.out.strip():
        raise Failure(f"prints a result: {result.out[:200]}")
    if pathlib.Path(file).name not in result.err:
        raise Failure(f"the message does not name {file}: {result.err[:300]}")
    pointers = [pointer] if isinstance(pointer, str) else list(pointer or [])
    if pointers and not any(f"{p}:" in result.err or f"{p}/" in result.err for p in pointers):
        raise Failure(f"the message does not name {' or '.join(pointers)}: {result.err[:300]}")
    crash = [w for w in CRASH_WORDS if w in result.err]
    if crash or long_message(result.err):
        raise Failure(f"not a message for a user: {result.err[:300]}")
    return result.err.strip().replace(str(pathlib.Path(file).parent) + "/", "")[:150]


# ---- small texts as files ----


def text_case(runner, content, which, suffix, pointer):
    """`content` in the place of the model or the plan; the other file is right."""
    file = runner.path(f"bad.{which}.json{suffix}")
    file.write_bytes(content)
    plan, model = (file, model_of(LLAMA)) if which == "plan" else (PLANS / LLAMA, file)
    try:
        return expect_input_error(runner.verify(plan, model, limit=LIMIT), file, pointer)
    finally:
        file.unlink()


def missing_case(runner, which):
    file = runner.directory / "is_not_there.json"
    plan, model = (file, model_of(LLAMA)) if which == "plan" else (PLANS / LLAMA, file)
    return expect_input_error(runner.verify(plan, model), file, None)


def directory_case(runner, which):
    file = runner.path("directory.json")
    file.mkdir()
    plan, model = (file, model_of(LLAMA)) if which == "plan" else (PLANS / LLAMA, file)
    return expect_input_error(runner.verify(plan, model), file, None)


# ---- one edit of a right file ----


def at(value, pointer):
    for key in [k.replace("~1", "/").replace("~0", "~") for k in pointer.split("/")[1:]]:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


DELETE = object()


def put(root, pointer, value):
    parent, _, key = pointer.rpartition("/")
    holder = at(root, parent)
    key = int(key) if isinstance(holder, list) else key
    if value is DELETE:
        del holder[key]
    else:
        holder[key] = value


def edited(runner, which, edit):
    plan, model = read_json(PLANS / LLAMA), read_json(model_of(LLAMA))
    edit(plan if which == "plan" else model)
    plan_file, model_file = runner.path("edited.plan.json"), runner.path("edited.model.json")
    plan_file.write_text(json.dumps(plan))
    model_file.write_text(json.dumps(model))
    try:
        return runner.verify(
            plan_file, model_file, limit=LIMIT
        ), plan_file if which == "plan" else model_file
    finally:
        plan_file.unlink()
        model_file.unlink()


def edit_case(runner, which, edit, pointer):
    return expect_input_error(*edited(runner, which, edit), pointer)


def defect_case(runner, edit, kind, pointers):
    result, _ = edited(runner, "plan", edit)
    expect_code(result, NOT_EQUIVALENT)
    defects = result.report["defects"]
    for i, defect in enumerate(defects[:3]):
        if (kind is None or defect["kind"] == kind) and (
            not pointers or set(pointers) & set(plan_pointers(defect))
        ):
            return f"defect {i}: {defect['kind']}: {defect['message'][:100]}"
    raise Failure(f"no {kind} defect names one of {pointers}: {result.summary()}")


# ---- large and deep files ----


def bounded(runner, file, megabytes, seconds, pointer=None, compressed=False):
    """Runs the program on a large file and measures what it takes."""
    command = [runner.program, "verify", "--plan", str(file), "--model", str(model_of(LLAMA))]

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * 2**20, megabytes * 2**20))

    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
            preexec_fn=limit,
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"did not end within {LIMIT} s") from None
    took = time.monotonic() - start
    if done.returncode != INPUT_ERROR or file.name not in done.stderr:
        raise Failure(f"exit {done.returncode} with {megabytes} MB: {done.stderr[:300]}")
    if any(w in done.stderr for w in CRASH_WORDS) or long_message(done.stderr):
        raise Failure(f"not a message for a user: {done.stderr[:300]}")
    if took > seconds:
        raise Failure(f"took {took:.1f} s")
    return f"{took:.1f} s: {done.stderr.strip().replace(str(file.parent) + '/', '')[:110]}"


HEAD = (
    b'{"format": "shardproof-plan", "version": 1, "name": "x", "model": "m.model.json", "mesh": '
    b'[["dp", 2]], "microbatches": 1, '
)


def large_case(runner, size, pieces, megabytes, seconds):
    """`pieces`: what stands before, again and again, and behind."""
    before, again, behind = pieces
    file = runner.path("large.plan.json")
    block = again * (1 + 2**20 // len(again))
    with open(file, "wb") as out:
        out.write(before)
        written = len(before)
        while written < size:
            written += out.write(block)
        out.write(behind)
    try:
        return bounded(runner, file, megabytes, seconds)
    finally:
        file.unlink()


def sparse_case(runner, size):
    """A file of zero bytes, which takes no room on the disk."""
    file = runner.path("sparse.plan.json")
    with open(file, "wb") as out:
        out.truncate(size)
    try:
        return bounded(runner, file, 512, 5)
    finally:
        file.unlink()


def bomb_case(runner, size, pieces, megabytes, seconds):
    """Little gzip data that holds much text."""
    before, again, behind = pieces
    file = runner.path("bomb.plan.json.gz")
    block = again * (1 + 2**20 // len(again))
    with gzip.open(file, "wb", compresslevel=1) as out:
        out.write(before)
        for _ in range(size // len(block)):
            out.write(block)
        out.write(behind)
    try:
        return bounded(runner, file, megabytes, seconds)
    finally:
        file.unlink()


# ---- the list ----


def texts(runner):
    plan, model = (PLANS / LLAMA).read_bytes(), model_of(LLAMA).read_bytes()
    good = {"plan": plan, "model": model}

    def add(name, which, content, pointer=None, suffix=""):
        runner.case(f"{name}.{which}", text_case, content, which, suffix, pointer)

    for which in ("plan", "model"):
        text = good[which]
        add("empty", which, b"")
        add("blank", which, b" \n\t\n")
        add("garbage", which, bytes(range(256)) * 64)
        add("zeros", which, bytes(4096))
        add("elf", which, b"\x7fELF\x02\x01\x01" + bytes(1000))
        add("not_json", which, b"format: shardproof-plan\nversion: 1\n")
        add("xml", which, b"<?xml version='1.0'?><plan/>")
        add("utf16", which, text[:2000].decode().encode("utf-16"))
        add("bad_utf8", which, text.replace(b'"name": "', b'"name": "\xff\xfe', 1))
        add("trailing_comma", which, text.rstrip()[:-1] + b",}")
        add("trailing_text", which, text + b"{}")
        add("comment", which, b"// a comment\n" + text)
        add("nan", which, text.replace(b'"version": 1', b'"version": NaN', 1), "/version")
        for share in (0.001, 0.3, 0.7, 0.999):
            add(f"truncated.{share}", which, text[: int(len(text) * share)])
        for share in (0.01, 0.5, 0.99):
            packed = gzip.compress(text)
            add(f"truncated_gzip.{share}", which, packed[: int(len(packed) * share)], suffix=".gz")
        add("gzip_checksum", which, gzip.compress(text)[:-8] + bytes(8), suffix=".gz")
        add(
            "gzip_corrupt",
            which,
            (lambda z: z[: len(z) // 2] + bytes(64) + z[len(z) // 2 + 64 :])(gzip.compress(text)),
            suffix=".gz",
        )
        add("plain_named_gz", which, text, suffix=".gz")
        add("gzip_named_plain", which, gzip.compress(text))
        add("empty_gz", which, b"", suffix=".gz")
        for name, value in (
            ("null", b"null"),
            ("number", b"1"),
            ("string", b'"plan"'),
            ("list", b"[]"),
            ("object", b"{}"),
            ("true", b"true"),
        ):
            add(f"only_{name}", which, value)
        add(
            "wrong_format",
            which,
            text.replace(b'"format": "shardproof-', b'"format": "other-', 1),
            "/format",
        )
        add("wrong_version", which, text.replace(b'"version": 1', b'"version": 3', 1), "/version")
        add(
            "version_as_text",
            which,
            text.replace(b'"version": 1', b'"version": "1"', 1),
            "/version",
        )
        add(
            "twice_the_field",
            which,
            text.replace(b'"version": 1', b'"version": 1, "version": 1', 1),
            "/version",
        )
        add("other_file", which, good["model" if which == "plan" else "plan"], "/format")
        add("deep_list", which, b'{"format": ' + b"[" * 200000)
        add("deep_list_closed", which, b"[" * 100000 + b"]" * 100000)
        add("deep_object", which, b'{"a":' * 100000 + b"1" + b"}" * 100000)
        add(
            "deep_unknown_field",
            which,
            text.rstrip()[:-1] + b', "extra": ' + b"[" * 50000 + b"]" * 50000 + b"}",
        )
        runner.case(f"missing.{which}", missing_case, which)
        runner.case(f"directory.{which}", directory_case, which)
    if not REAL:
        return
    add(
        "deep_attribute",
        "plan",
        plan.replace(b'"stop": 51200', b'"stop": ' + b"[" * 20000 + b"]" * 20000, 1),
    )
    add(
        "huge_exponent",
        "plan",
        plan.replace(b'"scalar": 1e-05', b'"scalar": 1e999999999', 1),
        "/programs/0/nodes/7/attrs/scalar",
    )
    add(
        "tiny_exponent",
        "plan",
        plan.replace(b'"scalar": 1e-05', b'"scalar": 1e-99999999999999999999', 1),
        "/programs/0/nodes/7/attrs/scalar",
    )


def edits(runner):
    def add(name, which, edit, pointer):
        runner.case(f"{name}.{which}", edit_case, which, edit, pointer)

    def add_put(name, which, pointer, value, expected=None):
        add(
            name,
            which,
            lambda root: put(root, pointer, value),
            pointer if expected is None else expected,
        )

    plan = read_json(PLANS / LLAMA)
    model = read_json(model_of(LLAMA))
    tensor = next(iter(model["tensors"]))

    # Wrong types, everywhere.
    places = {
        "plan": [
            "/name",
            "/model",
            "/mesh",
            "/mesh/0",
            "/mesh/0/0",
            "/mesh/0/1",
            "/microbatches",
            "/programs",
            "/programs/1",
            "/programs/0/at",
            "/programs/0/at/pp",
            "/programs/0/tensors",
            "/programs/0/tensors/t494.1",
            "/programs/0/tensors/t494.1/shape",
            "/programs/0/tensors/t494.1/shape/0",
            "/programs/0/tensors/t494.1/per_mb",
            "/programs/0/tensors/t621.1/kind",
            "/programs/0/tensors/t621.1/dtype",
            "/programs/0/nodes",
            "/programs/0/nodes/3",
            "/programs/0/nodes/3/op",
            "/programs/0/nodes/3/in",
            "/programs/0/nodes/3/in/0",
            "/programs/0/nodes/3/out",
            "/programs/0/nodes/3/out/0",
            "/programs/0/nodes/0/attrs",
            "/programs/0/nodes/0/attrs/start",
            "/programs/0/nodes/3/mb",
            "/programs/0/nodes/52/comm",
            "/programs/0/nodes/52/group",
            "/programs/0/nodes/52/group/0",
            "/programs/0/nodes/60/to",
            "/programs/0/nodes/60/to/pp",
            "/lineage",
            "/lineage/0",
            "/lineage/0/tensor",
            "/lineage/0/role",
            "/lineage/0/shards",
            "/lineage/0/shards/1",
            "/lineage/0/shards/0/box",
            "/lineage/0/shards/0/box/0",
            "/lineage/0/shards/0/box/0/1",
            "/lineage/0/shards/0/parts",
            "/lineage/0/shards/0/parts/0",
            "/lineage/0/shards/0/parts/0/local",
            "/lineage/0/shards/0/parts/0/at",
            "/lineage/0/shards/0/parts/0/at/pp",
            "/lineage/0/shards/0/step",
            "/lineage/0/shards/0/step/dp",
            "/lineage/0/shards/0/step/dp/0",
        ],
        "model": [
            "/name",
            "/tensors",
            f"/tensors/{tensor}",
            f"/tensors/{tensor}/shape",
            f"/tensors/{tensor}/shape/0",
            f"/tensors/{tensor}/kind",
            f"/tensors/{tensor}/dtype",
            "/nodes",
            "/nodes/2",
            "/nodes/2/op",
            "/nodes/2/in",
            "/nodes/2/in/0",
            "/nodes/2/out",
            "/nodes/2/out/0",
            "/nodes/0/attrs",
            "/nodes/0/attrs/start",
            "/outputs",
            "/outputs/0",
        ],
    }
    for which, pointers in places.items():
        for pointer in pointers:
            here = at(plan if which == "plan" else model, pointer)
            wrong = {"a": 1} if not isinstance(here, dict) else [1]
            add_put(f"wrong_type{pointer.replace('/', '.')}", which, pointer, wrong)
            if not isinstance(here, str):
                expected = [pointer.rpartition("/attrs/")[0] or pointer]
                add_put(
                    f"text_instead{pointer.replace('/', '.')}",
                    which,
                    pointer,
                    "no such thing",
                    expected,
                )
            if not isinstance(here, int) or isinstance(here, bool):
                add_put(f"number_instead{pointer.replace('/', '.')}", which, pointer, -7)
            if not (pointer.endswith(("/in/0", "/out/0"))):
                add_put(f"null_instead{pointer.replace('/', '.')}", which, pointer, None)
    for which in ("plan", "model"):
        for field in (
            "format",
            "version",
            "tensors" if which == "model" else "mesh",
            "nodes" if which == "model" else "programs",
            "outputs" if which == "model" else "lineage",
        ):
            add(f"field_missing.{field}", which, lambda root, field=field: root.pop(field), [""])
        add("field_unknown", which, lambda root: root.update(extra=1), "/extra")

    # Operators and attributes. An attribute's place may be its node: then the message names the
    # attribute.
    power = next(i for i, n in enumerate(model["nodes"]) if n["op"] == "pow")
    for which, node in (("plan", "/programs/0/nodes/5"), ("model", f"/nodes/{power}")):
        add_put("operator_unknown", which, f"{node}/op", "frobnicate")
        add_put("operator_empty", which, f"{node}/op", "")
        add(
            "attribute_unknown",
            which,
            lambda root, node=node: at(root, node)["attrs"].update(colour=3),
            [node],
        )
        add("attribute_missing", which, lambda root, node=node: at(root, node).pop("attrs"), [node])
        add_put("attribute_type", which, f"{node}/attrs/scalar", "two", [node])
        add_put("field_unknown_node", which, f"{node}/colour", 1)
        add_put(
            "operands_too_many",
            which,
            f"{node}/in",
            at(plan if which == "plan" else model, f"{node}/in") * 3,
            [node],
        )
        add_put("operands_none", which, f"{node}/in", [], [node])
        add_put("results_none", which, f"{node}/out", [], [node])
        add_put("name_undefined", which, f"{node}/in/0", "t0.nobody")
        add_put("result_undefined", which, f"{node}/out/0", "t0.nobody")
    add_put("backward_of_nothing", "plan", "/programs/0/nodes/5/op", "frobnicate_backward")
    add_put("communication_in_model", "model", "/nodes/4/op", "all_reduce", ["/nodes/4"])
    chunk = next(i for i, n in enumerate(plan["programs"][0]["nodes"]) if n["op"] == "chunk")
    gather = next(i for i, n in enumerate(plan["programs"][0]["nodes"]) if n["op"] == "all_gather")
    add_put(
        "chunk_index_out_of_range",
        "plan",
        f"/programs/0/nodes/{chunk}/attrs/index",
        2,
        [f"/programs/0/nodes/{chunk}"],
    )
    add_put(
        "chunk_index_negative",
        "plan",
        f"/programs/0/nodes/{chunk}/attrs/index",
        -1,
        [f"/programs/0/nodes/{chunk}"],
    )
    add_put(
        "chunk_parts_zero",
        "plan",
        f"/programs/0/nodes/{chunk}/attrs/parts",
        0,
        [f"/programs/0/nodes/{chunk}"],
    )
    # A dimension out of range depends on the operand: a defect of the plan and not an input error.
    add_put(
        "gather_dim_out_of_range",
        "plan",
        f"/programs/0/nodes/{gather}/attrs/dim",
        7,
        [f"/programs/0/nodes/{gather}"],
    )
    add_put(
        "reduce_unknown",
        "plan",
        "/programs/0/nodes/52/attrs",
        {"reduce": "median"},
        ["/programs/0/nodes/52/attrs"],
    )
    add_put(
        "group_unknown_axis",
        "plan",
        "/programs/0/nodes/52/group",
        ["xp"],
        ["/programs/0/nodes/52/group"],
    )
    add_put(
        "group_axis_twice",
        "plan",
        "/programs/0/nodes/52/group",
        ["tp", "tp"],
        ["/programs/0/nodes/52/group"],
    )
    add_put("peer_outside_mesh", "plan", "/programs/0/nodes/60/to/pp", 2)
    add_put(
        "peer_unknown_axis",
        "plan",
        "/programs/0/nodes/60/to",
        {"xp": 0},
        ["/programs/0/nodes/60/to"],
    )
    add_put("mb_outside", "plan", "/programs/0/nodes/3/mb", 2)
    add_put("mb_text", "plan", "/programs/0/nodes/3/mb", "all")
    add_put(
        "name_of_microbatch_outside",
        "plan",
        "/programs/0/nodes/3/in/0",
        plan["programs"][0]["nodes"][3]["in"][0] + "#2",
    )
    add_put(
        "name_of_microbatch_text",
        "plan",
        "/programs/0/nodes/3/in/0",
        plan["programs"][0]["nodes"][3]["in"][0] + "#x",
    )

    # Names and single assignment in the model.
    add_put("output_undefined", "model", "/outputs/0", "t0.nobody")
    add(
        "two_producers",
        "model",
        lambda root: root["nodes"][6].update(out=root["nodes"][5]["out"]),
        ["/nodes/6", f"/tensors/{model['nodes'][6]['out'][0]}"],
    )
    add(
        "producer_later",
        "model",
        lambda root: root["nodes"].append(root["nodes"].pop(4)),
        ["/nodes/4", "/nodes/5"],
    )
    add("never_produced", "model", lambda root: root["nodes"].pop(4), ["/nodes", "/tensors"])
    add(
        "input_without_kind",
        "model",
        lambda root: root["tensors"]["t503.0"].pop("kind"),
        ["/nodes", "/tensors"],
    )
    add_put("kind_unknown", "model", "/tensors/t503.0/kind", "weight")
    add_put("dtype_unknown", "model", "/tensors/t503.0/dtype", "float31")

    # Shapes.
    add_put(
        "shape_does_not_fit",
        "model",
        "/tensors/t496.1/shape",
        [512, 128, 4095],
        ["/tensors/t496.1", "/nodes"],
    )
    add_put(
        "weight_does_not_fit",
        "model",
        "/tensors/t505.0/shape",
        [4096, 4095],
        ["/tensors/t505.0", "/nodes"],
    )
    add_put(
        "view_does_not_fit",
        "model",
        "/tensors/t511.1/shape",
        [512, 128, 32, 127],
        ["/tensors/t511.1", "/nodes"],
    )
    add_put(
        "rank_does_not_fit",
        "model",
        "/tensors/t496.1/shape",
        [512, 128],
        ["/tensors/t496.1", "/nodes"],
    )
    for name, size in (
        ("negative", -1),
        ("zero", 0),
        ("fraction", 1.5),
        ("over_64_bits", 2**64),
        ("at_64_bits", 2**63),
    ):
        add_put(f"size_{name}", "model", "/tensors/t496.1/shape/2", size)
        add_put(f"size_{name}", "plan", "/programs/0/tensors/t496.1/shape/2", size)
    for which, pointer in (
        ("model", "/tensors/t496.1/shape"),
        ("plan", "/programs/0/tensors/t496.1/shape"),
    ):
        add_put("product_over_64_bits", which, pointer, [2**32, 2**32, 2], [pointer])
        add_put("product_of_many", which, pointer, [2] * 100, [pointer])
    add_put("box_over_64_bits", "plan", "/lineage/0/shards/0/box/0/1", 2**64)
    add_put(
        "step_over_64_bits",
        "plan",
        "/lineage/0/shards/0/step/dp/0",
        2**63 - 1,
        ["/lineage/0/shards/0"],
    )
    add_put(
        "mesh_over_64_bits", "plan", "/mesh", [["dp", 2**40], ["pp", 2**40], ["tp", 2]], ["/mesh"]
    )
    add_put("mesh_size_zero", "plan", "/mesh/0/1", 0)
    add_put("mesh_size_negative", "plan", "/mesh/0/1", -2)
    add_put("mesh_axis_twice", "plan", "/mesh/0/0", "pp", ["/mesh"])
    add_put("microbatches_zero", "plan", "/microbatches", 0)
    add_put("microbatches_huge", "plan", "/microbatches", 2**40)

    # Ranks.
    add("rank_uncovered", "plan", lambda root: root["programs"].pop(1), ["/programs"])
    add(
        "rank_covered_twice",
        "plan",
        lambda root: root["programs"].append(copy.deepcopy(root["programs"][0])),
        ["/programs/4/at"],
    )
    add_put("rank_covered_by_free_axis", "plan", "/programs/0/at", {"tp": 0}, ["/programs"])
    add_put("program_without_at", "plan", "/programs/0/at", {}, ["/programs"])
    add_put("at_outside_mesh", "plan", "/programs/0/at/pp", 2)
    add_put(
        "at_unknown_axis", "plan", "/programs/0/at", {"xp": 0, "pp": 0, "tp": 0}, ["/programs/0/at"]
    )
    add_put("no_programs", "plan", "/programs", [], ["/programs"])

    # Lineage.
    add_put("lineage_tensor_undefined", "plan", "/lineage/3/tensor", "t0.nobody")
    add_put(
        "lineage_local_undefined",
        "plan",
        "/lineage/3/shards/0/parts/0/local",
        "t0.nobody",
        ["/lineage/3/shards/0/parts/0"],
    )
    add_put(
        "lineage_local_on_other_rank",
        "plan",
        "/lineage/2/shards/0/parts/0/at/pp",
        1,
        ["/lineage/2/shards/0/parts/0"],
    )
    add_put("lineage_role_unknown", "plan", "/lineage/3/role", "lemma")
    add_put(
        "box_outside", "plan", "/lineage/2/shards/0/box/2", [1, 4097], ["/lineage/2/shards/0/box"]
    )
    add_put(
        "box_negative", "plan", "/lineage/2/shards/0/box/2", [-1, 4095], ["/lineage/2/shards/0/box"]
    )
    add_put(
        "box_inverted", "plan", "/lineage/2/shards/0/box/2", [4096, 0], ["/lineage/2/shards/0/box"]
    )
    add_put("box_empty", "plan", "/lineage/2/shards/0/box/2", [5, 5], ["/lineage/2/shards/0/box"])
    add_put(
        "box_of_other_rank",
        "plan",
        "/lineage/2/shards/0/box",
        [[0, 128], [0, 128]],
        ["/lineage/2/shards/0"],
    )
    add_put(
        "box_of_other_size", "plan", "/lineage/2/shards/0/box/2", [0, 4095], ["/lineage/2/shards/0"]
    )
    add_put(
        "box_steps_outside",
        "plan",
        "/lineage/2/shards/0/step/dp",
        [512, 0, 0],
        ["/lineage/2/shards/0"],
    )
    add_put(
        "step_short", "plan", "/lineage/2/shards/0/step/dp", [256], ["/lineage/2/shards/0/step/dp"]
    )
    add_put(
        "step_unknown_axis",
        "plan",
        "/lineage/2/shards/0/step",
        {"xp": [1, 0, 0]},
        ["/lineage/2/shards/0/step"],
    )
    add_put(
        "sum_unknown_axis", "plan", "/lineage/2/shards/0/sum", ["xp"], ["/lineage/2/shards/0/sum"]
    )
    add_put(
        "sum_of_fixed_axis", "plan", "/lineage/2/shards/0/sum", ["tp"], ["/lineage/2/shards/0/sum"]
    )
    add_put(
        "sum_axis_twice", "plan", "/lineage/2/shards/0/sum", ["dp", "dp"], ["/lineage/2/shards/0"]
    )
    add_put("sum_and_step", "plan", "/lineage/2/shards/0/sum", ["dp"], ["/lineage/2/shards/0"])
    add_put("no_shards", "plan", "/lineage/2/shards", [], ["/lineage/2"])
    # Declared with too few dimensions for the node that reads it. No program can run that, while a
    # size that does not fit is a defect.
    add(
        "dimension_beyond_the_rank",
        "plan",
        lambda root: (
            put(root, "/programs/0/tensors/t497.1/shape", [128, 128]),
            root.update(lineage=[e for e in root["lineage"] if e["tensor"] != "t497.1"]),
        ),
        ["/programs/0/nodes/6/attrs/dim"],
    )
    add(
        "node_produces_an_input",
        "plan",
        lambda root: root["programs"][0]["nodes"][3].update(out=["t503.0"]),
        ["/lineage/14", "/programs/0"],
    )
    add_put("no_parts", "plan", "/lineage/2/shards/0/parts", [], ["/lineage/2/shards/0/parts"])
    add("input_without_lineage", "plan", lambda root: root["lineage"].pop(0), ["/lineage"])
    add("output_without_lineage", "plan", lambda root: root["lineage"].pop(), ["/lineage"])
    add(
        "output_not_covered",
        "plan",
        lambda root: [
            s.update(box=[[0, 5504], [0, 4096]])
            for e in root["lineage"]
            if e["tensor"] == "t684.1" and e["role"] == "output"
            for s in e["shards"]
        ],
        ["/lineage"],
    )
    add_put("lineage_empty", "plan", "/lineage", [], ["/lineage"])


def defects(runner):
    def add(name, edit, kind, pointers=()):
        runner.case(f"defect.{name}", defect_case, edit, kind, pointers)

    def first(root, program, op, **fields):
        return next(
            i
            for i, n in enumerate(root["programs"][program]["nodes"])
            if n["op"] == op and all(n.get(k) == v for k, v in fields.items())
        )

    def nodes(root, program):
        return root["programs"][program]["nodes"]

    def shape(root, tensor, value):
        put(root, f"/programs/0/tensors/{tensor}/shape", value)
        # Lineage of another shape than its local tensor cannot be read, which comes first.
        root["lineage"] = [e for e in root["lineage"] if e["tensor"] != tensor]

    add(
        "shape_does_not_fit",
        lambda r: shape(r, "t496.1", [128, 128, 4095]),
        "shape",
        ["/programs/0/nodes/3", "/programs/0/nodes/4"],
    )
    add(
        "rank_does_not_fit",
        lambda r: shape(r, "t496.1", [128, 128]),
        "shape",
        ["/programs/0/nodes/3"],
    )
    add(
        "view_size_over_64_bits",
        lambda r: put(r, "/programs/0/nodes/16/attrs/size", [2**40, 2**40, 1]),
        "shape",
        ["/programs/0/nodes/16"],
    )
    add(
        "group_of_itself",
        lambda r: nodes(r, 0)[52].update(group=[]),
        "collective",
        ["/programs/0/nodes/52", "/programs/1/nodes/52"],
    )
    add(
        "view_does_not_fit",
        lambda r: put(r, "/programs/0/nodes/16/attrs/size", [128, 128, 31, 128]),
        "shape",
        ["/programs/0/nodes/16"],
    )
    add(
        "gathered_shape",
        lambda r: nodes(r, 2)[first(r, 2, "all_gather")]["attrs"].update(dim=2),
        "shape",
        ["/programs/2/nodes/1"],
    )
    add(
        "two_producers",
        lambda r: nodes(r, 0)[7].update(out=list(nodes(r, 0)[6]["out"])),
        None,
        ["/programs/0/nodes/7", "/programs/0/nodes/6"],
    )
    add("never_produced", lambda r: nodes(r, 0).pop(6), None, ["/programs/0/nodes/6"])
    add(
        "produced_later",
        lambda r: nodes(r, 0).insert(20, nodes(r, 0).pop(6)),
        None,
        ["/programs/0/nodes/6", "/programs/0/nodes/20"],
    )
    add("one_microbatch_never_produced", lambda r: nodes(r, 0)[6].update(mb=0), None)
    add("member_never_joins", lambda r: nodes(r, 0).pop(first(r, 0, "all_reduce")), None)
    add(
        "member_joins_twice",
        lambda r: (
            r["programs"][0]["tensors"].update(again=dict(r["programs"][0]["tensors"]["t550.1"])),
            nodes(r, 0).insert(53, dict(nodes(r, 0)[52], out=["again"])),
        ),
        "collective",
        ["/programs/0/nodes/52", "/programs/0/nodes/53", "/programs/1/nodes/52"],
    )
    add("member_for_one_microbatch", lambda r: nodes(r, 0)[52].update(mb=0), None)
    add(
        "group_differs",
        lambda r: nodes(r, 0)[52].update(group=["dp"]),
        "collective",
        ["/programs/0/nodes/52", "/programs/1/nodes/52"],
    )
    add(
        "rank_not_in_its_group",
        lambda r: (nodes(r, 0)[52].pop("group"), nodes(r, 0)[52].update(group_at=[{"tp": 1}])),
        "collective",
        ["/programs/0/nodes/52"],
    )
    add(
        "reduction_differs",
        lambda r: nodes(r, 0)[52].update(attrs={"reduce": "max"}),
        "collective",
        ["/programs/0/nodes/52", "/programs/1/nodes/52"],
    )
    add(
        "operator_differs",
        lambda r: nodes(r, 0)[52].update(op="all_gather", attrs={"dim": 0}),
        None,
        ["/programs/0/nodes/52", "/programs/1/nodes/52"],
    )
    add("send_without_receive", lambda r: nodes(r, 2).pop(first(r, 2, "recv")), None)
    add("receive_without_send", lambda r: nodes(r, 0).pop(first(r, 0, "send")), None)
    add(
        "send_to_itself",
        lambda r: nodes(r, 0)[60].update(to={"pp": 0}),
        "send-receive",
        ["/programs/0/nodes/60"],
    )
    add(
        "send_shape_differs",
        lambda r: nodes(r, 0)[60].update({"in": ["t556.1"]}),
        "send-receive",
        ["/programs/0/nodes/60", "/programs/2/nodes/0"],
    )

    # Cyclic waits.
    def swap(root, program, a, b):
        n = nodes(root, program)
        n[a], n[b] = n[b], n[a]

    def collectives_crossed(root):
        reductions = [i for i, n in enumerate(nodes(root, 0)) if n.get("group") == ["dp"]]
        # On one replica only, so that the free axis has to be written out.
        made = []
        for p in root["programs"]:
            for c in range(2):
                each = copy.deepcopy(p)
                each["at"] = {"dp": c, **p["at"]}
                made.append(each)
        root["programs"] = made
        swap(root, 1, reductions[0], reductions[1])

    def tensor_parallel_crossed(root):
        # Two gathers that do not depend on one another: rank 0 issues them in one order, rank 1 in
        # the other.
        gathers = [i for i, n in enumerate(nodes(root, 3)) if n["op"] == "all_gather"]
        n = nodes(root, 3)
        moved = [n[i] for i in (gathers[0] - 1, gathers[0], gathers[1] - 1, gathers[1])]
        n[gathers[0] - 1 : gathers[1] + 1] = [moved[0], moved[2], moved[3], moved[1]]

    def receives_first(root):
        """Each side of a pipeline waits for the other's message before it sends its own."""
        back = next(n for n in nodes(root, 0) if n["op"] == "recv")
        forward = next(i for i, n in enumerate(nodes(root, 0)) if n["op"] == "send")
        nodes(root, 0).remove(back)
        nodes(root, 0).insert(forward, back)

    def sends_crossed(root):
        """Two messages that the receiver takes in the other order."""
        n = nodes(root, 2)
        first_receive, second_receive = [i for i, m in enumerate(n) if m["op"] == "recv"][:2]
        n[first_receive : second_receive + 1] = [n[second_receive], n[first_receive]] + n[
            first_receive + 1 : second_receive
        ]

    add("deadlock.collectives", collectives_crossed, "deadlock")
    add("deadlock.gathers", tensor_parallel_crossed, "deadlock")
    add("deadlock.pipeline", receives_first, "deadlock")
    add("deadlock.messages", sends_crossed, "deadlock")


def large(runner):
    small = 1 << 24
    sizes = [("16MB", small)] + ([("1GB", 1 << 30)] if SLOW else [])
    entry = (
        b'{"tensor": "t", "role": "checkpoint", "shards": [{"box": [[0, 1]], "parts": [{"local": '
        b'"t"}]}]},'
    )
    node = b'{"op": "identity", "in": ["t"], "out": ["t"]},'
    kinds = {
        "blanks": (HEAD, b" ", b"}"),
        "blanks_only": (b"", b" ", b""),
        "digits": (HEAD + b'"microbatches": ', b"7", b"}"),
        "fraction": (HEAD + b'"microbatches": 0.', b"3", b"}"),
        "string": (HEAD + b'"name": "', b"x", b'"}'),
        "unclosed_string": (HEAD + b'"name": "', b"x", b""),
        "brackets": (HEAD + b'"lineage": ', b"[", b""),
        "mesh": (HEAD + b'"mesh": [', b'["x", 1],', b'["y", 1]]}'),
        "unknown_field": (HEAD + b'"extra": [', b"1,", b"1]}"),
        "shape": (
            HEAD + b'"programs": [{"at": {}, "tensors": {"t": {"shape": [',
            b"1,",
            b"1]}}}]}",
        ),
        "lineage": (HEAD + b'"lineage": [', entry, entry[:-1] + b"]}"),
        "nodes": (
            HEAD + b'"programs": [{"at": {}, "tensors": {"t": {"shape": [1], "kind": "input"}}, '
            b'"nodes": [',
            node,
            node[:-1] + b"]}]}",
        ),
    }
    for size_name, size in sizes:
        runner.case(f"sparse.{size_name}", sparse_case, size)
        for kind, pieces in kinds.items():
            runner.case(
                f"large.{kind}.{size_name}",
                large_case,
                size,
                pieces,
                12000 if size > small else 2048,
                55 if size > small else 5,
            )
        for kind in ("blanks", "digits", "string", "brackets"):
            runner.case(
                f"bomb.{kind}.{size_name}",
                bomb_case,
                size,
                kinds[kind],
                12000 if size > small else 2048,
                55 if size > small else 5,
            )
    runner.case("sparse.1GB.always", sparse_case, 1 << 30)
    runner.case("sparse.1TB.always", sparse_case, 1 << 40)


def main():
    runner = Runner(sys.argv[1])
    texts(runner)
    if REAL:
        # These name places of the real plan; tests/reader/hostile_test.cpp has such edits of small
        # ones.
        edits(runner)
        defects(runner)
    large(runner)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
