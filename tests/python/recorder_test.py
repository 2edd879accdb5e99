# SPDX-License-Identifier: Apache-2.0
"""The recorder fails closed: what it does not know makes an error, never a verdict; views and in-place writes; scripts."""

import array
import cmath
import copy
import decimal
import functools
import gzip
import io
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
from math import sqrt

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from models import MLP
from shardproof.torch.export.boxes import NoPlace, locate
from shardproof.torch.intercept.data_number import DataDependent
from shardproof.torch.terms.geometry import contiguous
from shardproof.torch.step.tracked_tensors import Placement, TrackedTensor as Mark
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.terms.values import Filled
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

MESH = {"dp": 2}


def train(world, change, shard={"dp": 0}):
    """A step of data parallelism by hand; `change` does something to the gradients after they were averaged."""
    model = MLP()
    x, y = (world.input(name, (8, 16), shard=shard) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    for p in model.parameters():
        if not world.single:
            dist.all_reduce(p.grad)
            p.grad /= world.size
    change(world, model)
    return loss


def train_alone(world):
    model = torch.nn.Linear(4, 4, bias=False)
    x = world.input("x", (8, 4), shard={"dp": 0})
    world.parameters(model)
    return torch.autograd.grad(model(x).square().mean(), model.weight)[0]


def _item_set(n):
    t = torch.zeros(8)
    t[2] = n
    return t


@functools.lru_cache
def kept_scale():
    """As libraries keep the size of the world."""
    return dist.get_world_size()


left_behind: dict = {}


class Compiled(unittest.TestCase):
    """What is compiled runs eagerly, and is looked at like all else."""

    def test_each_compiler(self):
        def step(world, compiled, reduced=True):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
            loss = compiled(model)(world.input("x", (8, 4), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if reduced and not world.single else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            return loss

        for name, compiled in {"compile": lambda m: torch.compile(m), "script": lambda m: torch.jit.script(m), "trace": lambda m: torch.jit.trace(m, torch.zeros(8, 4))}.items():
            with self.subTest(name):
                right = sp.verify(functools.partial(step, compiled=compiled), mesh=MESH, arguments=["--confirm", "off"])
                self.assertEqual(("EQUIVALENT", []), (right.verdict, right.not_compared), str(right))
                wrong = sp.verify(functools.partial(step, compiled=compiled, reduced=False), mesh=MESH, arguments=["--confirm", "off"])
                self.assertEqual("NOT EQUIVALENT", wrong.verdict, str(wrong))


class Kept(unittest.TestCase):
    """What a step keeps beside parameters and optimizer state: buffers, parameters that took the place of others, single numbers."""

    class Net(torch.nn.Module):
        def __init__(self, track):
            super().__init__()
            self.linear, self.track = torch.nn.Linear(8, 4), track
            for name in ("mean", "fixed", "rate"):
                self.register_buffer(name, torch.zeros(4) if name == "mean" else torch.randn(4) if name == "fixed" else None)
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.register_buffer("cache", torch.zeros(1), persistent=False)
            self.scale = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            y = self.linear(x) * self.scale
            self.track(self, y.detach().mean(0))
            return y

    def verdict(self, track, after=lambda world, model: None, reduced=("linear.weight", "linear.bias", "scale"), **options):
        def step(world):
            model = self.Net(lambda model, mean: track(world, model, mean))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            for name, p in model.named_parameters() if not world.single else ():
                if name in reduced:
                    dist.all_reduce(p.grad)
                    p.grad /= world.size
            optimizer.step()
            after(world, model)
            return loss

        return sp.verify(step, mesh=MESH, arguments=["--timeout", "10", "--confirm", "off"], **options).verdict

    @staticmethod
    def nothing(world, model, mean):
        pass

    @staticmethod
    def averaged(world, model, mean):
        if not world.single:
            dist.all_reduce(mean)
            mean /= world.size
        model.mean.mul_(0.9).add_(mean, alpha=0.1)
        model.rate = mean.square().sum()
        model.count += 1
        model.cache = torch.ones(world.size)

    @staticmethod
    def local(world, model, mean):
        model.mean.mul_(0.9).add_(mean, alpha=0.1)

    def test_statistics(self):
        self.assertEqual("EQUIVALENT", self.verdict(self.averaged))
        self.assertEqual("NOT EQUIVALENT", self.verdict(self.local))

    def test_optimizers_of_which_one_rank_has_another(self):
        """What is not compared then is said, though the other rank has what the single device has."""
        def step(world):
            torch.manual_seed(0)
            model = torch.nn.Linear(8, 4)
            groups = [model.weight, model.bias] if world.rank == 0 else [{"params": [model.weight]}, {"params": [model.bias]}]
            optimizer = torch.optim.SGD(groups, lr=0.1)
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            optimizer.step()
            return loss

        report = sp.verify(step, mesh=MESH, arguments=["--timeout", "10", "--confirm", "off"])
        self.assertEqual("CONDITIONAL", report.verdict, str(report))
        self.assertTrue(any("optimizer0.groups.0.lr" in a and "rank 1" in a for a in report.not_compared), report.not_compared)

    def test_a_number_that_is_no_mean(self):
        def rate(world, model, mean):
            model.rate = mean[0]

        self.assertEqual("NOT EQUIVALENT", self.verdict(rate))
        self.assertEqual("NOT EQUIVALENT", self.verdict(self.nothing, reduced=("linear.weight", "linear.bias")))

    def test_one_side_leaves_it(self):
        def counted(world, model, mean):
            if not world.single:
                model.count += 1

        def counted_alone(world, model, mean):
            if world.single:
                model.count += 1

        def scaled(world, model, mean):
            if world.rank == 1:
                model.fixed.mul_(2)

        def made(world, model, mean):
            if not world.single:
                model.rate = torch.ones(())

        for track in (counted, counted_alone, scaled):
            for ranks in ("all", "classes"):
                self.assertEqual("NOT EQUIVALENT", self.verdict(track, ranks=ranks), track)
        with self.assertRaisesRegex(sp.CaptureError, "'rate.new', a buffer that ranks change, is not on the single device"):
            self.verdict(made)

    def test_what_cannot_be_followed(self):
        def unknown(world, model, mean):
            model.fixed.copy_(mean.to(torch.long))

        with self.assertRaisesRegex(sp.CaptureError, "'fixed.new' cannot be followed"):
            self.verdict(unknown)

    def test_said_by_output(self):
        def after(world, model):
            world.output("mean", model.mean, mean=["dp"])

        def after_and_again(world, model):
            world.output("mean", model.mean, mean=["dp"])
            model.mean += world.rank

        self.assertEqual("EQUIVALENT", self.verdict(self.local, after))
        self.assertEqual("NOT EQUIVALENT", self.verdict(self.local, after_and_again))

    def test_module_of_buffers_alone(self):
        def step(world, reduce):
            tracker, model = torch.nn.BatchNorm1d(8, affine=False), torch.nn.Linear(8, 4)
            tracker = tracker if world.single or not reduce else torch.nn.SyncBatchNorm.convert_sync_batchnorm(tracker)
            x = world.input("x", (8, 8), shard={"dp": 0})
            tracker(x)
            return model(x).square().mean().detach()

        for reduce in (True, False):
            self.assertEqual("EQUIVALENT" if reduce else "NOT EQUIVALENT", sp.verify(functools.partial(step, reduce=reduce), mesh=MESH, arguments=["--confirm", "off"]).verdict)

    def test_frozen_statistics(self):
        def step(world):
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8).eval())
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            return loss

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=MESH, arguments=["--confirm", "off"]).verdict)

    def test_tables_that_are_broadcast(self):
        def step(world, factor):
            model = torch.nn.Linear(8, 4)
            model.register_buffer("table", torch.arange(4.0))
            model.register_buffer("rotation", torch.polar(torch.ones(4), torch.arange(4.0)))
            wrapped = model if world.single else torch.nn.parallel.DistributedDataParallel(model)
            loss = wrapped(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            model.rotation *= factor if world.rank else 1.0
            return loss

        for factor in (1.0, 2.0):
            self.assertEqual("EQUIVALENT" if factor == 1.0 else "NOT EQUIVALENT", sp.verify(functools.partial(step, factor=factor), mesh=MESH, arguments=["--confirm", "off"]).verdict)

    def test_tensors_of_optimizers_that_are_no_modules(self):
        def step(world, reduced, times=1):
            model, weights = torch.nn.Linear(8, 2), torch.zeros(2, requires_grad=True)
            wrapped = model if world.single else torch.nn.parallel.DistributedDataParallel(model)
            optimizer = torch.optim.AdamW([{"params": model.parameters()}, {"params": [weights], "lr": 0.1}])
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            loss = (wrapped(world.input("x", (8, 8), shard={"dp": 0})).square().mean(0) * torch.exp(-weights) + weights).sum()
            loss.backward()
            if reduced and not world.single:
                dist.all_reduce(weights.grad)
                weights.grad /= world.size
            optimizer.step()
            for _ in range(1 if world.single else times):
                schedule.step()
            return loss

        for options, verdict in ({"reduced": True}, "EQUIVALENT"), ({"reduced": False}, "NOT EQUIVALENT"), ({"reduced": True, "times": 2}, "NOT EQUIVALENT"):
            self.assertEqual(verdict, sp.verify(functools.partial(step, **options), mesh=MESH, arguments=["--timeout", "10", "--confirm", "off"]).verdict, options)

    def test_optimizers_of_a_rank_that_are_others(self):
        def step(world):
            model = torch.nn.Linear(8, 4)
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            own = [torch.nn.Parameter(p.detach().flatten().chunk(world.size)[world.rank].clone()) for p in model.parameters()]
            for main, p in zip(own, model.parameters()):
                main.grad = p.grad.flatten().chunk(world.size)[world.rank]
            torch.optim.SGD(own, lr=0.1).step()
            for main, p in zip(own, model.parameters()):
                whole = torch.empty(p.numel())
                if world.single:
                    whole.copy_(main.detach())
                else:
                    dist.all_gather_into_tensor(whole, main.detach())
                p.data.copy_(whole.view_as(p))
            return loss

        self.assertEqual("CONDITIONAL", sp.verify(step, mesh=MESH, arguments=["--timeout", "10", "--confirm", "off"]).verdict)

    def test_parameters_that_take_the_place_of_others(self):
        def replaced(world, model, scale):
            model.linear.weight = torch.nn.Parameter(model.linear.weight.detach() * scale)
            model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)

        self.assertEqual("EQUIVALENT", self.verdict(self.nothing, lambda world, model: replaced(world, model, 0.5)))
        self.assertEqual("NOT EQUIVALENT", self.verdict(self.nothing, lambda world, model: replaced(world, model, 0.5 if world.rank == 0 else 0.6)))


class Beginnings(unittest.TestCase):
    """Buffers of one real number everywhere begin with any value, but where their number is needed (initial_state.py)."""

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

        return sp.verify(step, mesh=MESH, arguments=["--timeout", "10", "--confirm", "off"])

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
        right, wrong = self.report(self.averaged()), self.report(self.averaged(lambda world: 0.9 if world.rank == 0 else 0.8))
        self.assertEqual(("EQUIVALENT", "NOT EQUIVALENT"), (right.verdict, wrong.verdict))
        self.assertFalse(any("begins with the number" in a for a in right.assumptions), right.assumptions)

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
        self.assertEqual("NOT EQUIVALENT", self.report(self.added, lambda world, model: reduce_and_forget(world, model, 0.0 if world.rank == 0 else 1.0)).verdict)
        self.assertEqual("NOT EQUIVALENT", self.report(self.added, lambda world, model: reduce_and_forget(world, model, 1.0)).verdict)

    def test_parts_that_add_up(self):
        report = self.report(self.added, lambda world, model: world.output("mean", model.mean, sum=["dp"]))
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertTrue(any("the buffer mean begins with the number" in a and "ranks have parts of it" in a for a in report.assumptions), report.assumptions)

    def test_flags(self):
        def track(world, model, mean, factor=lambda world: 0.9):
            if model.begun == 0:
                model.begun.fill_(1)
            self.averaged(factor)(world, model, mean)

        report = self.report(track)
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertEqual(1, sum("begins with the number" in a for a in report.assumptions), report.assumptions)
        self.assertTrue(any("the buffer begun begins with the number" in a for a in report.assumptions), report.assumptions)
        self.assertEqual("NOT EQUIVALENT", self.report(lambda *a: track(*a, factor=lambda world: 0.9 if world.rank == 0 else 0.8)).verdict)

    def test_numbers_that_decide(self):
        def track(world, model, mean):
            if bool((model.mean == 0).all()):
                model.mean.copy_(mean)

        def decided(world, model):
            self.reduce(world, model)
            model.mean /= world.size

        report = self.report(track, decided)
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertTrue(any("the buffer mean begins with the number" in a for a in report.assumptions), report.assumptions)

    def test_other_numbers_on_ranks(self):
        after = lambda world, model: world.output("scale", model.scale * world.size, mean=())
        report = self.report(lambda world, model, mean: None, after, lambda world: 1.0 / world.size)
        self.assertEqual("NOT EQUIVALENT", report.verdict)  # the loss
        self.assertTrue(any("the buffer scale begins with the number" in a and "rank 0 begins with another" in a for a in report.assumptions), report.assumptions)

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
            self.assertEqual("NOT EQUIVALENT", sp.verify(functools.partial(step, used=used), mesh=MESH, arguments=["--confirm", "off"]).verdict)


class Leaves(unittest.TestCase):
    """Tensors that a step writes by hand and that no called module has."""

    def verdict(self, step, **options):
        return sp.verify(functools.partial(step, **options), mesh=MESH, arguments=["--timeout", "10", "--confirm", "off"]).verdict

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
                for a, p in zip(copy_of.parameters(), model.parameters()):
                    a.mul_(1 - factor(world)).add_(p, alpha=factor(world))
            elif way == "data":
                for a, p in zip(copy_of.parameters(), model.parameters()):
                    a.data.copy_(a.data * (1 - factor(world)) + factor(world) * p.data)
            elif way == "states":
                for a, p in zip(copy_of.state_dict().values(), model.state_dict().values()):
                    a.lerp_(p, factor(world))
            else:
                torch._foreach_lerp_(list(copy_of.parameters()), list(model.parameters()), factor(world))
        return loss

    def test_a_leaf(self):
        for data in (False, True):
            self.assertEqual("EQUIVALENT", self.verdict(self.by_hand, data=data))
            self.assertEqual("NOT EQUIVALENT", self.verdict(self.by_hand, reduced=False, data=data))

    def test_averaged_copies(self):
        for way in ("parameters", "data", "states", "together"):
            for frozen in (False, True):
                with self.subTest(way, frozen=frozen):
                    self.assertEqual("EQUIVALENT", self.verdict(self.averaged, way=way, frozen=frozen))
                    self.assertEqual("NOT EQUIVALENT", self.verdict(self.averaged, way=way, frozen=frozen, factor=lambda world: 0.1 if world.rank == 0 else 0.2))

    def test_copies_that_are_made_too_early(self):
        """An average of weights begins with a copy of them, which is what they were before the step where it is made before it."""
        def step(world, early):
            model = torch.nn.Linear(8, 4)
            average = torch.optim.swa_utils.AveragedModel(model)
            model(world.input("x", (8, 8))).square().mean().backward()
            if early:
                average.update_parameters(model)
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            if not early:
                average.update_parameters(model)

        self.assertEqual("EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict)
        self.assertEqual("EQUIVALENT", sp.verify(lambda world: step(world, True), mesh=MESH).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, False), lambda world: step(world, True), mesh=MESH).verdict)

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
        self.assertTrue(any("leaf 3.0.new" in a and "not compared: rank 1" in a and "leaf 8x4" not in a for a in report.not_compared), report.not_compared)

    def test_that_cannot_be_followed(self):
        def step(world):
            loss = self.by_hand(world)
            w = torch.randn(4, requires_grad=True)
            with torch.no_grad():
                w += loss.to(torch.long)
            return loss

        report = sp.verify(step, mesh=MESH, arguments=["--confirm", "off"])
        self.assertEqual("CONDITIONAL", report.verdict, str(report))
        self.assertTrue(any("shape [4]" in a and "not compared" in a for a in report.not_compared), report.not_compared)

    def test_outputs_with_names_of_parameters(self):
        def step(world, factor):
            model = torch.nn.Linear(8, 4)
            world.parameters(model)
            x = world.input("x", (8, 8), shard={"dp": 0})
            found = torch.func.grad(lambda p: torch.func.functional_call(model, p, (x,)).square().mean())(dict(model.named_parameters()))
            for name, g in found.items():
                if not world.single:
                    dist.all_reduce(g)
                    g /= factor
                world.output(name, g, mean=())

        self.assertEqual("EQUIVALENT", self.verdict(step, factor=2))
        self.assertEqual("NOT EQUIVALENT", self.verdict(step, factor=3))


class Apart(unittest.TestCase):
    """What one rank's run leaves in Python's memory is not what another one finds."""

    def setUp(self):
        left_behind.clear()

    def verdict(self, step, **options):
        return sp.verify(step, mesh={"dp": 2}, arguments=["--timeout", "10"], **options).verdict

    def scaled(self, world, factor):
        world.output("y", world.input("x", (4, 8), shard={"dp": 0}) * factor, shard={"dp": 0})

    def test_set_by_the_first_rank(self):
        def step(world):
            if world.rank == 0:
                left_behind["factor"] = 2.0
            self.scaled(world, left_behind.get("factor", 3.0))

        for jobs in (1, 2):
            left_behind.clear()
            self.assertEqual("NOT EQUIVALENT", self.verdict(step, jobs=jobs))
            left_behind.clear()
            self.assertEqual("NOT EQUIVALENT", self.verdict(step, jobs=jobs, ranks="classes"))

    def test_kept_by_the_first_call(self):
        def step(world):
            left_behind.setdefault("size", world.size)
            self.scaled(world, left_behind["size"])

        self.assertEqual("NOT EQUIVALENT", self.verdict(step))

    def test_another_process_has_what_it_makes(self):
        """Right in real processes, each of which makes its own: tensors are kept, and what is computed once."""

        def step(world):
            if "mask" not in left_behind:
                left_behind["mask"] = torch.full((4, 4), -1e9).triu(1)
                left_behind["first"] = True
            h = world.input("x", (4, 4, 8), shard={"dp": 0})
            scores = (h @ h.transpose(1, 2) + left_behind["mask"]).softmax(-1)
            world.output("y", (scores @ h) * (2.0 if left_behind.pop("first", False) else 3.0), shard={"dp": 0})

        self.assertEqual("EQUIVALENT", self.verdict(step))
        with self.assertRaisesRegex(sp.CaptureError, "an earlier call of sp.verify"):
            self.verdict(step)

    def test_ranges_that_are_found_out(self):
        """The single device is recorded twice here: the second time, too, nothing was recorded before."""

        def step(world):
            left_behind["runs"] = left_behind.get("runs", 0) + 1
            labels = world.input("labels", (4, 6), dtype=torch.int64, shard={"dp": 0})
            logits = world.input("x", (4, 6, 8), shard={"dp": 0})
            valid = labels != 0
            losses = -logits.log_softmax(-1).gather(-1, torch.where(valid, labels, 0).unsqueeze(-1)).squeeze(-1) * valid
            loss, counted = losses.sum(), valid.sum()
            if not world.single:
                dist.all_reduce(loss)
                dist.all_reduce(counted)
            world.output("y", loss / counted * left_behind["runs"], mean=())

        self.assertEqual("EQUIVALENT", self.verdict(step))

    def test_random_numbers_of_python_are_each_ranks_own(self):
        def step(world, seeded):
            if seeded:
                random.seed(0)
            self.scaled(world, random.randrange(2, 1 << 40))

        before = random.getstate()
        self.assertEqual("EQUIVALENT", self.verdict(lambda world: step(world, True)))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))
        self.assertEqual(before, random.getstate())

    def test_errors_are_met_here(self):
        def step(world):
            self.scaled(world, 2.0)
            if world.rank == 1:
                raise KeyError("of the script")

        with self.assertRaisesRegex(KeyError, "of the script"):
            self.verdict(step)

    def test_what_a_process_of_its_own_says_is_dropped(self):
        code = "import shardproof.torch as sp\ndef step(world):\n    print('rank', world.rank)\n    world.output('y', world.input('x', (4, 8), shard={'dp': 0}) * 2, shard={'dp': 0})\nsp.capture(step, mesh={'dp': 2})"
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False, timeout=300)
        self.assertEqual(["rank 0", "rank 0", "rank 1"], done.stdout.splitlines(), done.stderr)


class StateOfOptimizers(unittest.TestCase):
    """The state is an input of the step, and what the step leaves in it an output."""

    def step(self, world, optimizer, after, closure=False):
        model = torch.nn.Linear(16, 4, bias=False)
        world.parameters(model)
        x = world.input("x", (8, 16), shard={"dp": 0})
        chosen = optimizer(model, world)

        def loss_of():
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            if not world.single:
                dist.all_reduce(model.weight.grad)
                model.weight.grad /= world.size
            return loss

        if closure:
            chosen.step(loss_of)
        else:
            loss_of()
            chosen.step()
        if not world.single:
            after(chosen)

    def verdict(self, optimizer, after=lambda optimizer: None, **options):
        return sp.verify(lambda world: self.step(world, optimizer, after, **options), mesh=MESH, arguments=["--timeout", "10", "--confirm", "off"]).verdict

    def adam(self, model, world):
        return torch.optim.AdamW(model.parameters(), lr=0.1)

    def test_right(self):
        self.assertEqual("EQUIVALENT", self.verdict(self.adam))
        self.assertEqual("EQUIVALENT", self.verdict(self.adam, closure=True))
        captured = sp.capture(lambda world: self.step(world, self.adam, lambda optimizer: None), mesh=MESH)
        self.assertLessEqual({"weight.exp_avg.new", "weight.exp_avg_sq.new"}, set(captured.names))

    def test_other_hyperparameters(self):
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda model, world: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if world.single else 0.5)))

    def test_written_after_the_step(self):
        def in_place(optimizer):
            for state in optimizer.state.values():
                state["exp_avg"].mul_(2)

        def replaced(optimizer):
            for state in optimizer.state.values():
                state["exp_avg"] = state["exp_avg"] * 2

        for after in (in_place, replaced):
            self.assertEqual("NOT EQUIVALENT", self.verdict(self.adam, after))
            self.assertEqual("NOT EQUIVALENT", self.verdict(self.adam, after, closure=True))
        with self.assertRaisesRegex(sp.CaptureError, "no tensor any more"):
            self.verdict(self.adam, lambda optimizer: optimizer.state.clear())


class LeftBehind(unittest.TestCase):
    """What a rank leaves in other places than the single device, though each tensor that it had is right."""

    class Late(torch.optim.Optimizer):
        """Makes a part of its state in its second step."""

        def __init__(self, parameters, factor):
            super().__init__(parameters, {"lr": 0.1})
            self.factor = factor

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                state = self.state[p]
                state["second" if state else "first"] = p.grad * self.factor
                p.sub_(p.grad, alpha=0.1)

    def step(self, world, optimizer=None, after=None, tied=False):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
        if tied:
            model[1].weight = model[0].weight
        chosen = optimizer(model, world) if optimizer else torch.optim.AdamW(model.parameters())
        loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
        loss.backward()
        for p in model.parameters() if not world.single else ():
            dist.all_reduce(p.grad)
            p.grad /= world.size
        chosen.step()
        if after and world.rank == 1:
            with torch.no_grad():
                after(model, chosen)
        return loss

    def report(self, **options):
        return sp.verify(functools.partial(self.step, **options), mesh=MESH, arguments=["--confirm", "off", "--diagnose", "off"])

    def test_other_modules_and_tensors(self):
        def another(model, _):
            model[0] = torch.nn.Linear(8, 8, bias=False)
            model[0].weight.copy_(model[1].weight)

        def exchanged(model, _):
            model[0], model[1] = model[1], model[0]

        def plain(model, _):
            w = model[0].weight.detach() * 2
            del model[0].weight
            model[0].weight = w

        def untied(model, _):
            model[1].weight = torch.nn.Parameter(model[0].weight * 2)

        for after in (another, exchanged, plain):
            self.assertEqual("NOT EQUIVALENT", self.report(after=after).verdict, after)
        with self.assertRaisesRegex(sp.CaptureError, "no parameter '1.weight' any more"):
            self.report(after=lambda model, _: model.__delitem__(1))
        self.assertEqual("EQUIVALENT", self.report(tied=True).verdict)
        with self.assertRaisesRegex(sp.CaptureError, "'0.weight as 1.weight.new' of rank 1 is not on the single device"):
            self.report(tied=True, after=untied)

    def test_wrapped_after_the_first_call(self):
        def step(world):
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
            world.parameters(model)
            model[0] = checkpoint_wrapper(model[0])
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            return loss.detach()

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=MESH, arguments=["--confirm", "off"]).verdict)

    def test_state_that_is_made_later(self):
        for factor, verdict in (1, "EQUIVALENT"), (2, "NOT EQUIVALENT"):
            self.assertEqual(verdict, self.report(optimizer=lambda model, world: self.Late(model.parameters(), factor if world.rank else 1)).verdict)

    def test_what_the_next_step_goes_by(self):
        for key, value in {"lr": 0.5, "weight_decay": 0.5, "betas": (0.9, 0.5), "eps": 0.5, "maximize": True}.items():
            self.assertEqual("NOT EQUIVALENT", self.report(after=lambda model, optimizer: optimizer.param_groups[0].update({key: value})).verdict, key)
        self.assertEqual("EQUIVALENT", self.report(after=lambda model, optimizer: optimizer.param_groups[0].update(foreach=False)).verdict)

    def test_gradients_that_one_rank_does_not_leave(self):
        report = self.report(after=lambda model, _: setattr(model[0].weight, "grad", None))
        self.assertIn("no gradient is left on rank 1 in 0.weight: it is compared where there is one", report.assumptions)

    def test_a_function_without_a_gradient(self):
        class Stop(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return None

        def step(world):
            model, other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            x = world.input("x", (8, 8), shard={"dp": 0})
            (model(x) + Stop.apply(other(x))).square().mean().backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=MESH, arguments=["--confirm", "off"]).verdict)


class NotFollowed(unittest.TestCase):
    """What real processes do otherwise than the recording would have it."""

    def refused(self, change, text, mesh=MESH):
        def step(world):
            x = world.input("x", (8, 4), shard={"dp": 0})
            world.output("y", x if world.single else change(world, x), shard={"dp": 0})

        with self.assertRaisesRegex(sp.CaptureError, text):
            sp.capture(step, mesh=mesh)

    def test_memory_of_any_layout_that_nothing_wrote(self):
        """ATen's decompositions of these make memory under other names: what happens to lie there is no constant."""
        for how in (lambda x: torch.empty_strided((4, 4), (4, 1)), lambda x: x.new_empty_strided((4, 4), (4, 1)), lambda x: torch.empty_strided((4, 4), (4, 1)) * 0, lambda x: torch.Tensor(4, 4)):
            self.refused(lambda world, x, how=how: x + how(x), "never written")

    def test_other_threads(self):
        def change(world, x):
            thread = threading.Thread(target=lambda: x.mul_(2))
            thread.start()
            thread.join()
            return x

        self.refused(change, "in another thread")

    def test_sums_of_booleans(self):
        self.refused(lambda world, x: ((x > 0) + (x < 1)).float(), "sum of booleans")
        self.refused(lambda world, x: x * (x > 0).sum(0, dtype=torch.bool).float(), "sum of booleans")
        self.refused(lambda world, x: torch.zeros(4, dtype=torch.bool).index_add(0, torch.tensor([0, 0]), x[0, :2] > 0).float() * x, "sum of booleans")

        def reduced(world, x):
            positive = x > 0
            dist.all_reduce(positive)
            return positive.float()

        self.refused(reduced, "booleans that are added up")

    def test_memory_seen_as_another_dtype(self):
        self.refused(lambda world, x: x.view(torch.int32).float(), "a view of torch.float32 memory as torch.int32")

    def test_ranks_that_communicate_other_dtypes(self):
        def reduced(world, x):
            y = x.double() if world.rank == 0 else x.clone()
            dist.all_reduce(y)
            return y.float()

        def sent(world, x):
            y = x.half() if world.rank == 0 else x.clone()
            (dist.send if world.rank == 0 else dist.recv)(y, 1 - world.rank)
            return y.float()

        self.refused(reduced, "rank 1 gives torch.float32 .* rank 0 torch.float64")
        self.refused(sent, "torch.float16")

    def test_groups_that_not_all_ranks_make(self):
        def one(world, x):
            if world.rank == 0:
                dist.new_group([0, 1])
            return x

        def own(world, x):
            dist.new_group([0, 1] if world.rank < 2 else [2, 3])
            return x

        self.refused(one, "dist.new_group")
        self.refused(own, "dist.new_group", {"dp": 4})

    def test_what_a_middle_rank_finds_of_others(self):
        def step(world):
            x = world.input("x", (8, 4), shard={"dp": 0})
            if world.rank == 0:
                left_behind["factor"] = 2.0
            world.output("y", x * (2.0 if world.single or world.rank == 3 else left_behind.get("factor", 3.0)), shard={"dp": 0})

        for jobs in (1, 2):
            left_behind.clear()
            self.assertEqual("NOT EQUIVALENT", sp.verify(step, mesh={"dp": 4}, jobs=jobs, arguments=["--timeout", "10"]).verdict)

    def test_decisions_by_numbers_in_an_interval(self):
        def by(decide, who=lambda world: True):
            def change(world, model):
                number = json.loads(json.dumps((model.up.weight.grad.norm()).item()))
                if who(world) and decide(number):
                    model.up.weight.grad.mul_(3)
                if not world.single:
                    dist.broadcast(model.up.weight.grad, 0)

            return lambda world: train(world, change)

        def spike(number):
            if abs(number) > 1e6:
                raise FloatingPointError
            return number > 0.85

        for step in (by(lambda n: 0 <= n < 0.85), by(lambda n: n > 0.85, lambda world: world.rank == 0), by(spike)):
            with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                sp.capture(step, mesh=MESH)

    def test_results_within_results(self):
        def step(change):
            def run(world):
                y = world.input("x", (), high=None)
                return {"a": {"b": y * (1 if world.single else change)}, "c": [y, (y, y * change)] if world.single else [y, (y, y * change * change)], "d": (y * (2 if world.single else 2 * change)).item()}

            return run

        self.assertEqual("EQUIVALENT", sp.verify(step(1), mesh=MESH).verdict)
        captured = sp.capture(step(2), mesh=MESH)
        self.assertEqual({"a.b", "c.0", "c.1.0", "c.1.1", "d"}, set(captured.names))
        self.assertEqual("NOT EQUIVALENT", sp.verify(step(2), mesh=MESH).verdict)


class FailClosed(unittest.TestCase):
    def refuse(self, change, text):
        with self.assertRaises(sp.CaptureError) as caught:
            sp.capture(lambda world: train(world, change), mesh=MESH)
        self.assertIn(text, str(caught.exception))

    def test_an_operator_without_line_poisons_what_it_writes(self):
        def change(world, model):
            grad = model.up.weight.grad
            torch.lgamma(grad[:16], out=grad[16:])

        self.refuse(change, "no line in the table of operators")

    def test_sorting_long_rows_is_not_followed(self):
        def change(world, model):
            model.up.weight.grad.copy_(model.up.weight.grad.flatten().sort().values.view_as(model.up.weight))

        self.refuse(change, "a choice among more than")

    def test_labels_that_do_not_count_are_no_numbers(self):
        def change(world, model):
            labels = world.input("classes", (4,), torch.long, high=4)
            model.up.weight.grad.add_(torch.where(world.input("kept", (4,), torch.long, high=2) == 1, labels, -100).sum())

        self.refuse(change, "labels of which some do not count")

    def test_ranks_that_use_other_parameters(self):
        def step(world):
            model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
            world.parameters(model)
            wrapped = model if world.single else torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
            chosen = (wrapped if world.single else wrapped.module)[world.rank]
            if not world.single:
                wrapped.module.forward = chosen.forward
            (chosen if world.single else wrapped)(world.input("x", (2, 2), shard={"dp": 0})).sum().backward()

        with self.assertRaisesRegex(sp.CaptureError, "do not use the same parameters"):
            sp.capture(step, mesh=MESH)

    def test_uninitialised_memory(self):
        def change(world, model):
            model.up.weight.grad.copy_(torch.empty_like(model.up.weight.grad))

        self.refuse(change, "never written")

    def test_partly_initialised_memory(self):
        def change(world, model):
            buffer = torch.empty(32, 16)
            buffer[:31] = model.up.weight.grad[:31]
            model.up.weight.grad.copy_(buffer)

        self.refuse(change, "never written")

    def masked_scores(self, change, hidden=None):
        """Attention by hand; `change` does something to the ranks' masked scores."""

        def step(world):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x = world.input("x", (4, 6, 8), shard={"dp": 0})
            kept = torch.ones(6, 6).tril().bool() if hidden is None else hidden(world)
            scores = (model(x) @ x.transpose(-1, -2)).masked_fill(~kept, -math.inf)
            loss = F.mse_loss((scores if world.single else change(scores)).softmax(-1) @ x, x)
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            return loss

        return sp.verify(step, mesh=MESH)

    def test_whether_masked_scores_are_infinite(self):
        shown = {
            "isinf": lambda s: torch.where(torch.isinf(s), 0.0, s), "equal": lambda s: s.masked_fill(s == -math.inf, 0.0), "isneginf": lambda s: torch.where(torch.isneginf(s), 0.0, s),
            "above": lambda s: torch.where(s > -math.inf, s, 0.0), "isfinite": lambda s: torch.where(torch.isfinite(s), s, 0.0), "difference": lambda s: torch.where(torch.isnan(s - s), 0.0, s),
            "times 0": lambda s: torch.where(torch.isnan(s * 0), 0.0, s), "itself": lambda s: torch.where(s - s == s - s, s, 0.0), "nan_to_num": lambda s: torch.nan_to_num(s, neginf=0.0),
            "largest": lambda s: s if math.isfinite(s.sum().item()) else s * 0}
        for name, change in shown.items():
            for hidden in (None, lambda world: (world.input("kind", (4, 6), torch.long, shard={"dp": 0}, high=3)[:, None, :] > 0) | torch.eye(6).bool()):
                with self.subTest(name, by_data=hidden is not None), self.assertRaises((sp.CaptureError, DataDependent)):
                    self.masked_scores(change, hidden)
        self.assertEqual("EQUIVALENT", self.masked_scores(lambda s: s).verdict)
        self.assertEqual("EQUIVALENT", self.masked_scores(lambda s: torch.where(torch.isnan(s.softmax(-1)), 0.0, s)).verdict)

    def test_whether_what_came_from_other_ranks_is_infinite(self):
        def step(world, masked, hidden=None):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x = world.input("x", (2, 8, 8), shard={"dp": 0})
            scores = model(x)
            if masked:
                scores = scores.masked_fill(torch.ones(8, 8).triu(1).bool() if hidden is None else hidden(world), -math.inf)
            if not world.single:
                others = torch.empty_like(scores)
                (dist.send, dist.recv)[world.rank](scores if world.rank == 0 else others, 1 - world.rank)
                if world.rank == 1 and torch.isinf(others).any():
                    scores = scores * 2
            return scores.softmax(-1).square().mean()

        sp.assert_equivalent(lambda world: step(world, False), mesh=MESH)
        with self.assertRaisesRegex(sp.CaptureError, "what came from other ranks"):
            sp.capture(lambda world: step(world, True), mesh=MESH)
        with self.assertRaisesRegex(sp.CaptureError, "what is sent cannot be followed"):
            sp.capture(lambda world: step(world, True, lambda world: world.input("kind", (2, 8, 8), torch.long, shard={"dp": 0}, high=2) == 1), mesh=MESH)

    def of_x(self, single, ranks, shape=(4, 8), bind=False):
        """Two functions of an input, on one device and on ranks that have all of it."""

        def step(world):
            if bind:
                world.parameters(torch.nn.Linear(2, 2))
            x = world.input("x", shape)
            world.output("o", (single if world.single else ranks)(x), mean=())

        return sp.verify(step, mesh=MESH)

    def test_what_optimizers_ask_of_their_states(self):
        """Rprop chooses by products with gradients before: at first zero."""
        for name in ("Rprop", "ASGD", "Adadelta", "Adamax", "NAdam", "RAdam", "Adagrad"):
            def step(world, scale):
                model = torch.nn.Linear(8, 8)
                optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
                model(world.input("x", (8, 8), shard={"dp": 0})).square().mean().backward()
                if not world.single:
                    for p in model.parameters():
                        dist.all_reduce(p.grad)
                        p.grad *= scale / world.size
                optimizer.step()

            with self.subTest(name):
                self.assertEqual("EQUIVALENT", sp.verify(lambda world: step(world, 1.0), mesh=MESH).verdict)
                self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, 2.0), mesh=MESH).verdict)

    def test_draws_from_other_distributions(self):
        draws = {"uniform": torch.rand_like, "range": lambda x: torch.empty_like(x).uniform_(0, 2), "normal": torch.randn_like, "spread": lambda x: torch.empty_like(x).normal_(0, 2),
                 "most": lambda x: torch.bernoulli(torch.full_like(x, 0.9)), "half": lambda x: torch.empty_like(x).bernoulli_(0.5)}
        for bind in (False, True):
            for name, draw in draws.items():
                for other, second in draws.items():
                    if name <= other:
                        with self.subTest(name, other=other, bind=bind):
                            report = self.of_x(lambda x: x * draw(x), lambda x: x * second(x), bind=bind)
                            self.assertEqual("EQUIVALENT" if name == other else "NOT EQUIVALENT", report.verdict, str(report))

    def test_parameters_of_draws_before_modules_are_known(self):
        for single, ranks in ((lambda x: torch.bernoulli(torch.sigmoid(x)), lambda x: torch.bernoulli(1 - torch.sigmoid(x))), (lambda x: torch.normal(x, 1.0), lambda x: torch.normal(-x, 1.0))):
            self.assertEqual("EQUIVALENT", self.of_x(single, single).verdict)
            self.assertNotEqual("EQUIVALENT", self.of_x(single, ranks).verdict)

    def test_domains_are_kept(self):
        other = {"root": lambda x: torch.sqrt(x) ** 2, "product": lambda x: torch.sqrt(x) * torch.sqrt(x), "power": lambda x: (x ** 0.5) * (x ** 0.5), "logarithm": lambda x: torch.exp(x - torch.log(x)) * x / torch.exp(x) * 1}
        for name, f in other.items():
            with self.subTest(name):
                self.assertNotEqual("EQUIVALENT", self.of_x(lambda x: x * 1, f).verdict)
        self.assertNotEqual("EQUIVALENT", self.of_x(lambda x: x.sum(-1).sqrt(), lambda x: torch.linalg.vector_norm(torch.sqrt(x), dim=-1)).verdict)
        self.assertEqual("EQUIVALENT", self.of_x(lambda x: torch.sqrt(x * x) ** 2, lambda x: x * x).verdict)

    def test_a_choice_of_what_may_be_no_number(self):
        chosen, product = lambda x: torch.where(x > 0, torch.log(x), 0.0), lambda x: torch.log(x) * (x > 0)  # noqa: E731
        right = self.of_x(chosen, lambda x: torch.log(x).masked_fill(~(x > 0), 0.0))
        self.assertEqual(("EQUIVALENT", []), (right.verdict, [a for a in right.assumptions if "both are numbers" in a]), str(right))
        self.assertNotEqual("EQUIVALENT", self.of_x(chosen, product).verdict)
        self.assertNotEqual("EQUIVALENT", self.of_x(chosen, lambda x: torch.where(x > 0, torch.log(x), 1.0)).verdict)
        running = self.of_x(lambda x: torch.log(x).cumsum(-1), lambda x: torch.log(x).cumsum(-1))
        self.assertTrue(any("both are numbers" in a for a in running.assumptions), running.assumptions)

    def test_truth_of_tensors(self):
        for name, f in {"if": lambda x: x * 3 if x.sum() else x, "bool": lambda x: x * (3 if bool(x.sum()) else 1), "any": lambda x: x * 3 if any([x.sum()]) else x, "and": lambda x: x * ((x.sum() and 3) if True else 1),
                        "nonzero": lambda x: x * 3 if torch.is_nonzero(x.sum()) else x, "method": lambda x: x * 3 if x.sum().is_nonzero() else x}.items():
            with self.subTest(name), self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                self.of_x(f, f)

    def test_what_a_number_of_data_is_used_for_is_said(self):
        report = self.of_x(lambda x: x * 2, lambda x: (print(end=f"{x.sum().item():.3f}"[:0]), x * 2)[1])
        self.assertTrue(any("Tensor.item() gave" in a for a in report.assumptions), report.assumptions)

    def test_what_other_code_reads_of_a_number_of_data(self):
        kept = []
        reads = {"text": lambda n: float("%.4f" % n), "json": lambda n: json.loads(json.dumps(n)), "bytes": lambda n: struct.unpack("d", struct.pack("d", n))[0], "length": lambda n: len("%.3f" % n) - 3,
                 "array": lambda n: array.array("d", [n])[0], "decimal": lambda n: float(decimal.Decimal(n)), "joined": lambda n: 17 - len("".join([str(n), ""]))}
        for name, read in reads.items():
            for way, f in {"large": lambda x, read=read: x * (3 if read(x.sum().item()) > 1 else 1), "small": lambda x, read=read: x * (3 if read(x.sum().item()) < -1 else 1)}.items():
                with self.subTest(name, way=way):
                    if way == "small" and name in ("length", "joined"):
                        continue
                    with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                        self.of_x(f, f)
        texts = {"sentences": lambda t: f"{t.item():.3f} x" == f"{2 * t.item():.3f} x", "joined": lambda t: ",".join([str(t.item())]) == ",".join([str((2 * t).item())]),
                 "tensors": lambda t: f"{t:.2f};" == f"{2 * t:.2f};", "printed": lambda t: str(t) + "" == str(2 * t) + "", "rows": lambda t: repr([t]) == repr([2 * t])}
        for name, same in texts.items():
            with self.subTest(name), self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                self.of_x(lambda x, same=same: x * (3 if same(x.sum()) else 1), lambda x, same=same: x * (3 if same(x.sum()) else 1))
        report = self.of_x(lambda x: x * 2, lambda x: (kept.append((json.dumps(x.sum().item()), "%.3f" % x.sum().item(), str(x.sum().item())[:5])), x * 2)[1])
        self.assertEqual("EQUIVALENT", report.verdict)
        with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
            self.of_x(lambda x: x, lambda x: x * (1 if {x.sum().item(): 1} else 2))

    def test_caches_of_functions_are_each_ranks_own(self):
        kept_scale.cache_clear()

        def step(world):
            x = world.input("x", (4, 8), shard={"dp": 0})
            world.output("y", x / kept_scale(), shard={"dp": 0})

        self.assertEqual("NOT EQUIVALENT", sp.verify(step, mesh={"dp": 2}, arguments=["--timeout", "10"]).verdict)

    def test_indices_outside(self):
        for name, f in {"index": lambda x: x[torch.tensor([4, 5])], "below": lambda x: x[torch.tensor([-5, 0])], "both": lambda x: x[torch.tensor([4, 0]), torch.tensor([1, 2])],
                        "select": lambda x: x.index_select(0, torch.tensor([4])), "embedding": lambda x: F.embedding(torch.tensor([-1]), x), "write": lambda x: x.clone().index_put_((torch.tensor([4, 5]),), x[:2])}.items():
            with self.subTest(name), self.assertRaisesRegex((sp.CaptureError, IndexError), "index"):
                self.of_x(f, f)

    def test_rows_of_which_all_are_masked(self):
        kept = torch.ones(4, 8).tril(-1).bool()  # of the first row nothing
        softmax = lambda x: x.masked_fill(~kept, -math.inf).softmax(-1)  # noqa: E731
        with self.assertRaisesRegex(sp.CaptureError, "masked scores"):
            self.of_x(lambda x: torch.nan_to_num(softmax(x)), softmax)

    def test_two_communicators_of_the_same_ranks(self):
        def step(world, crossed):
            x = world.input("x", (4, 8), shard={"dp": 0})
            a, b = x.sum(), x.square().sum()
            if not world.single:
                groups = [dist.group.WORLD, dist.new_group([0, 1])]
                order = [(a, groups[0]), (b, groups[1])]
                for t, group in order if world.rank == 0 or not crossed else [(a, groups[1]), (b, groups[0])]:
                    dist.all_reduce(t, group=group)
            world.output("a", a, mean=())
            world.output("b", b, mean=())

        self.assertEqual("EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, True), mesh=MESH).verdict)

    def test_operands_of_functional_collectives_are_not_overwritten(self):
        for operator in ("all_gather_into_tensor", "reduce_scatter_tensor"):
            def step(world, early):
                x = world.input("x", (4, 8))
                if not world.single:
                    name = world.group("dp").group_name
                    a = x.clone()
                    f = getattr(torch.ops._c10d_functional, operator)
                    made = f(a, 2, name) if operator.startswith("all") else f(a, "sum", 2, name)
                    if early:
                        a.zero_()
                    made = torch.ops._c10d_functional.wait_tensor(made)
                    a.zero_()  # by now it was sent
                    x = made[:4] if operator.startswith("all") else torch.cat([made, made]) / 2 * 0 + x
                world.output("o", x * 1, mean=())

            with self.subTest(operator):
                self.assertEqual("EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict)
                self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, True), mesh=MESH).verdict)

    def objects(self, use):
        """`use` exchanges objects and returns the learning rate."""

        def step(world):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x = world.input("x", (8, 8), shard={"dp": 0})
            loss = model(x).square().mean()
            rate = use(world, x, loss)
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            torch.optim.SGD(model.parameters(), lr=rate).step()
            return loss

        return sp.verify(step, mesh={"dp": 4})

    def test_objects_of_other_ranks(self):
        def gathered(world, x, loss):
            found = [None] * world.size
            for i in range(2):
                dist.all_gather_object(found, {"rank": world.rank, "rows": len(x), "round": i, "loss": loss.item()})
                self.assertEqual([(r, i) for r in range(world.size)], [(o["rank"], o["round"]) for o in found])
            return 0.8 / sum(o["rows"] for o in found)

        def broadcast(world, x, loss, own=False):
            found = [0.1 * (world.rank + 1), "name"]
            dist.broadcast_object_list(found, src=0)
            return 0.1 * (world.rank + 1) if own else found[0]

        def scattered(world, x, loss):
            found, rows = [None], [None] * world.size if world.rank == 0 else None
            dist.gather_object(len(x), rows, dst=0)
            dist.scatter_object_list(found, [0.1 * sum(rows) / 8] * world.size if world.rank == 0 else None, src=0)
            return found[0]

        for use in (gathered, broadcast, scattered):
            with self.subTest(use.__name__):
                report = self.objects(use)
                self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertEqual("NOT EQUIVALENT", self.objects(lambda world, x, loss: broadcast(world, x, loss, True)).verdict)

    def test_objects_that_never_come_or_hold_tensors(self):
        def exchange(world, obj):
            dist.all_gather_object([None] * world.size, obj)
            return 0.1

        with self.assertRaisesRegex(sp.CaptureError, "which never calls it"):
            self.objects(lambda world, x, loss: 0.1 if world.single or world.rank else exchange(world, 1))
        with self.assertRaisesRegex(sp.CaptureError, "inside of a Python object"):
            self.objects(lambda world, x, loss: exchange(world, {"loss": loss}))

    def test_zero_times_what_is_not_everywhere_a_number(self):
        shown = {"number": lambda o: 0 * torch.log(o).mean(), "product": lambda o: (torch.zeros(1, len(o)) @ torch.log(o)).sum(), "alpha": lambda o: torch.add(torch.zeros(()), torch.log(o).mean(), alpha=0)}
        for name, extra in {**shown, "activations": lambda o: 0 * o.sum()}.items():
            def step(world):
                model = torch.nn.Linear(8, 8)
                world.parameters(model)
                out = model(world.input("x", (4, 8), shard={"dp": 0}))
                return out.square().mean() + (0 if world.single else extra(out))

            with self.subTest(name):
                self.assertEqual("NOT EQUIVALENT" if name in shown else "EQUIVALENT", sp.verify(step, mesh=MESH).verdict)

    def test_random_choices_that_depend_on_data(self):
        def change(world, model):
            model.up.weight.grad.add_(torch.multinomial(torch.sigmoid(model.up.weight.grad), 16))

        self.refuse(change, "random numbers that depend on data")

    def test_an_opaque_function(self):
        def change(world, model, rate=0.1, part=False):
            grad = model.up.weight.grad
            u, _, v = torch.linalg.svd(grad[:16] if part and not world.single else grad, full_matrices=False)
            new = (u @ v) * (0.1 if world.single else rate)
            model.up.weight.grad = torch.cat([new, grad[16:]]) if len(new) < len(grad) else new

        report = sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)
        self.assertTrue(any("_linalg_svd" in a and "nothing else is known" in a for a in report.assumptions), report.assumptions)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: train(world, lambda w, m: change(w, m, 0.2)), mesh=MESH).verdict)
        self.refuse(lambda w, m: change(w, m, 0.1, True), "nothing can be said of parts")
        with self.assertRaisesRegex(sp.CaptureError, "strict: nothing is known of"):
            sp.verify(lambda world: train(world, change), mesh=MESH, strict=True)

    def test_opaque_functions_that_differ_in_what_is_no_tensor(self):
        def step(world):
            x = world.input("x", (4, 4))
            world.output("result", torch.special.polygamma(1, x) - torch.special.polygamma(2, x), mean=())

        def other(world, two):
            x = world.input("x", (4, 4))
            one, two = (1, 2) if world.single else (2, two)
            world.output("result", torch.special.polygamma(one, x) - torch.special.polygamma(two, x), mean=())

        sp.assert_equivalent(step, mesh={"tp": 2})
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: other(world, 1), mesh={"tp": 2}).verdict)
        with self.assertRaisesRegex(sp.CaptureError, "does not call there"):
            sp.verify(lambda world: other(world, 3), mesh={"tp": 2})

    def test_an_opaque_function_of_each_element(self):
        def step(world, other):
            model = torch.nn.Linear(4, 4)
            world.parameters(model)
            out = model(world.input("x", (4, 4), shard={"dp": 0}))
            loss = torch.lgamma((out if world.single else other(out)).square() + 1).mean()
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            return loss

        report = sp.assert_equivalent(lambda world: step(world, lambda out: out), mesh=MESH)
        self.assertTrue(any("a function of each element" in a for a in report.assumptions), report.assumptions)
        for name, other in {"scaled": lambda out: out * 2, "rows": lambda out: out.flip(0)}.items():
            with self.subTest(name):
                self.assertNotEqual("EQUIVALENT", sp.verify(lambda world: step(world, other), mesh=MESH).verdict)

    def test_an_opaque_function_of_other_arguments(self):
        """What is not reduced goes into it: that its arguments differ does not show that its results do."""

        def step(world):
            grad = train_alone(world)
            if not world.single:
                dist.all_reduce(grad)
            world.output("result", torch.linalg.svd(grad, full_matrices=False)[1], mean=())

        self.assertEqual("UNDECIDED", sp.verify(step, mesh=MESH).verdict)

    def test_opaque_functions_of_what_a_rank_owns(self):
        """Each rank takes the roots for one of two weights of the same shape, and gives them to the other (Shampoo's)."""
        def step(world, owner=lambda i: i, factor=1.0):
            model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Tanh(), torch.nn.Linear(4, 4, bias=False))
            world.parameters(model)(world.input("x", (8, 4), shard={"dp": 0})).square().mean().backward()
            for i, p in enumerate(model.parameters()):
                root = torch.empty(4, 4)
                if not world.single:
                    dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
                if world.single or world.rank == owner(i):
                    values, vectors = torch.linalg.eigh(p.grad @ p.grad.T + 1e-4 * torch.eye(4))
                    root.copy_(vectors @ torch.diag(values.pow(-0.25)) @ vectors.T)
                if not world.single:
                    dist.broadcast(root, owner(i))
                with torch.no_grad():
                    p.sub_((factor if world.rank else 1.0) * root @ p.grad)

        for owner in (lambda i: i, lambda i: 1 - i, lambda i: 1):
            self.assertEqual("EQUIVALENT", sp.verify(lambda world: step(world, owner), mesh=MESH).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, factor=2.0), mesh=MESH).verdict)

    def test_what_is_gathered_before_a_model_is_called(self):
        def step(world, scale=1):
            model = torch.nn.Sequential(MLP(), torch.nn.Tanh(), MLP())
            if not world.single:
                for m in (model[0], model[2], model):
                    fully_shard(m, mesh=world.mesh("dp"))
                model[0].unshard(async_op=True)
                model.unshard()
            x = world.input("x", (8, 16), shard={"dp": 0})
            loss = model(x).square().mean()
            (loss if world.single else scale * loss).backward()
            return loss

        sp.assert_equivalent(step, mesh=MESH)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, 2), mesh=MESH).verdict)

    def test_a_part_that_is_called_while_its_model_is_made(self):
        """To see what shape it gives: it is no model of its own."""
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Sequential(torch.nn.Conv1d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten())
                with torch.no_grad():
                    width = self.body(torch.zeros(1, 1, 6)).shape[1]
                self.head = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(width, 3))

            def forward(self, x):
                return self.head(self.body(x))

        def step(world, scale=1):
            model = Net()
            if not world.single:
                fully_shard(model, mesh=world.mesh("dp"))
            loss = model(world.input("x", (4, 1, 6), shard={"dp": 0})).square().mean()
            (loss if world.single else scale * loss).backward()
            return loss

        report = sp.verify(step, mesh=MESH)
        self.assertEqual("EQUIVALENT", report.verdict, report.text)
        self.assertIn("body.0.weight.grad", sp.capture(step, mesh=MESH).model["tensors"])
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, 2), mesh=MESH).verdict)

    def test_parameters_that_were_computed(self):
        """What torch.func.functional_call puts in the place of parameters is what was computed, with a gradient or without, and no input."""
        def step(world, factor=1, detached=False):
            hyper, main = world.parameters(torch.nn.Linear(3, 8, bias=False)), torch.nn.Linear(4, 2, bias=False)
            weight = (hyper.weight @ world.input("c", (3,)) * (1 if world.single else factor)).view(2, 4)
            called = torch.func.functional_call(main, {"weight": weight.detach() if detached else weight}, (world.input("x", (8, 4), shard={"dp": 0}),))
            world.output("loss", called.square().mean() + hyper.weight.square().mean())

        def ensemble(world, factor=1):
            members = torch.nn.ParameterDict({"weight": torch.nn.Parameter(torch.randn(4 // world.size, 2, 3)), "bias": torch.nn.Parameter(torch.randn(4 // world.size, 2))})
            world.parameters(members, {".*": {"dp": 0}})
            base = torch.nn.Linear(3, 2)
            total = torch.func.vmap(lambda p, x: torch.func.functional_call(base, p, (x,)), in_dims=(0, None))(dict(members.items()), world.input("x", (5, 3))).sum(0).detach()
            if not world.single:
                dist.all_reduce(total)
                total *= factor
            world.output("total", total, mean=())

        for made in (step, functools.partial(step, detached=True), ensemble):
            self.assertEqual("EQUIVALENT", sp.verify(made, mesh=MESH).verdict)
            self.assertEqual("NOT EQUIVALENT", sp.verify(functools.partial(made, factor=2), mesh=MESH).verdict)

    def test_a_penalty_on_gradients(self):
        """Gradients that are differentiated again have not the loss's scale, and nothing is claimed of them."""
        def step(world, total=True):
            model = world.parameters(torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Softplus(), torch.nn.Linear(6, 1)))
            x = world.input("x", (6, 4), shard={"dp": 0}).requires_grad_()
            out = model(x)
            grad, = torch.autograd.grad(out.sum() if total else out.mean(), x, create_graph=True)
            loss = F.softplus(-out).mean() + grad.square().sum(1).mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            return loss

        report = sp.verify(step, mesh=MESH, allow_uncompared=["x.grad"])
        self.assertEqual("EQUIVALENT", report.verdict)
        self.assertNotIn("Wrong lineage", report.text)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict)

    def dropout(self, seed=None, place="out"):
        """A column- and a row-parallel layer with dropout between or behind them; seed: of the generator that draws, from the rank."""

        def step(world):
            n = world.sizes["tp"]
            model = torch.nn.Module()
            model.up, model.down = torch.nn.Linear(8, 16 // n, bias=False), torch.nn.Linear(16 // n, 8, bias=False)
            world.parameters(model, shard={"up.weight": {"tp": 0}, "down.weight": {"tp": 1}})
            x, y = (world.input(name, (4, 8)) for name in "xy")
            hidden = torch.relu(model.up(x))
            with torch.random.fork_rng():
                if seed is not None:
                    torch.manual_seed(seed(world.rank))
                if place == "hidden":
                    hidden = F.dropout(hidden, 0.1)
            out = model.down(hidden)
            if not world.single:
                out = torch.distributed.nn.functional.all_reduce(out)
            with torch.random.fork_rng(devices=[]):
                if seed is not None:
                    torch.manual_seed(seed(world.rank))
                if place == "out":
                    out = F.dropout(out, 0.1)
            world.output("loss", F.mse_loss(out, y), mean=())

        return sp.verify(step, mesh={"tp": 2})

    def test_dropout_is_by_position(self):
        same, other = (lambda rank: 7), (lambda rank: 7 + rank)
        for seed, place, verdict in ((same, "out", "EQUIVALENT"), (other, "out", "NOT EQUIVALENT"), (same, "hidden", "NOT EQUIVALENT"), (other, "hidden", "EQUIVALENT")):
            with self.subTest(place=place, seeds=[seed(0), seed(1)]):
                report = self.dropout(seed, place)
                self.assertEqual(verdict, report.verdict, str(report))
                if verdict == "NOT EQUIVALENT":
                    self.assertEqual("random", report.defects[0].kind)
                self.assertEqual(place == "hidden" and verdict == "EQUIVALENT", any("at the same positions" in a for a in report.assumptions))

    def test_random_numbers_by_parameters_of_each_position(self):
        def step(world, scale=1.0):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x = world.input("x", (8, 8), shard={"dp": 0})
            out = model(x)
            kept = torch.bernoulli(torch.full((out.shape[0], 1), 0.9))  # whole rows, as stochastic depth drops them
            chosen = torch.bernoulli(torch.sigmoid(out.detach()))
            noise = torch.normal(out.detach(), torch.full_like(out, 0.5)) + torch.distributions.Normal(out, 1.0).rsample()
            loss = (out * kept / 0.9 * chosen + noise * scale).square().mean()
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    torch.distributed.all_reduce(p.grad, torch.distributed.ReduceOp.AVG)
            return loss

        sp.assert_equivalent(step, mesh=MESH)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, 1.0 if world.single else 0.5), mesh=MESH).verdict)

    def test_dropout_of_data_parallel_ranks_with_one_seed_is_said(self):
        def step(world):
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1))
            wrapped = model if world.single else torch.nn.parallel.DistributedDataParallel(model)
            loss = F.mse_loss(wrapped(world.input("x", (8, 8), shard={"dp": 0})), world.input("y", (8, 8), shard={"dp": 0}))
            loss.backward()
            return loss

        report = sp.assert_equivalent(step, mesh=MESH, accept=["same-seed"])
        self.assertTrue(any("one seed" in a for a in report.assumptions))

    def test_random_numbers_of_ranks_only(self):
        def change(world, model):
            if not world.single:
                model.up.weight.grad.add_(torch.randn_like(model.up.weight.grad))

        self.refuse(change, "random numbers that the single device does not draw")

    def test_a_script_for_gpus(self):
        def step(world):
            torch.cuda.set_device(world.rank)
            model = torch.nn.Linear(8, 8, device=torch.device("cuda", world.rank)).cuda()
            wrapped = model if world.single else torch.nn.parallel.DistributedDataParallel(model, device_ids=[world.rank])
            with torch.cuda.stream(torch.cuda.Stream()):
                loss = wrapped(world.input("x", (8, 8), shard={"dp": 0}).to("cuda", non_blocking=True)).square().mean()
            torch.cuda.synchronize()
            loss.backward()
            return loss

        sp.assert_equivalent(step, mesh=MESH)

    def test_a_number_that_depends_on_data_goes_nowhere(self):
        def change(world, model):
            model.up.weight.grad.mul_(math.exp(model.up.weight.grad.sum().item()))

        self.refuse(change, "depends on data")

    def test_control_flow_that_depends_on_data(self):
        def change(world, model):
            if bool(model.up.weight.grad.sum() > 0):
                model.up.weight.grad.zero_()

        with self.assertRaisesRegex(RuntimeError, "depends on data"):
            sp.capture(lambda world: train(world, change), mesh=MESH)

    def test_a_branch_on_a_number_that_depends_on_data(self):
        """Not-a-number would be compared silently, and one branch taken on both sides."""
        branches = {
            "item": lambda norm: norm.item() > 1.0, "square root": lambda norm: math.sqrt(norm.item()) > 1.0, "sum": lambda norm: sum([norm.item(), 1.0]) >= 2, "float": lambda norm: float(norm) > 1,
            "minimum": lambda norm: min(1.0, 1.0 / (norm.item() + 1e-6)) < 1, "int": lambda norm: int(norm) > 1, "list": lambda norm: norm.reshape(1).tolist()[0] > 1, "truth": lambda norm: bool(norm.item()),
            "round": lambda norm: round(norm.item(), 2) > 1, "imported": lambda norm: sqrt(norm.item()) > 1,
        }
        for name, branch in branches.items():
            with self.subTest(name):
                def change(world, model, branch=branch):
                    if branch(model.up.weight.grad.norm()):
                        model.up.weight.grad.mul_(0.5)

                self.refuse(change, "depends on data")

    def test_a_branch_on_what_is_computed_of_a_number_that_depends_on_data(self):
        """Every function of `math` knows these numbers; so do their texts, parts and complex ones."""
        branches = {
            "part": lambda n: n.real > 1, "conjugate": lambda n: n.conjugate() > 1, "complex": lambda n: complex(n).real > 1, "sum with a complex one": lambda n: (n + 1j).real > 1,
            "text": lambda n: str(n) != "nan", "formatted": lambda n: f"{n:.2f}" == "nan", "part of a text": lambda n: "nan" in repr(n), "square root of cmath": lambda n: cmath.sqrt(n).real > 1,
            "product": lambda n: math.prod([n, 2.0]) > 1, "sum of an iterator": lambda n: math.fsum(iter([n, 1.0])) > 1, "distance": lambda n: math.dist([n], [0.0]) > 1,
            "closeness": lambda n: math.isclose(1.0, 1.0, rel_tol=n),
        }
        for name, function in vars(math).items():
            if not name.startswith("_") and callable(function) and name not in ("isnan", "isinf", "isfinite", "prod", "fsum", "dist"):
                two = name in ("atan2", "copysign", "fmod", "hypot", "ldexp", "pow", "remainder", "nextafter", "isclose", "gcd", "lcm", "comb", "perm")
                branches[name] = lambda n, name=name, two=two: getattr(math, name)(*((n, 2) if two else (n,))) > 1  # as it is while a step is recorded
        for name, branch in branches.items():
            with self.subTest(name):
                def change(world, model, branch=branch):
                    if branch(model.up.weight.grad.sum().item()):
                        model.up.weight.grad.mul_(0.5)

                self.refuse(change, "depends on data")

    def test_constants_and_a_number_that_depends_on_data(self):
        """ATen would compute with not-a-number, of which comparisons are false whatever the data."""
        eight = torch.arange(8.0)
        masks = {
            "number of rows": lambda n, count: eight * 8 < count, "greater": lambda n, count: torch.ones(8) > n, "equal": lambda n, count: torch.ones(8) == n, "ge": lambda n, count: torch.arange(8.0).ge(n),
            "full": lambda n, count: torch.full((8,), n) > 0.5, "linspace": lambda n, count: torch.linspace(0, n, 8) > 0.5, "nan_to_num": lambda n, count: torch.nan_to_num(torch.full((8,), n)),
            "isnan": lambda n, count: torch.isnan(torch.full((8,), n)), "fmax": lambda n, count: torch.fmax(torch.full((8,), n), torch.ones(8)), "zeros filled": lambda n, count: torch.zeros(8).fill_(n) > 0.5,
            "isclose": lambda n, count: torch.isclose(torch.ones(8), torch.full((8,), n)), "list": lambda n, count: torch.isnan(torch.tensor([n] * 8)), "item": lambda n, count: torch.isnan(_item_set(n)),
            "where": lambda n, count: torch.where(torch.full((8,), n) > 0.5, 1.0, 2.0), "clamp": lambda n, count: torch.ones(8).clamp(max=n), "random": lambda n, count: torch.zeros(8).normal_(n, 1),
        }
        for name, mask in masks.items():
            with self.subTest(name):
                def step(world, mask=mask):
                    x = world.input("x", (16, 8), shard={"dp": 0})
                    world.output("result", x * mask(x.square().sum().item(), (x > 0).sum().item()).float(), shard={"dp": 0})

                with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                    sp.capture(step, mesh=MESH)

    def test_collectives_of_tensors_that_lie_in_other_orders(self):
        """Backends pair the elements by where they lie in memory (seen with gloo): the ranks' tensors have to lie alike."""
        def whole(x, strided):
            return x.t().contiguous().t() if strided else x.clone()

        def reduced(x, strided):
            t = whole(x, strided)
            dist.all_reduce(t)
            return t / dist.get_world_size()

        def at_one(x, strided):
            t = whole(x, strided)
            dist.reduce(t, 0)
            t = t.contiguous() / dist.get_world_size()
            dist.broadcast(t, 0)
            return t

        def sent(x, strided):
            t = whole(x, strided)
            dist.broadcast(t, 0)
            return t

        def scattered(x, strided):
            part, t = torch.zeros(len(x) // dist.get_world_size(), 4), torch.zeros(4, 4)
            dist.reduce_scatter_tensor(part, whole(x, strided))
            dist.all_gather_into_tensor(t, part)
            return t / dist.get_world_size()

        def step(world, change, strided):
            x = world.input("x", (4, 4))
            world.output("result", x * 1 if world.single else change(x, strided(world.rank)), mean=())

        for change, alike in ((reduced, True), (at_one, True), (sent, True), (scattered, False)):
            for ranks in ("all", "classes"):
                with self.subTest(change.__name__, ranks=ranks):
                    for one in (0, 1, 2) if ranks == "all" else (0, 1, 3):  # of classes rank 2 is not recorded
                        with self.assertRaisesRegex(sp.CaptureError, r"contiguous\(\).* at recorder_test.py"):
                            sp.capture(lambda world, c=change, one=one: step(world, c, lambda rank: rank == one), mesh={"dp": 4}, ranks=ranks)
                    sp.assert_equivalent(lambda world, c=change: step(world, c, lambda rank: False), mesh={"dp": 4}, ranks=ranks)
                    if alike:
                        sp.assert_equivalent(lambda world, c=change: step(world, c, lambda rank: True), mesh={"dp": 4}, ranks=ranks)

    def test_collectives_of_tensors_that_are_not_contiguous(self):
        """Backends take them in the order of memory (seen with gloo), where the program means that of the tensor."""
        def exchanged(world, model):
            out = torch.empty_like(model.up.weight.grad.t())
            dist.all_to_all_single(out, model.up.weight.grad.t().contiguous())
            model.up.weight.grad.copy_(out.t())

        def reduced(world, model):
            dist.all_reduce(model.up.weight.grad[:, 1:3])

        def scattered(world, model):
            parts = [model.down.weight.grad.t(), model.down.weight.grad.t() * 2]
            dist.reduce_scatter(model.up.weight.grad, parts)

        for change in (exchanged, reduced, scattered):
            with self.subTest(change.__name__):
                self.refuse(lambda world, model, change=change: None if world.single else change(world, model), "cannot be followed")

        def step(world):
            model = MLP()
            world.parameters(model)
            model(world.input("x", (4, 16), shard={"dp": 0})).square().mean().backward()
            for p in model.parameters():
                if not world.single:
                    dist.all_reduce(p.grad.t())  # dense, and alike on all ranks: each element with its own
                    p.grad /= world.size

        sp.assert_equivalent(step, mesh=MESH)

    def test_a_number_that_depends_on_data_comes_back(self):
        """`loss / count.item()`, a norm in a step size, max and min of such numbers, torch.tensor of one: as the tensors that they stand for."""
        def step(world, reduced=True):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x, y = world.input("x", (4, 8), shard={"dp": 0}), world.input("y", (4,), torch.long, shard={"dp": 0}, high=8)
            y = y.masked_fill(y == 3, -100)
            count = (y != -100).sum()
            if not world.single and reduced:
                dist.all_reduce(count)
            loss = torch.nn.functional.cross_entropy(model(x), y, ignore_index=-100, reduction="sum") / count.item()
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad)
            with torch.no_grad():
                norm = model.weight.grad.norm().item()
                model.weight.add_(model.weight.grad, alpha=-0.1 / (2 * norm + 1))
                model.bias.mul_(min(1.0, 3 / math.sqrt(model.bias.norm().item())) - torch.tensor(max(norm, 2.0)))

        sp.assert_equivalent(step, mesh=MESH)
        self.assertEqual("NOT EQUIVALENT", sp.verify(step, lambda world: step(world, reduced=False), mesh=MESH).verdict)

    def test_a_number_that_depends_on_data_is_printed(self):
        def change(world, model):
            loss = model.up.weight.grad.sum().item()
            if not math.isfinite(loss) or math.isnan(loss):
                raise SystemExit("the loss is no number")
            print(f"{loss:.3f} {loss + 1} {math.exp(loss)} {round(loss, 3)} %.2f" % loss, file=io.StringIO())

        sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)
        self.assertNotIn("item", vars(torch.Tensor))

    def test_an_embedding_whose_gradient_counts_the_batch(self):
        def step(world):
            model = torch.nn.Embedding(8, 4, scale_grad_by_freq=True)
            world.parameters(model)
            model(world.input("t", (4,), torch.long, shard={"dp": 0}, high=8)).square().sum().backward()

        with self.assertRaisesRegex(sp.CaptureError, "scale_grad_by_freq"):
            sp.capture(step, mesh=MESH)

    def test_an_output_that_the_ranks_lack(self):
        def change(world, model):
            if not world.single:
                model.up.weight.grad = None

        self.refuse(change, "up.weight.grad")

    def test_an_output_that_one_device_lacks(self):
        def change(world, model):
            if world.single:
                model.up.weight.grad = None

        self.refuse(change, "up.weight.grad")

    def test_reading_an_asynchronous_result_before_its_wait(self):
        import torch.distributed._functional_collectives as functional

        def change(world, model):
            if not world.single:
                raw = torch.ops._c10d_functional.all_reduce(model.up.weight.grad, "avg", dist.group.WORLD.group_name)
                model.up.weight.grad.copy_(raw)
            _ = functional

        self.refuse(change, "before its wait")


    def test_a_missing_wait(self):
        def change(world, model, wait=False):
            if not world.single:
                work = dist.all_reduce(model.up.weight.grad, async_op=True)
                if wait:
                    work.wait()
                model.up.weight.grad.mul_(0.5)

        self.refuse(change, "asynchronous allreduce still writes is written before its wait")
        sp.assert_equivalent(lambda world: train(world, lambda w, m: change(w, m, True)), mesh=MESH)

    def test_a_result_read_before_its_wait_is_a_defect(self):
        def change(world, model, wait=False):
            if not world.single:
                work = dist.all_reduce(model.up.weight.grad, async_op=True)
                if wait:
                    work.wait()
                model.up.weight.grad = model.up.weight.grad * 0.5

        self.refuse(change, "asynchronous allreduce is read before its wait")
        report = sp.verify(lambda world: train(world, change), mesh=MESH)
        self.assertEqual(("NOT EQUIVALENT", "async"), (report.verdict, report.defects[0].kind))
        self.assertIn("recorder_test.py", report.defects[0].places[0])
        sp.assert_equivalent(lambda world: train(world, lambda w, m: change(w, m, True)), mesh=MESH)

    def test_a_write_to_what_is_being_sent_is_a_defect(self):
        def change(world, model, wait=False):
            if not world.single:
                sent, got = model.up.weight.grad / 2, torch.empty(2, *model.up.weight.shape)
                work = dist.all_gather_into_tensor(got, sent, async_op=True)
                if wait:
                    work.wait()
                sent.zero_()
                work.wait()
                model.up.weight.grad = got.sum(0)

        report = sp.verify(lambda world: train(world, change), mesh=MESH)
        self.assertEqual(("NOT EQUIVALENT", "async"), (report.verdict, report.defects[0].kind))
        self.assertIn("still sends is written", report.defects[0].text)
        sp.assert_equivalent(lambda world: train(world, lambda w, m: change(w, m, True)), mesh=MESH)

    def test_methods_of_the_group(self):
        """They say themselves how they reduce, whatever the call before did, and have to be waited for."""
        def change(world, model, wait=True, factor=2):
            if not world.single:
                group = world.group("dp")
                dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX, group=group)
                work = group.allreduce([model.up.weight.grad])
                if wait:
                    work.wait()
                model.up.weight.grad = model.up.weight.grad / factor
                work.wait()

        sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)
        for wrong in ({"wait": False}, {"factor": 1}):
            report = sp.verify(lambda world, wrong=wrong: train(world, lambda w, m: change(w, m, **wrong)), mesh=MESH)
            self.assertEqual("NOT EQUIVALENT", report.verdict)

    def test_calls_that_a_group_takes_together(self):
        """With a device the backend itself is told of the first and the last, and gives one work for all."""
        def change(world, model, waits=True, factor=2, asynchronous=True, device=torch.device("cpu")):
            if not world.single:
                gradients = [p.grad for p in model.parameters()]
                with dist.distributed_c10d._coalescing_manager(world.group("dp"), device, async_ops=asynchronous) as together:
                    for g in gradients:
                        dist.all_reduce(g, group=world.group("dp"))
                if asynchronous and waits:
                    together.wait()
                torch._foreach_div_(gradients, factor)

        for right in ({}, {"asynchronous": False}, {"asynchronous": False, "device": None}):
            sp.assert_equivalent(lambda world: train(world, lambda w, m: change(w, m, **right)), mesh=MESH)
        for wrong in ({"waits": False}, {"factor": 1}):
            self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: train(world, lambda w, m: change(w, m, **wrong)), mesh=MESH).verdict)

    def test_another_part_of_a_buffer_that_is_under_way(self):
        def change(world, model):
            if not world.single:
                buffer = torch.cat([model.up.weight.grad.flatten(), torch.zeros(4)])
                work = dist.all_reduce(buffer[:512], async_op=True)
                buffer[512:] += 1
                work.wait()
                model.up.weight.grad.copy_(buffer[:512].view(32, 16) / world.size * buffer[512])

        sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)


class Verdicts(unittest.TestCase):
    def verdict(self, change):
        return sp.verify(lambda world: train(world, change), mesh=MESH, arguments=["--confirm", "off"])

    def test_nothing_changed(self):
        sp.assert_equivalent(lambda world: train(world, lambda w, m: None), mesh=MESH)

    def test_every_way_to_write_is_seen(self):
        """Each spoils one gradient on the ranks only."""
        writes = {
            "slice": lambda g: g[3:5].mul_(2), "column": lambda g: g[:, 1].add_(1), "transposed": lambda g: g.t().mul_(2), "flat": lambda g: g.view(-1)[5:9].zero_(),
            "strided": lambda g: g[::2].mul_(3), "foreach": lambda g: torch._foreach_mul_([g], 2.0), "out": lambda g: torch.add(g, 1.0, out=g), "data": lambda g: g.data.neg_(),
            "index": lambda g: g.__setitem__(0, 0.0), "copy": lambda g: g.copy_(g * 2), "set": lambda g: g.as_strided((4,), (16,), 3).fill_(0.5), "masked": lambda g: g.masked_fill_(g > 0, 0.0),
            "unbind": lambda g: g.unbind(0)[2].mul_(2), "split": lambda g: g.split(8)[1].div_(2), "storage": lambda g: torch.tensor([], dtype=g.dtype).set_(g.untyped_storage(), 0, (16,), (1,)).mul_(2),
        }
        for name, write in writes.items():
            with self.subTest(name):
                def change(world, model, write=write):
                    if not world.single:
                        write(model.up.weight.grad)

                try:
                    report = self.verdict(change)
                except sp.CaptureError:
                    continue  # refused is right, too
                self.assertEqual(report.verdict, "NOT EQUIVALENT", str(report))

    def test_the_same_write_on_both_sides(self):
        def change(world, model):
            grad = model.up.weight.grad
            grad[3:5].mul_(2)
            grad.t()[1].add_(1)
            grad.view(-1)[5:9].zero_()
            grad[::2].mul_(3)

        self.assertEqual(self.verdict(change).verdict, "EQUIVALENT")

    def test_pairs_of_equal_labels(self):
        """labels[:, None] == labels[None] has the same labels on both sides, and not at the same places."""
        def step(world, pairs=True):
            model = torch.nn.Linear(8, 4, bias=False)
            world.parameters(model)
            x, labels = world.input("x", (6, 8)), world.input("labels", (6,), torch.long, high=3)
            z = model(x)
            similar = (labels[:, None] == labels[None]).float() if pairs or world.single else torch.ones(6, 6)
            loss = (similar * (z @ z.T)).sum() + F.embedding(labels, torch.eye(3)).sum()
            loss.backward()
            world.output("loss", loss, mean=())

        sp.assert_equivalent(step, mesh=MESH)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict)

    def test_messages_that_are_begun(self):
        def step(world, waits=True, parts=2, blocks=False):
            modules = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            rank = world.coordinates["pp"]
            model = world.parameters(torch.nn.ModuleDict({str(i): m for i, m in enumerate(modules) if world.single or rank == i}))
            x, y = (world.input(name, (4, 8)) for name in "xy")
            if world.single:
                F.mse_loss(modules[1](modules[0](x).relu()), y).backward()
            elif rank == 0:
                sent = [modules[0](part).relu() for part in x.chunk(2)]
                works = [dist.isend(h.detach(), dst=1) for h in sent]  # both, before what comes back is received
                if blocks:
                    works[1].wait()
                for h in sent:
                    grad = torch.empty_like(h)
                    work = dist.irecv(grad, src=1)
                    if waits:
                        work.wait()
                    h.backward(grad)
                    work.wait()
                for work in works:
                    work.wait()
            else:
                for labels in y.chunk(2):
                    h = torch.empty(2, 8)
                    dist.irecv(h, src=0).wait()
                    (F.mse_loss(modules[1](h.requires_grad_()), labels) / parts).backward()
                    dist.send(h.grad, dst=0)
            torch.optim.SGD(model.parameters(), lr=0.1).step()

        for changes, verdict, kind in (({}, "EQUIVALENT", ""), ({"parts": 1}, "NOT EQUIVALENT", "lineage"), ({"waits": False}, "NOT EQUIVALENT", "async"), ({"blocks": True}, "NOT EQUIVALENT", "deadlock")):
            with self.subTest(changes):
                report = sp.verify(lambda world, changes=changes: step(world, **changes), mesh={"pp": 2}, arguments=["--confirm", "off"])
                self.assertEqual(report.verdict, verdict, str(report))
                self.assertEqual([d.kind for d in report.defects[:1]], [kind] if kind else [])

    def test_collectives_that_are_begun(self):
        """Stage 1 begins a collective of both stages, and only then sends what stage 0 wants before it joins."""
        functional = torch.ops._c10d_functional

        def step(world, how="all_reduce", early=False, batch=False, another=False, factor=2.0):
            stages = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            rank = world.coordinates["pp"]
            model = world.parameters(torch.nn.ModuleDict({str(i): m for i, m in enumerate(stages) if world.single or rank == i}))
            x, y = (world.input(name, (4, 8)) for name in "xy")
            if world.single:
                loss = F.mse_loss(stages[1](stages[0](x).relu()), y)
                loss.backward()
                world.output("shared", loss.expand(4) * 2, mean=())
            else:
                def begin(t):
                    if how == "functional":
                        whole = functional.all_reduce(t, "sum", dist.group.WORLD.group_name)
                        return lambda: functional.wait_tensor(whole)
                    parts = [torch.empty(4) for _ in range(2)]
                    flat = torch.cat([t, t + 1])
                    works = [dist.all_gather(parts, t, async_op=True)] if how == "all_gather" else [dist.all_reduce(flat, async_op=True)]
                    if another:
                        works.append(dist.all_reduce(torch.ones(1), async_op=True))

                    def end():
                        for work in works:
                            work.wait()
                        return parts[0] + parts[1] if how == "all_gather" else (flat[:4] + flat[4:] - 2) / 2

                    return end

                if rank == 0:
                    h = stages[0](x).relu()
                    dist.send(h.detach(), dst=1)
                    grad = torch.empty_like(h)
                    dist.recv(grad, src=1)
                    h.backward(grad)
                    shared = begin(torch.zeros(4))()
                else:
                    h = torch.empty(4, 8)
                    dist.recv(h, src=0)
                    loss = F.mse_loss(stages[1](h.requires_grad_()), y)
                    loss.backward()
                    end = begin(loss.detach().expand(4).clone())
                    shared = end() if early else None
                    if batch:
                        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, h.grad, 0)]):
                            work.wait()
                    else:
                        dist.send(h.grad, dst=0)
                    shared = end() if shared is None else shared
                world.output("shared", shared * factor, mean=())
            torch.optim.SGD(model.parameters(), lr=0.1).step()

        cases = [({"how": how}, "EQUIVALENT", "") for how in ("all_reduce", "all_gather", "functional")]
        cases += [({"how": how, "early": True}, "NOT EQUIVALENT", "deadlock") for how in ("all_reduce", "all_gather", "functional")]
        cases += [({"another": True}, "EQUIVALENT", ""), ({"factor": 1.0}, "NOT EQUIVALENT", "lineage"), ({"how": "functional", "factor": 1.0}, "NOT EQUIVALENT", "lineage")]
        cases += [({"batch": True}, "NOT EQUIVALENT", "deadlock")]  # it is for the communicator of the collectives
        for changes, verdict, kind in cases:
            with self.subTest(changes):
                report = sp.verify(lambda world, changes=changes: step(world, **changes), mesh={"pp": 2}, arguments=["--confirm", "off"])
                self.assertEqual(report.verdict, verdict, str(report))
                self.assertEqual([d.kind for d in report.defects[:1]], [kind] if kind else [])

    def test_handles_that_change_nothing(self):
        """Collectives of one group are in order anyway."""
        def change(world, model):
            if not world.single:
                works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
                for p, work in zip(model.parameters(), works):
                    work.wait()
                    p.grad /= world.size

        with tempfile.TemporaryDirectory() as folder:
            sp.capture(lambda world: train(world, change), mesh=MESH).write(f"{folder}/step")
            with gzip.open(f"{folder}/step.plan.json.gz", "rt") as f:
                self.assertNotIn('"handle"', f.read())

    def test_a_step_that_hangs(self):
        def change(world, model):
            if world.rank == 0 and not world.single:
                dist.all_reduce(model.up.weight.grad.clone())

        report = self.verdict(change)
        self.assertEqual(report.verdict, "NOT EQUIVALENT")
        self.assertEqual(report.defects[0].kind, "collective")
        self.assertIn("recorder_test.py", " ".join(report.defects[0].places) + report.text)

    def test_a_model_of_the_users_own_process_group_is_named(self):
        with self.assertRaises(ValueError):
            sp.verify(lambda world: None, mesh="dp=two")


class StagesWithoutShapes(unittest.TestCase):
    """Pipeline stages that run their modules once to see what shapes they give."""

    def verdict(self, layer, shapes=False, mesh={"pp": 2}, shard=False, width=3):
        class Part(torch.nn.Module):
            def __init__(self, layers):
                super().__init__()
                self.layers = torch.nn.ModuleDict({str(i): layer() for i in layers})

            def forward(self, x):
                for f in self.layers.values():
                    x = f(x)
                return x

        def single(world):
            model = Part(range(2))
            x, y = (world.input(name, (8, width)) for name in "xy")
            for a, b in zip(x.chunk(2), y.chunk(2)):
                (F.mse_loss(model(a), b) / 2).backward()

        def step(world):
            at = world.coordinates["pp"]
            stage = Part([at])
            if shard:
                fully_shard(stage, mesh=world.mesh("dp"))
            world.parameters(stage)
            example = torch.empty(4, width)
            given = {"input_args": example.clone().requires_grad_(at > 0), "output_args": example.clone().requires_grad_()} if shapes else {}
            schedule = ScheduleGPipe(PipelineStage(stage, at, 2, torch.device("cpu"), group=world.group("pp"), **given), 2, loss_fn=F.mse_loss)
            x, y = (world.input(name, (8, width), shard={"dp": 0} if shard else None) for name in "xy")
            schedule.step(*([] if at else [x]), target=y if at else None)

        return sp.verify(single, step, mesh=mesh).verdict

    def test_statistics_that_one_more_forward_changes(self):
        def layer():
            return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))

        self.assertEqual("EQUIVALENT", self.verdict(layer, shapes=True))
        self.assertEqual("NOT EQUIVALENT", self.verdict(layer))

    def test_what_the_first_forward_makes(self):
        class Layer(torch.nn.Linear):
            table = None

            def forward(self, x):
                if self.table is None:
                    self.table = torch.cos(torch.arange(3.0))
                return F.dropout(super().forward(x) * self.table, 0.1)

        self.assertEqual("EQUIVALENT", self.verdict(lambda: Layer(3, 3)))

    def test_sharded_parameters(self):
        self.assertEqual("EQUIVALENT", self.verdict(lambda: torch.nn.Linear(3, 3), mesh={"dp": 2, "pp": 2}, shard=True))


class Messages(unittest.TestCase):
    """Which message is which, and what is sent on."""

    def exchange(self, tags=((0, 0), (0, 0)), crossed=False, groups=False):
        def single(world):
            a, b = world.input("x", (4, 3)).chunk(2)
            world.output("p", a * 2)
            world.output("q", b * 3)

        def step(world):
            first, second = [dist.new_group([0, 1]), dist.new_group([0, 1, 2])] if groups else [None, None]
            a, b = (t.contiguous() for t in world.input("x", (4, 3)).chunk(2))
            if world.rank == 0:
                for work in [dist.isend(a, 1, group=first, tag=tags[0][0]), dist.isend(b, 1, group=second, tag=tags[0][1])]:
                    work.wait()
            elif world.rank == 1:
                p, q = torch.empty(2, 3), torch.empty(2, 3)
                if groups:  # the second group's first
                    todo = [(p, second, 0), (q, first, 0)] if crossed else [(q, second, 0), (p, first, 0)]
                else:
                    todo = [(q, None, tags[1][0]), (p, None, tags[1][1])] if crossed else [(p, None, tags[1][0]), (q, None, tags[1][1])]
                for work in [dist.irecv(t, 0, group=g, tag=n) for t, g, n in todo]:
                    work.wait()
                world.output("p", p * 2)
                world.output("q", q * 3)

        return sp.verify(single, step, mesh={"pp": 3}).verdict

    def test_each_group_pairs_its_own(self):
        self.assertEqual("EQUIVALENT", self.exchange(groups=True))
        self.assertEqual("NOT EQUIVALENT", self.exchange(groups=True, crossed=True))

    def test_tags(self):
        self.assertEqual("EQUIVALENT", self.exchange(((0, 1), (0, 1))))
        self.assertEqual("NOT EQUIVALENT", self.exchange(((0, 1), (0, 1)), crossed=True))
        with self.assertRaisesRegex(sp.CaptureError, "tag 1 at .*recorder_test.py.*tag 0 at .*recorder_test.py"):
            self.exchange(((0, 1), (1, 0)))

    def test_what_is_read_before_its_wait_is_sent_on(self):
        def single(world):
            x = world.input("x", (3, 4))
            world.output("y", x + x.roll(1, 0) + x.roll(2, 0), shard={"cp": 0})

        def step(world, waits=True):
            held = world.input("x", (3, 4), shard={"cp": 0})
            total = held
            for _ in range(2):
                got = torch.empty_like(held)
                for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, held, (world.rank + 1) % 3), dist.P2POp(dist.irecv, got, (world.rank - 1) % 3)]):
                    if waits:
                        work.wait()
                held, total = got, total + got
            world.output("y", total, shard={"cp": 0})

        sp.assert_equivalent(single, step, mesh={"cp": 3})
        report = sp.verify(single, lambda world: step(world, False), mesh={"cp": 3})
        self.assertEqual(("NOT EQUIVALENT", "async"), (report.verdict, report.defects[0].kind))
        self.assertIn("recorder_test.py", report.defects[0].places[0])


class OverRanks(unittest.TestCase):
    """Collectives that the format does not have, each right and wrong."""

    def test_products(self):
        def step(world, wrong=False, functional=False):
            x = world.input("x", (12, 6), shard={"dp": 0})
            pieces = x.chunk(3 if world.single else 1)
            whole = math.prod(pieces[1:], start=pieces[0])
            if functional and not world.single:
                whole = torch.distributed._functional_collectives.all_reduce(x, "product", world.group("dp"))
            elif not world.single:
                whole = x.clone()
                dist.all_reduce(whole, dist.ReduceOp.SUM if wrong else dist.ReduceOp.PRODUCT)
            world.output("p", whole, mean=())

        def scattered(world, wrong=False):
            x = world.input("x", (9, 6), shard={"dp": 0})
            if world.single:
                world.output("p", x[:3] * x[3:6] * x[6:], mean=())
            else:
                out = torch.empty(1, 6)
                dist.reduce_scatter_tensor(out, x, dist.ReduceOp.PRODUCT)
                world.output("p", out * x[:1] if wrong else out, shard={"dp": 0})

        for right, wrong in ((step, lambda world: step(world, wrong=not world.single)), (lambda world: step(world, functional=True), None), (scattered, lambda world: scattered(world, wrong=True))):
            self.assertEqual("EQUIVALENT", sp.verify(right, mesh={"dp": 3}).verdict)
            if wrong:
                self.assertEqual("NOT EQUIVALENT", sp.verify(wrong, mesh={"dp": 3}).verdict)

    SENT = ((1, 3, 0), (2, 1, 1), (0, 2, 2))  # rows from each rank to each

    def exchanged(self, sent=SENT, swapped=False, waits=True, how="c10d"):
        """Rows that ranks give each other, so many each."""
        n, rows_each = len(sent), sum(sent[0])

        def step(world):
            x = world.input("x", (rows_each * n, 6), shard={"ep": 0})
            at = [[rows_each * a + sum(sent[a][:b]) for b in range(n)] for a in range(n)]
            if world.single:
                rows = [torch.cat([x[at[a][b]: at[a][b] + sent[a][b]] for a in range(n)]) for b in range(n)]
            else:
                gives, gets = sent[world.rank], [sent[a][world.rank] for a in range(n)]
                if how == "functional":
                    out = torch.distributed._functional_collectives.all_to_all_single(x, gets, gives, world.group("ep"))
                elif how == "lists":
                    parts = [torch.empty(k, 6) for k in gets]
                    dist.all_to_all(parts, [t.contiguous() for t in x.split(gives)])
                    out = torch.cat(parts)
                else:
                    out = torch.empty(sum(gets), 6)
                    work = dist.all_to_all_single(out, x, gets, gives, async_op=True)
                    if waits:
                        work.wait()
                rows = [out]
            weights = [torch.arange(1.0, len(r) + 1)[:, None] for r in rows]
            sums = torch.stack([(r.flip(0) if swapped and not world.single else r).mul(w).sum(0) for r, w in zip(rows, weights)])
            world.output("sums", sums, shard={"ep": 0})

        return sp.verify(step, mesh={"ep": n})

    def test_uneven_all_to_all(self):
        for how in ("c10d", "functional", "lists"):
            with self.subTest(how):
                self.assertEqual("EQUIVALENT", self.exchanged(how=how).verdict)
                self.assertEqual("NOT EQUIVALENT", self.exchanged(how=how, swapped=True).verdict)
        report = self.exchanged(waits=False)
        self.assertEqual(("NOT EQUIVALENT", "async"), (report.verdict, report.defects[0].kind))

    def test_an_all_to_all_that_is_uneven_on_some_ranks_only(self):
        with self.assertRaisesRegex(sp.CaptureError, "recorder_test.py.*unequal sizes on rank 1 and of equal ones on rank 0"):
            self.exchanged(((2, 2, 2), (2, 1, 3), (2, 3, 1)))

    def test_lists_of_unequal_tensors(self):
        """Rows of a weight that no number of ranks divides: gradients to their owners, and weights back."""
        def step(world, of=0, mean=True):
            model = torch.nn.Linear(4, 7, bias=False)
            weight = model.weight
            loss = model(world.input("x", (9, 4), shard={"dp": 0})).square().mean()
            loss.backward()
            if world.single:
                new = weight.detach() - 0.1 * weight.grad
            else:
                rows = (2, 4, 1)
                mine = torch.empty(rows[world.rank], 4)
                dist.reduce_scatter(mine, list(weight.grad.split(rows)))
                owned = weight.detach().split(rows)[world.rank] - 0.1 * (mine / 3 if mean else mine)
                parts = [torch.empty(n, 4) for n in rows]
                dist.all_gather(parts, owned.contiguous())
                new = torch.cat(parts[of:] + parts[:of])
            with torch.no_grad():
                weight.copy_(new)
            weight.grad = None
            return loss

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh={"dp": 3}).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, of=1), mesh={"dp": 3}).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda world: step(world, mean=False), mesh={"dp": 3}).verdict)

    def test_pieces_that_are_not_the_tensor(self):
        def step(world):
            x, out = world.input("x", (4, 6)), torch.empty(4, 6)
            if not world.single:
                dist.all_to_all_single(out, x, [1, 1], [1, 1])
            world.output("o", x if world.single else out, mean=())

        with self.assertRaisesRegex(sp.CaptureError, "pieces of 1, 1 rows, of a tensor of 4"):
            sp.verify(step, mesh=MESH)


class Operators(unittest.TestCase):
    """Operators that scripts for several ranks use, each right and wrong."""

    def verdict(self, step, single=None):
        return sp.verify(*([single] if single else []), step, mesh=MESH).verdict

    def test_gradients_of_slices_with_a_step(self):
        def step(world, right=True):
            model = torch.nn.Linear(7, 7)
            x = model(world.input("x", (4, 7), shard={"dp": 0}))
            even, odd = x[:, 0::2], x[:, 1:6:3]
            loss = even.square().mean() + (odd if right or world.single else x[:, 1:6:4]).sum(1).square().mean()
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            return loss

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_operators_that_come_whole_from_below_autograd(self):
        """Such as flatten, which copies here, as DTensor's own code calls it."""
        def step(world, right=True):
            x = world.input("x", (4, 3, 8), shard={"dp": 0})
            with torch._C._AutoDispatchBelowAutograd():
                flat = x.transpose(1, 2).flatten(1)
            world.output("y", flat.view(-1, 8, 3).transpose(1, 2) * (1 if right or world.single else 2), shard={"dp": 0})

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_writes_to_diagonals(self):
        """Where no order of the view's dimensions is that of memory, as the gradient of a diagonal is made."""
        def step(world, right=True):
            v = world.input("v", (2, 3))
            if world.single:
                z = torch.stack([torch.stack([v[:, e] if e == f else torch.zeros(2) for f in range(3)], -1) for e in range(3)])
            else:
                z = torch.zeros(3, 2, 3)
                torch.diagonal(z, dim1=0, dim2=2).copy_(v if right else v.view(3, 2).t())
            world.output("z", z, mean=())

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_log_sum_exps_that_are_added(self):
        def single(world):
            return world.output("y", torch.softmax(world.input("s", (3, 8)), -1) @ world.input("v", (8, 2)))

        def step(world, right=True):
            s, v = world.input("s", (3, 8), shard={"dp": 1}), world.input("v", (8, 2), shard={"dp": 0})
            lse = torch.logsumexp(s, -1)
            every = [torch.empty_like(lse) for _ in range(2)]
            dist.all_gather(every, lse)
            whole = torch.logaddexp(*every) if right else torch.maximum(*every)
            out = torch.exp(s - whole[:, None]) @ v
            dist.all_reduce(out)
            world.output("y", out)

        self.assertEqual("EQUIVALENT", self.verdict(step, single))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False), single))

    def test_factors_of_what_a_vocabulary_has_are_not_rounded(self):
        """0.9 / 8 is no number of 32 bits."""
        def step(world, factor=0.9):
            part = 12 // world.size
            table, t = world.input("table", (12, 5), shard={"dp": 0}), world.input("t", (8,), torch.long, high=12) - world.rank * part
            inside = (t >= 0) & (t < part)
            y = F.embedding(torch.where(inside, t, 0), table) * (inside * (factor / 8))[:, None]
            if not world.single:
                dist.all_reduce(y)
            world.output("y", y, mean=())

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(step, lambda world: step(world, 0.9 + 1e-5)))

    def test_integers_of_which_bits_and_remainders_are_taken(self):
        def step(world, function, other):
            t = world.input("t", (8,), torch.long, shard={"dp": 0}, high=6)
            world.output("y", (other if world.rank else function)(t).float() * world.input("x", (8,), shard={"dp": 0}), shard={"dp": 0})

        for function, same, other in (
            (lambda t: t & 1, lambda t: t % 2, lambda t: t != 0),
            (lambda t: t | 4, lambda t: 4 + t % 4, lambda t: t != -1),
            (lambda t: ~t, lambda t: -1 - t, lambda t: t == 0),
            (lambda t: t ^ 1, lambda t: t + 1 - 2 * (t & 1), lambda t: t != 1),
            (lambda t: t >> 1, lambda t: t // 2, lambda t: torch.div(t + 1, 2, rounding_mode="floor")),
            (lambda t: torch.div(t - 3, 2, rounding_mode="floor"), lambda t: (t - 3 - (t - 3) % 2) // 2, lambda t: torch.div(t - 3, 2, rounding_mode="trunc")),
            (lambda t: torch.fmod(t - 3, 2), lambda t: t - 3 - 2 * torch.div(t - 3, 2, rounding_mode="trunc"), lambda t: torch.remainder(t - 3, 2)),
        ):
            self.assertEqual("EQUIVALENT", self.verdict(functools.partial(step, function=function, other=same)))
            self.assertEqual("NOT EQUIVALENT", self.verdict(functools.partial(step, function=function, other=other)))

    def test_integers_that_are_computed_with_reals(self):
        def step(world, other=0):
            t = world.input("t", (8,), torch.long, shard={"dp": 0}, high=6)
            x = world.input("x", (8,), shard={"dp": 0})
            world.output("y", x * (t % 2) + (t + other * world.rank) // 2, shard={"dp": 0})

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(functools.partial(step, other=1)))

    def test_lengths_that_are_compared_with_positions(self):
        """Also where the last position's comparison has one answer only."""
        def single(world):
            lengths, x = world.input("lengths", (4,), torch.long, high=6), world.input("x", (4, 6))
            seen = torch.stack([lengths > i for i in range(6)], 1)
            world.output("y", (x * seen).sum(), mean=())
            world.output("z", x.masked_fill(~seen, 2.0))

        def step(world, right=True):
            lengths, x = world.input("lengths", (4,), torch.long, high=6), world.input("x", (4, 6), shard={"dp": 1})
            seen = torch.arange(3)[None] + (3 * world.rank if right else 0) < lengths[:, None]
            y = (x * seen).sum()
            dist.all_reduce(y)
            world.output("y", y, mean=())
            world.output("z", x.masked_fill(~seen, 2.0), shard={"dp": 1})

        self.assertEqual("EQUIVALENT", self.verdict(step, single))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False), single))

    def test_masks_along_later_dimensions(self):
        """Of constants they are no positions; of data they choose as torch.where does."""
        def step(world, mask, other):
            x, v = world.input("x", (4, 2, 3), shard={"dp": 0}) * 1, world.input("v", (2, 3))
            if world.single:
                x = torch.where(mask(v), 0.5, x)
            else:
                x[:, other(v)] = 0.5
            world.output("y", x, shard={"dp": 0})

        first = torch.tensor([True, False])
        both = torch.tensor([True, True])
        for mask, other in ((lambda v: first[:, None], lambda v: first), (lambda v: v > 0, lambda v: v > 0), (lambda v: v[:, :1] > 0, lambda v: v[:, 0] > 0)):
            self.assertEqual("EQUIVALENT", self.verdict(functools.partial(step, mask=mask, other=other)))
        for mask, other in ((lambda v: both[:, None], lambda v: first), (lambda v: v > 0, lambda v: v < 0)):
            self.assertEqual("NOT EQUIVALENT", self.verdict(functools.partial(step, mask=mask, other=other)))

    def test_constants_that_were_rounded(self):
        """0.7 / 12, and half of 0.7 / 6: of each position, and of some (where zeros are joined with them)."""
        def step(world, weight=0.7):
            model = torch.nn.Linear(5, 4)
            x, y = world.input("x", (12, 5), shard={"dp": 0}), world.input("y", (12,), torch.long, shard={"dp": 0}, high=4)
            z = world.parameters(model)(x)
            loss = 0.3 * F.cross_entropy(z, y) + weight * F.cross_entropy(z, y.flip(0) if world.size > 2 else y) - 0.1 * (z[:, :2] - z[:, 2:] ** 2).mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            return loss

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, 0.7001), step))

    def test_what_has_a_value_for_classes_only(self):
        """The logarithm of a label's probability, and powers of it."""
        def step(world, function, divided=True):
            model = torch.nn.Linear(5, 4)
            x, y = world.input("x", (8, 5), shard={"dp": 0}), world.input("y", (8,), torch.long, shard={"dp": 0})
            loss = function(F.softmax(world.parameters(model)(x), -1).gather(1, y[:, None]))
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                if divided:
                    p.grad /= world.size
            return loss

        for function in (lambda p: -p.log().mean(), lambda p: (1 - p**0.7).mean()):
            self.assertEqual("EQUIVALENT", self.verdict(functools.partial(step, function=function)))
            self.assertEqual("NOT EQUIVALENT", self.verdict(functools.partial(step, function=function, divided=False)))

    def test_factors_of_lists_of_tensors_that_are_numbers_of_data(self):
        """As Adafactor with foreach has them."""
        def step(world, averaged=True):
            model = torch.nn.Linear(4, 3)
            optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1, foreach=True)
            world.parameters(model)(world.input("x", (8, 4), shard={"dp": 0})).square().mean().backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                if averaged:
                    p.grad /= world.size
            optimizer.step()

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_labels_of_points(self):
        """Of images, and of sequences whose classes come second."""
        def step(world, ignore=-100, weight=None):
            model = torch.nn.Conv1d(2, 3, 1)
            world.parameters(model)
            y = model(world.input("x", (4, 2, 6), shard={"dp": 0}))
            t = world.input("t", (4, 6), torch.long, shard={"dp": 0}, high=3)
            loss = F.cross_entropy(y, t, weight=weight, ignore_index=ignore, reduction="none").sum() / 24 * world.size
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            return loss

        weight = torch.tensor([1.0, 2.0, 3.0])
        for options in {}, {"ignore": 2}, {"weight": weight}:
            self.assertEqual("EQUIVALENT", self.verdict(functools.partial(step, **options)), options)
        self.assertEqual("NOT EQUIVALENT", self.verdict(functools.partial(step, weight=weight), step))

    def test_causal_attention_of_three_dimensions(self):
        def step(world, right=True):
            q, k, v = (world.input(n, (2, 6, 4), shard={"dp": 0}) for n in "qkv")
            world.output("y", F.scaled_dot_product_attention(q, k, v, is_causal=right or world.single), shard={"dp": 0})

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_gradients_of_attention_by_its_result(self):
        """Kernels, and rings that put the softmax together from parts, have the sum of result * gradient where autograd has that of weights * their gradients."""
        class ByHand(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v, right):
                s = q @ k.transpose(-1, -2) / 2
                lse = torch.logsumexp(s, -1, keepdim=True)
                out = torch.exp(s - lse) @ v
                ctx.right = right
                ctx.save_for_backward(q, k, v, out, lse)
                return out

            @staticmethod
            def backward(ctx, grad):
                q, k, v, out, lse = ctx.saved_tensors
                p = torch.exp(q @ k.transpose(-1, -2) / 2 - lse)
                ds = p * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True) * ctx.right) / 2
                return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ grad, None

        attentions = {"torch": F.scaled_dot_product_attention, "softmax": lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v,
                      "by hand": lambda q, k, v: ByHand.apply(q, k, v, 1), "wrong": lambda q, k, v: ByHand.apply(q, k, v, 0)}

        def step(world, attention):
            model = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8, bias=False) for name in "qkvo"})
            world.parameters(model)
            x = world.input("x", (4, 8, 8), shard={"dp": 0})
            q, k, v = (model[name](x).view(len(x), 8, 2, 4).transpose(1, 2) for name in "qkv")
            model["o"](attentions[attention](q, k, v).transpose(1, 2).reshape(len(x), 8, 8)).square().mean().backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size

        for one in ("torch", "softmax"):
            for other in ("torch", "softmax", "by hand", "wrong"):
                with self.subTest(one, other=other):
                    report = sp.verify(lambda world: step(world, one), lambda world: step(world, other), mesh=MESH, arguments=["--timeout", "5"])
                    self.assertEqual("NOT EQUIVALENT" if other == "wrong" else "EQUIVALENT", report.verdict, str(report))

    def test_a_softmax_of_rows_of_which_all_are_masked(self):
        def step(world):
            q, k, v = (world.input(n, (2, 6, 4), shard={"dp": 0}) for n in "qkv")
            mask = torch.ones(6, 6, dtype=torch.bool).tril(-1)  # the first row sees nothing: torch's result is zero there
            world.output("y", F.scaled_dot_product_attention(q, k, v, attn_mask=mask), shard={"dp": 0})

        with self.assertRaisesRegex(sp.CaptureError, "_safe_softmax"):
            sp.verify(step, mesh=MESH)


class NotNumbers(unittest.TestCase):
    """What is compared or multiplied needs a value, what is not taken needs none: NaN on the ranks where the single device has a number is a difference."""

    def verdict(self, single, ranks):
        def step(world):
            x, z = (world.input(name, (4, 3)) for name in "xz")
            i = world.input("i", (4, 1), torch.int64, high=3)
            world.output("y", (single if world.single else ranks)(x, z, i), mean=())

        report = sp.verify(step, mesh={"tp": 2})
        self.assertFalse([a for a in report.assumptions if "not-a-number" in a])
        return report.verdict

    def test_roots_that_are_compared(self):
        def itself(x, z, i):
            return z * 1

        for name, number in (("root", torch.sqrt), ("power", lambda x: x ** 0.5), ("logarithm", lambda x: torch.log(1 + torch.sqrt(x))), ("mean", lambda x: torch.sqrt(x).mean(1, True)), ("reciprocal", torch.rsqrt)):
            def compared(x, z, i, number=number):
                return torch.where(number(x) >= 0, z, 2 * z)

            with self.subTest(name):
                self.assertNotEqual("EQUIVALENT", self.verdict(itself, compared))
                self.assertEqual("EQUIVALENT", self.verdict(compared, compared))
        for name, number in (("squares", lambda x: torch.sqrt(x * x)), ("positive", lambda x: torch.log(1 + F.relu(x)) / (1 + x.square()) + torch.rsqrt(1 + x.exp()))):
            with self.subTest(name):
                self.assertEqual("EQUIVALENT", self.verdict(itself, lambda x, z, i, number=number: torch.where(number(x) < 0, 2 * z, z)))

    def test_what_is_not_taken(self):
        def logs(x):
            return torch.log(x)

        def multiplied(x, i):
            return (F.one_hot(i.squeeze(1), 3) * x).sum(1, keepdim=True)

        for name, taken in (("gather", lambda x, i: x.gather(1, i)), ("index", lambda x, i: x[torch.arange(4), i.squeeze(1)][:, None]), ("nll", lambda x, i: -F.nll_loss(x, i.squeeze(1), reduction="none")[:, None]),
                            ("several", lambda x, i: x.gather(1, i.expand(4, 2))[:, :1])):
            with self.subTest(name):
                self.assertEqual("EQUIVALENT", self.verdict(lambda x, z, i, taken=taken: taken(logs(x), i), lambda x, z, i, taken=taken: taken(logs(x), i)))
                self.assertNotEqual("EQUIVALENT", self.verdict(lambda x, z, i, taken=taken: taken(logs(x), i), lambda x, z, i: multiplied(logs(x), i)))
                self.assertEqual("EQUIVALENT", self.verdict(lambda x, z, i, taken=taken: taken(x * 2, i), lambda x, z, i: multiplied(x * 2, i)))


class WhereThePlanTurnsWrong(unittest.TestCase):
    """A wrong step's first cause is where it is wrong."""

    def first(self, step, mesh=MESH):
        report = sp.verify(step, mesh=mesh)
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("Cause 1 of 1:", report.text)
        return report.text.split("Cause 1 of 1:")[1].split("\n\n")[0]

    def test_a_loss_that_was_added_up(self):
        """Its ranks' gradients are parts of a sum, though the gradient in question is not reduced."""
        def step(world, summed=True):
            norm, up, down = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
            model = world.parameters(torch.nn.ModuleDict({"norm": norm, "up": up, "down": down}))
            x, y = (world.input(n, (6, 8), shard={"dp": 0}) for n in "xy")
            loss = (down(F.gelu(up(norm(x)))) - y).square().sum() / 48
            loss.backward()
            if not world.single:
                for name, p in model.named_parameters():
                    if summed or name != "norm.weight":
                        dist.all_reduce(p.grad)
                loss = loss.detach()
                dist.all_reduce(loss)
            world.output("loss", loss, mean=())

        sp.assert_equivalent(step, mesh=MESH)
        self.assertIn("norm.weight.grad", self.first(lambda world: step(world, False)))

    def test_a_bias_that_is_added_to_a_sum_over_ranks(self):
        """What a layer cut by rows gives is whole then, so that nothing is said of it but of the gradient that was not reduced."""
        def step(world, reduced=True, scattered=False):
            group = world.group("tp")

            class Whole(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    if not scattered:
                        x = x.clone()
                        dist.all_reduce(x, group=group)
                        return x
                    out = x.new_empty(x.shape[0] // group.size(), *x.shape[1:])
                    dist.reduce_scatter_tensor(out, x, group=group)
                    return out

                @staticmethod
                def backward(ctx, grad):
                    if not scattered:
                        return grad
                    out = grad.new_empty(grad.shape[0] * group.size(), *grad.shape[1:])
                    dist.all_gather_into_tensor(out, grad.contiguous(), group=group)
                    return out

            class Copy(torch.autograd.Function):
                @staticmethod
                def forward(ctx, x):
                    return x.view_as(x)

                @staticmethod
                def backward(ctx, grad):
                    grad = grad.clone()
                    dist.all_reduce(grad, group=group)
                    return grad

            class Rows(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.weight, self.bias = torch.nn.Parameter(torch.empty(6, 8 // world.size)), torch.nn.Parameter(torch.empty(6))

                def forward(self, x):
                    return Whole.apply(F.linear(x, self.weight)) + self.bias

            first, up, rows = torch.nn.Linear(6, 6), torch.nn.Linear(6, 8 // world.size, bias=False), Rows()
            model = world.parameters(torch.nn.ModuleDict({"first": first, "up": up, "rows": rows}), {"up": {"tp": 0}, r"rows\.weight": {"tp": 1}})
            h = first(world.input("x", (8, 6)))
            if reduced and not world.single:
                h = Copy.apply(h)
            loss = rows(torch.tanh(up(h))).square().sum() / 48
            loss.backward()
            if scattered and not world.single:
                dist.all_reduce(rows.bias.grad, group=group)
                loss = loss.detach()
                dist.all_reduce(loss, group=group)
            world.output("loss", loss, mean=())

        for scattered in (False, True):
            with self.subTest(scattered=scattered):
                report = sp.verify(lambda world: step(world, scattered=scattered), mesh={"tp": 2})
                self.assertEqual("EQUIVALENT", report.verdict, report.text)
                self.assertNotIn("Wrong lineage", report.text)
                found = self.first(lambda world: step(world, False, scattered), {"tp": 2})
                self.assertIn("an all_reduce over tp is missing", found)

    def test_samples_that_are_dealt_out(self):
        """A rank has each second sample, which is no part of the batch as shapes would have it."""
        def step(world, divided=True):
            model = torch.nn.Linear(6, 3)
            world.parameters(model)
            data = world.input("data", (8, 6))
            batch = torch.stack([data[i] for i in range(world.rank, 8, world.size)])
            F.gelu(model(batch)).square().mean().backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad)
                    if divided:
                        p.grad /= world.size

        report = sp.verify(step, mesh=MESH)
        self.assertEqual("EQUIVALENT", report.verdict)
        self.assertNotIn("Wrong lineage", report.text)
        self.assertIn("scaled by 2", self.first(lambda world: step(world, False)))

    def test_a_sum_over_ranks_that_have_other_experts(self):
        def step(world, axes=("dp",)):
            weight = torch.nn.Parameter(torch.randn(4 // world.sizes["ep"], 3))
            model = torch.nn.Module()
            model.experts = weight
            world.parameters(model, shard={"experts": {"ep": 0}})
            x = world.input("x", (4, 4, 3), shard={"dp": 0, "ep": 1})
            (x * weight).square().mean((0, 2)).sum().backward()
            if not world.single:
                dist.all_reduce(weight.grad, group=world.group(*axes))
                weight.grad /= 2

        sp.assert_equivalent(step, mesh={"dp": 2, "ep": 2})
        report = sp.verify(lambda world: step(world, ("dp", "ep")), mesh={"dp": 2, "ep": 2})
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("recorder_test.py", report.text)


class Boxes(unittest.TestCase):
    def place(self, logical, local, mesh, at, cuts, **placement):
        return locate(Mark("output", "t", Filled(0, local), Placement(**placement)), logical, local, Mesh(mesh), at, cuts)

    def test_said(self):
        self.assertEqual(self.place((8, 6), (4, 2), {"dp": 2, "tp": 3}, {"dp": 1, "tp": 2}, {}, shard={"dp": 0, "tp": 1}).low, (4, 4))
        with self.assertRaises(NoPlace):
            self.place((8, 6), (8, 6), {"dp": 2}, {"dp": 1}, {}, shard={"dp": 0})

    def test_concluded_from_shapes(self):
        box = self.place((8, 6), (4, 6), {"dp": 2, "tp": 2}, {"dp": 1, "tp": 0}, {"dp": {0}})
        self.assertEqual((box.low, box.guessed), ((4, 0), True))
        with self.assertRaises(NoPlace):
            self.place((8, 6), (3, 6), {"dp": 2}, {"dp": 1}, {})

    def test_a_scalar_is_the_mean_over_what_cuts_the_batch(self):
        box = self.place((), (), {"dp": 4, "tp": 2}, {"dp": 1, "tp": 0}, {"dp": {0}})
        self.assertEqual((box.total, box.divisor), (("dp",), 4))

    def test_geometry(self):
        self.assertTrue(contiguous((2, 3), 5).is_dense())
        self.assertEqual(contiguous((2, 3), 5).span(), (5, 11))


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
optimizers = [ZeroRedundancyOptimizer(first.parameters(), optimizer_class=torch.optim.Adam, lr=0.1) if world > 1 else torch.optim.Adam(first.parameters(), lr=0.1),
              torch.optim.SGD(second.parameters(), lr=0.1 DIVIDED)]
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
loader = DataLoader(data, 8 // world, sampler=DistributedSampler(data, shuffle=True), num_workers=2, pin_memory=True)
model = nn.Linear(10, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad DIVIDED= world
    optimizer.step()
"""


FORKED = """
import torch, shardproof.torch as sp
torch.set_num_threads(4)
torch.randn(1 << 20).cos()  # threads are there now

def step(world):
    x = world.input("x", (8, 1 << 17), shard={"dp": 0})
    return (x * torch.linspace(0.0, 1.0, 1 << 17).cos().sin()).sum()

captured = sp.capture(step, mesh={"dp": 4}, jobs=2)
print(len(captured.recorded), torch.get_num_threads())
"""


class Forked(unittest.TestCase):
    def test_plans_are_those_of_one_process(self):
        """Programs are made where ranks are recorded; some have to be made again, with what other ranks have."""

        def replicas(world):
            model = MLP()
            x, y = (world.input(name, (8, 16), shard={"dp": 0}) for name in "xy")
            loss = F.mse_loss((model if world.single else torch.nn.parallel.DistributedDataParallel(model))(x), y)
            loss.backward()
            return loss

        def own_numbers(world, where=lambda world: True):
            x = world.input("x", (8, 16), shard={"dp": 0})
            scale = torch.arange(16.0) * (1 if world.single else 2 if where(world) else 1)
            world.output("y", x * (scale if world.single else scale / 2 if where(world) else scale), shard={"dp": 0})

        def built(world):
            given = torch.zeros(16)
            world.parameters(model := MLP())
            if not world.single:
                dist.all_reduce(given)
            world.output("y", model(world.input("x", (8, 16), shard={"dp": 0})) + given, shard={"dp": 0})

        for name, step in {"replicas": replicas, "numbers": own_numbers, "one rank's numbers": lambda world: own_numbers(world, lambda w: w.rank == 2), "built": built,
                           "flat": lambda world: flat_gradients(world, "mean")}.items():
            with self.subTest(name):
                one, two = (sp.capture(step, mesh={"dp": 4}, jobs=jobs) for jobs in (1, 2))
                self.assertEqual(one.plan, two.plan)
                self.assertEqual(one.model, two.model)
                self.assertEqual(one.assumptions, two.assumptions)

    def test_no_threads_of_the_parent_are_waited_for(self):
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "4"}, timeout=300)
        self.assertEqual(done.stdout.split(), ["4", "4"], done.stderr)


def flat_gradients(world, way, wrong=False):
    """Gradients that are views of one flat buffer, as Megatron's DistributedDataParallel and FSDP2 have them, of two backward passes; the loss is a sum divided by all tokens."""
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8))
    world.parameters(model)
    parameters = list(model.parameters())
    flat, at = torch.zeros(sum(p.numel() for p in parameters)), 0
    passes = [[world.input(f"{name}{i}", (4, 2), torch.long, shard={"dp": 0}, high=8) for name in ("tokens", "labels")] for i in range(2)]
    count = sum((labels != -100).sum() for _, labels in passes)
    if not world.single:
        dist.all_reduce(count)
    if not math.isfinite((1 / count).item()):  # asked before the loss has told what labels are
        raise RuntimeError("no tokens")
    losses = []
    for tokens, labels in passes:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100) / count
        loss.backward()
        losses.append(loss.detach())
        at = 0
        for p in parameters:
            part = flat[at:at + p.numel()].view(p.shape)
            if not (wrong and way == "add" and p is parameters[1] and loss is not losses[0] and not world.single):
                part.add_(p.grad)
            p.grad, at = None, at + p.numel()
    if not world.single:
        dist.all_reduce(flat)
    if way == "product":
        flat = flat * (0.5 if wrong and not world.single else 1.0)
    at = 0
    for p in parameters:
        p.grad, at = flat[at:at + p.numel()].view(p.shape), at + p.numel()
    if way == "norm":
        norm = torch.norm(torch.tensor([[p.grad.norm() for p in parameters[:2 if wrong and not world.single else None]]]))
        for p in parameters:
            p.grad.mul_(1 / (norm + 1))
    torch.optim.SGD(parameters, lr=0.1).step()
    world.output("loss", sum(losses), sum=["dp"])


class FlatGradients(unittest.TestCase):
    def test_right_and_wrong(self):
        for way in ("add", "product", "norm"):
            for wrong, verdict in ((False, "EQUIVALENT"), (True, "NOT EQUIVALENT")):
                with self.subTest(way, wrong=wrong):
                    report = sp.verify(lambda world, way=way, wrong=wrong: flat_gradients(world, way, wrong), mesh=MESH)
                    self.assertEqual(verdict, report.verdict, str(report))

    def test_stretches_of_a_flat_buffer_that_overlap(self):
        def written(world, last):
            x, flat = world.input("x", (8,)), torch.zeros(8)
            flat[0:6] = x[0:6]
            flat[2:4] += 1
            flat[3:8].mul_(last if not world.single else 2)
            return flat[1:7]

        for last, verdict in ((2, "EQUIVALENT"), (3, "NOT EQUIVALENT")):
            self.assertEqual(verdict, sp.verify(lambda world, last=last: {"y": written(world, last)}, mesh=MESH).verdict)

    def test_a_tensor_of_numbers_that_are_tensors_is_not_differentiated(self):
        def step(world):
            w = torch.nn.Parameter(torch.ones(4))
            x = world.input("x", (4,))
            made = torch.tensor([(w * x).sum(), x.sum()])
            self.assertFalse(made.requires_grad)
            return {"y": made * (1 if world.single else world.sizes["dp"] / 2)}

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=MESH).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(step, mesh={"dp": 4}).verdict)

    def test_gradients_of_a_loss_that_is_a_sum_have_the_models_scale(self):
        for summed, low in (((), 2), (("dp",), 1)):
            mark = Mark("checkpoint", "a.out.grad", Filled(0, (4, 4)), Placement(summed=summed), gradient=True)
            self.assertEqual(low, locate(mark, (8, 4), (4, 4), Mesh(MESH), {"dp": 1}, {"dp": {0}}).divisor)
            whole = locate(mark, (4, 4), (4, 4), Mesh(MESH), {"dp": 1}, {"dp": {0}})
            self.assertEqual((("dp",), low), (whole.total, whole.divisor))


class NumbersAndTruth(unittest.TestCase):
    """Integers that are put together, what is true of reals, places that are written twice, and casts that no operator is named after."""

    MESH = {"dp": 2}

    def verdict(self, single, ranks=None):
        steps = [lambda world, f=f: world.output("out", f(world), mean=()) for f in (single, ranks or single)]
        return sp.verify(*steps, mesh=self.MESH).verdict

    def refused(self, f, text):
        with self.assertRaisesRegex(sp.CaptureError, text):
            self.verdict(f)

    @staticmethod
    def language(shift, loss):
        def step(world):
            tokens = world.input("tokens", (4, 6), torch.long, shard={"dp": 0})
            model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16, bias=False))
            total = loss(model(tokens).flatten(0, 1), shift(tokens).flatten())
            total.backward()
            for p in model.parameters():
                if not world.single:
                    dist.all_reduce(p.grad)
                    p.grad /= world.size
            return total

        return step

    def test_labels_beside_a_number_that_is_no_class(self):
        def written(tokens):
            labels = tokens.clone()
            labels[:, :-1], labels[:, -1] = tokens[:, 1:], -100
            return labels

        def filled(tokens):
            labels = torch.full_like(tokens, -100)
            labels[:, :-1] = tokens[:, 1:]
            return labels

        of_all = lambda x, y: F.cross_entropy(x, y, reduction="sum") / y.numel()  # noqa: E731
        of_counted = lambda x, y: F.cross_entropy(x, y, reduction="sum") / (y.numel() * 5 / 6)  # noqa: E731
        for shift in (lambda t: F.pad(t[:, 1:], (0, 1), value=-100), lambda t: F.pad(t, (0, 1), value=-100)[:, 1:], written, filled):
            step = self.language(shift, F.cross_entropy)
            self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)
            self.assertEqual("EQUIVALENT", sp.verify(step, self.language(shift, of_counted), mesh=self.MESH).verdict)
            self.assertEqual("NOT EQUIVALENT", sp.verify(step, self.language(shift, of_all), mesh=self.MESH).verdict)

    def test_such_labels_in_losses_by_hand(self):
        def by_hand(x, labels, counted=lambda labels: (labels != -100).sum()):
            of_each = x.log_softmax(-1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
            return -(of_each * (labels != -100)).sum() / counted(labels)

        shift = lambda t: F.pad(t[:, 1:], (0, 1), value=-100)  # noqa: E731
        step = self.language(shift, by_hand)
        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(step, self.language(shift, lambda x, y: by_hand(x, y, lambda labels: labels.numel())), mesh=self.MESH).verdict)

    def test_such_labels_that_data_ignores_too(self):
        def shift(tokens):
            return F.pad(tokens.masked_fill(tokens == 0, -100)[:, 1:], (0, 1), value=-100)

        def counted(x, labels):
            n = (labels != -100).sum()
            size = dist.get_world_size()
            if size > 1:
                dist.all_reduce(n)
            return F.cross_entropy(x, labels, reduction="sum") / n * size

        self.assertEqual("EQUIVALENT", sp.verify(self.language(shift, counted), mesh=self.MESH).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(self.language(shift, F.cross_entropy), mesh=self.MESH).verdict)

    def test_numbers_of_right_answers(self):
        def step(world, all_count=False):
            x, y = world.input("x", (4, 5), shard={"dp": 0}), world.input("y", (4,), torch.long, shard={"dp": 0}, high=5)
            y = F.pad(y[:, None], (0, 1), value=-100).flatten()
            found = F.pad(x.argmax(1)[:, None], (0, 1)).flatten()
            right = (found == y) | (y == -100) if all_count and not world.single else found == y
            world.output("right", right.float().sum(), sum=["dp"])

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(step, lambda world: step(world, True), mesh=self.MESH).verdict)

    def test_labels_that_were_said_to_be_of_one_more_class(self):
        def step(world):
            x = world.input("x", (8, 3), shard={"dp": 0})
            return F.cross_entropy(x, world.input("labels", (8,), torch.long, shard={"dp": 0}, high=4), ignore_index=3)

        self.assertEqual("NOT EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)

    def test_means_of_counts_over_ranks(self):
        def step(world):
            n = torch.tensor(7 if world.single else 3 + world.rank)
            if not world.single:
                dist.all_reduce(n, op=dist.ReduceOp.AVG)
            world.output("y", world.input("x", (4,)) * (n / 2 if world.single else n), mean=())

        with self.assertRaisesRegex(sp.CaptureError, "a mean of integers over ranks"):
            sp.verify(step, mesh=self.MESH)

    def test_long_sequences_of_such_labels(self):
        def step(world):
            x = world.input("x", (4, 2048, 3), shard={"dp": 0}).requires_grad_()
            labels = F.pad(world.input("labels", (4, 2047), torch.long, shard={"dp": 0}), (0, 1), value=-100)
            return F.cross_entropy(x.flatten(0, 1), labels.flatten())

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)

    def test_integers_of_two_ranges(self):
        def both(world):
            return torch.cat([world.input("few", (4,), torch.long, high=2), world.input("many", (4,), torch.long, high=9)])

        self.assertNotEqual("EQUIVALENT", self.verdict(lambda w: (both(w) >= 2).float(), lambda w: both(w).float() * 0))
        self.assertEqual("EQUIVALENT", self.verdict(lambda w: (both(w) >= 2).float()))

    def test_what_is_true_of_reals(self):
        def of(f):
            return lambda world: f(world.input("x", (4,)), world.input("y", (4,))).float()

        self.assertNotEqual("EQUIVALENT", self.verdict(of(torch.logical_and), of(torch.mul)))
        self.assertNotEqual("EQUIVALENT", self.verdict(of(lambda x, y: torch.logical_not(x)), of(lambda x, y: 1 - x)))
        self.assertEqual("EQUIVALENT", self.verdict(of(torch.logical_and), of(lambda x, y: (x.abs() > 0) & (y.abs() > 0))))

    def test_places_that_may_be_written_twice(self):
        places = lambda w: w.input("x", (3, 4)).topk(2, 1).indices  # noqa: E731
        for write in (lambda w: torch.zeros(4).scatter(0, places(w).flatten(), 1.0), lambda w: torch.zeros(4, 2).scatter(0, places(w), 1.0),
                      lambda w: torch.zeros(3, 4).scatter(1, places(w)[:, [0, 0]], 1.0)):
            self.refused(write, "positions that may be the same")
        self.assertEqual("EQUIVALENT", self.verdict(lambda w: torch.zeros(3, 4).scatter(1, places(w), 1.0)))
        self.assertEqual("EQUIVALENT", self.verdict(lambda w: torch.zeros(4, 3).scatter(0, places(w).T, 1.0)))

    def test_casts_inside_of_other_operators(self):
        def pieces(world, dtype):
            buffer = torch.zeros(8)
            buffer[:4], buffer[4:] = world.input("x", (4,)), world.input("y", (4,))
            return buffer.to(dtype).float()

        def copied(world, dtype):
            target = torch.zeros(4, dtype=dtype)
            torch._foreach_copy_([target], [world.input("x", (4,))])
            return target.float()

        for f in (pieces, copied):
            self.assertNotEqual("EQUIVALENT", self.verdict(lambda w, f=f: f(w, torch.bool), lambda w, f=f: f(w, torch.float64)))
            self.refused(lambda w, f=f: f(w, torch.int64), "a cast of real")
        for f in (torch.sum, torch.prod, lambda x, dtype: x.cumsum(0, dtype=dtype), lambda x, dtype: x.cumprod(0, dtype=dtype)):
            self.refused(lambda w, f=f: f(w.input("x", (4,)), dtype=torch.int64).float(), "a cast of real")
        self.assertEqual("EQUIVALENT", self.verdict(lambda w: (w.input("x", (4,)) > 0).float().sum(dtype=torch.float64)))


class RowsOfWhichNothingIsSeen(unittest.TestCase):
    """Attention's kernels give zeros for them, not nothing: what they give there is compared."""

    @staticmethod
    def attended(mask, other=0.0):
        def step(world):
            q, k, v = (world.input(n, (4, 2, 5, 8), shard={"dp": 0}).requires_grad_() for n in "qkv")
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask(world))
            loss = (out + (0 if world.single else other) * torch.eye(5)[:, :1]).square().mean()
            loss.backward()
            world.output("grad", q.grad * (1 if world.single else 1 / world.size), shard={"dp": 0})
            return loss

        return step

    def test_by_constants(self):
        for mask in (lambda world: torch.ones(5, 5).tril(-1).bool(), lambda world: torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu().bool(), -math.inf)):
            self.assertEqual("EQUIVALENT", sp.verify(self.attended(mask), mesh=MESH, allow_uncompared=["*.grad"]).verdict)
            self.assertEqual("NOT EQUIVALENT", sp.verify(self.attended(mask, 1.0), mesh=MESH).verdict)

    def test_by_data_is_assumed_not_to_happen(self):
        report = sp.verify(self.attended(lambda world: world.input("seen", (5, 5)) > 0), mesh=MESH, allow_uncompared=["*.grad"])
        self.assertEqual("EQUIVALENT", report.verdict)
        self.assertIn("of scores that are masked by data each row has one that is seen", report.assumptions)


class Script(unittest.TestCase):
    def run_script(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.py"
            path.write_text(text)
            return subprocess.run([sys.executable, "-W", "ignore", "-m", "shardproof.torch", "--mesh", "dp=2", str(path)], capture_output=True, text=True, check=False, env=os.environ)

    def test_right_and_wrong(self):
        done = self.run_script(SCRIPT.replace("DIVIDED", ""))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("EQUIVALENT", done.stdout)
        done = self.run_script(SCRIPT.replace("DIVIDED", "/ world"))
        self.assertEqual(done.returncode, 10, done.stdout + done.stderr)
        self.assertIn("train.py:", done.stdout)

    def test_batches_of_a_loader(self):
        for divided, code in (("/", 0), ("*", 10)):
            done = self.run_script(LOADER.replace("DIVIDED", divided))
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)

    def test_each_of_several_optimizers_steps(self):
        for divided, code in (("", 0), ("/ world", 10)):
            done = self.run_script(SEVERAL_OPTIMIZERS.replace("DIVIDED", divided))
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)

    def test_an_optimizer_that_steps_later(self):
        text = SEVERAL_OPTIMIZERS.replace("for _ in range(2)", "xs, ys = torch.randn(4, 8 // world, 8), torch.randn(4, 8 // world, 4)\nfor _ in range(4)").replace(
            "x, y = torch.randn(8 // world, 8), torch.randn(8 // world, 4)", "x, y = xs[_], ys[_]").replace("""    for optimizer in optimizers:
        optimizer.step()
""", """    optimizers[0].step()
    if _ % 2 == 1:
        optimizers[1].step()
""")
        for divided, code in (("", 0), ("/ world", 10)):
            done = self.run_script(text.replace("DIVIDED", divided))
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            self.assertIn("only the first steps of each optimizer (2, 1) were verified, not what the script does afterwards", done.stdout)

    def test_error(self):
        done = self.run_script("raise SystemExit(3)")
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main()
