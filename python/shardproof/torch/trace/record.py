# SPDX-License-Identifier: Apache-2.0
"""Runs a training step once as one rank (or as the single device) and keeps what it recorded."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ..compat import private
from ..compat.fake_answers import Answers
from ..compat.lazy_modules import lazy_as_fake
from ..compat.refusals import Refusal, noted
from ..compat.sync_batch_norm import sync_batch_norm
from ..compat.user_code import raised_by_user
from ..distributed import collectives
from ..distributed.exchange import Groups
from ..distributed.mailbox import Mailbox, MissingMetadata
from ..distributed.mesh import Mesh
from ..intercept.conversions import conversions_of
from ..intercept.data_array import data_arrays
from ..intercept.data_number import UNKNOWN, data_numbers
from ..intercept.devices import as_cpu
from ..intercept.hooks import Hooks
from ..intercept.object_collectives import objects_exchanged
from ..intercept.patches import patched
from ..intercept.processes import Processes
from ..intercept.schedulers import counted_schedulers
from ..step.several_steps import each
from ..step.world import World
from ..terms import assumptions, labels
from ..terms.values import Poisoned, Unsupported
from .asynchronous_calls import AsynchronousCalls
from .initial_state import InitialState
from .recorder import Recorder
from .recording import CaptureError, Hazard, Recording, Step
from .side import Side


class _OneThread(private.FakeTensorMode):
    """Notes operators of other threads, which are not recorded.

    An error that is raised there ends that thread alone.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.thread = threading.get_ident()
        self.elsewhere: list[str] = []

    def __enter__(self) -> Any:
        with private.no_stand_in_for_gpus():
            return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if threading.get_ident() != self.thread:
            self.elsewhere.append(str(func))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _result(step: Step, world: World, side: Side) -> Any:
    """What the step returns.

    Whatever it does about errors of the recorder, the first of them ends the recording
    (refusals.py). Raises CaptureError, MissingMetadata, and what the step raises of its own.
    """
    with conversions_of(step), noted(side.recorder.where) as notes:
        try:
            result = each(step(world), side.end.keep)
        except BaseException as e:
            if notes.refused is not None:
                raise _as_raised(notes.refused, side, notes.refused is not e) from None
            if isinstance(e, (*private.DEPENDS_ON_DATA, Poisoned, Unsupported)):
                raise _as_raised(e, side) from None
            if isinstance(e, ValueError) and UNKNOWN in str(e):
                *_, last = traceback.extract_tb(e.__traceback__)
                raise CaptureError(
                    f"{os.path.basename(last.filename)}:{last.lineno}: the program reads a number "
                    "from the text of one that depends on data, as in "
                    "float(f'{loss.item():.4f}'): read the number itself"
                ) from None
            raise
    if notes.refused is not None:
        raise _as_raised(notes.refused, side, caught=True) from None
    if notes.failed is not None:
        error, loc = notes.failed
        raise _as_raised(error, side, caught=True, loc=loc) from None
    return result


def _as_raised(error: BaseException, side: Side, caught: bool = False, loc: str = "") -> Exception:
    """An error that ends a recording as its caller gets it.

    caught: by the program. loc: the place of an error of PyTorch's.
    """
    recorder, note = side.recorder, ""
    if caught:
        note = (
            " (the program catches this error, and what it does then it need not do on real "
            "devices)"
        )
    if isinstance(error, MissingMetadata):
        return error
    reason = getattr(error, "reason", None)
    if side.mesh.world > 1 and reason is not None and reason.hazard:
        return Hazard(
            f"what rank {recorder.rank} sends cannot be followed: {reason.text}", reason.loc, ""
        )
    if isinstance(error, private.DEPENDS_ON_DATA):
        loc = loc or recorder.where() or recorder.g.loc
        return CaptureError(
            f"what {error} yields, or its shape, depends on data"
            + (f" at {loc}" if loc else "")
            + note
        )
    made: CaptureError
    if isinstance(error, (Poisoned, Unsupported)):
        loc = loc or (reason.loc if reason is not None else "") or recorder.where()
        made = CaptureError(f"{loc}: {error}{note}" if loc else f"{error}{note}")
    elif isinstance(error, CaptureError):
        made = error
        if note and not isinstance(error, Hazard):
            made = CaptureError(f"{error}{note}")
    else:
        made = CaptureError(
            f"{loc}: {type(error).__name__}: {error}{note}" if loc else f"{error}{note}"
        )
        made.ranges = recorder.g.integers.limits() if isinstance(error, Refusal) else None
    made.any_buffers = bool(side.given.any_buffers)
    return made


def _hooks(recorder: Recorder, side: Side, mailbox: Mailbox) -> Hooks:
    batches: list[int] = []  # nodes before each batch of messages that is under way

    def batch(operations: Sequence[Any] | None) -> None:
        if operations is None:
            collectives.order_batch(recorder, batches.pop())
            return
        for ranks in dict.fromkeys(private.group_ranks(o.group) for o in operations):
            recorder.begun.hold_up(recorder.groups.fields(ranks)[1])
        batches.append(len(recorder.g.nodes))

    return Hooks(
        freed=recorder.freed,
        batch=batch,
        quiet=side.quiet,
        trial=side.cut_points.trial,
        differentiates=lambda: side.differentiates(),
        before_backward=side.end.noticing.backward,
        after_backward=side.cut_points.after_backward,
        unused=side.unused.append,
        constant=recorder.numbers,
        unreduced=side.cut_points.unreduced,
        synchronised=side.synchronised,
        exchange_rows=functools.partial(collectives.exchange_rows, recorder),
        asynchronous=AsynchronousCalls(recorder, batches),
        mailbox=mailbox,
        loaders=side.loaders,
        devices=recorder.random,
    )


def record(
    step: Step,
    mesh: Mesh,
    rank: int,
    classes: Mapping[str, int] | None = None,
    mailbox: Mailbox | None = None,
    answers: Answers | None = None,
    stand_in: float = math.nan,
    initial_state: InitialState | None = None,
    ignorable: labels.Ignorable = MappingProxyType({}),
    decided: Sequence[bool] = (),
) -> Recording:
    """Records one rank's training step.

    classes: integer inputs whose range is known from the single device. mailbox: what stages of
    pipelines exchange. answers: results of fake operators of other ranks. stand_in: the number of
    those that depend on data, for code that is not followed. initial_state: what buffers hold at
    first. ignorable: integer inputs that are classes or a number that ignores them. decided:
    answers to the first questions about data.

    Raises CaptureError, and whatever the step raises.
    """
    while True:
        try:
            return _recorded(
                step,
                mesh,
                rank,
                classes,
                mailbox,
                answers,
                stand_in,
                initial_state,
                ignorable,
                decided,
            )
        except Exception as e:
            # an assertion about data, say
            other = getattr(e, "other_answers", None)
            if other is None or len(other) > _MOST_ANSWERS:
                raise
            decided = other


_MOST_ANSWERS = 4  # to questions about data, until a step raises no error


def _recorded(
    step: Step,
    mesh: Mesh,
    rank: int,
    classes: Mapping[str, int] | None,
    mailbox: Mailbox | None,
    answers: Answers | None,
    stand_in: float,
    initial_state: InitialState | None,
    ignorable: labels.Ignorable,
    decided: Sequence[bool],
) -> Recording:
    private.require()
    private.forget_results()
    initial_state = initial_state or InitialState()
    recorder = Recorder(rank, answers)
    recorder.answers = decided
    recorder.answers_at = dict(initial_state.answers)
    recorder.prints = [] if getattr(step, "whole_script", False) else None
    recorder.g.integers.classes.update(classes or {})
    recorder.g.integers.ignorable.update(ignorable)
    mailbox = {} if mailbox is None else mailbox
    recorder.groups = Groups(mesh, rank, mailbox)
    recorder.groups.whole_buffers = initial_state.whole_buffers
    side = Side(recorder, mesh, initial_state)
    recorder.modules = side.binding.stack
    recorder.reads, recorder.writes = side.binding.reads, side.binding.writes
    recorder.uses = side.binding.uses
    hooks = _hooks(recorder, side, mailbox)
    ranks = getattr(step, "devices", 1)  # of a script

    def counted() -> None:
        if mesh.world == 1 and ranks > 1:
            recorder.g.assume(assumptions.counted_devices(ranks))

    with (
        side.python_random.of_rank(rank, mesh.world),
        private.fake_group(
            # with a group there already, libraries do not ask one device for two processes
            rank,
            mesh.world,
            mesh.world == 1 or not getattr(step, "whole_script", False),
        ) as groups_made,
        patched(hooks),
        Processes(recorder.groups, side, recorder.g.assume, getattr(step, "devices", 1)).replaced(),
        private.random_tracker(recorder.random),
        contextlib.ExitStack() as others,
    ):
        others.enter_context(private.unlogged())
        others.enter_context(objects_exchanged(mailbox, rank, recorder.groups.next))
        scheduler_steps = others.enter_context(counted_schedulers())
        recorder.random.begin(rank, mesh.world, getattr(step, "own_random_state", False))
        recorder.random.batch = {
            name: times
            for name, axes in initial_state.batch.items()
            if mesh.world == 1 and (times := initial_state.ranks_of(axes)) > 1
        }
        recorder.random.of_permuted = initial_state.permuted
        recorder.random.permuted = {
            name: initial_state.ranks_of(axes) if mesh.world == 1 else 1
            for name, axes in initial_state.permuted.items()
        }
        world = World(mesh, rank, side)
        with (
            _OneThread(allow_non_fake_inputs=True) as recorder.mode,
            recorder,
            side.binding.listening(),
            as_cpu(recorder.random, ranks, counted),
            sync_batch_norm(),
            recorder.untracked.watching(),
            labels.ignored_labels_named(recorder.g),
            data_numbers(recorder, stand_in),
            data_arrays(recorder, recorder.numbers),
            private.without_mkldnn(),
            lazy_as_fake(),
        ):
            try:
                result = _result(step, world, side)
            except Exception as e:
                # without what follows the step it is met, too
                before = not recorder.in_rest and not side.end.copies.has_inputs
                e.before_rest = before  # type: ignore[attr-defined]
                if isinstance(e, (CaptureError, MissingMetadata)):
                    raise
                given = [d.answer for d in recorder.decisions]
                # an error of a library's is none that the program avoids
                if raised_by_user(e) and given and not given[-1] and len(given) > len(decided):
                    e.other_answers = (*given[:-1], True)  # type: ignore[attr-defined]
                raise
            side.python_random.look()
            recorder.g.loc = ""
            if recorder.mode.elsewhere:
                raise CaptureError(
                    f"{recorder.mode.elsewhere[0]} runs in another thread than the step: what "
                    "other threads do is not followed"
                )
            try:
                side.end.finish(result)
            except Refusal as e:
                raise _as_raised(e, side) from None
            except CaptureError as e:
                e.any_buffers = bool(side.given.any_buffers)
                raise
    recorder.g.forget()
    recorder.forget()
    recording = Recording(
        rank=rank,
        mesh=mesh,
        graph=recorder.g,
        tracked=side.tracker.tracked,
        started=side.started or 0,
        unknown=recorder.unknown,
        random_inputs=recorder.random.draws,
        cuts=dict(side.tracker.cuts),
        calls=dict(side.cut_points.calls),
        opaque=recorder.opaque.made,
        hazards=recorder.hazards,
        unused=side.unused,
        layouts=recorder.groups.layouts,
        shared_constants=recorder.groups.constants.used,
        groups_made=tuple(groups_made),
        changed=frozenset(side.end.changed),
        caches=side.end.caches,
        initial_state=initial_state,
        any_buffers=side.given.any_buffers,
        made_buffers=frozenset(side.given.buffers_before),
        as_made=side.given.as_made,
        beside=side.end.beside,
        no_gradient=tuple(side.end.no_gradient),
        models=tuple(side.binding.order()),
        left_alone=side.binding.left_alone(),
        plain=side.end.plain,
        initial=side.initial,
        sent=side.origins.sent,
        first_values=side.first_values,
        origins=side.origins,
        from_files={name: file for name, (_, file) in side.origins.files.items()},
        spread=frozenset(side.spread),
        own=recorder.random.own,
        given=frozenset(side.input_names),
        read=side.loaders.read(),
        decisions=tuple(recorder.decisions),
        answered=tuple((place, question) for place, question, _ in recorder.answered),
        drawn_by_python=dict(side.python_random.drawn),
        drawn_for_batches=dict(side.python_random.of_batches),
        read_draws={place: tuple(keys) for place, keys in recorder.read_draws.items()},
        arrays=dict(recorder.g.arrays()),
        loaded=frozenset(side.loaded_names),
        ended=side.ended,
        printed=tuple(side.end.printed),
        copies=tuple(f"{path}.new" for path in side.end.copies.updated),
        copy_arrangements=dict(side.end.copies.arrangements),
        gone_states=frozenset(side.end.gone_states),
        steps=side.end.steps,
        exact_steps=side.end.exact_steps,
        steps_by_hand=side.end.steps_by_hand,
        shown_later={what: tuple(names) for what, names in side.end.shown_later.items()},
        settings=side.end.settings,
        settings_in_step=side.end.settings_in_step,
        scheduler_steps=scheduler_steps.count,
        without_step=side.binding.without_step,
        clues=side.end.noticing.clues,
        gave_in_step=recorder.gave_in_step,
        further_names=tuple(side.binding.further_names()),
    )
    converted: Callable[[Recording], Recording] | None = getattr(step, "recorded", None)
    return recording if converted is None else converted(recording)
