# SPDX-License-Identifier: Apache-2.0
"""What tensors hold before the step: buffers of one number, leaves written by hand."""

import copy
import functools
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
from models import MLP
from recorder_steps import MESH
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy


class Beginnings(unittest.TestCase):
    """Buffers of one real number begin with any value, unless that number is needed."""

    class Net(torch.nn.Module):
        def __init__(self, track, scale=1.0):
            super().__init__()
            self.linear, self.track = torch.nn.Linear(8, 4), track
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("scale", torch.full((4,), scale))
            self.register_buffer("begun", torch.zeros(()))

        def forward(self, x):
            y = self.linear(x)
            self.track(self, y.detach().mean(0))
            return y * self.scale

    def report(self, track, after=lambda world, model: None, scale=lambda world: 1.0):
        def step(world):
            model = self.Net(lambda model, mean: track(world, model, mean), scale(world))
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            after(world, model)
            return loss

        return sp.verify(step, mesh=MESH, arguments=["--stage-timeout", "10", "--confirm", "off"])

    @staticmethod
    def averaged(factor=lambda world: 0.9):
        def track(world, model, mean):
            if not world.single:
                dist.all_reduce(mean)
                mean /= world.size
            model.mean.mul_(factor(world)).add_(mean, alpha=0.1)

        return track

    @staticmethod
    def added(world, model, mean):
        """Each rank's part of the sum."""
        model.mean += mean / world.size

    @staticmethod
    def reduce(world, model):
        if not world.single:
            dist.all_reduce(model.mean)

    def test_a_factor_of_zeros(self):
        right, wrong = (
            self.report(self.averaged()),
            self.report(self.averaged(lambda world: 0.9 if world.rank == 0 else 0.8)),
        )
        self.assertEqual(("EQUIVALENT", "NOT EQUIVALENT"), (right.verdict, wrong.verdict))
        self.assertFalse(
            any("begins with the number" in a for a in right.assumptions), right.assumptions
        )

    def test_what_was_there_is_added_up_with_the_parts(self):
        self.assertEqual("NOT EQUIVALENT", self.report(self.added, self.reduce).verdict)

    def test_zero_again_at_the_end(self):
        def reduce_and_forget(world, model, what=0.0):
            self.reduce(world, model)
            world.output("seen", model.mean.clone(), mean=())
            model.mean.fill_(what)

        report = self.report(self.added, reduce_and_forget)
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertFalse(any("buffer mean" in a for a in report.assumptions), report.assumptions)
        self.assertEqual(
            "NOT EQUIVALENT",
            self.report(
                self.added,
                lambda world, model: reduce_and_forget(
                    world, model, 0.0 if world.rank == 0 else 1.0
                ),
            ).verdict,
        )
        self.assertEqual(
            "NOT EQUIVALENT",
            self.report(
                self.added, lambda world, model: reduce_and_forget(world, model, 1.0)
            ).verdict,
        )

    def test_parts_that_add_up(self):
        report = self.report(
            self.added, lambda world, model: world.output("mean", model.mean, sum=["dp"])
        )
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertTrue(
            any(
                "the buffer mean begins with the number" in a and "ranks have parts of it" in a
                for a in report.assumptions
            ),
            report.assumptions,
        )

    def test_flags(self):
        def track(world, model, mean, factor=lambda world: 0.9):
            if model.begun == 0:
                model.begun.fill_(1)
            self.averaged(factor)(world, model, mean)

        report = self.report(track)
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertEqual(
            1, sum("begins with the number" in a for a in report.assumptions), report.assumptions
        )
        self.assertTrue(
            any("the buffer begun begins with the number" in a for a in report.assumptions),
            report.assumptions,
        )
        self.assertEqual(
            "NOT EQUIVALENT",
            self.report(
                lambda *a: track(*a, factor=lambda world: 0.9 if world.rank == 0 else 0.8)
            ).verdict,
        )

    def test_numbers_that_decide(self):
        def track(world, model, mean):
            if bool((model.mean == 0).all()):
                model.mean.copy_(mean)

        def decided(world, model):
            self.reduce(world, model)
            model.mean /= world.size

        report = self.report(track, decided)
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertTrue(
            any("the buffer mean begins with the number" in a for a in report.assumptions),
            report.assumptions,
        )

    def test_other_numbers_on_ranks(self):
        def after(world, model):
            world.output("scale", model.scale * world.size, mean=())

        report = self.report(lambda world, model, mean: None, after, lambda world: 1.0 / world.size)
        self.assertEqual("NOT EQUIVALENT", report.verdict)  # the loss
        self.assertTrue(
            any(
                "the buffer scale begins with the number" in a and "rank 0 begins with another" in a
                for a in report.assumptions
            ),
            report.assumptions,
        )

    def test_statistics_that_stay(self):
        def step(world, used):
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8).eval())
            if world.rank == 1:
                model[1].register_forward_hook(lambda module, args, out: out + used(module))
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            return loss

        for used in (lambda module: module.running_mean, lambda module: module.running_var - 1):
            self.assertEqual(
                "NOT EQUIVALENT",
                sp.verify(
                    functools.partial(step, used=used), mesh=MESH, arguments=["--confirm", "off"]
                ).verdict,
            )


class FlatBuffers(unittest.TestCase):
    """What FSDP's first version puts into a flat buffer, and takes out in its shape again."""

    @staticmethod
    def report(change):
        def step(world):
            model = torch.nn.Linear(6, 8)
            if not world.single:
                with torch.no_grad():
                    model.weight.copy_(change(model.weight))
                model = FullyShardedDataParallel(
                    model,
                    sharding_strategy=ShardingStrategy.NO_SHARD,
                    device_id=torch.device("cpu"),
                    use_orig_params=True,
                    process_group=world.group("dp"),
                )
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss = model(world.input("x", (4, 6), shard={"dp": 0})).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return sp.verify(step, mesh=MESH)

    def test_the_same_numbers(self):
        report = self.report(lambda weight: weight.clone())
        self.assertEqual(report.verdict, "EQUIVALENT", report)

    def test_the_same_numbers_at_other_places(self):
        report = self.report(lambda weight: weight.t().reshape(8, 6))
        self.assertEqual(report.verdict, "NOT EQUIVALENT", report)
        self.assertIn("made of the same random numbers", report.text)


class Leaves(unittest.TestCase):
    """Tensors that a step writes by hand and that no called module has."""

    def verdict(self, step, **options):
        return sp.verify(
            functools.partial(step, **options),
            mesh=MESH,
            arguments=["--stage-timeout", "10", "--confirm", "off"],
        ).verdict

    @staticmethod
    def by_hand(world, reduced=True, data=False):
        x, w = world.input("x", (8, 8), shard={"dp": 0}), torch.randn(8, 4, requires_grad=True)
        loss = (x @ w).square().mean()
        loss.backward()
        if reduced and not world.single:
            dist.all_reduce(w.grad)
            w.grad /= world.size
        if data:
            w.data.sub_(w.grad, alpha=0.1)
        else:
            with torch.no_grad():
                w -= 0.1 * w.grad
        return loss

    @staticmethod
    def averaged(world, way, factor=lambda world: 0.1, frozen=False):
        torch.manual_seed(0)
        model = MLP()
        copy_of = copy.deepcopy(model).requires_grad_(not frozen)
        loss = model(world.input("x", (8, 16), shard={"dp": 0})).square().mean()
        loss.backward()
        for p in model.parameters() if not world.single else ():
            dist.all_reduce(p.grad)
            p.grad /= world.size
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        with torch.no_grad():
            if way == "parameters":
                for a, p in zip(copy_of.parameters(), model.parameters(), strict=True):
                    a.mul_(1 - factor(world)).add_(p, alpha=factor(world))
            elif way == "data":
                for a, p in zip(copy_of.parameters(), model.parameters(), strict=True):
                    a.data.copy_(a.data * (1 - factor(world)) + factor(world) * p.data)
            elif way == "states":
                for a, p in zip(
                    copy_of.state_dict().values(), model.state_dict().values(), strict=True
                ):
                    a.lerp_(p, factor(world))
            else:
                torch._foreach_lerp_(
                    list(copy_of.parameters()), list(model.parameters()), factor(world)
                )
        return loss

    def test_a_leaf(self):
        for data in (False, True):
            self.assertEqual("EQUIVALENT", self.verdict(self.by_hand, data=data))
            self.assertEqual("NOT EQUIVALENT", self.verdict(self.by_hand, reduced=False, data=data))

    def test_averaged_copies(self):
        for way in ("parameters", "data", "states", "together"):
            for frozen in (False, True):
                with self.subTest(way, frozen=frozen):
                    self.assertEqual(
                        "EQUIVALENT", self.verdict(self.averaged, way=way, frozen=frozen)
                    )
                    self.assertEqual(
                        "NOT EQUIVALENT",
                        self.verdict(
                            self.averaged,
                            way=way,
                            frozen=frozen,
                            factor=lambda world: 0.1 if world.rank == 0 else 0.2,
                        ),
                    )

    def test_copies_that_are_made_too_early(self):
        """An average of weights begins with a copy of them.

        It equals the weights before the step where it is made before it.
        """

        def step(world, early):
            model = torch.nn.Linear(8, 4)
            average = torch.optim.swa_utils.AveragedModel(model)
            model(world.input("x", (8, 8))).square().mean().backward()
            if early:
                average.update_parameters(model)
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            if not early:
                average.update_parameters(model)

        self.assertEqual(
            "EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict
        )
        self.assertEqual(
            "EQUIVALENT", sp.verify(lambda world: step(world, True), mesh=MESH).verdict
        )
        self.assertEqual(
            "NOT EQUIVALENT",
            sp.verify(
                lambda world: step(world, False), lambda world: step(world, True), mesh=MESH
            ).verdict,
        )

    def test_that_one_rank_writes(self):
        def step(world):
            loss = self.by_hand(world)
            if world.rank == 0:
                extra = torch.zeros(3, requires_grad=True)
                with torch.no_grad():
                    extra += loss
            return loss

        report = sp.verify(step, mesh=MESH, arguments=["--confirm", "off"])
        self.assertEqual("CONDITIONAL", report.verdict, str(report))
        self.assertTrue(
            any(
                "leaf 3.0.new" in a and "not compared: rank 1" in a and "leaf 8x4" not in a
                for a in report.not_compared
            ),
            report.not_compared,
        )

    def test_that_cannot_be_followed(self):
        def step(world):
            loss = self.by_hand(world)
            w = torch.randn(4, requires_grad=True)
            with torch.no_grad():
                w += loss.to(torch.long) ^ 3
            return loss

        report = sp.verify(step, mesh=MESH, arguments=["--confirm", "off"])
        self.assertEqual("CONDITIONAL", report.verdict, str(report))
        self.assertTrue(
            any("shape [4]" in a and "not compared" in a for a in report.not_compared),
            report.not_compared,
        )

    def test_outputs_with_names_of_parameters(self):
        def step(world, factor):
            model = torch.nn.Linear(8, 4)
            world.parameters(model)
            x = world.input("x", (8, 8), shard={"dp": 0})
            found = torch.func.grad(
                lambda p: torch.func.functional_call(model, p, (x,)).square().mean()
            )(dict(model.named_parameters()))
            for name, g in found.items():
                if not world.single:
                    dist.all_reduce(g)
                    g /= factor
                world.output(name, g, mean=())

        self.assertEqual("EQUIVALENT", self.verdict(step, factor=2))
        self.assertEqual("NOT EQUIVALENT", self.verdict(step, factor=3))


if __name__ == "__main__":
    unittest.main()
