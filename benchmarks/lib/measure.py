# SPDX-License-Identifier: Apache-2.0
"""Runs whole processes and measures them.

Measured are the wall clock from start to exit code, and the largest resident set of any process.
"""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED_PLANS = pathlib.Path(os.environ.get("SHARDPROOF_SHARED", ROOT.parent / "shared")) / "plans"


class Run:
    """One process: seconds, peak_mb (of it or any child that it waited for), code.

    It is started by a small process: the kernel counts what a process held before `exec` towards
    its peak, and this process may hold large reports.
    """

    def __init__(self, command):
        out = subprocess.run(
            [sys.executable, "-S", __file__, *map(str, command)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        self.seconds, self.cpu_seconds, self.peak_mb, self.code = json.loads(out)


def launch(command):
    """Runs a command without its output; [seconds, processor seconds, peak MB, exit code]."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    return [
        time.perf_counter() - start,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        os.waitstatus_to_exitcode(status),
    ]


class Verified:
    """`verify` on one plan: one process that writes the report, then `runs` cold, timed ones."""

    def __init__(self, binary, plan, directory, runs=3, jobs=2, options=()):
        report_file = pathlib.Path(directory) / "report.json"
        command = [binary, "verify", "--quiet", "--jobs", jobs, "--plan", plan, *options]
        first = Run([*command, "--json", report_file])
        self.report = json.loads(report_file.read_text())
        self.runs = [Run(command) for _ in range(runs)] or [first]
        self.seconds = statistics.median(r.seconds for r in self.runs)
        self.peak_mb = max(r.peak_mb for r in self.runs)
        self.codes = {r.code for r in self.runs}

    @property
    def figures(self):
        return self.report["statistics"]

    def phase(self, name):
        return self.figures["seconds_by_phase"].get(name, 0.0)


def generate(binary, prefix, options):
    """`generate` into PREFIX.model.json and PREFIX.plan.json; the Run."""
    run = Run([binary, "generate", *options, "-o", prefix])
    if run.code != 0:
        raise SystemExit(f"generate {' '.join(map(str, options))}: exit code {run.code}")
    return run


def machine(jobs, runs):
    """One line that says where the figures come from."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            names = [line for line in file if line.startswith("model name")]
        if names:
            processor = names[0].split(":", 1)[1].strip()
        memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB"
    except (OSError, ValueError):
        memory = "unknown memory"
    return (
        f"{processor}, {os.cpu_count()} cores, {memory}; {platform.system()} "
        f"{platform.release()}; load {os.getloadavg()[0]:.1f} at the start; "
        f"`--jobs {jobs}`, medians of {runs} cold runs."
    )


def table(header, rows):
    """A table in markdown."""
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    return "\n".join(lines + ["| " + " | ".join(str(c) for c in row) + " |" for row in rows])


if __name__ == "__main__":
    print(json.dumps(launch(sys.argv[1:])))
