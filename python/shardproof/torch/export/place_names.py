# SPDX-License-Identifier: Apache-2.0
"""Names of tensors that the program gave none: by the operator and the line that make them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_NUMBERED = re.compile(r"%\d+(?= |$)")  # what the recorder calls a tensor that has no name


class PlaceNames:
    """New names for numbered tensors of one program, in the order in which nodes make them.

    Equal nodes in an equal order get equal names, whatever else was recorded. One that is given
    stays a number.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._names: dict[str, str] = {}  # by the number
        self._given = 0

    def of(self, name: str, node: dict[str, Any] | None = None) -> str:
        """The name of a tensor that the node makes (None: it only reads it, or nothing makes it).

        What follows the number in a name stays.
        """
        found = _NUMBERED.match(name)
        if found is None:
            return name
        number = found[0]
        if number not in self._names:
            self._names[number] = self._number() if node is None else self._at(node)
        return self._names[number] + name[found.end() :]

    def _number(self) -> str:
        self._given += 1
        return f"%{self._given}"

    def _at(self, node: dict[str, Any]) -> str:
        text = f"{node['op']} at {node['loc']}" if node.get("loc") else node["op"]
        text = text.replace("#", "_")  # which separates a microbatch
        name, count = text, 1
        while name in self._taken:
            count += 1
            name = f"{text}, {count}"
        self._taken.add(name)
        return name
