# SPDX-License-Identifier: Apache-2.0
"""Tensors that a step trains or keeps though no called module and no optimizer has them.

They are leaves of autograd that it writes by hand, or averaged copies of weights. Such a tensor is
a parameter of some module, or a leaf that requires a gradient, whose memory is written after the
step has its inputs. It has no name: those of one shape are counted in the order in which they are
first met, whatever the order in which a rank updates them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..compat import private


def is_leaf(t: Any) -> bool:
    return (
        isinstance(t, torch.Tensor)
        and not nn.parameter.is_lazy(t)
        and not isinstance(t, private.DTensor)
        and t.dtype.is_floating_point
        and (isinstance(t, nn.Parameter) or t.is_leaf and t.requires_grad)
    )


class UntrackedTensors:
    """Those of one side."""

    def __init__(
        self, found: Callable[[torch.Tensor], None], computed: Callable[[torch.Tensor], bool]
    ) -> None:
        """found: is called with each, when it is met first.

        computed: whether a tensor holds what was computed of the batch.
        """
        self.found, self.computed = found, computed
        self.begun = False  # the step has its inputs, or a model was called
        # by memory; the tensors are kept, so that no other takes its place
        self._known: dict[int, torch.Tensor] = {}
        self._written: dict[int, torch.Tensor] = {}
        # a backward has ended: what is copied from here on is no beginning
        self.differentiated = False
        self.updated: set[int] = set()  # memory that was written then

    def note(self, t: Any) -> None:
        """A tensor whose memory may be a leaf's, also under another name (`p.data`, a state
        dictionary).
        """
        if is_leaf(t) and not self._is_known(key := private.storage_key(t)):
            if not isinstance(t, nn.Parameter) and t.grad is None and self.computed(t):
                return  # memory that a custom function works in looks like a leaf
            self._known[key] = t
            self.found(t)

    def holding(self) -> list[object]:
        return [self._known, self._written]

    def _is_known(self, key: int) -> bool:
        """Whether memory is a leaf's: after `p.data = ...` it may be another tensor's by now."""
        return key in self._known and private.storage_key(self._known[key]) == key

    def writes(self, targets: Sequence[torch.Tensor]) -> None:
        """An operator writes these, after the step has its inputs."""
        for t in targets:
            self.note(t)
            key = private.storage_key(t)
            if self._is_known(key):
                self._written.setdefault(key, self._known[key])
                if self.differentiated:
                    self.updated.add(key)

    def written(self) -> dict[int, torch.Tensor]:
        """By memory, in the order in which they were met."""
        return {key: self._written[key] for key in self._known if key in self._written}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, modules whose parameters are listed are noted."""
        named, save = nn.Module.named_parameters, nn.Module._save_to_state_dict

        def named_parameters(
            module: nn.Module, *args: Any, **kwargs: Any
        ) -> Iterator[tuple[str, nn.Parameter]]:
            for name, p in named(module, *args, **kwargs):
                self.note(p)
                yield name, p

        def save_to_state_dict(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            for p in module._parameters.values():
                self.note(p)
            save(module, *args, **kwargs)

        with private.changes() as undo:
            private.set_attribute(nn.Module, "named_parameters", named_parameters, undo)
            private.set_attribute(nn.Module, "_save_to_state_dict", save_to_state_dict, undo)
            yield

    def forget(self) -> None:
        self._known.clear()
        self._written.clear()
