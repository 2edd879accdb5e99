# SPDX-License-Identifier: Apache-2.0
"""Rows that data chooses or orders (terms/rows.py): mixtures of experts as people write them."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from routing_models import (
    DIM,
    EXPERTS,
    FORMS,
    TOKENS,
    Experts,
    exchanged,
    functional,
    split,
    swapped,
)

ACCEPT = ["rows-present", "initial-values"]
ARGUMENTS = ["--timeout", "40", "--confirm", "off"]


class Reduced(torch.autograd.Function):
    """The sum over ranks, of a part of which each rank goes on with the whole."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def data_parallel(form, change=lambda name, p: None):
    """Each rank has a part of the batch. change: of averaged gradients."""

    def step(world):
        torch.manual_seed(0)
        model = Experts(form)
        x, y = (world.input(name, (TOKENS, DIM), shard={"dp": 0}) for name in "xy")
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if not world.single:
            for name, p in model.named_parameters():
                if change(name, p) != "left":
                    dist.all_reduce(p.grad)
                    p.grad /= world.size
        return loss

    return step


def expert_parallel(form, owner=lambda rank, size: rank, router=True):
    """Each rank has a part of the experts, and all tokens."""

    def step(world):
        torch.manual_seed(0)
        each = EXPERTS // world.size
        first = owner(world.rank, world.size) * each
        model = Experts(form, first, first + each)
        world.parameters(model, shard={"w[12]": {"ep": 0}})
        x, y = (world.input(name, (TOKENS, DIM)) for name in "xy")
        out = model(x)
        if not world.single:
            out = Reduced.apply(out)
        loss = F.mse_loss(out, y)
        loss.backward()
        if not world.single and router:
            dist.all_reduce(model.router.weight.grad)
        return loss

    return step


def tokens_exchanged(form, experts=True, router=True):
    """Each rank has a part of the experts and a part of the batch."""

    def step(world):
        torch.manual_seed(0)
        each = EXPERTS // world.size
        model = Experts(form, world.rank * each, (world.rank + 1) * each)
        world.parameters(model, shard={"w[12]": {"ep": 0}})
        x, y = (world.input(name, (TOKENS, DIM), shard={"ep": 0}) for name in "xy")
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if not world.single:
            if router:
                dist.all_reduce(model.router.weight.grad)
                model.router.weight.grad /= world.size
            for p in (model.w1, model.w2):
                p.grad /= world.size if experts else 1
        return loss

    return step


class Routing(unittest.TestCase):
    def check(self, verdict, single, step, mesh):
        report = sp.verify(single, step, mesh=mesh, accept=ACCEPT, arguments=ARGUMENTS)
        self.assertEqual(verdict, report.verdict, str(report))
        return report


class Numbers(unittest.TestCase):
    def test_forms_compute_the_same(self):
        """In PyTorch itself, on the CPU."""
        torch.manual_seed(1)
        x = torch.randn(TOKENS, DIM)
        results = {}
        for name, form in FORMS.items():
            torch.manual_seed(0)
            model = Experts(form)
            out = model(x)
            out.square().sum().backward()
            results[name] = [out, *(p.grad for p in model.parameters())]
        for name, tensors in results.items():
            for a, b in zip(results["dense"], tensors):
                self.assertTrue(torch.allclose(a, b, atol=1e-5), name)


class Forms(Routing):
    def test_each_against_the_dense_one(self):
        """Single device: what is recorded is what the code computes."""
        for name in FORMS:
            with self.subTest(name):
                single, step = (data_parallel(FORMS[n]) for n in ("dense", name))
                self.check("EQUIVALENT", single, step, {"dp": 1})

    def test_data_parallel(self):
        for single, step in (
            ("hit", "hit"),
            ("skipped", "grouped"),
            ("split", "split"),
            ("sliced", "sliced"),
        ):
            with self.subTest(f"{single}, {step}"):
                both = (data_parallel(FORMS[n]) for n in (single, step))
                self.check("EQUIVALENT", *both, {"dp": 2})

    def test_gradients_that_nothing_reduces(self):
        step = data_parallel(FORMS["grouped"], lambda name, p: "left" if "router" in name else "")
        report = self.check("NOT EQUIVALENT", data_parallel(FORMS["grouped"]), step, {"dp": 2})
        self.assertIn("router.weight.grad", str(report))

    def test_expert_parallel(self):
        for name in ("hit", "skipped", "counted"):
            with self.subTest(name):
                both = (expert_parallel(FORMS[n]) for n in ("hit", name))
                self.check("EQUIVALENT", *both, {"ep": 2})

    def test_experts_of_another_rank(self):
        step = expert_parallel(FORMS["skipped"], lambda rank, size: (rank + 1) % size)
        self.check("NOT EQUIVALENT", expert_parallel(FORMS["skipped"]), step, {"ep": 2})

    def test_router_gradient_of_own_experts(self):
        step = expert_parallel(FORMS["hit"], router=False)
        report = self.check("NOT EQUIVALENT", expert_parallel(FORMS["hit"]), step, {"ep": 2})
        self.assertIn("router.weight.grad", str(report))

    def test_tokens_exchanged(self):
        for ranks, form in ((2, exchanged), (4, functional)):
            with self.subTest(f"{ranks}, {form.__name__}"):
                both = (tokens_exchanged(f) for f in (split, form))
                self.check("EQUIVALENT", *both, {"ep": ranks})

    def test_expert_gradients_not_divided(self):
        step = tokens_exchanged(exchanged, experts=False)
        report = self.check("NOT EQUIVALENT", tokens_exchanged(split), step, {"ep": 2})
        self.assertIn("scaled by 2 = ep size", str(report))

    def test_router_gradient_of_own_tokens(self):
        step = tokens_exchanged(exchanged, router=False)
        report = self.check("NOT EQUIVALENT", tokens_exchanged(split), step, {"ep": 2})
        self.assertIn("router.weight.grad", str(report))

    def test_sizes_swapped(self):
        with self.assertRaisesRegex(sp.CaptureError, "routing_models.py"):
            sp.verify(tokens_exchanged(split), tokens_exchanged(swapped), mesh={"ep": 2})

    def test_conditional(self):
        """That there are rows is a risk, with its line."""
        step = data_parallel(FORMS["skipped"])
        report = sp.verify(step, mesh={"dp": 2}, arguments=ARGUMENTS)
        self.assertEqual("CONDITIONAL", report.verdict)
        self.assertTrue(any("routing_models.py" in a for a in report.assumptions))


if __name__ == "__main__":
    unittest.main()
