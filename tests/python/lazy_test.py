# SPDX-License-Identifier: Apache-2.0
"""Lazy modules, whose parameters are made in their first call."""

import pathlib
import tempfile
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
from command import run_command
from shardproof.torch import numeric
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MESH = {"dp": 2}


def step_of(
    dry=False,
    ddp=False,
    early=False,
    divided=True,
    layers=lambda: [nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 3)],
    shape=(8, 4),
    **options,
):
    """dry: called once before; early: the optimizer is made before the parameters are."""

    def step(world):
        model = nn.Sequential(*layers())
        if early:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if dry:
            with torch.no_grad():
                model(torch.zeros(1, *shape[1:]))
        wrapped = DistributedDataParallel(model) if ddp and not world.single else model
        if not early and dry:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        loss = wrapped(world.input("x", shape, shard={"dp": 0}, **options)).square().mean()
        if not early and not dry:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        loss.backward()
        if not ddp:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                if divided:
                    p.grad /= world.size
        optimizer.step()
        return loss

    return step


CASES = {
    "first call": step_of(),
    "called before": step_of(dry=True),
    "optimizer made before": step_of(early=True),
    "data parallel": step_of(dry=True, ddp=True),
    "convolution": step_of(
        layers=lambda: [nn.LazyConv1d(3, 2), nn.Flatten(), nn.LazyLinear(2)], shape=(8, 2, 5)
    ),
    "of its own": step_of(layers=lambda: [nn.LazyLinear(3)]),
    "sums": step_of(divided=False),
}


def load(name, which):
    return CASES[name]


class Lazy(unittest.TestCase):
    def test_verdicts(self):
        for name, step in CASES.items():
            with self.subTest(name):
                report = sp.verify(step, mesh=MESH)
                self.assertEqual(
                    "NOT EQUIVALENT" if name == "sums" else "EQUIVALENT",
                    report.verdict,
                    str(report),
                )

    def test_real_processes(self):
        for name, (difference, place) in numeric.compare(load, dict.fromkeys(CASES, MESH)).items():
            with self.subTest(name, place=place):
                if name == "sums":
                    self.assertGreater(difference, 3e-4)
                else:
                    self.assertLess(difference, 1e-4)

    def test_parameters_are_compared(self):
        """As if none of them had been lazy."""
        lazy, plain = (
            sp.capture(step_of(layers=layers), mesh=MESH)
            for layers in (
                lambda: [nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 3)],
                lambda: [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)],
            )
        )
        self.assertEqual(
            {kind: set(names) for kind, names in plain.compared.items()},
            {kind: set(names) for kind, names in lazy.compared.items()},
        )

    def test_statistics_are_buffers(self):
        """Of batch normalisation over a rank's samples only."""
        report = sp.verify(
            step_of(layers=lambda: [nn.Linear(4, 6), nn.LazyBatchNorm1d(), nn.Linear(6, 3)]),
            mesh=MESH,
        )
        self.assertEqual("NOT EQUIVALENT", report.verdict, str(report))
        single = sp.verify(
            step_of(layers=lambda: [nn.Linear(4, 6), nn.LazyBatchNorm1d(), nn.Linear(6, 3)]),
            mesh={"dp": 1},
        )
        self.assertEqual("EQUIVALENT", single.verdict, str(single))
        self.assertEqual(
            {"1.running_mean.new", "1.running_var.new", "1.num_batches_tracked.new"},
            set(single.raw["compared"]["buffers"]),
        )

    def test_ranks_that_draw_their_own(self):
        text = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
model = torch.nn.LazyLinear(3)
torch.manual_seed(1)
x = torch.randn(8, 4)[rank::ranks]
DRAWN
loss = model(x).square().mean()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss.backward()
for p in model.parameters():
    dist.all_reduce(p.grad)
    p.grad /= ranks
optimizer.step()
"""
        for drawn, code in (("", 0), ("torch.manual_seed(rank)", 10)):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "train.py"
                path.write_text(text.replace("DRAWN", drawn))
                done = run_command("--mesh", "dp=2", str(path))
            self.assertEqual(code, done.returncode, done.stdout + done.stderr)
            if code:
                self.assertIn("begin with different values of weight", done.stdout)


if __name__ == "__main__":
    unittest.main()
