# SPDX-License-Identifier: Apache-2.0
"""Whether the recorder works with a version of PyTorch that it was not tested with.

It relies on much of PyTorch that is not public. So with another version, small steps of which the
verdict is known are verified first, right and wrong ones of each kind.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ..compat import private
from ..step.world import World

QUICK = ("--confirm", "off", "--diagnose", "off", "--timeout", "20")


@dataclasses.dataclass(frozen=True)
class Known:
    """A step of which the verdict is known: EQUIVALENT, or NOT EQUIVALENT if it is `wrong`."""

    name: str
    mesh: dict[str, int]
    step: Callable[[World, bool], Any]


def _data_parallel(world: World, wrong: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    labels = world.input("labels", (8,), torch.long, shard={"dp": 0}, high=3)
    x = world.input("x", (8, 4), shard={"dp": 0})
    F.cross_entropy((model if wrong else DistributedDataParallel(model))(x), labels).backward()
    optimizer.step()


def _fully_sharded(world: World, wrong: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 4))
    mesh = init_device_mesh("cpu", (world.size,), mesh_dim_names=("dp",))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = model(world.input("x", (8, 4), shard={"dp": 0})).square().mean()
    (loss * world.size if wrong else loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def _tensor_parallel(world: World, wrong: bool) -> torch.Tensor:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4, bias=False))
    if not world.single:
        mesh = init_device_mesh("cpu", (world.size,), mesh_dim_names=("tp",))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh, plan)
    y = model(world.input("x", (4, 4)))
    loss: torch.Tensor = (y * 2 if wrong and not world.single else y).square().mean()
    loss.backward()
    return loss.detach()


def _by_hand(world: World, wrong: bool) -> None:
    """A norm over all ranks' gradients, of a model whose blocks are computed again in backward."""
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8))
    ids = world.input("ids", (4, 3), torch.long, shard={"dp": 0}, high=8)
    h = checkpoint(model[1], model[0](ids), use_reentrant=False)
    F.cross_entropy(h.flatten(0, 1), ids.flatten()).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for g in gradients if not wrong else gradients[1:]:
        dist.all_reduce(g)
        g /= world.size
    norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
    for g in gradients:
        g.mul_(1 / (norm + 1e-6))


def _attention(world: World, wrong: bool) -> None:
    """Heads on ranks, with the collectives of autograd functions."""
    width, heads = 8, 4
    q, k, v, o = (world.input(n, (width, width)).requires_grad_() for n in "qkvo")
    x = world.input("x", (2, 3, width))
    mine = slice(*(width * (world.rank + i) // world.size for i in (0, 1)))

    def of_heads(w: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w[mine]).view(2, 3, heads // world.size, -1).transpose(1, 2)

    y = F.scaled_dot_product_attention(of_heads(q), of_heads(k), of_heads(v), is_causal=not wrong)
    if wrong and world.single:
        y = F.scaled_dot_product_attention(of_heads(q), of_heads(k), of_heads(v), is_causal=True)
    out = F.linear(y.transpose(1, 2).reshape(2, 3, -1), o[:, mine])
    dist.all_reduce(out)
    world.output("out", out.detach())


def _sharded_states(world: World, wrong: bool) -> None:
    model = DistributedDataParallel(nn.Linear(4, 2))
    rate = 0.1 if not wrong or world.single else 0.2
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=rate)
    model(world.input("x", (4, 4), shard={"dp": 0})).square().mean().backward()
    optimizer.step()


def _exchange(world: World, wrong: bool) -> None:
    """Each rank gets its columns of all rows, and gives them back."""
    x = world.input("x", (4, 4), shard={"ep": 0})
    sent = torch.cat(x.chunk(world.size, 1))
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    if world.size > 1:
        got = got.roll(1, 0) if wrong else got
    back = torch.empty_like(got)
    dist.all_to_all_single(back, torch.exp(got))
    world.output("y", torch.cat(back.chunk(world.size), 1), shard={"ep": 0})


def _loaders(world: World, wrong: bool) -> None:
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))
    for x, y in loader:
        F.mse_loss(model(x), y, reduction="sum" if wrong else "mean").backward()
        optimizer.step()
        break


STEPS = (
    Known("data parallelism", {"dp": 2}, _data_parallel),
    Known("fully sharded", {"dp": 2}, _fully_sharded),
    Known("tensor parallelism", {"tp": 2}, _tensor_parallel),
    Known("collectives by hand", {"dp": 2}, _by_hand),
    Known("attention", {"tp": 2}, _attention),
    Known("sharded optimizer states", {"dp": 2}, _sharded_states),
    Known("exchanged rows", {"ep": 2}, _exchange),
    Known("loaders", {"dp": 2}, _loaders),
)


def failures(verdict_of: Callable[[Callable[[World], Any], dict[str, int]], str]) -> list[str]:
    """What has another verdict than it should, or raises an error."""
    found = []
    for known in STEPS:
        for wrong in (False, True):
            expected = "NOT EQUIVALENT" if wrong else "EQUIVALENT"

            def step(world: World, known: Known = known, wrong: bool = wrong) -> Any:
                return known.step(world, wrong)

            try:
                verdict = verdict_of(step, known.mesh)
            except Exception as e:
                verdict = f"{type(e).__name__}: {e}".splitlines()[0]
            if verdict != expected:
                found.append(f"{known.name}{', a wrong step' if wrong else ''}: {verdict}")
    return found


def test_version(
    verdict_of: Callable[[Callable[[World], Any], dict[str, int]], str],
) -> None:
    """Of a version that shardproof is not tested with: raises VersionError if the self-test fails.
    If it passes, that is a warning, and the version is accepted.
    """
    private.accept()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        failed = failures(verdict_of)
    if failed:
        private.accept(False)
        raise private.VersionError(
            f"{private.versions()}, and {len(failed)} of {2 * len(STEPS)} steps of the self-test "
            f"fail with it: {'; '.join(failed)}"
        )
    warnings.warn(
        f"{private.versions()}: all {2 * len(STEPS)} steps of the self-test have their verdict",
        stacklevel=2,
    )


__all__ = ["QUICK", "STEPS", "failures", "test_version"]
