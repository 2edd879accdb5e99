# SPDX-License-Identifier: Apache-2.0
"""Where a value may be no number.

That is from infinities of masked scores, functions of which nothing is known, and what other ranks
send.
"""

from __future__ import annotations

from typing import Any

from ...operators import WithTrait
from . import assumptions
from .nodes import Node, Nodes
from .signs import never_negative
from .values import Filled, Hidden, Known, Named, Pick, Replaced, Table, Unsupported, Value

# A number where an operand is minus infinity; of a row of nothing else it is no number at all.
_FINITE = WithTrait("finite")

# Results are numbers where operands are.
_TOTAL = WithTrait("total")


def _is_total(node: Node) -> bool:
    op, attrs = node["op"], node.get("attrs", {})
    return (
        op in _TOTAL
        or op == "div"
        and len(node["in"]) == 1
        or op == "pow"
        and attrs.get("scalar", -1) in (1, 2, 3, 4)
        or op in ("layer_norm", "rms_norm")
        and attrs.get("eps", 0) > 0
    )


class Definedness:
    """What is known of the tensors of one side, by name.

    opaque: results of functions of which nothing is known.
    hiding: tensors in which there may be minus infinities.
    closed: tensors that depend on rows of scores of which all are masked.
    masked_by_data: tensors that depend on a softmax of scores that data masks.
    brought: tensors that depend on what other ranks have.
    gives_hiding: where the first tensor of `hiding` is given to other ranks.
    relies_on_brought: where a tensor of `brought` is first taken to have no infinities.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.opaque: set[str] = set()
        self.hiding: set[str] = set()
        self.closed: set[str] = set()
        self.masked_by_data: set[str] = set()
        self.brought: set[str] = set()
        self.gives_hiding = ""
        self.relies_on_brought = ""
        self._has_value: dict[str, bool] = {}

    def forget(self) -> None:
        for names in (
            self.opaque,
            self.hiding,
            self.closed,
            self.masked_by_data,
            self.brought,
            self._has_value,
        ):
            names.clear()

    def note(self, node: Node, communicates: bool) -> None:
        """Follows infinities through a new node."""
        made = [name for name in node["out"] if name is not None]
        for names in (self.closed, self.masked_by_data):
            if not names.isdisjoint(node["in"]):
                names.update(made)
        hides = not self.hiding.isdisjoint(node["in"])
        if communicates and hides:
            self.gives_hiding = self.gives_hiding or self._nodes.loc or node["op"]
        if node["op"] in _FINITE:
            return
        if hides or node["op"] == "apply_mask":
            self.hiding.update(made)
        if communicates or not self.brought.isdisjoint(node["in"]):
            self.brought.update(made)

    def has_a_value(self, v: Value) -> bool:
        """Whether the nodes show at once that each element is a number, whatever the inputs are."""
        if isinstance(v, (Hidden, Table, Pick, Replaced, Filled)):
            return True
        if isinstance(v, Known):
            return not v.data.is_floating_point() or not bool(v.data.isnan().any())
        return isinstance(v, Named) and self._total(v.name)

    def _total(self, name: str) -> bool:
        todo = [name]
        while todo:
            at = todo[-1]
            if at in self._has_value:
                todo.pop()
                continue
            node = self._nodes.producer(at)
            if at in self.opaque or at in self.hiding or at in self.closed:
                self._has_value[at] = False
            elif node is None:
                self._has_value[at] = True
            else:
                plain = _is_total(node) or self._of_what_is_not_negative(node)
                missing = (
                    [n for n in node["in"] if n is not None and n not in self._has_value]
                    if plain
                    else []
                )
                if missing:
                    todo += missing
                    continue
                self._has_value[at] = plain and all(
                    self._has_value[n] for n in node["in"] if n is not None
                )
            todo.pop()
        return self._has_value[name]

    def _of_what_is_not_negative(self, node: dict[str, Any]) -> bool:
        """A root of that, or a root, power, quotient or logarithm of a number above 0 more."""
        if node["op"] not in ("sqrt", "rsqrt", "pow", "div", "log"):
            return False
        of = node["in"][-1] if node["op"] == "div" else node["in"][0]
        if node["op"] == "sqrt" and never_negative(self._nodes, self._nodes.value_of(of, "real")):
            return True
        made = self._nodes.producer(of)
        return (
            made is not None
            and made["op"] == "add"
            and len(made["in"]) == 1
            and made["attrs"].get("scalar", 0) > 0
            and never_negative(self._nodes, self._nodes.value_of(made["in"][0], "real"))
        )

    def times_zero_is_zero(self, v: Value) -> bool:
        """Whether zero times the value is zero for all inputs: not where it may be no number."""
        if not self.has_a_value(v):
            return False
        if isinstance(v, Named) and v.name in self.brought:
            self._nodes.assume(assumptions.BROUGHT_IS_NUMBER)
        return True

    def both_have_values(self, *values: Value) -> None:
        """Notes that both sides of a choice are numbers.

        A choice is written as products with ones and zeros, so that what is not chosen needs a
        value, too.
        """
        if not all(self.has_a_value(v) for v in values if isinstance(v, Value)):
            self._nodes.assume(assumptions.BOTH_CHOICES_ARE_NUMBERS)

    def taken_as_number(self, v: Value) -> None:
        """The value is a number from now on; that it may be none is noted."""
        self.both_have_values(v)
        if not isinstance(v, Named):
            return
        # the base has the same elements, and other views are made of it
        names = {v.name, (v.base or v).name}
        if not all(self._has_value.get(name) for name in names):
            # what is computed with it may be a number, then
            self._has_value = {n: True for n, known in self._has_value.items() if known}
            self._has_value.update(dict.fromkeys(names, True))

    def finite(self, v: Value) -> Value:
        """The value, which the program takes to be neither infinite nor not-a-number.

        Raises Unsupported where it may be: attention's scores are minus infinity where they are
        masked.
        """
        if (
            isinstance(v, Hidden)
            or isinstance(v, Named)
            and (v.name in self.hiding or v.name in self.closed)
        ):
            raise Unsupported(
                "it is asked whether masked scores, or what is computed with them, are infinite or "
                "not-a-number"
            )
        if isinstance(v, Named) and v.name in self.masked_by_data:
            self._nodes.assume(assumptions.EACH_ROW_SEEN)
        if isinstance(v, Named) and v.name in self.brought:
            self.relies_on_brought = self.relies_on_brought or self._nodes.loc or "?"
        self._nodes.assume(assumptions.NO_INFINITIES)
        return v
