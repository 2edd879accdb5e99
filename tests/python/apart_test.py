# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Ranks in one process: what one leaves in Python's memory is not what another finds."""

import functools
import os
import random
import subprocess
import sys
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from models import MLP
from recorder_steps import MESH, RecorderTest, flat_gradients
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper


@functools.lru_cache
def kept_scale():
    """As libraries keep the size of the world."""
    return dist.get_world_size()


left_behind: dict = {}


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


class Apart(unittest.TestCase):
    """What one rank's run leaves in Python's memory is not what another one finds."""

    def setUp(self):
        left_behind.clear()

    def verdict(self, step, **options):
        return sp.verify(
            step, mesh={"dp": 2}, arguments=["--stage-timeout", "10"], **options
        ).verdict

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
        """Right in real processes, each of which makes its own.

        Tensors are kept, and results that are computed once.
        """

        def step(world):
            if "mask" not in left_behind:
                left_behind["mask"] = torch.full((4, 4), -1e9).triu(1)
                left_behind["first"] = True
            h = world.input("x", (4, 4, 8), shard={"dp": 0})
            scores = (h @ h.transpose(1, 2) + left_behind["mask"]).softmax(-1)
            world.output(
                "y",
                (scores @ h) * (2.0 if left_behind.pop("first", False) else 3.0),
                shard={"dp": 0},
            )

        self.assertEqual("EQUIVALENT", self.verdict(step))
        with self.assertRaisesRegex(sp.CaptureError, "an earlier call of sp.verify"):
            self.verdict(step)

    def test_ranges_that_are_found_out(self):
        """The single device is recorded twice here, the second time afresh, too."""

        def step(world):
            left_behind["runs"] = left_behind.get("runs", 0) + 1
            labels = world.input("labels", (4, 6), dtype=torch.int64, shard={"dp": 0})
            logits = world.input("x", (4, 6, 8), shard={"dp": 0})
            valid = labels != 0
            losses = (
                -logits.log_softmax(-1)
                .gather(-1, torch.where(valid, labels, 0).unsqueeze(-1))
                .squeeze(-1)
                * valid
            )
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

    def test_output_of_a_separate_process_is_dropped(self):
        code = (
            "import shardproof.torch as sp\ndef step(world):\n    print('rank', world.rank)\n"
            "    world.output('y', world.input('x', (4, 8), shard={'dp': 0}) * 2, shard={'dp': "
            "0})\nsp.capture(step, mesh={'dp': 2})"
        )
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        self.assertEqual(["rank 0", "rank 0", "rank 1"], done.stdout.splitlines(), done.stderr)


class Caches(RecorderTest):
    """Caches of functions."""

    def test_caches_of_functions_are_each_ranks_own(self):
        kept_scale.cache_clear()

        def step(world):
            x = world.input("x", (4, 8), shard={"dp": 0})
            world.output("y", x / kept_scale(), shard={"dp": 0})

        self.assertEqual(
            "NOT EQUIVALENT",
            sp.verify(step, mesh={"dp": 2}, arguments=["--stage-timeout", "10"]).verdict,
        )


class LeftBehind(unittest.TestCase):
    """What a rank leaves in other places than the single device.

    Each of the tensors that it had is right.
    """

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
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
        )
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
        return sp.verify(
            functools.partial(self.step, **options),
            mesh=MESH,
            arguments=["--confirm", "off", "--diagnose", "off"],
        )

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
        with self.assertRaisesRegex(
            sp.CaptureError, "'0.weight as 1.weight.new' of rank 1 is not on the single device"
        ):
            self.report(tied=True, after=untied)

    def test_wrapped_after_the_first_call(self):
        def step(world):
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
            world.parameters(model)
            model[0] = checkpoint_wrapper(model[0])
            loss = model(world.input("x", (8, 8), shard={"dp": 0})).square().mean()
            return loss.detach()

        self.assertEqual(
            "EQUIVALENT", sp.verify(step, mesh=MESH, arguments=["--confirm", "off"]).verdict
        )

    def test_state_that_is_made_later(self):
        for factor, verdict in (1, "EQUIVALENT"), (2, "NOT EQUIVALENT"):
            self.assertEqual(
                verdict,
                self.report(
                    optimizer=lambda model, world: self.Late(
                        model.parameters(), factor if world.rank else 1
                    )
                ).verdict,
            )

    def test_what_the_next_step_goes_by(self):
        for key, value in {
            "lr": 0.5,
            "weight_decay": 0.5,
            "betas": (0.9, 0.5),
            "eps": 0.5,
            "maximize": True,
        }.items():
            self.assertEqual(
                "NOT EQUIVALENT",
                self.report(
                    after=lambda model, optimizer: optimizer.param_groups[0].update({key: value})
                ).verdict,
                key,
            )
        self.assertEqual(
            "EQUIVALENT",
            self.report(
                after=lambda model, optimizer: optimizer.param_groups[0].update(foreach=False)
            ).verdict,
        )

    def test_gradients_that_one_rank_does_not_leave(self):
        report = self.report(after=lambda model, _: setattr(model[0].weight, "grad", None))
        self.assertIn(
            "no gradient is left on rank 1 in 0.weight: it is compared where there is one",
            report.assumptions,
        )

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

        self.assertEqual(
            "EQUIVALENT", sp.verify(step, mesh=MESH, arguments=["--confirm", "off"]).verdict
        )


class Forked(unittest.TestCase):
    def test_plans_are_those_of_one_process(self):
        """Programs are made where ranks are recorded.

        Some are made a second time, with other ranks' data.
        """

        def replicas(world):
            model = MLP()
            x, y = (world.input(name, (8, 16), shard={"dp": 0}) for name in "xy")
            loss = F.mse_loss(
                (model if world.single else torch.nn.parallel.DistributedDataParallel(model))(x), y
            )
            loss.backward()
            return loss

        def own_numbers(world, where=lambda world: True):
            x = world.input("x", (8, 16), shard={"dp": 0})
            scale = torch.arange(16.0) * (1 if world.single else 2 if where(world) else 1)
            world.output(
                "y",
                x * (scale if world.single else scale / 2 if where(world) else scale),
                shard={"dp": 0},
            )

        def built(world):
            given = torch.zeros(16)
            world.parameters(model := MLP())
            if not world.single:
                dist.all_reduce(given)
            world.output(
                "y", model(world.input("x", (8, 16), shard={"dp": 0})) + given, shard={"dp": 0}
            )

        for name, step in {
            "replicas": replicas,
            "numbers": own_numbers,
            "one rank's numbers": lambda world: own_numbers(world, lambda w: w.rank == 2),
            "built": built,
            "flat": lambda world: flat_gradients(world, "mean"),
        }.items():
            with self.subTest(name):
                one, two = (sp.capture(step, mesh={"dp": 4}, jobs=jobs) for jobs in (1, 2))
                self.assertEqual(one.plan, two.plan)
                self.assertEqual(one.model, two.model)
                self.assertEqual(one.assumptions, two.assumptions)

    def test_no_threads_of_the_parent_are_waited_for(self):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", FORKED],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "4"},
            timeout=300,
        )
        self.assertEqual(done.stdout.split(), ["4", "4"], done.stderr)


if __name__ == "__main__":
    unittest.main()
