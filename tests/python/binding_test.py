# SPDX-License-Identifier: Apache-2.0
"""Parameters, inputs and outputs of ranks, bound to those of the single device."""

import functools
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
from models import MLP
from recorder_steps import MESH, RecorderTest
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.export.boxes import NoPlace, locate
from shardproof.torch.step.tracked_tensors import Placement, TrackedTensor
from shardproof.torch.terms.geometry import contiguous
from shardproof.torch.terms.values import Filled
from torch.distributed.fsdp import fully_shard


class Parameters(RecorderTest):
    """Which parameter of a rank is which of the single device."""

    def test_parts_that_shapes_tell_are_one_line(self):
        def step(world):
            width = 8 // world.size
            up, down = (torch.nn.Linear(*n, bias=False) for n in ((4, width), (width, 2)))
            y = down(up(world.input("x", (3, 4))))
            return y if world.single else torch.distributed.nn.all_reduce(y)

        report = sp.assert_equivalent(step, mesh={"tp": 2})
        told = [a for a in report.assumptions if "concluded from shapes" in a]
        self.assertEqual(len(told), 1, told)
        self.assertIn("parts of weight, model2.weight", told[0])

    def test_ranks_that_use_other_parameters(self):
        def step(world):
            model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
            world.parameters(model)
            wrapped = (
                model
                if world.single
                else torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
            )
            chosen = (wrapped if world.single else wrapped.module)[world.rank]
            if not world.single:
                wrapped.module.forward = chosen.forward
            (chosen if world.single else wrapped)(
                world.input("x", (2, 2), shard={"dp": 0})
            ).sum().backward()

        with self.assertRaisesRegex(sp.CaptureError, "do not use the same parameters"):
            sp.capture(step, mesh=MESH)

    def test_a_loss_of_one_of_several_outputs(self):
        """Parameters that are not used hold up no reduction, whichever output the loss reads."""

        class Encoder(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.pooler = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

            def forward(self, x):
                hidden = self.body(x)
                return {"hidden": hidden, "mean": hidden.mean(1)}

        def step(world, reads):
            model = Encoder()
            wrapped = (
                model
                if world.single
                else torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
            )
            outputs = [wrapped(world.input(n, (4, 3, 4), shard={"dp": 0})) for n in "xy"]
            loss = (outputs[0][reads] * outputs[1][reads]).mean()
            loss.backward()
            return loss

        for reads in ("hidden", "mean"):
            report = sp.verify(functools.partial(step, reads=reads), mesh=MESH)
            self.assertEqual(report.verdict, "EQUIVALENT", report.text)

    def test_parameters_that_were_computed(self):
        """torch.func.functional_call replaces parameters by computed values.

        They have a gradient or none, and are no inputs.
        """

        def step(world, factor=1, detached=False):
            hyper, main = (
                world.parameters(torch.nn.Linear(3, 8, bias=False)),
                torch.nn.Linear(4, 2, bias=False),
            )
            weight = (hyper.weight @ world.input("c", (3,)) * (1 if world.single else factor)).view(
                2, 4
            )
            called = torch.func.functional_call(
                main,
                {"weight": weight.detach() if detached else weight},
                (world.input("x", (8, 4), shard={"dp": 0}),),
            )
            world.output("loss", called.square().mean() + hyper.weight.square().mean())

        def ensemble(world, factor=1):
            members = torch.nn.ParameterDict(
                {
                    "weight": torch.nn.Parameter(torch.randn(4 // world.size, 2, 3)),
                    "bias": torch.nn.Parameter(torch.randn(4 // world.size, 2)),
                }
            )
            world.parameters(members, {".*": {"dp": 0}})
            base = torch.nn.Linear(3, 2)
            total = (
                torch.func.vmap(
                    lambda p, x: torch.func.functional_call(base, p, (x,)), in_dims=(0, None)
                )(dict(members.items()), world.input("x", (5, 3)))
                .sum(0)
                .detach()
            )
            if not world.single:
                dist.all_reduce(total)
                total *= factor
            world.output("total", total, mean=())

        for made in (step, functools.partial(step, detached=True), ensemble):
            self.assertEqual("EQUIVALENT", sp.verify(made, mesh=MESH).verdict)
            self.assertEqual(
                "NOT EQUIVALENT", sp.verify(functools.partial(made, factor=2), mesh=MESH).verdict
            )

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
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(lambda world: step(world, 2), mesh=MESH).verdict
        )

    def test_a_part_that_is_called_while_its_model_is_made(self):
        """To see what shape it gives: it is no model of its own."""

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Sequential(
                    torch.nn.Conv1d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten()
                )
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
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(lambda world: step(world, 2), mesh=MESH).verdict
        )


class Outputs(RecorderTest):
    """Outputs that one side lacks."""

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

    def test_a_model_of_the_users_own_process_group_is_named(self):
        with self.assertRaises(ValueError):
            sp.verify(lambda world: None, mesh="dp=two")


class Boxes(unittest.TestCase):
    def place(self, logical, local, mesh, at, cuts, **placement):
        return locate(
            TrackedTensor("output", "t", Filled(0, local), Placement(**placement)),
            logical,
            local,
            Mesh(mesh),
            at,
            cuts,
        )

    def test_declared(self):
        self.assertEqual(
            self.place(
                (8, 6), (4, 2), {"dp": 2, "tp": 3}, {"dp": 1, "tp": 2}, {}, shard={"dp": 0, "tp": 1}
            ).low,
            (4, 4),
        )
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


if __name__ == "__main__":
    unittest.main()
