# SPDX-License-Identifier: Apache-2.0
"""What runs while a DataLoader reads a batch: data sets, collation and samplers, with numbers.

What they yield becomes an input of the step, whatever it is. So nothing of it is recorded: every
operator runs as PyTorch's own, on the numbers of constants and of what is drawn, as far as these
are known. What is drawn while a batch is read are numbers of the generator's state. An operator
on a tensor without numbers (a large draw, a parameter) is recorded as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..aten import table
from ..compat import private
from ..terms.values import Filled, Known
from .drawn_numbers import seed_of
from .operator_calls import arguments_of, name_of


class Reading:
    """Whether a batch is being read, and what operators give then."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._depth = 0

    @property
    def now(self) -> bool:
        return self._depth > 0

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def numbers(self, t: torch.Tensor) -> torch.Tensor | None:
        """The numbers of a tensor; None where they are not known."""
        if not isinstance(t, private.FakeTensor) and not self._is_followed(t):
            return t
        v = self._recorder.read(t)
        if isinstance(v, (Filled, Known)):
            with private.outside():
                return self._recorder.g.data(v).to(t.dtype).reshape(t.shape)
        found: torch.Tensor | None = self._recorder.drawn.all_of(t)
        return found

    def _is_followed(self, t: torch.Tensor) -> bool:
        return private.storage_key(t) in self._recorder.storages

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an operator gives; NotImplemented where some operand has no numbers."""
        tensors = private.tensors(args, kwargs)
        if any(type(t) not in (torch.Tensor, private.FakeTensor) for t in tensors):
            return NotImplemented
        found = {id(t): self.numbers(t) for t in tensors}
        if any(numbers is None for numbers in found.values()):
            return NotImplemented
        written = [
            t
            for i, argument, by_name, is_written, _ in arguments_of(func)
            if is_written
            for t in private.tensors(kwargs.get(argument) if by_name or i >= len(args) else args[i])
        ]
        followed = [t for t in written if found[id(t)] is not t]
        with private.outside():
            for t in followed:
                found[id(t)] = found[id(t)].clone()  # type: ignore[union-attr]
            operands = private.tree_map(
                lambda x: found[id(x)] if isinstance(x, torch.Tensor) else x, (args, kwargs)
            )
            out = self._run(func, *operands)
        for t in followed:
            with private.outside():
                made = found[id(t)].clone()  # type: ignore[union-attr]
            self._recorder.write(t, Known(made))
        originals = {id(found[id(t)]): t for t in followed}
        return private.tree_map(lambda x: originals.get(id(x), x), out)

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        _, name = name_of(func)
        if name not in table.RANDOM:
            return func(*args, **kwargs)
        generator = kwargs.get("generator")
        shapes = [tuple(t.shape) for t in private.tensors(args, kwargs)]
        key = self._recorder.random.advance(generator, f"{name} {shapes} {_numbers_in(args)}")
        seed = seed_of(key)
        if generator is not None:
            return func(*args, **{**kwargs, "generator": torch.Generator().manual_seed(seed)})
        g = torch.default_generator
        before = g.get_state()
        try:
            g.manual_seed(seed)
            return func(*args, **kwargs)
        finally:
            g.set_state(before)


def _numbers_in(args: Any) -> list[Any]:
    return [x for x in private.tree_flatten(args)[0] if isinstance(x, (int, float))]
