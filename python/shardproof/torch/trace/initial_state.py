# SPDX-License-Identifier: Apache-2.0
"""What buffers hold when the step begins.

A step is one of many: a buffer that was just made of zeros holds something else in the next one. So
a buffer that is saved with its model and holds one real number everywhere (statistics, averages)
begins with any value, the same on the single device and the ranks, as parameters do. Tables and
masks, of many numbers, and counts, which are integers, keep their numbers.

It begins with its numbers after all where

* the step leaves it with the very number that it began with, on the single device: so does every
  later step find it (what ranks leave is compared with that);
* `world.output` got it as parts that add up to the model's;
* a rank has another number there, or no rank has it (ranks and single device are other code);
* the program cannot be followed otherwise: something is decided by its number (flags, counts).
  Single numbers are tried first: flags are such.

All but the first is listed under "Assumed".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

import torch

from ..terms.values import Filled, Value, numel
from .batches import Key, Shared

# of the batches of ranks along an axis: parts of the single device's, or each all of it
CONCAT, SAME = "concat", "same"

_NONE = 1 << 62  # elements that no buffer has


@dataclasses.dataclass(frozen=True)
class InitialState:
    """Which buffers begin with any value.

    least: those of so many elements and more. numbers: buffers that begin with their numbers.
    single: on ranks, the buffers of the single device that begin with any value, and the number
    that each was made with.

    batch: draws that are different data on ranks along these axes, of these sizes. The single
    device draws the rows of all of them, rank by rank. permuted: random permutations of a batch, of
    which ranks along these axes permute their own parts (terms/permutations.py). loaders: how the
    batches of ranks make the single device's (batches.py); None where that is to be found out.
    batches_as_read: these are constants, not inputs.
    answers: to what the program asks of data at a line, FILE:LINE and the answer (decisions.py).
    no_step: no optimizer of a script steps with these answers, and it is recorded until its next
    iteration.
    requested: mesh axis -> CONCAT or SAME, as the user says of its ranks' batches.

    without_rest: why what follows a script's step is not recorded; empty: it is. ranks_apart: ranks
    differ there, and how. more_steps: how many more steps of each optimizer of a script are
    recorded; why_more: what shows in these only. one_step: why no more are recorded; empty: they
    are where something shows in these only.

    whole_buffers: buffers are not sent as the tensors that they are put together of.

    steps_by_hand: on ranks, after how many steps of its own code the single device's script was
    stopped; 0: it was not.
    """

    least: int = 1
    numbers: frozenset[str] = frozenset()
    single: Mapping[str, float] | None = None
    batch: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    permuted: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    loaders: Mapping[Key, Shared] | None = None
    batches_as_read: bool = False
    answers: tuple[tuple[str, bool], ...] = ()
    no_step: bool = False
    requested: Mapping[str, str] = dataclasses.field(default_factory=dict)
    without_rest: str = ""
    ranks_apart: str = ""
    more_steps: int = 0
    why_more: str = ""
    one_step: str = ""
    whole_buffers: bool = False
    steps_by_hand: int | None = None

    def any(self, name: str, b: torch.Tensor, saved: bool, value: Value) -> bool:
        """Whether a buffer that was made with `value` begins with any value."""
        if not may_be_any(b, saved, value) or name in self.numbers:
            return False
        return (
            numel(value.shape) >= self.least
            if self.single is None
            else self.single.get(name) == getattr(value, "fill", None)
        )

    def less(self) -> InitialState | None:
        """With fewer of them; None where there are none any more."""
        return (
            None
            if self.least == _NONE
            else dataclasses.replace(self, least=2 if self.least == 1 else _NONE)
        )

    def without(self, names: Iterable[str]) -> InitialState:
        return dataclasses.replace(self, numbers=self.numbers.union(names))

    def ranks_of(self, axes: Iterable[str]) -> int:
        """How many ranks there are along axes."""
        return math.prod(self.sizes[a] for a in axes)

    def of_ranks(self, single: Mapping[str, float], steps_by_hand: int) -> InitialState:
        return dataclasses.replace(self, single=dict(single), steps_by_hand=steps_by_hand)


def may_be_any(b: torch.Tensor, saved: bool, value: Value) -> bool:
    """Whether a buffer is of those that begin with any value, unless its number is needed."""
    return (
        saved and isinstance(value, Filled) and b.dtype.is_floating_point and 0 not in value.shape
    )
