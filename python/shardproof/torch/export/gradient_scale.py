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

from ..trace.clues import Clues
from ..trace.recording import Recording


def gradient_scale(single: Recording, sides: Sequence[Recording]) -> int | None:
    """The number; None where losses do not show it, or it is no whole one."""
    whole = _of_each(single.clues)
    found = [ours for side in sides if (ours := _of_each(side.clues)) is not None]
    if whole is None or not found:
        return None
    ratios = [d / c for ours in found for d, c in zip(ours, whole) if c]
    if any(len(ours) != len(whole) for ours in found) or len(ratios) != len(found) * len(whole):
        return None
    if not all(math.isclose(r, ratios[0], rel_tol=1e-9) for r in ratios):
        return None
    scale = round(ratios[0])
    return scale if scale > 0 and math.isclose(scale, ratios[0], rel_tol=1e-9) else None


def _of_each(clues: Clues) -> list[float] | None:
    """What each term of the loss multiplies its elements by, the same in all backwards.

    Backwards of which the loss is not known are those of a pipeline's other stages.
    """
    known = [b.terms for b in clues.backwards if b.terms is not None]
    if not known:
        return None
    first = [t.of_each for t in known[0]]
    for terms in known[1:]:
        others = [t.of_each for t in terms]
        if len(others) != len(first) or not all(map(math.isclose, others, first)):
            return None
    return first


__all__ = ["gradient_scale"]
