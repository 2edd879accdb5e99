# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Autograd functions and operators that the recorder does not look into."""

import functools
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
from recorder_steps import MESH, RecorderTest, train


def train_alone(world):
    model = torch.nn.Linear(4, 4, bias=False)
    x = world.input("x", (8, 4), shard={"dp": 0})
    world.parameters(model)
    return torch.autograd.grad(model(x).square().mean(), model.weight)[0]


class Opaque(RecorderTest):
    """Equal arguments give equal results; nothing else is known."""

    def test_an_opaque_function(self):
        def change(world, model, rate=0.1, part=False):
            grad = model.up.weight.grad
            u, _, v = torch.linalg.svd(
                grad[:16] if part and not world.single else grad, full_matrices=False
            )
            new = (u @ v) * (0.1 if world.single else rate)
            model.up.weight.grad = torch.cat([new, grad[16:]]) if len(new) < len(grad) else new

        report = sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)
        self.assertTrue(
            any("_linalg_svd" in a and "nothing else is known" in a for a in report.assumptions),
            report.assumptions,
        )
        self.assertEqual(
            "NOT EQUIVALENT",
            sp.verify(
                lambda world: train(world, lambda w, m: change(w, m, 0.2)), mesh=MESH
            ).verdict,
        )
        self.refuse(lambda w, m: change(w, m, 0.1, True), "nothing can be said of parts")
        with self.assertRaisesRegex(sp.CaptureError, "strict: nothing is known of"):
            sp.verify(lambda world: train(world, change), mesh=MESH, strict=True)

    def test_opaque_functions_that_differ_in_what_is_no_tensor(self):
        def step(world):
            x = world.input("x", (4, 4))
            world.output(
                "result", torch.special.polygamma(1, x) - torch.special.polygamma(2, x), mean=()
            )

        def other(world, two):
            x = world.input("x", (4, 4))
            one, two = (1, 2) if world.single else (2, two)
            world.output(
                "result", torch.special.polygamma(one, x) - torch.special.polygamma(two, x), mean=()
            )

        sp.assert_equivalent(step, mesh={"tp": 2})
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(lambda world: other(world, 1), mesh={"tp": 2}).verdict
        )
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
        self.assertTrue(
            any("a function of each element" in a for a in report.assumptions), report.assumptions
        )
        for name, other in {"scaled": lambda out: out * 2, "rows": lambda out: out.flip(0)}.items():
            with self.subTest(name):
                self.assertNotEqual(
                    "EQUIVALENT", sp.verify(lambda world: step(world, other), mesh=MESH).verdict
                )

    def test_an_opaque_function_of_other_arguments(self):
        """Its arguments are not reduced. That they differ does not show that its results do."""

        def step(world):
            grad = train_alone(world)
            if not world.single:
                dist.all_reduce(grad)
            world.output("result", torch.linalg.svd(grad, full_matrices=False)[1], mean=())

        self.assertEqual("UNDECIDED", sp.verify(step, mesh=MESH).verdict)

    def test_opaque_functions_of_what_a_rank_owns(self):
        """Each rank takes the roots for one of two weights and gives them away (Shampoo)."""

        def step(world, owner=lambda i: i, factor=1.0):
            model = torch.nn.Sequential(
                torch.nn.Linear(4, 4, bias=False),
                torch.nn.Tanh(),
                torch.nn.Linear(4, 4, bias=False),
            )
            world.parameters(model)(
                world.input("x", (8, 4), shard={"dp": 0})
            ).square().mean().backward()
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
            self.assertEqual(
                "EQUIVALENT", sp.verify(lambda world: step(world, owner), mesh=MESH).verdict
            )
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(lambda world: step(world, factor=2.0), mesh=MESH).verdict
        )


class Compiled(unittest.TestCase):
    """What is compiled runs eagerly, and is looked at like all else."""

    def test_each_compiler(self):
        def step(world, compiled, reduced=True):
            model = torch.nn.Sequential(
                torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
            )
            loss = compiled(model)(world.input("x", (8, 4), shard={"dp": 0})).square().mean()
            loss.backward()
            for p in model.parameters() if reduced and not world.single else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            return loss

        for name, compiled in {
            "compile": lambda m: torch.compile(m),
            "script": lambda m: torch.jit.script(m),
            "trace": lambda m: torch.jit.trace(m, torch.zeros(8, 4)),
        }.items():
            with self.subTest(name):
                right = sp.verify(
                    functools.partial(step, compiled=compiled),
                    mesh=MESH,
                    arguments=["--confirm", "off"],
                )
                self.assertEqual(
                    ("EQUIVALENT", []), (right.verdict, right.not_compared), str(right)
                )
                wrong = sp.verify(
                    functools.partial(step, compiled=compiled, reduced=False),
                    mesh=MESH,
                    arguments=["--confirm", "off"],
                )
                self.assertEqual("NOT EQUIVALENT", wrong.verdict, str(wrong))


if __name__ == "__main__":
    unittest.main()
