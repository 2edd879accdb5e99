"""Activations, losses and `torch.func` where ranks have parts of the batch: verdicts, right and wrong."""

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

    def test_fractions_that_are_added(self):
        def train_smoothed(world, smoothing):
            """The backward of label smoothing over 6 classes adds 1/480 on the single device, 1/240 on a rank."""
            model = torch.nn.Linear(6, 6)
            x, labels = world.input("x", (8, 6), shard={"dp": 0}), world.input("labels", (8,), torch.long, shard={"dp": 0}, high=6)
            wrapped = model if world.single else DistributedDataParallel(model)
            loss = F.cross_entropy(wrapped(x), labels, label_smoothing=0.1 if world.single else smoothing)
            loss.backward()
            return loss

        for smoothing, verdict in ((0.1, "EQUIVALENT"), (0.2, "NOT EQUIVALENT")):
            report = sp.verify(lambda world: train_smoothed(world, smoothing), mesh={"dp": 2})  # noqa: B023
            self.assertEqual(verdict, report.verdict, report.text)

    def test_a_gradient_that_is_a_functions_result(self):
        def train_functional(world, divisor):
            """The module is called first with what torch.func wrapped."""
            model = torch.nn.Linear(4, 4)
            world.parameters(model)
            x, y = (world.input(name, (8, 4), shard={"dp": 0}) for name in "xy")
            gradient, loss = torch.func.grad_and_value(lambda p: F.mse_loss(torch.func.functional_call(model, p, (x,)), y))(dict(model.named_parameters()))
            for name, value in gradient.items():
                total = value.clone()
                if not world.single:
                    torch.distributed.all_reduce(total)
                world.output(name, total / (1 if world.single else divisor), mean=())
            return loss

        for divisor, verdict in ((2, "EQUIVALENT"), (1, "NOT EQUIVALENT")):
            report = sp.verify(lambda world: train_functional(world, divisor), mesh={"dp": 2})  # noqa: B023
            self.assertEqual(verdict, report.verdict, report.text)


if __name__ == "__main__":
    unittest.main()
