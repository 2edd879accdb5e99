# SPDX-License-Identifier: Apache-2.0
"""What a step keeps for the next one: buffers, numbers, optimizer states."""

import functools
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
from recorder_steps import MESH


class Kept(unittest.TestCase):
    """What a step keeps beside parameters and optimizer state.

    Buffers, parameters that replaced others, single numbers.
    """

    class Net(torch.nn.Module):
        def __init__(self, track):
            super().__init__()
            self.linear, self.track = torch.nn.Linear(8, 4), track
            for name in ("mean", "fixed", "rate"):
                self.register_buffer(
                    name,
                    torch.zeros(4)
                    if name == "mean"
                    else torch.randn(4)
                    if name == "fixed"
                    else None,
                )
            self.register_buffer("count", torch.zeros((), dtype=torch.long))
            self.register_buffer("cache", torch.zeros(1), persistent=False)
            self.scale = torch.nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            y = self.linear(x) * self.scale
            self.track(self, y.detach().mean(0))
            return y

    def verdict(
        self,
        track,
        after=lambda world, model: None,
        reduced=("linear.weight", "linear.bias", "scale"),
        **options,
    ):
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

        return sp.verify(
            step, mesh=MESH, arguments=["--stage-timeout", "10", "--confirm", "off"], **options
        ).verdict

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

    def test_a_cache_that_the_step_changes(self):
        def changed(single, ranks):
            def track(world, model, mean):
                model.cache.mul_(0).add_(single if world.single else ranks)

            return self.verdict(track)

        self.assertEqual("EQUIVALENT", changed(3.0, 3.0))
        self.assertEqual("CONDITIONAL", changed(3.0, 4.0))
        self.assertEqual("CONDITIONAL", changed(0.0, 4.0))
        self.assertEqual("CONDITIONAL", changed(4.0, 0.0))

    def test_optimizers_of_which_one_rank_has_another(self):
        """What is not compared then is reported, though the other rank has the right value."""

        def step(world):
            torch.manual_seed(0)
            model = torch.nn.Linear(8, 4)
            groups = (
                [model.weight, model.bias]
                if world.rank == 0
                else [{"params": [model.weight]}, {"params": [model.bias]}]
            )
            optimizer = torch.optim.SGD(groups, lr=0.1)
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            optimizer.step()
            return loss

        report = sp.verify(step, mesh=MESH, arguments=["--stage-timeout", "10", "--confirm", "off"])
        self.assertEqual("CONDITIONAL", report.verdict, str(report))
        self.assertTrue(
            any("optimizer0.groups.0.lr" in a and "rank 1" in a for a in report.not_compared),
            report.not_compared,
        )

    def test_a_number_that_is_no_mean(self):
        def rate(world, model, mean):
            model.rate = mean[0]

        self.assertEqual("NOT EQUIVALENT", self.verdict(rate))
        self.assertEqual(
            "NOT EQUIVALENT", self.verdict(self.nothing, reduced=("linear.weight", "linear.bias"))
        )

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
        with self.assertRaisesRegex(
            sp.CaptureError, "'rate.new', a buffer that ranks change, is not on the single device"
        ):
            self.verdict(made)

    def test_what_cannot_be_followed(self):
        def unknown(world, model, mean):
            model.fixed.copy_(mean.to(torch.long) ^ 3)

        with self.assertRaisesRegex(sp.CaptureError, "'fixed.new' cannot be followed"):
            self.verdict(unknown)

    def test_declared_by_output(self):
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
            tracker = (
                tracker
                if world.single or not reduce
                else torch.nn.SyncBatchNorm.convert_sync_batchnorm(tracker)
            )
            x = world.input("x", (8, 8), shard={"dp": 0})
            tracker(x)
            return model(x).square().mean().detach()

        for reduce in (True, False):
            self.assertEqual(
                "EQUIVALENT" if reduce else "NOT EQUIVALENT",
                sp.verify(
                    functools.partial(step, reduce=reduce),
                    mesh=MESH,
                    arguments=["--confirm", "off"],
                ).verdict,
            )

    def test_frozen_statistics(self):
        def step(world):
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8).eval())
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            return loss

        self.assertEqual(
            "EQUIVALENT", sp.verify(step, mesh=MESH, arguments=["--confirm", "off"]).verdict
        )

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
            self.assertEqual(
                "EQUIVALENT" if factor == 1.0 else "NOT EQUIVALENT",
                sp.verify(
                    functools.partial(step, factor=factor),
                    mesh=MESH,
                    arguments=["--confirm", "off"],
                ).verdict,
            )

    def test_tensors_of_optimizers_that_are_no_modules(self):
        def step(world, reduced, times=1):
            model, weights = torch.nn.Linear(8, 2), torch.zeros(2, requires_grad=True)
            wrapped = model if world.single else torch.nn.parallel.DistributedDataParallel(model)
            optimizer = torch.optim.AdamW(
                [{"params": model.parameters()}, {"params": [weights], "lr": 0.1}]
            )
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            loss = (
                wrapped(world.input("x", (8, 8), shard={"dp": 0})).square().mean(0)
                * torch.exp(-weights)
                + weights
            ).sum()
            loss.backward()
            if reduced and not world.single:
                dist.all_reduce(weights.grad)
                weights.grad /= world.size
            optimizer.step()
            for _ in range(1 if world.single else times):
                schedule.step()
            return loss

        for options, verdict in (
            ({"reduced": True}, "EQUIVALENT"),
            ({"reduced": False}, "NOT EQUIVALENT"),
            ({"reduced": True, "times": 2}, "NOT EQUIVALENT"),
        ):
            self.assertEqual(
                verdict,
                sp.verify(
                    functools.partial(step, **options),
                    mesh=MESH,
                    arguments=["--stage-timeout", "10", "--confirm", "off"],
                ).verdict,
                options,
            )

    def test_optimizers_of_parts_of_a_rank(self):
        """They are placed by the numbers that they begin with."""

        def step(world, shift=0):
            model = torch.nn.Linear(8, 4)
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            own = [
                torch.nn.Parameter(
                    p.detach().flatten().chunk(world.size)[world.rank - shift].clone()
                )
                for p in model.parameters()
            ]
            for main, p in zip(own, model.parameters(), strict=True):
                main.grad = p.grad.flatten().chunk(world.size)[world.rank]
            torch.optim.SGD(own, lr=0.1).step()
            for main, p in zip(own, model.parameters(), strict=True):
                whole = torch.empty(p.numel())
                if world.single:
                    whole.copy_(main.detach())
                else:
                    dist.all_gather_into_tensor(whole, main.detach())
                p.data.copy_(whole.view_as(p))
            return loss

        for shift, expected in ((0, "EQUIVALENT"), (1, "NOT EQUIVALENT")):
            report = sp.verify(
                lambda world, shift=shift: step(world, shift),
                mesh=MESH,
                arguments=["--stage-timeout", "10", "--confirm", "off"],
            )
            self.assertEqual(report.verdict, expected, report)

    def test_parameters_that_take_the_place_of_others(self):
        def replaced(world, model, scale):
            model.linear.weight = torch.nn.Parameter(model.linear.weight.detach() * scale)
            model.load_state_dict(
                {k: v.clone() for k, v in model.state_dict().items()}, assign=True
            )

        self.assertEqual(
            "EQUIVALENT",
            self.verdict(self.nothing, lambda world, model: replaced(world, model, 0.5)),
        )
        self.assertEqual(
            "NOT EQUIVALENT",
            self.verdict(
                self.nothing,
                lambda world, model: replaced(world, model, 0.5 if world.rank == 0 else 0.6),
            ),
        )


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
        return sp.verify(
            lambda world: self.step(world, optimizer, after, **options),
            mesh=MESH,
            arguments=["--stage-timeout", "10", "--confirm", "off"],
        ).verdict

    def adam(self, model, world):
        return torch.optim.AdamW(model.parameters(), lr=0.1)

    def test_right(self):
        self.assertEqual("EQUIVALENT", self.verdict(self.adam))
        self.assertEqual("EQUIVALENT", self.verdict(self.adam, closure=True))
        captured = sp.capture(
            lambda world: self.step(world, self.adam, lambda optimizer: None), mesh=MESH
        )
        self.assertLessEqual({"weight.exp_avg.new", "weight.exp_avg_sq.new"}, set(captured.names))

    def test_other_hyperparameters(self):
        self.assertEqual(
            "NOT EQUIVALENT",
            self.verdict(
                lambda model, world: torch.optim.SGD(
                    model.parameters(), lr=0.1, momentum=0.9 if world.single else 0.5
                )
            ),
        )

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

    def test_a_parameter_that_no_rank_steps(self):
        """Then no rank has its state, either."""

        class Momentum(torch.optim.Optimizer):
            def __init__(self, parameters, count):
                super().__init__(parameters, {"lr": 0.1})
                self.count = count

            @torch.no_grad()
            def step(self):
                for p in self.param_groups[0]["params"][: self.count]:
                    state = self.state[p]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(p)
                    p.sub_(state["momentum"].mul_(0.9).add_(p.grad), alpha=0.1)

        def step(world, count):
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 2))
            optimizer = Momentum(model.parameters(), 2 if world.single else count)
            model(world.input("x", (4, 6), shard={"dp": 0})).square().mean().backward()
            optimizer.step()

        self.assertEqual("EQUIVALENT", sp.verify(lambda w: step(w, 2), mesh=MESH).verdict)
        report = sp.verify(lambda w: step(w, 1), mesh=MESH)
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)
        self.assertIn("bias.new", report.text)
        self.assertIn("no rank has such a state", report.text)


if __name__ == "__main__":
    unittest.main()
