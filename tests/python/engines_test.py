# SPDX-License-Identifier: Apache-2.0
"""Work on engines: real ones of this machine, and executors that lose, repeat and mix up results.

Whatever the engine does, the results are those of a run without one.
"""

import contextlib
import io
import json
import os
import pathlib
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from unittest import mock

import engine_steps
from shardproof import engines, program
from shardproof.engines import identity, proof_cache, tasks
from shardproof.sweep import command, configurations

ROOT = pathlib.Path(__file__).resolve().parents[2]
HUNDRED = {
    "format": "shardproof-sweep",
    "version": 1,
    "defaults": {"arch": "mlp", "layers": 1, "dim": 8, "hidden": 16, "batch": 64},
    "configurations": [
        {
            "name": "right",
            "dp": [1, 2, 4, 8],
            "tp": [1, 2, 4],
            "microbatches": [1, 2, 4],
            "zero": [0, 1],
            "skip_invalid": True,
        },
        {"name": "wide", "hidden": [32, 48], "dp": [2, 4, 8], "tp": [1, 2], "microbatches": [1, 2]},
        {
            "name": "wrong",
            "dp": 2,
            "tp": 2,
            "microbatches": [1, 2],
            "mutate": [{"bug": "missing_all_reduce_backward"}, {"bug": "never_divided"}],
            "expect": "not-equivalent",
        },
    ],
}
FEW = {
    **HUNDRED,
    "configurations": [{"name": "few", "dp": [1, 2, 4]}, HUNDRED["configurations"][2]],
}
# What differs from run to run: times, memory, which proofs were known already (of these not all
# names of reduced tensors are kept), and names of temporary files.
RUN = ("seconds", "peak_memory_bytes", "classes_from_cache", "modified_ns", "reduced_shapes")
TIMES = ("slower", "faster")


def without_run(document):
    """A JSON report without what differs from run to run."""
    if isinstance(document, dict):
        return {
            key: without_run(value)
            for key, value in document.items()
            if not any(name in key for name in RUN)
            and key != "text"
            and not (key in ("model", "plan") and str(value).startswith(tempfile.gettempdir()))
        }
    if isinstance(document, list):
        # of changes since a baseline, those of times
        kept = [x for x in document if not (isinstance(x, dict) and x.get("kind") in TIMES)]
        return [without_run(x) for x in kept]
    return document


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        before = os.getcwd()
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)

    def config(self, content, name="sweep.json"):
        (self.folder / name).write_text(json.dumps(content))
        return name

    def local(self, *arguments):
        """The program's own run: exit code and results."""
        done = subprocess.run(
            [program.find_program(), "sweep", *arguments, "--json", "local.json", "-q"],
            capture_output=True,
            text=True,
        )
        return done.returncode, without_run(json.loads((self.folder / "local.json").read_text()))

    def on_engine(self, *arguments, json_file="engine.json"):
        """Of shardproof-sweep: exit code, results and what went to standard error."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), silent():
            code = command.main([*arguments, "--json", json_file, "-q"])
        file = self.folder / json_file
        found = without_run(json.loads(file.read_text())) if file.exists() else None
        return code, found, errors.getvalue()


@contextlib.contextmanager
def silent():
    """What programs that this process starts write."""
    sys.stdout.flush()
    kept, nowhere = [os.dup(n) for n in (1, 2)], os.open(os.devnull, os.O_WRONLY)
    for n in (1, 2):
        os.dup2(nowhere, n)
    try:
        yield
    finally:
        sys.stdout.flush()
        for n in (1, 2):
            os.dup2(kept[n - 1], n)
            os.close(kept[n - 1])
        os.close(nowhere)


# ---- tasks, on executors that misbehave ----
def square(x):
    return x * x


def fails_on(x, bad):
    if x == bad:
        raise ValueError(f"{x} cannot be done")
    return x


def once_dies(x, marker):
    """Its process dies at the first attempt."""
    if x == 3 and not os.path.exists(marker):
        pathlib.Path(marker).touch()
        os._exit(1)
    return x


class Strange(Executor):
    """Runs tasks in this process, in any order. how(number of the submission) -> what becomes of
    it: run, lose, never, swap (the next one's answer), garbage.
    """

    def __init__(self, how, seed=0):
        self.how, self.seed, self.submitted, self.waiting = how, random.Random(seed), 0, []
        self.cancelled = []

    def submit(self, function, /, *args, **kwargs):
        future = Future()
        number, self.submitted = self.submitted, self.submitted + 1
        self.waiting.append((future, self.how(number), function, args))
        threading.Timer(0.05, self.run).start()
        return future

    def run(self):
        waiting, self.waiting = self.waiting, []
        self.seed.shuffle(waiting)
        answers = [f(*args) if how != "never" else None for _, how, f, args in waiting]
        for k, (future, how, _, _) in enumerate(waiting):
            if future.cancelled() or how == "never":
                self.cancelled.append(future)
            elif how == "lose":
                future.set_exception(ConnectionError("the node is gone"))
            elif how == "garbage":
                future.set_result({"kind": "done"})
            else:
                future.set_result(answers[k - 1 if how == "swap" else k])


class Tasks(unittest.TestCase):
    NUMBERS = {k: (k,) for k in range(20)}

    def run_on(self, executor, function=square, given=None, **options):
        found = {}
        for key, value in tasks.map_tasks(
            executor, function, given or self.NUMBERS, doing="test", **options
        ):
            self.assertNotIn(key, found)
            found[key] = value
        return found

    def test_every_task_has_its_own_result_once(self):
        right = {k: k * k for k in range(20)}
        for name, how in {
            "any order": lambda n: "run",
            "half is lost": lambda n: "lose" if n < 20 and n % 2 else "run",
            "results of other tasks": lambda n: "swap" if n in (3, 7, 8) else "run",
            "no answers": lambda n: "garbage" if n in (0, 19, 21) else "run",
        }.items():
            for seed in range(3):
                with self.subTest(name, seed=seed):
                    self.assertEqual(right, self.run_on(Strange(how, seed), attempts=5))

    def test_stragglers_run_once_more(self):
        executor = Strange(lambda n: "never" if n in (4, 11) else "run")
        found = self.run_on(executor, straggler_seconds=0.3)
        self.assertEqual({k: k * k for k in range(20)}, found)
        self.assertEqual(22, executor.submitted)

    def test_attempts_are_bounded(self):
        executor = Strange(lambda n: "run")
        given = {k: (k, 5) for k in range(8)}
        found = self.run_on(executor, fails_on, given, attempts=3)
        self.assertEqual(
            {k: k for k in range(8) if k != 5}, {k: v for k, v in found.items() if k != 5}
        )
        self.assertIsInstance(found[5], tasks.Lost)
        self.assertEqual(3, found[5].attempts)
        self.assertIn("ValueError: 5 cannot be done", found[5].failure)
        self.assertEqual(10, executor.submitted)

    def test_other_versions_are_refused(self):
        ours = identity.identity()
        for field, text in (
            ("package", "the Python package shardproof is another one"),
            ("program", "the program shardproof is another one"),
            ("python", "Python is another one"),
        ):
            other = identity.Identity(**{**vars(ours), field: "3.9"})
            found = iter([ours])  # of the process that submits; then of workers
            with (
                self.subTest(field),
                mock.patch.object(tasks, "identity", lambda f=found, o=other: next(f, o)),
                self.assertRaisesRegex(tasks.Refused, text + ".*install the same shardproof"),
            ):
                self.run_on(Strange(lambda n: "run"))

    def test_a_process_that_dies_costs_its_own_task_only(self):
        with tempfile.TemporaryDirectory() as folder:
            given = {k: (k, f"{folder}/first") for k in range(6)}
            with engines.engine("local:2") as executor:
                self.assertEqual({k: k for k in range(6)}, self.run_on(executor, once_dies, given))
            os.remove(f"{folder}/first")
            # The standard library's pool takes no more tasks: that is an error, and no result.
            with (
                ProcessPoolExecutor(2) as executor,
                self.assertRaisesRegex(tasks.EngineError, "takes no more tasks.*local:4"),
            ):
                self.run_on(executor, once_dies, given)

    def test_addresses(self):
        for address in ("local:0", "local", "dask:", "slurm:", "pbs:long", "local:-1", ""):
            with (
                self.subTest(address),
                self.assertRaisesRegex(tasks.EngineError, "expected dask://HOST:PORT, "),
                engines.engine(address),
            ):
                pass
        with (
            self.assertRaisesRegex(tasks.EngineError, "no scheduler answers"),
            mock.patch("distributed.Client", side_effect=TimeoutError),
            engines.engine("dask://127.0.0.1:1"),
        ):
            pass
        with (
            mock.patch.dict(sys.modules, {"ray": None}),
            self.assertRaisesRegex(tasks.EngineError, r"pip install 'shardproof\[ray\]'"),
            engines.engine("ray://local"),
        ):
            pass


# ---- sweeps ----
class SweepBase(InFolder):
    """Sweeps on threads of this process in place of an engine."""

    def setUp(self):
        super().setUp()
        patched = mock.patch.object(command, "engine", self.engine)
        patched.start()
        self.addCleanup(patched.stop)

    @contextlib.contextmanager
    def engine(self, address):
        with ThreadPoolExecutor(2) as executor:
            yield executor


class Sweeps(SweepBase):
    """What can go wrong in a sweep."""

    def test_plans(self):
        subprocess.run(
            [ROOT / "scripts" / "make_demo_plan.py", "demo"], check=True, stdout=subprocess.DEVNULL
        )
        config = self.config({**FEW, "plans": ["demo"]})
        code, right = self.local(config)
        self.assertEqual(10, code)  # a plan is wrong on purpose
        self.assertEqual((code, right), self.on_engine(config, "--engine", "threads")[:2])
        # On a worker that has other files of these names, nothing is verified.
        other = self.folder / "other"
        (other / "demo").mkdir(parents=True)
        for text, make in (
            ("is not there, or is another file, and the sweep has plans", lambda: None),
            (
                "No such file",
                lambda: (other / config).write_bytes((self.folder / config).read_bytes()),
            ),
            (
                "bytes, expected",
                lambda: [
                    (other / "demo" / p.name).write_bytes(b"{}") for p in self.folder.glob("demo/*")
                ],
            ),
        ):
            make()
            real = configurations.run_configurations
            with (
                self.subTest(text),
                mock.patch.object(
                    command,
                    "run_configurations",
                    lambda task, real=real: real(
                        configurations.dataclasses.replace(task, folder=str(other))
                    ),
                ),
            ):
                code, found, errors = self.on_engine(
                    config, "--engine", "threads", json_file="o.json"
                )
                self.assertEqual(2, code)
                self.assertIn(text, errors)
                self.assertNotIn("done", {c["state"] for c in found["configurations"]})

    def test_grids_need_no_common_files(self):
        config = self.config(FEW)
        code, right = self.local(config)
        real = configurations.run_configurations
        with mock.patch.object(
            command,
            "run_configurations",
            lambda task: real(configurations.dataclasses.replace(task, folder="/nowhere")),
        ):
            self.assertEqual((code, right), self.on_engine(config, "--engine", "threads")[:2])

    def test_options_baseline_and_junit_are_those_of_a_local_run(self):
        config = self.config({**FEW, "expect": "not-equivalent"})
        before = self.config({**FEW, "configurations": FEW["configurations"][:1]}, "before.json")
        self.local(before)
        os.rename("local.json", "baseline.json")
        arguments = [config, "--checker", "z3", "--junit", "j.xml", "--baseline", "baseline.json"]
        code, right = self.local(*arguments)
        junit = (self.folder / "j.xml").read_text()
        self.assertEqual(10, code)
        self.assertTrue(right["baseline"]["changes"])
        self.assertEqual("z3", right["program"]["checker"])
        self.assertEqual((code, right), self.on_engine(*arguments, "--engine", "threads")[:2])
        now = (self.folder / "j.xml").read_text()
        self.assertEqual(3, now.count("<failure"))
        self.assertEqual(junit.count("<failure"), now.count("<failure"))

    def test_a_configuration_that_no_worker_finishes_is_red(self):
        config = self.config(FEW)
        real = configurations.run_configurations
        calls = []

        def run(task):
            calls.append(task.numbers)
            if 2 in task.numbers:
                raise MemoryError("killed")
            return real(task)

        with mock.patch.object(command, "run_configurations", run):
            code, found, _ = self.on_engine(config, "--engine", "threads", "--attempts", "2")
        self.assertEqual(6, code)
        self.assertEqual(2, calls.count((2,)))
        lost = found["configurations"][1]
        self.assertEqual(("crashed", None), (lost["state"], lost["verdict"]))
        self.assertIn("in 2 attempts", lost["reason"])
        self.assertIn("MemoryError: killed", lost["reason"])
        self.assertEqual(
            {"done"}, {c["state"] for k, c in enumerate(found["configurations"]) if k != 1}
        )
        # It is all that is run when the sweep is resumed.
        calls.clear()
        code, right = self.local(config)
        with mock.patch.object(
            command, "run_configurations", lambda task: calls.append(task.numbers) or real(task)
        ):
            now = self.on_engine(config, "--engine", "threads", "--resume")
        self.assertEqual([(2,)], calls)
        self.assertEqual(code, now[0])
        for c in now[1]["configurations"]:
            self.assertEqual(c["name"] != lost["name"], c.pop("resumed"))
        for c in right["configurations"]:
            del c["resumed"]
        self.assertEqual(right["configurations"], now[1]["configurations"])

    def test_an_interruption_leaves_what_was_done(self):
        config = self.config(FEW)
        real = configurations.run_configurations

        def run(task):
            if task.numbers[0] > 3:
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)
            return real(task)

        with mock.patch.object(command, "run_configurations", run):
            code, found, _ = self.on_engine(config, "--engine", "threads")
        self.assertEqual(143, code)
        self.assertFalse(found["complete"])
        states = [c["state"] for c in found["configurations"]]
        self.assertEqual(["done"] * 3, states[:3])
        self.assertIn("not-run", states)

    def test_results_of_another_program_are_not_taken(self):
        config = self.config(FEW)
        real = configurations.run_configurations

        def run(task):
            part = real(task)
            document = json.loads(part.text())
            document["program"]["build"]["crc32"] += 1
            return configurations.Part(
                configurations.zlib.compress(json.dumps(document).encode()), b"", ()
            )

        with mock.patch.object(command, "run_configurations", run):
            code, _, _ = self.on_engine(config, "--engine", "threads")
        self.assertEqual(2, code)

    def test_usage(self):
        config = self.config(FEW)
        for arguments in ([config], [config, "--engine", "x", "--batch", "0"], [config, "--what"]):
            with self.subTest(arguments), contextlib.redirect_stderr(io.StringIO()):
                self.assertEqual(1, command.main(arguments))
        self.assertEqual(2, self.on_engine("none.json", "--engine", "x")[0])
        self.assertEqual(1, self.on_engine(config, "--engine", "x", "--checker", "y")[0])


class Caches(SweepBase):
    def proofs(self, path):
        done = subprocess.run(
            [program.find_program(), "cache", "verify", path, "--sample", "1000"],
            capture_output=True,
            text=True,
        )
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return int(done.stdout.split(": ")[1].split(" of ")[0])

    def cached(self, *arguments):
        self.on_engine(*arguments, "--engine", "threads")
        found = json.loads((self.folder / "engine.json").read_text())["summary"]
        return found["classes"], found["classes_from_cache"]

    def test_a_file(self):
        config = self.config(FEW)
        _, known = self.cached(config, "--cache", "proofs.db")
        self.assertGreater(self.proofs("proofs.db"), 50)
        every, known = self.cached(config, "--cache", "proofs.db")
        wrong = 2 * len(FEW["configurations"][1]["mutate"]) * 2  # stages that are no proofs
        self.assertGreater(known, every - wrong)
        self.assertEqual([], [p for p in os.listdir() if p.startswith(".proofs")])

    def test_a_directory_that_two_jobs_share(self):
        config = self.config(FEW)
        os.mkdir("proofs")
        codes = []
        for json_file in ("a.json", "b.json"):
            started = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "shardproof.sweep",
                    config,
                    "--engine",
                    "local:1",
                    "--batch",
                    "4",
                    "--cache",
                    "proofs",
                    "--json",
                    json_file,
                    "-q",
                ],
                stdout=subprocess.DEVNULL,
            )
            codes.append(started)
        self.assertEqual([0, 0], [p.wait() for p in codes])
        names = os.listdir("proofs")
        self.assertEqual(2, len(names), names)
        self.assertTrue(all(name.endswith(proof_cache.DIRECTORY_ENDING) for name in names))
        for name in names:
            self.proofs(f"proofs/{name}")
        every, known = self.cached(config, "--cache", "proofs")
        self.assertGreater(known, every - 10)

    def test_a_cache_that_cannot_be_used_costs_time_only(self):
        config = self.config(FEW)
        (self.folder / "broken.db").write_text("no cache")
        code, _ = self.local(config)
        found = self.on_engine(config, "--engine", "threads", "--cache", "broken.db")
        self.assertEqual(code, found[0])
        self.assertIn("broken.db: cannot be read as a proof cache", found[2])
        self.assertIn("new proofs cannot be written", found[2])


# ---- real engines ----
def recording(executor=None):
    """Of a step on 64 ranks: its files as text, and which ranks were recorded."""
    from shardproof.torch.session.capture import capture

    c = capture(engine_steps.single, engine_steps.step, mesh={"dp": 64}, executor=executor)
    plan = {**c.plan, "capture": c.ledger()}
    return json.dumps([c.model, plan, c.recorded], sort_keys=True)


def recording_on(address):
    """In two tasks, as each worker that gets one imports PyTorch."""
    from shardproof.torch.session import remote_ranks

    with (
        mock.patch.object(remote_ranks, "RANKS_OF_A_SHARE", 32),
        mock.patch.object(remote_ranks, "RANKS_OF_A_JOB", 32),
        engines.engine(address) as executor,
    ):
        return recording(executor)


class RealEngines(InFolder):
    """Each runs a sweep of 100 configurations and records 64 ranks."""

    maxDiff = 2000
    expected = {}

    def setUp(self):
        super().setUp()
        self.file = self.config(HUNDRED)
        if not self.expected:
            self.expected["sweep"] = self.local(self.file)
            self.expected["recording"] = recording()
        code, right = self.expected["sweep"]
        self.assertEqual(0, code)
        self.assertEqual(100, len(right["configurations"]))

    def check_sweep(self, *arguments):
        code, found, errors = self.on_engine(self.file, *arguments)
        self.assertEqual(self.expected["sweep"], (code, found), errors)

    def test_processes(self):
        """Of this machine; stopped, and resumed."""
        os.mkdir("tmp")
        arguments = [self.file, "--engine", "local:2", "--json", "engine.json", "-q"]
        with subprocess.Popen(
            [sys.executable, "-m", "shardproof.sweep", *arguments],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(self.folder / "tmp")},
        ) as running:
            done = 0
            while running.poll() is None and not done:
                time.sleep(0.05)
                with contextlib.suppress(OSError):
                    document = json.loads((self.folder / "engine.json").read_text())
                    done = [c["state"] for c in document["configurations"]].count("done")
            running.send_signal(signal.SIGTERM)
            self.assertEqual(143, running.wait())
        self.assertEqual([], os.listdir("tmp"))
        code, found, _ = self.on_engine(*arguments[:3], "--batch", "10", "--resume")
        resumed = [c.pop("resumed") for c in found["configurations"]]
        self.assertGreaterEqual(resumed.count(True), done)
        self.assertGreater(resumed.count(False), 10)
        right = self.expected["sweep"][1]
        for c, other in zip(found["configurations"], right["configurations"]):
            self.assertEqual({k: v for k, v in other.items() if k != "resumed"}, c)
        self.assertEqual(0, code)

    def test_dask_with_a_worker_that_is_killed(self):
        from distributed import LocalCluster

        with LocalCluster(
            n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster:
            address = f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"
            killed = []

            def kill():
                """One that has a task, when a part of them is done."""
                most = 0
                while not killed:
                    waiting = len(cluster.scheduler.tasks)
                    most = max(most, waiting)
                    if most > 25 and waiting < 35:
                        for worker in cluster.scheduler.workers.values():
                            if worker.processing:
                                pid = cluster.workers[worker.name].process.pid
                                os.kill(pid, signal.SIGKILL)
                                killed.append(pid)
                                break
                    time.sleep(0.005)

            killer = threading.Thread(target=kill, daemon=True)
            killer.start()
            self.check_sweep("--engine", address, "--batch", "2")
            killer.join(5)
            self.assertTrue(killed)
            self.assertEqual(self.expected["recording"], recording_on(address))

    def test_ray(self):
        self.check_sweep("--engine", "ray://local", "--batch", "10")
        self.assertEqual(self.expected["recording"], recording_on("ray://local"))

    def test_slurm(self):
        code = "import engines_test; print(engines_test.recording_on('slurm:local'), end='')"
        done = subprocess.run(
            [
                ROOT / "scripts" / "with_slurm",
                "bash",
                "-c",
                f'"{sys.executable}" -m shardproof.sweep {self.file} --engine slurm:local '
                f'--batch 25 --json engine.json -q && "{sys.executable}" -W ignore -c "{code}" '
                "> recording.json",
            ],
            capture_output=True,
            text=True,
        )
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        self.assertEqual(0, done.returncode, done.stderr)
        found = without_run(json.loads((self.folder / "engine.json").read_text()))
        self.assertEqual(self.expected["sweep"][1], found)
        self.assertEqual(self.expected["recording"], (self.folder / "recording.json").read_text())


# ---- recordings and proofs ----
class Recordings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.executor = cls.stack.enter_context(ThreadPoolExecutor(1))

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def verify(self, step, **options):
        import shardproof.torch as sp

        return sp.verify(
            engine_steps.single,
            step,
            mesh={"dp": 8},
            arguments=["--confirm", "off"],
            **options,
        )

    def test_verdicts_are_those_of_a_run_without(self):
        for step, verdict in (
            (engine_steps.step, "EQUIVALENT"),
            (engine_steps.wrong, "NOT EQUIVALENT"),
            (engine_steps.one_rank_wrong, "NOT EQUIVALENT"),
            (engine_steps.kept, "EQUIVALENT"),
        ):
            with self.subTest(step.__name__):
                engine_steps.LEFT.clear()
                there = self.verify(step, executor=self.executor)
                engine_steps.LEFT.clear()
                here = self.verify(step)
                self.assertEqual(verdict, there.verdict, str(there))
                self.assertEqual(without_run(here.raw), without_run(there.raw))

    def test_the_environment_travels(self):
        with mock.patch.dict(os.environ, {"SHARDPROOF_TEST_DIVIDE": "1"}):
            report = self.verify(engine_steps.by_environment, executor=self.executor)
        self.assertEqual("EQUIVALENT", report.verdict, str(report))

    def test_ranks_that_no_worker_records_are_recorded_here(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = self.verify(engine_steps.dies, executor=self.executor)
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertTrue(any("are recorded by this process" in str(w.message) for w in caught))

    def test_a_step_that_cannot_be_sent(self):
        lock = threading.Lock()

        def step(world):
            with lock:
                return engine_steps.step(world)

        with self.assertRaisesRegex(engines.EngineError, "cannot be sent to workers: .*lock"):
            self.verify(step, executor=self.executor)

    def test_other_code_on_a_worker_is_refused(self):
        from shardproof.torch.session import remote_ranks

        ours = remote_ranks.loaded_now()
        for loaded, text in (
            (remote_ranks.Loaded({"engine_steps": "0"}, {}), "another engine_steps than"),
            (remote_ranks.Loaded({}, {"numpy": "0.1"}), "has numpy 0.1, expected"),
        ):
            with self.subTest(text), self.assertRaisesRegex(engines.Refused, text):
                remote_ranks.check_same(loaded)
        remote_ranks.check_same(ours)
        self.assertIn("engine_steps", ours.own)
        self.assertIn("torch", ours.others)


class Proofs(InFolder):
    def test_a_plan(self):
        prefix = str(self.folder / "plan")
        subprocess.run(
            [
                program.find_program(),
                *shlex.split(
                    "generate llama3 --layers 2 --dim 16 --hidden 24 --heads 4 --kv-heads 2 "
                    "--seq 8 --vocab 32 --dp 2 --tp 2 --pp 2 --microbatches 2 -o"
                ),
                prefix,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        plans = {"right": f"{prefix}.plan.json", "wrong": f"{prefix}.wrong.plan.json"}
        subprocess.run(
            [
                program.find_program(),
                "mutate",
                plans["right"],
                "--bug=missing_all_reduce",
                "--seed=1",
                "-o",
                plans["wrong"],
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        options = ["--confirm", "off", "--diagnose", "off"]
        with ThreadPoolExecutor(2) as executor:
            for name, plan in plans.items():
                with self.subTest(name):
                    here = program.verify_files(plan, arguments=options)
                    there = program.verify_files(plan, arguments=options, executor=executor)
                    self.assertEqual(
                        "EQUIVALENT" if name == "right" else "NOT EQUIVALENT", here.verdict
                    )
                    self.assertEqual(without_run(here.raw), without_run(there.raw))
                    known = there.raw["statistics"]["classes_from_cache"]
                    if name == "right":
                        self.assertEqual(there.raw["statistics"]["classes"], known)
                    self.assertGreater(known, 10)

        def dies(*_):
            raise MemoryError("killed")

        with (
            ThreadPoolExecutor(2) as executor,
            warnings.catch_warnings(record=True) as caught,
            mock.patch("shardproof.engines.proofs.prove_stages", dies),
        ):
            warnings.simplefilter("always")
            report = program.verify_files(plans["right"], arguments=options, executor=executor)
        self.assertEqual("EQUIVALENT", report.verdict)
        self.assertEqual(0, report.raw["statistics"]["classes_from_cache"])
        self.assertTrue(any("proved by this machine" in str(w.message) for w in caught))


if __name__ == "__main__":
    unittest.main()
