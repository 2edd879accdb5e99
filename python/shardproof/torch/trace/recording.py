# SPDX-License-Identifier: Apache-2.0
"""What a recording keeps, and errors that end one."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..compat.refusals import refuse
from ..distributed.exchange import Layouts
from ..distributed.mesh import Mesh
from ..distributed.shared_constants import Used
from ..step.tracked_tensors import TrackedTensor
from ..step.world import World
from ..terms.assumptions import Assumption, NotCompared
from ..terms.graph import Graph
from ..terms.values import Shape, Value
from .batches import Key, Read
from .clues import Clues
from .initial_parameters import Initial, Origin, Origins
from .initial_state import InitialState
from .opaque import Call as OpaqueCall
from .randomness import Draw

MOVES_MEMORY = ("all_gather", "reduce_scatter")  # along dimension 0, whatever is there
Step = Callable[[World], Any]


class CaptureError(RuntimeError):
    """The step cannot be captured; the message has what was met and where.

    ranges: of integer inputs, where these were known by then. on_all: whether all ranks have it.
    """

    ranges: dict[str, int] | None = None
    on_all = False
    any_buffers = True  # whether there may have been buffers that began with any value

    def __init__(self, text: str) -> None:
        super().__init__(text)
        refuse(self)


class Hazard(CaptureError):
    """The step is wrong whatever its numbers are.

    kind: `async`, a rank reads what nothing has written yet, or writes what is being sent;
    `random`, ranks draw other random numbers than one device could; `held`, no rank has some
    elements of a parameter; `order`, a rank begins with others than its part has;
    `batch`, ranks read other samples than they should; `steps`, ranks make a step of an optimizer
    where the single device makes none, or the other way round. loc: where. initial: it is about the
    first values of parameters.
    """

    def __init__(
        self, text: str, loc: str, tensor: str, kind: str = "async", initial: bool = False
    ) -> None:
        super().__init__(f"{text} at {loc}" if loc else text)
        self.text, self.loc, self.tensor, self.kind = text, loc, tensor, kind
        self.initial = initial


class DecidedByData(CaptureError):
    """The program decides something by data. own: by numbers that ranks have not reduced, so that
    each may decide otherwise. places: where it asks what can be answered for it
    (`InitialState.answers`).
    """

    def __init__(self, text: str, own: bool = False, places: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.own = own
        self.places = tuple(dict.fromkeys(p for p in places if p))


@dataclasses.dataclass(frozen=True)
class Decision:
    """The answer that the program got to a question about data, and where. own: it is about numbers
    that ranks have not reduced. asked: the line that asks, if the number is followed.
    """

    loc: str
    answer: bool
    own: bool = False
    asked: str = ""


@dataclasses.dataclass
class Facts:
    """What is known of a recording beside its program.

    built: communication of the construction of the model. moved: the shapes of the operands of
    collectives that move memory.
    """

    assumptions: list[Assumption]
    not_compared: list[NotCompared]
    gives_hiding: str
    relies_on_brought: str
    gave_numbers: str
    built: frozenset[str]
    moved: dict[str, Shape]
    nodes: int
    communicates: bool


class NotKept(Exception):
    """All of a recording is needed of which only a part was kept."""


@dataclasses.dataclass
class Recording:
    """One side, as values only: no tensor of torch is left in it."""

    rank: int
    mesh: Mesh
    graph: Graph
    tracked: list[TrackedTensor]
    started: int  # nodes before this one belong to the construction of the model
    unknown: dict[str, str]  # what had no translation -> where it was met first
    random_inputs: list[Draw]
    cuts: dict[str, set[int]]  # mesh axis -> dimensions of inputs that it cuts
    calls: dict[str, int]  # module -> how often its forward ran
    opaque: list[OpaqueCall]  # calls of operators of which nothing is known
    hazards: dict[str, str]  # what is wrong with the program whatever it computes -> where
    unused: list[str]  # parameters that DistributedDataParallel found not used, in order
    # communication -> the layout of its tensors in memory, where that matters
    layouts: dict[str, Layouts]
    shared_constants: Used
    # their ranks, in the order in which process groups were made
    groups_made: tuple[tuple[int, ...], ...] = ()
    changed: frozenset[str] = frozenset()  # buffers that the step changes
    # those that are not saved, and the constants with which the step replaced theirs
    caches: dict[str, Value] = dataclasses.field(default_factory=dict)
    initial_state: InitialState = InitialState()
    # those that begin with any value, and the number that each was made with
    any_buffers: dict[str, float] = dataclasses.field(default_factory=dict)
    made_buffers: frozenset[str] = frozenset()  # all there were when a model was taken in
    # those that begin with the number that they hold, or should, and why
    as_made: dict[str, str] = dataclasses.field(default_factory=dict)
    # what optimizers and the step keep beside parameters of modules, and its shape
    beside: dict[str, Shape] = dataclasses.field(default_factory=dict)
    # of those of them that are parts of the single device's, as first values show: its shapes;
    # None: not looked for yet (export.parameter_places.look_for_parts)
    whole_shapes: dict[str, Shape] | None = None
    no_gradient: tuple[str, ...] = ()  # parameters that are left without a gradient
    # in the order in which they were made: what names of their parameters begin with, and which
    # these are
    models: tuple[tuple[str, frozenset[str]], ...] = ()
    # parameters and buffers of models that were made and then left alone
    left_alone: frozenset[str] = frozenset()
    # numbers and texts that the step returned, and None
    plain: dict[str, str] = dataclasses.field(default_factory=dict)
    # first values of parameters (initial_parameters.py)
    initial: dict[str, Initial] = dataclasses.field(default_factory=dict)
    # communication of the construction -> what this rank gave
    sent: dict[str, Origin] = dataclasses.field(default_factory=dict)
    # what parameters held first, and whose values that are: without them nothing is known
    first_values: dict[str, Value] = dataclasses.field(default_factory=dict)
    origins: Origins | None = None
    # inputs that were loaded from files of other ranks, and whose
    from_files: dict[str, str] = dataclasses.field(default_factory=dict)
    # axes of DistributedDataParallel: their ranks have different data
    spread: frozenset[str] = frozenset()
    own: bool = False  # it began with a random state that no other process has
    given: frozenset[str] = frozenset()  # names of what world.input gave
    loaded: frozenset[str] = frozenset()  # names of inputs that DataLoaders gave
    # by DataLoader, what was read (batches.py)
    read: dict[Key, Read] = dataclasses.field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()  # in order
    # where it asked what `initial_state.answers` answers, and what (data_number.py)
    answered: tuple[tuple[str, tuple[str | float | None, ...]], ...] = ()
    # generators of Python's own that it drew from, and a digest of their last state
    drawn_by_python: dict[str, str] = dataclasses.field(default_factory=dict)
    # those that it drew from while batches were read, and a digest of their first state
    drawn_for_batches: dict[str, str] = dataclasses.field(default_factory=dict)
    # FILE:LINE -> the draws (their keys) by whose numbers Python decided there
    read_draws: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # constants that are arrays of the program's: where each is used, and a digest of its numbers
    arrays: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    # how a script began its next step, and where; empty: it was stopped before that
    ended: tuple[str, str] = ("", "")
    # numbers that a script prints and that are compared, where ranks have reduced them
    printed: tuple[str, ...] = ()
    # a script's copies of weights that it updates, which are compared where ranks do
    copies: tuple[str, ...] = ()
    # of copies that are inputs: how they are put together of parameters, and their shapes
    copy_arrangements: dict[str, tuple[str, Shape]] = dataclasses.field(default_factory=dict)
    # of optimizers, that a script has dropped after its step
    gone_states: frozenset[str] = frozenset()
    steps: int = 1  # of each optimizer of a script
    exact_steps: bool = False  # the user asked for that many
    steps_by_hand: int = 0  # of a script's own code, after which it was stopped
    # what only the next step of a script shows, and names (end_of_step.py)
    shown_later: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # numbers of optimizers, by name: at the end, and before what follows a script's step
    settings: dict[str, float] = dataclasses.field(default_factory=dict)
    settings_in_step: dict[str, float] = dataclasses.field(default_factory=dict)
    scheduler_steps: int = 0  # of all schedulers, with those at their making
    without_step: bool = False  # no optimizer of a script steps, as data decide
    # what tells a common mistake
    clues: Clues = dataclasses.field(default_factory=Clues)
    # whether Tensor.item() gave numbers that depend on data before what follows a script's step
    gave_in_step: bool = False
    # of parameters that models have more than once (Binding.further_names)
    further_names: tuple[str, ...] = ()
    # of a recording that was put into the names of another implementation: which of its own
    # tensors each is made of
    converted_names: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    # export.rank_program.Program that needs no communication of the construction, once it was made
    program: Any = None
    # where graph, tracked and opaque are left out: the file with all of it, empty if there is none
    kept: str | None = None
    kept_facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        if self.kept_facts is not None:
            return self.kept_facts
        g = self.graph
        return Facts(
            list(g.assumptions),
            list(g.not_compared),
            g.definedness.gives_hiding,
            g.definedness.relies_on_brought,
            g.gave_numbers,
            frozenset(n["comm"] for n in g.nodes[: self.started] if "comm" in n),
            {
                n["comm"]: tuple(g.tensors[n["in"][0]]["shape"])
                for n in g.nodes
                if n["op"] in MOVES_MEMORY and "comm" in n
            },
            len(g.nodes),
            any("comm" in n for n in g.nodes),
        )

    @property
    def whole_beside(self) -> dict[str, Shape]:
        """`beside`, with the single device's shapes."""
        whole = self.whole_shapes or {}
        return {n: whole.get(n, shape) for n, shape in self.beside.items()}

    @property
    def strides(self) -> dict[str, Any]:
        """The strides of communication that takes tensors in the order of memory."""
        return {comm: at.strides for comm, at in self.layouts.items() if at.strides}

    def light(self, file: str) -> Recording:
        """The recording without what is only needed to make its program.

        file: gets all of it; empty: nothing does.
        """
        kept_facts = self.facts
        if file:
            with open(file, "wb") as f:
                pickle.dump(
                    dataclasses.replace(self, program=None), f, protocol=pickle.HIGHEST_PROTOCOL
                )
        return dataclasses.replace(
            self,
            graph=Graph(),
            tracked=[],
            opaque=[],
            first_values={},
            origins=None,
            kept=file,
            kept_facts=kept_facts,
        )

    def elements_of(self, name: str, sent: torch.Tensor | None = None) -> torch.Tensor | None:
        """Numbers of the elements that a parameter held first (Origins.elements)."""
        v = self.first_values.get(name)
        if v is None or self.origins is None:
            return None
        return self.origins.elements(v, sent)

    def zeros_of(self, name: str) -> torch.Tensor | None:
        """Which elements of a first value are zero (Origins.zeros)."""
        v = self.first_values.get(name)
        return self.origins.zeros(v) if v is not None and self.origins is not None else None

    def stages_of(self, name: str) -> list[tuple[str, torch.Tensor]]:
        """Of a parameter's first value (Origins.stages)."""
        v = self.first_values.get(name)
        return self.origins.stages(v) if v is not None and self.origins is not None else []

    def sender_of(self, name: str) -> tuple[str, int] | None:
        """Of a parameter's first value (Origins.sender)."""
        v = self.first_values.get(name)
        return self.origins.sender(v) if v is not None and self.origins is not None else None

    def whole(self) -> Recording:
        """All of it. Raises NotKept."""
        if self.kept is None:
            return self
        if not self.kept:
            raise NotKept
        with open(self.kept, "rb") as f:
            found: Recording = pickle.load(f)
        found.whole_shapes = self.whole_shapes
        return found
