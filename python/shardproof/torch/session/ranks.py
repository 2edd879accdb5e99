# SPDX-License-Identifier: Apache-2.0
"""Which ranks are recorded, and in which process.

Also whether what one rank leaves in Python's memory matters to the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import math
import os
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence

from ... import progress
from ...engines.tasks import EngineError
from ..compat.fake_answers import Answers
from ..distributed.mailbox import Mailbox, MissingMetadata
from ..distributed.mesh import Mesh, RankClasses, Stretch
from ..export.affine_programs import FEWEST, between
from ..export.model_file import Model
from ..export.parameter_places import look_for_parts
from ..export.rank_program import Program, program_of
from ..intercept.processes import FOUND_A_FILE
from ..terms.assumptions import Assumption, not_raised, ranks_identical
from ..trace.decisions import Raised, check_decisions
from ..trace.record import record
from ..trace.recording import CaptureError, DecidedByData, Facts, Hazard, Recording, Step
from .isolated_processes import (
    SINGLE,
    Failed,
    IsolatedRecorder,
    Outcome,
    Overrun,
    Request,
    fork,
)
from .prints import prints_of
from .remote_ranks import RemoteRanks

UNLOOKED = ranks_identical(
    "that no rank's run depends on what another one's leaves in Python's memory (globals, "
    "caches): a process that was forked to look at it did not end"
)
MOST_GARBAGE = 1 << 30  # bytes that a process that ends soon leaves uncollected
# stands in for a number that depends on data: on a rank this, on the single device its negative
LARGE = 1.37e30
# others, as losses and norms may be: what is decided by an interval is decided by one of these
ORDINARY = (
    0.37,
    41.0,
    -3.1,
)


@dataclasses.dataclass
class Recorded:
    """Recordings of ranks.

    rank_classes: where others are taken to be like them. affine_axis: an axis along which others
    are taken to follow those evenly. by: who recorded them. beside: the recording that was
    requested beside them, None where that did not end, or before `confirm`.
    """

    sides: list[Recording]
    rank_classes: RankClasses
    affine_axis: str | None
    assumed: list[Assumption]
    by: RankRecorder
    beside: Recording | Exception | None = None

    def confirm(self) -> None:
        """Looks whether they are the same with another number in place of those that depend on
        data, where that was not looked at yet.

        Raises CaptureError.
        """
        if self.by.alone:
            try:
                self.by.same_isolated(self.sides)
            except Overrun as e:
                raise CaptureError(str(e)) from None
            self.beside = self.by.beside or self.beside

    def decisions(self) -> list[Assumption]:
        """What is assumed where ranks decide something by data, which has to make no difference.

        Raises CaptureError where it does.
        """
        return self.by.decisions(self.sides)


def recorded_ranks(
    step: Step,
    mesh: Mesh,
    model: Model,
    ranks: str,
    cut_points: bool,
    jobs: int,
    isolated: IsolatedRecorder,
    beside: Request | None = None,
    keep_all: bool = False,
    may_move: bool = True,
    seconds: float = 0.0,
) -> Recorded:
    """Recordings of the ranks.

    Ranks of a script are each recorded in a process of its own. If that fails, and for step
    functions, all are recorded in this process (or in `jobs` of them), which meets the error
    itself. One is then also recorded in a process of its own, with each that is wrong, and one that
    had to be run twice. Where that differs, what a rank finds in Python's memory depends on the
    others; then each is recorded in a process of its own.

    Some are recorded once more with another number for those that depend on data (by `confirm` of
    what this returns): where that differs, something is decided by one, which is an error.

    keep_all: all of each recording is kept. may_move: ranks may be taken to follow others evenly.
    seconds: that the single device's recording took. Raises CaptureError, and what the step raises.
    """
    if ranks not in ("all", "classes"):
        raise ValueError(f"ranks={ranks!r}: 'all' or 'classes'")
    choose = _all if ranks == "all" else functools.partial(_classes, may_move=may_move)
    found = None
    if getattr(step, "whole_script", False):
        alone = RankRecorder(
            step, mesh, model, cut_points, jobs, isolated, alone=True, seconds=seconds
        )
        with contextlib.suppress(CaptureError, MissingMetadata, Overrun):
            found = choose(alone)
            alone.submitted_beside = beside
            return Recorded(*found, [], alone)
    together = RankRecorder(
        step, mesh, model, cut_points, jobs, isolated, beside, keep_all=keep_all
    )
    try:
        try:
            found = choose(together)
        except EngineError:
            raise
        except Exception:
            if together.under_way is None or not together.succeeds_isolated(together.under_way):
                raise
        else:
            if together.same_isolated(found[0]):
                return Recorded(*found, [], together, together.beside)
    except Overrun:
        if found is None:
            raise CaptureError("a process that was forked to record a rank did not end") from None
        return Recorded(*found, [UNLOOKED], together, together.beside)
    alone = RankRecorder(
        step, mesh, model, cut_points, jobs, isolated, alone=True, seconds=together.seconds
    )
    return Recorded(*choose(alone), [], alone, together.beside)


@dataclasses.dataclass(frozen=True)
class RecorderStart:
    """What a recorder on another machine starts from."""

    step: Step
    mesh: Mesh
    model: Model
    cut_points: bool
    keep_all: bool
    mailbox: Mailbox
    like: Facts | None


class RankRecorder:
    """Records ranks.

    A rank that waits for what a pipeline's stage on another rank sends is run once more after that
    one. alone: each in a process of its own.
    """

    def __init__(
        self,
        step: Step,
        mesh: Mesh,
        model: Model,
        cut_points: bool,
        jobs: int,
        isolated: IsolatedRecorder | None,
        submitted_beside: Request | None = None,
        alone: bool = False,
        keep_all: bool = False,
        seconds: float = 0.0,
    ) -> None:
        self.step, self.mesh, self.model, self.cut_points, self.jobs, self.alone = (
            step,
            mesh,
            model,
            cut_points,
            jobs,
            alone,
        )
        self._isolated_processes = isolated
        self.submitted_beside, self.keep_all = submitted_beside, keep_all
        self.beside: Recording | Exception | None = None
        self.mailbox: Mailbox = {}
        self.answers = Answers()
        # this process: what it leaves behind need not be collected, which takes a seventh of the
        # time
        self.ends_soon = False
        self.peak = _peak()
        self.like: Facts | None = None  # of the first rank
        self.seconds = seconds  # of the slowest recording
        self.under_way: int | None = None  # rank that is being recorded
        self.repeated: int | None = None  # a rank that was run twice
        self.early = False  # what `look_ahead` submitted was not taken yet

    @staticmethod
    def on_worker(start: RecorderStart) -> RankRecorder:
        """Of a share of the ranks, which ends soon; it has no processes of its own."""
        recorder = RankRecorder(
            start.step,
            start.mesh,
            start.model,
            start.cut_points,
            1,
            None,
            keep_all=start.keep_all,
        )
        recorder.mailbox, recorder.like = dict(start.mailbox), start.like
        recorder.ends_soon = True
        return recorder

    @property
    def isolated(self) -> IsolatedRecorder:
        assert self._isolated_processes is not None
        return self._isolated_processes

    @property
    def at_once(self) -> bool:
        """Whether several ranks are recorded at once."""
        return self.jobs > 1 or self.isolated.elsewhere is not None

    def __call__(self, rank: int, waiting: tuple[int, ...] = ()) -> Recording:
        while True:
            before = len(self.mailbox)
            try:
                return self._run(rank)
            except MissingMetadata as e:
                if e.peer == rank and len(self.mailbox) > before:
                    continue
                if e.peer in waiting and len(self.mailbox) == before:
                    raise CaptureError(f"rank {rank}: {e}") from None
                if e.peer in waiting:
                    raise
                self.repeated = rank
                with contextlib.suppress(MissingMetadata):  # what was sent by then may be enough
                    self(e.peer, (*waiting, rank))
                if len(self.mailbox) == before:
                    raise CaptureError(f"rank {rank}: {e}") from None

    def _run(self, rank: int) -> Recording:
        if self.alone:
            return self._given(self._taken([rank], math.nan)[rank])
        self.under_way = rank
        progress.phase(f"recording rank {rank} of {self.mesh.world}")
        start = time.monotonic()
        recording = record(
            self.step,
            self.mesh,
            rank,
            self.model.classes,
            self.mailbox,
            self.answers,
            initial_state=self.model.initial_state,
            ignorable=self.model.ignorable,
        )
        self.seconds = max(self.seconds, time.monotonic() - start)
        peak = _peak()
        if not self.ends_soon or peak - self.peak > MOST_GARBAGE:
            gc.collect()  # models are cycles
            gc.freeze()  # what was recorded is not, and stays
            self.peak = peak
        self._made(recording)
        self.like = self.like or recording.facts
        return recording

    def program(self, side: Recording) -> Program:
        """The program of a recording. Raises CaptureError."""
        if side.program is None:
            look_for_parts(side, self.model)
            side.program = program_of(side.whole(), self.model, set(), self.cut_points)
        made: Program = side.program
        return made

    def _made(self, side: Recording) -> str:
        """The program of a recording, as text; or its error, which is met once more where the plan
        is made.
        """
        try:
            return self.program(side).text
        except (CaptureError, Hazard) as e:
            return f"{type(e).__name__} {e}"

    def _submit(
        self, ranks: Sequence[int], stand_in: float, decided: tuple[bool, ...] = ()
    ) -> None:
        beside = [self.submitted_beside] if self.submitted_beside is not None else []
        self.submitted_beside = None
        self.isolated.submit(
            [
                *[
                    Request(
                        r,
                        self.model.classes,
                        self.mailbox,
                        stand_in,
                        self.model.initial_state,
                        self.model.ignorable,
                        decided,
                    )
                    for r in ranks
                ],
                *beside,
            ],
            self.jobs if self.alone else None,
        )

    def _take(self) -> dict[int, Recording | Exception]:
        found = self._outcomes()
        for outcome in found.values():
            for key, value in outcome.sent.items():
                self.mailbox.setdefault(key, value)
        return {rank: outcome.what for rank, outcome in found.items()}

    def _outcomes(self) -> dict[int, Outcome]:
        """Of what was submitted."""
        progress.phase("recording ranks in processes of their own")
        found = self.isolated.take(self.seconds)
        if SINGLE in found:
            self.beside = found.pop(SINGLE).what
        prints = prints_of(self.step)
        if prints is not None:
            for rank, outcome in found.items():
                ended = isinstance(outcome.what, Recording)
                prints.replay(self.mesh.world, rank, outcome.printed, ended)
        return found

    def _taken(self, ranks: Sequence[int], stand_in: float) -> dict[int, Recording | Exception]:
        self._submit(ranks, stand_in)
        return self._take()

    @staticmethod
    def _given(what: Recording | Exception) -> Recording:
        if isinstance(what, Failed):
            raise CaptureError(f"where no other rank was recorded before: {what}")
        if isinstance(what, Exception):
            raise what
        return what

    def several(self, ranks: Sequence[int]) -> dict[int, Recording]:
        """These ranks' recordings, by `jobs` processes.

        A share whose process fails is recorded by this one, which meets the error itself.
        """
        if self.alone:
            taken = self._taken(ranks, math.nan) if ranks else {}
            return {
                r: self(r) if isinstance(what, MissingMetadata) else self._given(what)
                for r, what in taken.items()
            }
        found: dict[int, Recording] = {}
        if self.isolated.elsewhere is not None and len(ranks) > 1:
            return self._elsewhere(self.isolated.elsewhere, ranks)
        if self.jobs == 1:
            return {r: self(r) for r in ranks}
        shares = [list(ranks[k :: self.jobs]) for k in range(self.jobs)]
        progress.phase(f"recording {len(ranks)} ranks of {self.mesh.world}")
        folder = tempfile.mkdtemp(dir=self.isolated.folder)
        children: list[tuple[int, list[int], str]] = []
        try:
            children += [
                (self._fork(share, f"{folder}/{k}"), share, f"{folder}/{k}")
                for k, share in enumerate(shares)
                if share
            ]
        finally:
            ended = [
                (os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), share, file)
                for pid, share, file in children
            ]
        for code, share, file in ended:
            if code == 0:
                with open(file, "rb") as f:
                    recordings, sent = pickle.load(f)
                found.update(recordings)
                for key, value in sent.items():
                    self.mailbox.setdefault(key, value)
            else:
                found.update({r: self(r) for r in share})
        return found

    def _elsewhere(self, elsewhere: RemoteRanks, ranks: Sequence[int]) -> dict[int, Recording]:
        """These ranks' recordings by workers, or by this process where that fails."""
        start = RecorderStart(
            self.step,
            self.mesh,
            self.model,
            self.cut_points,
            self.keep_all,
            self.mailbox,
            self.like,
        )
        folder = tempfile.mkdtemp(dir=self.isolated.folder)
        found, sent = elsewhere.record(start, ranks, self.isolated.devices, folder)
        for mailbox in sent:
            for key, value in mailbox.items():
                self.mailbox.setdefault(key, value)
        return {r: found[r] if r in found else self(r) for r in ranks}

    def every(self) -> dict[int, Recording]:
        """All ranks' recordings, each in a process of its own, several at once.

        What the first rank sends to others (files, constants) has to be known to them. So if it, or
        any other, sends something, the others are recorded once more.
        """
        ranks = range(self.mesh.world)
        self._submit(ranks, math.nan)
        taken = self._outcomes()
        if not any(outcome.sent for outcome in taken.values()):
            return {r: self._given(outcome.what) for r, outcome in taken.items()}
        first = taken[0]
        self.mailbox.update(first.sent)
        one = self(0) if isinstance(first.what, MissingMetadata) else self._given(first.what)
        return {0: one, **self.several(ranks[1:])}

    def _needed_whole(self, side: Recording) -> bool:
        """Whether the plan is likely to need the program of a recording once more.

        That is for communication of the construction, numbers that the model does not have, and
        shapes that differ between ranks.
        """
        program: Program | None = side.program
        facts, like = side.facts, self.like
        uneven = any(len(_stretches(side, self.mesh, a)) > 1 for a in self.mesh.names)
        return (
            self.keep_all
            or program is None
            or bool(program.own_constants)
            or any(n.get("comm") in facts.built for n in program.nodes)
            or uneven
            or like is None
            or facts.moved != like.moved
        )

    def light(self, ranks: Sequence[int], file: str) -> dict[int, Recording]:
        """Recordings without what only their programs are made from.

        file: those of which the plan may need it once more leave it in files whose names begin so.
        """
        # equal ones are one, and go through the file once
        programs: dict[str, Program] = {}
        recordings: dict[int, Recording] = {}
        for r in ranks:
            side = self(r)
            if side.program is not None:
                like = programs.setdefault(side.program.text, side.program)
                side.program = dataclasses.replace(
                    side.program,
                    text=like.text,
                    tensors=like.tensors,
                    nodes=like.nodes,
                    waits=like.waits,
                )
            recordings[r] = side.light(f"{file}.{r}" if self._needed_whole(side) else "")
            del side
        return recordings

    def _fork(self, ranks: Sequence[int], file: str) -> int:
        pid = fork()
        if pid == 0:
            try:
                self.ends_soon, self.peak = True, _peak()
                recordings = self.light(ranks, file)
                with open(file, "wb") as f:
                    pickle.dump((recordings, self.mailbox), f, protocol=pickle.HIGHEST_PROTOCOL)
                os._exit(0)
            finally:
                os._exit(1)
        return pid

    # ---- whether ranks that are recorded one after the other are what they are alone ----
    def look_ahead(self, rank: int) -> None:
        """Begins to record a rank in a process of its own, while this one goes on with others."""
        if not self.alone and not self.mailbox:
            self._submit([rank], LARGE)
            self.early = True

    def _isolated(self, ranks: Sequence[int], stand_in: float) -> dict[int, Recording | Exception]:
        early = self._take() if self.early else {}
        self.early = False
        if FOUND_A_FILE in self.mailbox:
            early = {}  # there was none yet
        known = {
            r: what
            for r, what in early.items()
            if not isinstance(what, MissingMetadata) and stand_in == LARGE
        }
        missing = [r for r in ranks if r not in known]
        return {
            **known,
            **(
                self._taken(missing, stand_in)
                if missing or self.submitted_beside is not None
                else {}
            ),
        }

    def succeeds_isolated(self, rank: int) -> bool:
        return isinstance(self._isolated([rank], math.nan)[rank], Recording)

    def same_isolated(self, sides: Sequence[Recording]) -> bool:
        """Whether ranks are the same in processes of their own, and with another number.

        Those that are recorded so, and have no number that depends on data, are.

        Raises CaptureError where they are, but not with another number in place of those that
        depend on data.
        """
        # stages of a pipeline between the first and the last may do what neither does
        middle = sides[len(sides) // 2]
        chosen = {
            s.rank: s
            for s in sides
            if (s is sides[-1] or s is middle or s.hazards or s.rank == self.repeated)
            and (s.facts.gave_numbers or not self.alone)
        }
        texts = {r: self._text(s) for r, s in chosen.items()}
        large = self._isolated(list(chosen), LARGE)
        differing = [
            r
            for r, text in texts.items()
            if not isinstance(other := large[r], Recording) or self._text(other) != text
        ]
        if differing and not any(chosen[r].facts.gave_numbers for r in differing):
            return False
        plain = self._isolated(differing, math.nan) if differing else {}
        for r in differing:
            if not isinstance(other := plain[r], Recording) or self._text(other) != texts[r]:
                return False
            if isinstance(large[r], Recording):
                raise decided(f"rank {r}", chosen[r])
        self._decide_nothing({s.rank: s for s in (sides[0], sides[-1]) if s.gave_in_step})
        return True

    def _decide_nothing(self, sides: dict[int, Recording]) -> None:
        """Raises CaptureError where ordinary numbers in place of those that depend on data change a
        program.

        That includes a rank that has no program then.
        """
        texts = {r: self._text(s) for r, s in sides.items()}
        for stand_in in ORDINARY if texts else ():
            for r, other in self._taken(list(texts), stand_in).items():
                if isinstance(other, MissingMetadata):
                    continue
                if not isinstance(other, Recording) or self._text(other) != texts[r]:
                    raise decided(f"rank {r}", sides[r])

    def decisions(self, sides: Sequence[Recording]) -> list[Assumption]:
        """As of Recorded."""
        found: list[Assumption] = []
        for side in sides:
            if not side.decisions:
                continue
            text = self._text(side)

            def record(answers: tuple[bool, ...], rank: int = side.rank) -> Recording | Exception:
                self._submit([rank], math.nan, answers)
                return self._take()[rank]

            def same(other: Recording, text: str = text) -> bool:
                return self._text(other) == text

            found += check_answers(f"rank {side.rank}", side, record, same)
        return found

    def _text(self, side: Recording) -> str:
        """All of a recording that a verdict depends on."""
        text = self._made(side)
        if side.program is not None:
            ties = [(t.tensor, t.label, t.box.low) for t in side.program.ties]
            text += f" {ties} {side.program.skipped} {side.program.guessed}"
        draws = [(d.value.name, d.key, d.what, d.loc, d.by_position) for d in side.random_inputs]
        facts = side.facts
        return (
            f"{text} {draws} {side.strides} {side.hazards} {side.unused} "
            f"{facts.gives_hiding} {facts.relies_on_brought}"
        )


def _peak() -> int:
    """The most memory that this process had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def check_answers(
    who: str,
    side: Recording,
    record: Callable[[tuple[bool, ...]], Recording | Exception],
    same: Callable[[Recording], bool],
) -> list[Assumption]:
    """What is assumed where a side decides something by data, which has to make no difference.

    record: in a process of its own, with these answers to the first questions; may raise Overrun.
    same: whether it is the same program. Raises CaptureError where an answer makes another one.
    """

    def answered(answers: tuple[bool, ...]) -> Recording:
        try:
            other = record(answers)
        except Overrun as e:
            raise CaptureError(str(e)) from None
        if isinstance(other, Failed) and other.own:
            raise Raised
        if isinstance(other, Recording):
            return other
        raise other if isinstance(other, CaptureError) else CaptureError(str(other))

    return [not_raised(loc) for loc in check_decisions(who, side, answered, same)]


def decided(who: str, side: Recording) -> CaptureError:
    return DecidedByData(
        f"{who}: what the program does depends on data: it is another one where Tensor.item() "
        f"gives another number at {side.facts.gave_numbers} "
        "(the number's text, or what other code than Python's operators and `math` reads of it, "
        "decides something)"
    )


def _all(recorded: RankRecorder) -> tuple[list[Recording], RankClasses, str | None]:
    world = recorded.mesh.world
    if recorded.alone:
        every = recorded.every()
        return [every[r] for r in range(world)], {}, None
    found = {0: recorded(0)}  # first: what it sends to others has to be known to them
    recorded.look_ahead(world - 1)
    found.update(recorded.several(range(1, world)))
    return [found[r] for r in range(world)], {}, None


def _classes(
    recorded: RankRecorder, may_move: bool
) -> tuple[list[Recording], RankClasses, str | None]:
    """Records the first, second and last rank along each axis.

    Where their programs are equal, those of the others are taken to be equal, too. Where they are
    not, and sizes of shards show at which coordinates programs change, the first, second and last
    rank of each stretch between are recorded, in the same way. Along all other axes every rank is.
    Where those that are first along the others are affine along one axis (the longest such one),
    the first, second and last along it are.

    One more rank of each stretch, far from the first in all axes, checks it.
    """
    mesh = recorded.mesh
    found: dict[int, Recording] = {}
    texts: dict[int, str] = {}

    def text(rank: int) -> str:
        if rank not in found:
            found[rank] = recorded(rank)
        if rank not in texts:
            texts[rank] = recorded.program(found[rank]).text + str(found[rank].strides)
        return texts[rank]

    def prepare(wanted: Iterable[int]) -> None:
        missing = [r for r in dict.fromkeys(wanted) if r not in found]
        if (recorded.at_once or recorded.alone) and len(missing) > 1:
            found.update(recorded.several(missing))

    def ends(axis: str, stretches: Iterable[Stretch]) -> list[list[int]]:
        """Ranks of each stretch that have to do the same."""
        return [
            [mesh.rank({axis: k}) for k in dict.fromkeys((low, min(low + 1, high - 1), high - 1))]
            for low, high in stretches
        ]

    def same(axis: str, stretches: Sequence[Stretch]) -> bool:
        return all(text(r) == text(ranks[0]) for ranks in ends(axis, stretches) for r in ranks)

    def moves(axis: str) -> bool:
        first = [mesh.rank({axis: k}) for k in range(mesh.sizes[axis])]
        prepare(first)
        return (
            len({text(r) and str(found[r].strides) for r in first}) == 1
            and between(len(first), {k: recorded.program(found[r]) for k, r in enumerate(first)})
            is not None
        )

    axes = [a for a in mesh.names if mesh.sizes[a] > 1]
    text(0)
    recorded.look_ahead(mesh.world - 1)
    proposed: dict[str, list[Stretch]] = {
        a: [(0, mesh.sizes[a])] for a in axes if mesh.sizes[a] > 2
    }
    prepare(r for a, stretches in proposed.items() for ranks in ends(a, stretches) for r in ranks)
    rank_classes: dict[str, Sequence[Stretch]] = {
        a: stretches for a, stretches in proposed.items() if same(a, stretches)
    }
    further = {
        a: stretches
        for a in proposed
        if a not in rank_classes and len(stretches := _stretches(found[0], mesh, a)) < mesh.sizes[a]
    }
    prepare(r for a, stretches in further.items() for ranks in ends(a, stretches) for r in ranks)
    rank_classes.update({a: stretches for a, stretches in further.items() if same(a, stretches)})
    lows = {a: [low for low, _ in mesh.stretches(a, rank_classes)] for a in axes}
    long = sorted(
        (
            a
            for a in axes
            if a not in rank_classes and FEWEST < mesh.sizes[a] < math.prod(map(len, lows.values()))
        ),
        key=lambda a: -mesh.sizes[a],
    )
    affine_axis = next((a for a in long if moves(a)), None) if may_move else None
    every = [dict(zip(axes, at)) for at in itertools.product(*lows.values())]
    firsts = [
        mesh.rank(at)
        for at in every
        if affine_axis is None
        or at[affine_axis] in (0, 1, mesh.sizes[affine_axis] - 1)
        or not any(c for a, c in at.items() if a != affine_axis)
    ]
    last = {a: mesh.sizes[a] - 1 for a in axes}
    checks = [
        mesh.rank({**last, a: high - 1})
        for a, stretches in rank_classes.items()
        for low, high in stretches
        if high - low > 1
    ]
    wanted = [*firsts, *checks, mesh.world - 1]
    prepare(wanted)
    for r in wanted:
        text(r)
    return [found[r] for r in sorted(found)], rank_classes, affine_axis


def _stretches(side: Recording, mesh: Mesh, axis: str) -> list[Stretch]:
    """Stretches of an axis by the number of elements that ranks have of what DTensors shard along
    it.

    Ranks have as many as the first rank, fewer, or none. A proposal.
    """
    edges = {0, mesh.sizes[axis]}
    for tracked in side.tracked:
        rows, chunk = tracked.placement.chunks.get(axis, (0, 0))
        if chunk:
            edges |= {rows // chunk, -(-rows // chunk)}
    inside = sorted(e for e in edges if 0 <= e <= mesh.sizes[axis])
    return list(zip(inside, inside[1:]))


__all__ = [
    "LARGE",
    "RankRecorder",
    "Recorded",
    "RecorderStart",
    "check_answers",
    "decided",
    "recorded_ranks",
]
