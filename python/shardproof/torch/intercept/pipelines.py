# SPDX-License-Identifier: Apache-2.0
"""Stages of pipelines while a step is recorded: the shapes that they exchange.

As private as `compat.private`.
"""

from __future__ import annotations

import copy
from typing import Any

from ..compat.private import Undo, changes, set_attribute
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

    mode = schedules.InferenceMode

    def find_modes(own: Any, has_backward: Any) -> None:
        for stage in own:
            stage._inference_mode = (
                mode.DYNAMIC if mode.needs_dynamic(stage._user_meta, has_backward) else mode.STATIC
            )

    def warmup(self: Any, own: Any, has_backward: Any, p2p_done: Any) -> None:
        find_modes(own, has_backward)

    def initialize_with(original: Any) -> Any:
        """Torch 2.15: the same, and groups for messages. It refuses to infer shapes in a fake
        group.
        """

        def initialize(self: Any, own: Any, has_backward: Any, initialize_p2p: Any) -> None:
            with changes() as here:
                set_attribute(mode, "needs_dynamic", staticmethod(lambda *_: False), here)
                original(self, own, has_backward, initialize_p2p)
            find_modes(own, has_backward)

        return initialize

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
        name = "_initialize_pipeline_distributed_state"
        if isinstance(cls, type) and name in vars(cls):
            set_attribute(cls, name, initialize_with(vars(cls)[name]), undo)
    for name, f in (
        ("_send_meta", send),
        ("_recv_meta", receive),
        ("_forward_metadata_inference", shapes),
        ("_backward_metadata_inference", gradients),
    ):
        set_attribute(stages.PipelineStage, name, f, undo)
