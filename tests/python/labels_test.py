# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Labels that equal ignore_index: how many there are is data."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

CLASSES = 4
ASSUMED = "none equals ignore_index"


def local_mean(logits, labels, world):
    return F.cross_entropy(logits, labels)


def named_local_mean(logits, labels, world):
    return F.cross_entropy(logits, labels, ignore_index=-100)


def counted(labels, world, everywhere=True, ignore=-100):
    count = (labels != ignore).sum().float()
    if everywhere and not world.single:
        dist.all_reduce(count)
        count = count / world.size  # DistributedDataParallel divides the gradients
    return count


def step_of(loss_of, high=None, shape=(8, 6), change=lambda labels, world: labels):
    """A linear model under data parallelism."""

    def step(world):
        model = nn.Linear(5, CLASSES)
        wrapped = model if world.single else DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = world.input("x", (*shape, 5), shard={"dp": 0})
        labels = world.input("labels", shape, torch.long, shard={"dp": 0}, high=high)
        loss = loss_of(wrapped(x).flatten(0, -2), change(labels, world).flatten(), world)
        loss.backward()
        optimizer.step()
        return loss

    return step


class Labels(unittest.TestCase):
    def verdict(self, step, expected, mesh=None, **options):
        mesh = mesh or {"dp": 2}
        report = sp.verify(
            step, mesh=mesh, arguments=["--stage-timeout", "30", "--diagnose", "off"], **options
        )
        self.assertEqual(expected, report.verdict, str(report))
        return report

    def test_a_mean_of_means_of_labels_without_declaration(self):
        report = self.verdict(step_of(local_mean), "CONDITIONAL")
        self.assertTrue(any(ASSUMED in a for a in report.assumptions), report.assumptions)
        self.assertTrue(any("labels_test.py" in a for a in report.assumptions))

    def test_it_can_be_accepted(self):
        self.verdict(step_of(local_mean), "EQUIVALENT", accept=["labels-valid"])

    def test_a_mean_of_means_where_the_program_names_the_number(self):
        for high in (None, CLASSES):
            with self.subTest(high):
                self.verdict(step_of(named_local_mean, high), "NOT EQUIVALENT")

    def test_a_mean_of_means_where_the_program_counts(self):
        def loss_of(logits, labels, world):
            return F.cross_entropy(logits, labels, reduction="sum") / counted(
                labels, world, everywhere=False
            )

        self.verdict(step_of(loss_of, CLASSES), "NOT EQUIVALENT")

    def test_classes_by_the_users_word(self):
        report = self.verdict(step_of(local_mean, CLASSES), "EQUIVALENT")
        self.assertFalse(any(ASSUMED in a for a in report.assumptions))

    def test_other_numbers_that_ignore(self):
        for ignore in (-1, 255):

            def loss_of(logits, labels, world):
                return F.cross_entropy(logits, labels, ignore_index=ignore)

            with self.subTest(ignore):
                self.verdict(step_of(loss_of, CLASSES), "NOT EQUIVALENT")

    def test_a_module(self):
        report = self.verdict(
            step_of(lambda logits, labels, world: nn.CrossEntropyLoss()(logits, labels)),
            "CONDITIONAL",
        )
        self.assertTrue(any(ASSUMED in a for a in report.assumptions), report.assumptions)

    def test_log_likelihoods(self):
        report = self.verdict(
            step_of(lambda logits, labels, world: F.nll_loss(logits.log_softmax(-1), labels)),
            "CONDITIONAL",
        )
        self.assertTrue(any(ASSUMED in a for a in report.assumptions), report.assumptions)

    def test_the_sum_by_the_count_of_all_ranks(self):
        def loss_of(logits, labels, world):
            return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / counted(
                labels, world
            )

        for high in (None, CLASSES):
            with self.subTest(high):
                report = self.verdict(step_of(loss_of, high), "EQUIVALENT")
                self.assertFalse(any(ASSUMED in a for a in report.assumptions))

    def test_a_sum(self):
        def loss_of(logits, labels, world):
            # Undone by DistributedDataParallel.
            return F.cross_entropy(logits, labels, reduction="sum") * world.size

        def step(world):
            step_of(loss_of)(world)  # the loss itself is its rank's part of the sum

        report = self.verdict(step, "EQUIVALENT")
        self.assertFalse(any(ASSUMED in a for a in report.assumptions))

    def test_counted_by_other_comparisons(self):
        ways = {
            "ge": lambda labels: labels >= 0,
            "gt": lambda labels: labels > -1,
            "lt": lambda labels: ~(labels < 0),
            "eq": lambda labels: (labels == -100).logical_not(),
        }
        for name, valid in ways.items():

            def loss_of(logits, labels, world, everywhere=True):
                count = valid(labels).sum().float()
                if everywhere and not world.single:
                    dist.all_reduce(count)
                    count = count / world.size
                return F.cross_entropy(logits, labels, reduction="sum") / count

            with self.subTest(name):
                self.verdict(step_of(loss_of), "EQUIVALENT")
                self.verdict(
                    step_of(
                        lambda logits, labels, world: loss_of(logits, labels, world, False), CLASSES
                    ),
                    "NOT EQUIVALENT",
                )

    def test_losses_of_each_label(self):
        def loss_of(logits, labels, world, everywhere=True):
            each = F.cross_entropy(logits, labels, reduction="none")
            keep = (labels != -100).float()
            return (each * keep).sum() / counted(labels, world, everywhere)

        self.verdict(step_of(loss_of), "EQUIVALENT")
        self.verdict(
            step_of(lambda logits, labels, world: loss_of(logits, labels, world, False)),
            "NOT EQUIVALENT",
        )

    def test_shifted_labels(self):
        """As in language models: the labels of the next position, the last one has none."""

        def change(labels, world):
            return F.pad(labels, (0, 1), value=-100)[..., 1:]

        def loss_of(logits, labels, world, everywhere=True):
            return F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / counted(
                labels, world, everywhere
            )

        self.verdict(step_of(loss_of, change=change), "EQUIVALENT")
        self.verdict(
            step_of(
                lambda logits, labels, world: loss_of(logits, labels, world, False), change=change
            ),
            "NOT EQUIVALENT",
        )

    def test_looked_up_in_a_table(self):
        """Coarser classes, of which one is ignored in the last table."""
        for tables, expected in (
            (([1, 0, 0, 3], [1, 0, 0, 3]), "EQUIVALENT"),
            (([1, 0, 0, 3], [1, 0, 2, 3]), "NOT EQUIVALENT"),
            (([1, -100, 0, 3], [1, -100, 0, 3]), "NOT EQUIVALENT"),
        ):

            def change(labels, world):
                return torch.tensor(tables[not world.single])[labels]

            with self.subTest(tables):
                self.verdict(step_of(local_mean, CLASSES, change=change), expected)

    def test_a_mask_of_integers(self):
        """As tokenizers give it: 1 where a token counts."""

        def step_of_mask(of_rank):
            def step(world):
                model = nn.Linear(5, CLASSES)
                wrapped = model if world.single else DistributedDataParallel(model)
                x = world.input("x", (8, 5), shard={"dp": 0})
                mask = world.input("mask", (8,), torch.long, shard={"dp": 0}, high=2)
                mask = (mask if world.single else of_rank(mask)).bool()
                loss = (wrapped(x).square().mean(1) * mask).mean()
                loss.backward()
                return loss

            return step

        self.verdict(step_of_mask(lambda mask: mask), "EQUIVALENT")
        self.verdict(step_of_mask(lambda mask: 1 - mask), "NOT EQUIVALENT")

    def test_smoothed(self):
        def loss_of(logits, labels, world):
            return F.cross_entropy(logits, labels, label_smoothing=0.1)

        report = self.verdict(step_of(loss_of, shape=(4, 2)), "CONDITIONAL")
        self.assertTrue(any(ASSUMED in a for a in report.assumptions), report.assumptions)

    def test_weighted(self):
        """The sum of the classes' weights is data in any case."""

        def loss_of(logits, labels, world):
            return F.cross_entropy(logits, labels, weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))

        self.verdict(step_of(loss_of, CLASSES), "NOT EQUIVALENT")

    def test_tokens_are_classes(self):
        """What a table is indexed by cannot be ignored."""

        def step(world):
            model = nn.Sequential(nn.Embedding(CLASSES, 5), nn.Linear(5, CLASSES))
            wrapped = model if world.single else DistributedDataParallel(model)
            tokens = world.input("tokens", (8, 7), torch.long, shard={"dp": 0})
            loss = F.cross_entropy(wrapped(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            return loss

        report = self.verdict(step, "EQUIVALENT")
        self.assertFalse(any(ASSUMED in a for a in report.assumptions))

    def test_numbers_of_the_program(self):
        """Constants are what they are."""
        for last, expected in ((3, "EQUIVALENT"), (-100, "NOT EQUIVALENT")):

            def change(labels, world):
                rows = torch.tensor([[0, 1], [2, 3], [1, 1], [0, last]])
                return rows if world.single else rows.chunk(world.size)[world.rank]

            with self.subTest(last):
                self.verdict(
                    step_of(local_mean, shape=(4, 2), change=change),
                    expected,
                    accept=["own-arrays"],
                )

    def test_drawn_labels(self):
        def change(labels, world):
            drawn = torch.randint(0, CLASSES, (8, 6))
            return drawn if world.single else drawn.chunk(world.size)[world.rank]

        report = self.verdict(step_of(local_mean, change=change), "EQUIVALENT")
        self.assertFalse(any(ASSUMED in a for a in report.assumptions))

    def test_a_wrong_step_with_valid_labels(self):
        """It is wrong whatever its labels are."""
        self.verdict(
            step_of(lambda logits, labels, world: local_mean(logits, labels, world) / world.size),
            "NOT EQUIVALENT",
        )

    def test_accumulation(self):
        """The mean of the microbatches' means, on one device, too."""

        def of(named, mean):
            def step(world):
                model = nn.Linear(5, CLASSES)
                x = world.input("x", (8, 3, 5), shard={"dp": 0})
                labels = world.input("labels", (8, 3), torch.long, shard={"dp": 0}, high=CLASSES)
                parts = 4 // world.size if mean else 1
                wrapped = model if world.single else DistributedDataParallel(model)
                for a, b in zip(x.chunk(parts), labels.chunk(parts), strict=True):
                    options = {"ignore_index": -100} if named else {}
                    (
                        F.cross_entropy(wrapped(a).flatten(0, 1), b.flatten(), **options) / parts
                    ).backward()

            return step

        self.verdict(of(False, True), "EQUIVALENT")
        self.verdict(of(True, False), "NOT EQUIVALENT")

    def test_tensor_parallel(self):
        """No rank has other labels than the others."""

        def step(world):
            model = nn.Linear(5, CLASSES)
            mesh = world.mesh("tp")
            model = parallelize_module(
                model,
                mesh,
                ColwiseParallel(
                    input_layouts=Replicate(), output_layouts=Shard(-1), use_local_output=False
                ),
            )
            x = world.input("x", (3, 5))
            labels = world.input("labels", (3,), torch.long)
            with loss_parallel():
                loss = F.cross_entropy(model(x), labels, ignore_index=-100)
                loss.backward()
            return loss.full_tensor() if hasattr(loss, "full_tensor") else loss

        report = sp.verify(
            step, mesh={"tp": 2}, arguments=["--stage-timeout", "30", "--diagnose", "off"]
        )
        self.assertIn(report.verdict, ("EQUIVALENT", "CONDITIONAL"), str(report))
        if report.verdict == "CONDITIONAL":
            self.assertTrue(any(ASSUMED in a for a in report.assumptions), report.assumptions)


if __name__ == "__main__":
    unittest.main()
