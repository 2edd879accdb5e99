# SPDX-License-Identifier: Apache-2.0
"""The tensors of one side that have names on both sides."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator

import torch

from ..distributed.mesh import Mesh
from ..step.binding import Binding
from ..step.tracked_tensors import Placement, TrackedTensor, place, unwrapped
from .recorder import Recorder
from .recording import CaptureError


class Tracker:
    """The tracked tensors of one recording.

    tracked: in the order in which they were met. cuts: mesh axis -> dimensions of inputs that it
    cuts. cut_inputs: whether an axis cuts the batch, if of one rank only.
    """

    def __init__(self, recorder: Recorder, mesh: Mesh, binding: Binding) -> None:
        self.recorder, self.mesh, self.binding = recorder, mesh, binding
        self.tracked: list[TrackedTensor] = []
        self.cuts: dict[str, set[int]] = collections.defaultdict(set)
        self.cut_inputs = False
        self._names: set[tuple[str, str]] = set()  # of inputs, and of outputs

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        before, self.recorder.paused = self.recorder.paused, True
        try:
            yield
        finally:
            self.recorder.paused = before

    def claim(self, name: str, role: str) -> str:
        if not name or name.startswith("%") or (role, name) in self._names:
            raise CaptureError(f"the name {name!r} is empty, begins with % or is used twice")
        self._names.add((role, name))
        return name

    def track(
        self,
        role: str,
        name: str,
        t: torch.Tensor,
        placement: Placement | None = None,
        call: int = 0,
        gradient: bool = False,
        module: str = "",
        kind: str = "results",
    ) -> None:
        local = unwrapped(t)
        if 0 in local.shape or local.dtype.is_complex:
            return
        placement = placement or place(self.recorder, t)
        self.tracked.append(
            TrackedTensor(
                role, name, self.recorder.read(local), placement, call, gradient, module, kind
            )
        )
