# SPDX-License-Identifier: Apache-2.0
"""Proof logs: written by `verify --certify`, replayed by `check-log`.

They are refused when they, the plan or the model have changed.
"""

import gzip
import json
import os
import pathlib
import re
import shlex
import shutil
import sqlite3
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from cache import MLP, SMALL, edited, execute, expect, generate, verify, wrong
from plan_edit import EQUIVALENT, INPUT_ERROR, INTERNAL, NOT_EQUIVALENT, USAGE, Runner

SEVERAL_AXES = (
    "gpt",
    *shlex.split(
        "--layers 2 --dim 16 --heads 4 --seq 4 --vocab 16 --dp 4 --tp 2 --pp 2 --microbatches 4"
    ),
)


def certified(runner, *architecture, name="log.json", options=()):
    """A plan and its log in one directory."""
    plan = generate(runner, *architecture)
    log = plan.with_name(name)
    done = verify(runner, plan, options=("--certify", log, *options))
    expect(log.is_file() and done.err == "", f"no log: {done.err}")
    return plan, log


def check(runner, log, *options, expected=EQUIVALENT, says="LOG HOLDS: "):
    done = execute(runner, "check-log", log, "--jobs", 1, *options)
    expect(
        done.code == expected,
        f"expected exit {expected}, got {done.code}: {done.out[:300]} {done.err[:300]}",
    )
    expect(
        says in (done.err if expected in (INPUT_ERROR, USAGE) else done.out),
        f"expected {says!r}: {done.out[:300]} {done.err[:300]}",
    )
    return done


def refused(runner, log, *options, says):
    return check(runner, log, *options, expected=NOT_EQUIVALENT, says=f"LOG DOES NOT HOLD: {says}")


def read(log):
    return json.loads(
        gzip.decompress(log.read_bytes()) if log.suffix == ".gz" else log.read_bytes()
    )


def changed(log, edit, name="changed.json"):
    value = read(log)
    edit(value)
    file = log.with_name(name)
    file.write_text(json.dumps(value))
    return file


def true_logs(runner):
    sizes = []
    for architecture, name in (
        (SMALL, "log.json"),
        (SEVERAL_AXES, "log.json.gz"),
        (MLP, "log.json"),
    ):
        plan, log = certified(runner, *architecture, name=name)
        lemmas = len([e for e in read(log)["lineage"] if e.get("proved")])
        found = log.with_name("found.json")
        done = check(runner, log, "--json", found)
        expect(f"{lemmas} lemmas" in done.out and "all made again" in done.out, done.out)
        # Each class of a right plan has some independent evidence.
        classes = json.loads(found.read_text())["classes"]
        expect(
            len(classes) == len(read(log)["classes"])
            and f"Independent evidence: {len(classes)} proofs" in done.out,
            done.out,
        )
        expect(
            all(c["evidence"] for c in classes),
            f"no evidence for {[c for c in classes if not c['evidence']][:2]}",
        )
        expect(not any("differs_at" in c["execution"] for c in classes), done.out)
        # The whole directory may move. The log alone may not, unless it is given the places of plan
        # and model.
        moved = plan.parent.with_name(plan.parent.name + "-moved")
        plan.parent.rename(moved)
        plan, log = moved / plan.name, moved / log.name
        expect(
            "Independent" not in check(runner, log, "--second", "off").out,
            "evidence that nobody asked for",
        )
        away = runner.path(log.name)
        shutil.copy(log, away)
        check(runner, away, expected=INPUT_ERROR, says="give it with --plan")
        check(runner, away, "--plan", plan, "--model", moved / "g.model.json", "--second", "off")
        sizes.append(f"{log.stat().st_size} bytes")
    return ", ".join(sizes)


def files_changed(runner):
    plan, log = certified(runner, *MLP)
    model = plan.with_name("g.model.json")
    for file, place in ((plan, "/plan/sha256"), (model, "/model/sha256")):
        text = file.read_text()
        file.write_text(text + " ")
        refused(runner, log, says=place)
        file.write_text(text)
    check(runner, log)
    # Another plan that means the same, and one that is wrong.
    refused(runner, log, "--plan", edited(plan, "same", lambda value: None), says="/plan/sha256")
    other = wrong(plan)
    refused(runner, log, "--plan", other, says="/plan/sha256")
    # With the digest put right it is the stage that is another one.
    digest = execute(runner, "check-log", log, "--plan", other).out.split("SHA-256 is ")[1][:64]
    refused(
        runner,
        changed(log, lambda v: v["plan"].update(sha256=digest)),
        "--plan",
        other,
        says="/lineage/",
    )


def log_changed(runner):
    plan, log = certified(runner, *MLP)
    last = max(i for i, e in enumerate(read(log)["lineage"]) if e.get("assumes"))
    entry = lambda v: v["lineage"][last]  # noqa: E731
    refused(runner, changed(log, lambda v: entry(v)["assumes"].clear()), says=f"/lineage/{last}: ")
    refused(
        runner,
        changed(log, lambda v: entry(v).update(assumes=[last])),
        says=f"/lineage/{last}/assumes: leads back",
    )
    refused(
        runner,
        changed(
            log,
            lambda v: v["lineage"].append(
                {**v["lineage"][0], "entry": f"/lineage/{len(v['lineage'])}"}
            ),
        ),
        says="/lineage: has ",
    )
    check(
        runner,
        changed(log, lambda v: v["lineage"].pop()),
        expected=INPUT_ERROR,
        says="an entry that the log does not have",
    )
    refused(runner, changed(log, lambda v: v["outputs"].pop()), says="/outputs: has ")
    refused(
        runner,
        changed(log, lambda v: v["outputs"][0]["entries"].clear()),
        says="/outputs/0/entries: do not cover",
    )

    def another_class(v):
        entry(v)["class"] = next(
            c
            for c in range(len(v["classes"]))
            if c != entry(v)["class"]
            and sum(e.get("class") == entry(v)["class"] for e in v["lineage"]) > 0
        )

    refused(runner, changed(log, another_class), says="/")
    refused(
        runner,
        changed(log, lambda v: v["classes"][0].update(method="polynomial")),
        says="/classes/0: ",
    )
    # What `proved: false` costs: whatever rests on it.
    first = min(i for i, e in enumerate(read(log)["lineage"]) if e.get("proved"))
    refused(
        runner,
        changed(
            log,
            lambda v: v["lineage"].__setitem__(
                first,
                {
                    **{k: v["lineage"][first][k] for k in ("entry", "tensor", "role")},
                    "proved": False,
                },
            ),
        ),
        says="/",
    )


def no_logs(runner):
    plan, log = certified(runner, *MLP)
    text = log.read_text()
    bad = log.with_name("bad.json")
    for cut in (0, 1, len(text) // 3, len(text) // 2, len(text) - 3):
        bad.write_text(text[:cut])
        check(runner, bad, expected=INPUT_ERROR, says="bad.json")
    check(
        runner,
        changed(log, lambda v: v.update(version=0)),
        expected=INPUT_ERROR,
        says="expected version 1",
    )
    check(
        runner,
        changed(log, lambda v: v.update(rules="operators 0, checker 0, Z3 0")),
        expected=INPUT_ERROR,
        says="/rules",
    )
    check(runner, plan, expected=INPUT_ERROR, says="shardproof-proof-log")
    check(runner, log.with_name("none.json"), expected=INPUT_ERROR, says="cannot open")
    compressed = log.with_name("cut.json.gz")
    compressed.write_bytes(gzip.compress(text.encode())[:-20])
    check(runner, compressed, expected=INPUT_ERROR, says="cut off")
    # The log names what is no file: nothing waits for it.
    os.mkfifo(log.with_name("pipe"))
    check(
        runner,
        changed(log, lambda v: v["plan"].update(file="pipe")),
        expected=INPUT_ERROR,
        says="there is no file",
    )
    check(
        runner,
        changed(log, lambda v: v["model"].update(file="x\0y")),
        expected=INPUT_ERROR,
        says="there is no file",
    )


def nothing_to_certify(runner):
    plan, log = certified(runner, *MLP)
    before = log.read_bytes()
    done = verify(runner, wrong(plan), options=("--certify", log), expected=NOT_EQUIVALENT)
    expect("nothing to certify" in done.err and log.read_bytes() == before, f"{done.err}")
    fresh = log.with_name("fresh.json")
    verify(runner, wrong(plan), options=("--certify", fresh), expected=NOT_EQUIVALENT)
    expect(not fresh.exists(), "a log of a wrong plan")
    for arguments in (("--plan", plan, "--plan", plan), ("--plan", plan, "--no-classes")):
        done = execute(runner, "verify", *arguments, "--certify", fresh)
        expect(done.code == USAGE and not fresh.exists(), f"exit {done.code}: {done.err}")
    done = execute(
        runner, "verify", "--plan", plan, "--certify", plan.with_name("none") / "log.json"
    )
    expect(done.code == INTERNAL and "EQUIVALENT" not in done.out, f"exit {done.code}: {done.out}")
    leftovers = [f.name for f in log.parent.iterdir() if f.name.endswith(".tmp")]
    expect(not leftovers, f"{leftovers}")
    for arguments in (
        ("--sample", "0"),
        ("--seed", "1"),
        ("--sample", "2", "--no-reprove"),
        ("--checker", "x"),
    ):
        check(runner, log, *arguments, expected=USAGE, says="")


def options(runner):
    plan, log = certified(runner, *MLP)
    expect("3 made again" in check(runner, log, "--sample", 3, "--seed", 7).out, "the sample")
    expect("none made again" in check(runner, log, "--no-reprove").out, "no proof again")
    check(runner, log, "--checker", "z3")
    expect(len(check(runner, log, "--quiet").out.splitlines()) == 1, "one line")
    log = log.with_name("z3.json")
    verify(runner, plan, options=("--certify", log, "--checker", "z3"))
    expect({c["method"] for c in read(log)["classes"]} == {"z3"}, "methods")
    check(runner, log)


def forged_cache(runner):
    """Who can write the cache can make a wrong plan pass `verify`; its log does not pass."""
    plan, cache = generate(runner, *MLP), runner.path("cache.db")
    verify(runner, plan, options=("--cache", cache))
    log = plan.with_name("log.json")
    # From the cache: a true log all the same.
    verify(runner, plan, options=("--cache", cache, "--certify", log))
    check(runner, log)
    with sqlite3.connect(cache) as database:
        rows = database.execute(
            "SELECT version, checker, method, form, shapes, form_length, created, used, hits "
            "FROM proofs"
        ).fetchall()
        # What a form has for an all_reduce between two: the reduction (0, a sum), two dimensions
        # that it does not have, a member's place, and that each counts once.
        computed = re.compile(rb"\x00(\x00\x00[\x00\x02]\x04\x02\x02)")
        for version, checker, method, form, shapes, _, created, used, hits in rows:
            other = computed.sub(b"\x02\\1", zlib.decompress(form))
            head = f"{version}\n{checker}\n{method}\n{len(shapes)}\n".encode() + shapes.encode()
            database.execute(
                "INSERT INTO proofs (digest, version, checker, method, form, form_length, "
                "shapes, check_sum, created, used, hits) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    zlib.crc32(other),
                    version,
                    checker,
                    method,
                    zlib.compress(other),
                    len(other),
                    shapes,
                    zlib.crc32(head + other),
                    created,
                    used,
                    hits,
                ),
            )
    database.close()
    false_plan = wrong(plan)
    verify(runner, false_plan, expected=NOT_EQUIVALENT)
    verify(runner, false_plan, options=("--cache", cache, "--certify", log), expected=EQUIVALENT)
    done = refused(runner, log, says="/classes/")
    expect("refuted" in done.out, done.out)


def main():
    runner = Runner(sys.argv[1])
    for case in (
        true_logs,
        files_changed,
        log_changed,
        no_logs,
        nothing_to_certify,
        options,
        forged_cache,
    ):
        runner.case(case.__name__, case)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
