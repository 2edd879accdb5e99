# SPDX-License-Identifier: Apache-2.0
"""Moves tensors by about one rounding.

Each element x becomes x (1 + e u): e is the machine epsilon of its dtype, u is uniform in [-1, 1]
and drawn from a hash of a name. Moved are the inputs and parameters of a step, and the result of
each operator that rounds, in the forward and the backward pass. That is the usual model of
floating-point arithmetic, fl(a op b) = (a op b)(1 + d) (Higham, Accuracy and Stability of Numerical
Algorithms, 2.2), so such a run differs from another one as runs do that round otherwise. TTrace
moves the model's input only: that has no effect on a model of tokens, and a move of an input in
single precision vanishes where the next operator rounds to half precision.

A cast to float8 is moved as well: its roundings are so coarse that few elements change when what is
cast moves by a rounding of another precision, but each of them by much. Scales of a rank's own part
are another rounding of all elements.
"""

from __future__ import annotations

import collections
import re
import zlib
from typing import Any

import torch

from ..compat import private


def noise(name: str, shape: torch.Size, device: Any = "cpu") -> torch.Tensor:
    """Numbers in [-1, 1], the same wherever a tensor of that name is moved."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1).to(device)


def moved(t: torch.Tensor, name: str) -> torch.Tensor:
    """A tensor with each element moved by up to one epsilon.

    Tensors of whole numbers stay, as counts and masks, which arithmetic keeps exact.
    """
    if not t.is_floating_point() or t.numel() == 0:
        return t
    wide = t.to(torch.float64)
    if bool((wide == wide.round()).all()):
        return t
    factor = 1 + torch.finfo(t.dtype).eps * noise(name, t.shape, t.device)
    return (wide * factor).to(t.dtype)


# The share of a cast's elements that are moved to a neighbour. Four times the distance that this is
# (1.6 % of the norm for E4M3) covers a cast with another scale (3.6 %).
_CAST_SHARE = 1 / 64


def moved_cast(t: torch.Tensor, name: str) -> torch.Tensor:
    """A tensor of float8 with some elements moved by one epsilon."""
    draws = noise(name, t.shape, t.device)
    change = draws.sign() * (draws.abs() > 1 - _CAST_SHARE)
    return (t.to(torch.float64) * (1 + torch.finfo(t.dtype).eps * change)).to(t.dtype)


# Operators that give elements of their operands, or of their attributes, and round nothing.
_EXACT = re.compile(
    r"(\w+_)?copy|clone|detach|_unsafe_view|cat|stack|repeat|roll|flip|unbind|tril|triu|eye"
    r"|arange|one_hot|scalar_tensor|(new_)?(empty|full|ones|zeros)(_like|_strided)?"
    r"|(bernoulli|normal|rand|randn|uniform|native_dropout)(_like)?"
    r"|abs|neg|sign|relu|threshold_backward|clamp(_max|_min)?|where|embedding|constant_pad_nd"
    r"|a?max|a?min|maximum|minimum|max_pool2d_with_indices|sort|topk|fill|gather|scatter"
    r"|index(_fill|_put|_select)?|masked_(fill|scatter|select)"
    r"|(diagonal|select|slice)_(backward|scatter)"
)


class PerturbedOperators(private.TorchDispatchMode):
    """Inside, the results of operators, and casts to float8, are moved. `draw` chooses the noise.

    Views, operators that write into their operands, communication, and those that round nothing
    are left alone.
    """

    def __init__(self, draw: int) -> None:
        super().__init__()
        self.draw = draw
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = func._schema.name
        cast = operator == "aten::_to_copy"
        if (
            not operator.startswith("aten::")
            or (_EXACT.fullmatch(operator[6:]) and not cast)
            or any(a.alias_info is not None for a in func._schema.arguments)
        ):
            return result
        operands = [_memory(t) for t in private.tensors(args, kwargs)]
        for t in private.tensors(result):
            local = t._local_tensor if isinstance(t, private.DTensor) else t
            if (
                type(local) is torch.Tensor
                and local.is_floating_point()
                and local.layout == torch.strided
                and local.numel()
                and _memory(t) not in operands
            ):
                if cast and local.itemsize > 1:
                    continue
                self.counts[operator] += 1
                name = f"{operator} {self.counts[operator]} of draw {self.draw}"
                local.copy_((moved_cast if cast else moved)(local, name))
        return result


def _memory(t: torch.Tensor) -> int:
    return private.storage_key(t._local_tensor if isinstance(t, private.DTensor) else t)
