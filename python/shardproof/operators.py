# SPDX-License-Identifier: Apache-2.0
"""What the program knows of the operators and collectives of the format.

It is read from `shardproof operators --json` once, when it is first needed. docs/operators.md
explains the traits.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator, Set

from .program import ProgramError, find_program


@functools.cache
def _traits() -> dict[str, frozenset[str]]:
    """The traits of each operator and collective, by name. Raises ProgramError."""
    command = [find_program(), "operators", "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ProgramError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        raise ProgramError(
            f"{' '.join(command)} ended with exit code {done.returncode}: {done.stderr.strip()}"
        )
    table = json.loads(done.stdout)
    return {
        entry["name"]: frozenset(entry["traits"])
        for entry in (*table["operators"], *table["collectives"])
    }


class WithTrait(Set[str]):
    """The names of all operators and collectives that have one of the traits; read when used."""

    def __init__(self, *traits: str) -> None:
        self._traits = frozenset(traits)

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(n for n, has in _traits().items() if not has.isdisjoint(self._traits))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
