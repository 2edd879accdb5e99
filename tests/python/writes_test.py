# SPDX-License-Identifier: Apache-2.0
"""Writes in place are seen: gradients, buffers, views of flat buffers."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed.nn
import torch.nn.functional as F
from recorder_steps import MESH, RecorderTest, flat_gradients, train
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.export.boxes import locate
from shardproof.torch.step.tracked_tensors import Placement, TrackedTensor
from shardproof.torch.terms.values import Filled


class Writes(RecorderTest):
    """Each way to write, on ranks only and on both sides."""

    def verdict(self, change):
        return sp.verify(
            lambda world: train(world, change), mesh=MESH, arguments=["--confirm", "off"]
        )

    def test_nothing_changed(self):
        sp.assert_equivalent(lambda world: train(world, lambda w, m: None), mesh=MESH)

    def test_every_way_to_write_is_seen(self):
        """Each spoils one gradient on the ranks only."""
        writes = {
            "slice": lambda g: g[3:5].mul_(2),
            "column": lambda g: g[:, 1].add_(1),
            "transposed": lambda g: g.t().mul_(2),
            "flat": lambda g: g.view(-1)[5:9].zero_(),
            "strided": lambda g: g[::2].mul_(3),
            "foreach": lambda g: torch._foreach_mul_([g], 2.0),
            "out": lambda g: torch.add(g, 1.0, out=g),
            "data": lambda g: g.data.neg_(),
            "index": lambda g: g.__setitem__(0, 0.0),
            "copy": lambda g: g.copy_(g * 2),
            "set": lambda g: g.as_strided((4,), (16,), 3).fill_(0.5),
            "masked": lambda g: g.masked_fill_(g > 0, 0.0),
            "unbind": lambda g: g.unbind(0)[2].mul_(2),
            "split": lambda g: g.split(8)[1].div_(2),
            "storage": lambda g: (
                torch.tensor([], dtype=g.dtype).set_(g.untyped_storage(), 0, (16,), (1,)).mul_(2)
            ),
        }
        for name, write in writes.items():
            with self.subTest(name):

                def change(world, model, write=write):
                    if not world.single:
                        write(model.up.weight.grad)

                try:
                    report = self.verdict(change)
                except sp.CaptureError:
                    continue  # refused is right, too
                self.assertEqual(report.verdict, "NOT EQUIVALENT", str(report))

    def test_the_same_write_on_both_sides(self):
        def change(world, model):
            grad = model.up.weight.grad
            grad[3:5].mul_(2)
            grad.t()[1].add_(1)
            grad.view(-1)[5:9].zero_()
            grad[::2].mul_(3)

        self.assertEqual(self.verdict(change).verdict, "EQUIVALENT")

    def test_pairs_of_equal_labels(self):
        """labels[:, None] == labels[None]: the same labels on both sides, at different places."""

        def step(world, pairs=True):
            model = torch.nn.Linear(8, 4, bias=False)
            world.parameters(model)
            x, labels = world.input("x", (6, 8)), world.input("labels", (6,), torch.long, high=3)
            z = model(x)
            similar = (
                (labels[:, None] == labels[None]).float()
                if pairs or world.single
                else torch.ones(6, 6)
            )
            loss = (similar * (z @ z.T)).sum() + F.embedding(labels, torch.eye(3)).sum()
            loss.backward()
            world.output("loss", loss, mean=())

        sp.assert_equivalent(step, mesh=MESH)
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict
        )


class FlatGradients(unittest.TestCase):
    def test_right_and_wrong(self):
        for way in ("add", "product", "norm"):
            for wrong, verdict in ((False, "EQUIVALENT"), (True, "NOT EQUIVALENT")):
                with self.subTest(way, wrong=wrong):
                    report = sp.verify(
                        lambda world, way=way, wrong=wrong: flat_gradients(world, way, wrong),
                        mesh=MESH,
                    )
                    self.assertEqual(verdict, report.verdict, str(report))

    def test_stretches_of_a_flat_buffer_that_overlap(self):
        def written(world, last):
            x, flat = world.input("x", (8,)), torch.zeros(8)
            flat[0:6] = x[0:6]
            flat[2:4] += 1
            flat[3:8].mul_(last if not world.single else 2)
            return flat[1:7]

        for last, verdict in ((2, "EQUIVALENT"), (3, "NOT EQUIVALENT")):
            self.assertEqual(
                verdict,
                sp.verify(lambda world, last=last: {"y": written(world, last)}, mesh=MESH).verdict,
            )

    def test_a_tensor_of_numbers_that_are_tensors_is_not_differentiated(self):
        def step(world):
            w = torch.nn.Parameter(torch.ones(4))
            x = world.input("x", (4,))
            made = torch.tensor([(w * x).sum(), x.sum()])
            self.assertFalse(made.requires_grad)
            return {"y": made * (1 if world.single else world.sizes["dp"] / 2)}

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=MESH).verdict)
        self.assertEqual("NOT EQUIVALENT", sp.verify(step, mesh={"dp": 4}).verdict)

    def test_gradients_of_a_loss_that_is_a_sum_have_the_models_scale(self):
        for summed, low in (((), 2), (("dp",), 1)):
            mark = TrackedTensor(
                "checkpoint",
                "a.out.grad",
                Filled(0, (4, 4)),
                Placement(summed=summed),
                gradient=True,
            )
            self.assertEqual(
                low, locate(mark, (8, 4), (4, 4), Mesh(MESH), {"dp": 1}, {"dp": {0}}).divisor
            )
            whole = locate(mark, (4, 4), (4, 4), Mesh(MESH), {"dp": 1}, {"dp": {0}})
            self.assertEqual((("dp",), low), (whole.total, whole.divisor))


if __name__ == "__main__":
    unittest.main()
