# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""The first cause of a wrong step is where it is wrong."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from recorder_steps import MESH


class WhereThePlanTurnsWrong(unittest.TestCase):
    """A wrong step's first cause is where it is wrong."""

    def first(self, step, mesh=MESH):
        report = sp.verify(step, mesh=mesh)
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("Cause 1 of 1:", report.text)
        return report.text.split("Cause 1 of 1:")[1].split("\n\n")[0]

    def test_a_loss_that_was_added_up(self):
        """Its ranks' gradients are parts of a sum, but the one in question is not reduced."""

        def step(world, summed=True):
            norm, up, down = (
                torch.nn.LayerNorm(8),
                torch.nn.Linear(8, 8, bias=False),
                torch.nn.Linear(8, 8, bias=False),
            )
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
        """The result of a layer cut by rows is whole then.

        Only the gradient that was not reduced is reported.
        """

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
                    self.weight, self.bias = (
                        torch.nn.Parameter(torch.empty(6, 8 // world.size)),
                        torch.nn.Parameter(torch.empty(6)),
                    )

                def forward(self, x):
                    return Whole.apply(F.linear(x, self.weight)) + self.bias

            first, up, rows = (
                torch.nn.Linear(6, 6),
                torch.nn.Linear(6, 8 // world.size, bias=False),
                Rows(),
            )
            world.parameters(
                torch.nn.ModuleDict({"first": first, "up": up, "rows": rows}),
                {"up": {"tp": 0}, r"rows\.weight": {"tp": 1}},
            )
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
        self.assertIn("causes_test.py", report.text)


if __name__ == "__main__":
    unittest.main()
