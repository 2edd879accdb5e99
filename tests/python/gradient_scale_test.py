# SPDX-License-Identifier: Apache-2.0
"""Cut points on gradients have the scale that the losses show (export/gradient_scale.py)."""

import unittest

import torch
import torch.nn.functional as F
from recorder_steps import mean_of_gradients
from shardproof.torch import capture, verify
from torch import nn

MICROBATCHES = 4


def accumulated(world, scaled_at_end):
    """Microbatches whose losses are divided before backward, or gradients after it."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (world.input(n, (16, w), shard={"dp": 0}) for n, w in (("x", 4), ("y", 2)))
    for a, b in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES)):
        loss = F.mse_loss(model(a), b)
        (loss if scaled_at_end else loss / MICROBATCHES).backward()
    if scaled_at_end:
        for p in model.parameters():
            p.grad /= MICROBATCHES
    if not world.single:
        mean_of_gradients(world, model)
    optimizer.step()


def scales(plan):
    """The scales of cut points, by name."""
    return {
        e["tensor"]: part.get("scale", [1, 1])
        for e in plan["lineage"]
        if e["role"] == "checkpoint"
        for shard in e["shards"]
        for part in shard["parts"]
    }


class GradientScale(unittest.TestCase):
    def single(self, world):
        return accumulated(world, scaled_at_end=False)

    def ranks(self, world):
        return accumulated(world, scaled_at_end=True)

    def test_that_of_activations_is_known(self):
        found = scales(capture(self.single, self.ranks, mesh="dp=1").plan)
        of_activations = [s for name, s in found.items() if ".out.grad" in name]
        self.assertTrue(of_activations)
        self.assertEqual({tuple(s) for s in of_activations}, {(1, MICROBATCHES)})

    def test_no_lemma_has_to_be_inferred(self):
        for mesh in ("dp=1", "dp=2"):
            with self.subTest(mesh):
                report = verify(
                    self.single,
                    self.ranks,
                    mesh=mesh,
                    arguments=["--infer", "never"],
                    numbers=False,
                )
                self.assertEqual(report.verdict, "EQUIVALENT", report.text)
                undecided = [s for s in report.raw["stages"] if s["verdict"] != "proved"]
                self.assertEqual(undecided, [])

    def test_sums_have_the_scale_of_sums(self):
        def summed(world):
            model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
            x = world.input("x", (8, 4), shard={"dp": 0})
            model(x).square().sum().backward()
            if not world.single:
                for p in model.parameters():
                    torch.distributed.all_reduce(p.grad)

        found = scales(capture(summed, mesh="dp=2").plan)
        of_activations = [s for name, s in found.items() if ".out.grad" in name]
        self.assertEqual({tuple(s) for s in of_activations}, {(1, 1)})
        self.assertEqual(verify(summed, mesh="dp=2").verdict, "EQUIVALENT")


if __name__ == "__main__":
    unittest.main()
