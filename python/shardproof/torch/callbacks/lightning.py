# SPDX-License-Identifier: Apache-2.0
"""A callback for Lightning.

from shardproof.torch.callbacks.lightning import VerifyCallback
trainer = Trainer(..., callbacks=[VerifyCallback()])
"""

from __future__ import annotations

from typing import Any

import lightning

from .this_run import verify_this_run


class VerifyCallback(lightning.Callback):
    """Verifies the first step when `fit` begins. Parameters are those of `verify_this_run`."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        verify_this_run(**self.options)


__all__ = ["VerifyCallback"]
