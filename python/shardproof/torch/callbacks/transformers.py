# SPDX-License-Identifier: Apache-2.0
"""A callback for the Hugging Face Trainer.

from shardproof.torch.callbacks.transformers import VerifyCallback
trainer = Trainer(..., callbacks=[VerifyCallback()])
"""

from __future__ import annotations

from typing import Any

import transformers

from .this_run import verify_this_run


class VerifyCallback(transformers.TrainerCallback):
    """Verifies the first step when training begins. Parameters are those of `verify_this_run`."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        verify_this_run(**self.options)


__all__ = ["VerifyCallback"]
