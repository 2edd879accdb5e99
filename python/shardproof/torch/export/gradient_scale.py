# SPDX-License-Identifier: Apache-2.0
"""How many times the model's a rank's gradients are before they are reduced.

Let a loss multiply each element of the batch by c on the single device and by d on a rank, as the
mean of n elements multiplies each by 1 / n. As long as nothing else scales them, the rank's
gradients of activations are then d / c times the model's: the number of ranks where each takes the
mean of its own samples, the number of microbatches where a pipeline's schedule scales parameters'
gradients at the end.

Cut points that are placed so are lemmas, which are proved before they are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..trace.clues import Clues, LossTerm
from ..trace.recording import Recording


def gradient_scale(single: Recording, sides: Sequence[Recording]) -> int | None:
    """The number; None where losses do not show it, or it is no whole one.

    A rank's loss has to be of its own samples. If each computes the loss of all samples (of
    gathered features), its gradient goes through communication, which may add up those of others.
    """
    mesh = sides[0].mesh
    cut = math.prod(mesh.sizes[a] for a in mesh.names if any(a in side.cuts for side in sides))
    whole = _terms(single.clues)
    found = [terms for side in sides if (terms := _terms(side.clues)) is not None]
    if whole is None or not found or any(len(terms) != len(whole) for terms in found):
        return None
    pairs = [(d, c) for terms in found for d, c in zip(terms, whole)]
    if not all(c.of_each and c.count % (cut * d.count) == 0 for d, c in pairs):
        return None
    ratios = [d.of_each / c.of_each for d, c in pairs]
    scale = round(ratios[0])
    return scale if scale > 0 and all(math.isclose(r, scale) for r in ratios) else None


def _terms(clues: Clues) -> tuple[LossTerm, ...] | None:
    """The terms of the loss, if each multiplies its elements by the same number in all backwards.

    Backwards of which the loss is not known are those of a pipeline's other stages.
    """
    known = [b.terms for b in clues.backwards if b.terms is not None]
    if not known:
        return None
    for terms in known[1:]:
        if len(terms) != len(known[0]) or not all(
            math.isclose(t.of_each, first.of_each) for t, first in zip(terms, known[0])
        ):
            return None
    return known[0]


__all__ = ["gradient_scale"]
