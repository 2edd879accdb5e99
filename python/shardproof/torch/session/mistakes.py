# SPDX-License-Identifier: Apache-2.0
"""The first sentence of a report on a wrong step: which of the common mistakes it makes.

A defect names the tensor that differs, which may be far from the line that is wrong. The mistakes
that people make most are told by what was recorded (trace/clues.py), by structure and numbers. Each
rule states a fact about the recordings that cannot be true of a right step of that kind: it is not
a guess, though a step may make other mistakes, too. The verdict does not depend on it, and a right
step is never asked.

**The scale of gradients.** Let a loss be a sum, over elements of the batch, of numbers that are
multiplied by c on the single device and by d on a rank. Let the ranks' gradients be added up and
multiplied by g. The rank's gradients are then d * g / c times the single device's. A mean over a
rank's elements has d = n * c for n ranks, and needs g = 1 / n; a sum has d = c, and needs g = 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from ...report import Report
from ..export.model_file import Model
from ..export.parameter_places import fused, places_of_parameters, uses
from ..terms.assumptions import listed
from ..trace.batches import Key, Shared
from ..trace.clues import LossTerm, Reduction
from ..trace.end_of_step import GRADIENTS
from ..trace.printed_numbers import PRINTED
from ..trace.recording import NotKept, Recording
from .summed_copies import line_of, summed_copies


def likely_mistake(
    single: Recording, sides: Sequence[Recording], model: Model, loaders: Mapping[Key, Shared]
) -> str:
    """One sentence on a step that is wrong; empty where it makes none of these mistakes."""
    axes = [
        a
        for a in sides[0].mesh.names
        if sides[0].mesh.sizes[a] > 1 and any(a in s.cuts or a in s.spread for s in sides)
    ]
    ranks = math.prod(sides[0].mesh.sizes[a] for a in axes)
    return (
        _batch_sizes(sides, loaders)
        or _learning_rate(single, sides)
        or _not_reduced(sides, model)
        or (_scale(single, sides[0], axes, ranks) if axes else "")
        or _local_statistics(sides, [a for a in axes if any(a in s.cuts for s in sides)])
        or _not_cleared(single, sides)
        or _cut_as_one(sides[0], model)
        or summed_copies(sides, model)
    )


def only_printed(report: Report) -> str:
    """The sentence where nothing but printed numbers differs, and all else is proved."""
    names = dict.fromkeys(d.tensor for d in report.defects)
    if (
        not names
        or not all(n.startswith(PRINTED) for n in names)
        or report.outputs_proved + len(names) != report.outputs
    ):
        return ""
    return (
        f"{listed(names)} differs, and nothing that is trained: it is reduced to another number "
        "than the single device's, such as a sum that is not divided, or a mean of unequal means"
    )


def _batch_sizes(sides: Sequence[Recording], loaders: Mapping[Key, Shared]) -> str:
    for key, shared in loaders.items():
        sizes = shared.sizes
        means = [
            t
            for side in sides
            for b in side.clues.backwards
            for t in b.terms or ()
            if t.mean and t.rows in sizes
        ]
        # a mean that is weighted by its share of all samples multiplies each as the others do
        apart = len({round(t.of_each * sum(sizes), 9) for t in means}) > 1
        if shared.together and len(set(sizes)) > 1 and apart:
            return (
                f"ranks read batches of {_and(sizes)} samples from the DataLoader at {key}, and "
                f"each takes the mean of its own (at {means[0].loc}): the mean of these means is "
                f"not the mean of all {sum(sizes)}"
            )
    return ""


def _learning_rate(single: Recording, sides: Sequence[Recording]) -> str:
    """In the step, not as a scheduler leaves it."""
    mesh = sides[0].mesh
    counts = {math.prod(mesh.sizes.values()), *mesh.sizes.values()} - {1}
    ours = single.settings_in_step or single.settings
    for name, rate in ours.items():
        if not name.endswith(".lr.new") or not rate:
            continue
        theirs = {(s.settings_in_step or s.settings).get(name) for s in sides}
        there = theirs.pop()
        times = next((n for n in counts if there and math.isclose(there, n * rate)), None)
        if not theirs and times is not None:
            return (
                f"the learning rate is {there:.6g} on the ranks and {rate:.6g} on the single "
                f"device, {times} times as much, which is a number of ranks"
            )
    return ""


def _not_reduced(sides: Sequence[Recording], model: Model) -> str:
    for side in sides:
        for axis, found in side.clues.unreduced.items():
            # of others the rank has a part, as of experts
            names = [n for n, shape in found.items() if model.shapes.get(n) == shape]
            if not names:
                continue
            backwards = side.clues.backwards
            # where others are reduced, by hand, the reason is another one
            if backwards and not backwards[-1].synchronised and not side.clues.reductions:
                return (
                    "the last backward before the optimizer's step (at "
                    f"{line_of(backwards[-1].loc)}) runs without gradient "
                    "synchronisation (no_sync, or "
                    "require_backward_grad_sync = False), so that each rank steps by the gradients "
                    f"of its own samples along {axis}"
                )
            return (
                f"no collective over {axis} reduces the gradients of {listed(names)}: each rank "
                "steps by those of its own samples"
            )
    return ""


def _scale(single: Recording, side: Recording, axes: Sequence[str], ranks: int) -> str:
    if len(single.clues.backwards) != len(side.clues.backwards):
        return ""
    reductions = {}
    for name, found in side.clues.reductions.items():
        if found.axes.issuperset(axes):
            factor = found.factor / single.clues.scales.get(name, 1.0)
            r = dataclasses.replace(found, factor=factor)
            reductions[round(factor * ranks * ranks, 9), r.loc] = r
    if len({factor for factor, _ in reductions}) != 1:
        return ""
    reduction = next(iter(reductions.values()))
    sentences = []
    for here, there in zip(single.clues.backwards, side.clues.backwards):
        if not here.terms or not there.terms or len(here.terms) != len(there.terms):
            return ""
        at = listed(dict.fromkeys(line_of(term.loc) for term in there.terms))
        sentences += [
            _scale_of(c, d, at, reduction, axes, ranks) for c, d in zip(here.terms, there.terms)
        ]
    return sentences[0] if all(s == sentences[0] for s in sentences) else ""


def _scale_of(
    whole: LossTerm,
    part: LossTerm,
    at: str,
    reduction: Reduction,
    axes: Sequence[str],
    ranks: int,
) -> str:
    """at: where the loss's terms are computed."""
    if whole.count != ranks * part.count or whole.mean != part.mean or not whole.of_each:
        return ""
    g, times = reduction.factor, part.of_each / whole.of_each
    if math.isclose(times * g, 1):
        return ""
    over = ", ".join(axes)
    result = f"they are {_number(times * g)} times what they are on the single device"
    averaged = math.isclose(g, 1 / ranks)
    if math.isclose(times, 1) and averaged:
        divided = [f for f in part.factors if f not in whole.factors] or list(part.factors)
        if part.mean:
            where = line_of(divided[0]) if divided else at
            return (
                f"the loss is divided by the number of ranks ({ranks}) at {where}, and so are the "
                f"gradients, which are averaged over {over}: {result}"
            )
        if _is_multiple(1 / abs(whole.factor), whole.rows) and divided:
            return (
                f"the loss at {at} is divided by the size of the whole batch (at "
                f"{line_of(divided[0])}), and the gradients are averaged over {over} beside that: "
                f"{result}"
            )
        return (
            f"the loss at {at} is a sum over samples, and the gradients are averaged over {over}: "
            f"{result} (a sum needs gradients that are added up, or the loss has to be a mean)"
        )
    if math.isclose(times, ranks) and math.isclose(g, 1):
        return (
            f"the gradients are added up over {over} at {line_of(reduction.loc)} and not divided "
            f"by the number of ranks ({ranks}), while the loss at {at} is a mean over a rank's own "
            f"samples: {result}"
        )
    if math.isclose(times, ranks) and math.isclose(g, 1 / ranks**2):
        return (
            f"the gradients are divided by the number of ranks ({ranks}) twice, at "
            f"{line_of(reduction.loc)}: {result}"
        )
    needed = Fraction(1, ranks) if part.mean else Fraction(1)
    multiplied = times * float(needed)  # the loss, beside what the single device's is
    own = [f for f in part.factors if f not in whole.factors] or list(part.factors)
    if not math.isclose(multiplied, 1) and math.isclose(g, needed) and own:
        return (
            f"the loss at {at} is multiplied by {_number(multiplied)} at {line_of(own[0])}, beside "
            f"what the single device's is: {result}"
        )
    if math.isclose(multiplied, 1):
        return (
            f"the gradients are {_number(g)} times the sum over {over}, from their reduction at "
            f"{line_of(reduction.loc)} on. The loss at {at} is a {'mean' if part.mean else 'sum'} "
            f"over a rank's own samples, which needs {needed}: {result}"
        )
    return ""


def _local_statistics(sides: Sequence[Recording], axes: Sequence[str]) -> str:
    found = {name: loc for side in sides for name, loc in side.clues.local_statistics.items()}
    if not found or not axes:
        return ""
    which = "BatchNorm" + (f" {listed(found)}" if any(found) else "")
    return (
        f"{which} (at {line_of(next(iter(found.values())))}) takes mean and variance of each "
        f"rank's own samples, not of the batch that {', '.join(axes)} cuts: SyncBatchNorm takes "
        "those of all (torch.nn.SyncBatchNorm.convert_sync_batchnorm)"
    )


def _not_cleared(single: Recording, sides: Sequence[Recording]) -> str:
    left = single.shown_later.get(GRADIENTS)
    if not left or single.steps == 1 or not any(s.clues.reductions for s in sides):
        return ""
    return (
        f"no zero_grad clears the gradients of {listed(left)} between steps: each step adds to "
        "those that the step before left, and on ranks these are reduced once more"
    )


def _cut_as_one(side: Recording, model: Model) -> str:
    """Fused weights of which a rank has one part, which it takes for a part of each."""
    try:
        whole = side.whole()
    except NotKept:
        return ""
    here, there = uses(whole, model)
    placed = places_of_parameters(whole, model, side.mesh.coordinates(side.rank))
    for tracked in whole.tracked:
        name, p = tracked.name, tracked.placement
        known = placed.get(name)
        if (
            tracked.role != "input"
            or p.parameter != name
            or name not in model.shapes
            or p.stretches
            or known is not None
            and known.stretches
            or (found := fused(tracked, model, here, there)) is None
        ):
            continue
        n = len(found.models)
        sizes = (", ".join(map(str, parts)) for parts in (found.models, found.ours))
        return (
            f"{name} is {n} weights in one: the single device splits its dimension {found.dim} "
            f"into {next(sizes)}. A rank has one piece of that dimension, and splits the piece "
            f"into {next(sizes)}. It needs its part of each of the {n}"
        )
    return ""


def _and(numbers: Sequence[int]) -> str:
    texts = [str(n) for n in numbers]
    return ", ".join(texts[:-1]) + f" and {texts[-1]}"


def _number(x: float) -> str:
    near = Fraction(x).limit_denominator(1 << 12)
    return str(near) if math.isclose(float(near), x, rel_tol=1e-9) else f"{x:.6g}"


def _is_multiple(x: float, n: int) -> bool:
    return n > 1 and x >= n - 0.5 and math.isclose(x / n, round(x / n))


__all__ = ["likely_mistake", "only_printed"]
