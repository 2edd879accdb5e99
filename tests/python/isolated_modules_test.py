# SPDX-License-Identifier: Apache-2.0
"""Modules that are wrong by themselves: the bugs of TTrace's table, each on gloo processes."""

import functools
import tempfile
import unittest

import torch
from forked_ranks import compare, traced
from models import MLP
from published_bugs import BUGS, GRADIENTS
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.numbers.layout import Layout, box
from shardproof.torch.numbers.reference_values import ReferenceValues, UnusableReference
from torch.utils.checkpoint import checkpoint

PERTURBED = (0, 1, 2)


class PublishedBugs(unittest.TestCase):
    def test_each_is_found_and_its_module_is_named(self):
        for bug in BUGS:
            with self.subTest(bug.step.__name__), tempfile.TemporaryDirectory() as folder:
                wrong = functools.partial(bug.step, wrong=True)
                single, ranks = dict.fromkeys(bug.axes, 1), dict.fromkeys(bug.axes, 2)
                self.assertTrue(traced(bug.step, single, f"{folder}/reference", PERTURBED))
                self.assertTrue(traced(bug.step, ranks, f"{folder}/right"))
                code, text, _ = compare(f"{folder}/reference", f"{folder}/right")
                self.assertEqual(code, 0, text)
                self.assertTrue(traced(wrong, ranks, f"{folder}/wrong"))
                code, text, _ = compare(f"{folder}/reference", f"{folder}/wrong")
                self.assertEqual(code, 10, text)
                report = f"{folder}/wrong.json"
                self.assertTrue(traced(wrong, ranks, f"{folder}/isolated", isolate=report))
                code, text, found = compare(f"{folder}/reference", f"{folder}/isolated")
                named = found["modules"]["wrong"] or found["modules"]["suspected"]
                self.assertEqual(code, 10 if found["modules"]["wrong"] else 5, text)
                self.assertEqual(named[0]["module"], bug.named, text)
                # what is right is not named, but for layers around, and all gradients of a step
                allowed = {bug.named, GRADIENTS, *bug.also}
                self.assertLessEqual({m["module"] for m in named}, allowed, text)


def two_layers(world, early=False, late=False):
    """Mistakes in one layer or in both."""
    model = world.parameters(torch.nn.Sequential(MLP(), MLP(), MLP()))
    for layer, wrong in zip(model, (early, False, late), strict=True):
        if wrong and not world.single:
            layer.down.register_forward_hook(lambda module, args, output: output * 1.01)
    x = world.input("x", (8, 16), shard={"dp": 0})
    loss = model(x).square().mean()
    loss.backward()
    for p in model.parameters():
        if not world.single:
            torch.distributed.all_reduce(p.grad, group=world.group("dp"))
            p.grad /= world.size
    return loss


def recomputed(world, wrong=False):
    """The second layer is computed once more in the backward pass."""
    model = world.parameters(torch.nn.Sequential(MLP(), MLP()))
    x = world.input("x", (8, 16))
    h = model[0](x)
    h = model[1](h) if world.single else checkpoint(model[1], h, use_reentrant=False)
    loss = h.square().mean()
    loss.backward()
    if wrong and not world.single:
        model[0].up.weight.grad *= 2
    return loss


class Isolation(unittest.TestCase):
    def isolated(self, folder, right, wrong, ranks):
        single = dict.fromkeys(ranks, 1)
        self.assertTrue(traced(right, single, f"{folder}/reference", PERTURBED))
        self.assertTrue(traced(wrong, ranks, f"{folder}/candidate"))
        compare(f"{folder}/reference", f"{folder}/candidate")
        self.assertTrue(
            traced(wrong, ranks, f"{folder}/isolated", isolate=f"{folder}/candidate.json")
        )
        return compare(f"{folder}/reference", f"{folder}/isolated")

    def test_an_early_mistake_does_not_hide_a_late_one(self):
        with tempfile.TemporaryDirectory() as folder:
            wrong = functools.partial(two_layers, early=True, late=True)
            _, text, found = self.isolated(folder, two_layers, wrong, {"dp": 2})
            named = found["modules"]["wrong"] + found["modules"]["suspected"]
            self.assertEqual({m["module"] for m in named}, {"0.down", "2.down"}, text)

    def test_a_right_step_is_never_agreement_and_nothing_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            code, text, found = self.isolated(folder, two_layers, two_layers, {"dp": 2})
            self.assertEqual(code, 5, text)
            self.assertTrue(text.startswith("UNDECIDED: "), text)
            self.assertEqual(found["modules"]["wrong"], [])
            self.assertEqual(found["modules"]["suspected"], [])
            self.assertEqual(found["modules"]["not_judged"], [])
            self.assertGreaterEqual(found["modules"]["right"], 9)

    def test_recomputation_takes_the_numbers_of_the_first_time(self):
        with tempfile.TemporaryDirectory() as folder:
            wrong = functools.partial(recomputed, wrong=True)
            _, text, found = self.isolated(folder, recomputed, wrong, {"dp": 2})
            self.assertEqual([m["module"] for m in found["modules"]["wrong"]], ["0.up"], text)

    def test_reports_that_cannot_be_used(self):
        with tempfile.TemporaryDirectory() as folder:
            self.isolated(folder, two_layers, two_layers, {"dp": 2})
            for report, mesh, message in (
                ("isolated.json", {"dp": 2}, "is of an isolated run"),
                ("candidate.json", {"tp": 2}, "mesh is"),
                ("reference", {"dp": 2}, "expected what shardproof compare --json has written"),
                ("candidate.json", {"dp": 2}, "expected another folder for the trace"),
            ):
                with self.assertRaisesRegex(UnusableReference, message):
                    ReferenceValues(f"{folder}/{report}", Mesh(mesh), 0, f"{folder}/reference")
            # the second half of the batch
            values = ReferenceValues(f"{folder}/candidate.json", Mesh({"dp": 2}), 1, folder)
            given = values.local("0.up.in", 0, torch.zeros(4, 16), box((4, 16), (0, 0), (4, 16)))
            self.assertEqual(given.placed, "numbers")
            self.assertIsNone(
                values.local(
                    "0.up.in", 0, torch.zeros(3, 16), Layout((3, 16), ((0, (0, 0), (3, 16)),))
                )
            )
            self.assertIsNone(values.local("other", 0, torch.zeros(1), box((1,), (0,), (1,))))


if __name__ == "__main__":
    unittest.main()
