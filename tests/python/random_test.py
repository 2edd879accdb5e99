# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Random numbers from the start of a step or script: what ranks draw, what their parameters begin
with, and whose batch it is.
"""

import pathlib
import tempfile
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from shardproof.torch.session.script import script_step
from shardproof.torch.terms.assumptions import Kind
from torch.nn.parallel import DistributedDataParallel as DDP

OPTIONS = ["--stage-timeout", "20", "--diagnose", "off"]

SCRIPT = """
import numpy, random, torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
{begin}
model = {model}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
{data}
loss = nn.functional.mse_loss(model(x), y)
loss.backward()
{reduce}
optimizer.step()
"""
AVERAGE = "for p in model.parameters(): dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)"
OWN = "x, y = torch.randn(8, 6), torch.randn(8, 4)"
SLICED = (
    "g = torch.Generator().manual_seed(0)\nX, Y = torch.randn(16, 6, generator=g), "
    "torch.randn(16, 4, generator=g)\nn = 16 // world\nx, y = X[rank * n:(rank + 1) * n], Y[rank "
    "* n:(rank + 1) * n]"
)
WRAPPED = "DDP(nn.Linear(6, 4))"


class Random(unittest.TestCase):
    def verdict(self, step, mesh, single=None):
        return sp.verify(*([single] if single else []), step, mesh=mesh, arguments=OPTIONS)

    def script(self, begin="", model=WRAPPED, data=SLICED, reduce="", mesh="dp=2"):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.py"
            path.write_text(SCRIPT.format(begin=begin, model=model, data=data, reduce=reduce))
            return sp.verify(script_step(str(path), []), mesh=mesh, arguments=OPTIONS)

    def defect(self, report, text, kind="random"):
        self.assertEqual("NOT EQUIVALENT", report.verdict, str(report))
        self.assertEqual(kind, report.defects[0].kind)
        self.assertIn(text, report.defects[0].text)

    def assumed(self, report, text, verdict="EQUIVALENT"):
        self.assertEqual(verdict, report.verdict, str(report))
        self.assertTrue(any(text in a for a in report.assumptions), report.assumptions)


class BeforeTheModel(Random):
    """Draws that no module makes have a key from the first one on."""

    def test_what_is_drawn_is_compared(self):
        draws = {
            "rand": (lambda: torch.rand(8, 4), lambda: torch.randn(8, 4)),
            "spread": (
                lambda: torch.empty(8, 4).normal_(0, 1),
                lambda: torch.empty(8, 4).normal_(0, 2),
            ),
            "share": (
                lambda: torch.empty(8, 4).bernoulli_(0.1),
                lambda: torch.empty(8, 4).bernoulli_(0.2),
            ),
            "dropped": (
                lambda: F.dropout(torch.ones(8, 4), 0.1),
                lambda: F.dropout(torch.ones(8, 4), 0.2),
            ),
        }
        for name, (one, other) in draws.items():
            with self.subTest(name):
                self.defect(
                    self.verdict(
                        lambda world: (
                            world.input("x", (8, 4)) * (one if world.single else other)()
                        ).sum(),
                        {"dp": 2},
                    ),
                    "draws from",
                )

    def test_replicas_with_seeds_of_their_own(self):
        def step(world, seed):
            torch.manual_seed(seed(world.rank))
            w = torch.nn.Parameter(torch.ones(4, 4))
            loss = F.dropout(torch.tanh(world.input("x", (8, 4)) @ w), 0.5).square().mean()
            loss.backward()
            return loss

        self.defect(
            self.verdict(lambda world: step(world, lambda rank: rank), {"tp": 2}), "(seeds 0 and 1)"
        )
        self.assertEqual(
            "EQUIVALENT", self.verdict(lambda world: step(world, lambda rank: 5), {"tp": 2}).verdict
        )

    def test_noise_of_tensor_parallel_ranks(self):
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        def step(world, seed):
            model = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
            )
            parallelize_module(
                model, world.mesh("tp"), {"0": ColwiseParallel(), "2": RowwiseParallel()}
            )
            torch.manual_seed(seed(world.rank))
            x, noise, t = world.input("x", (8, 4)), torch.randn(8, 4), torch.rand(8, 1)
            loss = F.mse_loss(model(x * (1 - t) + noise * t), noise)
            loss.backward()
            return loss

        self.defect(
            self.verdict(lambda world: step(world, lambda rank: 3 + rank), {"tp": 2}),
            "different random numbers for the same positions",
        )
        self.assertEqual(
            "EQUIVALENT", self.verdict(lambda world: step(world, lambda rank: 3), {"tp": 2}).verdict
        )

    def test_a_generator_that_is_seeded_again(self):
        def step(world, again):
            x, a = world.input("x", (8, 4)), torch.rand(8, 4)
            if again(world):
                torch.manual_seed(torch.initial_seed())
            return (x * (a - torch.rand(8, 4))).sum()

        with self.assertRaisesRegex(sp.CaptureError, "on no rank"):
            self.verdict(lambda world: step(world, lambda world: not world.single), {"tp": 2})
        self.assertEqual(
            "EQUIVALENT",
            self.verdict(lambda world: step(world, lambda world: True), {"tp": 2}).verdict,
        )

    def test_a_draw_that_only_ranks_make(self):
        def step(world, more):
            x = world.input("x", (8, 4))
            if more(world):
                torch.rand(8, 4)
            return (x * torch.rand(8, 4)).sum()

        with self.assertRaisesRegex(sp.CaptureError, "does not draw"):
            self.verdict(lambda world: step(world, lambda world: not world.single), {"tp": 2})

    def test_the_same_state_is_the_same_numbers_in_any_order(self):
        def step(world, wrong):
            x = world.input("x", (8, 4))
            one, two = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
            if world.single:
                a, b = torch.rand(8, 4, generator=one), torch.rand(8, 4, generator=two)
            else:
                b, a = torch.rand(8, 4, generator=two), torch.rand(8, 4, generator=one)
            return (x * (b - 2 * a if wrong and not world.single else a - 2 * b)).sum()

        self.assertEqual(
            "EQUIVALENT", self.verdict(lambda world: step(world, False), {"tp": 2}).verdict
        )
        self.assertEqual(
            "NOT EQUIVALENT", self.verdict(lambda world: step(world, True), {"tp": 2}).verdict
        )

    def test_two_draws_of_a_rank_are_not_one(self):
        def step(world):
            x, g = world.input("x", (8, 4)), torch.Generator().manual_seed(1)
            if world.single:
                a = b = torch.rand(8, 4, generator=g)
                c = torch.rand(8, 4, generator=g)
                return (x * (a - b + 0 * c)).sum()
            a = torch.rand(8, 4, generator=torch.Generator().manual_seed(9))
            b = torch.rand(8, 4, generator=g)
            return (x * (a - b)).sum()

        self.assertNotEqual("EQUIVALENT", self.outcome(step, {"tp": 2}))

    def outcome(self, step, mesh):
        try:
            return self.verdict(step, mesh).verdict
        except sp.CaptureError as e:
            return str(e)


class Batches(Random):
    """Data that ranks draw."""

    def test_seeds_of_ranks_make_one_batch(self):
        for begin, said in (
            ("torch.manual_seed(1337 + rank)", "(seeds 1337 and 1338)"),
            ("", "(no seed was set)"),
        ):
            with self.subTest(begin):
                self.assumed(
                    self.script(begin, data=OWN),
                    f"ranks along dp draw their own {said}; the single device's batch is theirs",
                )

    def test_what_is_wrong_with_such_a_batch_is_seen(self):
        report = self.script(
            "torch.manual_seed(1337 + rank)", data=OWN + "\nif rank == 1: y = 2 * y"
        )
        self.assertEqual("NOT EQUIVALENT", report.verdict, str(report))
        report = self.script(
            "torch.manual_seed(0)",
            model="nn.Linear(6, 4)",
            data="torch.manual_seed(7 + rank)\n" + OWN,
            reduce="for p in model.parameters(): dist.all_reduce(p.grad)",
        )
        self.assertEqual("NOT EQUIVALENT", report.verdict, str(report))
        report = self.script(
            "torch.manual_seed(0)",
            model="nn.Linear(6, 4)",
            data="torch.manual_seed(7 + rank)\n" + OWN,
            reduce=AVERAGE,
        )
        self.assumed(report, "the single device's batch is theirs")

    def test_seeds_of_the_gpu_alone(self):
        """What is drawn on the CPU does not go by them."""
        gpu, plain = "torch.cuda.manual_seed_all(7)", "nn.Linear(6, 4)"
        for begin in (
            gpu,
            "torch.manual_seed(rank)\n" + gpu,
            "torch.manual_seed(7) if rank == 0 else " + gpu,
            "torch.manual_seed(7) if rank == 0 else torch.manual_seed(8)\n" + gpu,
        ):
            self.assumed(
                self.script(begin, model=plain, reduce=AVERAGE), "drawn on the GPU", "CONDITIONAL"
            )
        for begin, model in (
            ("torch.manual_seed(7)\n" + gpu, plain),
            (gpu + "\ntorch.manual_seed(7)", plain),
            (gpu, "nn.Linear(6, 4, device='cuda')"),
            (gpu, "nn.Linear(6, 4, device=torch.cuda.current_device())"),
            (gpu, "nn.Linear(6, 4).cuda()\nmodel.reset_parameters()"),
        ):
            report = self.script(begin, model=model, reduce=AVERAGE)
            self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assumed(
            self.script(gpu, model="nn.Linear(6, 4).cuda()", reduce=AVERAGE),
            "drawn on the GPU",
            "CONDITIONAL",
        )

    def test_one_seed_for_the_data_of_all_ranks(self):
        self.assumed(
            self.script("torch.manual_seed(0)", data=OWN),
            "taken to be the same on all ranks along dp",
            "CONDITIONAL",
        )
        self.assertEqual("EQUIVALENT", self.script("torch.manual_seed(0)").verdict)
        self.assertEqual(
            "EQUIVALENT",
            self.script(
                "torch.manual_seed(0)",
                data=(
                    "X, Y = torch.randn(16, 6), torch.randn(16, 4)\nn = 16 // world\nx, y = "
                    "X[rank * n:][:n], Y[rank * n:][:n]"
                ),
            ).verdict,
        )

    def test_a_forgotten_sampler(self):
        load = (
            "X = torch.arange(96.).view(16, 6).sin(); Y = torch.arange(64.).view(16, 4).cos()\n"
            "x, y = next(iter(DataLoader(TensorDataset(X, Y), batch_size=8{})))"
        )
        self.assumed(
            self.script("", data=load.format("")),
            "taken to be the same on all ranks along dp",
            "CONDITIONAL",
        )
        share = (
            "X = torch.arange(96.).view(16, 6).sin(); Y = torch.arange(64.).view(16, 4).cos()\n"
            "ds = TensorDataset(X, Y)\nx, y = next(iter(DataLoader(ds, batch_size=8 // world, "
            "sampler=DistributedSampler(ds, shuffle=False))))"
        )
        self.assertEqual("EQUIVALENT", self.script("", data=share).verdict)

    def test_parts_of_a_batch_with_one_seed(self):
        data = "x, y = torch.randn(16 // world, 6), torch.randn(16 // world, 4)"
        self.assumed(
            self.script("torch.manual_seed(0)", data=data),
            "draw the same ones (one seed)",
            "CONDITIONAL",
        )
        self.assertEqual("EQUIVALENT", self.script("torch.manual_seed(rank)", data=data).verdict)

    def test_a_batch_that_cannot_be_put_together(self):
        with self.assertRaisesRegex(
            sp.CaptureError, "different random numbers for the same positions"
        ):
            self.script("torch.manual_seed(rank)", data=OWN + "\nx = x.view(2, 4, 6).flatten(0, 1)")

    def test_one_number_for_a_batch(self):
        """Each rank has its own where the single device has one for all rows."""
        parts = SLICED + "\ntorch.manual_seed({})\nx = x * torch.rand(())"
        self.assertEqual("EQUIVALENT", self.script("", data=parts.format("5")).verdict)
        self.defect(
            self.script("", data=parts.format("5 + rank")),
            "different random numbers for the same positions",
        )
        self.assertEqual(
            "NOT EQUIVALENT",
            self.script(
                "", data=parts.format("5 + rank").replace("rand(())", "rand(1).mean()")
            ).verdict,
        )

    def test_orders_of_ranks(self):
        data = (
            "g = torch.Generator().manual_seed(0)\nX, Y = torch.randn(16, 6, generator=g), "
            "torch.randn(16, 4, generator=g)\ntorch.manual_seed({})\np = torch.randperm(16)\nn = "
            "16 // world\nx, y = X[p][rank * n:][:n], Y[p][rank * n:][:n]"
        )
        self.assertEqual("NOT EQUIVALENT", self.script("", data=data.format("5 + rank")).verdict)

    def test_samples_that_are_dealt_out(self):
        """The single device's batch is the ranks', whether it asks for as many samples as each or
        as all.
        """
        data = (
            "g = torch.Generator().manual_seed(0)\nds = TensorDataset(torch.randn(32, 6, "
            "generator=g), torch.randn(32, 4, generator=g))\nx, y = next(iter(DataLoader(ds, "
            "batch_size={}, sampler=DistributedSampler(ds{}))))"
        )
        dropping = "DDP(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 4)))"
        self.assumed(
            self.script(
                "torch.manual_seed(42 + rank)", model=dropping, data=data.format("8 // world", "")
            ),
            "batch of 8 = 2 x 4",
        )
        self.assumed(
            self.script(
                "torch.manual_seed(42)", model=dropping, data=data.format("8 // world", "")
            ),
            "draw the same ones (one seed)",
            "CONDITIONAL",
        )
        self.assumed(self.script("", data=data.format("4", "")), "batch of 8 = 2 x 4")
        self.defect(
            self.script("", data=data.format("4", ", seed=rank")),
            "DistributedSampler has seed 0 on rank 0 and 1 on rank 1",
            "batch",
        )
        self.assertEqual(
            "NOT EQUIVALENT",
            self.script(
                "torch.manual_seed(0)",
                model="nn.Linear(6, 4)",
                data=data.format("4", ""),
                reduce="for p in model.parameters(): dist.all_reduce(p.grad)",
            ).verdict,
        )

    def test_in_a_step(self):
        def step(world, seed):
            torch.manual_seed(0)
            model = DDP(torch.nn.Linear(6, 4))
            torch.manual_seed(seed(world.rank))
            x, y = torch.randn(8, 6), torch.randn(8, 4)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
            return loss

        self.assumed(
            self.verdict(lambda world: step(world, lambda rank: 5 + rank), {"dp": 2}),
            "the single device's batch is theirs",
        )
        self.assumed(
            self.verdict(lambda world: step(world, lambda rank: 5), {"dp": 2}),
            "taken to be the same",
            "CONDITIONAL",
        )


class FirstValues(Random):
    """Initialisation is a part of the program."""

    def test_replicas_that_nothing_makes_equal(self):
        for begin in ("torch.manual_seed(rank)", ""):
            with self.subTest(begin):
                self.defect(
                    self.script(begin, model="nn.Linear(6, 4)", reduce=AVERAGE),
                    "begin with different values of weight",
                )
        self.assertEqual(
            "EQUIVALENT",
            self.script("torch.manual_seed(3)", model="nn.Linear(6, 4)", reduce=AVERAGE).verdict,
        )

    def test_broadcasts_count(self):
        by_hand = "nn.Linear(6, 4)\nfor p in model.parameters(): dist.broadcast(p.data, 0)"
        self.assertEqual("EQUIVALENT", self.script("", model=by_hand, reduce=AVERAGE).verdict)
        self.assertEqual("EQUIVALENT", self.script("", model=WRAPPED).verdict)
        self.assertEqual(
            "EQUIVALENT",
            self.script(
                "",
                model=WRAPPED
                + "\nwith torch.no_grad():\n    for p in model.parameters(): p.mul_(0.5)",
            ).verdict,
        )
        self.defect(
            self.script("", model="DDP(nn.Linear(6, 4), init_sync=False)"),
            "begin with different values",
        )
        self.defect(
            self.script(
                "", model=by_hand.replace("model.parameters()", "[model.weight]"), reduce=AVERAGE
            ),
            "begin with different values of bias",
        )

    def test_groups_that_broadcast(self):
        """Along one axis only: what replicas along the other one have stays different."""

        def step(world, both):
            torch.manual_seed(world.rank)
            model = torch.nn.Linear(4, 3)
            for p in model.parameters() if not world.single else ():
                dist.broadcast(p.data, 2 * world.coordinates["dp"], group=world.group("tp"))
                if both:
                    dist.broadcast(p.data, world.coordinates["tp"], group=world.group("dp"))
            loss = model(world.input("x", (8, 4), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=world.group("dp"))
            return loss

        self.defect(
            self.verdict(lambda world: step(world, False), {"dp": 2, "tp": 2}),
            "begin with different values",
        )
        self.assertEqual(
            "EQUIVALENT", self.verdict(lambda world: step(world, True), {"dp": 2, "tp": 2}).verdict
        )

    def test_replicas_of_shards(self):
        from torch.distributed.fsdp import fully_shard

        def step(world, seed):
            torch.manual_seed(seed(world))
            model = torch.nn.Linear(4, 4)
            fully_shard(model, mesh=world.mesh("rep", "fsdp"))
            loss = model(world.input("x", (8, 4), shard={"rep": 0, "fsdp": 0})).square().mean()
            loss.backward()
            return loss

        self.defect(
            self.verdict(
                lambda world: step(world, lambda world: world.rank), {"rep": 2, "fsdp": 2}
            ),
            "begin with different values",
        )
        self.assertEqual(
            "EQUIVALENT",
            self.verdict(
                lambda world: step(world, lambda world: world.coordinates["fsdp"]),
                {"rep": 2, "fsdp": 2},
            ).verdict,
        )

    def test_random_buffers_are_broadcast(self):
        model = "nn.Module.__new__(M); M.__init__(model); model = DDP(model{})"
        begin = (
            "class M(nn.Module):\n    def __init__(self):\n        super().__init__(); "
            "self.linear = nn.Linear(6, 4); self.register_buffer('table', torch.randn(6))\n    "
            "def forward(self, x): return self.linear(x * self.table)"
        )
        self.assertEqual("EQUIVALENT", self.script(begin, model=model.format("")).verdict)
        self.defect(
            self.script(begin, model=model.format(", broadcast_buffers=False")),
            "different random numbers",
        )

    def test_constants_after_a_broadcast(self):
        def step(world, value):
            model = DDP(torch.nn.Linear(6, 4))
            with torch.no_grad():
                model.module.bias.fill_(value(world))
            loss = model(world.input("x", (8, 6), shard={"dp": 0})).square().mean()
            loss.backward()
            return loss

        self.defect(
            self.verdict(lambda world: step(world, lambda world: world.rank), {"dp": 2}),
            "begin with different values of bias",
        )
        self.assertEqual(
            "EQUIVALENT",
            self.verdict(lambda world: step(world, lambda world: 2), {"dp": 2}).verdict,
        )

    def test_leaves_that_no_module_has(self):
        def step(world, seed):
            torch.manual_seed(seed(world.rank))
            w = torch.randn(4, 3, requires_grad=True)
            loss = (world.input("x", (8, 4), shard={"dp": 0}) @ w).square().mean()
            loss.backward()
            if not world.single:
                dist.all_reduce(w.grad, op=dist.ReduceOp.AVG)
            with torch.no_grad():
                w -= 0.1 * w.grad
            return loss

        self.defect(
            self.verdict(lambda world: step(world, lambda rank: rank), {"dp": 2}),
            "different random numbers",
        )
        self.assertEqual(
            "EQUIVALENT", self.verdict(lambda world: step(world, lambda rank: 3), {"dp": 2}).verdict
        )

    def test_constants_of_ranks(self):
        def step(world):
            model = torch.nn.Linear(6, 4)
            torch.nn.init.constant_(model.bias, 1.0 + world.rank)
            return model(world.input("x", (8, 6))).square().mean()

        self.defect(self.verdict(step, {"tp": 2}), "begin with different values of bias")

    def test_another_function_of_the_same_draws(self):
        def step(world, factor):
            model = torch.nn.Linear(6, 4)
            with torch.no_grad():
                model.weight.mul_(0.9 if world.single else factor)
            return model(world.input("x", (8, 6))).square().mean()

        self.defect(
            self.verdict(lambda world: step(world, 0.5), {"tp": 2}),
            "begins weight with other numbers than the single device",
        )
        self.assertEqual(
            "EQUIVALENT", self.verdict(lambda world: step(world, 0.9), {"tp": 2}).verdict
        )

    def test_other_distributions_than_the_single_devices(self):
        def step(world):
            model = torch.nn.Linear(6, 4)
            if not world.single:
                torch.nn.init.normal_(model.weight, 0, 5.0)
            return model(world.input("x", (8, 6))).square().mean()

        self.defect(self.verdict(step, {"tp": 2}), "begins weight from normal")
        self.assertEqual(
            "EQUIVALENT",
            self.verdict(
                step,
                {"tp": 2},
                single=lambda world: (
                    torch.nn.Linear(6, 4)(world.input("x", (8, 6))).square().mean()
                ),
            ).verdict,
        )

    def test_a_step_that_seeds_nothing_begins_equal(self):
        def step(world):
            model = torch.nn.Linear(6, 4)
            loss = model(world.input("x", (8, 6), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            return loss

        self.assertEqual("EQUIVALENT", self.verdict(step, {"dp": 2}).verdict)

    def test_shards_with_one_seed(self):
        def step(world, seed):
            torch.manual_seed(seed(world.rank))
            up, down = (
                torch.nn.Linear(6, 8 // world.size, bias=False),
                torch.nn.Linear(8 // world.size, 4, bias=False),
            )
            model = world.parameters(
                torch.nn.Sequential(up, torch.nn.Tanh(), down),
                shard={"0.weight": {"tp": 0}, "2.weight": {"tp": 1}},
            )
            y = model(world.input("x", (8, 6)))
            if not world.single:
                dist.all_reduce(y)
            return y.detach().square().mean()

        self.assumed(
            self.verdict(lambda world: step(world, lambda rank: 1), {"tp": 2}),
            "the same numbers in different parts of 0.weight",
            "CONDITIONAL",
        )
        self.assertEqual(
            "EQUIVALENT",
            self.verdict(lambda world: step(world, lambda rank: 1 + rank), {"tp": 2}).verdict,
        )

    def test_what_cannot_be_followed_is_reported(self):
        model = "nn.Linear(6, 4, device='meta').to_empty(device='cpu')"
        self.assumed(
            self.script("", model=model, reduce=AVERAGE), "cannot be followed", "CONDITIONAL"
        )


class Classes(unittest.TestCase):
    def test_what_could_hide_a_bug_is_a_risk(self):
        from shardproof.torch.terms import assumptions

        self.assertEqual(
            {Kind.RISK},
            {
                a.kind
                for a in (
                    assumptions.same_batch("dp", "", ""),
                    assumptions.same_initial("w", "tp", ""),
                    assumptions.initial_values("w", ""),
                    assumptions.same_seed("", "dp"),
                )
            },
        )


if __name__ == "__main__":
    unittest.main()
