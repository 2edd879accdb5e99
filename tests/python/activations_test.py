# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Activations, losses and `torch.func` where ranks have parts of the batch.

Verdicts, right and wrong.
"""

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


def matrices(h):
    return h.view(-1, 2, 2) + 3 * torch.eye(2)


OPERATORS = {  # of h [batch, 4], y [batch, 4] and classes t [batch]
    "prod": lambda h, y, t: h.prod(1, keepdim=True),
    "cummax": lambda h, y, t: h.cummax(1).values,
    "median": lambda h, y, t: h.median(1, keepdim=True).values,
    "norm3": lambda h, y, t: torch.linalg.vector_norm(h, 3, dim=1, keepdim=True),
    "cdist": lambda h, y, t: torch.cdist(h.view(-1, 2, 2), y.view(-1, 2, 2)).flatten(1),
    "replicated": lambda h, y, t: F.pad(h.view(-1, 2, 2), (1, 2), mode="replicate").flatten(1),
    "circular": lambda h, y, t: F.pad(h.view(-1, 1, 2, 2), (1, 1, 0, 1), mode="circular").flatten(
        1
    ),
    "pooled": lambda h, y, t: F.adaptive_max_pool1d(h.view(-1, 1, 4), 3).flatten(1),
    "ceil": lambda h, y, t: F.avg_pool1d(
        h.view(-1, 1, 4), 3, 2, 1, ceil_mode=True, count_include_pad=False
    ).flatten(1),
    "threshold": lambda h, y, t: F.threshold(h, 0.2, -1.0),
    "inverse": lambda h, y, t: torch.linalg.inv(matrices(h)).flatten(1),
    "solved": lambda h, y, t: torch.linalg.solve(matrices(h), y[:, :2]),
    "logarithm": lambda h, y, t: torch.linalg.slogdet(matrices(h)).logabsdet[:, None],
    "singular": lambda h, y, t: torch.linalg.svdvals(matrices(h)),
    "spectrum": lambda h, y, t: torch.fft.rfft(h).abs(),
    "rotated": lambda h, y, t: torch.view_as_real(
        torch.complex(h[:, :2], h[:, 2:]) * torch.polar(torch.ones(2), y[:, :2])
    ).flatten(1),
    "sampled": lambda h, y, t: F.grid_sample(
        h.view(-1, 1, 2, 2), y.view(-1, 1, 2, 2), align_corners=True
    ).flatten(1),
    "last": lambda h, y, t: h.view(-1, 4, 1)[torch.arange(len(t)), t],
    "scattered": lambda h, y, t: torch.zeros(len(h), 2).scatter_reduce(
        1, torch.tensor([[0, 1, 1, 0]]).expand(len(h), 4), h, "mean"
    ),
    "buckets": lambda h, y, t: h * torch.bucketize(y, torch.tensor([-0.5, 0.5])),
}
LOSSES = {
    "weighed": lambda h, y, t: F.binary_cross_entropy(
        torch.sigmoid(h), torch.sigmoid(y), weight=torch.linspace(0.5, 1, 4)
    ),
    "gaussian": lambda h, y, t: F.gaussian_nll_loss(h, y, F.softplus(h)),
    "margins": lambda h, y, t: F.multi_margin_loss(h, t, p=2, margin=0.7),
}


def train_operator(world, operator, loss_of, wrong):
    """A data-parallel step.

    Wrong: on ranks the operator's result is doubled, or its gradient has the other sign.
    """
    model = torch.nn.Linear(3, 4)
    x, y, t = (
        world.input("x", (4, 3), shard={"dp": 0}),
        world.input("y", (4, 4), shard={"dp": 0}),
        world.input("t", (4,), torch.long, shard={"dp": 0}, high=4),
    )
    out = (operator or loss_of)(
        (model if world.single else DistributedDataParallel(model))(x), y, t
    )
    if not world.single and wrong:
        out = out * 2 if wrong == "value" else out.detach() * 2 - out
    loss = (out * torch.linspace(0.5, 1, out.shape[1])).square().mean() if operator else out
    loss.backward()
    return loss


class Activations(unittest.TestCase):
    def test_operators_of_a_part_of_the_batch(self):
        cases = [(name, f, None) for name, f in OPERATORS.items()] + [
            (name, None, f) for name, f in LOSSES.items()
        ]
        for name, operator, loss in cases:
            for wrong, verdict in (
                ("", "EQUIVALENT"),
                ("value", "NOT EQUIVALENT"),
                ("sign", "NOT EQUIVALENT"),
            ):
                with self.subTest(name, wrong=wrong):
                    report = sp.verify(
                        lambda world: train_operator(world, operator, loss, wrong), mesh={"dp": 2}
                    )
                    self.assertEqual(verdict, report.verdict, report.text)

    def test_results_of_opaque_functions_of_other_arguments(self):
        """The gradient that goes into it is of the rank's own mean.

        What is computed from it is no defect.
        """
        report = sp.verify(
            lambda world: train_operator(
                world,
                lambda h, y, t: torch.linalg.matrix_exp(h.view(-1, 2, 2)).flatten(1),
                None,
                "",
            ),
            mesh={"dp": 2},
        )
        self.assertEqual("UNDECIDED", report.verdict, report.text)

    def test_shrinking_of_a_part_of_the_batch(self):
        for activation in (F.hardshrink, F.softshrink):
            for factor, verdict in ((1, "EQUIVALENT"), (2, "NOT EQUIVALENT")):
                with self.subTest(activation=activation.__name__, factor=factor):
                    report = sp.verify(
                        lambda world: train(world, activation, factor), mesh={"dp": 2}
                    )
                    self.assertEqual(verdict, report.verdict, report.text)
                    if factor == 2:
                        self.assertIn("activations_test.py:", report.text)

    def test_fractions_that_are_added(self):
        def train_smoothed(world, smoothing):
            """Label smoothing over 6 classes adds 1/480 on one device, 1/240 on a rank."""
            model = torch.nn.Linear(6, 6)
            x, labels = (
                world.input("x", (8, 6), shard={"dp": 0}),
                world.input("labels", (8,), torch.long, shard={"dp": 0}, high=6),
            )
            wrapped = model if world.single else DistributedDataParallel(model)
            loss = F.cross_entropy(
                wrapped(x), labels, label_smoothing=0.1 if world.single else smoothing
            )
            loss.backward()
            return loss

        for smoothing, verdict in ((0.1, "EQUIVALENT"), (0.2, "NOT EQUIVALENT")):
            report = sp.verify(lambda world: train_smoothed(world, smoothing), mesh={"dp": 2})
            self.assertEqual(verdict, report.verdict, report.text)

    def test_a_gradient_that_is_a_functions_result(self):
        def train_functional(world, divisor):
            """The module is called first with what torch.func wrapped."""
            model = torch.nn.Linear(4, 4)
            world.parameters(model)
            x, y = (world.input(name, (8, 4), shard={"dp": 0}) for name in "xy")
            gradient, loss = torch.func.grad_and_value(
                lambda p: F.mse_loss(torch.func.functional_call(model, p, (x,)), y)
            )(dict(model.named_parameters()))
            for name, value in gradient.items():
                total = value.clone()
                if not world.single:
                    torch.distributed.all_reduce(total)
                world.output(name, total / (1 if world.single else divisor), mean=())
            return loss

        for divisor, verdict in ((2, "EQUIVALENT"), (1, "NOT EQUIVALENT")):
            report = sp.verify(lambda world: train_functional(world, divisor), mesh={"dp": 2})
            self.assertEqual(verdict, report.verdict, report.text)


if __name__ == "__main__":
    unittest.main()
