# SPDX-License-Identifier: Apache-2.0
"""Steps and checks that the tests of the recorder share."""

import math
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from models import MLP

MESH = {"dp": 2}


def mean_of_gradients(world, model):
    for p in model.parameters():
        if not world.single:
            dist.all_reduce(p.grad)
            p.grad /= world.size


def train(world, change, shard=None):
    """Data parallelism by hand. `change` changes the averaged gradients."""
    model = MLP()
    shard = {"dp": 0} if shard is None else shard
    x, y = (world.input(name, (8, 16), shard=shard) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    mean_of_gradients(world, model)
    change(world, model)
    return loss


def flat_gradients(world, way, wrong=False):
    """Gradients that are views of one flat buffer.

    Megatron's DistributedDataParallel and FSDP2 have such. Two backward passes add to them. The
    loss is a sum divided by all tokens.
    """
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8))
    world.parameters(model)
    parameters = list(model.parameters())
    flat, at = torch.zeros(sum(p.numel() for p in parameters)), 0
    passes = [
        [
            world.input(f"{name}{i}", (4, 2), torch.long, shard={"dp": 0}, high=8)
            for name in ("tokens", "labels")
        ]
        for i in range(2)
    ]
    count = sum((labels != -100).sum() for _, labels in passes)
    if not world.single:
        dist.all_reduce(count)
    if not math.isfinite((1 / count).item()):  # asked before the loss has told what labels are
        raise RuntimeError("no tokens")
    losses = []
    for tokens, labels in passes:
        loss = (
            F.cross_entropy(
                model(tokens).flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100
            )
            / count
        )
        loss.backward()
        losses.append(loss.detach())
        at = 0
        for p in parameters:
            part = flat[at : at + p.numel()].view(p.shape)
            if not (
                wrong
                and way == "add"
                and p is parameters[1]
                and loss is not losses[0]
                and not world.single
            ):
                part.add_(p.grad)
            p.grad, at = None, at + p.numel()
    if not world.single:
        dist.all_reduce(flat)
    if way == "product":
        flat = flat * (0.5 if wrong and not world.single else 1.0)
    at = 0
    for p in parameters:
        p.grad, at = flat[at : at + p.numel()].view(p.shape), at + p.numel()
    if way == "norm":
        norm = torch.norm(
            torch.tensor(
                [[p.grad.norm() for p in parameters[: 2 if wrong and not world.single else None]]]
            )
        )
        for p in parameters:
            p.grad.mul_(1 / (norm + 1))
    torch.optim.SGD(parameters, lr=0.1).step()
    world.output("loss", sum(losses), sum=["dp"])


class RecorderTest(unittest.TestCase):
    """Steps that several tests need."""

    def refuse(self, change, text):
        with self.assertRaises(sp.CaptureError) as caught:
            sp.capture(lambda world: train(world, change), mesh=MESH)
        self.assertIn(text, str(caught.exception))

    def of_x(self, single, ranks, shape=(4, 8), bind=False):
        """Two functions of an input, on one device and on ranks that have all of it."""

        def step(world):
            if bind:
                world.parameters(torch.nn.Linear(2, 2))
            x = world.input("x", shape)
            world.output("o", (single if world.single else ranks)(x), mean=())

        return sp.verify(step, mesh=MESH)
