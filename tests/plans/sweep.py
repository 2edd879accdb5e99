# SPDX-License-Identifier: Apache-2.0
"""`shardproof sweep` in a nightly job.

Whole runs, killed and continued, compared, and read by a CI system.
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import (
    EQUIVALENT,
    INPUT_ERROR,
    INTERNAL,
    NOT_EQUIVALENT,
    ROOT,
    RUN_LIMIT,
    UNDECIDED,
    USAGE,
    Failure,
    Runner,
    children,
)

MLP = {"arch": "mlp", "dp": 2, "tp": 2}
SMALL = {
    "arch": "llama3",
    "layers": 2,
    "dim": 8,
    "hidden": 16,
    "heads": 2,
    "kv-heads": 2,
    "seq": 4,
    "vocab": 16,
    "tp": 2,
}
BUG = {"bug": "norm_weight_not_reduced"}
KNOWN_BAD = {**SMALL, "dp": 2, "sequence-parallel": True, "mutate": BUG}


def expect(condition, message):
    if not condition:
        raise Failure(message)


class Sweep:
    """A directory with a config and everything that the runs write; TMPDIR is inside of it, too."""

    def __init__(self, runner, **fields):
        self.program, self.directory = runner.program, runner.path("sweep")
        self.directory.mkdir()
        self.temporary = self.directory / "tmp"
        self.temporary.mkdir()
        self.json, self.junit = self.directory / "r.json", self.directory / "r.xml"
        self.config(**fields)

    def config(self, **fields):
        (self.directory / "c.json").write_text(
            json.dumps({"format": "shardproof-sweep", "version": 1, **fields})
        )

    def command(self, *options):
        return [
            self.program,
            "sweep",
            "c.json",
            "--json",
            "r.json",
            "--junit",
            "r.xml",
            "--jobs",
            "1",
            *map(str, options),
        ]

    def start(self, *options, **keywords):
        return subprocess.Popen(
            self.command(*options),
            cwd=self.directory,
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **keywords,
        )

    def run(self, *options, expected=EQUIVALENT, leaves_nothing=True):
        with self.start(*options) as process:
            try:
                self.out, self.err = process.communicate(timeout=RUN_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Failure(f"did not end within {RUN_LIMIT:g} s") from None
        expect(
            process.returncode == expected,
            f"expected exit {expected}, got {process.returncode}: {self.out[-1500:]} "
            f"{self.err[:500]}",
        )
        if leaves_nothing:
            expect(
                not list(self.temporary.iterdir()),
                f"left behind: {[str(p) for p in self.temporary.rglob('*')]}",
            )
        self.code = process.returncode
        return self.read()

    def read(self):
        return json.loads(self.json.read_text()) if self.json.is_file() else None

    def rows(self):
        return {row["name"]: row for row in self.read()["configurations"]}

    def junit_cases(self):
        """name -> tag of the element inside, or None; the counts must agree with them."""
        suite = xml.etree.ElementTree.parse(self.junit).getroot().find("testsuite")
        cases = {
            case.get("name"): next((child.tag for child in case), None)
            for case in suite.findall("testcase")
        }
        for attribute, tag in (
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ):
            expect(
                int(suite.get(attribute)) == sum(t == tag for t in cases.values()),
                f"{attribute}={suite.get(attribute)}, found {cases}",
            )
        expect(int(suite.get("tests")) == len(cases), "the number of tests is wrong")
        return cases


def lasting(report):
    """What does not depend on the clock, the cache or the number of the run."""
    rows = json.loads(json.dumps(report["configurations"]))
    for row in rows:
        for key in ("generate_seconds", "verify_seconds", "resumed", "inputs", "text"):
            row.pop(key)
        if row["report"]:
            for key in (
                "seconds",
                "seconds_by_phase",
                "peak_memory_bytes",
                "classes_from_cache",
                "workers_lost",
            ):
                row["report"]["statistics"].pop(key)
            for timed in (*row["report"]["stages_not_proved"], *row["report"]["attempts"]):
                timed.pop("seconds")
    return rows


def example(runner):
    """The one of the documentation."""
    sweep = Sweep(runner)
    text = (ROOT / "docs" / "example_sweep.json").read_text()
    expect(
        "".join(f"    {line}\n" for line in text.splitlines())
        in (ROOT / "docs" / "sweep.md").read_text(),
        "docs/sweep.md shows another example",
    )
    (sweep.directory / "c.json").write_text(text)
    report = sweep.run()
    expect(
        report["complete"]
        and report["summary"]["as_expected"] == 9
        and report["summary"]["skipped"] == 2,
        str(report["summary"]),
    )
    expect(
        report["summary"]["classes_from_cache"] > report["summary"]["classes"] / 3,
        "proofs are not shared: " + str(report["summary"]),
    )
    cases = sweep.junit_cases()
    expect(sorted(filter(None, cases.values())) == ["skipped"] * 2, str(cases))
    lines = sweep.out.splitlines()
    expect(
        sum(line.startswith("ok ") for line in lines) == 9
        and sum(line.startswith("- ") and "--zero 1 needs" in line for line in lines) == 2,
        sweep.out,
    )
    return f"{len(cases)} configurations"


def generate(sweep, name, options):
    words = [
        w
        for k, v in options.items()
        if k != "arch"
        for w in ([f"--{k}"] if v is True else [f"--{k}", str(v)])
    ]
    subprocess.run(
        [sweep.program, "generate", options["arch"], *words, "-o", str(sweep.directory / name)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return sweep.directory / f"{name}.plan.json"


def mixed_verdicts(runner):
    sweep = Sweep(runner)
    plan = generate(sweep, "good", MLP)
    bugs = subprocess.run(
        [sweep.program, "mutate", str(plan), "--list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    name = next(line.split()[0] for line in bugs if line.split()[1] != "0")
    subprocess.run(
        [
            sweep.program,
            "mutate",
            str(plan),
            "--bug",
            name,
            "-o",
            str(sweep.directory / "bad.plan.json"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (sweep.directory / "broken.plan.json").write_text('{"format": "shardproof-plan"')
    sweep.config(
        plans=[
            "*.plan.json",
            "missing.plan.json",
            {"plan": "bad.plan.json", "name": "known", "expect": "not-equivalent"},
            {"plan": "good.plan.json", "name": "surprise", "expect": "not-equivalent"},
        ],
        configurations=[
            {**MLP, "dp": 1, "zero": 1},
            {**MLP, "name": "fits"},
            {**MLP, "mutate": BUG, "name": "bug that does not apply"},
            {**MLP, "mutate": BUG, "name": "foreseen", "skip_invalid": True},
        ],
    )
    sweep.run(expected=INPUT_ERROR)  # before not equivalent, as in verify
    outcomes = {name: row["outcome"] for name, row in sweep.rows().items()}
    expect(
        outcomes
        == {
            "bad.plan.json": "not-as-expected",
            "broken.plan.json": "input-error",
            "good.plan.json": "as-expected",
            "missing.plan.json": "input-error",
            "known": "as-expected",
            "surprise": "not-as-expected",
            "mlp dp=1 tp=2 zero=1": "input-error",
            "fits": "as-expected",
            "bug that does not apply": "input-error",
            "foreseen": "skipped",
        },
        str(outcomes),
    )
    cases = sweep.junit_cases()
    tags = {
        "as-expected": None,
        "not-as-expected": "failure",
        "input-error": "error",
        "skipped": "skipped",
    }
    expect(cases == {name: tags[outcome] for name, outcome in outcomes.items()}, str(cases))
    failure = xml.etree.ElementTree.parse(sweep.junit).find(
        ".//testcase[@name='bad.plan.json']/failure"
    )
    expect(
        failure.get("message").startswith("not-equivalent, expected equivalent: ")
        and "Defect 1 of" in failure.text,
        failure.text,
    )
    expect("== bad.plan.json" in sweep.out and "== known" not in sweep.out, sweep.out)

    sweep.config(plans=["bad.plan.json", "good.plan.json"])
    sweep.run(expected=NOT_EQUIVALENT)
    # The bug put into the plan by the sweep itself, which leaves the file as it is.
    sweep.config(
        plans=[
            {"plan": "bad.plan.json", "expect": "not-equivalent"},
            {"plan": "good.plan.json", "mutate": {"bug": name}, "expect": "not-equivalent"},
            "good.plan.json",
        ]
    )
    sweep.run(expected=EQUIVALENT)
    return f"{len(outcomes)} configurations"


def undecided(runner):
    sweep = Sweep(
        runner,
        configurations=[
            {**SMALL, "name": "hard", "checkpoints": "none"},
            {**SMALL, "name": "not refuted", "checkpoints": "none", "expect": "not-equivalent"},
        ],
    )
    sweep.run("--stage-timeout", 0.001, "--infer", "never", expected=UNDECIDED)
    expect({row["outcome"] for row in sweep.rows().values()} == {"undecided"}, sweep.out)
    expect(set(sweep.junit_cases().values()) == {"error"}, "undecided is not red")
    again = sweep.run("--stage-timeout", 0.001, "--infer", "never", "--resume", expected=UNDECIDED)
    expect(again["summary"]["resumed"] == 2, "with the same limits it was tried again")
    sweep.run("--resume", expected=NOT_EQUIVALENT)  # with time it is proved, whatever was expected
    expect(
        [row["outcome"] for row in sweep.rows().values()] == ["as-expected", "not-as-expected"],
        sweep.out,
    )
    return ""


GRID = {
    "configurations": [
        {**SMALL, "layers": [2, 3], "dp": [1, 2], "pp": [1, 2], "microbatches": 2},
        {**KNOWN_BAD, "name": "known", "expect": "not-equivalent"},
    ]
}


def killed_and_resumed(runner, seed):
    chance = random.Random(seed)
    sweep = Sweep(runner, **GRID)
    whole = sweep.run()
    sweep.json.unlink()
    kills, done = 0, set()
    while kills < 6 or not done:  # later and later, as a loaded machine is slow
        with sweep.start("--resume") as process:
            try:
                process.wait(chance.uniform(0.02, 0.4) * (1 + kills / 4))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
        report = sweep.read()  # whole, whenever it is looked at
        if process.returncode >= 0:
            if done:
                break
            sweep.json.unlink()  # it ended before any was killed in time: an idle machine
            continue
        if report is not None:
            now = {r["name"] for r in report["configurations"] if r["state"] == "done"}
            expect(done <= now, f"lost: {done - now}")
            expect(not report["complete"] or len(now) == 9, "complete, but not all is done")
            done = now
    report = sweep.run("--resume", leaves_nothing=False)  # a killed process cannot clean up
    expect(
        report["complete"] and lasting(report) == lasting(whole),
        "the result differs from that of one run",
    )
    expect(
        report["summary"]["resumed"] >= len(done) > 0,
        f"{len(done)} were done, {report['summary']['resumed']} were taken over",
    )
    again = sweep.run("--resume", leaves_nothing=False)
    expect(
        again["summary"]["resumed"] == 9 and again["summary"]["as_expected"] == 9,
        str(again["summary"]),
    )
    return f"{kills} kills, {report['summary']['resumed']} of 9 taken over by the last run"


def interrupted(runner, number):
    sweep = Sweep(
        runner,
        configurations=[
            {**SMALL, "name": "first"},
            {**SMALL, "name": "grid", "layers": list(range(2, 40)), "dp": 2},
        ],
    )
    with sweep.start() as process:
        while (
            '"done"' not in (sweep.json.read_text() if sweep.json.is_file() else "")
            and process.poll() is None
        ):
            time.sleep(0.01)
        process.send_signal(number)
        start = time.monotonic()
        out, err = process.communicate(timeout=RUN_LIMIT)
    expect(process.returncode == 128 + number, f"exit {process.returncode}: {err}")
    expect(time.monotonic() - start < 5, "took long to end")
    expect(not list(sweep.temporary.iterdir()), "left its temporary files")
    report = sweep.read()
    done = [r for r in report["configurations"] if r["state"] == "done"]
    expect(not report["complete"] and 1 <= len(done) < 39 and "not run" in out, out[-500:])
    expect("error" in sweep.junit_cases().values(), "an interrupted sweep is green")
    sweep.config(configurations=[{**SMALL, "name": "first"}, {**SMALL, "name": "other"}])
    report = sweep.run("--resume")
    expect(
        [r["resumed"] for r in report["configurations"]] == [True, False], str(report["summary"])
    )
    return f"{len(done)} of 39 done"


def changed_inputs_run_again(runner):
    sweep = Sweep(runner)
    plan = generate(sweep, "g", MLP)
    sweep.config(plans=["g.plan.json"], configurations=[{**MLP, "name": "made"}])
    time.sleep(0.05)  # a file as young as the run itself is not relied on
    sweep.run()

    def resumed(*options, **keywords):
        sweep.run("--resume", *options, **keywords)
        return [row["resumed"] for row in sweep.rows().values()]

    expect(resumed() == [True, True], "nothing has changed")
    expect(resumed("--timeout", 30) == [False, False], "other limits")
    expect(resumed() == [False, False], "the limits as before")
    plan.write_text(plan.read_text() + "\n")
    time.sleep(0.05)
    expect(resumed() == [False, True], "another plan file")
    model = plan.with_name("g.model.json")
    model.write_text(model.read_text() + "\n")
    time.sleep(0.05)
    expect(resumed() == [False, True], "another model file")
    sweep.config(plans=["g.plan.json"], configurations=[{**MLP, "name": "made", "dp": 4}])
    expect(resumed() == [True, False], "other options under the same name")
    sweep.json.write_text("{")
    with sweep.start("--resume") as process:
        out, err = process.communicate(timeout=RUN_LIMIT)
    expect(
        process.returncode == INPUT_ERROR and sweep.json.read_text() == "{",
        "a file that is no sweep's was written over",
    )
    return ""


def baseline(runner):
    sweep = Sweep(runner)
    plan = generate(sweep, "g", MLP)
    sweep.config(
        plans=["g.plan.json"],
        skip_invalid=True,
        configurations=[
            {**MLP, "name": "made"},
            {**MLP, "name": "gone"},
            {**MLP, "name": "zero", "zero": [0, 1]},
        ],
    )
    sweep.run()
    old = sweep.directory / "old.json"
    sweep.json.rename(old)
    report = sweep.run("--baseline", "old.json")
    expect(
        "Against old.json: no change" in sweep.out and report["baseline"]["changes"] == [],
        sweep.out,
    )

    value = json.loads(plan.read_text())
    node = next(n for p in value["programs"] for n in p["nodes"] if n["op"] == "all_reduce")
    node.setdefault("attrs", {})["reduce"] = "mean"
    plan.write_text(json.dumps(value))
    sweep.config(
        plans=["g.plan.json"],
        skip_invalid=True,
        configurations=[
            {**MLP, "name": "made", "layers": 3},
            {**MLP, "name": "new"},
            {**MLP, "name": "zero", "zero": [0, 1], "dp": 2},
        ],
    )
    report = sweep.run("--baseline", "old.json", expected=NOT_EQUIVALENT)
    changes = {(c["kind"], c["name"]) for c in report["baseline"]["changes"]}
    wanted = {
        ("worse", "g.plan.json"),
        ("input", "g.plan.json"),
        ("input", "made"),
        ("counts", "made"),
        ("new", "new"),
        ("removed", "gone"),
    }
    expect(wanted <= changes, f"{wanted - changes} not among {changes}")
    expect("worse           g.plan.json: equivalent -> not equivalent" in sweep.out, sweep.out)

    # What was proved and is now skipped is a loss that shows in no verdict.
    sweep.config(
        skip_invalid=True, configurations=[{**MLP, "name": "zero", "zero": [0, 1], "dp": 1}]
    )
    sweep.run()
    sweep.run("--baseline", "old.json", expected=UNDECIDED)
    expect("equivalent -> skipped: --zero 1 needs --dp" in sweep.out, sweep.out)
    sweep.run("--baseline", "r.json", expected=USAGE)
    return f"{len(changes)} changes"


def kept_files(runner):
    sweep = Sweep(
        runner,
        configurations=[
            {**SMALL, "dp": [1, 2]},
            {**KNOWN_BAD, "name": "known / bad", "expect": "not-equivalent"},
        ],
    )
    sweep.run("--keep", "kept")
    names = sorted(p.name for p in (sweep.directory / "kept").iterdir())
    expect(len(names) == 9, str(names))
    for plan, code in zip(
        sorted((sweep.directory / "kept").glob("*.plan.json")),
        (EQUIVALENT, EQUIVALENT, NOT_EQUIVALENT),
        strict=True,
    ):
        done = subprocess.run(
            [sweep.program, "verify", "-q", "--plan", str(plan)], capture_output=True, text=True
        )
        expect(done.returncode == code, f"{plan.name}: {done.stdout} {done.stderr}")
    report = json.loads((sweep.directory / "kept" / "3_known___bad.report.json").read_text())
    expect(report["verdict"] == "not-equivalent" and report["stages"], "no complete report")
    return f"{len(names)} files"


def shared_cache(runner):
    sweep = Sweep(runner, **GRID)
    cold = sweep.run("--cache", "proofs.db")
    warm = sweep.run("--cache", "proofs.db")
    good = [
        r["report"]["statistics"] for r in warm["configurations"] if r["verdict"] == "equivalent"
    ]
    expect(
        good and all(s["classes_from_cache"] == s["classes"] for s in good), str(warm["summary"])
    )
    expect(lasting(cold) == lasting(warm), "the reports differ")
    (sweep.directory / "proofs.db").write_bytes(b"no database" * 1000)
    sweep.run("--cache", "proofs.db")
    expect(sweep.err.count("warning: ") == 1, f"one line for all configurations: {sweep.err}")
    return (
        f"{cold['summary']['classes_from_cache']} and {warm['summary']['classes_from_cache']} of "
        f"{warm['summary']['classes']}"
    )


def one_that_dies(runner):
    """A process that is killed (the system out of memory, say) is one configuration's loss."""
    sweep = Sweep(
        runner,
        configurations=[
            {**SMALL, "name": "large", "layers": 60, "dp": 2, "pp": 2},
            {**SMALL, "name": "next"},
        ],
    )
    with sweep.start() as process:
        end = time.monotonic() + 20
        found = []
        while not found and process.poll() is None and time.monotonic() < end:
            found = children(process.pid)
        os.kill(found[0], signal.SIGKILL)
        out, err = process.communicate(timeout=RUN_LIMIT)
    expect(process.returncode == INTERNAL, f"exit {process.returncode}: {out} {err}")
    rows = sweep.rows()
    expect(
        rows["large"]["outcome"] == "crashed"
        and "signal 9" in rows["large"]["reason"]
        and rows["next"]["outcome"] == "as-expected",
        out,
    )
    sweep.run("--resume")
    expect(
        [r["resumed"] for r in sweep.rows().values()] == [False, True],
        "only the one that died is run again",
    )
    return rows["large"]["reason"]


def dry_run(runner):
    sweep = Sweep(runner, **GRID)
    sweep.run("--list")
    lines = sweep.out.splitlines()
    expect(
        len(lines) == 9
        and all(line.startswith("to run ") for line in lines)
        and not sweep.json.exists(),
        sweep.out,
    )
    # It prints what one would type.
    words = lines[0].partition("generate ")[2].split()
    done = subprocess.run(
        [sweep.program, "generate", *words, "-o", str(sweep.directory / "typed")],
        capture_output=True,
        text=True,
    )
    expect(done.returncode == 0, f"{words}: {done.stderr}")
    sweep.config(configurations=[{**MLP, "dp": 1, "zero": 1}])
    sweep.run("--list", expected=INPUT_ERROR)
    return lines[0]


def parts(runner):
    """Some configurations by each of several processes, put together as one run has them."""
    bad = {**KNOWN_BAD, "expect": "not-equivalent"}
    sweep = Sweep(runner, configurations=[{**MLP, "dp": [1, 2, 4]}, bad, {**MLP, "tp": 3}])
    whole = lasting(sweep.run(expected=INPUT_ERROR))
    junit, code = sweep.junit_cases(), sweep.code
    part = sweep.directory / "parts"
    part.mkdir()
    for numbers, expected in (("1,4", EQUIVALENT), ("3", EQUIVALENT), ("5", INPUT_ERROR)):
        one = sweep.run("--only", numbers, expected=expected)
        chosen = {int(n) for n in numbers.split(",")}
        states = [row["state"] for row in one["configurations"]]
        expect(
            all((state == "not-run") == (k not in chosen) for k, state in enumerate(states, 1)),
            f"--only {numbers}: {states}",
        )
        sweep.json.rename(part / f"{numbers}.json")
    now = sweep.run("--parts", "parts", expected=code)
    open_ones = [row["name"] for row in now["configurations"] if row["state"] == "not-run"]
    expect(open_ones == [whole[1]["name"]], f"not run: {open_ones}")
    expect("1 not run" in sweep.out and not now["complete"], sweep.out)
    sweep.run("--only", 2)
    sweep.json.rename(part / "2.json")
    now = sweep.run("--parts", "parts", expected=code)
    expect(lasting(now) == whole, "the results differ from those of one run")
    expect(sweep.junit_cases() == junit, "JUnit differs from that of one run")
    for options, words in (
        (("--timeout", "7"), "of another program or of other options"),
        (("--only", "1"), "--parts"),
        (("--only", "0"), "--only"),
    ):
        with sweep.start("--parts", "parts", *options) as process:
            _, err = process.communicate(timeout=RUN_LIMIT)
        expect(process.returncode in (INPUT_ERROR, USAGE) and words in err, err)
    with sweep.start("--only", "6") as process:
        _, err = process.communicate(timeout=RUN_LIMIT)
    expect(process.returncode == USAGE and "c.json has 5 configurations" in err, err)
    return f"{len(whole)} configurations"


def wrong_usage(runner):
    sweep = Sweep(runner, configurations=[MLP])
    for options, code in (
        (("--resume", "--jobs", "x"), USAGE),
        (("--baseline", "no.json"), INPUT_ERROR),
        (("--timeout", "nan"), USAGE),
        (("--baseline", "c.json"), INPUT_ERROR),
    ):
        with sweep.start(*options) as process:
            out, err = process.communicate(timeout=RUN_LIMIT)
        expect(
            process.returncode == code and not out and err.startswith("shardproof: "),
            f"{options}: exit {process.returncode} {out} {err}",
        )
    alone = subprocess.run(
        [sweep.program, "sweep", "c.json", "--resume"],
        cwd=sweep.directory,
        capture_output=True,
        text=True,
    )
    expect(alone.returncode == USAGE, "--resume without --json")
    sweep.config(configurations=[{**MLP, "ddp": 4}])
    with sweep.start() as process:
        out, err = process.communicate(timeout=RUN_LIMIT)
    expect(
        process.returncode == INPUT_ERROR and "c.json: /configurations/0/ddp: unknown field" in err,
        err,
    )
    help_text = subprocess.run(
        [sweep.program, "generate", "--help"], capture_output=True, text=True, check=True
    ).stdout
    options = set(re.findall(r"^ +(?:-\w,)?--([a-z0-9-]+)", help_text, re.M)) - {"help", "output"}
    unknown = {option for option in options if f'"{option}"' not in err}
    expect(
        len(options) > 20 and not unknown,
        f"options of generate that a sweep does not know: {unknown}",
    )
    sweep.config(configurations=[{**MLP, "dp": [2, 0]}])
    with sweep.start() as process:
        out, err = process.communicate(timeout=RUN_LIMIT)
    expect(
        process.returncode == INPUT_ERROR
        and "c.json: /configurations/0/dp/1: " in err
        and not sweep.json.exists(),
        err,
    )
    return err.strip()[-100:]


def main():
    runner = Runner(sys.argv[1])
    runner.case("example", example)
    runner.case("mixed_verdicts", mixed_verdicts)
    runner.case("undecided", undecided)
    for seed in range(5):
        runner.case(f"killed_and_resumed.{seed}", killed_and_resumed, seed)
    runner.case("interrupted_by_SIGTERM", interrupted, signal.SIGTERM)
    runner.case("interrupted_by_SIGINT", interrupted, signal.SIGINT)
    runner.case("changed_inputs_run_again", changed_inputs_run_again)
    runner.case("baseline", baseline)
    runner.case("kept_files", kept_files)
    runner.case("shared_cache", shared_cache)
    runner.case("one_that_dies", one_that_dies)
    runner.case("dry_run", dry_run)
    runner.case("parts", parts)
    runner.case("wrong_usage", wrong_usage)
    return runner.run(parallel=False)  # some cases are about time


if __name__ == "__main__":
    sys.exit(main())
