"""Activations whose backward ATen does not decompose, where ranks have parts of the batch: verdicts, right and wrong."""

import unittest

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def train(world, activation, factor):
    """Data parallel; the ranks' loss is `factor` times what it should be before backward."""
    model = torch.nn.Linear(4, 4)
    x, y = (world.input(name, (8, 4), shard={"dp": 0}) for name in "xy")
    wrapped = model if world.single else DistributedDataParallel(model)
    loss = F.mse_loss(activation(wrapped(x)), y)
    (loss * (1 if world.single else factor)).backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    return loss


class Activations(unittest.TestCase):
    def test_shrinking_of_a_part_of_the_batch(self):
        for activation in (F.hardshrink, F.softshrink):
            for factor, verdict in ((1, "EQUIVALENT"), (2, "NOT EQUIVALENT")):
                with self.subTest(activation=activation.__name__, factor=factor):
                    report = sp.verify(lambda world: train(world, activation, factor), mesh={"dp": 2})  # noqa: B023
                    self.assertEqual(verdict, report.verdict, report.text)
                    if factor == 2:
                        self.assertIn("activations_test.py:", report.text)


if __name__ == "__main__":
    unittest.main()
