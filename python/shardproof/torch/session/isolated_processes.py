# SPDX-License-Identifier: Apache-2.0
"""Recordings in processes of their own, in which no other rank was recorded before.

Ranks are recorded one after the other in one process, where real ranks have a process each. What a
step leaves in Python's memory (globals, caches, attributes of functions), the next recording would
find. A process that is forked before anything is recorded, and forks one for each recording, has
nothing of that. It imports the installed packages that the step has imported, as each of its
recordings would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import math
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from ..compat import fake_answers, private
from ..compat.user_code import is_own, raised_by_user
from ..distributed.mailbox import Mailbox, MissingMetadata
from ..distributed.mesh import Mesh
from ..intercept.devices import as_cpu
from ..step.world import World
from ..terms.labels import Ignorable
from ..trace.initial_state import InitialState
from ..trace.record import record
from ..trace.recorder import Recorder
from ..trace.recording import CaptureError, Recording, Step
from .prints import Kept, Prints, prints_of
from .real_run import NOT_ENDED, Ran, run_rank
from .remote_ranks import RemoteRanks

SINGLE = -1  # instead of a rank: the single device
# that a recording takes beyond ten times of what the same step took in this process
MOST_SECONDS = 60


@dataclasses.dataclass(frozen=True)
class Request:
    """A rank to be recorded (SINGLE: the single device).

    stand_in: the number of those that depend on data, for code that is not followed. decided:
    answers to the first questions about data. one_device: torch.cuda.device_count() is 1.
    """

    rank: int
    classes: Mapping[str, int]
    mailbox: Mailbox
    stand_in: float = math.nan
    initial_state: InitialState = InitialState()
    ignorable: Ignorable = dataclasses.field(default_factory=dict)
    decided: tuple[bool, ...] = ()
    one_device: bool = False


@dataclasses.dataclass(frozen=True)
class RunRequest:
    """All ranks run at once, and the single device for itself, with numbers.

    seconds: at most. ranges: integer input -> its numbers are below.
    """

    seconds: float
    ranges: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a request.

    what: the recording, or what it raised (CaptureError, MissingMetadata, Failed). sent: the
    mailbox after it. printed: what a script wrote to standard output and standard error.
    """

    what: Recording | Exception
    sent: Mailbox
    printed: Kept


class Failed(Exception):
    """A recording that raised something else than CaptureError: its text.

    own: a line of the user's program raised it, and no library.
    """

    def __init__(self, text: str, own: bool = False) -> None:
        super().__init__(text)
        self.own = own


class Overrun(Exception):
    """A recording took too long.

    A lock that a thread of this process held when it was forked is never released, for instance.
    """


def fork() -> int:
    """os.fork() without the warning of newer Pythons about threads.

    The forked process uses none.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class IsolatedRecorder:
    """The process that forks others. To be made before anything is recorded, and closed."""

    def __init__(self, steps: Mapping[bool, tuple[Step, Mesh]]) -> None:
        """steps: the single device's (True) and the ranks', with their meshes."""
        self._folder = tempfile.TemporaryDirectory()
        self.folder = self._folder.name  # for files that are not needed once this is closed
        self.elsewhere: RemoteRanks | None = None  # who records ranks, beside this machine
        self._submitted: list[int] = []
        # that torch.cuda.device_count() gives
        self.devices = max(getattr(step, "devices", 1) for step, _ in steps.values())
        warm_up()
        self._known = set(sys.modules)
        fake_answers.learned()  # the forked process has them
        self._ours, theirs = multiprocessing.Pipe()
        self._pid = fork()
        if self._pid == 0:
            try:
                self._ours.close()
                _Server(steps, theirs, self.folder, self.devices).run()
            finally:
                os._exit(0)
        theirs.close()

    def __enter__(self) -> IsolatedRecorder:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        if self._pid:
            if self._submitted:
                os.kill(self._pid, signal.SIGTERM)  # what is still being recorded is not waited for
            self._ours.close()
            os.waitpid(self._pid, 0)
            self._pid = 0

    def submit(self, requests: Sequence[Request], jobs: int | None = None) -> None:
        """Begins to record, `jobs` at a time; `take` returns the results. The process that submits
        them mostly waits: at least two run at once where there are two processors.

        Raises Overrun where an earlier recording did not end.
        """
        if not self._pid:
            raise Overrun("the process that records ranks apart has ended")
        self._submitted = [r.rank for r in requests]
        new = [name for name in list(sys.modules) if name not in self._known]
        self._known.update(new)
        at_once = max(jobs or 1, min(2, os.cpu_count() or 1))
        modules = [name for name in new if is_installed(name)]
        self._ours.send((list(requests), at_once, modules, fake_answers.learned()))

    def take(self, seconds: float) -> dict[int, Outcome]:
        """The results of `submit`.

        seconds: that the same step took in this process. Raises Overrun.
        """
        limit = time.monotonic() + MOST_SECONDS + 10 * seconds * len(self._submitted)
        try:
            if not self._ours.poll(max(0.0, limit - time.monotonic())):
                raise Overrun(
                    f"rank {self._submitted[0]}: recording it in a process of its own did not end"
                )
            self._ours.recv()
        except (Overrun, EOFError, OSError) as e:
            self._end()
            raise Overrun(str(e)) from None
        found: dict[int, Outcome] = {}
        for rank in self._submitted:
            try:
                with open(f"{self.folder}/{rank}", "rb") as f:
                    what, sent, printed, answers = pickle.load(f)
                fake_answers.learn(answers, pass_on=True)
                os.remove(f"{self.folder}/{rank}")
            except (OSError, EOFError, pickle.UnpicklingError):
                what = "failed", f"rank {rank}: the process that recorded it died"
                sent, printed = {}, ([], [])
            found[rank] = Outcome(
                what if isinstance(what, Recording) else _raised(*what), sent, printed
            )
        self._submitted = []
        return found

    def take_single(self, seconds: float) -> Recording | Exception:
        """The result of a request of the single device. Raises Overrun."""
        return self.take(seconds)[SINGLE].what

    def run(self, seconds: float, ranges: Mapping[str, int]) -> dict[int, Ran | str]:
        """What each rank and the single device have after the step with numbers (real_run.py), or
        why not.

        Raises Overrun.
        """
        if not self._pid:
            raise Overrun("the process that records ranks apart has ended")
        try:
            self._ours.send(RunRequest(seconds, ranges))
            if not self._ours.poll(2 * seconds + MOST_SECONDS):
                raise Overrun("running the step with numbers did not end")
            ranks: list[int] = self._ours.recv()
        except (Overrun, EOFError, OSError) as e:
            self._submitted = [SINGLE]  # nobody waits for it
            self._end()
            raise Overrun(str(e)) from None
        found: dict[int, Ran | str] = {}
        for rank in ranks:
            try:
                with open(f"{self.folder}/run {rank}", "rb") as f:
                    found[rank] = pickle.load(f)
            except (OSError, EOFError, pickle.UnpicklingError):
                found[rank] = f"{NOT_ENDED} within {seconds:.0f} s, or another rank failed"
        return found


@functools.cache
def warm_up() -> None:
    """Records a step of its own. Most of the time of a first recording is that of modules which
    PyTorch imports late, and of tables that are made once: forked processes have them, then. With
    GPUs, nothing is differentiated: autograd would start threads, which forked processes lack.
    """
    with_gpus = private.may_have_gpus()

    def step(world: World) -> None:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        labels = torch.zeros(2, dtype=torch.long)
        loss = torch.nn.functional.cross_entropy(model(torch.randn(2, 2)), labels)
        if not with_gpus:
            loss.backward()
        optimizer.step()

    with torch.random.fork_rng(devices=()), contextlib.suppress(CaptureError):
        record(step, Mesh({"dp": 1}), 0)


def is_installed(name: str) -> bool:
    """Whether a module is one of an installed package, which has no part of the user's step."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return isinstance(file, str) and not is_own(file)


def import_modules(modules: Sequence[str], devices: int, prints: Prints | None) -> None:
    """Imports what the step has imported of installed packages, once for all forked processes.

    What they ask about devices when they are imported has the answers that the step gets. Streams
    that they keep (loggers) are those that a script's output goes to.
    """
    with (
        as_cpu(Recorder(0).random, devices),
        contextlib.redirect_stdout(prints.out if prints else io.StringIO()),
        contextlib.redirect_stderr(prints.errors if prints else io.StringIO()),
    ):
        for name in modules:
            if name not in sys.modules:
                with contextlib.suppress(Exception):  # the step meets it itself
                    importlib.import_module(name)


def _raised(kind: str, text: str, peer: int = -1) -> Exception:
    return (
        MissingMetadata(text, peer)
        if kind == "missing"
        else CaptureError(text)
        if kind == "capture"
        else Failed(text, own=kind == "raised")
    )


class _Server:
    """In the forked process."""

    def __init__(
        self,
        steps: Mapping[bool, tuple[Step, Mesh]],
        requests: Connection,
        folder: str,
        devices: int,
    ) -> None:
        self.steps, self.requests, self.folder, self.devices = steps, requests, folder, devices
        self.running: set[int] = set()

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        private.hide_gpus()
        while True:
            try:
                message = self.requests.recv()
            except EOFError:
                return
            if isinstance(message, RunRequest):
                self.requests.send(self._run(message))
                continue
            requests, jobs, modules, answers = message
            fake_answers.learn(answers)
            import_modules(modules, self.devices, prints_of(self.steps[False][0]))
            for request in requests:
                while len(self.running) >= jobs:
                    self._reap()
                self._fork(request)
            while self.running:
                self._reap()
            self.requests.send(None)

    def _stop(self, *_: Any) -> None:
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
        os._exit(1)

    def _reap(self) -> None:
        self.running.discard(os.wait()[0])

    def _run(self, request: RunRequest) -> list[int]:
        """Runs all at once; ends when all have, or one has failed."""
        every = [SINGLE, *range(self.steps[False][1].world)]
        for rank in every:
            self._fork_run(rank, request)
        while self.running:
            pid, status = os.wait()
            self.running.discard(pid)
            if status != 0:
                for other in self.running:
                    os.kill(other, signal.SIGKILL)
        return every

    def _fork_run(self, rank: int, request: RunRequest) -> None:
        folder = f"{self.folder}/{'one' if rank == SINGLE else 'ranks'}"
        os.makedirs(folder, exist_ok=True)
        pid = fork()
        if pid:
            self.running.add(pid)
            return
        code = 1
        try:
            self._alone()
            signal.alarm(math.ceil(request.seconds))
            step, mesh = self.steps[rank == SINGLE]
            try:
                ran: Ran | str = run_rank(step, mesh, max(rank, 0), folder, request.ranges)
            except Exception as e:
                ran = f"{type(e).__name__}: {e}"
            with open(f"{self.folder}/run {rank}", "wb") as f:
                pickle.dump(ran, f, protocol=pickle.HIGHEST_PROTOCOL)
            code = 0 if isinstance(ran, Ran) else 1
        finally:
            os._exit(code)

    @staticmethod
    def _alone() -> None:
        """This process is ended by itself, and prints nothing: what a script prints is shown by
        the process that takes the result.
        """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)

    def _fork(self, request: Request) -> None:
        pid = fork()
        if pid:
            self.running.add(pid)
            return
        try:
            self._alone()
            fake_answers.learned()  # what this process begins with is known
            step, mesh = self.steps[request.rank == SINGLE]
            prints = prints_of(step)
            if prints:
                prints.keep()
            if request.one_device:
                step.devices = 1  # type: ignore[attr-defined]
            what = _outcome(step, mesh, request)
            printed = prints.kept() if prints else ([], [])
            with open(f"{self.folder}/{request.rank}", "wb") as f:
                pickle.dump(
                    (what, request.mailbox, printed, fake_answers.learned()),
                    f,
                    protocol=pickle.HIGHEST_PROTOCOL,
                )
        finally:
            os._exit(0)


def _outcome(step: Step, mesh: Mesh, request: Request) -> Recording | tuple[Any, ...]:
    if not private.can_differentiate():
        return "capture", (
            "this process has differentiated on a machine with GPUs before, and processes that are "
            "forked from it cannot: verify first, or in a process of its own (python -m "
            "shardproof.torch)"
        )
    try:
        return record(
            step,
            mesh,
            max(request.rank, 0),
            request.classes,
            request.mailbox,
            stand_in=request.stand_in,
            initial_state=request.initial_state,
            ignorable=request.ignorable,
            decided=request.decided,
        )
    except MissingMetadata as e:
        return "missing", str(e), e.peer
    except CaptureError as e:
        return "capture", str(e)
    except Exception as e:
        return "raised" if raised_by_user(e) else "failed", f"{type(e).__name__}: {e}"


__all__ = [
    "SINGLE",
    "Failed",
    "IsolatedRecorder",
    "Outcome",
    "Overrun",
    "Request",
    "fork",
    "import_modules",
    "is_installed",
    "warm_up",
]
