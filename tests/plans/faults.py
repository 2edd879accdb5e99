# SPDX-License-Identifier: Apache-2.0
"""What can go wrong around a run.

Full disks, directories that cannot be written, signals, readers that go away, workers that die or
never return, too little memory, many runs on one file. After each the run has ended and its exit
code names the fault. The file on the disk is whole, the old or the new one, with nothing beside it.
docs/reliability.md has the table. Faults of the proof cache's file are in cache.py, of long runs in
workers.py.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import resource
import shlex
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
from plan_edit import (
    EQUIVALENT,
    INPUT_ERROR,
    INTERNAL,
    NOT_EQUIVALENT,
    OUT_OF_MEMORY,
    ROOT,
    UNDECIDED,
    Failure,
    Runner,
    children,
    is_running,
)

LIMIT = 120  # seconds for one run
ATTEMPTS = 20  # to hit a worker while it works
GPT = (
    "gpt",
    *shlex.split("--layers 2 --dim 16 --heads 2 --seq 4 --vocab 16 --dp 2 --tp 2 --microbatches 2"),
)
# A plan of some megabytes.
LARGE = (
    "gpt",
    *shlex.split("--layers 16 --dp 2 --tp 2 --pp 2 --microbatches 4 --schedule 1f1b"),
)


class Done:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


def expect(condition, message):
    if not condition:
        raise Failure(message)


def limited(**limits):
    """To be called in the child: its limits, and none of them turned into a core dump."""

    def apply():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))

    return apply


def execute(runner, *arguments, program=None, stdout=subprocess.PIPE, **keywords):
    process = subprocess.Popen(
        [program or runner.program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        **keywords,
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Failure(f"{arguments[0]} did not end within {LIMIT} s") from None
    return Done(process.returncode, out or "", err)


class Place:
    """A directory with a demo plan and nothing else in it but what the run leaves."""

    def __init__(self, runner, *what, name="p"):
        self.directory = runner.path("place")
        self.directory.mkdir()
        self.plan, self.report = (
            self.directory / f"{name}.plan.json",
            self.directory / "report.json",
        )
        if what:
            done = execute(runner, "generate", *what, "-o", self.directory / name)
            expect(done.code == 0, done.err)
        else:
            subprocess.run(
                [sys.executable, ROOT / "scripts" / "make_demo_plan.py", self.directory],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            self.plan = self.directory / "mlp.plan.json"
        self.before = self.files()

    def files(self):
        return {p.name for p in self.directory.iterdir()}

    def expect_only(self, *names):
        left = self.files() - self.before - set(names)
        expect(not left, f"left behind: {sorted(left)}")

    def expect_whole_report(self, *verdicts):
        verdict = json.loads(self.report.read_text())["verdict"]
        expect(not verdicts or verdict in verdicts, f"the report says {verdict}")
        return verdict


def expect_gone(pids):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if not any(map(is_running, pids)):
            return
        time.sleep(0.01)
    raise Failure("workers are left behind")


def bound_by_permissions(program):
    """The command for a program that permissions bind.

    For root it drops the rights that override permissions; None where that is impossible.
    """
    if os.geteuid() != 0:
        return [program]
    command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    allowed = (
        subprocess.run([*command, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    )
    return [*command, program] if allowed else None


# ---- full disks ----


def commands(place):
    """Every command that writes a file, and the files."""
    cache = place.directory / "c.db"
    return {
        "verify": (("verify", "--plan", place.plan, "--json", place.report), [place.report]),
        "generate": (
            ("generate", *GPT, "-o", place.directory / "new"),
            [place.directory / "new.model.json", place.directory / "new.plan.json"],
        ),
        "mutate": (
            (
                "mutate",
                place.plan,
                "--bug",
                "missing_all_reduce",
                "-o",
                place.directory / "bad.plan.json",
            ),
            [place.directory / "bad.plan.json"],
        ),
        "mutate_gz": (
            (
                "mutate",
                place.plan,
                "--bug",
                "missing_all_reduce",
                "-o",
                place.directory / "bad.plan.json.gz",
            ),
            [place.directory / "bad.plan.json.gz"],
        ),
        "cache": (("cache", "prune", cache, "--max-size", 1), []),
    }


def full_disk(runner, name, bytes_left):
    """A limit on the size of files: writing fails in the middle, as on a full disk.

    Once with no file there, once with an old one.
    """
    place = Place(runner)
    arguments, files = commands(place)[name]
    for old in (None, "old"):
        for file in files if old else []:
            file.write_text(old)
        done = execute(runner, *arguments, preexec_fn=limited(FSIZE=bytes_left))
        expect(done.code == INTERNAL, f"exit {done.code}: {done.err}")
        expect(
            str(files[0].name).split(".")[0] in done.err and len(done.err.splitlines()) == 1,
            f"not one line with the file: {done.err}",
        )
        for file in files:
            expect(
                (file.read_text() if file.exists() else None) == old,
                f"{file.name} is neither the old file nor absent",
            )
        place.expect_only(*[f.name for f in files] if old else [])
    return done.err.strip().rpartition(": ")[2]


def full_cache(runner):
    """`cache prune` that cannot write leaves the cache as it was."""
    place = Place(runner, *GPT)
    cache = place.directory / "c.db"
    expect(
        execute(runner, "verify", "-q", "--plan", place.plan, "--cache", cache).code == EQUIVALENT,
        "the cache cannot be made",
    )
    before = execute(runner, "cache", "stats", cache).out
    done = execute(runner, "cache", "prune", cache, "--max-size", 1, preexec_fn=limited(FSIZE=4096))
    expect(
        done.code == INTERNAL and len(done.err.splitlines()) == 1, f"exit {done.code}: {done.err}"
    )
    after = execute(runner, "cache", "stats", cache)
    expect(after.code == 0 and after.out == before, f"{before} became {after.out}{after.err}")
    expect(
        execute(runner, "cache", "verify", cache, "--sample", 5).code == 0,
        "its proofs do not hold any more",
    )
    place.expect_only("c.db")
    return done.err.strip().rpartition(": ")[2]


def full_file_system(runner):
    """A real full disk of 256 KB, where mounting is allowed: report, plan and cache do not fit."""
    script = (
        'mount -t tmpfs -o size=256k none "$1" || exit 99; cd "$1"; dd if=/dev/zero of=fill '
        "bs=1k count=250 2>/dev/null; shift; "
        '"$@"; code=$?; ls -A >&2; exit $code'
    )
    place = Place(runner, *GPT)
    mounted = place.directory / "small"
    mounted.mkdir()
    outcomes = []
    for arguments, expected in (
        (("verify", "--plan", place.plan, "--json", "r.json"), INTERNAL),
        (("generate", *LARGE, "-o", "g"), INTERNAL),
        (("mutate", place.plan, "--bug", "missing_all_reduce", "-o", "m.json"), INTERNAL),
        (("verify", "-q", "--plan", place.plan, "--cache", "c.db"), EQUIVALENT),
    ):
        done = execute(
            runner,
            "--mount",
            *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]),
            "sh",
            "-c",
            script,
            "sh",
            mounted,
            runner.program,
            *arguments,
            program="unshare",
        )
        if "unshare" in done.err or done.code == 99:
            return "mounting is not allowed here; the limit on the size of files stands for it"
        *messages, left = done.err.strip().rpartition("\n")[0].splitlines() + [done.err.split()[-1]]
        names = done.err.split("\n")
        expect(
            done.code == expected and "No space left" in done.err or "full" in done.err,
            f"{arguments[0]}: exit {done.code}: {done.err}",
        )
        expect(
            not any(
                n.endswith((".tmp", "r.json", "g.model.json", "g.plan.json", "m.json", "-journal"))
                and " " not in n
                for n in names
            ),
            f"left behind: {done.err}",
        )
        outcomes.append(f"{arguments[0]} {done.code}")
    return ", ".join(outcomes)


# ---- places that cannot be written ----


def unwritable(runner):
    """Directories that are files, are not there, are the system's, or that permissions close."""
    place = Place(runner)
    closed = place.directory / "closed"
    closed.mkdir(mode=0o555)
    bound = bound_by_permissions(runner.program)
    tried = 0
    for bad in (
        place.plan,
        place.directory / "none",
        pathlib.Path("/proc"),
        pathlib.Path("/proc/self/fd"),
        *([closed] if bound else []),
    ):
        program, *first = bound if bad == closed else [runner.program]
        for arguments in (
            ("verify", "--plan", place.plan, "--json", bad / "r.json"),
            ("generate", *GPT, "-o", bad / "g"),
            ("mutate", place.plan, "--bug", "missing_all_reduce", "-o", bad / "m.json"),
        ):
            done = execute(runner, *first, *arguments, program=program)
            expect(done.code == INTERNAL, f"{arguments[0]} to {bad}: exit {done.code}: {done.err}")
            expect(
                str(bad) in done.err and len(done.err.splitlines()) == 1 and not done.out,
                f"{arguments[0]} to {bad}: {done.out}{done.err}",
            )
            tried += 1
        done = execute(
            runner,
            *first,
            "verify",
            "-q",
            "--plan",
            place.plan,
            "--cache",
            bad / "c.db",
            program=program,
        )
        expect(
            done.code == EQUIVALENT and "going on without it" in done.err,
            f"--cache in {bad}: exit {done.code}: {done.err}",
        )
        tried += 1
    place.expect_only("closed")
    expect(not list(closed.iterdir()), "something was written into a closed directory")
    return f"{tried} tried" + (
        ""
        if bound
        else "; none that permissions close, because root's rights cannot be given up here"
    )


# ---- readers that go away ----


def nobody_reads(runner):
    """Standard output is a closed pipe: exit code 6, and files are still written."""
    place = Place(runner, *GPT)
    cache = place.directory / "c.db"
    execute(runner, "verify", "-q", "--plan", place.plan, "--cache", cache)
    for arguments, files in (
        (("verify", "--plan", place.plan, "--json", place.report), [place.report]),
        (
            ("verify", "--plan", place.plan, "--plan", place.plan, "--json", place.report),
            [place.report],
        ),
        (
            ("generate", *GPT, "-o", place.directory / "n"),
            [place.directory / "n.model.json", place.directory / "n.plan.json"],
        ),
        (
            ("mutate", place.plan, "--bug", "missing_all_reduce", "-o", place.directory / "m.json"),
            [place.directory / "m.json"],
        ),
        (("mutate", "--list"), []),
        (("cache", "stats", cache), []),
        (("cache", "verify", cache, "--sample", 3), []),
        (("cache", "prune", cache), []),
        (("--help",), []),
    ):
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = execute(runner, *arguments, stdout=writing)
        finally:
            os.close(writing)
        expect(done.code == INTERNAL, f"{arguments[0]}: exit {done.code}: {done.err}")
        expect(
            "standard output" in done.err and len(done.err.splitlines()) == 1,
            f"{arguments[0]}: {done.err}",
        )
        for file in files:
            json.loads(file.read_text())
            file.unlink()
    place.expect_only("c.db")
    # A reader that takes one line and goes.
    done = subprocess.run(
        ["sh", "-c", '{ "$0" mutate --list; echo $? >&2; } | head -1', runner.program],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    expect(
        done.stdout.count("\n") == 1 and done.stderr.split()[-1] in ("0", str(INTERNAL)),
        f"{done.stdout}{done.stderr}",
    )
    return "9 commands"


# ---- signals ----


def has_unnamed_files(directory):
    """Whether the file system has files without a name.

    Otherwise a process that is killed while it writes leaves one with a temporary name.
    """
    try:
        os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY))
    except OSError:
        return False
    return True


def is_whole(file):
    try:
        json.loads(file.read_text())
    except ValueError:
        return False
    return True


def is_caught(pid, number):
    """Whether the process has said what the signal does: its libraries are loaded before it can."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def signalled(runner, number, expected, arguments, files):
    """The signal comes at many moments of a run, from its first instant to its last."""
    place = Place(runner, *GPT)
    unnamed = has_unnamed_files(place.directory)
    arguments = [a.format(d=place.directory) for a in arguments]
    files = [place.directory / f for f in files]
    start = time.monotonic()
    expect(execute(runner, *arguments).code == EQUIVALENT, "it cannot even be run")
    usual = time.monotonic() - start
    whole = {f: json.loads(f.read_text()) for f in files}
    ended = finished = 0
    for share in (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1):
        for file in files:
            file.write_text('"old"')
        process = subprocess.Popen(
            [runner.program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(usual * share)
        workers = children(process.pid)
        caught = is_caught(process.pid, number)
        process.send_signal(number)
        try:
            _, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failure(f"goes on for 20 s after {number.name}") from None
        expect(
            process.returncode in (*expected, EQUIVALENT)
            or (not caught and process.returncode == -number),
            f"exit {process.returncode} after {number.name}: {err}",
        )
        ended, finished = (
            ended + (process.returncode != EQUIVALENT),
            finished + (process.returncode == EQUIVALENT),
        )
        expect_gone(workers)
        new = 0
        for file in files:
            value = json.loads(file.read_text())
            if value != "old":
                new += 1
                # One that is killed may have been about to end.
                verdict = "undecided" if process.returncode > 0 else "equivalent"
                expect(
                    value["verdict"] == verdict
                    if file.name == "report.json"
                    else value == whole[file],
                    f"exit {process.returncode}, and {file.name} is another",
                )
        if process.returncode == EQUIVALENT:
            expect(new == len(files), "exit 0 without the files")
        temporary = [f for f in place.files() - place.before if f.endswith(".tmp")]
        # Without unnamed files a process that ends while it writes leaves what it wrote. With them
        # SIGKILL may come between the two calls that replace a file.
        whole_ones = number == signal.SIGKILL and all(
            is_whole(place.directory / t) for t in temporary
        )
        expect(
            not temporary or (process.returncode < 0 and (not unnamed or whole_ones)),
            f"left behind: {temporary}",
        )
        for name in temporary:
            (place.directory / name).unlink()
    expect(ended > 0, "every run was over before the signal")
    return f"{ended} ended by it, {finished} were done"


VERIFY = (
    (
        "verify",
        "--plan",
        "{d}/p.plan.json",
        "--json",
        "{d}/report.json",
        "--no-classes",
        "--jobs",
        "2",
    ),
    ("report.json",),
)
GENERATE = (("generate", *LARGE, "-o", "{d}/new"), ("new.model.json", "new.plan.json"))
MUTATE = (
    ("mutate", "{d}/p.plan.json", "--bug", "wrong_operand", "-o", "{d}/bad.plan.json"),
    ("bad.plan.json",),
)


def killed_with_cache(runner):
    """SIGKILL at any moment of a run that writes its cache, or of a prune.

    The cache stays good, and later runs use it.
    """
    place = Place(runner, *GPT)
    cache = place.directory / "c.db"
    command = ("verify", "-q", "--plan", place.plan, "--cache", cache, "--jobs", 2)
    for i in range(12):
        process = subprocess.Popen(
            [
                runner.program,
                *map(str, command if i % 3 else ("cache", "prune", cache, "--max-size", "8k")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.01 * i)
        process.kill()
        process.communicate()
    done = execute(runner, *command)
    expect(done.code == EQUIVALENT and not done.err, f"exit {done.code}: {done.err}")
    done = execute(runner, "cache", "verify", cache, "--sample", 20)
    expect(done.code == 0, f"exit {done.code}: {done.out}{done.err}")
    place.expect_only("c.db")  # the journal of a run that was killed is used up by the next
    return done.out.strip().rpartition(": ")[2]


def waiting_for_input(runner, number):
    """The plan is a pipe into which nobody writes: the run waits, but can be ended."""
    place = Place(runner)
    pipe = place.directory / "pipe.json"
    os.mkfifo(pipe)
    for opened in (False, True):
        process = subprocess.Popen(
            [runner.program, "verify", "--plan", str(pipe)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with contextlib.ExitStack() as stack:
            if opened:
                stack.enter_context(open(pipe, "wb", buffering=0)).write(b'{"format": ')
            time.sleep(0.1)
            process.send_signal(number)
            try:
                out, err = process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Failure("goes on waiting") from None
        expect(
            process.returncode == 128 + number and not out, f"exit {process.returncode}: {out}{err}"
        )
    return f"exit {128 + number}"


# ---- workers ----


def one_large_proof(runner, size):
    """A model as its own plan, with a single stage that takes a while.

    The values of a constant are distinguished, hence all elements are.
    """
    place = Place(runner)
    square = {"shape": [size, size]}
    constant = {
        **square,
        "kind": "constant",
        "value": [[i * size + j + 1 for j in range(size)] for i in range(size)],
    }
    tensors = {
        "c": constant,
        "x": {**square, "kind": "input"},
        "a": square,
        "b": square,
        "y": square,
    }
    nodes = [
        {"op": "matmul", "in": ["c", "x"], "out": ["a"]},
        {"op": "matmul", "in": ["a", "c"], "out": ["b"]},
        {"op": "matmul", "in": ["b", "x"], "out": ["y"]},
    ]
    lineage = [
        {"tensor": t, "role": role, "shards": [{"box": [[0, size]] * 2, "parts": [{"local": t}]}]}
        for t, role in (("x", "input"), ("y", "output"))
    ]
    (place.directory / "large.model.json").write_text(
        json.dumps(
            {
                "format": "shardproof-model",
                "version": 1,
                "tensors": tensors,
                "nodes": nodes,
                "outputs": ["y"],
            }
        )
    )
    place.plan = place.directory / "large.plan.json"
    place.plan.write_text(
        json.dumps(
            {
                "format": "shardproof-plan",
                "version": 1,
                "model": "large.model.json",
                "mesh": [],
                "lineage": lineage,
                "programs": [{"at": {}, "tensors": tensors, "nodes": nodes}],
            }
        )
    )
    place.before = place.files()
    return place


def run_and(place, runner, act, *options):
    """A run to whose first worker `act` happens."""
    for _ in range(ATTEMPTS):
        process = subprocess.Popen(
            [
                runner.program,
                "verify",
                "--plan",
                str(place.plan),
                "--json",
                str(place.report),
                "--jobs",
                "1",
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        hit = 0
        while process.poll() is None and not hit:
            for worker in children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    act(worker)
                    hit = worker
        out, err = process.communicate(timeout=LIMIT)
        if hit:
            expect_gone([hit])
            place.expect_only("report.json")
            return Done(process.returncode, out, err), json.loads(place.report.read_text())
    raise Failure("there was no worker to be hit")


def worker_killed(runner, number):
    """Its class is tried again in a fresh process."""
    place = Place(runner, *GPT)
    for _ in range(ATTEMPTS):
        done, report = run_and(
            place, runner, lambda worker: os.kill(worker, number), "--no-classes"
        )
        expect(
            done.code == EQUIVALENT and report["verdict"] == "equivalent",
            f"exit {done.code}: {done.out}",
        )
        lost = report["statistics"]["workers_lost"]
        expect(
            lost in (0, 1) and ("1 worker process crashed" in done.out) == (lost == 1),
            f"{lost} workers lost, but: {done.out}",
        )
        if lost:  # otherwise the signal came when it had done everything
            return "equivalent, 1 worker lost"
    raise Failure(f"no loss is told in {ATTEMPTS} runs")


def expect_undecided(done, report, reason):
    expect(
        done.code == UNDECIDED
        and report["verdict"] == "undecided"
        and done.out.startswith("UNDECIDED: "),
        f"exit {done.code}: {done.out}{done.err}",
    )
    reasons = [s["reason"] for s in report["stages"]]
    expect(reasons == [reason] and reason in done.out, f"{reasons}")
    return reason


def worker_stopped(runner):
    """A worker that never returns, here because it was stopped, is killed at its timeout.

    Its stage is undecided, and so is the plan.
    """
    return expect_undecided(
        *run_and(
            one_large_proof(runner, 40),
            runner,
            lambda worker: os.kill(worker, signal.SIGSTOP),
            "--stage-timeout",
            "2",
            "--infer",
            "never",
        ),
        "no answer within 2 s",
    )


def worker_without_memory(runner):
    """A stage that needs more than workers may have is undecided, and says so."""
    place = one_large_proof(runner, 40)
    done = execute(
        runner,
        "verify",
        "--plan",
        place.plan,
        "--json",
        place.report,
        "--memory",
        16,
        "--jobs",
        2,
        "--infer",
        "never",
    )
    place.expect_only("report.json")
    return expect_undecided(
        done, json.loads(place.report.read_text()), "needed more than 16 MB, twice"
    )


def total_memory(runner):
    """The main process alone has more than all may have together."""
    place = Place(runner, *LARGE)
    done = execute(
        runner, "verify", "--plan", place.plan, "--json", place.report, "--memory-limit", 16
    )
    place.expect_only("report.json")
    reason = "need more than the 16 MB that all processes may have together (--memory-limit)"
    report = json.loads(place.report.read_text())
    expect(
        done.code == UNDECIDED and reason in report["reason"] and reason in done.out,
        f"exit {done.code}: {done.out}{done.err}",
    )
    return reason


def no_memory(runner, jobs, limits):
    """The whole program with ever less memory.

    Each run is done, undecided, or reports an error; no crash, no other verdict.
    """
    place = Place(runner, *(LARGE if jobs == 1 else GPT))
    codes = {}
    for megabytes in limits:
        place.report.unlink(missing_ok=True)
        done = execute(
            runner,
            "verify",
            "--plan",
            place.plan,
            "--json",
            place.report,
            "--jobs",
            jobs,
            preexec_fn=limited(AS=megabytes << 20),
        )
        # Not enough even to load the program and its libraries, which comes before main(): then it
        # cannot print its version either.
        if done.code == 127 or "shared lib" in done.err:
            version = execute(runner, "--version", preexec_fn=limited(AS=megabytes << 20))
            expect(
                version.code != 0,
                f"exit {done.code} with {megabytes} MB, in which the program can be loaded: "
                f"{done.err}",
            )
            break
        expect(
            done.code in (EQUIVALENT, UNDECIDED, OUT_OF_MEMORY),
            f"exit {done.code} with {megabytes} MB: {done.err}",
        )
        expect(
            done.code != OUT_OF_MEMORY or "out of memory" in done.err, f"{megabytes} MB: {done.err}"
        )
        if place.report.exists():
            place.expect_whole_report({EQUIVALENT: "equivalent", UNDECIDED: "undecided"}[done.code])
        place.expect_only("report.json")
        codes.setdefault(done.code, []).append(megabytes)
    expect(codes, "not one run")
    return ", ".join(f"exit {c} with {'/'.join(map(str, m))} MB" for c, m in codes.items())


def no_descriptors(runner):
    """Almost no file descriptors: pipes to workers cannot be made."""
    place = Place(runner, *GPT)
    codes = []
    for most in (3, 4, 7, 12):
        place.report.unlink(missing_ok=True)
        done = execute(
            runner,
            "verify",
            "--plan",
            place.plan,
            "--json",
            place.report,
            preexec_fn=limited(NOFILE=most),
        )
        if done.code == 127:
            continue
        expect(
            done.code in (EQUIVALENT, UNDECIDED, INPUT_ERROR, INTERNAL),
            f"exit {done.code} with {most}: {done.err}",
        )
        if place.report.exists():
            place.expect_whole_report({EQUIVALENT: "equivalent", UNDECIDED: "undecided"}[done.code])
        codes.append(done.code)
    return f"exits {codes}"


# ---- several at once ----


def one_report_file(runner, runs):
    """Runs with different results write one report file: every reader finds a whole one."""
    place = Place(runner)
    plans = [
        (place.plan, EQUIVALENT),
        (place.directory / "mlp_dropped_all_reduce.plan.json", NOT_EQUIVALENT),
    ]

    def one(i):
        plan, expected = plans[i % 2]
        done = execute(runner, "verify", "-q", "--plan", plan, "--json", place.report, "--jobs", 1)
        expect(done.code == expected, f"exit {done.code}: {done.err}")

    read = 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        work = [pool.submit(one, i) for i in range(runs)]
        while not all(w.done() for w in work):
            if place.report.exists():
                place.expect_whole_report("equivalent", "not-equivalent")
                read += 1
        for w in work:
            w.result()
    place.expect_only("report.json")
    return f"{runs} runs, read {read} times"


def one_prefix(runner, runs):
    """The same for `generate` and `mutate`."""
    place = Place(runner)
    small = ("mlp", "--dp", "2", "--tp", "2")

    def one(i):
        done = (
            execute(runner, "generate", *small, "-o", place.directory / "g")
            if i % 2
            else execute(
                runner,
                "mutate",
                place.plan,
                "--bug",
                "missing_all_reduce",
                "-o",
                place.directory / "m.json",
            )
        )
        expect(done.code == 0, f"exit {done.code}: {done.err}")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(runs)))
    expect(
        execute(runner, "verify", "-q", "--plan", place.directory / "g.plan.json").code
        == EQUIVALENT,
        "the model and the plan do not fit",
    )
    place.expect_only("g.model.json", "g.plan.json", "m.json")
    return f"{runs} runs"


def cache_looked_after(runner, runs):
    """Runs use one cache while others prune it, count it and prove it again."""
    place = Place(runner, *GPT)
    cache = place.directory / "c.db"
    verify = ("verify", "-q", "--plan", place.plan, "--cache", cache, "--jobs", 1)
    execute(runner, *verify)

    def one(i):
        return execute(
            runner,
            *(
                verify,
                ("cache", "prune", cache, "--max-size", "20k"),
                ("cache", "stats", cache),
                ("cache", "verify", cache, "--sample", 3),
            )[i % 4],
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for i, done in enumerate(pool.map(one, range(runs))):
            expect(
                done.code == EQUIVALENT and not done.err,
                f"{i % 4}: exit {done.code}: {done.out}{done.err}",
            )
    place.expect_only("c.db")
    return f"{runs} runs"


def main():
    runner = Runner(sys.argv[1])
    for name in ("verify", "generate", "mutate", "mutate_gz"):
        runner.case(f"full_disk_{name}.at_once", full_disk, name, 0)
        runner.case(f"full_disk_{name}_later.in_the_middle", full_disk, name, 500)
    runner.case("full_disk_cache.prune", full_cache)
    runner.case("full_file_system.mounted", full_file_system)
    runner.case("unwritable.directories", unwritable)
    runner.case("nobody_reads.commands", nobody_reads)
    runner.case("signal_verify_int.moments", signalled, signal.SIGINT, (130,), *VERIFY)
    runner.case("signal_verify_term.moments", signalled, signal.SIGTERM, (143,), *VERIFY)
    runner.case(
        "signal_verify_kill.moments", signalled, signal.SIGKILL, (-signal.SIGKILL,), *VERIFY
    )
    runner.case("signal_verify_hup.moments", signalled, signal.SIGHUP, (-signal.SIGHUP,), *VERIFY)
    runner.case(
        "signal_generate_int.moments", signalled, signal.SIGINT, (-signal.SIGINT,), *GENERATE
    )
    runner.case(
        "signal_generate_kill.moments", signalled, signal.SIGKILL, (-signal.SIGKILL,), *GENERATE
    )
    runner.case(
        "signal_mutate_term.moments", signalled, signal.SIGTERM, (-signal.SIGTERM,), *MUTATE
    )
    runner.case("signal_cache_kill.moments", killed_with_cache)
    runner.case("signal_waiting.int", waiting_for_input, signal.SIGINT)
    runner.case("worker_killed.kill", worker_killed, signal.SIGKILL)
    runner.case("worker_crashed.segv", worker_killed, signal.SIGSEGV)
    runner.case("worker_never_returns.stopped", worker_stopped)
    runner.case("worker_without_memory.limit", worker_without_memory)
    runner.case("total_memory.limit", total_memory)
    runner.case(
        "no_memory.one_job",
        no_memory,
        1,
        (4000, 300, 200, 180, 160, 150, 140, 130, 120, 115, 110, 105, 100, 95, 90),
    )
    runner.case("no_memory_for_threads.many_jobs", no_memory, 16, (3000, 300, 240, 200, 150, 100))
    runner.case("no_descriptors.limits", no_descriptors)
    runner.case("at_once_report.runs", one_report_file, 24)
    runner.case("at_once_prefix.runs", one_prefix, 24)
    runner.case("at_once_cache.runs", cache_looked_after, 24)
    return runner.run(parallel=False)  # the cases are about time


if __name__ == "__main__":
    sys.exit(main())
