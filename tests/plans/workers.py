# SPDX-License-Identifier: Apache-2.0
"""Worker processes that are killed, run out of time or are interrupted.

The run ends by itself, and never claims what it did not prove.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from lineage import is_cut_point
from plan_edit import (
    EQUIVALENT,
    LLAMA,
    LLAMA_TP8,
    MOE,
    MOE_128,
    PLANS,
    RUN_LIMIT,
    UNDECIDED,
    Failure,
    Plan,
    Runner,
    children,
    expect_code,
    is_running,
)

# Runs for seconds: every stage for itself.
LONG = (
    MOE_128 if (PLANS / MOE_128).is_file() else LLAMA_TP8,
    "--no-classes",
)


class Running:
    """A run in the background, ended at the latest with the block."""

    def __init__(self, runner, plan, *options):
        self.report = runner.path("report.json")
        command = [
            runner.program,
            "verify",
            "--plan",
            str(plan),
            "--json",
            str(self.report),
            *map(str, options),
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def workers(self, limit=20):
        """Waits for the first workers."""
        end = time.monotonic() + limit
        while time.monotonic() < end and self.process.poll() is None:
            found = children(self.process.pid)
            if found:
                return found
            time.sleep(0.002)
        return []

    def end(self):
        try:
            out, err = self.process.communicate(timeout=RUN_LIMIT)
        except subprocess.TimeoutExpired:
            raise Failure(f"did not end within {RUN_LIMIT:g} s") from None
        report = (
            json.loads(self.report.read_text())
            if self.report.is_file() and self.report.stat().st_size
            else None
        )
        return self.process.returncode, out, err, report


def expect_equivalent(code, err, report, lost=None):
    """`lost`: what the reason of a stage names that may be undecided: it lost its worker twice."""
    if code != EQUIVALENT or report is None or report["verdict"] != "equivalent":
        raise Failure(
            f"exit {code}, {report and report['verdict']} ({report and report['reason']}); "
            f"{err.strip()[:300]}"
        )
    wrong = [
        s
        for s in report["stages"]
        if s["verdict"] != "proved"
        and (s["role"] == "output" or lost is None or lost not in s["reason"])
    ]
    if wrong:
        raise Failure(f"{len(wrong)} stages not proved, the first for: {wrong[0]['reason']}")


def killed(runner, jobs, kills, pause, number):
    """Kills one worker at a time.

    On a slow machine a retry is killed as well; then the stage is proved as a part of others.
    """
    plan, *options = LONG
    with Running(runner, PLANS / plan, *options, "--jobs", jobs) as run:
        done = 0
        while done < kills:
            found = run.workers()
            if not found:
                break
            time.sleep(pause)
            try:
                os.kill(found[done % len(found)], number)
                done += 1
            except ProcessLookupError:
                pass
        code, _, err, report = run.end()
        if done == 0:
            raise Failure("the run ended before a worker could be killed")
    expect_equivalent(code, err, report, lost=number.name if kills > 1 else None)
    lost = report["statistics"]["workers_lost"]
    if not 1 <= lost <= done:
        raise Failure(f"{done} workers were killed, the report counts {lost} as lost")
    return f"{done} killed, {lost} counted as lost"


def all_killed_at_once(runner):
    plan, *options = LONG
    with Running(runner, PLANS / plan, *options, "--jobs", 3) as run:
        run.workers()
        time.sleep(0.1)
        found = children(run.process.pid)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        code, _, err, report = run.end()
    expect_equivalent(code, err, report)
    lost = report["statistics"]["workers_lost"]
    if lost != len(found):
        raise Failure(f"{len(found)} workers were killed, the report counts {lost} as lost")
    return f"{lost} killed"


def every_worker_killed(runner, seconds):
    """For a while every started worker is killed.

    The run still ends, and claims nothing that it could not prove.
    """
    with Running(runner, PLANS / LLAMA, "--no-classes", "--jobs", 2) as run:
        kills, end = 0, time.monotonic() + seconds
        while run.process.poll() is None and time.monotonic() < end:
            for pid in children(run.process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass
        code, _, err, report = run.end()
    if code == EQUIVALENT:
        # A worker may answer before it is hit, and what failed is tried again further up.
        if any(s["role"] == "output" and s["verdict"] != "proved" for s in report["stages"]):
            raise Failure("equivalent with an output that is not proved")
        return f"{kills} kills, equivalent all the same"
    if code != UNDECIDED or report["verdict"] != "undecided":
        raise Failure(f"exit {code}, {report and report['verdict']}; {err.strip()[:300]}")
    if not any(s["verdict"] == "undecided" and "SIGKILL" in s["reason"] for s in report["stages"]):
        raise Failure("no undecided stage says that its worker was killed")
    return f"{kills} kills, undecided"


def no_time(runner, plan_name):
    result = runner.verify(PLANS / plan_name, None, "--stage-timeout", "0.001", "--no-classes")
    # Stages of a millisecond may be proved all the same, and a cut point may fail; with all
    # outputs proved, 0 is right.
    expect_code(result, UNDECIDED, EQUIVALENT)
    undecided = [s for s in result.report["stages"] if s["verdict"] == "undecided"]
    if result.code == EQUIVALENT and any(s["role"] == "output" for s in undecided):
        raise Failure("equivalent with an output that is not proved")
    if result.code == UNDECIDED and not any("no answer within" in s["reason"] for s in undecided):
        raise Failure("no undecided stage says that its time ran out: " + result.summary())
    return f"exit {result.code}, {len(undecided)} undecided"


def no_time_for_one_large_proof(runner):
    """Without cut points the outputs are large proofs: a millisecond is not enough."""
    plan = Plan(LLAMA)
    plan.json["lineage"] = [e for e in plan.lineage if not is_cut_point(e)]
    result = runner.verify_plan(plan, "--stage-timeout", "0.001")
    expect_code(result, UNDECIDED)
    if result.report["verdict"] != "undecided" or "could not be" not in result.out:
        raise Failure("the verdict is not stated: " + result.summary())
    return (
        f"{result.report['outputs_proved']} of {result.report['outputs']} outputs proved, "
        f"{result.seconds:.1f} s"
    )


def no_memory(runner):
    plan = Plan(LLAMA)
    plan.json["lineage"] = [e for e in plan.lineage if not is_cut_point(e)]
    result = runner.verify_plan(plan, "--memory", "16", "--stage-timeout", "10")
    expect_code(result, UNDECIDED, EQUIVALENT)
    return f"{result.report['verdict']}, {result.seconds:.1f} s"


def interrupted(runner, number, pause):
    plan, *options = LONG
    with Running(runner, PLANS / plan, *options, "--jobs", 2) as run:
        if not run.workers():
            raise Failure("the run ended before it could be interrupted")
        time.sleep(pause)
        workers = children(run.process.pid)
        start = time.monotonic()
        run.process.send_signal(number)
        code, out, err, report = run.end()
        took = time.monotonic() - start
    if code != 128 + number:
        raise Failure(f"expected exit {128 + number}, found {code}; {err.strip()[:200]}")
    if report is None or not report["interrupted"] or report["verdict"] == "equivalent":
        raise Failure(
            f"the report does not say that the run was interrupted: {report and report['verdict']}"
        )
    if not report["stages"] or "EQUIVALENT" in out.split(":")[0]:
        raise Failure("no partial report, or one that claims a verdict: " + out[:200])
    if took > 5:
        raise Failure(f"took {took:.1f} s to end")
    left = [p for p in workers if is_running(p)]
    if left:
        raise Failure(f"workers {left} are left behind")
    proved = sum(s["verdict"] == "proved" for s in report["stages"])
    return f"{proved} of {len(report['stages'])} stages proved so far, ended after {took:.2f} s"


def parent_killed(runner):
    """Nothing is left behind when the run itself is killed."""
    plan, *options = LONG
    with Running(runner, PLANS / plan, *options, "--jobs", 2) as run:
        workers = run.workers()
        run.process.kill()
        run.process.communicate()
    end = time.monotonic() + 5
    while time.monotonic() < end:
        left = [p for p in workers if is_running(p)]
        if not left:
            return f"{len(workers)} workers ended too"
        time.sleep(0.02)
    raise Failure(f"workers {left} live on")


def main():
    runner = Runner(sys.argv[1])
    for number in (signal.SIGKILL, signal.SIGSEGV):
        runner.case(f"killed.once.{number.name}", killed, 2, 1, 0.1, number)
    runner.case("killed.single_job", killed, 1, 1, 0.1, signal.SIGKILL)
    runner.case("killed.several_times", killed, 2, 4, 0.15, signal.SIGKILL)
    runner.case("killed.all_at_once", all_killed_at_once)
    runner.case("killed.every_worker", every_worker_killed, 2)
    runner.case("no_time.llama", no_time, LLAMA)
    if (PLANS / MOE).is_file():
        runner.case("no_time.moe", no_time, MOE)
    runner.case("no_time.one_large_proof", no_time_for_one_large_proof)
    runner.case("no_memory", no_memory)
    runner.case("interrupted.SIGINT", interrupted, signal.SIGINT, 0.1)
    runner.case("interrupted.SIGTERM", interrupted, signal.SIGTERM, 0.1)
    runner.case("interrupted.at_once", interrupted, signal.SIGINT, 0)
    runner.case("parent_killed", parent_killed)
    return runner.run(parallel=False)  # the cases are about time


if __name__ == "__main__":
    sys.exit(main())
