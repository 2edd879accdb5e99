# SPDX-License-Identifier: Apache-2.0
"""Constants that ranks reduce or gather: lengths of loaders, numbers of samples, flags.

Each rank's program has its own number. What comes of all of them is a constant, too, which scripts
make a number of (`int(total)`) or decide by (`if total == 0`). So ranks put what they give into the
mailbox. A rank whose script wants the result as a number is recorded once more after the others,
with that number. The communication stays in its program.

The numbers are right if each is what its rank gives in the end. A rank that is recorded several
times may have given another one before: `used` has what a recording has gone by, and
`constants_apart` compares it with what the ranks give.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping

import torch

from ..compat import private
from ..terms.values import Filled, Known, Named, Unsupported, Value, numel
from .mailbox import Mailbox, MissingMetadata

# Larger ones are not followed: elements of a tensor, and ranks that have to be recorded for it.
MOST_ELEMENTS = 4096
MOST_RANKS = 64

_WANTED = "constants of ranks are wanted"  # all, as each would take a recording

Used = Mapping[str, Mapping[int, str]]  # communication -> rank -> a digest of what it gives

_COMBINED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.double().mean(0),
    "max": lambda x: x.amax(0),
    "min": lambda x: x.amin(0),
    "gather": lambda x: x.flatten(0, 1),
}


class SharedConstants:
    """Of one recording."""

    def __init__(self, mailbox: Mailbox, rank: int) -> None:
        self.mailbox, self.rank = mailbox, rank
        self.used: dict[str, dict[int, str]] = {}
        # results that are not known yet: the communication, and its members
        self.open: dict[str, tuple[str, tuple[int, ...]]] = {}

    def result(
        self, comm: str, ranks: tuple[int, ...], how: str, given: Value, result: Named
    ) -> Value:
        """What this rank gets for a constant: a constant if that is wanted, and all members have
        given theirs.

        how: a key of _COMBINED. result: of the node.
        """
        if len(ranks) > MOST_RANKS or how not in _COMBINED:
            return result
        with private.outside():
            return self._result(comm, ranks, how, given, result)

    def _result(
        self, comm: str, ranks: tuple[int, ...], how: str, given: Value, result: Named
    ) -> Value:
        mine = _numbers(given)
        if mine is None:
            return result
        self.mailbox["constant", comm, self.rank] = mine.clone()
        self.used[comm] = {self.rank: _digest(mine)}
        found = {r: self.mailbox.get(("constant", comm, r)) for r in ranks}
        known = [x for x in found.values() if x is not None]
        if _WANTED not in self.mailbox or len(known) < len(ranks):
            self.open[result.name] = comm, ranks
            return result
        if len({(x.shape, x.dtype) for x in known}) > 1:
            return result
        self.used[comm] = {r: _digest(x) for r, x in found.items()}
        return Known(_COMBINED[how](torch.stack(known)).reshape(result.shape))

    def broadcasts_infinite(self, comm: str, root: int, mine: Value) -> bool:
        """Whether a broadcast is of a constant with infinities (a mask of scores), which no tensor
        of a plan can be. It is left out where all members have the same.

        comm: of the broadcast. mine: what this rank has. Raises MissingMetadata where the root's
        is not known yet, and Unsupported where it is another one.
        """
        with private.outside():
            numbers = _numbers(mine)
            if numbers is None or bool(torch.isfinite(numbers).all()):
                return False
            if self.rank == root:
                self.mailbox["infinite", comm] = numbers.clone()
                self.used[comm] = {root: _digest(numbers)}
                return True
            if ("infinite", comm) not in self.mailbox:
                raise MissingMetadata(f"a mask that rank {root} broadcasts", root)
            given = self.mailbox["infinite", comm]
            if not torch.equal(given, numbers):
                raise Unsupported("a broadcast of infinities to a rank that has others")
            self.used[comm] = {root: _digest(given)}
            return True

    def want(self, names: Iterable[str]) -> None:
        """The script makes a number of what is computed of these results.

        Raises MissingMetadata where one of them is not known yet.
        """
        for name in names:
            comm, ranks = self.open[name]
            self.mailbox[_WANTED] = True
            missing = [r for r in ranks if ("constant", comm, r) not in self.mailbox]
            peer = missing[0] if missing else self.rank
            raise MissingMetadata(
                f"a number that is made of constants of ranks waits for rank {peer}", peer
            )


def _numbers(v: Value) -> torch.Tensor | None:
    """What a constant holds; None for what is none, or too large."""
    if numel(v.shape) > MOST_ELEMENTS:
        return None
    if isinstance(v, Known) and v.kind in ("int", "real"):
        return v.data.to(torch.int64 if v.kind == "int" else torch.float64)
    if isinstance(v, Filled) and v.kind in ("int", "real"):
        return torch.full(v.shape, v.fill, dtype=torch.int64 if v.kind == "int" else torch.float64)
    return None


def _digest(numbers: torch.Tensor) -> str:
    text = f"{numbers.dtype} {list(numbers.shape)} {numbers.tolist()}"
    return hashlib.sha256(text.encode()).hexdigest()


def constants_apart(used: Mapping[int, Used]) -> tuple[str, int, int] | None:
    """A communication, a rank that has gone by another constant than one gives, and the latter.

    used: of the recordings of ranks.
    """
    for rank, by_comm in used.items():
        for comm, digests in by_comm.items():
            for peer, digest in digests.items():
                given = used.get(peer, {}).get(comm, {}).get(peer, digest)
                if given != digest:
                    return comm, rank, peer
    return None


__all__ = ["MOST_ELEMENTS", "MOST_RANKS", "SharedConstants", "Used", "constants_apart"]
