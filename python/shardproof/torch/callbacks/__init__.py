# SPDX-License-Identifier: Apache-2.0
"""Verifies the first step of a real run before it begins.

`shardproof.torch.callbacks.transformers` has a callback for the Hugging Face Trainer,
`shardproof.torch.callbacks.lightning` one for Lightning. In any other loop, after
`init_process_group`:

    from shardproof.torch.callbacks import verify_this_run
    verify_this_run(mesh="dp=8")
"""

from .this_run import NotVerified, verify_this_run

__all__ = ["NotVerified", "verify_this_run"]
