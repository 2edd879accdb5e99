# SPDX-License-Identifier: Apache-2.0
"""What the recorder does when the recorded program uses a part of PyTorch that is replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from ..compat.data_loading import Following
from ..distributed.mailbox import Mailbox
from .devices import Devices


class Asynchronous(Protocol):
    """Follows asynchronous calls of c10d."""

    def begin(self) -> None:
        """A call is made."""

    def end(self, pending: bool) -> object:
        """The call was made. Returns the token under which it is waited for.

        pending: whether it has to be waited for.
        """

    def wait(self, token: object) -> None:
        """It was waited for."""

    def given_away(self, token: object) -> None:
        """Its future was taken, and is waited for in ways that are not seen."""


@dataclasses.dataclass(frozen=True)
class Hooks:
    """The recorder as the patches see it.

    freed(key): the memory of a storage was given back.
    batch(operations): batch_isend_irecv begins with these operations, or ends (None).
    quiet(): inside, nothing is recorded.
    trial(): inside, what modules compute is no part of what the single device computes.
    differentiates(): the engine of autograd is about to run, for `backward` or `grad`.
    before_backward(roots): a whole backward pass begins.
    after_backward(): a whole backward pass has ended.
    unused(name): DistributedDataParallel found that this parameter is not used.
    constant(x): the numbers of a constant tensor, which are the ranks of a mesh; else x.
    unreduced(parameter, gradient): FSDP2 is about to reduce the gradient of a gathered parameter.
    synchronised(tensors, group, source): DistributedDataParallel, or FSDP's first version, gives
        tensors of rank `source` of the group to all of its ranks.
    exchange_rows(out, source, received, sent, group): an all-to-all of numbers of rows that depend
        on data, written to `out` if it is given.
    asynchronous: follows asynchronous calls. mailbox: what stages of pipelines on other ranks have
    sent. loaders: follows DataLoaders. devices: follows what is placed on "cuda".
    """

    freed: Callable[[int], None]
    batch: Callable[[Sequence[Any] | None], None]
    quiet: Callable[[], AbstractContextManager[None]]
    trial: Callable[[], AbstractContextManager[None]]
    differentiates: Callable[[], None]
    before_backward: Callable[[Any], None]
    after_backward: Callable[[], None]
    unused: Callable[[str], None]
    constant: Callable[[Any], Any]
    unreduced: Callable[[torch.Tensor, torch.Tensor], None]
    synchronised: Callable[[Sequence[torch.Tensor], Any, int], None]
    exchange_rows: Callable[[Any, torch.Tensor, Any, Any, Any], torch.Tensor]
    asynchronous: Asynchronous
    mailbox: Mailbox
    loaders: Following
    devices: Devices
