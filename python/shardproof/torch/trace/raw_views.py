# SPDX-License-Identifier: Apache-2.0
"""Memory that is seen as integers of another width: `p.data.view(torch.uint8)`.

What the bits of a number are as an integer is not followed. But libraries send whole tensors so
(DeepSpeed broadcasts the first values of parameters as bytes), and a message that only moves bytes
moves the numbers.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..compat import private
from ..terms.values import NotFollowed

# They move what they are given, and their other arguments count no elements.
_MOVING = frozenset({"c10d.broadcast_", "c10d.send", "c10d.recv_", "c10d._allgather_base_"})
_SAME = frozenset({"aten.detach", "aten.alias"})


class RawViews:
    """Of one side."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, view: torch.Tensor, of: torch.Tensor) -> None:
        key = id(view)
        self._of[key] = weakref.ref(view, lambda _: self._of.pop(key, None)), of

    def numbers(self, t: torch.Tensor) -> torch.Tensor | None:
        """The tensor that this one is a view of; None: it is no such view."""
        found = self._of.get(id(t))
        return found[1] if found is not None and found[0]() is t else None

    def sent(self, name: str, args: Any, kwargs: Any, loc: str) -> tuple[Any, Any]:
        """The arguments of an operator with the numbers in place of their bits.

        Raises NotFollowed where the operator does more than to move them.
        """
        tensors = private.tensors(args, kwargs)
        of = [self.numbers(t) for t in tensors]
        if all(t is None for t in of):
            return args, kwargs
        dtypes = {t.dtype for t in of if t is not None}
        if name not in _MOVING or None in of or len(dtypes) > 1:
            one = next(i for i, t in enumerate(of) if t is not None)
            raise not_followed(of[one], tensors[one].dtype, f"{name} at {loc}")

        def numbers(x: Any) -> Any:
            return self.numbers(x) if isinstance(x, torch.Tensor) else x

        moved: tuple[Any, Any] = private.tree_map(numbers, (args, kwargs))
        return moved

    def keeps(self, name: str, args: Any) -> bool:
        """Whether the result of an operator is the same view."""
        return name in _SAME and self.numbers(args[0]) is not None


def not_followed(t: torch.Tensor | None, dtype: torch.dtype, where: str) -> NotFollowed:
    of = "" if t is None else f"{t.dtype} "
    return NotFollowed(
        f"a view of {of}memory as {dtype}: what its bits are as numbers is not followed: {where}"
    )


__all__ = ["RawViews", "not_followed"]
