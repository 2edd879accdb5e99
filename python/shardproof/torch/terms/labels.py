# SPDX-License-Identifier: Apache-2.0
"""Labels that may be ignored: which labels are is data.

A loss leaves out labels that equal its `ignore_index` (-100 by default), and divides by the number
of the others. Ranks have different numbers of them, so the mean of the ranks' means is not the mean
of all: the best-known bug of fine-tuning. So an integer input that meets such a loss, or that is
compared with a number below 0, is a class or ignored. It is recorded once more as `Replaced`: its
classes where it is one, `ignore_index` elsewhere. In the files it is an integer with one more
value, the number of classes, which stands for `ignore_index`.

This does not apply where the program itself shows that labels are classes: they also index a table
(tokens), they were drawn (`torch.randint`), they are constants, or `world.input` got `high=` and
nothing in the program names an ignored label.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.nn.functional as F

from ..compat.private import changes, current_node, replace_everywhere
from ..compat.user_code import short_name
from . import arithmetic as ar
from . import tables
from .graph import Graph
from .values import Named, Replaced, Table, Value

DEFAULT = -100  # torch's ignore_index


class Names(enum.IntEnum):
    """Who names an ignored label."""

    NOBODY = 0  # it is the default of a loss
    LIBRARY = 1  # an installed package
    PROGRAM = 2  # the program itself


@dataclasses.dataclass(frozen=True)
class Met:
    """Where labels met the number that ignores them.

    by_loss: a loss has it; else a comparison. window: only comparisons with 0.
    """

    ignore: int
    loc: str
    names: Names
    by_loss: bool
    window: bool = False


def _who() -> Names:
    """Whose call of torch this is."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if _user_file(file):
            return (
                Names.LIBRARY
                if "site-packages" in file or "dist-packages" in file
                else Names.PROGRAM
            )
        frame = frame.f_back
    return Names.NOBODY


def _user_file(file: str) -> bool:
    return short_name(file) is not None


@contextlib.contextmanager
def ignored_labels_named(g: Graph) -> Iterator[None]:
    """Losses that are called with an `ignore_index` of the caller's are known inside."""

    def naming(f: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            frame: Any = sys._getframe(1)
            named = ("ignore_index" in kwargs or len(args) > 4) and _user_file(
                frame.f_code.co_filename
            )
            before = g.integers.label_names
            g.integers.label_names = (
                _who() if named else before if before is not None else Names.NOBODY
            )
            try:
                return f(*args, **kwargs)
            finally:
                g.integers.label_names = before

        call.__name__, call.__wrapped__ = f.__name__, f  # type: ignore[attr-defined]
        return call

    with changes() as undo:
        replace_everywhere([(f, naming(f)) for f in (F.cross_entropy, F.nll_loss)], undo)
        yield


def note(g: Graph, labels: Value, ignore: int, by_loss: bool = True, window: bool = False) -> None:
    """Labels meet a number that ignores them.

    window: in a comparison with 0. With a comparison with the end of a rank's part of a vocabulary
    (`bounded`), that selects the labels of this part.
    """
    source = labels.source if isinstance(labels, Table) else labels
    of = g.integers.origins_of(source) if isinstance(source, Named) else None
    for origin in of.origins if of is not None else ():
        if (
            origin.startswith("%")
            or origin in g.integers.ignorable
            or 0 <= ignore < g.integers.ranges.get(origin, 0)
        ):
            continue  # drawn, known already, or a class like others
        names = g.integers.label_names
        if names is None:  # outside of a loss
            names = _who() if not by_loss and current_node() is None else Names.NOBODY
        if origin in g.integers.negative:
            names = max(Names)  # the data
        if ignore != DEFAULT and by_loss:
            names = max(names, Names.LIBRARY)
        if by_loss and origin in g.integers.observed:
            names = min(names, Names.LIBRARY)  # none of those that were read is ignored
        met = Met(ignore, g.loc, Names(names), by_loss, window)
        before = g.integers.labelled.get(origin)
        if before is not None:
            first = met if by_loss and not before.by_loss else before
            met = dataclasses.replace(
                first, names=max(met.names, before.names), window=met.window and before.window
            )
        g.integers.labelled[origin] = met


def bounded(g: Graph, labels: Named) -> None:
    """Labels are compared with a number above 0."""
    of = g.integers.origins_of(labels)
    g.integers.bounded.update(of.origins if of is not None else ())


def may_be_ignored(g: Graph, valid: Names | None) -> dict[str, Met]:
    """The inputs of the single device that are classes or ignored.

    valid: None, or the highest rank of names that counts for nothing: these labels are classes.
    """
    known = {**g.integers.ranges, **g.integers.chosen_from}
    return {
        name: met
        for name, met in g.integers.labelled.items()
        if name in known
        and name not in g.integers.indexing
        and not (met.window and name in g.integers.bounded)
        and (met.names > Names.NOBODY or name not in g.integers.ranges)
        and (valid is None or met.names > valid)
    }


def input_of(g: Graph, name: str, classes: Named) -> Value:
    """What an integer input holds."""
    if name not in g.integers.ignorable or name not in g.integers.classes:
        return classes
    n = g.integers.classes[name]
    ignored = ar.reduce(g, "sum", tables.one_hot(g, classes, n, n + 1), [-1])
    return Replaced(classes, ar.binary(g, "sub", 1, ignored), g.integers.ignorable[name])


Ignorable = Mapping[str, int]  # integer inputs that are classes or this number
