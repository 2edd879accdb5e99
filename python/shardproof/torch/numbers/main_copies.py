# SPDX-License-Identifier: Apache-2.0
"""Main copies of parameters: what optimizers of mixed precision step instead of the model's.

    main = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(main)

Such a copy is in no module. It is found when its optimizer steps, as it has the numbers of a
parameter, but for rounding to the parameter's dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch.optim import optimizer as optim

from .layout import local_of

# A perturbed run moves the model's parameter by one rounding, and the copy by none.
_ROUNDINGS = 2


@dataclasses.dataclass
class MainCopies:
    """Those of all optimizers that have stepped. unknown: how many tensors of optimizers are copies
    of no parameter.
    """

    named: dict[str, tuple[optim.Optimizer, torch.Tensor]] = dataclasses.field(default_factory=dict)
    unknown: int = 0

    def find(
        self, optimizer: optim.Optimizer, parameters: Mapping[str, torch.Tensor]
    ) -> list[tuple[str, torch.Tensor]]:
        """Those of an optimizer that is about to step: (name of the parameter, copy).

        parameters: of the models, by name. Of parameters with the same numbers the first that has
        no copy is taken, as optimizers list copies in the order of parameters.
        """
        known = {id(p) for p in parameters.values()}
        known |= {id(copy) for _, copy in self.named.values()}
        found = []
        for group in optimizer.param_groups:
            for t in group["params"]:
                if id(t) in known:
                    continue
                for name, p in parameters.items():
                    if name not in self.named and _is_copy(t, p):
                        self.named[name] = (optimizer, t)
                        found.append((name, t))
                        break
                else:
                    self.unknown += 1
        return found


def _is_copy(t: torch.Tensor, p: torch.Tensor) -> bool:
    copy, local = local_of(t).detach(), local_of(p).detach()
    if (
        copy.shape != local.shape
        or copy.device != local.device
        or not (copy.is_floating_point() and local.is_floating_point())
    ):
        return False
    rounding = _ROUNDINGS * torch.finfo(local.dtype).eps
    return bool(torch.allclose(copy.double(), local.double(), rtol=rounding, atol=0.0))
