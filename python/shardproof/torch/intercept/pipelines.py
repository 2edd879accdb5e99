# SPDX-License-Identifier: Apache-2.0
"""Stages of pipelines while a step is recorded: the shapes that they exchange.

As private as `compat.private`.
"""

from __future__ import annotations

import copy
from typing import Any

from ..compat.private import Undo, set_attribute
from ..distributed.mailbox import MissingMetadata
from .hooks import Hooks


def patch_pipelines(undo: Undo, hooks: Hooks) -> None:
    """Stages that were not given shapes get them from the mailbox, where other ranks' recordings
    put them.

    The forward that finds them out is a part of the program, for what it leaves in buffers and
    caches.
    """
    import torch.distributed.pipelining.schedules as schedules
    import torch.distributed.pipelining.stage as stages

    def warmup(self: Any, own: Any, has_backward: Any, p2p_done: Any) -> None:
        for stage in own:
            stage._inference_mode = (
                schedules.InferenceMode.DYNAMIC
                if schedules.InferenceMode.needs_dynamic(stage._user_meta, has_backward)
                else schedules.InferenceMode.STATIC
            )

    def send(self: Any, meta: Any, target: int) -> None:
        hooks.mailbox[("stage", self.stage_index, target)] = copy.deepcopy(meta)

    def receive(self: Any, source: int) -> Any:
        key = ("stage", source, self.stage_index)
        if key not in hooks.mailbox:
            peer = self._resolve_peer_global_rank(source)
            raise MissingMetadata(
                f"pipeline stage {self.stage_index} waits for the shapes that stage {source} on "
                f"rank {peer} sends, which never comes",
                peer,
            )
        return copy.deepcopy(hooks.mailbox[key])

    forward = stages.PipelineStage._forward_metadata_inference

    def shapes(self: Any, *args: Any, **kwargs: Any) -> Any:
        with hooks.trial():
            result = forward(self, *args, **kwargs)
        self._fwd_outputs_for_bwd_meta = self._fwd_inputs_for_bwd_meta = None
        return result

    def gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Gradients have the shapes of what they are gradients of."""
        self._stage_meta.input_grads = stages._derive_grad_metas(self._stage_meta.inputs)
        self._stage_meta.output_grads = (
            None if self.is_last else stages._derive_grad_metas(self._stage_meta.outputs)
        )
        return stages._StageBackwardMeta(backward_metas=self._stage_meta.input_grads)

    for cls in list(vars(schedules).values()):
        if isinstance(cls, type) and "_warmup_p2p" in vars(cls):
            set_attribute(cls, "_warmup_p2p", warmup, undo)
    for name, f in (
        ("_send_meta", send),
        ("_recv_meta", receive),
        ("_forward_metadata_inference", shapes),
        ("_backward_metadata_inference", gradients),
    ):
        set_attribute(stages.PipelineStage, name, f, undo)
