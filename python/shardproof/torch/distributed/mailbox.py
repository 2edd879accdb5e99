# SPDX-License-Identifier: Apache-2.0
"""What ranks give each other besides tensors, while they are recorded one after another."""

from __future__ import annotations

from typing import Any

from ..compat.refusals import refuse

# What the recordings of other ranks have sent, by a key that both sides know:
# ("stage", sending stage, receiving stage) -> shapes, for instance.
Mailbox = dict[Any, Any]


class MissingMetadata(RuntimeError):
    """A rank needs what another rank sends, and that rank was not recorded yet.

    A pipeline stage needs the shapes of its inputs, for instance. peer: that rank.
    """

    def __init__(self, text: str, peer: int) -> None:
        super().__init__(text)
        self.peer = peer
        refuse(self)
