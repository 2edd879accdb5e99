# SPDX-License-Identifier: Apache-2.0
"""Asynchronous calls of c10d, as hooks that the recorder follows."""

from __future__ import annotations

from ..terms import assumptions
from .recorder import Recorder


class AsynchronousCalls:
    """Reports to the recorder what asynchronous calls write, send and communicate.

    That holds until they are waited for.
    """

    def __init__(self, recorder: Recorder, batches: list[int]) -> None:
        self.recorder, self.batches = recorder, batches
        self.start = 0  # nodes before the call

    def begin(self) -> None:
        self.recorder.issued = []
        self.start = len(self.recorder.g.nodes)

    def end(self, pending: bool) -> object:
        token = object()
        if pending and not self.batches:  # messages of a batch are waited for as one
            self.recorder.begun.begin(token, self.start)
        for t, name, writes in (self.recorder.issued or []) if pending else []:
            (self.recorder.pend if writes else self.recorder.sending)(t, name, token)
        self.recorder.issued = None
        return token

    def wait(self, token: object) -> None:
        self.recorder.finish(token)
        self.recorder.begun.wait(token)

    def given_away(self, token: object) -> None:
        self.recorder.g.assume(assumptions.FUTURES)
        self.wait(token)
