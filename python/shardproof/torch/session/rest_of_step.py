# SPDX-License-Identifier: Apache-2.0
"""How much of a script is recorded: its optimizers' steps, and what follows them in the loop.

A loop does not end with its last optimizer's step: averages of weights are updated, weights are
clamped or copied into another network, a scheduler sets the next learning rate, the loss is reduced
and printed. So the script goes on until it begins its next step. That is the first of these:

* it asks a DataLoader for a batch, or moves another array of its own to a device;
* it calls a module that has parameters, or differentiates;
* an optimizer steps;
* it ends.

A script without optimizers of torch.optim changes parameters by its own code. Its step has been
made where it asks for a batch after it has changed all that it trains, with autograd's results.

Where no optimizer steps by what the script decides by data (`if norm.item() < 10: step`), the
program ends where the script asks the same once more, after a further batch or call of a model. So
all that it does where there is no step is part of the program.

What follows the step is recorded as a part of it. Where that cannot be followed, all is recorded
anew without it (`InitialState.without_rest`): the step's own verdict does not depend on it.

Some of what a loop does is seen in its second step only: gradients that nobody clears are added to,
an average of weights that was made in the first step is updated. Where the first step leaves such
things, all is recorded anew with one more step (`InitialState.more_steps`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim

from ..compat.user_code import own_place
from ..step.tracked_tensors import unwrapped
from ..step.world import World
from ..terms import assumptions
from ..terms.assumptions import Assumption, NotCompared, listed
from ..terms.dataflow import ancestors
from ..terms.liveness import WAIT
from ..terms.values import Named, Value
from ..trace.batches import Key, Shared
from ..trace.end_of_step import MADE, same
from ..trace.initial_state import InitialState
from ..trace.recording import CaptureError, DecidedByData, Hazard, Recording
from ..trace.results import leaves_of

_HINT = re.compile(r" \([^()]*(\([^()]*\)[^()]*)*\)$")  # of a message: what to write otherwise
# Of a script that steps by its own code and has no loaders, unless it was asked for other: what it
# keeps between steps (momentum, weights before inner steps) is no input, and shows in later ones.
STEPS_BY_HAND = 3
NODES_BY_HAND = 1000  # it goes on until then
ENDS = "it ends"  # in Recording.ended: what a script does
MOST_STEPS = 16  # of one optimizer, for each requested step, while others wait for theirs


class Stepped(BaseException):
    """Ends the script."""


class NoStep(CaptureError):
    """No optimizer of a script steps with these answers about data (`InitialState.answers`)."""


class OptimizerSteps:
    """The optimizers of a script, and how often each has stepped.

    The script ends where each has made `wanted` steps. An optimizer may hold others, as
    ZeroRedundancyOptimizer does.
    """

    def __init__(self, world: World, wanted: int) -> None:
        self.side: Any = world._backend  # of a recording
        self.wanted = wanted
        self.there: list[Any] = []  # in the order in which they were made
        self.under_way: list[Any] = []
        self.done: list[Any] = []
        self.stopped = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        make = optim.Optimizer.__init__

        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self.there.append(optimizer)

        handles = [
            optim.register_optimizer_step_pre_hook(self._before),
            optim.register_optimizer_step_post_hook(self._after),
        ]
        optim.Optimizer.__init__ = made
        try:
            yield
        finally:
            optim.Optimizer.__init__ = make
            for handle in handles:
                handle.remove()

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.side.binding.priming:
            return  # no step of the script's
        self._begins()
        if self.count(optimizer) == MOST_STEPS * self.wanted:
            self._stop()
        self.under_way.append(optimizer)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.side.binding.priming:
            return
        self.under_way.pop()
        self.done.append(optimizer)
        if not self.under_way:
            self._stepped()
        if not self.under_way and all(self.count(o) >= self.wanted for o in self.there):
            self._all_done()

    def _begins(self) -> None:
        """An optimizer begins a step."""

    def _stepped(self) -> None:
        """An optimizer has made a step."""

    def _all_done(self) -> None:
        self._stop()

    def ended(self, left: Mapping[str, Any]) -> None:
        """The script has ended by itself. left: the variables that it leaves."""

    def _stop(self) -> None:
        self.stopped = True
        raise Stepped

    def count(self, optimizer: Any) -> int:
        return sum(o is optimizer for o in self.done)


class Steps(OptimizerSteps):
    """The same, and the script goes on to its next step."""

    def __init__(self, world: World, wanted: int | None) -> None:
        """wanted: so many steps of each optimizer; None: one, or two if the second shows more."""
        super().__init__(world, wanted or 1)
        state = self.side.initial_state
        self.wanted += state.more_steps
        self.side.end.steps = self.wanted
        self.side.end.exact_steps = wanted is not None
        self.in_rest = False  # all have stepped, and the script goes on
        self.begun = False  # a step: it has asked for a batch or called a model
        self.idle = False  # it has begun its next iteration without a step, as it is to be recorded
        self.batches_without_step = 0  # since it has decided something by data
        self.new_batch = False  # since then, or a model was called
        # steps that the script's own code makes; parameters as they were when autograd ran or a
        # batch was asked for, and those that were changed after it ran; whether it has, and a batch
        # was asked for since
        self.by_hand = 0
        self.batches = 0  # that a loader was asked for
        self.parameters: dict[int, Value] = {}
        self.changed: set[int] = set()
        self.differentiated = self.new_iteration = False
        self.called_at: set[str] = set()  # where models were called, in training
        self.side.end.copies.watching = not state.without_rest

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        handle = nn_module.register_module_forward_pre_hook(self._called)
        self.side.loaders.asked = self._asks
        if self.side.initial_state.no_step:
            self.side.recorder.asks_again = self._asked_again
        self.side.differentiates = self._differentiates
        clear = {c: c.zero_grad for c in (nn.Module, optim.Optimizer)}

        def clearing(parameters: Callable[[Any], Any], original: Any) -> Any:
            @functools.wraps(original)
            def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
                if self.begun:
                    self.side.end.clears(parameters(owner))
                return original(owner, *args, **kwargs)

            return zero_grad

        nn.Module.zero_grad = clearing(lambda m: m.parameters(), nn.Module.zero_grad)
        optim.Optimizer.zero_grad = clearing(
            lambda o: [p for group in o.param_groups for p in group["params"]],
            optim.Optimizer.zero_grad,
        )
        try:
            with super().watched():
                yield
        finally:
            for c, original in clear.items():
                c.zero_grad = original
            handle.remove()

    def _differentiates(self) -> None:
        self._note_changes(self.differentiated and not self.new_iteration)
        self.differentiated, self.new_iteration = True, False
        self._end("it differentiates again")

    def _trained(self) -> list[list[nn.Parameter]]:
        """Of each model that was called the parameters that gradients may change."""
        models = [
            [p for p in model.parameters() if p.requires_grad]
            for model in self.side.binding.models()
        ]
        return [parameters for parameters in models if parameters]

    def _note_changes(self, by_step: bool) -> None:
        """Which parameters were changed since the last look, and how they are now: of a script
        without optimizers of torch.optim.
        """
        if self.there or self.in_rest:
            return
        for p in (p for parameters in self._trained() for p in parameters):
            now = self.side.recorder.read(unwrapped(p))
            if by_step and not same(now, self.parameters.get(id(p), now)):
                self.changed.add(id(p))
            self.parameters[id(p)] = now

    def _look_for_step(self) -> None:
        """The script asks for its next batch, or calls a model at a place where it has called one
        before: that may be its next step.
        """
        if self._has_stepped_by_hand() and self._enough_by_hand():
            self.side.end.steps_by_hand = self.by_hand
            self._all_done()

    def _has_stepped_by_hand(self) -> bool:
        """Whether the script's own code has made a step, which is counted.

        It has if of each model that was called some parameters, and all that have gradients, were
        changed after autograd had run. A step may go on with further batches, calls and gradients
        before (another model, a perturbation, accumulation), and weights may be clamped at the
        beginning of an iteration.
        """
        if self.there or self.in_rest or not self.differentiated:
            return False
        self._note_changes(not self.new_iteration)
        self.new_iteration = True
        models = self._trained()
        if not models or any(
            not any(id(p) in self.changed for p in parameters)
            or any(p.grad is not None and id(p) not in self.changed for p in parameters)
            for parameters in models
        ):
            return False
        self.changed.clear()
        self.by_hand += 1
        return True

    def _enough_by_hand(self) -> bool:
        """All sides stop after as many steps as the single device does."""
        single = self.side.initial_state.steps_by_hand
        if single is not None:
            return bool(self.by_hand == single)
        if self.side.end.exact_steps or self.side.initial_state.without_rest or self.batches:
            return bool(self.by_hand >= self.wanted)
        nodes = len(self.side.recorder.g.nodes) - (self.side.started or 0)
        return self.by_hand >= max(self.wanted, STEPS_BY_HAND) and nodes >= NODES_BY_HAND

    def _asks(self) -> None:
        self.begun = True
        self.batches += 1
        if not self.in_rest:
            self.side.end.copies.next_begins()
        self._look_for_step()
        self._end("it asks for its next batch")
        recorder = self.side.recorder
        self.new_batch = self.new_batch or bool(recorder.answered)
        if self.done or not (recorder.answered or recorder.decisions):
            return
        self.batches_without_step += 1
        if self.batches_without_step == MOST_STEPS:
            self._stop()

    def _asked_again(self, place: str) -> None:
        """The script asks about data what has an answer."""
        answered = self.side.recorder.answered
        if answered and answered[0][0] == place and self.new_batch and not self.done:
            self._makes_no_step()
            self._all_done()
            self._end("it decides the same once more")

    def _makes_no_step(self) -> None:
        self.idle = self.side.binding.without_step = True

    def without_step(self, path: str) -> CaptureError | None:
        """What a script is refused for that decides by data and makes no step."""
        text = f"{path} makes no step of an optimizer, and decides by data what it does"
        recorder = self.side.recorder
        if recorder.answered:
            return NoStep(text)
        places = list(dict.fromkeys(d.asked for d in recorder.decisions if d.asked))
        return DecidedByData(f"{text} at {listed(places)}", places=places) if places else None

    def _begins(self) -> None:
        self._end("an optimizer steps again")
        if self.done:
            self.side.end.copies.look()

    def _stepped(self) -> None:
        self.side.loaders.stepped()
        self.side.end.copies.stepped()

    def _all_done(self) -> None:
        if self.side.initial_state.without_rest:
            self._stop()
        self.in_rest = True
        self.side.end.stepped()

    def _called(self, module: Any, args: Any) -> None:
        if any(True for _ in module.parameters()):
            self.begun = True
            if not self.in_rest:
                self.side.end.copies.next_begins()
            self._leave_next_messages(args)
            if not self.there and not self.in_rest and module.training:
                at = own_place()
                if at in self.called_at:  # the next iteration of a loop
                    self._look_for_step()
                self.called_at.add(at)
            self._end("it calls a model again")
            self.new_batch = self.new_batch or bool(self.side.recorder.answered)

    def _leave_next_messages(self, args: Any) -> None:
        """A stage of a pipeline begins its next step by receiving what it gives to its model. The
        rank that sends it ends before that, so that it is no part of this step.
        """
        if not self.in_rest:
            return
        g = self.side.recorder.g
        names = [
            v.name
            for _, t in leaves_of(args)
            if isinstance(t, torch.Tensor)
            and isinstance(v := self.side.recorder.read(unwrapped(t)), Named)
        ]
        received = {
            n["comm"]
            for n in map(g.producer, ancestors(g, names))
            if n is not None and n["op"] == "recv"
        }
        first = next(
            (
                i
                for i in range(self.side.end.rest_began, len(g.nodes))
                if g.nodes[i].get("comm") in received
            ),
            len(g.nodes),
        )
        taken_back = [n for n in g.nodes[first:] if "comm" in n]
        handles = {n["handle"] for n in taken_back if "handle" in n}
        for n in taken_back:
            self.side.recorder.groups.layouts.pop(n["comm"], None)
        g.take_back(first, lambda n: "comm" in n or n["op"] == WAIT and n["handle"] in handles)

    def _end(self, how: str) -> None:
        """The script begins its next step, where it has made all that are looked at."""
        if self.in_rest:
            self.side.ended = how, own_place()
            self.side.end.goes_on()
            self._stop()

    def ended(self, left: Mapping[str, Any]) -> None:
        """The script has ended by itself. left: the variables that it leaves."""
        if self.side.initial_state.no_step and not self.done and not self.stopped:
            self._makes_no_step()
            self.in_rest = True
            self.side.end.stepped()
        self._has_stepped_by_hand()
        if self.by_hand and not self.in_rest and not self.stopped:
            self.in_rest = True
            self.side.end.stepped()
        if self.in_rest and not self.stopped:
            self.side.ended = ENDS, ""
            self.side.end.ends(left)

    def leave_out(self) -> None:
        """What was not looked at, of the script and of what it was to do."""
        g, more = self.side.recorder.g, self.side.initial_state.more_steps
        if more and self.there and not self.in_rest:
            raise CaptureError("it ends before its next step")
        if self.stopped or self.in_rest:
            g.assume(
                assumptions.rest_of_script(
                    [self.count(o) for o in self.there] or [self.by_hand],
                    self.side.ended if self.in_rest else None,
                    self.side.initial_state.without_rest,
                    self.side.initial_state.why_more,
                )
            )
        for o in self.there if not self.idle else ():
            size = sum(len(group["params"]) for group in o.param_groups)
            what = f"{type(o).__name__} of {size} parameters"
            if not self.count(o):
                idle = assumptions.no_step(type(o).__name__, size)
                g.leave_out(idle.what, idle.because)
            elif self.count(o) < self.wanted:
                g.leave_out(
                    f"step {self.count(o) + 1} of {what}", "there is none in what was looked at"
                )


def not_followed(e: Exception) -> str:
    """Why what follows the step is not recorded, for a sentence."""
    text = _HINT.sub("", " ".join(str(e).split()))
    if not isinstance(e, CaptureError):
        text = f"{type(e).__name__}: {text}"
    return f"it cannot be followed: {text}"


class OneMoreStep(Exception):
    """Something that a script's first step leaves shows in its next step only. what: it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def state(self, before: InitialState) -> InitialState:
        return dataclasses.replace(before, more_steps=1, why_more=self.what, loaders=None, batch={})


def check_one_step(sides: Sequence[Recording]) -> None:
    """Raises OneMoreStep where that may show something."""
    for side in sides:
        state = side.initial_state
        asked = state.one_step or side.exact_steps or state.no_step
        if side.shown_later and side.steps == 1 and not asked:
            raise OneMoreStep(" and ".join(side.shown_later))


def check_second_step(
    single: Recording, sides: Sequence[Recording], loaders: Mapping[Key, Shared]
) -> None:
    """A second step that was recorded for what shows in it has the settings of the single device,
    where that counts its batches otherwise (`schedules_apart`). Raises CaptureError.
    """
    if not single.initial_state.more_steps or not _counts_apart(loaders):
        return
    for side in sides:
        for name, there in side.settings_in_step.items():
            if single.settings_in_step.get(name, there) != there:
                raise CaptureError(
                    f"{name.removesuffix('.new')} is another one in it on rank {side.rank} than on "
                    "the single device, where the script reads other batches than the ranks' "
                    "together"
                )


def _counts_apart(loaders: Mapping[Key, Shared]) -> bool:
    """Whether the script itself would read batches of another size on one device."""
    return any(s.together and s.alone != sum(s.sizes) for s in loaders.values())


def less_of_script(before: InitialState, e: Exception) -> InitialState | None:
    """With one step, or without what follows it, after an error; None where that is no way out."""
    if before.more_steps:
        return dataclasses.replace(
            before, more_steps=0, why_more="", one_step=not_followed(e), loaders=None, batch={}
        )
    if before.without_rest or getattr(e, "before_rest", False):
        return None
    return dataclasses.replace(before, without_rest=not_followed(e))


def shown_later(sides: Sequence[Recording], why: str) -> list[NotCompared]:
    """What only a further step would show. why: that one is not recorded."""
    found: dict[str, dict[str, None]] = {}
    for side in sides:
        for what, names in side.shown_later.items():
            if side.steps == 1 or what == MADE:
                found.setdefault(what, {}).update(dict.fromkeys(names))
    return [assumptions.shown_later(what, listed(names), why) for what, names in found.items()]


def check_ended(single: Recording, sides: Sequence[Recording], one_script: bool) -> None:
    """Ranks and single device are recorded up to the same place, if beyond their step.

    one_script: the single device runs the script of the ranks. Raises CaptureError.
    """
    for side in (single, *sides):
        first = sides[0].ended
        if side.ended != first and (side is not single or one_script or side.ended[0] != first[0]):
            who = "the single device" if side is single else f"rank {side.rank}"
            ways = [f"{how}{f' at {loc}' if loc else ''}" for how, loc in (first, side.ended)]
            raise CaptureError(
                f"rank {sides[0].rank} goes on until {ways[0]}, and {who} until {ways[1]}"
            )


def check_steps(single: Recording, sides: Sequence[Recording]) -> None:
    """Whether optimizers step is the same on all, where data decide it. Raises Hazard."""
    for side in sides:
        if side.without_step != single.without_step:
            here, there = ("no step", "a step") if side.without_step else ("a step", "no step")
            raise Hazard(
                f"with these answers about data rank {side.rank} makes {here} of an optimizer, and "
                f"the single device {there}",
                side.answered[0][0] if side.answered else "",
                "",
                "steps",
            )


def check_copies(single: Recording, sides: Sequence[Recording]) -> None:
    """Copies of weights that begin with any values are put together of parameters in one way, where
    ranks have all of them. (Parts are placed by first values, see parameter_places.py.)

    Raises CaptureError.
    """
    for side in sides:
        for path, here in side.copy_arrangements.items():
            there = single.copy_arrangements.get(path, here)
            if here[0] != there[0] and here[1] == there[1]:
                raise CaptureError(
                    f"{path} is put together of parameters in another way on rank {side.rank} than "
                    "on the single device"
                )


def states_gone(single: Recording, sides: Sequence[Recording]) -> list[Assumption]:
    """States of optimizers that a script drops on some sides only."""
    found = []
    for side in sides:
        have = {t.name for t in side.whole().tracked if t.role == "input"}
        apart = (single.gone_states & have) ^ side.gone_states
        if apart:
            found.append(assumptions.states_gone(side.rank, listed(sorted(apart))))
    return found


def copies_apart(
    single: Recording, sides: Sequence[Recording]
) -> tuple[list[Assumption], list[NotCompared]]:
    """A script's copies of weights that not all sides update."""
    left = []
    for side in sides:
        names = [n for n in single.copies if n not in side.copies]
        if names and any(n in other.copies for other in sides for n in names):
            left.append(assumptions.copies_left(side.rank, listed(names)))
    by_ranks = dict.fromkeys(n for side in sides for n in side.copies)
    missing = [NotCompared(n, "no rank updates it") for n in single.copies if n not in by_ranks]
    missing += [
        NotCompared(n, "the single device does not update it")
        for n in by_ranks
        if n not in single.copies
    ]
    return left, missing


def counted_apart(
    single: Recording, sides: Sequence[Recording], loaders: Mapping[Key, Shared]
) -> dict[str, Assumption]:
    """Printed numbers that a script divides by the size that its batches have on one device
    (`correct / (batch_size * world)`), where the single device has larger ones. By name, what is
    said of each.
    """
    ratios = {s.alone / sum(s.sizes) for s in loaders.values() if s.together and s.axes} - {1.0}
    found = {}
    for label, whole in single.clues.printed.items():
        for part in (s.clues.printed.get(label) for s in sides):
            if part is not None and any(
                len(part) == len(whole)
                and all(w and math.isclose(p / w, ratio) for p, w in zip(part, whole))
                for ratio in ratios
            ):
                found[label] = assumptions.counted_apart(label)
    return found


def schedules_apart(
    single: Recording, sides: Sequence[Recording], loaders: Mapping[Key, Shared]
) -> dict[str, Assumption]:
    """Settings of optimizers that a script sets for the next step by counts of its own batches.

    The single device has the ranks' batches together. Where the script itself would read others
    there, what it counts by their size (`len(data) // batch_size // world`) is another number, and
    so is a schedule that goes by it. Ranks count the same, so it is the same on all of them. By
    name, what is said of it.
    """
    if not _counts_apart(loaders):
        return {}
    found = {}
    for name, here in single.settings.items():
        if len({side.settings[name] for side in sides if name in side.settings}) > 1:
            continue
        before = single.settings_in_step.get(name)
        for side in sides:
            there = side.settings.get(name, here)
            if there != here and before is not None and before == side.settings_in_step.get(name):
                setting = name.removesuffix(".new")
                if side.scheduler_steps == single.scheduler_steps:
                    found[name] = assumptions.schedule_apart(setting, side.rank, there, here)
                else:
                    found[name] = assumptions.scheduler_steps_apart(
                        setting, side.rank, side.scheduler_steps, single.scheduler_steps
                    )
                break
    return found


__all__ = [
    "NoStep",
    "OneMoreStep",
    "OptimizerSteps",
    "Stepped",
    "Steps",
    "check_copies",
    "check_ended",
    "check_one_step",
    "check_second_step",
    "check_steps",
    "copies_apart",
    "counted_apart",
    "less_of_script",
    "not_followed",
    "schedules_apart",
    "shown_later",
    "states_gone",
]
