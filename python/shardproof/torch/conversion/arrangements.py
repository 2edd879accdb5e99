# SPDX-License-Identifier: Apache-2.0
"""What a conversion between two implementations of a model does to its tensors, in both directions.

The conversion runs once on symbolic tensors (symbolic.py), as for verify_conversion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ..terms.assumptions import listed
from .identities import base_of
from .rearrangement import NotRegular, Rearrangement, rearrangement
from .state_dicts import SymbolicSource, leaves
from .symbolic import ConversionError, Session

Convert = Callable[[dict[str, torch.Tensor]], Any]
MOST_NAMES = 8  # in a message


def called(convert: Convert) -> str:
    """What messages call a conversion."""
    return str(getattr(convert, "__name__", "convert"))


@dataclasses.dataclass(frozen=True)
class Arrangements:
    """targets: how each tensor of the target is made of the source's. sources: how each tensor of
    the source is made of the target's. shapes: of the tensors of both. same: further names of
    tensors of the target that are one, and the first name.
    """

    targets: dict[str, Rearrangement]
    sources: dict[str, Rearrangement]
    shapes: dict[str, tuple[int, ...]]
    same: dict[str, str]

    def renamed(self, target: str) -> str | None:
        """The tensor of the source that the target's is, element by element; None if it is no
        whole one.
        """
        return self.targets[target].renames(self.shapes)


def arrangements(
    convert: Convert,
    source: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    tied: Mapping[str, str],
    optional: Collection[str] = (),
) -> Arrangements:
    """The arrangements of a conversion that moves each element to one place.

    source: shape and dtype of the tensors that it is given, by name. tied: further names, each
    with the name of the tensor that it is. optional: of tensors that the target may lack. Casts
    are left out of account, as they are in a step.

    Raises ConversionError if it does something else than move elements, or not all of them.
    """
    session = Session()
    tensors = {
        name: torch.empty(shape, dtype=dtype, device="meta")
        for name, (shape, dtype) in source.items()
    }
    tensors |= {name: tensors[first] for name, first in tied.items()}
    symbolic = SymbolicSource(session, tensors, ())
    name = called(convert)
    with session.active(specifying=False):
        try:
            given = convert(symbolic.copy())
        except ConversionError:
            raise
        except Exception as e:
            raise ConversionError(
                f"{name} raised {type(e).__name__}: {e}; the tensors of the single device are "
                f"{listed(tensors, MOST_NAMES)}"
            ) from e
        if not isinstance(given, Mapping):
            raise ConversionError(
                f"{name} returned a {type(given).__name__}, expected a dictionary with the ranks' "
                "parameters: {name: tensor}"
            )
        made = leaves(given, "target")
    numbers = {s.name: s.identities for s in session.identities.sources if s.name in source}
    places = _places(session, name, made)
    same = _same(places)
    _check_uses(session, name, numbers, [at for t, at in places.items() if t not in same], optional)
    targets = {t: _of(name, t, at, numbers) for t, at in places.items()}
    of_targets: dict[str, dict[str, torch.Tensor]] = {}
    for t, found in targets.items():
        for s in found.sources() if t not in same else ():
            of_targets.setdefault(s, {})[t] = places[t]
    return Arrangements(
        targets,
        {s: _of(name, s, numbers[s], others) for s, others in of_targets.items()},
        {n: tuple(at.shape) for n, at in (*numbers.items(), *places.items())},
        same,
    )


def _same(places: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Further names of tensors that have the same elements in the same places."""
    found: dict[str, str] = {}
    firsts: dict[tuple[Any, int], list[str]] = {}
    for name, at in places.items():
        alike = firsts.setdefault((at.shape, int(at.reshape(-1)[0])), [])
        first = next((other for other in alike if torch.equal(places[other], at)), None)
        if first is None:
            alike.append(name)
        else:
            found[name] = first
    return found


def _places(session: Session, name: str, made: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for target, x in made.items():
        if not isinstance(x, torch.Tensor) or not x.numel():
            continue
        at = base_of(session.held(target, x))
        wrong = at >= session.identities.elements
        if bool(wrong.any()):
            index = wrong.nonzero()[0]
            raise ConversionError(
                f"{name}: {target}{index.tolist()} holds "
                f"{session.identities.describe(int(at[tuple(index)]))}: each element of a "
                "parameter of the step has to be an element of one of the single device's"
            )
        found[target] = at
    if not found:
        raise ConversionError(f"{name} returned no tensors")
    return found


def _check_uses(
    session: Session,
    name: str,
    numbers: Mapping[str, torch.Tensor],
    places: Sequence[torch.Tensor],
    optional: Collection[str],
) -> None:
    """Each element is in one place."""
    counts = session.identities.uses([*places])
    for source, at in numbers.items():
        times = counts[at]
        if source in optional and not bool(times.any()):
            continue
        if bool((times == 1).all()):
            continue
        index = (times != 1).nonzero()[0]
        count = int(times[tuple(index)])
        raise ConversionError(
            f"{name}: {source}{index.tolist()} of the single device is in "
            f"{'no tensor' if count == 0 else f'{count} places'} of the target, and has to be in "
            "one"
        )


def _of(
    name: str, tensor: str, places: torch.Tensor, others: Mapping[str, torch.Tensor]
) -> Rearrangement:
    """How a tensor is made of those of the others that have elements of it."""
    low, high = int(places.min()), int(places.max())
    near = {n: at for n, at in others.items() if int(at.min()) <= high and int(at.max()) >= low}
    try:
        return rearrangement(places, near)
    except NotRegular:
        raise ConversionError(
            f"{name}: the elements of {tensor} are in no regular order, of which slices, "
            "permutations and concatenations could be found"
        ) from None


__all__ = ["Arrangements", "Convert", "arrangements", "called"]
