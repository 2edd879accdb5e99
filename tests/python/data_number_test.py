# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Numbers that depend on data: what may be done with them, and what is refused."""

import array
import cmath
import decimal
import io
import json
import math
import struct
import unittest
from math import sqrt

import numpy
import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
from recorder_steps import MESH, RecorderTest, train


def _item_set(n):
    t = torch.zeros(8)
    t[2] = n
    return t


class Reads(RecorderTest):
    """Numbers of data that the program or a library reads."""

    def test_truth_of_tensors(self):
        for name, f in {
            "if": lambda x: x * 3 if x.sum() else x,
            "bool": lambda x: x * (3 if bool(x.sum()) else 1),
            "any": lambda x: x * 3 if any([x.sum()]) else x,
            "and": lambda x: x * ((x.sum() and 3) if True else 1),
            "nonzero": lambda x: x * 3 if torch.is_nonzero(x.sum()) else x,
            "method": lambda x: x * 3 if x.sum().is_nonzero() else x,
        }.items():
            with self.subTest(name), self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                self.of_x(f, f)

    def test_uses_of_a_number_of_data_are_reported(self):
        report = self.of_x(
            lambda x: x * 2, lambda x: (print(end=f"{x.sum().item():.3f}"[:0]), x * 2)[1]
        )
        self.assertTrue(
            any("Tensor.item() gave" in a for a in report.assumptions), report.assumptions
        )

    def test_a_number_of_numpy(self):
        with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
            self.of_x(lambda x: x * 2, lambda x: x * int(numpy.float32(2) * x.sum().item()))
        sp.assert_equivalent(
            lambda world: world.output(
                "o",
                world.input("x", (4,)) * (numpy.float32(2) + world.input("y", ()).item()),
                mean=(),
            ),
            mesh={"dp": 2},
        )

    def test_what_other_code_reads_of_a_number_of_data(self):
        kept = []
        reads = {
            "text": lambda n: float("%.4f" % n),  # noqa: UP031
            "json": lambda n: json.loads(json.dumps(n)),
            "bytes": lambda n: struct.unpack("d", struct.pack("d", n))[0],
            "length": lambda n: len("%.3f" % n) - 3,  # noqa: UP031
            "array": lambda n: array.array("d", [n])[0],
            "decimal": lambda n: float(decimal.Decimal(n)),
            "joined": lambda n: 17 - len("".join([str(n), ""])),
        }
        for name, read in reads.items():
            for way, f in {
                "large": lambda x, read=read: x * (3 if read(x.sum().item()) > 1 else 1),
                "small": lambda x, read=read: x * (3 if read(x.sum().item()) < -1 else 1),
            }.items():
                with self.subTest(name, way=way):
                    if way == "small" and name in ("length", "joined"):
                        continue
                    with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                        self.of_x(f, f)
        texts = {
            "sentences": lambda t: f"{t.item():.3f} x" == f"{2 * t.item():.3f} x",
            "joined": lambda t: ",".join([str(t.item())]) == ",".join([str((2 * t).item())]),
            "tensors": lambda t: f"{t:.2f};" == f"{2 * t:.2f};",
            "printed": lambda t: str(t) + "" == str(2 * t) + "",
            "rows": lambda t: repr([t]) == repr([2 * t]),
        }
        for name, same in texts.items():
            with self.subTest(name), self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                self.of_x(
                    lambda x, same=same: x * (3 if same(x.sum()) else 1),
                    lambda x, same=same: x * (3 if same(x.sum()) else 1),
                )

        def written(x):
            n = x.sum().item()
            kept.append((json.dumps(n), "%.3f" % n, str(n)[:5]))  # noqa: UP031
            return x * 2

        report = self.of_x(lambda x: x * 2, written)
        self.assertEqual("EQUIVALENT", report.verdict)
        with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
            self.of_x(lambda x: x, lambda x: x * (1 if {x.sum().item(): 1} else 2))

    def test_optimizers_that_compare_their_states(self):
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
                self.assertEqual(
                    "EQUIVALENT", sp.verify(lambda world: step(world, 1.0), mesh=MESH).verdict
                )
                self.assertEqual(
                    "NOT EQUIVALENT", sp.verify(lambda world: step(world, 2.0), mesh=MESH).verdict
                )

    def test_random_choices_that_depend_on_data(self):
        def change(world, model):
            model.up.weight.grad.add_(torch.multinomial(torch.sigmoid(model.up.weight.grad), 16))

        self.refuse(change, "random numbers that depend on data")

    def test_a_number_that_depends_on_data_goes_nowhere(self):
        def change(world, model):
            model.up.weight.grad.mul_(math.exp(model.up.weight.grad.sum().item()))

        self.refuse(change, "depends on data")

    def test_float_and_int_are_followed(self):
        logged = []

        def change(world, model):
            gradient = model.up.weight.grad
            logged.append(float(gradient.sum()) + float(gradient.sum().item()))
            logged.append(int((gradient > 0).sum()) / 8)
            gradient.mul_(float(gradient.abs().sum()) / float(gradient.abs().sum() + 1))

        def halved(world, model):
            scale = float(model.up.weight.grad.abs().sum())
            model.up.weight.grad.mul_(scale if world.rank == 0 else scale / 2)

        sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)
        report = sp.verify(lambda world: train(world, halved), mesh=MESH)
        self.assertEqual("NOT EQUIVALENT", report.verdict, str(report))
        self.assertIn("float", change.__code__.co_names)  # it is as it was

    def test_float_and_int_that_are_returned(self):
        def report(number):
            def step(world):
                x = world.input("x", (8, 4), shard={"dp": 0})
                return {"loss": x.mean(), "number": number(x)}

            return sp.verify(step, mesh={"dp": 2})

        self.assertEqual("EQUIVALENT", report(lambda x: float(x.mean())).verdict)
        self.assertEqual("NOT EQUIVALENT", report(lambda x: float(x.sum())).verdict)
        self.assertEqual("NOT EQUIVALENT", report(lambda x: int((x > 0).sum())).verdict)

    def test_int_that_decides(self):
        """Also by thresholds far from any number that could stand in."""

        def change(world, model):
            count = int((model.up.weight.grad.abs() < 1e9).sum())
            if count > 1000:
                model.up.weight.grad.mul_(2 + world.rank)

        report = sp.verify(lambda world: train(world, change), mesh=MESH)
        self.assertNotEqual("EQUIVALENT", report.verdict, str(report))

    def test_a_number_that_is_read_from_its_text(self):
        def change(world, model):
            if float(f"{model.up.weight.grad.sum().item():.4f}") > 1:
                model.up.weight.grad.zero_()

        self.refuse(change, "the program reads a number from the text of one")

    def test_a_number_that_depends_on_data_is_printed(self):
        def change(world, model):
            loss = model.up.weight.grad.sum().item()
            if not math.isfinite(loss) or math.isnan(loss):
                raise SystemExit("the loss is no number")
            print(
                f"{loss:.3f} {loss + 1} {math.exp(loss)} {round(loss, 3)} %.2f" % loss,
                file=io.StringIO(),
            )

        sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)
        self.assertNotIn("item", vars(torch.Tensor))


class Branches(RecorderTest):
    """Control flow that depends on data."""

    def test_control_flow_that_depends_on_data(self):
        def change(world, model):
            if bool(model.up.weight.grad.sum() > 0):
                model.up.weight.grad.zero_()

        with self.assertRaisesRegex(RuntimeError, "depends on data"):
            sp.capture(lambda world: train(world, change), mesh=MESH)

    def test_a_branch_on_a_number_that_depends_on_data(self):
        """Not-a-number would be compared silently, and one branch taken on both sides."""
        branches = {
            "item": lambda norm: norm.item() > 1.0,
            "square root": lambda norm: math.sqrt(norm.item()) > 1.0,
            "sum": lambda norm: sum([norm.item(), 1.0]) >= 2,
            "float": lambda norm: float(norm) > 1,
            "minimum": lambda norm: min(1.0, 1.0 / (norm.item() + 1e-6)) < 1,
            "int": lambda norm: int(norm) > 1,
            "list": lambda norm: norm.reshape(1).tolist()[0] > 1,
            "truth": lambda norm: bool(norm.item()),
            "round": lambda norm: round(norm.item(), 2) > 1,
            "imported": lambda norm: sqrt(norm.item()) > 1,
        }
        for name, branch in branches.items():
            with self.subTest(name):

                def change(world, model, branch=branch):
                    if branch(model.up.weight.grad.norm()):
                        model.up.weight.grad.mul_(0.5)

                self.refuse(change, "depends on data")

    def test_a_branch_on_what_is_computed_of_a_number_that_depends_on_data(self):
        """Functions of `math` take these numbers; so do their texts, parts and complex ones."""
        branches = {
            "part": lambda n: n.real > 1,
            "conjugate": lambda n: n.conjugate() > 1,
            "complex": lambda n: complex(n).real > 1,
            "sum with a complex one": lambda n: (n + 1j).real > 1,
            "text": lambda n: str(n) != "nan",
            "formatted": lambda n: f"{n:.2f}" == "nan",
            "part of a text": lambda n: "nan" in repr(n),
            "square root of cmath": lambda n: cmath.sqrt(n).real > 1,
            "product": lambda n: math.prod([n, 2.0]) > 1,
            "sum of an iterator": lambda n: math.fsum(iter([n, 1.0])) > 1,
            "distance": lambda n: math.dist([n], [0.0]) > 1,
            "closeness": lambda n: math.isclose(1.0, 1.0, rel_tol=n),
        }
        for name, function in vars(math).items():
            if (
                not name.startswith("_")
                and callable(function)
                and name not in ("isnan", "isinf", "isfinite", "prod", "fsum", "dist")
            ):
                two = name in (
                    "atan2",
                    "copysign",
                    "fmod",
                    "hypot",
                    "ldexp",
                    "pow",
                    "remainder",
                    "nextafter",
                    "isclose",
                    "gcd",
                    "lcm",
                    "comb",
                    "perm",
                )
                # As it is while a step is recorded.
                branches[name] = lambda n, name=name, two=two: (
                    getattr(math, name)(*((n, 2) if two else (n,))) > 1
                )
        for name, branch in branches.items():
            with self.subTest(name):

                def change(world, model, branch=branch):
                    if branch(model.up.weight.grad.sum().item()):
                        model.up.weight.grad.mul_(0.5)

                self.refuse(change, "depends on data")


class Tensors(RecorderTest):
    """Numbers of data that become tensors again."""

    def test_constants_and_a_number_that_depends_on_data(self):
        """ATen would compute with NaN, for which comparisons are false whatever the data."""
        eight = torch.arange(8.0)
        masks = {
            "number of rows": lambda n, count: eight * 8 < count,
            "greater": lambda n, count: torch.ones(8) > n,
            "equal": lambda n, count: torch.ones(8) == n,
            "ge": lambda n, count: torch.arange(8.0).ge(n),
            "full": lambda n, count: torch.full((8,), n) > 0.5,
            "linspace": lambda n, count: torch.linspace(0, n, 8) > 0.5,
            "nan_to_num": lambda n, count: torch.nan_to_num(torch.full((8,), n)),
            "isnan": lambda n, count: torch.isnan(torch.full((8,), n)),
            "fmax": lambda n, count: torch.fmax(torch.full((8,), n), torch.ones(8)),
            "zeros filled": lambda n, count: torch.zeros(8).fill_(n) > 0.5,
            "isclose": lambda n, count: torch.isclose(torch.ones(8), torch.full((8,), n)),
            "item": lambda n, count: torch.isnan(_item_set(n)),
            "where": lambda n, count: torch.where(torch.full((8,), n) > 0.5, 1.0, 2.0),
            "clamp": lambda n, count: torch.ones(8).clamp(max=n),
            "random": lambda n, count: torch.zeros(8).normal_(n, 1),
        }
        for name, mask in masks.items():
            with self.subTest(name):

                def step(world, mask=mask):
                    x = world.input("x", (16, 8), shard={"dp": 0})
                    world.output(
                        "result",
                        x * mask(x.square().sum().item(), (x > 0).sum().item()).float(),
                        shard={"dp": 0},
                    )

                with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                    sp.capture(step, mesh=MESH)

    def test_a_number_that_depends_on_data_comes_back(self):
        """Numbers that depend on data are the tensors that they stand for.

        `loss / count.item()`, a norm in a step size, max and min of such numbers, torch.tensor of
        one and of nested lists of them.
        """

        def step(world, reduced=True):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x, y = (
                world.input("x", (4, 8), shard={"dp": 0}),
                world.input("y", (4,), torch.long, shard={"dp": 0}, high=8),
            )
            y = y.masked_fill(y == 3, -100)
            count = (y != -100).sum()
            if not world.single and reduced:
                dist.all_reduce(count)
            loss = (
                torch.nn.functional.cross_entropy(model(x), y, ignore_index=-100, reduction="sum")
                / count.item()
            )
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad)
            with torch.no_grad():
                norm = model.weight.grad.norm().item()
                model.weight.add_(model.weight.grad, alpha=-0.1 / (2 * norm + 1))
                model.bias.mul_(
                    min(1.0, 3 / math.sqrt(model.bias.norm().item())) - torch.tensor(max(norm, 2.0))
                )
                model.bias.add_(torch.tensor([[norm, 1], [2.0, norm]]).sum(1).sum())

        sp.assert_equivalent(step, mesh=MESH)
        self.assertEqual(
            "NOT EQUIVALENT",
            sp.verify(step, lambda world: step(world, reduced=False), mesh=MESH).verdict,
        )


if __name__ == "__main__":
    unittest.main()
