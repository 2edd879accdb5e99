# SPDX-License-Identifier: Apache-2.0
"""What steps of packages do beside training: bytes, lists of states, positions of integers."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn as nn
import torch.nn.functional as F
from recorder_steps import MESH, mean_of_gradients


class Bytes(unittest.TestCase):
    """Memory that is seen as bytes is moved by messages, and nothing else is done with it."""

    def step(self, all_parameters):
        def step(world):
            torch.manual_seed(world.rank)
            model = nn.Linear(8, 4)
            for p in model.parameters():
                if all_parameters or p.dim() > 1:
                    dist.broadcast(p.data.view(torch.uint8).detach(), 0)
            x = world.input("x", (4, 8), shard={"dp": 0})
            loss = model(x).square().mean()
            loss.backward()
            mean_of_gradients(world, model)
            return loss

        return step

    def test_broadcast(self):
        self.assertEqual(sp.verify(self.step(True), mesh=MESH).verdict, "EQUIVALENT")
        report = sp.verify(self.step(False), mesh=MESH)
        self.assertEqual(report.verdict, "NOT EQUIVALENT")
        self.assertIn("different values of bias", report.text)

    def test_bits_as_numbers(self):
        def step(world):
            x = world.input("x", (4, 8), shard={"dp": 0})
            world.output("out", x.view(torch.int32) + 1, shard={"dp": 0})

        with self.assertRaisesRegex(sp.CaptureError, "what its bits are as numbers .* aten.add"):
            sp.capture(step, mesh=MESH)


class Positions(unittest.TestCase):
    """The position of the largest integer is the first one: many are equal."""

    def step(self, position, on_ranks=None):
        def step(world):
            torch.manual_seed(0)
            table = nn.Embedding(20, 8)
            ids = world.input("ids", (4, 6), torch.int64, shard={"dp": 0})
            chosen = (position if world.single else on_ranks or position)(ids)
            loss = table(ids)[torch.arange(len(ids)), chosen].square().mean()
            loss.backward()
            mean_of_gradients(world, table)
            return loss

        return step

    def test_first_of_the_largest(self):
        for f in (
            lambda ids: ids.argmax(-1),
            lambda ids: ids.argmin(-1),
            lambda ids: (ids == 3).int().argmax(-1),
        ):
            report = sp.verify(self.step(f), mesh=MESH, numbers=True)
            self.assertEqual(report.verdict, "EQUIVALENT", report.text)
            self.assertEqual(report.numbers.differs, "")
            self.assertNotIn("ties", report.text)

    def test_the_last_one_is_another(self):
        def last(ids):
            return ids.shape[1] - 1 - (ids == 3).int().flip(-1).argmax(-1)

        step = self.step(lambda ids: (ids == 3).int().argmax(-1), last)
        self.assertEqual(sp.verify(step, mesh=MESH).verdict, "NOT EQUIVALENT")


class States(unittest.TestCase):
    def test_lists(self):
        class Momentum(torch.optim.Optimizer):
            def __init__(self, parameters, factor):
                super().__init__(parameters, {"lr": 0.1})
                self.factor = factor

            @torch.no_grad()
            def step(self):
                for p in self.param_groups[0]["params"]:
                    held = self.state[p].setdefault("m", [torch.zeros_like(p), {"n": p * 0}])
                    held[0].lerp_(p.grad, 0.1)
                    held[1]["n"].add_(p.grad.square() * self.factor)
                    p.sub_(0.1 * held[0])

        def step(world, factor):
            model = nn.Linear(8, 4)
            loss = model(world.input("x", (4, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            mean_of_gradients(world, model)
            Momentum(model.parameters(), 1 if world.single else factor).step()
            return loss

        report = sp.verify(lambda world: step(world, 1), mesh=MESH)
        self.assertEqual(report.verdict, "EQUIVALENT", report.text)
        states = [n for n in report.raw["output_tensors"] if n.startswith("state m")]
        self.assertEqual(len(states), 4, states)
        report = sp.verify(lambda world: step(world, 2), mesh=MESH)
        self.assertEqual(report.verdict, "NOT EQUIVALENT")

    def test_powers_of_a_list(self):
        def step(world):
            tensors = [
                world.input(n, s, shard={"dp": 0}) for n, s in (("a", (4, 2)), ("b", (2, 6)))
            ]
            for i, t in enumerate(torch._foreach_pow(tensors, 2)):
                world.output(f"out{i}", t, shard={"dp": 0})

        self.assertEqual(sp.verify(step, mesh=MESH).verdict, "EQUIVALENT")


class Masks(unittest.TestCase):
    """A mask of infinities that is broadcast with the other buffers."""

    def step(self, factor):
        class Attention(nn.Module):
            def __init__(self, rank):
                super().__init__()
                self.inner = nn.Linear(4, 4)
                mask = torch.full((6, 6), float("-inf")).triu(1 if rank == 0 else factor)
                self.register_buffer("mask", mask, persistent=False)

            def forward(self, x):
                return (self.inner(x) @ x.transpose(-1, -2) + self.mask).softmax(-1) @ x

        def step(world):
            torch.manual_seed(0)
            model = Attention(world.rank)
            wrapped = model if world.single else nn.parallel.DistributedDataParallel(model)
            x = world.input("x", (4, 6, 4), shard={"dp": 0})
            loss = F.mse_loss(wrapped(x), x)
            loss.backward()
            return loss

        return step

    def test_same(self):
        report = sp.verify(self.step(1), mesh=MESH)
        self.assertEqual(report.verdict, "EQUIVALENT", report.text)

    def test_others(self):
        with self.assertRaisesRegex(sp.CaptureError, "infinities"):
            sp.verify(self.step(2), mesh=MESH)


class Norms(unittest.TestCase):
    def step(self, of_sum):
        def step(world):
            model = nn.Linear(8, 4)
            loss = model(world.input("x", (4, 8), shard={"dp": 0})).square().mean()
            loss.backward()
            mean_of_gradients(world, model)
            norm = sum(p.grad.square().sum() for p in model.parameters())
            if not world.single:
                dist.all_reduce(norm)
                norm = norm / world.size
            if bool((~torch.isfinite(norm) | ((norm if of_sum else norm.sqrt()) < 0)).any()):
                raise RuntimeError("overflow")
            for p in model.parameters():
                p.grad /= norm.sqrt() + 1e-6
            return loss

        return step

    def test_a_norm_is_not_negative(self):
        """Python may ask whether it is. Of a sum over ranks, others might make it negative."""
        self.assertEqual(sp.verify(self.step(False), mesh=MESH).verdict, "EQUIVALENT")
        report = sp.verify(self.step(True), mesh=MESH)
        self.assertEqual(report.verdict, "CONDITIONAL", report.text)
        self.assertIn("sums-not-negative", report.text)

    def test_a_sum_that_one_rank_makes_negative(self):
        """Rank 0 alone has the result, and its own part says nothing of the sum."""

        def step(world):
            x = world.input("x", (4,), shard={"dp": 0}).square().sum()
            total = x if world.single else torch.distributed.nn.all_reduce(x * (1 - 9 * world.rank))
            if world.rank == 0:
                world.output("out", torch.where(total < 0, total * 0 + 5, x * 0), mean=["dp"])

        report = sp.verify(step, mesh=MESH)
        self.assertNotEqual(report.verdict, "EQUIVALENT", report.text)


if __name__ == "__main__":
    unittest.main()
