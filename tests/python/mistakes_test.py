# SPDX-License-Identifier: Apache-2.0
"""The first sentence on a wrong step: which common mistake it makes."""

import contextlib
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from recorder_steps import MESH
from shardproof.report import Defect, Report
from shardproof.torch.session.mistakes import only_printed
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def data_parallel(
    loss=lambda out, y, world: F.cross_entropy(out, y),
    lr=lambda world: 0.1,
    reduce=None,
    norm=nn.Identity,
    micro=1,
    last=True,
    clip=None,
):
    """One step of a small model. reduce(gradient): in place of DistributedDataParallel. micro: how
    many backwards; last: the last of them is synchronised.
    """

    def step(world):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), norm(3))
        wrapped = DistributedDataParallel(model) if reduce is None else model
        optimizer = torch.optim.SGD(model.parameters(), lr(world))
        for i in range(micro):
            x = world.input(f"x{i}", (8, 4), shard={"dp": 0})
            y = world.input(f"y{i}", (8,), torch.int64, shard={"dp": 0}, high=3)
            with contextlib.nullcontext() if last and i + 1 == micro else wrapped.no_sync():
                loss_of = loss(wrapped(x), y, world)
                (loss_of / micro).backward()
        for p in model.parameters() if reduce is not None and not world.single else ():
            reduce(p.grad)
        if not world.single:
            dist.barrier()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

    return step


class OwnStatistics(nn.BatchNorm1d):
    """Makes its statistics itself, over all ranks' samples, and scales them wrongly."""

    def forward(self, x):
        mean = x.mean(0)
        dist.all_reduce(mean)
        return (x - mean) * self.weight + self.bias


class ReduceGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def tensor_parallel(bias_of_each=False, norm_of_each=False):
    """Hidden units over tp. bias_of_each: the last bias is added before the sum over ranks;
    norm_of_each: so are the squares of gradients that all ranks have.
    """

    def step(world):
        ranks = world.size
        up, down = nn.Linear(4, 8 // ranks), nn.Linear(8 // ranks, 4)
        nn.init.zeros_(down.bias)  # as it is drawn, it depends on the size of a rank's part
        whole = nn.LayerNorm(4)
        model = nn.Sequential(whole, up, down)
        world.parameters(model)
        x = world.input("x", (6, 4))
        hidden = up(ReduceGradient.apply(whole(x))).relu()
        if bias_of_each:
            out = Reduce.apply(down(hidden))
        else:
            out = Reduce.apply(F.linear(hidden, down.weight)) + down.bias
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        out.square().mean().backward()
        parts = [up.weight, up.bias, down.weight]
        wholes = [*whole.parameters(), down.bias]
        squares = sum(p.grad.square().sum() for p in parts)
        if norm_of_each:
            squares = squares + sum(p.grad.square().sum() for p in wholes)
        squares = Reduce.apply(squares)
        if not norm_of_each:
            squares = squares + sum(p.grad.square().sum() for p in wholes)
        for p in model.parameters():
            p.grad.mul_(torch.clamp(1 / (squares.sqrt() + 1e-6), max=1.0))
        optimizer.step()

    return step


class Mistakes(unittest.TestCase):
    def check(self, step, *expected, mesh=None):
        report = sp.verify(
            step, mesh=mesh or MESH, arguments=["--confirm", "off", "--diagnose", "off"]
        )
        self.assertEqual(report.verdict, "NOT EQUIVALENT", report)
        for text in expected:
            self.assertIn(text, report.likely_mistake)
        first, second = report.text.split("\n\n")[:2]
        self.assertTrue(first.startswith("NOT EQUIVALENT: "), report.text)
        self.assertEqual(second, f"Likely mistake: {report.likely_mistake}.")

    def test_a_sum_under_an_averaging_reduction(self):
        self.check(
            data_parallel(lambda out, y, world: F.cross_entropy(out, y, reduction="sum")),
            "is a sum over samples, and the gradients are averaged over dp",
            "1/2 times",
        )

    def test_two_sums_under_an_averaging_reduction(self):
        def loss(out, y, world):
            return F.cross_entropy(out, y, reduction="sum") + 0.5 * out.square().sum()

        self.check(
            data_parallel(loss),
            "is a sum over samples, and the gradients are averaged over dp",
            "1/2 times",
        )

    def test_a_loss_divided_twice(self):
        self.check(
            data_parallel(lambda out, y, world: F.cross_entropy(out, y) / world.size),
            "the loss is divided by the number of ranks (2) at mistakes_test.py",
        )
        self.check(
            data_parallel(lambda out, y, world: F.cross_entropy(out, y) / world.size, clip=1.0),
            "the loss is divided by the number of ranks (2) at mistakes_test.py",
        )
        self.check(
            data_parallel(lambda out, y, world: F.cross_entropy(out, y, reduction="sum") / 8),
            "is divided by the size of the whole batch",
        )

    def test_gradients_that_are_not_divided(self):
        self.check(
            data_parallel(reduce=dist.all_reduce), "and not divided by the number of ranks (2)"
        )

    def test_gradients_that_are_divided_twice(self):
        def reduce(gradient):
            dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
            gradient /= 2

        self.check(data_parallel(reduce=reduce), "divided by the number of ranks (2) twice")

    def test_a_backward_that_is_not_synchronised(self):
        self.check(
            data_parallel(micro=2, last=False), "without gradient synchronisation", "no_sync"
        )

    def test_gradients_that_are_not_reduced(self):
        self.check(
            data_parallel(reduce=lambda gradient: None),
            "no collective over dp reduces the gradients of 0.weight, 0.bias",
        )

    def test_gradients_of_drawn_samples_that_are_not_reduced(self):
        """A generator without DistributedDataParallel, whose discriminator has it."""

        def step(world):
            torch.manual_seed(0)
            maker, judge = nn.Linear(3, 4), nn.Linear(4, 1)
            optimizer = torch.optim.SGD(maker.parameters(), 0.1)
            torch.manual_seed(world.rank)
            rows = 16 if world.single else 8
            noise = torch.randn(rows, 3)
            DistributedDataParallel(judge)(maker(noise)).mean().backward()
            optimizer.step()

        self.check(step, "no collective over dp reduces the gradients of weight: each rank")

    def test_statistics_of_a_rank(self):
        self.check(data_parallel(norm=nn.BatchNorm1d), "BatchNorm 1 (at mistakes_test.py")

    def test_statistics_by_hand_are_no_local_ones(self):
        report = sp.verify(
            data_parallel(norm=OwnStatistics),
            mesh=MESH,
            arguments=["--confirm", "off", "--diagnose", "off"],
        )
        self.assertEqual(report.verdict, "NOT EQUIVALENT", report)
        self.assertNotIn("own samples, not of the batch", report.likely_mistake)

    def test_a_learning_rate_times_the_ranks(self):
        self.check(
            data_parallel(lr=lambda world: 0.1 * world.size),
            "the learning rate is 0.2 on the ranks and 0.1 on the single device",
        )

    def test_a_bias_that_each_rank_adds(self):
        step = tensor_parallel(bias_of_each=True)
        self.check(step, "2 ranks adds all of 2.bias", "counts 2 times", mesh={"tp": 2})

    def test_a_norm_in_which_each_rank_counts_what_all_have(self):
        step = tensor_parallel(norm_of_each=True)
        expected = "gradients of 0.bias, 0.weight, 2.bias", "counts 2 times"
        self.check(step, *expected, mesh={"tp": 2})

    def test_a_number_that_is_printed(self):
        def told(outputs_proved, *tensors):
            defects = [Defect("lineage", "", tensor, [], {}) for tensor in tensors]
            return only_printed(Report("NOT EQUIVALENT", "", 4, outputs_proved, defects, "", {}))

        number = "the number printed at train.py:31"
        self.assertIn(f"{number} differs, and nothing that is trained", told(3, number))
        self.assertEqual(told(2, number), "")  # something else is not proved
        self.assertEqual(told(2, number, "weight.new"), "")
        self.assertEqual(told(4), "")

    def test_none_of_these(self):
        def step(world):
            """Half of the features are left out, and the loss is a right mean."""
            model = nn.Linear(4, 3)
            wrapped = DistributedDataParallel(model)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            x = world.input("x", (8, 4), shard={"dp": 0})
            x = x if world.single else x * torch.tensor([1.0, 1.0, 0.0, 0.0])
            wrapped(x).square().mean().backward()
            optimizer.step()

        report = sp.verify(step, mesh=MESH, arguments=["--confirm", "off", "--diagnose", "off"])
        self.assertEqual(report.verdict, "NOT EQUIVALENT", report)
        self.assertEqual(report.likely_mistake, "")
        self.assertNotIn("Likely mistake", report.text)

    def test_right_steps(self):
        steps = (
            data_parallel(),
            data_parallel(micro=2),
            data_parallel(reduce=lambda g: dist.all_reduce(g, op=dist.ReduceOp.AVG)),
        )
        for step in steps:
            report = sp.verify(step, mesh=MESH, arguments=["--confirm", "off", "--diagnose", "off"])
            self.assertEqual(report.verdict, "EQUIVALENT", report)
            self.assertEqual(report.likely_mistake, "")
        report = sp.verify(tensor_parallel(), mesh={"tp": 2})
        self.assertEqual(report.verdict, "EQUIVALENT", report)


if __name__ == "__main__":
    unittest.main()
