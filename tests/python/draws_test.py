# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Random numbers that a step draws: distributions, dropout, parameters."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed.nn
import torch.nn.functional as F
from recorder_steps import MESH, RecorderTest


class Draws(RecorderTest):
    """What is drawn, from which distribution."""

    def test_draws_from_other_distributions(self):
        draws = {
            "uniform": torch.rand_like,
            "range": lambda x: torch.empty_like(x).uniform_(0, 2),
            "normal": torch.randn_like,
            "spread": lambda x: torch.empty_like(x).normal_(0, 2),
            "most": lambda x: torch.bernoulli(torch.full_like(x, 0.9)),
            "half": lambda x: torch.empty_like(x).bernoulli_(0.5),
        }
        for bind in (False, True):
            for name, draw in draws.items():
                for other, second in draws.items():
                    if name <= other:
                        with self.subTest(name, other=other, bind=bind):
                            report = self.of_x(
                                lambda x: x * draw(x), lambda x: x * second(x), bind=bind
                            )
                            self.assertEqual(
                                "EQUIVALENT" if name == other else "NOT EQUIVALENT",
                                report.verdict,
                                str(report),
                            )

    def test_parameters_of_draws_before_modules_are_known(self):
        for single, ranks in (
            (
                lambda x: torch.bernoulli(torch.sigmoid(x)),
                lambda x: torch.bernoulli(1 - torch.sigmoid(x)),
            ),
            (lambda x: torch.normal(x, 1.0), lambda x: torch.normal(-x, 1.0)),
        ):
            self.assertEqual("EQUIVALENT", self.of_x(single, single).verdict)
            self.assertNotEqual("EQUIVALENT", self.of_x(single, ranks).verdict)

    def test_random_numbers_by_parameters_of_each_position(self):
        def step(world, scale=1.0):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x = world.input("x", (8, 8), shard={"dp": 0})
            out = model(x)
            # Whole rows, as stochastic depth drops them.
            kept = torch.bernoulli(torch.full((out.shape[0], 1), 0.9))
            chosen = torch.bernoulli(torch.sigmoid(out.detach()))
            noise = (
                torch.normal(out.detach(), torch.full_like(out, 0.5))
                + torch.distributions.Normal(out, 1.0).rsample()
            )
            loss = (out * kept / 0.9 * chosen + noise * scale).square().mean()
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    torch.distributed.all_reduce(p.grad, torch.distributed.ReduceOp.AVG)
            return loss

        sp.assert_equivalent(step, mesh=MESH)
        self.assertEqual(
            "NOT EQUIVALENT",
            sp.verify(lambda world: step(world, 1.0 if world.single else 0.5), mesh=MESH).verdict,
        )

    def test_random_numbers_of_ranks_only(self):
        def change(world, model):
            if not world.single:
                model.up.weight.grad.add_(torch.randn_like(model.up.weight.grad))

        self.refuse(change, "random numbers that the single device does not draw")


class Dropout(RecorderTest):
    """Masks go by position."""

    def dropout(self, seed=None, place="out"):
        """A column- and a row-parallel layer with dropout between or behind them.

        `seed`: the generator's seed, from the rank.
        """

        def step(world):
            n = world.sizes["tp"]
            model = torch.nn.Module()
            model.up, model.down = (
                torch.nn.Linear(8, 16 // n, bias=False),
                torch.nn.Linear(16 // n, 8, bias=False),
            )
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
        for seed, place, verdict in (
            (same, "out", "EQUIVALENT"),
            (other, "out", "NOT EQUIVALENT"),
            (same, "hidden", "NOT EQUIVALENT"),
            (other, "hidden", "EQUIVALENT"),
        ):
            with self.subTest(place=place, seeds=[seed(0), seed(1)]):
                report = self.dropout(seed, place)
                self.assertEqual(verdict, report.verdict, str(report))
                if verdict == "NOT EQUIVALENT":
                    self.assertEqual("random", report.defects[0].kind)
                self.assertEqual(
                    place == "hidden" and verdict == "EQUIVALENT",
                    any("at the same positions" in a for a in report.assumptions),
                )

    def test_dropout_of_data_parallel_ranks_with_one_seed_is_reported(self):
        def step(world):
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1))
            wrapped = model if world.single else torch.nn.parallel.DistributedDataParallel(model)
            loss = F.mse_loss(
                wrapped(world.input("x", (8, 8), shard={"dp": 0})),
                world.input("y", (8, 8), shard={"dp": 0}),
            )
            loss.backward()
            return loss

        report = sp.assert_equivalent(step, mesh=MESH, accept=["same-seed"])
        self.assertTrue(any("one seed" in a for a in report.assumptions))


if __name__ == "__main__":
    unittest.main()
