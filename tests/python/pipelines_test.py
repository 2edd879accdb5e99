# SPDX-License-Identifier: Apache-2.0
"""Pipelines: stages without given shapes, messages and their tags, steps that hang."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from recorder_steps import MESH, RecorderTest, train
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class StagesWithoutShapes(unittest.TestCase):
    """Pipeline stages that run their modules once to see what shapes they give."""

    def verdict(self, layer, shapes=False, mesh=None, shard=False, width=3):
        mesh = mesh or {"pp": 2}

        class Part(torch.nn.Module):
            def __init__(self, layers):
                super().__init__()
                self.layers = torch.nn.ModuleDict({str(i): layer() for i in layers})

            def forward(self, x):
                for f in self.layers.values():
                    x = f(x)
                return x

        def single(world):
            model = Part(range(2))
            x, y = (world.input(name, (8, width)) for name in "xy")
            for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
                (F.mse_loss(model(a), b) / 2).backward()

        def step(world):
            at = world.coordinates["pp"]
            stage = Part([at])
            if shard:
                fully_shard(stage, mesh=world.mesh("dp"))
            world.parameters(stage)
            example = torch.empty(4, width)
            given = (
                {
                    "input_args": example.clone().requires_grad_(at > 0),
                    "output_args": example.clone().requires_grad_(),
                }
                if shapes
                else {}
            )
            schedule = ScheduleGPipe(
                PipelineStage(stage, at, 2, torch.device("cpu"), group=world.group("pp"), **given),
                2,
                loss_fn=F.mse_loss,
            )
            x, y = (
                world.input(name, (8, width), shard={"dp": 0} if shard else None) for name in "xy"
            )
            schedule.step(*([] if at else [x]), target=y if at else None)

        return sp.verify(single, step, mesh=mesh).verdict

    def test_statistics_that_one_more_forward_changes(self):
        def layer():
            return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))

        self.assertEqual("EQUIVALENT", self.verdict(layer, shapes=True))
        # torch 2.14 leaves buffers as they were
        changes = torch.__version__.startswith("2.13.")
        self.assertEqual("NOT EQUIVALENT" if changes else "EQUIVALENT", self.verdict(layer))

    def test_what_the_first_forward_makes(self):
        class Layer(torch.nn.Linear):
            table = None

            def forward(self, x):
                if self.table is None:
                    self.table = torch.cos(torch.arange(3.0))
                return F.dropout(super().forward(x) * self.table, 0.1)

        self.assertEqual("EQUIVALENT", self.verdict(lambda: Layer(3, 3)))

    def test_sharded_parameters(self):
        self.assertEqual(
            "EQUIVALENT",
            self.verdict(lambda: torch.nn.Linear(3, 3), mesh={"dp": 2, "pp": 2}, shard=True),
        )


class Messages(unittest.TestCase):
    """Which message is which, and what is sent on."""

    def exchange(self, tags=((0, 0), (0, 0)), crossed=False, groups=False):
        def single(world):
            a, b = world.input("x", (4, 3)).chunk(2)
            world.output("p", a * 2)
            world.output("q", b * 3)

        def step(world):
            first, second = (
                [dist.new_group([0, 1]), dist.new_group([0, 1, 2])] if groups else [None, None]
            )
            a, b = (t.contiguous() for t in world.input("x", (4, 3)).chunk(2))
            if world.rank == 0:
                for work in [
                    dist.isend(a, 1, group=first, tag=tags[0][0]),
                    dist.isend(b, 1, group=second, tag=tags[0][1]),
                ]:
                    work.wait()
            elif world.rank == 1:
                p, q = torch.empty(2, 3), torch.empty(2, 3)
                if groups:  # the second group's first
                    todo = (
                        [(p, second, 0), (q, first, 0)]
                        if crossed
                        else [(q, second, 0), (p, first, 0)]
                    )
                else:
                    todo = (
                        [(q, None, tags[1][0]), (p, None, tags[1][1])]
                        if crossed
                        else [(p, None, tags[1][0]), (q, None, tags[1][1])]
                    )
                for work in [dist.irecv(t, 0, group=g, tag=n) for t, g, n in todo]:
                    work.wait()
                world.output("p", p * 2)
                world.output("q", q * 3)

        return sp.verify(single, step, mesh={"pp": 3}).verdict

    def test_each_group_pairs_its_own(self):
        self.assertEqual("EQUIVALENT", self.exchange(groups=True))
        self.assertEqual("NOT EQUIVALENT", self.exchange(groups=True, crossed=True))

    def test_tags(self):
        self.assertEqual("EQUIVALENT", self.exchange(((0, 1), (0, 1))))
        self.assertEqual("NOT EQUIVALENT", self.exchange(((0, 1), (0, 1)), crossed=True))
        with self.assertRaisesRegex(
            sp.CaptureError, "tag 1 at .*pipelines_test.py.*tag 0 at .*pipelines_test.py"
        ):
            self.exchange(((0, 1), (1, 0)))

    def test_what_is_read_before_its_wait_is_sent_on(self):
        def single(world):
            x = world.input("x", (3, 4))
            world.output("y", x + x.roll(1, 0) + x.roll(2, 0), shard={"cp": 0})

        def step(world, waits=True):
            held = world.input("x", (3, 4), shard={"cp": 0})
            total = held
            for _ in range(2):
                got = torch.empty_like(held)
                for work in dist.batch_isend_irecv(
                    [
                        dist.P2POp(dist.isend, held, (world.rank + 1) % 3),
                        dist.P2POp(dist.irecv, got, (world.rank - 1) % 3),
                    ]
                ):
                    if waits:
                        work.wait()
                held, total = got, total + got
            world.output("y", total, shard={"cp": 0})

        sp.assert_equivalent(single, step, mesh={"cp": 3})
        report = sp.verify(single, lambda world: step(world, False), mesh={"cp": 3})
        self.assertEqual(("NOT EQUIVALENT", "async"), (report.verdict, report.defects[0].kind))
        self.assertIn("pipelines_test.py", report.defects[0].places[0])


class Begun(RecorderTest):
    """Messages that are begun and waited for later, and steps that hang."""

    def verdict(self, change):
        return sp.verify(
            lambda world: train(world, change), mesh=MESH, arguments=["--confirm", "off"]
        )

    def test_messages_that_are_begun(self):
        def step(world, waits=True, parts=2, blocks=False):
            modules = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            rank = world.coordinates["pp"]
            model = world.parameters(
                torch.nn.ModuleDict(
                    {str(i): m for i, m in enumerate(modules) if world.single or rank == i}
                )
            )
            x, y = (world.input(name, (4, 8)) for name in "xy")
            if world.single:
                F.mse_loss(modules[1](modules[0](x).relu()), y).backward()
            elif rank == 0:
                sent = [modules[0](part).relu() for part in x.chunk(2)]
                # Both, before what comes back is received.
                works = [dist.isend(h.detach(), dst=1) for h in sent]
                if blocks:
                    works[1].wait()
                for h in sent:
                    grad = torch.empty_like(h)
                    work = dist.irecv(grad, src=1)
                    if waits:
                        work.wait()
                    h.backward(grad)
                    work.wait()
                for work in works:
                    work.wait()
            else:
                for labels in y.chunk(2):
                    h = torch.empty(2, 8)
                    dist.irecv(h, src=0).wait()
                    (F.mse_loss(modules[1](h.requires_grad_()), labels) / parts).backward()
                    dist.send(h.grad, dst=0)
            torch.optim.SGD(model.parameters(), lr=0.1).step()

        for changes, verdict, kind in (
            ({}, "EQUIVALENT", ""),
            ({"parts": 1}, "NOT EQUIVALENT", "lineage"),
            ({"waits": False}, "NOT EQUIVALENT", "async"),
            ({"blocks": True}, "NOT EQUIVALENT", "deadlock"),
        ):
            with self.subTest(changes):
                report = sp.verify(
                    lambda world, changes=changes: step(world, **changes),
                    mesh={"pp": 2},
                    arguments=["--confirm", "off"],
                )
                self.assertEqual(report.verdict, verdict, str(report))
                self.assertEqual([d.kind for d in report.defects[:1]], [kind] if kind else [])

    def test_a_step_that_hangs(self):
        def change(world, model):
            if world.rank == 0 and not world.single:
                dist.all_reduce(model.up.weight.grad.clone())

        report = self.verdict(change)
        self.assertEqual(report.verdict, "NOT EQUIVALENT")
        self.assertEqual(report.defects[0].kind, "collective")
        self.assertIn("pipelines_test.py", " ".join(report.defects[0].places) + report.text)


if __name__ == "__main__":
    unittest.main()
