# SPDX-License-Identifier: Apache-2.0
"""The proof cache and runs over several plans.

Generated plans, real processes, files in every state.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import resource
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import EQUIVALENT, INPUT_ERROR, NOT_EQUIVALENT, RUN_LIMIT, USAGE, Failure, Runner

SMALL = (
    "llama3",
    *shlex.split(
        "--layers 2 --dim 8 --hidden 16 --heads 2 --kv-heads 2 --seq 4 --vocab 16 --tp 2 --dp 2 "
        "--pp 2 --microbatches 2"
    ),
)
MLP = ("mlp", "--dp", "2", "--tp", "2")
TIMES = ("seconds", "seconds_by_phase", "peak_memory_bytes", "classes_from_cache", "workers_lost")


class Done:
    def __init__(self, code, out, err, report):
        self.code, self.out, self.err, self.report = code, out, err, report

    @property
    def classes(self):
        return self.report["statistics"]["classes"]

    @property
    def hits(self):
        return self.report["statistics"]["classes_from_cache"]


def expect(condition, message):
    if not condition:
        raise Failure(message)


def execute(runner, *arguments, limit=RUN_LIMIT, **keywords):
    done = subprocess.run(
        [runner.program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
        **keywords,
    )
    return Done(done.returncode, done.stdout, done.stderr, None)


def verify(runner, *plans, options=(), expected=EQUIVALENT, **keywords):
    report = runner.path("report.json")
    done = execute(
        runner,
        "verify",
        *[a for p in plans for a in ("--plan", p)],
        "--json",
        report,
        "--jobs",
        1,
        "--confirm",
        "off",
        *options,
        **keywords,
    )
    done.report = (
        json.loads(report.read_text()) if report.is_file() and report.stat().st_size else None
    )
    report.unlink(missing_ok=True)
    expect(
        done.code == expected,
        f"expected exit {expected}, got {done.code}: {done.out[:300]} {done.err[:300]}",
    )
    return done


def generate(runner, *options, directory=None, name="g"):
    directory = directory or runner.path("plans")
    directory.mkdir(exist_ok=True)
    done = execute(runner, "generate", *options, "-o", directory / name)
    expect(done.code == 0, f"generate: {done.err}")
    return directory / f"{name}.plan.json"


def edited(plan, name, edit):
    """A copy of the plan beside it, with `edit` applied."""
    value = json.loads(plan.read_text())
    edit(value)
    file = plan.with_name(f"{name}.plan.json")
    file.write_text(json.dumps(value))
    return file


def wrong(plan, name="wrong"):
    """The first all_reduce that sums gives the mean."""

    def edit(value):
        node = next(
            n
            for p in value["programs"]
            for n in p["nodes"]
            if n["op"] == "all_reduce" and n.get("attrs", {}).get("reduce", "sum") == "sum"
        )
        node.setdefault("attrs", {})["reduce"] = "mean"

    return edited(plan, name, edit)


def lasting(report):
    """What two runs must agree on."""
    report = json.loads(json.dumps(report))
    for timed in (*report["stages"], *report["attempts"]):
        timed.pop("seconds")
    for key in TIMES:
        report["statistics"].pop(key)
    return report


def warm_run(runner):
    plan, cache = generate(runner, *SMALL), runner.path("cache.db")
    cold = verify(runner, plan, options=("--cache", cache))
    expect(cold.hits == 0, f"{cold.hits} proofs from an empty cache")
    warm = verify(runner, plan, options=("--cache", cache))
    expect(
        warm.hits == warm.classes == cold.classes > 50,
        f"{warm.hits} of {warm.classes} classes from the cache",
    )
    expect(
        lasting(warm.report) == lasting(cold.report) == lasting(verify(runner, plan).report),
        "the reports differ",
    )
    expect(
        f"{warm.hits} of {warm.classes} classes were proved before" in warm.out,
        "the text does not say it",
    )
    expect(not (cold.err or warm.err), f"{cold.err} {warm.err}")
    others = [
        f.name for f in cache.parent.iterdir() if f.name.startswith(cache.name) and f != cache
    ]
    expect(not others, f"{others} were left beside the cache")
    return f"{warm.hits} classes"


def edited_layer(runner):
    """Another epsilon in the first layer of model and plan.

    What does not depend on it keeps its proof.
    """
    plan, cache = generate(runner, *SMALL), runner.path("cache.db")
    verify(runner, plan, options=("--cache", cache))

    model_file = plan.with_name("g.model.json")
    model = json.loads(model_file.read_text())
    value = json.loads(plan.read_text())
    nodes = [n for n in model["nodes"] if n["op"] == "rms_norm"]
    expect(
        len(nodes) > 2,
        f"the model has {len(nodes)} rms_norm: {sorted({n['op'] for n in model['nodes']})}",
    )
    # The weight tells which one it is, on both sides and in the gradient.
    weight = nodes[0]["in"][1]
    changed = 0
    for graph in (model, *value["programs"]):
        for node in graph["nodes"]:
            if node["op"].startswith("rms_norm") and any(
                isinstance(i, str) and i.split("#")[0] == weight for i in node["in"]
            ):
                node["attrs"]["eps"] = 0.125
                changed += 1
    expect(changed >= 3, f"{changed} nodes were changed")
    model_file.with_name("e.model.json").write_text(json.dumps(model))
    value["model"] = "e.model.json"
    file = plan.with_name("e.plan.json")
    file.write_text(json.dumps(value))
    warm = verify(runner, file, options=("--cache", cache))
    fresh = warm.classes - warm.hits
    expect(0 < fresh < 10, f"{fresh} of {warm.classes} classes were proved again")
    again = verify(runner, file, options=("--cache", cache))
    expect(again.hits == again.classes, "the new proofs were not kept")
    expect(lasting(again.report) == lasting(verify(runner, file).report), "the reports differ")
    return f"{fresh} of {warm.classes} classes again"


def wrong_plan_after_warm_cache(runner):
    plan, cache = generate(runner, *SMALL), runner.path("cache.db")
    bad = wrong(plan)
    verify(runner, plan, options=("--cache", cache))
    expected = verify(runner, bad, expected=NOT_EQUIVALENT)
    for _ in range(2):
        done = verify(runner, bad, options=("--cache", cache), expected=NOT_EQUIVALENT)
        expect(done.hits > 0, "nothing came from the cache")
        expect(
            done.report["defects"] == expected.report["defects"],
            "the defects differ from those without a cache",
        )
    done = verify(runner, plan, options=("--cache", cache))
    expect(done.hits == done.classes, "the right plan's proofs are gone")
    expect(
        execute(runner, "cache", "verify", cache, "--sample", 100000).code == 0,
        "the cache holds a wrong proof",
    )
    return f"{done.hits} classes"


def concurrent_runs(runner, runs):
    plans = [
        generate(runner, *SMALL),
        generate(runner, *MLP),
        generate(runner, *SMALL, "--zero", 1),
    ]
    plans += [wrong(p) for p in plans[:1]]
    verdicts = [EQUIVALENT, EQUIVALENT, EQUIVALENT, NOT_EQUIVALENT]
    cache = runner.path("cache.db")

    def one(i):
        return verify(
            runner,
            plans[i % 4],
            options=("--cache", cache),
            expected=verdicts[i % 4],
            limit=4 * RUN_LIMIT,
        )

    with concurrent.futures.ThreadPoolExecutor(runs) as pool:
        for done in pool.map(one, range(runs)):
            expect(not done.err, done.err)
    with sqlite3.connect(cache) as database:
        expect(
            database.execute("PRAGMA integrity_check").fetchone() == ("ok",), "the file is damaged"
        )
        rows, distinct = database.execute(
            "SELECT count(*), count(DISTINCT form) FROM proofs"
        ).fetchone()
    database.close()
    expect(rows == distinct, f"{rows} rows, {distinct} of them distinct")
    done = execute(runner, "cache", "verify", cache, "--sample", 100000)
    expect(done.code == 0, done.out)
    return f"{runs} runs, {rows} proofs"


def change(cache, sql):
    with sqlite3.connect(cache) as database:
        changed = database.execute(sql).rowcount
    database.close()
    return changed


def merged(runner):
    """Caches of several machines become one; what is damaged or of another version is left out."""
    first, second = generate(runner, *MLP), generate(runner, *SMALL, name="s")
    one, two, every = (runner.path(f"{name}.db") for name in ("one", "two", "every"))
    verify(runner, first, options=("--cache", one))
    cold = verify(runner, second, options=("--cache", two))
    for _ in range(2):  # the second time nothing is added
        done = execute(runner, "cache", "merge", every, one, two)
        expect(done.code == 0 and "the last row is" in done.out, done.out + done.err)
        rows = change(every, "UPDATE proofs SET hits = hits")
    parts = [change(cache, "UPDATE proofs SET hits = hits") for cache in (one, two)]
    expect(max(parts) < rows <= sum(parts), f"{rows} proofs of {parts}")
    for plan in (first, second):
        warm = verify(runner, plan, options=("--cache", every))
        expect(warm.hits == warm.classes, f"{warm.hits} of {warm.classes}")
    # Only what is new, by the number of the last row that was read.
    last = int(done.out.split("the last row is ")[-1])
    part = runner.path("part.db")
    done = execute(runner, "cache", "merge", part, two, "--after", last)
    expect(done.code == 0 and ": 0 proofs read" in done.out, done.out)
    change(two, "UPDATE proofs SET check_sum = check_sum + 1 WHERE id = 1")
    change(two, "UPDATE proofs SET version = 'other' WHERE id = 2")
    done = execute(runner, "cache", "merge", part, two)
    left = change(part, "UPDATE proofs SET hits = hits")
    expect(left == parts[1] - 2 and "1 damaged" in done.out, f"{left} of {parts[1]}: {done.out}")
    expect(execute(runner, "cache", "merge", part, "none.db").code == INPUT_ERROR, "no file")
    return f"{rows} proofs of {cold.classes} classes and others"


def open_stages(runner):
    """What is proved elsewhere is found, and a wrong plan stays wrong."""
    plan = generate(runner, *SMALL)
    bad = wrong(plan)
    stages, cache = runner.path("stages"), runner.path("cache.db")
    for file, expected in ((plan, EQUIVALENT), (bad, NOT_EQUIVALENT)):
        alone = verify(runner, file, expected=expected)
        done = execute(runner, "verify", "--plan", file, "--cache", cache, "--open-stages", stages)
        expect(done.code == 0 and done.out == "", done.out + done.err)
        done = execute(runner, "worker", stages, "--cache", cache)
        expect(done.code == 0 and " proved, " in done.out, done.out + done.err)
        known = subprocess.run(
            [runner.program, "worker", "-", "--cache", cache],
            input=stages.read_bytes(),
            capture_output=True,
        )
        expect(known.returncode == 0 and b": 0 proved, " in known.stdout, str(known))
        after = verify(runner, file, options=("--cache", cache), expected=expected)
        reports = [lasting(after.report), lasting(alone.report)]
        for stage in (*reports[0]["stages"], *reports[1]["stages"]):
            stage.pop("reduced_shapes")  # which of several names are listed depends on the names
        expect(reports[0] == reports[1], f"{file}: the reports differ")
        expect(after.hits > after.classes / 2, f"{after.hits} of {after.classes}")
    done = execute(runner, "worker", plan, "--cache", cache)
    expect(done.code == INPUT_ERROR and "a list of stages" in done.err, done.err)
    return done.err.strip()[-100:]


def other_version(runner):
    """Proofs that other sources made: not believed, told apart, and removed by prune."""
    plan, cache = generate(runner, *MLP), runner.path("cache.db")
    cold = verify(runner, plan, options=("--cache", cache))
    change(cache, "UPDATE proofs SET version = replace(version, 'sources ', 'sources 0')")
    warm = verify(runner, plan, options=("--cache", cache))
    expect(
        warm.hits == 0 and warm.classes == cold.classes,
        f"{warm.hits} proofs of another version were believed",
    )
    stats = execute(runner, "cache", "stats", cache)
    expect(
        stats.code == 0
        and "not used by this program" in stats.out
        and f": {2 * cold.classes} proofs" in stats.out,
        stats.out,
    )
    pruned = execute(runner, "cache", "prune", cache)
    expect(
        pruned.code == 0 and f"removed {cold.classes} proofs of other versions" in pruned.out,
        pruned.out,
    )
    expect(
        verify(runner, plan, options=("--cache", cache)).hits == cold.classes,
        "the proofs of this version are gone",
    )
    return f"{cold.classes} rows"


def expect_goes_on(runner, plan, cache, why, **keywords):
    done = verify(runner, plan, options=("--cache", cache), **keywords)
    lines = done.err.splitlines()
    expect(
        len(lines) == 1
        and lines[0].startswith("shardproof: warning: ")
        and why in lines[0]
        and str(cache) in lines[0],
        f"expected one line with '{why}': {done.err}",
    )
    return done


def useless_files(runner):
    plan = generate(runner, *MLP)
    text, foreign, cut, row = (runner.path(n) for n in ("text", "foreign.db", "cut.db", "row.db"))
    text.write_text("a text that someone wants to keep\n" * 20)
    change(foreign, "CREATE TABLE t (x)")
    for file in (cut, row):
        verify(runner, plan, options=("--cache", file))
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    change(row, "UPDATE proofs SET method = 2")
    for file, why in (
        (text, "not a database"),
        (foreign, "not a proof cache"),
        (cut, "malformed"),
        (row, "damaged row"),
        (runner.directory, "not a regular file"),
        (runner.directory / "none" / "c.db", "unable to open"),
    ):
        before = file.read_bytes() if file in (text, foreign) else None
        done = expect_goes_on(runner, plan, file, why)
        expect(done.hits == 0, f"{file.name}: {done.hits} proofs")
        expect(before is None or file.read_bytes() == before, f"{file.name} was changed")
    for file in (text, foreign, runner.directory / "none"):
        for command in ("stats", "prune", "verify"):
            done = execute(runner, "cache", command, file)
            expect(
                done.code == INPUT_ERROR and done.err and not done.out,
                f"cache {command} {file.name}: exit {done.code}",
            )
    done = execute(runner, "cache", "verify", row)
    expect(
        done.code == NOT_EQUIVALENT and "not what was written" in done.out,
        f"exit {done.code}: {done.out}",
    )
    return "6 files"


def bytes_changed(runner, times):
    """Whatever happens to the file, no verdict changes."""
    plan, cache = generate(runner, *MLP), runner.path("cache.db")
    bad = wrong(plan)
    verify(runner, plan, bad, options=("--cache", cache), expected=NOT_EQUIVALENT)
    whole, draw = cache.read_bytes(), random.Random(3)
    reported = 0
    for _ in range(times):
        damaged = bytearray(whole)
        for _ in range(draw.choice((1, 30, 1000))):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        cache.write_bytes(damaged)
        done = verify(runner, plan, bad, options=("--cache", cache), expected=NOT_EQUIVALENT)
        expect(
            [p["verdict"] for p in done.report["plans"]] == ["equivalent", "not-equivalent"],
            "the verdicts changed",
        )
        reported += bool(done.err)
    return f"{reported} of {times} reported"


def read_only(runner):
    """A cache that is readable but not writable still answers.

    Root may write everything, so the run drops root's rights.
    """
    plan, cache = generate(runner, *MLP), runner.path("cache.db")
    verify(runner, plan, options=("--cache", cache))
    other = generate(runner, *MLP, "--batch", 64)
    before = cache.read_bytes()
    runner.directory.chmod(0o755)
    cache.chmod(0o444)
    program = shutil.copy(runner.program, runner.path("shardproof"))  # where anybody may run it
    command = [program, "verify", "--cache", cache, "--jobs", "1", "--plan"]

    def give_up():
        os.setgid(65534)
        os.setuid(65534)

    rights = {"preexec_fn": give_up} if os.geteuid() == 0 else {}
    for file in (plan, other):
        done = subprocess.run(
            [*map(str, command), str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT,
            cwd="/",
            **rights,
        )
        expect(done.returncode == EQUIVALENT, f"exit {done.returncode}: {done.stderr}")
        expect("were proved before" in done.stdout or file != plan, "nothing came from the cache")
        expect(
            len(done.stderr.splitlines()) == 1 and "nothing is written to it" in done.stderr,
            done.stderr,
        )
    expect(cache.read_bytes() == before, "the file was changed")
    return ""


def full_disk(runner):
    """A limit on the size of files, as on a full disk: writing fails amid the transaction."""
    plan, other, cache = generate(runner, *MLP), generate(runner, *SMALL), runner.path("cache.db")
    first = verify(runner, plan, options=("--cache", cache))
    size = cache.stat().st_size

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    report = runner.path("none.json")
    command = [runner.program, "verify", "--cache", str(cache), "--jobs", "1", "--plan", str(other)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT,
        preexec_fn=limit,
    )
    expect(done.returncode == EQUIVALENT, f"exit {done.returncode}: {done.stderr}")
    expect(
        len(done.stderr.splitlines()) == 1 and "nothing is written to it" in done.stderr,
        done.stderr,
    )
    expect(not report.exists() and cache.stat().st_size <= size, "the file grew")
    again = verify(runner, plan, options=("--cache", cache))
    expect(
        again.hits == first.classes and not again.err,
        f"{again.hits} of {first.classes} proofs are left: {again.err}",
    )
    return ""


def locked(runner):
    plan, cache = generate(runner, *MLP), runner.path("cache.db")
    verify(runner, plan, options=("--cache", cache))
    database = sqlite3.connect(cache, isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    try:
        start = time.monotonic()
        done = expect_goes_on(runner, plan, cache, "locked")
        expect(done.hits == 0, "proofs came from a locked file")
        waited = time.monotonic() - start
    finally:
        database.execute("ROLLBACK")
        database.close()
    expect(
        verify(runner, plan, options=("--cache", cache)).hits == done.classes,
        "the cache is no use any more",
    )
    return f"gave up after {waited:.0f} s"


def forged_proof(runner):
    """Rows that record a wrong plan's stages as proved, with every check sum right.

    `cache verify` proves them again, and finds the forgery.
    """
    plan, cache = generate(runner, *MLP), runner.path("cache.db")
    verify(runner, plan, options=("--cache", cache))
    with sqlite3.connect(cache) as database:
        rows = database.execute(
            "SELECT id, version, checker, method, form, shapes, check_sum FROM proofs ORDER BY id"
        ).fetchall()
        forged = 0
        for number, version, checker, method, form, shapes, check_sum in rows:
            form = zlib.decompress(form)
            head = f"{version}\n{checker}\n{method}\n{len(shapes)}\n"
            expect(
                zlib.crc32(head.encode() + shapes.encode() + form) == check_sum,
                "the check sum is computed in another way",
            )
            # A 1 that becomes a 2, from the end: a part of the last assumption that is counted
            # twice, a tensor that is another.
            for at in range(len(form) - 1, -1, -1):
                if form[at] != 2:
                    continue
                other = form[:at] + b"\x04" + form[at + 1 :]
                database.execute(
                    "UPDATE proofs SET form = ?, digest = ?, check_sum = ? WHERE id = ?",
                    (
                        zlib.compress(other),
                        zlib.crc32(other),
                        zlib.crc32(head.encode() + shapes.encode() + other),
                        number,
                    ),
                )
                forged += 1
                break
    database.close()
    done = execute(runner, "cache", "verify", cache, "--sample", 100000)
    expect(
        done.code == NOT_EQUIVALENT and "DOES NOT HOLD" in done.out,
        f"exit {done.code}: {done.out[:500]}",
    )
    expect(
        verify(runner, plan, options=("--cache", cache)).hits == 0,
        "a forged row was found by a stage that it is not of",
    )
    return f"{done.out.count('DOES NOT HOLD')} of {forged} found"


def command_line(runner):
    plan, cache = generate(runner, *MLP), runner.path("cache.db")
    classes = verify(runner, plan, options=("--cache", cache)).classes
    for arguments in (
        ("verify", "--plan", plan, "--cache", cache, "--no-classes"),
        ("cache",),
        ("cache", "stats"),
        ("cache", "verify", cache, "--sample", "0"),
        ("cache", "prune", cache, "--max-size", "x"),
        ("cache", "prune", cache, "--days", "-1"),
        ("cache", "empty", cache),
    ):
        done = execute(runner, *arguments)
        expect(done.code == USAGE and done.err, f"{arguments}: exit {done.code}")
    done = execute(runner, "cache", "verify", cache, "--sample", 2, "--seed", 5)
    expect(done.code == 0 and f"2 of 2 proofs proved again (of {classes}" in done.out, done.out)
    done = execute(runner, "cache", "prune", cache, "--max-size", "1g", "--days", 1)
    expect(done.code == 0 and f"{classes} proofs are left" in done.out, done.out)
    done = execute(runner, "cache", "prune", cache, "--max-size", "1k")
    expect(done.code == 0 and " 0 proofs are left" in done.out, done.out)
    z3 = [
        verify(runner, plan, options=("--cache", cache, *o))
        for o in ((), ("--checker", "z3"), ("--checker", "z3"))
    ]
    expect([d.hits == 0 for d in z3[:2]] == [True, True], "normal forms answered for Z3")
    methods = {s["method"] for s in z3[2].report["stages"]}
    expect(
        z3[2].hits
        == z3[1].hits
        + len({s["class"] for s in z3[1].report["stages"] if s["verdict"] == "proved"})
        and "normal_form" not in methods,
        f"{z3[2].hits} {methods}",
    )
    return ""


def several_plans(runner):
    directory = runner.path("many")
    right = generate(runner, *SMALL, directory=directory, name="b")
    bad = wrong(right, "a")
    broken = right.with_name("c.plan.json")
    broken.write_text("{")
    shutil.copy(right, directory / "d.plan.json")
    (directory / "notes.json").write_text("{")
    done = verify(runner, directory, expected=INPUT_ERROR)
    plans = done.report["plans"]
    expect(
        [p["plan"] for p in plans] == [str(directory / f"{n}.plan.json") for n in "abcd"],
        f"{[p['plan'] for p in plans]}",
    )
    expect(
        [p["verdict"] for p in plans] == ["not-equivalent", "equivalent", None, "equivalent"],
        f"{[p['verdict'] for p in plans]}",
    )
    expect(plans[2]["error_in"] == "input" and "c.plan.json" in plans[2]["error"], f"{plans[2]}")
    expect(
        plans[3]["statistics"]["classes_from_cache"] == plans[3]["statistics"]["classes"],
        "the same plan was proved twice",
    )
    expect(
        [line.split(":")[0] for line in done.out.splitlines()[:4]]
        == ["NOT EQUIVALENT", "EQUIVALENT", "INPUT ERROR", "EQUIVALENT"],
        done.out[:600],
    )
    expect(
        done.out.splitlines()[-1].startswith(
            "Plans:  4: 2 equivalent, 1 not equivalent, 0 undecided, 1 error;"
        ),
        done.out[-300:],
    )
    summary = done.report["summary"]
    expect(
        (summary["plans"], summary["equivalent"], summary["not_equivalent"], summary["errors"])
        == (4, 2, 1, 1),
        f"{summary}",
    )
    # Each for itself says the same.
    for plan, alone in ((bad, NOT_EQUIVALENT), (right, EQUIVALENT)):
        single = verify(runner, plan, expected=alone)
        expect(
            next(p for p in plans if p["plan"] == str(plan))["defects"] == single.report["defects"],
            "the defects differ",
        )
        expect(single.report["format"] == "shardproof-report", "one plan has the report of one")
    quiet = verify(runner, bad, right, options=("--quiet",), expected=NOT_EQUIVALENT)
    expect(len(quiet.out.splitlines()) == 3, quiet.out)
    verify(runner, right, right)
    verify(runner, right, directory / "none.plan.json", expected=INPUT_ERROR)
    verify(runner, right, runner.path("none"), expected=INPUT_ERROR)
    model = directory / "b.model.json"
    verify(runner, right, directory / "d.plan.json", options=("--model", model))
    return "4 plans"


def main():
    runner = Runner(sys.argv[1])
    runner.case("warm_run", warm_run)
    runner.case("edited_layer", edited_layer)
    runner.case("wrong_plan_after_warm_cache", wrong_plan_after_warm_cache)
    runner.case("concurrent_runs", concurrent_runs, 20)
    runner.case("merged", merged)
    runner.case("open_stages", open_stages)
    runner.case("other_version", other_version)
    runner.case("useless_files", useless_files)
    runner.case("bytes_changed", bytes_changed, 20)
    runner.case("read_only", read_only)
    runner.case("full_disk", full_disk)
    runner.case("locked", locked)
    runner.case("forged_proof", forged_proof)
    runner.case("command_line", command_line)
    runner.case("several_plans", several_plans)
    return runner.run()


if __name__ == "__main__":
    sys.exit(main())
