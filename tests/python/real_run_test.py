# SPDX-License-Identifier: Apache-2.0
"""Recorded programs against the step that runs with PyTorch (session/real_run.py)."""

import contextlib
import importlib
import os
import unittest
from unittest import mock

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from recorder_steps import MESH, train
from shardproof.torch.aten.table import LOWERINGS
from shardproof.torch.session import isolated_processes, real_run


def average(world, model):
    """The gradients are averaged already."""


def right(world):
    return train(world, average)


def normalised(world):
    """Batch statistics, which go into buffers; a buffer that only the step's own numbers make."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    if not world.single:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = model(world.input("x", (8, 4), shard={"dp": 0})).square().mean()
    loss.backward()
    optimizer.step()
    return loss


class Agrees(unittest.TestCase):
    def numbers(self, *steps, mesh=MESH, verdict="EQUIVALENT"):
        report = sp.verify(*steps, mesh=mesh, numbers=True)
        self.assertEqual(report.verdict, verdict, report)
        self.assertEqual(report.numbers.differs, "", report)
        self.assertEqual(report.numbers.because, "", report)
        return report

    def test_one_device_and_each_rank(self):
        report = self.numbers(right)
        # the loss, two parameters and their gradients, on the single device and two ranks
        self.assertEqual(report.numbers.compared, 15)
        self.assertIn("15 tensors of the recorded programs are those of the step", str(report))

    def test_buffers_and_states(self):
        self.assertGreater(self.numbers(normalised).numbers.compared, 30)

    def test_wrong_steps_are_recorded_as_they_are(self):
        def wrong(world):
            return train(world, lambda world, model: model.up.weight.grad.mul_(1 + world.rank))

        self.numbers(wrong, verdict="NOT EQUIVALENT")

    def test_examples(self):
        for name in (
            "right_fsdp_uneven",
            "right_llama_tp_sp",
            "right_pipeline_1f1b",
            "wrong_zero1_sum_for_mean",
        ):
            with self.subTest(name):
                module = importlib.import_module(name)
                steps = [s for s in (getattr(module, "single", None), module.step) if s]
                self.numbers(*steps, mesh=module.MESH, verdict=module.EXPECT)


@contextlib.contextmanager
def recorded_as(name, other):
    """The recorder takes one operator of ATen for another."""
    with mock.patch.dict(LOWERINGS, {"aten." + name: LOWERINGS["aten." + other]}):
        yield


class Differs(unittest.TestCase):
    """A recording that is not what PyTorch computes proves nothing of the step."""

    def undecided(self, *steps, **options):
        report = sp.verify(*steps, mesh=MESH, numbers=True, **options)
        self.assertEqual(report.verdict, "UNDECIDED", report)
        self.assertIn("the recording is not what PyTorch computes", report.text.split("\n")[0])
        self.assertFalse(report.equivalent)
        return report

    def test_an_operator_that_is_recorded_as_another(self):
        def step(world):
            x = world.input("x", (8, 4), shard={"dp": 0})
            return torch.sigmoid(x).mean()

        with recorded_as("sigmoid", "tanh"):
            self.assertTrue(sp.verify(step, mesh=MESH, numbers=False).equivalent)
            report = self.undecided(step)
        self.assertIn("on the single device is", report.numbers.differs)
        self.assertIn("in the recording", report.numbers.differs)

    def test_what_is_not_recorded(self):
        """A number from outside, which is another one where the step runs."""

        def step(world):
            x = world.input("x", (8, 4), shard={"dp": 0})
            return x.mean() * int(os.environ.get("NUMBER_OF_THE_TEST", "1"))

        def run_rank(*arguments):
            os.environ["NUMBER_OF_THE_TEST"] = "2"
            return real_run.run_rank(*arguments)

        with mock.patch.object(isolated_processes, "run_rank", run_rank):
            self.undecided(step)

    def test_a_refutation_stays_and_shows_the_difference(self):
        def step(world):
            x = world.input("x", (8, 4), shard={"dp": 0})
            return torch.sigmoid(x).mean() * (1 + world.rank)

        with recorded_as("sigmoid", "tanh"):
            report = sp.verify(step, mesh=MESH, numbers=True)
        self.assertEqual(report.verdict, "NOT EQUIVALENT", report)
        self.assertIn("in the recording", str(report).split("Numbers: ")[1])


class NotCompared(unittest.TestCase):
    """The report tells why nothing was compared, and the verdict is the proof's."""

    def because(self, text, *steps, **options):
        report = sp.verify(*steps, mesh=options.pop("mesh", MESH), numbers=True, **options)
        self.assertTrue(report.equivalent, report)
        self.assertIn(text, report.numbers.because)
        self.assertIn(f"not compared with PyTorch's: {report.numbers.because}", str(report))

    def test_ways_that_data_chooses(self):
        """What was recorded is one of them, and the run may go the other one."""

        def step(world):
            loss = world.input("x", (8, 4), shard={"dp": 0}).mean()
            wide = bool(loss > 1e6)
            return loss * (world.rank + 1 if wide else 1)

        report = sp.verify(step, mesh=MESH, numbers=True)
        self.assertEqual(report.verdict, "NOT EQUIVALENT", report)
        self.assertEqual(report.numbers.because, "the code decides by numbers of data")

    def test_random_numbers(self):
        def step(world):
            x = world.input("x", (8, 4), shard={"dp": 0})
            return F.dropout(x, 0.5).mean()

        report = sp.verify(step, mesh=MESH, numbers=True)
        self.assertIn("no number for %random", report.numbers.because)

    def test_ranks_that_cannot_run_here(self):
        def step(world):
            x = world.input("x", (8, 4), shard={"dp": 0})
            loss = x.mean()
            if not world.single:
                # which gloo does not have
                dist.all_reduce(loss, dist._make_nccl_premul_sum(1 / world.size))
                world.output("loss", loss, mean=())
                return None
            world.output("loss", loss, mean=())
            return None

        self.because("cannot run here", step)

    def test_tensors_that_are_large(self):
        def step(world):
            return world.input("x", (4096, 8192), shard={"dp": 0}).mean()

        self.because("more than 2e+07", step)

    def test_many_ranks(self):
        def step(world):
            return world.input("x", (32, 2), shard={"dp": 0}).mean()

        self.because("32 ranks are more than 16", step, mesh={"dp": 32}, ranks="classes")

    def test_parts_that_nobody_declared(self):
        """The recorder goes by their sizes; the step that runs begins them as whole tensors."""

        def step(world):
            model = torch.nn.Linear(4, 8 // world.size, bias=False)
            out = model(world.input("x", (8, 4)))
            if not world.single:
                parts = [torch.empty_like(out) for _ in range(world.size)]
                dist.all_gather(parts, out.detach())
                out = torch.cat(parts, 1)
            world.output("out", out, mean=())

        self.because("does not declare which", step)

    def test_it_is_not_asked_for(self):
        report = sp.verify(right, mesh=MESH, numbers=False)
        self.assertIsNone(report.numbers)
        self.assertNotIn("Numbers:", str(report))


if __name__ == "__main__":
    unittest.main()
