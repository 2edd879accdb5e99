# SPDX-License-Identifier: Apache-2.0
"""torch.nn.SyncBatchNorm on a CPU.

PyTorch has kernels of its five operators for GPUs only. Inside they are written with other
operators; the module and its autograd function are PyTorch's own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .private import changes, set_attribute
from .refusals import fail


def _by_channel(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return t.view(1, -1, *[1] * (x.dim() - 2))


def _others(x: torch.Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.mean(_others(x)), (x * x).mean(_others(x))


def _statistics(
    mean: torch.Tensor,
    square: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    count: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean, and one over the root of the variance, of `count` elements.

    mean and square: their mean, and the mean of their squares. The running statistics are updated.
    """
    variance = square - mean * mean
    if running_mean is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * mean)
    if running_var is not None:
        running_var.copy_(
            (1 - momentum) * running_var + momentum * (variance * (count / (count - 1)))
        )
    return mean, torch.rsqrt(variance + eps)


def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, ...]:
    """aten.native_batch_norm on one device, by the same sums, which the ranks' are parts of."""
    if not training:
        if running_mean is None or running_var is None:
            raise fail(
                NotImplementedError(
                    "shardproof: batch normalisation by running statistics that there are none of"
                )
            )
        return (
            _elements(x, weight, bias, running_mean, torch.rsqrt(running_var + eps), eps),
            x.new_zeros((0,)),
            x.new_zeros((0,)),
        )
    mean, scale = _statistics(
        *_moments(x), running_mean, running_var, momentum, eps, x.numel() // x.shape[1]
    )
    return _elements(x, weight, bias, mean, scale, eps), mean, scale


def _stats(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The statistics that ranks exchange: the mean, and the mean of squares.

    PyTorch's kernel has one over the root of the variance in its place; only the next operator
    reads it.
    """
    return _moments(x)


def _gather_stats(
    x: torch.Tensor,
    means: torch.Tensor,
    squares: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all ranks' elements, from a row of each rank's means and of its squares'."""
    total = counts.sum()
    parts = counts.unsqueeze(1) / total
    return _statistics(
        (parts * means).sum(0),
        (parts * squares).sum(0),
        running_mean,
        running_var,
        momentum,
        eps,
        total,
    )


def _elements(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor,
    scale: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    y = (x - _by_channel(mean, x)) * _by_channel(scale, x)
    y = y if weight is None else y * _by_channel(weight, x)
    return y if bias is None else y + _by_channel(bias, x)


def _backward_reduce(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    for_input: bool,
    for_weight: bool,
    for_bias: bool,
) -> tuple[torch.Tensor, ...]:
    centred = x - _by_channel(mean, x)
    dy = grad.sum(_others(x))
    return (
        dy,
        (grad * centred).sum(_others(x)),
        (grad * (centred * _by_channel(scale, x))).sum(_others(x)),
        dy.clone(),
    )


def _backward_elements(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    dy: torch.Tensor,
    dy_x: torch.Tensor,
    counts: torch.Tensor,
) -> torch.Tensor:
    total = counts.sum()
    inner = (
        grad
        - _by_channel(dy / total, x)
        - (x - _by_channel(mean, x)) * _by_channel(scale * scale * (dy_x / total), x)
    )
    return inner * _by_channel(scale if weight is None else scale * weight, x)


def batch_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    mean: torch.Tensor,
    scale: torch.Tensor,
    training: bool,
    eps: float,
    wanted: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    """aten.native_batch_norm_backward on one device, likewise."""
    if not training:
        found: tuple[torch.Tensor | None, ...] = (
            torch._decomp.decompositions.native_batch_norm_backward(
                grad, x, weight, running_mean, running_var, mean, scale, training, eps, wanted
            )
        )
        return found
    dy, dy_x, for_weight, for_bias = _backward_reduce(grad, x, mean, scale, weight, *wanted)
    made = (
        _backward_elements(
            grad, x, mean, scale, weight, dy, dy_x, torch.tensor(float(x.numel() // x.shape[1]))
        ),
        for_weight,
        for_bias,
    )
    return tuple(t if w else None for t, w in zip(made, wanted))


_OPERATORS = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gather_stats,
    "batch_norm_elemt": _elements,
    "batch_norm_backward_reduce": _backward_reduce,
    "batch_norm_backward_elemt": _backward_elements,
}


class _Counts(TorchFunctionMode):
    """Keeps the numbers of elements as real numbers; they are whole.

    The autograd function casts them to integers for its kernel.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.to and len(args) == 2 and args[1] is torch.int32:
            return args[0]
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def sync_batch_norm() -> Iterator[None]:
    """SyncBatchNorm takes tensors of the CPU inside."""
    module = torch.nn.SyncBatchNorm
    original = module.forward

    @functools.wraps(original)
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu":
            return original(self, x)
        if x.numel() == 0:
            raise fail(
                NotImplementedError(
                    "shardproof: SyncBatchNorm where a rank has no samples is not supported"
                )
            )
        with changes() as within:
            # its two questions: whether it takes tensors of this device, and whether it may look at
            # numbers (to leave out ranks without samples)
            set_attribute(torch._C, "_get_privateuse1_backend_name", lambda: "cpu", within)
            for name in ("is_available", "is_current_stream_capturing"):
                set_attribute(torch.cuda, name, lambda: True, within)
            with _Counts():
                return original(self, x)

    with changes() as undo:
        set_attribute(module, "forward", forward, undo)
        # it only checks for a GPU
        set_attribute(
            torch.nn.parallel.DistributedDataParallel,
            "_passing_sync_batchnorm_handle",
            lambda self, model: None,
            undo,
        )
        for name, f in _OPERATORS.items():
            set_attribute(torch, name, f, undo)
        yield
