# SPDX-License-Identifier: Apache-2.0
"""Does every element of the target hold the right element of the source?"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .identities import ANYTHING, RANDOM, UNINITIALIZED, keeps_values, name_of
from .state_dicts import SymbolicSource, leaves
from .symbolic import ConversionError, Session, running

_SHOWN = 5  # differences in the text


@dataclasses.dataclass
class Difference:
    """One thing that is wrong.

    kind: "element", "shape", "dtype", "missing", "extra", "path", "value", "unused" or "duplicate".
    name:
    the tensor of the target; of the source for "unused" and "duplicate". index: the first wrong
    element's, row-major; () for a difference of a whole tensor. holds, should_hold: in words.
    count: how many elements of this tensor.
    """

    kind: str
    name: str
    index: tuple[int, ...]
    holds: str
    should_hold: str
    count: int

    def __str__(self) -> str:
        at = str(list(self.index)) if self.kind in ("element", "unused", "duplicate") else ""
        more = f" ({self.count:,} elements of this tensor)" if self.count > 1 else ""
        if self.kind == "unused":
            return f"no element of the target holds {self.name}{at} of the source{more}"
        if self.kind == "duplicate":
            return f"{self.name}{at} of the source is held more than once: {self.holds}{more}"
        if self.kind == "missing":
            return f"{self.name} is missing from the target"
        if self.kind == "extra":
            return f"{self.name} is in the target, but not in its specification"
        return f"{self.name}{at} holds {self.holds}, but should hold {self.should_hold}{more}"


@dataclasses.dataclass
class ConversionReport:
    """The result of verify_conversion. Its truth value is whether the conversion is right.

    verdict: EQUIVALENT or NOT EQUIVALENT. differences: all of them, the first in the order of the
    specification first. elements: how many elements of the target are proved. unspecified: how many
    are not compared because the specification leaves them open. not_compared: names of the target
    that were ignored. assumptions: in words.
    """

    verdict: str
    differences: list[Difference]
    elements: int
    tensors: int
    unspecified: int
    replicated: list[str]
    unused: list[str]
    not_compared: list[str]
    assumptions: list[str]
    name: str

    @property
    def equivalent(self) -> bool:
        return self.verdict == "EQUIVALENT"

    def __bool__(self) -> bool:
        return self.equivalent

    @property
    def text(self) -> str:
        if self.equivalent:
            head = (
                f"EQUIVALENT: {self.name} puts the right element of the source into each of "
                f"{self.elements:,} elements of {self.tensors:,} tensor"
                f"{'s' * (self.tensors != 1)}, for every checkpoint of these shapes"
            )
        else:
            n = len(self.differences)
            head = f"NOT EQUIVALENT: {self.name} is wrong in {n:,} place{'s' if n > 1 else ''}"
        lines = [head, *(f"  {d}" for d in self.differences[:_SHOWN])]
        if len(self.differences) > _SHOWN:
            lines.append(f"  and {len(self.differences) - _SHOWN:,} more")
        for title, found in (
            ("Held more than once, as declared", self.replicated),
            ("Held nowhere, as declared", self.unused),
            ("Not compared", self.not_compared),
            ("Assumed", self.assumptions),
        ):
            if found:
                lines += [f"{title}:", *(f"  {x}" for x in found)]
        if self.unspecified:
            lines.append(f"Left open by the specification: {self.unspecified:,} elements")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text


def verify_conversion(
    convert: Callable[[Any], Any],
    *,
    source: Any,
    target: Callable[[Any], Any] | Mapping[str, Any] | Sequence[Any],
    dtype: torch.dtype | None = None,
    tied: Iterable[Iterable[str]] = (),
    replicated: Iterable[str] = (),
    unused: Iterable[str] = (),
    ignore: Iterable[str] = (),
    arithmetic: Iterable[str] = (),
) -> ConversionReport:
    """Proves that a function puts the right element of its source into each element of its target.

    convert: from a source like the given one to the target. It runs once, on symbolic tensors. It
    is verified for all checkpoints with the source's names, shapes, dtypes, and values that are no
    tensors, provided that a run of it depends on nothing else.
    source, target: dictionaries and lists, nested in any way. A value is named by its keys, joined
    by slashes. Only shapes, strides, dtypes and shared memory of the source's tensors are used, so
    they may be on the meta device; the symbolic tensors are on the CPU. Values that are no tensors
    are copied for each function. The target's specification is a function of the source, or has a
    leaf for each leaf of the target: the name of a source tensor, a function of the source that
    returns a tensor, or a value. Specifications are written with PyTorch's operators, and may have
    `unspecified()` elements.
    dtype: floating-point tensors of the specification are cast to it.
    tied: groups of names of source tensors that hold equal numbers (assumed).
    replicated, unused, ignore: patterns (as of fnmatch) of source tensors of which elements may be
    held more than once, or not at all, and of names of the target that are not compared. All other
    elements of the source have to be held exactly once.
    arithmetic: elementwise ATen operators ("add", "neg") that may compute with elements. Equal
    operators on equal elements, of equal dtypes, are equal; nothing else is known of them.

    Raises ConversionError if the conversion or the specification does what cannot be followed, as
    reading the value of an element of the source, and if a pattern, a name or the specification is
    wrong. What convert itself raises is passed on.
    """
    if running():
        raise ConversionError("a conversion is being verified already")
    operators = _operators(arithmetic)
    tied = [[*group] for group in tied]
    session = Session(operators)
    symbolic = SymbolicSource(session, source, tied)
    with session.active(specifying=True):
        expected, should_be_at = _specification(symbolic, target, dtype)
    expected = {name: _leaf(session, name, x, True) for name, x in expected.items()}
    given = symbolic.copy()
    with session.active(specifying=False):
        converted = convert(given)
        is_at: dict[str, str] = {}
        converted = leaves(converted, "target", is_at)
    actual = {name: _leaf(session, name, x, False) for name, x in converted.items()}
    comparison = _Comparison(session, symbolic, [*replicated], [*unused], [*ignore])
    comparison.paths = (is_at, should_be_at)
    return comparison.report(expected, actual, getattr(convert, "__name__", "the conversion"), tied)


# Elementwise operators without a state. What they compute is not looked at.
_ELEMENTWISE = (
    *("abs", "add", "atan2", "clamp", "cos", "div", "exp", "expm1", "log", "log1p", "maximum"),
    *("minimum", "mul", "neg", "pow", "reciprocal", "rsqrt", "rsub", "sigmoid", "sin", "softplus"),
    *("sqrt", "sub", "tanh"),
)


def _operators(names: Iterable[str]) -> list[str]:
    found = [names] if isinstance(names, str) else [*names]
    if wrong := [n for n in found if n not in _ELEMENTWISE]:
        raise ConversionError(
            f"arithmetic: {wrong[0]!r} is not among {', '.join(sorted(_ELEMENTWISE))}"
        )
    return found


def _specification(
    symbolic: SymbolicSource, target: Any, dtype: torch.dtype | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Name to value, and to path. What one function does to its source does not reach another's."""
    paths: dict[str, str] = {}
    if callable(target):
        found = leaves(target(symbolic.copy()), "specification", paths)
    else:
        found = {}
        tensors: dict[str, Any] = leaves(symbolic.copy(), "source")
        for name, leaf in leaves(target, "specification", paths).items():
            if isinstance(leaf, str):
                if leaf not in tensors:
                    raise ConversionError(f"target {name!r}: the source has no {leaf!r}")
                found[name] = tensors[leaf]
            else:
                value = leaf(symbolic.lent()) if callable(leaf) else leaf
                found[name] = value.clone() if isinstance(value, torch.Tensor) else value
    if not any(isinstance(x, torch.Tensor) for x in found.values()):
        raise ConversionError("the specification has no tensors")
    if dtype is not None:
        for name, x in found.items():
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                found[name] = x.to(dtype)
    return found, paths


def _leaf(session: Session, name: str, x: Any, specifying: bool) -> Any:
    """A tensor's identities and dtype, now; any other value as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    session.specifying = specifying
    identities = session.held(name, x)
    if specifying and bool(((identities == UNINITIALIZED) | (identities == RANDOM)).any()):
        raise ConversionError(
            f"target {name!r}: the specification has elements of no definite value; write "
            "unspecified() for elements that are not compared"
        )
    return _Tensor(identities, x.dtype)


@dataclasses.dataclass
class _Tensor:
    identities: torch.Tensor
    dtype: torch.dtype


class _Comparison:
    def __init__(
        self,
        session: Session,
        symbolic: SymbolicSource,
        replicated: list[str],
        unused: list[str],
        ignore: list[str],
    ) -> None:
        self.session = session
        self.symbolic = symbolic
        self.replicated = replicated
        self.unused = unused
        self.ignore = ignore
        self.differences: list[Difference] = []
        self.elements = 0
        self.tensors = 0
        self.open = 0
        self.held: list[torch.Tensor] = []
        self.paths: tuple[dict[str, str], dict[str, str]] = ({}, {})  # of the target, as it should

    def report(
        self,
        expected: dict[str, Any],
        actual: dict[str, Any],
        name: str,
        tied: Iterable[Iterable[str]],
    ) -> ConversionReport:
        for what, patterns, names in (
            ("replicated", self.replicated, self.symbolic.tensors),
            ("unused", self.unused, self.symbolic.tensors),
            ("ignore", self.ignore, expected | actual),
        ):
            for pattern in patterns:
                if not any(fnmatch.fnmatchcase(n, pattern) for n in names):
                    raise ConversionError(f"{what}: nothing is called {pattern!r}")
        ignored = [n for n in dict.fromkeys([*expected, *actual]) if _any(n, self.ignore)]
        for leaf, should in expected.items():
            if leaf in ignored:
                continue
            if leaf not in actual:
                self._add("missing", leaf)
            else:
                words = [f"a value under {paths.get(leaf)}" for paths in self.paths]
                if words[0] != words[1]:
                    self._add("path", leaf, (), words)
                self._compare(leaf, actual[leaf], should)
        for leaf in actual:
            if leaf not in expected and leaf not in ignored:
                self._add("extra", leaf)
        replicated, unused = self._uses()
        if not self.elements and not self.differences:
            raise ConversionError("nothing is compared")
        return ConversionReport(
            "NOT EQUIVALENT" if self.differences else "EQUIVALENT",
            self.differences,
            self.elements,
            self.tensors,
            self.open,
            replicated,
            unused,
            ignored,
            [f"{' and '.join(group)} hold equal numbers" for group in tied],
            name,
        )

    def _add(
        self,
        kind: str,
        name: str,
        index: Iterable[int] = (),
        words: Sequence[str] = ("", ""),
        count: int = 1,
    ) -> None:
        """words: what the element holds, and what it should hold."""
        self.differences.append(Difference(kind, name, tuple(index), words[0], words[1], count))

    def _compare(self, name: str, actual: Any, should: Any) -> None:
        if not isinstance(actual, _Tensor) or not isinstance(should, _Tensor):
            # `True == 1` and `1 == 1.0`: a type that differs is a difference
            if type(actual) is not type(should) or not _equal(actual, should):
                words = [
                    "a tensor" if isinstance(x, _Tensor) else repr(x) for x in (actual, should)
                ]
                self._add("value", name, (), words)
            return
        if actual.identities.shape != should.identities.shape:
            shapes = [f"shape {list(x.identities.shape)}" for x in (actual, should)]
            self._add("shape", name, (), shapes)
            return
        if actual.dtype != should.dtype:
            words = [f"dtype {name_of(x.dtype)}" for x in (actual, should)]
            if not keeps_values(should.dtype, actual.dtype):
                words[0] += ", which rounds"
            self._add("dtype", name, (), words)
        compared = should.identities != ANYTHING
        undefined = (actual.identities >= UNINITIALIZED) & (actual.identities <= ANYTHING)
        wrong = compared & ((actual.identities != should.identities) | undefined)
        self.open += int((~compared).sum())
        self.held.append(actual.identities[compared])
        self.tensors += 1
        count = int(wrong.sum())
        self.elements += int(compared.sum()) - count
        if count:
            index = wrong.nonzero()[0]
            words = [
                self.session.identities.describe(int(x.identities[tuple(index)]))
                for x in (actual, should)
            ]
            self._add("element", name, index.tolist(), words, count)

    def _uses(self) -> tuple[list[str], list[str]]:
        """Differences for elements of the source that are held twice or never; the declared ones
        in words."""
        identities = self.session.identities
        counts = identities.uses(self.held)
        declared: tuple[list[str], list[str]] = ([], [])
        for i, (kind, patterns) in enumerate(
            (("duplicate", self.replicated), ("unused", self.unused))
        ):
            found = counts > 1 if i == 0 else counts == 0
            # Tensors that share elements: if one of them is declared, the elements are.
            for source in sorted(identities.sources, key=lambda s: not _any(s.name, patterns)):
                hit = found[source.identities]
                count = int(hit.sum())
                if not count:
                    continue
                found[source.identities] = False  # reported once
                if _any(source.name, patterns):
                    whole = "" if count == hit.numel() else f" ({count:,} elements)"
                    declared[i].append(f"{source.name}{whole}")
                    continue
                index = hit.nonzero()[0]
                times = int(counts[source.identities[tuple(index)]])
                words = (f"{times} times" if i == 0 else "", "")
                self._add(kind, source.name, index.tolist(), words, count)
        return declared


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def _equal(a: Any, b: Any) -> bool:
    try:
        if hasattr(a, "dtype") and hasattr(a, "shape"):  # an array of numpy
            return bool(a.dtype == b.dtype and a.shape == b.shape and (a == b).all())
        if a is not b and not any("__eq__" in c.__dict__ for c in type(a).__mro__[:-1]):
            # The two functions had copies of their own. Objects without attributes are not equal.
            return bool(vars(a)) and bool(vars(a) == vars(b))
        return bool(a == b)
    except Exception:
        return False
