# SPDX-License-Identifier: Apache-2.0
"""Steps that workers of an engine record: a module that they can import (engines_test)."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

LEFT: dict = {}


def single(world):
    model = torch.nn.Linear(4, 4, bias=False)
    loss = F.mse_loss(model(world.input("x", (128, 4))), world.input("y", (128, 4)))
    loss.backward()
    return loss


def step(world, divide=True):
    """Data parallel by hand, on any number of ranks that divides 128."""
    model = torch.nn.Linear(4, 4, bias=False)
    x, y = (world.input(name, (128, 4), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        if divide:
            p.grad /= world.size
    return loss


def wrong(world):
    return step(world, divide=False)


def one_rank_wrong(world):
    return step(world, divide=world.rank != world.size - 3)


def by_environment(world):
    """Of a variable that only the process has which starts the recording."""
    return step(world, divide=os.environ.get("SHARDPROOF_TEST_DIVIDE") == "1")


def kept(world):
    """Every rank but the first of a process leaves the division out: no real rank does."""
    first = not LEFT
    LEFT["some"] = True
    return step(world, divide=first)


def dies(world):
    """The process of a worker is ended while it records, as by the system where memory is short."""
    if sys.argv[0].endswith("rank_process.py"):
        os._exit(9)
    return step(world)


def layers_single(world, depth=24):
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(depth)))
    loss = F.mse_loss(model(world.input("x", (256, 16))), world.input("y", (256, 16)))
    loss.backward()
    return loss


def layers(world, depth=24):
    """As `step`, with so many layers."""
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(depth)))
    x, y = (world.input(name, (256, 16), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world.size
    return loss
