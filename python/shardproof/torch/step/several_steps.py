# SPDX-License-Identifier: Apache-2.0
"""Several training steps as one program: a step function that yields each step's result.

What the last step leaves (gradients, parameters, states) is claimed at the end. Each result is
claimed as it was when it was yielded: `loss`, `loss 2`, and so on.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def each(result: Any, keep: Callable[[Any, int], None]) -> Any:
    """What a step function returned. Of a generator each result goes to `keep`, with its number."""
    if not inspect.isgenerator(result):
        return result
    for number, one in enumerate(result, 1):
        keep(one, number)
    return None


def numbered(label: str, number: int) -> str:
    """The name of a result of that step."""
    return label if number == 1 else f"{label} {number}"


def first_of(step: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A step function that yields, ended after so many results."""

    @functools.wraps(step)
    def several(world: Any) -> Any:
        results = step(world)
        if not inspect.isgenerator(results):
            raise TypeError(
                f"steps={count}: the step function returns one result; to have several "
                "steps verified it has to yield each step's result"
            )
        taken = 0
        for taken, result in zip(range(1, count + 1), results):  # noqa: B007
            yield result
        results.close()
        if taken < count:
            raise ValueError(f"steps={count}: the step function yields {taken} results only")

    return several
