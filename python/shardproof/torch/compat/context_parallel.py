# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.tensor.experimental.context_parallel on a CPU.

PyTorch has handlers of attention's operators for GPUs only. As private as `private`.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch

from .private import DTensor, Undo, changes, set_attribute
from .refusals import fail

SEQUENCE = 2  # the dimension of queries, keys and values that torch's ring goes around


def _forward(
    ring: types.ModuleType,
    group: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    _without(attn_mask)
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return ring._templated_ring_attention(
        group,
        SEQUENCE,
        op,
        query=query,
        key=key,
        value=value,
        is_causal=is_causal,
        dropout_p=dropout_p,
        scale=scale,
    )


def _backward(
    ring: types.ModuleType,
    group: Any,
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:
    _without(attn_mask)
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return ring._templated_ring_attention_backward(
        group,
        SEQUENCE,
        op,
        grad_out=grad_out,
        grad_out_name="grad_out",
        query=query,
        key=key,
        value=value,
        out=out,
        logsumexp=logsumexp,
        is_causal=is_causal,
        dropout_p=dropout_p,
        scale=scale,
    )


def _without(mask: Any) -> None:
    if mask is not None:
        raise fail(
            NotImplementedError(
                "shardproof: context_parallel with a mask of attention (torch's ring has none for "
                "GPUs either)"
            )
        )


def _handler(ring: types.ModuleType, compute: Any) -> Any:
    """A handler as DTensor calls it: PyTorch's own ring on the local tensors.

    Its results are sharded along the sequence, as its operands are.
    """

    def handle(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = next(a for a in args if isinstance(a, DTensor))
        mesh, cut = first.device_mesh, first.placements
        if cut != (torch.distributed.tensor.Shard(SEQUENCE),) or any(
            a.placements != cut or a.device_mesh != mesh for a in args if isinstance(a, DTensor)
        ):
            raise fail(
                NotImplementedError(
                    "shardproof: context_parallel with operands placed as "
                    f"{[a.placements for a in args if isinstance(a, DTensor)]}"
                )
            )
        local = [a._local_tensor if isinstance(a, DTensor) else a for a in args]
        results = compute(ring, mesh.get_group(), *local, **kwargs)
        return tuple(DTensor.from_local(t, mesh, cut, run_check=False) for t in results)

    return handle


def on_cpu(undo: Undo) -> None:
    """Handlers of the CPU's operators, where torch has a ring and none of its own."""
    try:
        import torch.distributed.tensor.experimental._context_parallel._attention as ring
    except ImportError:
        return
    aten = torch.ops.aten
    ours = {
        aten._scaled_dot_product_flash_attention_for_cpu.default: _handler(ring, _forward),
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _handler(
            ring, _backward
        ),
    }
    set_attribute(ring, "custom_ops", {**ours, **ring.custom_ops}, undo)


@contextlib.contextmanager
def context_parallel_on_cpu() -> Iterator[None]:
    with changes() as undo:
        on_cpu(undo)
        yield


__all__ = ["context_parallel_on_cpu", "on_cpu"]
