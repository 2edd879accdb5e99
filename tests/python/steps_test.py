# SPDX-License-Identifier: Apache-2.0
"""Several steps as one program: what the second and later ones compute, too."""

import importlib
import pathlib
import tempfile
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from command import run_command
from shardproof.torch.session import numeric
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

MESH = {"dp": 2}


def batch(world, number):
    return tuple(
        world.input(f"{name} {number}", (4, n), shard={"dp": 0}) for name, n in (("x", 3), ("y", 2))
    )


def trained(
    world, make, wrap=DistributedDataParallel, steps=2, model=None, change=None, scheduler=None
):
    model = model or nn.Linear(3, 2)
    wrapped = model if world.single or wrap is None else wrap(model)
    optimizer = make(model.parameters())
    schedule = scheduler(optimizer) if scheduler else None
    for number in range(1, steps + 1):
        x, y = batch(world, number)
        loss = F.mse_loss(wrapped(x), y)
        loss.backward()
        if change is not None:
            change(world, model, number)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        yield loss


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.1)


def ddp_momentum(world):
    return trained(world, momentum)


def ddp_adamw_scheduled(world):
    return trained(
        world, adamw, scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    )


def fsdp_adamw(world):
    model = nn.Linear(4, 2)
    fully_shard(model, mesh=world.mesh("dp"))
    optimizer = adamw(model.parameters())
    for number in (1, 2):
        x, y = (
            world.input(f"x {number}", (4, 4), shard={"dp": 0}),
            world.input(f"y {number}", (4, 2), shard={"dp": 0}),
        )
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss


def averaged(world):
    """A moving average of the weights, after each step."""
    model = nn.Linear(3, 2)
    average = nn.Linear(3, 2)
    world.parameters(nn.ModuleDict({"model": model, "average": average}))
    for loss in trained(world, momentum, model=model):
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.1)
        yield loss


def reduce(world, model):
    for p in model.parameters():
        if not world.single:
            dist.all_reduce(p.grad)
            p.grad /= world.size


def second_step_not_reduced(world):
    def change(world, model, number):
        if number == 1:
            reduce(world, model)

    return trained(world, momentum, wrap=None, change=change)


def always_reduced(world):
    return trained(
        world, momentum, wrap=None, change=lambda world, model, number: reduce(world, model)
    )


def gradient_left(world):
    """The first step's gradient is reduced again with the second's, as it is never set to zero."""
    model = nn.Linear(3, 2)
    optimizer = momentum(model.parameters())
    for number in (1, 2):
        x, y = batch(world, number)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for p in model.parameters():
            if not world.single:
                dist.all_reduce(p.grad)
                p.grad /= world.size if number == 1 else 1
        optimizer.step()
        yield loss


RIGHT = ("ddp_momentum", "ddp_adamw_scheduled", "fsdp_adamw", "always_reduced", "averaged")
WRONG = ("second_step_not_reduced", "gradient_left")


def load(name, which):
    return getattr(importlib.import_module("steps_test"), name)


class Generators(unittest.TestCase):
    def verdict(self, step, expected, **options):
        report = sp.verify(
            step, mesh=MESH, arguments=["--stage-timeout", "30", "--diagnose", "off"], **options
        )
        self.assertEqual(expected, report.verdict, str(report))
        return report

    def test_right_and_wrong(self):
        for name in RIGHT + WRONG:
            with self.subTest(name):
                self.verdict(load(name, ""), "EQUIVALENT" if name in RIGHT else "NOT EQUIVALENT")

    def test_real_processes(self):
        found = numeric.compare(load, dict.fromkeys(RIGHT + WRONG, MESH))
        for name in RIGHT + WRONG:
            difference, place = found[name]
            with self.subTest(name, difference=difference, place=place):
                if name in RIGHT:
                    self.assertLess(difference, 1e-4)
                else:
                    self.assertGreater(difference, 3e-4)

    def test_each_result_is_compared(self):
        capture = sp.capture(ddp_momentum, mesh=MESH)
        self.assertLessEqual({"loss", "loss 2"}, set(capture.names))

        def second_loss_wrong(world):
            for number, loss in enumerate(ddp_momentum(world), 1):
                yield loss * (1 if world.single or number == 1 else 2)

        self.verdict(second_loss_wrong, "NOT EQUIVALENT")

    def test_a_result_is_what_it_was_when_it_was_given(self):
        def step(world, factor=1):
            x = world.input("x", (6,)).mean()
            y = x.clone()
            yield y
            y.mul_(factor)

        self.verdict(lambda world: step(world, 1 if world.single else 3), "EQUIVALENT")

    def test_fewer_steps(self):
        """What goes wrong in the second step is not seen in the first."""
        self.verdict(second_step_not_reduced, "EQUIVALENT", steps=1)
        self.verdict(second_step_not_reduced, "NOT EQUIVALENT", steps=2)

    def test_no_such_steps(self):
        with self.assertRaises(ValueError) as caught:
            sp.verify(ddp_momentum, mesh=MESH, steps=3)
        self.assertIn("yields 2 results only", str(caught.exception))
        with self.assertRaises(TypeError):
            sp.verify(lambda world: world.input("x", (4,)).mean(), mesh=MESH, steps=2)


SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
xs = torch.randn(3, 8, 4)
for step in range(3):
    loss = model(xs[step].chunk(ranks)[rank]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if step < REDUCED:
        for p in model.parameters():
            dist.all_reduce(p.grad.div_(ranks))
    optimizer.step()
    schedule.step()
"""


class Scripts(unittest.TestCase):
    def run_script(self, reduced, *options):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.py"
            path.write_text(SCRIPT.replace("REDUCED", str(reduced)))
            done = run_command("--mesh", "dp=2", *options, str(path))
        return done.returncode, done.stdout + done.stderr

    def test_steps(self):
        for reduced, steps, right in (
            (1, 1, True),
            (1, 2, False),
            (2, 2, True),
            (2, 3, False),
            (3, 3, True),
        ):
            with self.subTest(reduced=reduced, steps=steps):
                code, text = self.run_script(reduced, "--steps", str(steps))
                self.assertIn(code, (0, 4) if right else (10,), text)

    def test_more_than_there_are(self):
        code, text = self.run_script(3, "--steps", "4")
        self.assertEqual(code, 4, text)
        self.assertIn("step 4 of Adam", text)

    def test_none(self):
        self.assertEqual(self.run_script(3, "--steps", "0")[0], 2)


if __name__ == "__main__":
    unittest.main()
