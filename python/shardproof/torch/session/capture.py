# SPDX-License-Identifier: Apache-2.0
"""From a step to the two files and to a verdict."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import gzip
import itertools
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from ... import progress
from ...engines.tasks import EngineError
from ...program import verify_files
from ...report import Defect, Report
from ..compat import private
from ..conversion.arrangements import Convert
from ..distributed.mesh import Mesh, RankClasses
from ..distributed.shared_constants import constants_apart
from ..export.agreement import (
    OtherBatches,
    ReadApart,
    check_read,
    decided_apart,
    not_dealt,
    permuted_parts,
    read_by_some,
    reads_apart,
)
from ..export.gradient_scale import gradient_scale
from ..export.model_file import Model, model_of
from ..export.parameter_places import look_for_parts
from ..export.plan_file import OnNoRank, Uneven, plan_of
from ..export.rank_program import KIND_OF_PADDING, PermutedParts
from ..intercept.conversions import prepare
from ..step.several_steps import first_of
from ..step.tracked_tensors import together
from ..terms import assumptions as basis
from ..terms.assumptions import listed
from ..terms.labels import Met, Names, may_be_ignored
from ..trace.batches import rows_of
from ..trace.end_of_step import AS_IT_WAS, BESIDE, same
from ..trace.initial_state import CONCAT, SAME, InitialState
from ..trace.record import record
from ..trace.recording import CaptureError, DecidedByData, Hazard, NotKept, Recording, Step
from .converted_step import Conversion, converted_step
from .each_way import Answers, check_questions, each_way
from .isolated_processes import SINGLE, IsolatedRecorder, Overrun, Request
from .mistakes import likely_mistake, only_printed
from .output_files import OutputFiles
from .ranks import LARGE, ORDINARY, check_answers, decided, recorded_ranks
from .ranks_apart import problem, ranks_apart, same_problem
from .real_run import MOST_SECONDS, RealRun, compare, obstacle, real_run, wanted_by
from .remote_ranks import RemoteRanks
from .rest_of_step import (
    ENDS,
    NoStep,
    OneMoreStep,
    check_copies,
    check_ended,
    check_one_step,
    check_second_step,
    check_steps,
    copies_apart,
    counted_apart,
    less_of_script,
    schedules_apart,
    shown_later,
    states_gone,
)
from .wording import Wording, source_of, with_second_paragraph, wording


@dataclasses.dataclass
class Capture:
    """A recorded step: the contents of the two files, what was assumed, and the time in seconds."""

    model: dict[str, Any]
    plan: dict[str, Any]
    assumptions: list[basis.Assumption]
    not_compared: list[basis.NotCompared]
    compared: dict[str, list[str]]  # kind of output -> the model's tensors
    left_out: dict[str, str]  # cut points that are not in the files, and why
    unknown: dict[str, str]  # operators without translation that no output needs
    recorded: list[int]  # ranks
    names: dict[str, str]  # output -> the model's tensor that it is
    # inputs of the model whose names begin with %known: the numbers that they have in this step
    # (torch tensors)
    constants: dict[str, Any]
    seconds: float
    labels: _Labels = dataclasses.field(default_factory=lambda: _Labels())
    source: str = ""  # the script, or the step's function
    with_rest: bool = False  # what follows a script's step is in it
    with_more_steps: bool = False  # of a script, as something shows in these only
    mistake: str = ""  # a common one that it makes, if it is wrong (mistakes.py)
    # what is wrong where the step is
    suspected: Hazard | None = None
    decides: bool = False  # its code depends on numbers of data
    # batches are constants, on the single device of the samples that all ranks read
    batches_as_read: bool = False
    # integer inputs that are classes: how many
    ranges: dict[str, int] = dataclasses.field(default_factory=dict)
    real: RealRun = dataclasses.field(default_factory=RealRun)  # the step with numbers
    converted: bool = False  # the single device's parameters are, to those of the ranks
    over: bool = False  # it is a script that was recorded to its end

    def write(self, prefix: str | os.PathLike[str]) -> tuple[Path, Path]:
        """Writes PREFIX.model.json.gz and PREFIX.plan.json.gz. Returns their paths.

        Raises OSError.
        """
        model, plan = Path(f"{prefix}.model.json.gz"), Path(f"{prefix}.plan.json.gz")
        for path, content in (
            (model, self.model),
            (plan, {**self.plan, "model": model.name, "capture": self.ledger()}),
        ):
            with gzip.open(path, "wt", compresslevel=3) as f:
                f.write(json.dumps(content, separators=(",", ":")))  # dump() encodes in Python
        return model, plan

    def ledger(self) -> dict[str, Any]:
        """What the verdict covers, what it does not, and what it rests on (docs/format.md,
        "Capture").
        """
        return {
            **({"source": self.source} if self.source else {}),
            "compared": self.compared,
            "not_compared": [n.json() for n in self.not_compared],
            "assumptions": [a.json() for a in self.assumptions],
        }


class _Labels:
    """How labels that may be ignored are recorded (labels.py).

    At first they may be. Where the step is not right then, or cannot be followed, those are taken
    to be all valid of which the program itself does not claim otherwise. valid: whose naming of an
    ignored label counts for nothing (None: everybody's counts). met: those that may be ignored, or
    that are valid only by this.
    """

    def __init__(self, valid: Names | None = None) -> None:
        self.valid = valid
        self.ignored: dict[str, Met] = {}
        self.taken_valid: dict[str, Met] = {}

    def look(self, single: Recording) -> dict[str, int]:
        """Which inputs of the single device may be ignored, and the number that ignores them."""
        every = may_be_ignored(single.graph, None)
        self.ignored.update(may_be_ignored(single.graph, self.valid))
        self.taken_valid.update(
            {name: met for name, met in every.items() if name not in self.ignored}
        )
        return {name: met.ignore for name, met in self.ignored.items()}

    def begin(self) -> None:
        """The single device is recorded anew."""
        self.ignored.clear()
        self.taken_valid.clear()

    def less(self, names: Names) -> _Labels | None:
        """With more of them valid: all that at most these name. None where that makes no
        difference.
        """
        more = any(met.names <= names for met in self.ignored.values())
        return _Labels(names) if more else None

    def assumed(self) -> list[basis.Assumption]:
        return [basis.labels_valid(met.loc, met.ignore) for met in self.taken_valid.values()]


def _single(
    step: Step,
    one: Mesh,
    name: str,
    isolated: IsolatedRecorder,
    initial_state: InitialState,
    first: bool,
    labels: _Labels,
) -> tuple[Recording, Model, Request]:
    """The recording of the single device, its model, and a request to record it once more.

    It is recorded a second time where the range of an integer input is needed while recording. That
    is in a process of its own, as where it is not the first time.
    """

    request = Request(SINGLE, {}, {}, initial_state=initial_state)

    def rerecord(
        ranges: Mapping[str, int], ignorable: Mapping[str, int] = MappingProxyType({})
    ) -> Recording:
        nonlocal request
        request = Request(
            SINGLE, ranges, {}, initial_state=initial_state, ignorable=dict(ignorable)
        )
        try:
            isolated.submit([request])
            side = isolated.take_single(time.monotonic() - start)
        except Overrun:
            side = None
        # which meets the error itself
        return (
            side
            if isinstance(side, Recording)
            else record(step, one, 0, ranges, initial_state=initial_state, ignorable=ignorable)
        )

    start = time.monotonic()
    progress.phase("recording the single device")
    try:
        side = record(step, one, 0, initial_state=initial_state) if first else rerecord({})
    # of a number that depends on labels whose range the loss (or the script) gives more may be
    # known
    except CaptureError as e:
        if not e.ranges:
            raise
        side = rerecord(e.ranges)
    if side.hazards:
        text, loc = next(iter(side.hazards.items()))
        raise CaptureError(f"the single device: {text} at {loc}")
    labels.begin()
    known: dict[str, int] = {}
    ignorable: dict[str, int] = {}
    while True:  # what was not known before hides what comes of it: a loss, and its labels
        found = {**known, **side.graph.integers.limits()}
        ignored = labels.look(side)
        needed = any(n in side.graph.integers.tabulated for n in found if n not in known)
        if ignored == ignorable and not needed:
            break
        known, ignorable = found, ignored
        side = rerecord(known, ignorable)
        side.graph.integers.chosen_from = {**known, **side.graph.integers.chosen_from}
    return side, _model(side, name), request


def _model(side: Recording, name: str, changed: Iterable[str] = ()) -> Model:
    try:
        return model_of(side, name, changed)
    except Hazard as e:
        raise CaptureError(f"the single device: {e}") from None


def _check_numbers(
    side: Recording, model: Model, other: Recording | Exception | None, name: str
) -> None:
    """The single device has one program, whatever the numbers that Tensor.item() gave.

    other: recorded with another number in their place. Raises CaptureError.
    """
    if not isinstance(other, Recording):
        return
    if not _same_model(model, _model(other, name)):
        raise decided("the single device", side)


def _decisions(
    side: Recording,
    model: Model,
    request: Request,
    name: str,
    isolated: IsolatedRecorder,
    start: float,
) -> list[basis.Assumption]:
    """What is assumed where the single device decides something by data, which has to make no
    difference. Raises CaptureError where it does.
    """

    def record(answers: tuple[bool, ...]) -> Recording | Exception:
        isolated.submit([dataclasses.replace(request, decided=answers)])
        return isolated.take_single(time.monotonic() - start)

    def same(other: Recording) -> bool:
        return _same_model(model, _model(other, name))

    return check_answers("the single device", side, record, same)


def _other_with_one_device(
    single: Recording, request: Request, name: str, isolated: IsolatedRecorder, start: float
) -> list[basis.Assumption]:
    """What is assumed where the single device computes something else if it counts one GPU, which
    it has in truth.

    That it does not run then (it demands several) shows nothing.
    """
    if not any(a.name == basis.COUNTED_DEVICES for a in single.facts.assumptions):
        return []
    try:
        isolated.submit([dataclasses.replace(request, one_device=True)])
        other = isolated.take_single(time.monotonic() - start)
        if not isinstance(other, Recording):
            return []
        same = _same_model(_model(single, name), _model(other, name))
    except (Overrun, CaptureError):
        return []
    return [] if same else [basis.computes_with_devices(isolated.devices)]


def _same_model(one: Model, two: Model) -> bool:
    return (
        [(n, c.shape) for n, c in one.constants] == [(n, c.shape) for n, c in two.constants]
        and all(torch.equal(a, b) for (_, a), (_, b) in zip(one.constants, two.constants))
        and one.json == two.json
        and one.random == two.random
        and one.distributions == two.distributions
    )


def _check_ordinary_numbers(
    side: Recording,
    model: Model,
    request: Request,
    name: str,
    isolated: IsolatedRecorder,
    start: float,
) -> None:
    """The same for ordinary numbers, with which the single device has to have a program.

    Raises CaptureError.
    """
    for stand_in in ORDINARY:
        isolated.submit([dataclasses.replace(request, stand_in=stand_in)])
        other = isolated.take_single(time.monotonic() - start)
        if not isinstance(other, Recording):
            raise decided("the single device", side)
        _check_numbers(side, model, other, name)


def capture(
    *functions: Step,
    mesh: Mapping[str, int] | str,
    ranks: str = "all",
    checkpoints: bool = True,
    jobs: int = 1,
    strict: bool = False,
    steps: int | None = None,
    batch: Mapping[str, str] | None = None,
    numbers: bool = False,
    executor: Executor | None = None,
    convert: Convert | None = None,
) -> Capture:
    """Records a step (`step(world)`) as one device and on a mesh.

    With two steps the first is the single device's. mesh: axis -> size, slowest first, or text like
    dp=2,tp=4. ranks: "all"; or "classes": along an axis that turns out not to matter, or not
    between the ends of shards, a few ranks are recorded and represent the others. strict: opaque
    operators are an error. jobs: so many processes record ranks; they are forked, without the
    threads of the caller. steps: of a function that yields each step's result, how many are
    recorded (None: all). batch: mesh axis -> "concat", where the batches that its ranks read from
    DataLoaders are parts of the single device's, one after another, or "same", where each is all of
    it; of other axes, what is read decides. numbers: the step also runs with numbers, on gloo
    processes, where it is small enough (real_run.py). executor: its workers record ranks
    (docs/engines.md). convert: of two steps with different implementations of a model, from the
    single device's parameters to those of the ranks: a function of {name: tensor} that moves each
    element to one place (docs/conversion.md). Saved buffers that matter are there, too.

    Raises CaptureError for what cannot be captured, and EngineError where the executor's workers
    cannot run the step; exceptions of the step pass through.
    """
    return _captured_with(
        _Labels(),
        {},
        functions,
        mesh,
        ranks,
        checkpoints,
        jobs,
        strict,
        steps,
        batch,
        numbers,
        executor,
        convert,
    )


def _test_version() -> None:
    """The self-test, which imports much of PyTorch. Raises VersionError."""
    from . import self_test

    self_test.test_version(
        lambda step, mesh: verify(step, mesh=mesh, arguments=self_test.QUICK, numbers=False).verdict
    )


def _captured_with(
    labels: _Labels,
    less: Mapping[str, Any],
    functions: Sequence[Step],
    mesh: Mapping[str, int] | str,
    ranks: str,
    checkpoints: bool,
    jobs: int,
    strict: bool,
    steps: int | None,
    batch: Mapping[str, str] | None,
    numbers: bool,
    executor: Executor | None,
    convert: Convert | None,
) -> Capture:
    if not private.is_known():
        _test_version()
    if not 1 <= len(functions) <= 2:
        raise TypeError("capture(step, mesh=...) or capture(single, step, mesh=...)")
    if steps is not None:
        functions = [first_of(f, steps) for f in functions]
    if convert is not None:
        if len(functions) != 2:
            raise TypeError(
                "convert is for two steps: capture(single, step, mesh=..., convert=...)"
            )
        functions = [converted_step(functions[0], convert), functions[1]]
    for function in functions:
        prepare(function)
    with no_collection(), one_thread(), progress.showing():
        return _capture(
            functions,
            mesh,
            ranks,
            checkpoints,
            max(1, jobs),
            strict,
            labels,
            InitialState(
                requested=dict(batch or {}),
                without_rest=less.get("without_rest", ""),
                one_step=less.get("one_step", ""),
                answers=less.get("answers", ()),
                no_step=less.get("no_step", False),
            ),
            numbers,
            executor,
        )


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Python's cycle collector runs between ranks only, and visits only what they made.

    What is there before, the libraries' objects above all, is a million objects or more.
    """
    was = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was:
            gc.enable()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Constants are computed by one thread: in the same order by all processes.

    A forked process has none of its parent's threads to wait for (OpenMP's would block forever).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _capture(
    steps: Sequence[Step],
    mesh: Mapping[str, int] | str,
    ranks: str,
    checkpoints: bool,
    jobs: int,
    strict: bool,
    labels: _Labels,
    initial_state: InitialState,
    numbers: bool,
    executor: Executor | None,
) -> Capture:
    start = time.monotonic()
    conversion: Conversion | None = getattr(steps[0], "recorded", None)
    where = Mesh.parse(mesh) if isinstance(mesh, str) else Mesh(mesh)
    name = getattr(steps[-1], "__name__", "step")
    one = Mesh(dict.fromkeys(where.names, 1))
    for axis, how in initial_state.requested.items():
        if axis not in where.sizes or how not in (CONCAT, SAME):
            raise ValueError(
                f"batch: {axis}={how}: an axis of the mesh ({', '.join(where.names)}) and {CONCAT} "
                f"or {SAME}"
            )
    with IsolatedRecorder({True: (steps[0], one), False: (steps[-1], where)}) as isolated:
        isolated.elsewhere = RemoteRanks(executor) if executor is not None else None
        captured = functools.partial(
            _captured,
            steps,
            where,
            one,
            name,
            isolated,
            ranks,
            checkpoints,
            jobs,
            strict,
            start,
            initial_state,
        )
        try:
            made = captured(labels)
        except Hazard:
            raise
        except CaptureError as e:
            less = labels.less(Names.PROGRAM)
            if less is None:
                if conversion is None:
                    raise
                raise conversion.explained(e) from e
            made = captured(less)
        made.converted = conversion is not None
        if numbers:
            made.real = _with_numbers(made, steps[-1], where, isolated)
        return made


def _with_numbers(c: Capture, step: Step, where: Mesh, isolated: IsolatedRecorder) -> RealRun:
    fresh = [a for a in c.assumptions if a.name == basis.FIRST_OPTIMIZER_STEP]
    other = fresh[0].text if fresh else ""
    if c.batches_as_read:
        other = (
            "the single device's batch is of all ranks' samples, which its own sampler does not "
            "give"
        )
    if c.converted:
        return RealRun(because="the single device runs another implementation of the model")
    because = obstacle(step, c.model, c.decides, other, where.world)
    if because:
        return RealRun(because=because)
    progress.phase("running the step with numbers")
    start = time.monotonic()
    try:
        found = isolated.run(MOST_SECONDS, c.ranges)
    except Overrun as e:
        return RealRun(because=str(e))
    return real_run(found, SINGLE, time.monotonic() - start)


def _captured(
    steps: Sequence[Step],
    where: Mesh,
    one: Mesh,
    name: str,
    isolated: IsolatedRecorder,
    ranks: str,
    checkpoints: bool,
    jobs: int,
    strict: bool,
    start: float,
    initial_state: InitialState,
    labels: _Labels,
) -> Capture:
    """The capture with as many buffers that begin with any value as possible (initial_state.py).

    Raises CaptureError.
    """
    why: dict[str, str] = {}
    tried: OtherBatches | None = None
    apart: Exception | None = None  # with the batches of ranks as inputs
    with_rest: Exception | None = None  # with what follows a script's step
    first = True
    while True:
        found: list[Recording] = []
        try:
            made = _begun(
                steps,
                where,
                one,
                name,
                isolated,
                ranks,
                checkpoints,
                jobs,
                strict,
                start,
                initial_state,
                first,
                found,
                labels,
            )
        except ReadApart as e:
            initial_state, first = dataclasses.replace(initial_state, loaders=e.loaders), False
            continue
        except OtherBatches as e:
            if tried is not None:
                raise tried.failed(e) from None
            tried = e
            initial_state, first = (
                dataclasses.replace(initial_state, batch=e.axes, sizes=dict(where.sizes)),
                False,
            )
            continue
        except PermutedParts as e:
            if e.name in initial_state.permuted:
                raise e.otherwise from None
            permuted = {**initial_state.permuted, e.name: e.axes}
            initial_state, first = (
                dataclasses.replace(initial_state, permuted=permuted, sizes=dict(where.sizes)),
                False,
            )
            continue
        except OneMoreStep as e:
            initial_state, first, tried = e.state(initial_state), False, None
            continue
        except _PartsApart:
            initial_state, first = dataclasses.replace(initial_state, whole_buffers=True), False
            continue
        except EngineError:
            raise
        except Exception as e:
            if getattr(steps[-1], "whole_script", False) and not isinstance(e, Hazard):
                if tried is not None and tried.in_rest and not isinstance(e, CaptureError):
                    raise tried.otherwise from None  # what is drawn there has no rows of samples
                less = less_of_script(initial_state, e)
                if less is not None and less.without_rest:
                    seconds = time.monotonic() - start
                    differ = ranks_apart(e, bool(found), where, isolated, initial_state, seconds)
                    less = dataclasses.replace(less, ranks_apart=differ)
                    with_rest = e
                if less is not None:
                    initial_state, first, tried = less, False, None
                    continue
            if (
                initial_state.loaders
                and not initial_state.batches_as_read
                and not isinstance(e, Hazard)
            ):
                # no program for the batches of all: as they are, then
                initial_state = dataclasses.replace(initial_state, batches_as_read=True)
                first, apart = False, e
                continue
            if apart is not None:
                raise apart from None
            less = initial_state.less()
            wrong = isinstance(e, Hazard) or not isinstance(e, CaptureError)
            if (
                wrong
                or less is None
                or not (found[0].any_buffers if found else getattr(e, "any_buffers", False))
            ):
                error = e if tried is None else tried.failed(e)
                if with_rest is not None and not wrong:
                    error = CaptureError(
                        f"{with_rest}. (Without what follows the optimizer's step: {error})"
                    )
                raise error from None
            initial_state, first = less, False
            continue
        if isinstance(made, Capture):
            if tried is not None and tried.apart:
                made.suspected = tried.otherwise
            if apart is not None:
                made.assumptions.append(basis.batches_as_read(str(apart)))
            made.assumptions += [
                basis.made_buffer(
                    b,
                    why.get(b)
                    or "its number decides something, or what comes of another cannot be followed",
                )
                for b in found[0].as_made
                if why.get(b) != AS_IT_WAS
            ]
            return made
        why.update(made)
        initial_state, first = initial_state.without(made), False


def _of_single(single: Recording, reasons: Mapping[str, str]) -> dict[str, str]:
    """Reasons by the names of buffers, and by those that a converted one is made of."""
    found = dict(reasons)
    for name, reason in reasons.items():
        found.update(dict.fromkeys(single.converted_names.get(name, ()), reason))
    return found


def _numbers_after_all(single: Recording, sides: Sequence[Recording]) -> dict[str, str]:
    """Buffers that begin with any value on the single device and should not, as ranks show, and
    why.
    """
    found: dict[str, str] = {}
    for name in single.any_buffers:
        theirs = [side for side in sides if name in side.made_buffers]
        other = next((side for side in theirs if name not in side.any_buffers), None)
        if other is not None or not theirs:
            found[name] = (
                f"rank {other.rank} begins with another" if other is not None else "no rank has it"
            )
    return found


def _begun(
    steps: Sequence[Step],
    where: Mesh,
    one: Mesh,
    name: str,
    isolated: IsolatedRecorder,
    ranks: str,
    checkpoints: bool,
    jobs: int,
    strict: bool,
    start: float,
    initial_state: InitialState,
    first: bool,
    found: list[Recording],
    labels: _Labels,
) -> Capture | dict[str, str]:
    """The capture, or the buffers that begin with numbers after all, and why.

    found: gets the single device's recording. Raises ReadApart.
    """
    began = time.monotonic()
    single, model, request = _single(steps[0], one, name, isolated, initial_state, first, labels)
    seconds = time.monotonic() - began
    found.append(single)
    check_one_step([single])
    if steps[0] is not steps[-1]:
        single.initial = model.initial = {}
    numbers = {
        name: reason for name, reason in single.as_made.items() if name in single.any_buffers
    }
    if numbers:
        return _of_single(single, numbers)
    if strict and model.opaque:
        raise CaptureError(
            f"strict: nothing is known of {'; '.join(dict.fromkeys(model.opaque.values()))}"
        )
    beside = dataclasses.replace(request, stand_in=-LARGE) if single.facts.gave_numbers else None
    uncompared: dict[str, int] = {}
    keep_all, may_move = False, True
    while True:
        recorded = recorded_ranks(
            steps[-1],
            where,
            model,
            ranks,
            checkpoints,
            jobs,
            isolated,
            beside,
            keep_all,
            may_move,
            seconds,
        )
        sides, rank_classes, affine_axis = (
            recorded.sides,
            recorded.rank_classes,
            recorded.affine_axis,
        )
        numbers = _numbers_after_all(single, sides)
        if numbers:
            return _of_single(single, numbers)
        check_one_step(sides)
        if initial_state.loaders is None and where.world > 1:
            check_read(single, sides, rank_classes, affine_axis)
        recorded.confirm()
        not_raised = recorded.decisions()
        if (
            getattr(steps[-1], "whole_script", False)
            and where.world > 1
            and not any(side.facts.communicates for side in sides)
        ):
            raise CaptureError(
                f"no collective was issued on {where.world} ranks: the script trains {where.world} "
                "models that know nothing of each other, or stopped before it communicated"
            )
        progress.phase("comparing recordings with other numbers")
        _check_numbers(single, model, recorded.beside, name)
        if isinstance(recorded.beside, Recording) and single.gave_in_step:
            _check_ordinary_numbers(single, model, request, name, isolated, start)
        not_raised += _decisions(single, model, request, name, isolated, start)
        for side in sides:
            for text, loc in side.hazards.items():
                raise Hazard(f"rank {side.rank}: {text}", loc, "")
        check_questions(single, sides)
        check_steps(single, sides)
        check_ended(single, sides, steps[0] is steps[-1])
        check_copies(single, sides)
        check_second_step(single, sides, initial_state.loaders or {})
        _check_groups(sides)
        _check_layouts(sides, where, rank_classes, affine_axis)
        _check_infinities(sides)
        changed = {b for side in sides for b in side.changed}
        try:
            if changed - set(model.outputs):  # buffers that the single device leaves as they were
                model = _model(single, name, changed)
                sides = [dataclasses.replace(side.whole(), program=None) for side in sides]
            apart = schedules_apart(single, sides, initial_state.loaders or {})
            if apart:
                sides = [dataclasses.replace(side.whole(), program=None) for side in sides]
                for side in sides:
                    side.beside = {n: v for n, v in side.beside.items() if n not in apart}
                model.without(apart)
            for side in sides:
                look_for_parts(side, model)
            uncompared = {
                label: side.rank
                for side in reversed(sides)
                for label in model.beside
                if together(side.whole_beside, label) != together(model.beside, label)
            }
            counted = counted_apart(single, sides, initial_state.loaders or {})
            if counted:
                sides = [dataclasses.replace(side.whole(), program=None) for side in sides]
            of_none = {
                n
                for n in (*single.printed, *single.copies)
                if not any(n in s.printed or n in s.copies for s in sides)
            }
            model.without({*of_none, *counted})
            if uncompared:
                sides = [
                    dataclasses.replace(side.whole(), program=None)
                    if any(
                        together(side.whole_beside, label) == together(model.beside, label)
                        for label in uncompared
                    )
                    else side
                    for side in sides
                ]
                model.without(uncompared)
            progress.phase("writing the plan")
            of_no_rank: list[str] = []  # optimizer states
            try:
                while True:
                    try:
                        plan, left_out, assumed = plan_of(
                            sides,
                            model,
                            f"{name}.model.json.gz",
                            rank_classes,
                            affine_axis,
                            checkpoints,
                            gradient_scale(single, sides),
                        )
                        break
                    except OnNoRank as e:
                        if e.role == "input" and f"{e.tensor}.new" in of_no_rank:
                            model.unheld.append(e.tensor)
                            continue
                        states = model.states_in(e.tensor) if e.role == "output" else []
                        if not states:
                            raise
                        model.without(states)
                        of_no_rank += states
            except CaptureError as e:
                e.on_all = all(same_problem(problem(side), str(e)) for side in sides)
                raise
            break
        except NotKept:
            beside, keep_all = None, True
        except Uneven:
            beside, may_move = None, False
    if not any(side.facts.nodes for side in (single, *sides)):
        raise CaptureError(
            "nothing is computed: no operator was recorded on the single device and none on the "
            "ranks, so that there is nothing to compare"
        )
    assumptions = [*model.assumptions, *(a for s in sides for a in s.facts.assumptions)]
    assumptions += assumed + recorded.assumed + labels.assumed() + not_raised
    for key, shared in (initial_state.loaders or {}).items():
        assumptions.append(
            basis.loaded_batches(
                f"the DataLoader at {key}" if shared.loaded else f"what {key} moves to a device",
                shared.sizes,
                ", ".join(shared.axes),
                shared.together,
                shared.alone,
                rows_of(shared),
            )
        )
        if not shared.loaded:
            assumptions.append(basis.arrays_of_ranks(key, ", ".join(shared.axes)))
        if shared.replicas not in (0, 1, shared.ranks):
            assumptions.append(basis.dealt_to(key, shared.replicas, shared.ranks))
    copies_left, missing_copies = copies_apart(single, sides)
    if any(side.gone_states for side in (single, *sides)):
        assumptions += states_gone(single, sides)
    assumptions += permuted_parts(sides, initial_state.permuted)
    for place, answer in initial_state.answers:
        times = max(sum(p == place for p, _ in side.answered) for side in (single, *sides))
        if times:
            assumptions.append(basis.answered(place, answer, times > 1))
    if initial_state.ranks_apart:
        assumptions.append(basis.ranks_apart(initial_state.ranks_apart))
    assumptions += [*apart.values(), *counted.values(), *copies_left]
    assumptions += read_by_some((single, *sides), initial_state.loaders)
    assumptions += not_dealt(sides, initial_state.loaders or {})
    assumptions += decided_apart(single, sides)
    assumptions += _other_with_one_device(single, request, name, isolated, start)
    assumptions = list(dict.fromkeys(assumptions))
    assumptions += _left_by_some(sides, model) + _trained_by_some(sides, model)
    not_compared = list(dict.fromkeys(n for s in (single, *sides) for n in s.facts.not_compared))
    not_compared += [
        basis.NotCompared(
            label,
            f"rank {rank} has other such tensors and numbers in its optimizers, or writes others, "
            "than the single device",
        )
        for label, rank in uncompared.items()
    ]
    not_compared += [basis.NotCompared(s, "no rank has such a state") for s in of_no_rank]
    not_compared += missing_copies + shown_later(
        (single, *sides),
        initial_state.one_step
        or ("--steps asks for no more" if single.exact_steps else "")
        or ("no optimizer steps with these answers about data" if initial_state.no_step else ""),
    )
    not_compared += _other_results(single, sides, model) + _other_caches(single, sides)
    for a, stretches in rank_classes.items():
        within = (
            ""
            if len(stretches) == 1
            else " within "
            + " and ".join(f"{low} to {high - 1}" for low, high in stretches if high - low > 1)
        )
        assumptions.append(
            basis.ranks_identical(
                f"ranks that differ only in {a} run alike{within}: of {where.sizes[a]} coordinates "
                "those recorded did"
            )
        )
    if affine_axis is not None:
        assumptions.append(
            basis.ranks_identical(
                f"ranks that differ only in {affine_axis} do the same with numbers that move "
                f"evenly with it: of {where.sizes[affine_axis]} coordinates all were recorded "
                "where the others are 0, elsewhere the first, second and last"
            )
        )
    unknown = {text: loc for s in sides for text, loc in s.unknown.items()}
    return Capture(
        model.json,
        plan,
        assumptions,
        not_compared,
        model.compared(),
        left_out,
        unknown,
        [s.rank for s in sides],
        {label: model.tied[("output", label, 0)] for label in model.outputs},
        dict(model.constants),
        time.monotonic() - start,
        labels,
        source_of(steps[-1]),
        bool(single.ended[0]),
        bool(initial_state.more_steps),
        likely_mistake(single, sides, model, initial_state.loaders or {}),
        reads_apart(sides, model, initial_state.loaders or {}),
        any(
            side.facts.gave_numbers or side.decisions or side.answered for side in (single, *sides)
        ),
        initial_state.batches_as_read,
        {**single.graph.integers.ranges, **single.graph.integers.chosen_from},
        over=all(side.ended[0] == ENDS for side in (single, *sides)),
    )


def _by_ranks(
    sides: Sequence[Recording], of: Callable[[Recording], Iterable[str]]
) -> dict[str, list[str]]:
    """Names by the ranks that have them."""
    having: dict[str, list[int]] = {}
    for side in sides:
        for name in dict.fromkeys(of(side)):
            having.setdefault(name, []).append(side.rank)
    found: dict[str, list[str]] = {}
    for name, ranks in having.items():
        found.setdefault(
            f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}", []
        ).append(name)
    return found


def _trained_by_some(sides: Sequence[Recording], model: Model) -> list[basis.Assumption]:
    """Parameters that the single device trains and ranks leave alone, with the whole model."""
    changed = [
        n
        for (role, n, call), before in model.tied.items()
        if (role, call) == ("input", 0)
        and model.tied.get(("output", f"{n}.new", 0), before) != before
    ]
    return [
        basis.trained_by_some(ranks, listed(names))
        for ranks, names in _by_ranks(
            sides, lambda side: [n for n in changed if n in side.left_alone]
        ).items()
    ]


def _left_by_some(sides: Sequence[Recording], model: Model) -> list[basis.Assumption]:
    """Gradients that ranks do not leave in parameters that they have: nothing is claimed of these
    there.
    """
    return [
        basis.left_by_some(ranks, ", ".join(names))
        for ranks, names in _by_ranks(
            sides, lambda side: [n for n in side.no_gradient if f"{n}.grad" in model.outputs]
        ).items()
    ]


def _other_caches(single: Recording, sides: Sequence[Recording]) -> list[basis.NotCompared]:
    """Buffers that are not saved, and that a step leaves with other constants on a rank.

    Nothing that is compared depends on them, but the next step may.
    """
    found: dict[str, str] = {}
    for side in sides:
        for name in (*single.caches, *side.caches):
            here, there = single.caches.get(name), side.caches.get(name)
            made = name.removesuffix(".new") in (single if here is None else side).made_buffers
            if here is None or there is None:
                other = made  # the buffer is there, and the step leaves it as it was
            else:
                other = here.shape == there.shape and not same(here, there)
            if other:
                found.setdefault(
                    name,
                    f"the step changes this buffer, which is not saved (persistent=False), and "
                    f"rank {side.rank} has other numbers in it than the single device",
                )
    return [basis.NotCompared(name, why) for name, why in found.items()]


def _other_results(
    single: Recording, sides: Sequence[Recording], model: Model
) -> list[basis.NotCompared]:
    """Numbers and texts that the step returns, and None, where they are not the same everywhere."""
    found: dict[str, str] = {}
    for side in sides:
        for label, text in side.plain.items():
            if label in model.outputs and text == "None":
                found.setdefault(label, f"rank {side.rank} returns None in its place")
            elif label not in single.plain:
                found.setdefault(
                    label,
                    f"it is {text} on rank {side.rank}, and nothing of that name on the single "
                    "device",
                )
            elif text != single.plain[label]:
                found.setdefault(
                    label,
                    f"it is {text} on rank {side.rank} and {single.plain[label]} on the single "
                    "device",
                )
    for label, text in single.plain.items():
        if text != "None" and not any(label in side.plain for side in sides):
            found.setdefault(label, f"it is {text} on the single device and nothing on the ranks")
    return [basis.other_result(label, why) for label, why in found.items()]


def _check_groups(sides: Sequence[Recording]) -> None:
    """All ranks create the same process groups in the same order: each waits for all ranks.

    Raises CaptureError.
    """
    first = sides[0]
    for side in sides:
        if side.groups_made != first.groups_made:
            at = next(
                i
                for i, (a, b) in enumerate(
                    itertools.zip_longest(first.groups_made, side.groups_made)
                )
                if a != b
            )
            here, there = (
                f"makes the group {list(s.groups_made[at])}"
                if at < len(s.groups_made)
                else "makes no more group"
                for s in (side, first)
            )
            raise CaptureError(
                f"dist.new_group: rank {side.rank} {here} where rank {first.rank} {there}: each "
                "call waits for all ranks, so that all have to make all groups in the same order"
            )


class _PartsApart(Exception):
    """Ranks put a buffer together of other tensors."""


def _check_layouts(
    sides: Sequence[Recording], mesh: Mesh, rank_classes: RankClasses, affine_axis: str | None
) -> None:
    """Members of a communication use one dtype and, where elements are paired by memory, equal
    layouts.

    Each rank is compared with the first of its group, which is then equal to all others.
    rank_classes, affine_axis: how ranks that were not recorded follow from those that were. Raises
    CaptureError.
    """
    recorded = {side.rank: side for side in sides}
    if (found := constants_apart({side.rank: side.shared_constants for side in sides})) is not None:
        comm, taker, giver = found
        layouts = recorded[taker].layouts.get(comm.partition(".")[0])
        at = f"{layouts.loc}: " if layouts is not None else ""
        raise CaptureError(
            f"{at}rank {taker} goes by a number that rank {giver} gave when it was recorded first, "
            f"and rank {giver} gives another one in the end"
        )
    for side in sides:
        for comm, mine in side.layouts.items():
            for r in mine.ranks[:1]:
                other = recorded[
                    mesh.stands_for(r, rank_classes, affine_axis, recorded)
                ].layouts.get(comm)
                if other is not None and other.dtypes != mine.dtypes:
                    raise CaptureError(
                        f"{mine.operator}: rank {side.rank} gives {' and '.join(mine.dtypes)} at "
                        f"{mine.loc}, rank {r} {' and '.join(other.dtypes)} at {other.loc}"
                    )
                if other.tag != mine.tag if other is not None else mine.tag and r not in recorded:
                    there = (
                        f"tag {other.tag} at {other.loc}"
                        if other is not None
                        else "a tag that was not recorded"
                    )
                    raise CaptureError(
                        f"a message with the tag {mine.tag} at {mine.loc} is on rank {r}, as "
                        f"messages are counted, one with {there}: some backends pair messages by "
                        "tags, others ignore them"
                    )
                if other is not None and other.parts != mine.parts:
                    raise _PartsApart
                if other is not None and other.rows != mine.rows:
                    raise CaptureError(
                        f"an all-to-all at {mine.loc} sends other rows on rank {side.rank} "
                        f"({mine.rows or 'none that data chooses'}) than on rank {r} "
                        f"({other.rows or 'none that data chooses'}): this is not followed"
                    )
                if other is not None and other.even != mine.even:
                    unequal, equal = (side.rank, r) if other.even else (r, side.rank)
                    raise CaptureError(
                        f"an all-to-all at {mine.loc} has pieces of unequal sizes on rank "
                        f"{unequal} and of equal ones on rank {equal}: this is not followed"
                    )
                if other is not None and other.strides != mine.strides:
                    at = "" if other.loc == mine.loc else f" (on rank {r} at {other.loc})"
                    raise CaptureError(
                        f"{mine.operator}: tensors lie in other orders in memory on ranks "
                        f"{side.rank} and {r}, and a backend takes them as they lie "
                        f"(.contiguous() makes them lie alike) at {mine.loc}{at}"
                    )


def _check_infinities(sides: Sequence[Recording]) -> None:
    """What a rank takes to be finite must not come from masked scores of another.

    Raises CaptureError.
    """
    giving = next((s for s in sides if s.facts.gives_hiding), None)
    for side in sides:
        if giving is not None and side.facts.relies_on_brought:
            raise CaptureError(
                "it is asked whether what came from other ranks is infinite or not-a-number, and "
                f"rank {giving.rank} gives masked scores, or what is computed with them, "
                f"at {giving.facts.gives_hiding}: what becomes of minus infinities is not followed "
                f"at {side.facts.relies_on_brought}"
            )


def verify(
    *functions: Step,
    mesh: Mapping[str, int] | str,
    ranks: str = "all",
    checkpoints: bool = True,
    keep: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
    jobs: int = 1,
    strict: bool = False,
    accept: Sequence[str] = (),
    allow_uncompared: Sequence[str] = (),
    steps: int | None = None,
    batch: Mapping[str, str] | None = None,
    numbers: bool | None = None,
    executor: Executor | None = None,
    convert: Convert | None = None,
) -> Report:
    """Whether the step on the mesh computes what it computes on one device.

    With two steps, it is compared with what the first computes on one device. mesh, ranks,
    checkpoints, jobs, strict, batch, convert: as of `capture`. steps: of a function that yields
    each step's result, how many are verified as one program (None: all). keep: prefix of files to
    leave behind. arguments: further options of `shardproof verify`. accept: names of assumptions of
    class "risk" that leave the verdict EQUIVALENT. allow_uncompared: patterns of what need not be
    compared for that. numbers: small steps also run with numbers, which have to be those of the
    recording (docs/pytorch.md; None: unless $SHARDPROOF_NUMBERS is 0). executor: its workers record
    ranks and prove stages (docs/engines.md).

    Raises EngineError where its workers cannot run the step, CaptureError, and ProgramError as
    verify_files does.
    """
    with OutputFiles(arguments, functions) as outputs:
        report = _verified(
            functions,
            mesh,
            ranks,
            checkpoints,
            keep,
            outputs,
            jobs,
            strict,
            accept,
            allow_uncompared,
            steps,
            batch,
            numbers,
            executor,
            convert,
        )
        outputs.publish(report, source_of(functions[-1]))
    return report


def _verified(
    functions: Sequence[Step],
    mesh: Mapping[str, int] | str,
    ranks: str,
    checkpoints: bool,
    keep: str | os.PathLike[str] | None,
    outputs: OutputFiles,
    jobs: int,
    strict: bool,
    accept: Sequence[str],
    allow_uncompared: Sequence[str],
    steps: int | None,
    batch: Mapping[str, str] | None,
    numbers: bool | None,
    executor: Executor | None,
    convert: Convert | None,
) -> Report:
    """The report of `verify`, with the same arguments."""
    labels = _Labels(Names.LIBRARY if "labels-valid" in accept else None)
    where = Mesh.parse(mesh) if isinstance(mesh, str) else Mesh(mesh)
    words = wording(
        functions,
        ", ".join(f"{axis} {size}" for axis, size in where.sizes.items()),
        keep is not None,
    )
    accepted = [
        *(f"--accept={name}" for name in accept),
        *(f"--allow-uncompared={pattern}" for pattern in allow_uncompared),
    ]
    left, arguments = _run_seconds(outputs.others)
    begun, looks = time.monotonic(), 0

    def judged_once(labels: _Labels, **less: Any) -> tuple[Report, Capture | None]:
        nonlocal looks
        looks += 1
        try:
            c = _captured_with(
                labels,
                less,
                functions,
                mesh,
                ranks,
                checkpoints,
                jobs,
                strict,
                steps,
                batch,
                wanted_by(os.environ) if numbers is None else numbers,
                executor,
                convert,
            )
        except Hazard as e:
            return _hazardous(e, words), None
        # Where labels may all count, the causes that are shown are those of that look.
        diagnosed = (
            "answers" in less
            or c.labels.less(Names.LIBRARY) is None
            or any(a.split("=")[0] == "--diagnose" for a in arguments)
        )
        report = verified(c, [] if diagnosed else ["--diagnose=off"])
        if c.suspected is not None and report.verdict == "NOT EQUIVALENT":
            return _hazardous(c.suspected, words), None
        return report, c

    def verified(c: Capture, more: Sequence[str] = ()) -> Report:
        nonlocal left
        # what is undecided is verified with less
        seconds = left / 2 if c.with_rest or c.with_more_steps else left
        start = time.monotonic()
        options = [*accepted, f"--timeout={seconds:g}", *more, *arguments]
        report = _judged(c, keep, options, words, where, outputs, executor)
        left = max(left - (time.monotonic() - start), _LEAST_SECONDS)
        return report

    def judged(labels: _Labels, **less: Any) -> tuple[Report, Capture | None]:
        try:
            return judged_once(labels, **less)
        except DecidedByData as e:
            return each_way(e, lambda answers: _judged_way(judged_once, labels, answers, less))

    report, made = judged(labels)
    undecided = "it was not decided whether that is the same"
    for there, less in (
        ("with_more_steps", {"one_step": undecided}),
        ("with_rest", {"one_step": undecided, "without_rest": undecided}),
    ):
        if report.verdict == "UNDECIDED" and made is not None and getattr(made, there):
            of_less, other = judged(labels, **less)  # the step has its own verdict
            if of_less.verdict != "UNDECIDED":
                report, made = of_less, other
            elif keep is not None:
                made.write(keep)
    valid = (
        made.labels.less(Names.LIBRARY)
        if made is not None and report.verdict in ("NOT EQUIVALENT", "UNDECIDED")
        else None
    )
    if made is not None and valid is not None:
        chosen = report
        with contextlib.suppress(CaptureError):  # it may be right where all labels count
            with_valid, _ = judged(valid)
            if with_valid.verdict != "UNDECIDED" or report.verdict == "UNDECIDED":
                chosen = with_valid
        report = verified(made) if chosen is report else chosen
    if looks > 1:
        report.text = _with_looks(report.text, looks, time.monotonic() - begun)
    return report


def _with_looks(text: str, looks: int, seconds: float) -> str:
    """The text of a report, which is about one of several programs that were verified."""
    if "\n" not in text.rstrip():
        return text  # --quiet: the verdict alone
    return (
        f"{text.rstrip()}\nIn all: {seconds:.0f} s, for {looks} programs that were recorded and "
        "verified (with each answer about data, with more or less of the script, with labels that "
        "may not count); this report is about one of them\n"
    )


def _judged_way(
    judged: Callable[..., tuple[Report, Capture | None]],
    labels: _Labels,
    answers: Answers,
    less: Mapping[str, Any],
) -> tuple[Report, Capture | None]:
    """The report on the program with these answers, and its capture."""
    try:
        return judged(labels, answers=answers, **less)
    except NoStep:
        return judged(labels, answers=answers, no_step=True, **less)


# What `shardproof verify` takes at most, if no --timeout says another number; and what is left for
# another look where that was used.
_RUN_SECONDS, _LEAST_SECONDS = 120.0, 5.0


def _run_seconds(arguments: Sequence[str]) -> tuple[float, list[str]]:
    """How long all that is proved may take, and the other options."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-t", "--timeout", default=str(_RUN_SECONDS))
    known, others = parser.parse_known_args(list(arguments))
    try:
        return float(known.timeout), others
    except ValueError:
        return _RUN_SECONDS, list(arguments)  # the program says what is wrong with it


def _judged(
    c: Capture,
    keep: str | os.PathLike[str] | None,
    arguments: Sequence[str],
    words: Wording,
    mesh: Mesh,
    outputs: OutputFiles,
    executor: Executor | None,
) -> Report:
    """The report of `shardproof verify` on the two files, in the words of what was called."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(keep) if keep is not None else Path(folder) / "step"
        _, plan = c.write(prefix)
        files, options = outputs.begin()
        report = verify_files(plan, arguments=[*options, *arguments], executor=executor)
        outputs.made(report, files, Path(plan))
        if c.real != RealRun():
            report.numbers = compare(c.real, plan, c.model, c.plan, c.constants, c.names, mesh)
    words.put(report, arguments)
    report = _without_arguments(report, c)
    _heed_numbers(report)
    less, right = _without_gradients(report, c), ["EQUIVALENT", "CONDITIONAL"]
    if less is None:
        less, right = _without_padding(report, c), [*right, "NOT EQUIVALENT"]
    if less is not None:
        of_less = _judged(less, keep, arguments, words, mesh, outputs, executor)
        if of_less.verdict in right:
            return of_less
        if keep is not None:
            c.write(keep)
    mistake = ""
    if report.verdict == "NOT EQUIVALENT":
        mistake = only_printed(report) or c.mistake
    if mistake:
        report.likely_mistake = mistake
        report.text = with_second_paragraph(report.text, f"Likely mistake: {mistake}.")
    report.assumptions = [a.text for a in c.assumptions]
    report.not_compared = [str(n) for n in c.not_compared]
    report.seconds_capture = c.seconds
    return report


def _heed_numbers(report: Report) -> None:
    """A recording that is not what PyTorch computes proves nothing of the step."""
    numbers = report.numbers
    if numbers is None or not numbers.differs:
        return
    if report.verdict not in ("EQUIVALENT", "CONDITIONAL"):
        return
    report.verdict = "UNDECIDED"
    report.reason = (
        f"the recording is not what PyTorch computes ({numbers.differs}): a fault of shardproof, "
        "or the step depends on something that is not recorded (time, files, earlier runs)"
    )
    report.text = f"UNDECIDED: {report.reason}\n\nOf the recording: {report.text}"


def _without_gradients(report: Report, c: Capture) -> Capture | None:
    """The capture without the gradients that are left in .grad, if the report refutes nothing else,
    and the new values of their parameters are compared; else None.

    Of a hand-written ZeRO, gradients stay those of a rank's own samples: only what an optimizer
    makes of them is the same.
    """
    # a tensor may be something else, too: a state that an optimizer begins with a gradient
    others = {n for kind, names in c.compared.items() if kind != "gradients" for n in names}
    others |= {n for label, n in c.names.items() if not label.endswith(".grad")}
    gradients = set(c.compared.get("gradients", ())) - others
    stages = report.raw.get("stages", [])
    not_proved = {
        s["tensor"]: s["verdict"]
        for s in stages
        if s["role"] == "output" and s["verdict"] != "proved"
    }
    refuted = {name for name, verdict in not_proved.items() if verdict != "undecided"}
    if any(name.startswith("optimizer") for name in c.compared.get(BESIDE, ())):
        # Optimizers step tensors of their own. Claims about these are cut points, and what is
        # computed of them is looked at as if what is claimed of gradients were true.
        refuted = {d["tensor"] for d in report.raw.get("defects", [])}
    wrong = gradients.intersection(not_proved)
    new = set(c.compared.get("new parameters", ()))
    if (
        report.verdict != "NOT EQUIVALENT"
        or not wrong
        or not gradients.issuperset(refuted)
        or not new.issuperset(f"{name.removesuffix('.grad')}.new" for name in wrong)
    ):
        return None
    return _without(c, wrong, basis.gradients_left(listed(sorted(wrong)), c.over))


def _without_padding(report: Report, c: Capture) -> Capture | None:
    """The capture without claims that padding stays zero, if the report refutes one.

    Nothing may read the padding, such as that of a flat buffer of all weights. If other outputs are
    wrong, too, the causes are about these.
    """
    padding = set(c.compared.get(KIND_OF_PADDING, ()))
    defects = {d["tensor"] for d in report.raw.get("defects", [])}
    wrong = sorted(padding.intersection(defects))
    if report.verdict != "NOT EQUIVALENT" or not wrong:
        return None
    return _without(c, padding, basis.padding_left(listed(wrong)))


def _without(c: Capture, wrong: set[str], assumption: basis.Assumption) -> Capture:
    """The capture without these outputs."""
    outputs = [name for name in c.model["outputs"] if name not in wrong]
    lineage = [e for e in c.plan["lineage"] if e["role"] != "output" or e["tensor"] not in wrong]
    return dataclasses.replace(
        c,
        model={**c.model, "outputs": outputs},
        plan={**c.plan, "lineage": lineage},
        compared={
            kind: left
            for kind, names in c.compared.items()
            if (left := [n for n in names if n not in wrong])
        },
        names={label: tensor for label, tensor in c.names.items() if tensor not in wrong},
        assumptions=[*c.assumptions, assumption],
    )


def _without_arguments(report: Report, c: Capture) -> Report:
    """A defect that an opaque function causes is no defect but undecided.

    Of other arguments, or of arguments that were not proved to be the model's, its results are not
    known. That they differ, or what is computed of them, shows no defect.
    """
    stages = report.raw.get("stages", [])
    unproved = {s["tensor"] for s in stages if s["role"] == "output" and s["verdict"] != "proved"}
    calls = {
        label.split(" of ", 1)[1]: tensor
        for label, tensor in c.names.items()
        if label.startswith("argument ") and tensor in unproved
    }
    if report.verdict != "NOT EQUIVALENT" or not calls:
        return report
    unknown = {
        name
        for name in c.model["tensors"]
        if name.startswith("%") and name[1:].rsplit(".", 1)[0] in calls
    }
    for node in c.model["nodes"]:
        if not unknown.isdisjoint(node["in"]):
            unknown.update(name for name in node["out"] if name is not None)
    unknown |= set(calls.values()) - {
        tensor for label, tensor in c.names.items() if not label.startswith("argument ")
    }
    if all(
        d.kind in ("value", "lineage")
        and (d.tensor in unknown or (shown := _SHOWN.findall(d.text)) and unknown.issuperset(shown))
        for d in report.defects
    ):
        report.verdict = "UNDECIDED"
        report.reason = (
            "arguments of a function of which nothing is known are not proved to be the model's; "
            "whether its results are is not known"
        )
        report.text = f"UNDECIDED: {report.reason}\n\n{report.text}"
    return report


_SHOWN = re.compile("shows in output '([^']*)'")  # of a defect


def _hazardous(e: Hazard, words: Wording) -> Report:
    """The verdict on a step that is wrong before its numbers are looked at."""
    defect = Defect(
        e.kind,
        e.text,
        e.tensor,
        [e.loc] if e.loc else [],
        {"kind": e.kind, "message": e.text, "tensor": e.tensor},
    )
    verdicts = {
        "async": "what the step computes depends on when its communication happens",
        "random": "ranks draw other random numbers than one device could",
        "order": "a rank begins with other elements of a parameter than its part has",
        "held": "some elements of a parameter are on no rank",
        "batch": "ranks read other samples than they should",
        "steps": "ranks make other steps of their optimizers than the single device",
    }
    raw = {
        "verdict": "not-equivalent",
        "reason": e.text,
        "outputs": 0,
        "outputs_proved": 0,
        "defects": [defect.details],
    }
    return Report(
        "NOT EQUIVALENT",
        e.text,
        0,
        0,
        [defect],
        f"NOT EQUIVALENT: {words.source} on mesh {words.mesh}: {verdicts[e.kind]}\n\nDefect: {e}\n",
        raw,
    )


def assert_equivalent(*functions: Step, mesh: Mapping[str, int] | str, **options: Any) -> Report:
    """For tests: the report. Parameters and errors are those of `verify`.

    Raises AssertionError with the report's text unless the verdict is EQUIVALENT.
    """
    __tracebackhide__ = True  # by pytest: the report is what failed
    report = verify(*functions, mesh=mesh, **options)
    if not report.equivalent:
        raise AssertionError(str(report))
    return report


__all__ = ["Capture", "CaptureError", "assert_equivalent", "capture", "verify"]
