#!/usr/bin/env python3
"""Times `shardproof verify` on real plans: whole cold processes, from start to exit code, and their peak memory.

    benchmarks/first_plans.py [--binary build/shardproof] [--runs 5] [--jobs 2] [--plans DIR] [NAME ...]

Prints a table in markdown with the machine it was made on. Plans are looked for in $SHARDPROOF_SHARED/plans, or ../shared/plans beside the
repository. The exit code is 1 if a plan is not proved or misses its ceiling.

Peak memory is the largest resident set of any single process of the run (the main process or a worker), as the kernel reports it.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLANS = pathlib.Path(os.environ.get("SHARDPROOF_SHARED", ROOT.parent / "shared")) / "plans"

# Ceilings: seconds of wall clock (median) and megabytes of peak memory.
CEILINGS = {
    "llama3_dp2_pp2_tp2_nm2_ly2": (1.5, 300),
    "llama3_dp64_pp4_tp8_nm8_ly2": (10, 1000),
}


def run_once(command):
    """Wall-clock seconds, peak resident megabytes of the process and its children, and the exit code."""
    start = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        # A child of its own for each run: RUSAGE_CHILDREN is a maximum over all children so far, and would never go down again.
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            os.execv(command[0], command)
        _, status = os.waitpid(child, 0)
        import resource
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        with open(command[-1] + ".rusage", "w") as out:
            out.write(f"{peak} {os.waitstatus_to_exitcode(status)}")
        os._exit(0)
    os.waitpid(pid, 0)
    seconds = time.perf_counter() - start
    peak, code = pathlib.Path(command[-1] + ".rusage").read_text().split()
    return seconds, int(peak) / 1024, int(code)


def processor():
    try:
        for line in open("/proc/cpuinfo"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory():
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB"
    except (ValueError, OSError):
        return "unknown memory"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build" / "shardproof")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--plans", type=pathlib.Path, default=PLANS)
    parser.add_argument("names", nargs="*", help="only plans whose name contains one of these")
    arguments = parser.parse_args()
    binary = arguments.binary.resolve()
    if not binary.exists():
        sys.exit(f"{binary} does not exist; build it first")
    plans = sorted(arguments.plans.glob("*.plan.json*"), key=lambda p: (p.stat().st_size, p.name))
    plans = [p for p in plans if not arguments.names or any(n in p.name for n in arguments.names)]
    if not plans:
        print(f"no plans in {arguments.plans}: nothing to measure")
        return 0
    print(f"{processor()}, {os.cpu_count()} cores, {memory()}; {platform.system()} {platform.release()}; "
          f"load {os.getloadavg()[0]:.1f} at the start; `--jobs {arguments.jobs}`, {arguments.runs} cold runs each.\n")
    print("| plan | ranks | operator instances | stages | proofs | median s | min s | max s | peak MB | verdict | ceiling |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    good = True
    directory = pathlib.Path(tempfile.mkdtemp(prefix="shardproof-bench-"))
    try:
        for plan in plans:
            name = plan.name.split(".plan.json")[0]
            report_file = directory / (name + ".json")
            # One run apart tells what the plan is like; writing the report is not timed.
            run_once([str(binary), "verify", "--plan", str(plan), "--jobs", str(arguments.jobs), "--json", str(report_file)])
            report = json.loads(report_file.read_text())
            runs = [run_once([str(binary), "verify", "--quiet", "--jobs", str(arguments.jobs), "--plan", str(plan), "--json", str(report_file)])
                    for _ in range(arguments.runs)]
            seconds = [r[0] for r in runs]
            peak = max(r[1] for r in runs)
            proved = all(r[2] == 0 for r in runs)
            figures = report["statistics"]
            ceiling, met = "", True
            if name in CEILINGS:
                limit, megabytes = CEILINGS[name]
                met = statistics.median(seconds) <= limit and peak <= megabytes
                ceiling = f"{limit:g} s, {megabytes} MB: {'met' if met else 'MISSED'}"
            good = good and proved and met
            print(f"| {name} | {figures['ranks']:,} | {figures['operator_instances']:,.0f} | {figures['stages']} | {figures['classes']} | "
                  f"{statistics.median(seconds):.3f} | {min(seconds):.3f} | {max(seconds):.3f} | {peak:.0f} | {report['verdict']} | {ceiling} |", flush=True)
    finally:
        shutil.rmtree(directory)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
