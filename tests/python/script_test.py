# SPDX-License-Identifier: Apache-2.0
"""Whole scripts by `python -m shardproof.torch`."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import shardproof.torch as sp
import torch
import torch.distributed.nn
from command import run_command
from recorder_steps import MESH

SCRIPT = """
import os, torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x, y = torch.randn(8 // world, 8), torch.randn(8 // world, 4)
    loss = F.mse_loss(model(x), y) DIVIDED
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")
dist.destroy_process_group()
"""


SEVERAL_OPTIMIZERS = """
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(dist.get_rank())
first, second = nn.Linear(8, 8), nn.Linear(8, 4)
whole = nn.parallel.DistributedDataParallel(nn.Sequential(first, second))
if world > 1:
    sharded = ZeroRedundancyOptimizer(first.parameters(), torch.optim.Adam, lr=0.1)
else:
    sharded = torch.optim.Adam(first.parameters(), lr=0.1)
optimizers = [sharded, torch.optim.SGD(second.parameters(), lr=0.1 DIVIDED)]
for _ in range(2):
    x, y = torch.randn(8 // world, 8), torch.randn(8 // world, 4)
    loss = F.mse_loss(whole(x), y)
    print(f"{loss:.3f}")
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
"""


LOADER = """
import os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = int(os.environ["RANK"]), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 10), torch.randint(0, 4, (32,)))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, 8 // world, sampler=sampler, num_workers=2, pin_memory=True)
model = nn.Linear(10, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad DIVIDED= world
    optimizer.step()
"""


def new_interpreter(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "shardproof.torch", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


class Script(unittest.TestCase):
    def run_script(self, text, *options, runs=run_command):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.py"
            path.write_text(text)
            return runs("--mesh", "dp=2", *options, str(path))

    def test_right_and_wrong(self):
        """By a new interpreter, as a user runs it."""
        done = self.run_script(SCRIPT.replace("DIVIDED", ""), runs=new_interpreter)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("EQUIVALENT", done.stdout)
        done = self.run_script(SCRIPT.replace("DIVIDED", "/ world"), runs=new_interpreter)
        self.assertEqual(done.returncode, 10, done.stdout + done.stderr)
        self.assertIn("train.py:", done.stdout)

    def test_an_engine(self):
        text = SCRIPT.replace("DIVIDED", "")
        done = self.run_script(text, "--engine", "local:1", runs=new_interpreter)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = self.run_script(text, "--engine", "local:0")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("engine 'local:0': expected dask://HOST:PORT", done.stderr)

    def test_batches_of_a_loader(self):
        for divided, code in (("/", 0), ("*", 10)):
            done = self.run_script(LOADER.replace("DIVIDED", divided))
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)

    def test_each_of_several_optimizers_steps(self):
        for divided, code in (("", 0), ("/ world", 10)):
            done = self.run_script(SEVERAL_OPTIMIZERS.replace("DIVIDED", divided))
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)

    def test_an_optimizer_that_steps_later(self):
        text = (
            SEVERAL_OPTIMIZERS.replace(
                "for _ in range(2)",
                "xs, ys = torch.randn(4, 8 // world, 8), torch.randn(4, 8 // world, 4)\n"
                "for _ in range(4)",
            )
            .replace(
                "x, y = torch.randn(8 // world, 8), torch.randn(8 // world, 4)",
                "x, y = xs[_], ys[_]",
            )
            .replace(
                """    for optimizer in optimizers:
        optimizer.step()
""",
                """    optimizers[0].step()
    if _ % 2 == 1:
        optimizers[1].step()
""",
            )
        )
        for divided, code in (("", 0), ("/ world", 10)):
            done = self.run_script(text.replace("DIVIDED", divided))
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertIn(
                "only the first steps of each optimizer (2, 1) were verified", done.stdout
            )

    def test_error(self):
        done = self.run_script("raise SystemExit(3)")
        self.assertEqual(done.returncode, 2)


class Devices(unittest.TestCase):
    """A script for GPUs is recorded on a CPU."""

    def test_a_script_for_gpus(self):
        def step(world):
            torch.cuda.set_device(world.rank)
            model = torch.nn.Linear(8, 8, device=torch.device("cuda", world.rank)).cuda()
            wrapped = (
                model
                if world.single
                else torch.nn.parallel.DistributedDataParallel(model, device_ids=[world.rank])
            )
            with torch.cuda.stream(torch.cuda.Stream()):
                loss = (
                    wrapped(world.input("x", (8, 8), shard={"dp": 0}).to("cuda", non_blocking=True))
                    .square()
                    .mean()
                )
            torch.cuda.synchronize()
            loss.backward()
            return loss

        sp.assert_equivalent(step, mesh=MESH)


if __name__ == "__main__":
    unittest.main()
