# SPDX-License-Identifier: Apache-2.0
"""Helpers of the plan runners: plans as dictionaries, edited in place, verified, reports checked.

A runner takes the program's path, prints one line per case and a summary, and exits with 0 when
every case passed.
"""

import atexit
import concurrent.futures
import copy
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHARED = pathlib.Path(os.environ.get("SHARDPROOF_SHARED", ROOT.parent / "shared"))
LLAMA = "llama3_dp2_pp2_tp2_nm2_ly2.plan.json"
MOE = "moe_dp2_pp2_tp2_nm2_ly2_e16.plan.json"
LLAMA_TP8 = "llama3_dp2_pp4_tp8_nm8_ly2.plan.json.gz"
MOE_128 = "moe_dp16_pp2_tp4_nm16_ly2_e64.plan.json.gz"

# The exit code of a runner that has nothing to check: ctest lists it as skipped, never as passed.
SKIPPED = 77
# What stands for the real plans where they are not there, made by the program under test.
GENERATED = {
    LLAMA: "llama3 --layers 2 --dim 64 --hidden 128 --heads 4 --kv-heads 2 --seq 32 --vocab 512 "
    "--dp 2 --pp 2 --tp 2 --microbatches 2",
    LLAMA_TP8: (
        "llama3 --layers 4 --dim 128 --hidden 256 --heads 16 --kv-heads 8 --seq 64 --vocab 1024 "
        "--dp 2 --pp 4 --tp 8 --microbatches 8"
    ),
}

(
    EQUIVALENT,
    NOT_EQUIVALENT,
    UNDECIDED,
    CONDITIONAL,
    USAGE,
    INPUT_ERROR,
    INTERNAL,
    OUT_OF_MEMORY,
    DOES_NOT_APPLY,
) = 0, 10, 5, 4, 1, 2, 6, 7, 3
# Causes take most of the time of a wrong plan, and diagnosis.py is about them: for what looks at
# verdicts and places.
NO_CAUSES = ("--diagnose", "off")
SLOW = os.environ.get("SHARDPROOF_SLOW_TESTS") == "1"
# Seconds for one run: a hang is a failure, a slow machine is not.
RUN_LIMIT = float(os.environ.get("SHARDPROOF_CASE_LIMIT", "300"))


# ---- files ----


def plans_directory():
    """The real plans, or a directory of generated ones that stand for them."""
    real = SHARED / "plans"
    if (real / LLAMA).is_file() or len(sys.argv) < 2:
        return real
    directory = pathlib.Path(tempfile.mkdtemp(prefix="shardproof-generated-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for name, arguments in GENERATED.items():
        prefix = directory / name.split(".")[0]
        subprocess.run(
            [sys.argv[1], "generate", *arguments.split(), "-o", str(prefix)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        made = pathlib.Path(f"{prefix}.plan.json")
        if name.endswith(".gz"):
            with gzip.open(directory / name, "wb", compresslevel=1) as file:
                file.write(made.read_bytes())
    print(
        f"{real} does not hold the real plans (set SHARDPROOF_SHARED to the directory that has "
        f"plans/): generated ones stand for them"
    )
    return directory


PLANS = plans_directory()
REAL = PLANS == SHARED / "plans"

_texts = {}
_texts_lock = threading.Lock()


def read_json(path):
    """The parsed file; a fresh copy at each call, as the callers edit it."""
    path = pathlib.Path(path)
    with _texts_lock:
        if path not in _texts:
            opener = gzip.open if path.suffix == ".gz" else open
            with opener(path, "rt") as file:
                _texts[path] = file.read()
        text = _texts[path]
    return json.loads(text)


def write_json(path, value):
    path = pathlib.Path(path)
    if path.suffix == ".gz":
        with gzip.open(path, "wt", compresslevel=1) as file:
            json.dump(value, file)
    else:
        with open(path, "w") as file:
            json.dump(value, file)
    return path


def model_of(name):
    """The model file beside a shared plan."""
    return PLANS / read_json(PLANS / name)["model"]


def skip_unless_shared(*names):
    """Ends the runner as skipped when plans that nothing stands for are not there."""
    missing = [n for n in names if not (PLANS / n).is_file()]
    if missing:
        print(
            f"SKIPPED: {PLANS} does not hold {', '.join(missing)} (set SHARDPROOF_SHARED to the "
            f"directory that has plans/)"
        )
        sys.exit(SKIPPED)


# ---- one plan under edit ----


class Plan:
    """A plan and what an edit touched in it.

    Nodes are remembered by identity, so inserting others does not misplace them.
    """

    def __init__(self, name):
        self.name = name
        self.json = read_json(PLANS / name)  # an absolute path is taken as it is
        self._touched = []
        self._fresh = itertools.count()

    @property
    def programs(self):
        return self.json["programs"]

    @property
    def lineage(self):
        return self.json["lineage"]

    @property
    def axes(self):
        return [name for name, _ in self.json["mesh"]]

    def program(self, **at):
        """The index of the program at exactly these coordinates."""
        return next(i for i, p in enumerate(self.programs) if p["at"] == at)

    def nodes(self, program, op=None, **fields):
        """The program's nodes with this operator and these fields.

        `comm_prefix`: the beginning of a communication's name.
        """
        prefix = fields.pop("comm_prefix", "")
        return [
            n
            for n in self.programs[program]["nodes"]
            if (op is None or n["op"] == op)
            and n.get("comm", "").startswith(prefix)
            and all(n.get(k) == v for k, v in fields.items())
        ]

    def node(self, program, op, nth=0, **fields):
        return self.nodes(program, op, **fields)[nth]

    def tensor(self, program, name):
        return self.programs[program]["tensors"][name.split("#")[0]]

    def index(self, program, node):
        return next(i for i, n in enumerate(self.programs[program]["nodes"]) if n is node)

    def touch(self, *nodes):
        self._touched.extend(nodes)

    def at(self, pointer):
        """The node at a JSON pointer."""
        _, _, program, _, node = pointer.split("/")
        return self.programs[int(program)]["nodes"][int(node)]

    def touch_readers(self, program, tensor):
        self.touch(*[n for n in self.programs[program]["nodes"] if tensor in operands(n)])

    def new_tensor(self, program, like, shape=None):
        name = f"edit{next(self._fresh)}"
        made = copy.deepcopy(self.tensor(program, like))
        made.pop("kind", None)
        made.pop("value", None)
        if shape is not None:
            made["shape"] = list(shape)
        self.programs[program]["tensors"][name] = made
        return name

    def insert_before(self, program, node, *made):
        at = self.index(program, node)
        self.programs[program]["nodes"][at:at] = made

    def insert_after(self, program, node, *made):
        at = self.index(program, node) + 1
        self.programs[program]["nodes"][at:at] = made

    def remove(self, program, node):
        del self.programs[program]["nodes"][self.index(program, node)]

    def replace(self, program, node, *made):
        at = self.index(program, node)
        self.programs[program]["nodes"][at : at + 1] = made

    def rewire(self, program, old, new, only=None):
        """Lets the readers of `old` (or those in `only`) read `new`; returns them."""
        changed = []
        for node in self.programs[program]["nodes"] if only is None else only:
            if old in operands(node):
                node["in"] = [
                    new + t[len(old) :] if t and (t == old or t.startswith(old + "#")) else t
                    for t in node["in"]
                ]
                changed.append(node)
        return changed

    def entry(self, tensor, role, nth=0):
        return [e for e in self.lineage if e["tensor"] == tensor and e["role"] == role][nth]

    def entry_index(self, entry):
        return next(i for i, e in enumerate(self.lineage) if e is entry)

    # ---- what the report has to name ----

    def accepted(self):
        """Pointers of the touched nodes and of their direct consumers.

        The partners of a communication consume what it sends.
        """
        where = {
            id(n): (p, i)
            for p, program in enumerate(self.programs)
            for i, n in enumerate(program["nodes"])
        }
        readers, comms = {}, {}
        for p, program in enumerate(self.programs):
            for n in program["nodes"]:
                for t in operands(n):
                    readers.setdefault((p, t), []).append(n)
                if "comm" in n:
                    comms.setdefault(n["comm"], []).append(n)
        reached = {id(n): n for n in self._touched if id(n) in where}

        def add_partners():
            for n in list(reached.values()):
                for partner in comms.get(n.get("comm"), []):
                    reached[id(partner)] = partner

        add_partners()
        for n in list(reached.values()):
            for t in n["out"]:
                for reader in readers.get((where[id(n)][0], t), []) if t else []:
                    reached[id(reader)] = reader
        add_partners()
        return {f"/programs/{p}/nodes/{i}" for p, i in (where[i] for i in reached)}


def operands(node):
    """Names of the tensors that a node reads, without microbatches."""
    return [t.split("#")[0] for t in node["in"] if t]


def peers(plan, program, axis):
    """Programs that differ from this one in `axis` alone, itself included, by coordinate."""
    at = plan.programs[program]["at"]
    found = [
        i
        for i, p in enumerate(plan.programs)
        if all(p["at"].get(a) == at.get(a) for a in plan.axes if a != axis)
    ]
    return sorted(found, key=lambda i: plan.programs[i]["at"].get(axis, 0))


def split_axis(plan, axis):
    """Replaces a free axis by explicit programs, one for each coordinate.

    Indices of programs change.
    """
    size = dict(map(tuple, plan.json["mesh"]))[axis]
    made = []
    for program in plan.programs:
        if axis in program["at"]:
            made.append(program)
            continue
        for c in range(size):
            each = copy.deepcopy(program)
            each["at"] = {
                a: c if a == axis else program["at"][a]
                for a in plan.axes
                if a == axis or a in program["at"]
            }
            made.append(each)
    plan.json["programs"] = made


def split_microbatches(plan, program, node):
    """Writes a node that runs for each microbatch out as one node for each of them."""
    made = []
    for k in range(plan.json["microbatches"]):
        each = copy.deepcopy(node)
        each["mb"] = k
        made.append(each)
    plan.replace(program, node, *made)
    return made


# ---- running the program ----


class Result:
    def __init__(self, code, out, err, report, seconds):
        self.code, self.out, self.err, self.report, self.seconds = code, out, err, report, seconds

    def stages(self):
        return {s["entry"]: s for s in self.report["stages"]}

    def summary(self):
        """One line on what the run said, for a case that failed."""
        if self.report is None:
            return f"exit {self.code}; {self.err.strip()[:300]}"
        text = (
            f"exit {self.code} {self.report['verdict']} ({self.report['reason']})"
            if self.report["reason"]
            else f"exit {self.code} {self.report['verdict']}"
        )
        for defect in self.report["defects"][:3]:
            text += (
                f"\n"
                f"      {defect['kind']}: {defect['message'][:260]}; nodes "
                f"{' '.join(plan_pointers(defect)) or 'none'}"
            )
        bad = [s for s in self.report["stages"] if s["verdict"] != "proved"]
        for stage in bad[:4]:
            text += (
                f"\n"
                f"      stage {stage['tensor']} {stage['role']} /lineage/{stage['entry']}: "
                f"{stage['verdict']}: {stage['reason'][:160]}"
            )
        return text + (f"\n      ({len(bad)} stages not proved)" if bad else "")


def plan_pointers(defect):
    return [n["pointer"] for n in defect["nodes"] if n.get("in", "plan") == "plan"]


def parent_of(pid):
    """The parent of a process that still runs, from /proc; None where it has ended.

    A process that has ended stays listed until its parent waits for it. For orphans this is the
    system's first process, which in a container often never waits.
    """
    try:
        # The name may hold spaces and parentheses; the fields that count follow the last one.
        state, parent = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in "ZX" else int(parent)


def is_running(pid):
    return parent_of(pid) is not None


def children(pid):
    """Running processes whose parent this is."""
    listed = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]
    return [p for p in listed if parent_of(p) == pid]


class Failure(Exception):
    """A case that did not come out as it must."""


def default_signals():
    """Restores signals for the programs that are run.

    A shell that runs tests in the background has them ignore signals, nohup another one, and
    children inherit that.
    """
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class Runner:
    def __init__(self, program, jobs=None, causes=False):
        """causes: whether those of wrong plans are looked for."""
        default_signals()
        self.program = str(pathlib.Path(program).resolve())
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="shardproof-plans-"))
        self.jobs = jobs or max(1, min(4, os.cpu_count() or 1))
        self.causes = causes
        self._cases = []
        self._count = itertools.count()

    def path(self, name):
        return self.directory / f"{next(self._count)}-{name}"

    def verify(self, plan, model, *options, limit=RUN_LIMIT, jobs=1):
        """Runs `verify` on files."""
        report = self.path("report.json")
        command = [
            self.program,
            "verify",
            "--plan",
            str(plan),
            "--json",
            str(report),
            "--jobs",
            str(jobs),
            *(() if self.causes or "--diagnose" in options else NO_CAUSES),
            *map(str, options),
        ]
        if model is not None:
            command += ["--model", str(model)]
        start = time.monotonic()
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"did not end within {limit:g} s") from None
        seconds = time.monotonic() - start
        made = (
            json.loads(report.read_text()) if report.is_file() and report.stat().st_size else None
        )
        report.unlink(missing_ok=True)
        return Result(done.returncode, done.stdout, done.stderr, made, seconds)

    def verify_plan(self, plan, *options, **keywords):
        """Runs `verify` on an edited plan and the unchanged model beside the plan it comes from."""
        model = model_of(plan.name)
        before = hashlib.sha256(model.read_bytes()).digest()
        file = write_json(self.path("plan.json"), plan.json)
        try:
            result = self.verify(file, model, *options, **keywords)
        finally:
            file.unlink(missing_ok=True)
        if hashlib.sha256(model.read_bytes()).digest() != before:
            raise Failure("the run changed the model")
        return result

    def case(self, name, run, *arguments):
        """`run(self, *arguments)` returns what is worth printing, or raises Failure."""
        self._cases.append((name, run, arguments))

    def slow(self, *families):
        """Cases that may reach the limit for one run on a busy machine: not in the default set."""
        unknown = set(families) - {family(name) for name, _, _ in self._cases}
        assert not unknown, unknown
        if not SLOW:
            self._cases = [c for c in self._cases if family(c[0]) not in families]

    def run(self, parallel=True, most_open=0):
        """Runs all cases and returns the exit code.

        A case that ends undecided or not in time is open: listed as such, never counted as passed.
        At most `most_open` may be open, a number that is only ever lowered. A wrong verdict, a
        crash or a report that does not lead to the place is a failure.
        """
        wanted = sys.argv[2:]
        cases = [c for c in self._cases if not wanted or any(w in c[0] for w in wanted)]
        if not wanted and not SLOW:
            # One variant of each family; SHARDPROOF_SLOW_TESTS=1 runs them all.
            first = {}
            for case in cases:
                first.setdefault(family(case[0]), case)
            cases = list(first.values())
        passed = failed = unsettled = 0
        try:
            with concurrent.futures.ThreadPoolExecutor(self.jobs if parallel else 1) as pool:
                for (name, _, _), outcome in zip(cases, pool.map(self._one, cases), strict=True):
                    good, text = outcome
                    # The verdict is right, the label of the lineage is not.
                    is_open = not good and (
                        "did not end within" in text
                        or ": exit 5 " in text
                        or "undecided" in text.split(";")[0]
                        or "is reported as refuted: exit 0" in text
                    )
                    print("ok" if good else "open" if is_open else "FAILED", name, text, flush=True)
                    passed, failed, unsettled = (
                        passed + good,
                        failed + (not good and not is_open),
                        unsettled + is_open,
                    )
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
        if unsettled > most_open:
            print(f"FAILED {unsettled} cases are open, expected at most {most_open}")
            failed += 1
        print(f"{passed} passed, {failed} failed, {unsettled} skipped")
        return 0 if failed == 0 else 1

    def _one(self, case):
        name, run, arguments = case
        start = time.monotonic()
        try:
            text = run(self, *arguments)
            return True, f"{text or ''} [{time.monotonic() - start:.2f} s]".strip()
        except Failure as failure:
            return False, f"[{time.monotonic() - start:.2f} s] {failure}"
        except Exception as error:  # a broken test must not hide the others
            return False, f"the test itself failed: {type(error).__name__}: {error}"


def family(name):
    """The case's name without its last part.

    `llama.half_the_cut_points.3` -> `llama.half_the_cut_points`
    `chunk_off_by_one.pp0.1` -> `chunk_off_by_one`
    """
    words = name.split(".")
    if words[0] == "mutation":  # the matrix chooses its cases itself
        return name
    return ".".join(
        words[:3]
        if words[0] == "wrong_cut_point"
        else words[:2]
        if words[0] in ("llama", "moe", "tp8")
        else words[:1]
    )


def expect_code(result, *codes):
    if result.code not in codes:
        raise Failure(f"expected exit {' or '.join(map(str, codes))}: {result.summary()}")


def shuffled(values, seed):
    values = list(values)
    random.Random(seed).shuffle(values)
    return values
