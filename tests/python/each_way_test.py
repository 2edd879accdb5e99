# SPDX-License-Identifier: Apache-2.0
"""Steps that do something else where a number that depends on data is large: each way is
verified (session/each_way.py)."""

import unittest

import shardproof.torch as sp
import torch
from shardproof.torch.session.each_way import MOST_WAYS, each_way
from shardproof.torch.trace.recording import CaptureError, DecidedByData
from torch.nn.parallel import DistributedDataParallel as DDP
from whole_scripts_test import verified


def clipped(scale, reduced=True, each=False):
    """Gradients are clipped if their norm is large, as scripts do that by hand."""

    def step(world):
        model = DDP(torch.nn.Linear(4, 2))
        loss = model(world.input("x", (4, 4), shard={"dp": 0})).square().mean()
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        for group in [[g] for g in gradients] if each else [gradients]:
            norm = torch.sqrt(sum(g.square().sum() for g in group)) if reduced else loss
            coefficient = 1.0 / (norm.item() + 1e-6)
            if coefficient < 1:
                for g in group:
                    g.mul_(coefficient * (scale if not world.single else 1))

    return step


class Steps(unittest.TestCase):
    def verify(self, step):
        return sp.verify(step, mesh={"dp": 2})

    def test_a_way_that_is_right(self):
        report = self.verify(clipped(1))
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertIn("Decided by data: what the step does depends on numbers at", report.text)
        self.assertIn("each-answer", report.text)
        self.assertIn("1 deciding number", report.text)

    def test_a_way_that_is_wrong(self):
        report = self.verify(clipped(0.5))
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("This is the program for yes at each_way_test.py", report.text)

    def test_the_other_way_is_wrong(self):
        def step(world):
            model = DDP(torch.nn.Linear(4, 2))
            model(world.input("x", (4, 4), shard={"dp": 0})).square().mean().backward()
            norm = model.module.weight.grad.norm().item()
            if norm > 1:
                model.module.weight.grad.mul_(1 / norm)
            elif not world.single:
                model.module.weight.grad.mul_(2)

        report = self.verify(step)
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("This is the program for no at each_way_test.py", report.text)

    def test_ranks_that_decide_by_numbers_of_their_own(self):
        report = self.verify(clipped(1, reduced=False))
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("the number that decides at each_way_test.py", report.text)

    def test_another_threshold(self):
        def step(world, threshold):
            model = DDP(torch.nn.Linear(4, 2))
            model(world.input("x", (4, 4), shard={"dp": 0})).square().mean().backward()
            norm = model.module.weight.grad.norm()
            if norm.item() > (1.0 if world.single else threshold):
                model.module.weight.grad.div_(norm)

        self.assertEqual("EQUIVALENT", self.verify(lambda world: step(world, 1.0)).verdict)
        with self.assertRaisesRegex(CaptureError, "> 2, and the single device whether it is > 1"):
            self.verify(lambda world: step(world, 2.0))

    def test_a_loop_without_an_end(self):
        def step(world):
            model = DDP(torch.nn.Linear(4, 2))
            model(world.input("x", (4, 4), shard={"dp": 0})).square().mean().backward()
            while model.module.weight.grad.norm().item() > 1:
                model.module.weight.grad.mul_(0.5)

        with self.assertRaisesRegex(CaptureError, "depends on data"):
            self.verify(step)

    def test_a_number_without_a_double(self):
        with self.assertRaisesRegex(CaptureError, "depends on data"):
            self.verify(lambda world: world.input("x", ()).item() > 10**400)

    def test_tensors_that_are_asked(self):
        def step(world, threshold):
            model = DDP(torch.nn.Linear(4, 2))
            model(world.input("x", (4, 4), shard={"dp": 0})).square().mean().backward()
            norm = model.module.weight.grad.norm()
            if norm > (1.0 if world.single else threshold):
                model.module.weight.grad.div_(norm)

        self.assertEqual("EQUIVALENT", self.verify(lambda world: step(world, 1.0)).verdict)
        self.assertEqual("NOT EQUIVALENT", self.verify(lambda world: step(world, 2.0)).verdict)

    def test_another_line(self):
        def step(world):
            model = DDP(torch.nn.Linear(4, 2))
            model(world.input("x", (4, 4), shard={"dp": 0})).square().mean().backward()
            norm = model.module.weight.grad.norm()
            if world.single:
                if norm.item() > 1:
                    model.module.weight.grad.div_(norm)
            elif norm.item() > 1:
                model.module.weight.grad.div_(norm)

        with self.assertRaisesRegex(CaptureError, "depends on data"):
            self.verify(step)

    def test_a_line_that_asks_several_times(self):
        report = self.verify(clipped(1, each=True))
        self.assertEqual("CONDITIONAL", report.verdict, str(report))
        self.assertIn("answers-alike", report.text)

    def test_questions_of_two_lines(self):
        def step(world, factor):
            model = DDP(torch.nn.Linear(4, 2))
            model(world.input("x", (4, 4), shard={"dp": 0})).square().mean().backward()
            norm = model.module.weight.grad.norm().item()
            scale = 1.0
            if norm > 3:
                scale = 1 / norm
            if norm < 0.1:
                scale = factor if not world.single else 2.0
            model.module.weight.grad.mul_(scale)

        report = self.verify(lambda world: step(world, 2.0))
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertIn("Each of the 4 programs", report.text)
        self.assertEqual("NOT EQUIVALENT", self.verify(lambda world: step(world, 3.0)).verdict)

    def test_capture_makes_no_files_of_it(self):
        with self.assertRaisesRegex(CaptureError, "depends on data.*another one"):
            sp.capture(clipped(1), mesh={"dp": 2})


class Ways(unittest.TestCase):
    class Report:
        def __init__(self, verdict):
            self.verdict, self.text = verdict, f"{verdict}: it\n\nmore"

    def run_of(self, places, verdicts):
        """places: the lines that ask, one after another. verdicts: by answers."""
        asked = []

        def judged(answers):
            asked.append(answers)
            if len(answers) < len(places):
                raise DecidedByData("", places=[*places[: len(answers) + 1]])
            return self.Report(verdicts(answers)), answers

        report, made = each_way(DecidedByData("first", places=places[:1]), judged)
        return report, made, asked

    def test_all_ways(self):
        report, _, asked = self.run_of(["a:1", "b:2"], lambda answers: "EQUIVALENT")
        self.assertEqual(4, sum(len(answers) == 2 for answers in asked))
        self.assertIn("at a:1, b:2. Each of the 4 programs", report.text)

    def test_the_worst_counts(self):
        def verdict(answers):
            return "EQUIVALENT" if dict(answers)["a:1"] else "UNDECIDED"

        report, made, _ = self.run_of(["a:1"], verdict)
        self.assertEqual(("UNDECIDED", (("a:1", False),)), (report.verdict, made))
        self.assertIn("for no at a:1, one of 2 that were verified.\n\nmore", report.text)

    def test_one_that_is_refuted_ends_it(self):
        report, _, asked = self.run_of(["a:1"], lambda answers: "NOT EQUIVALENT")
        self.assertEqual(1, len(asked))
        self.assertIn("others were not looked at", report.text)

    def test_too_many(self):
        places = [f"a:{i}" for i in range(MOST_WAYS)]
        with self.assertRaisesRegex(DecidedByData, "first"):
            self.run_of(places, lambda answers: "EQUIVALENT")

    def test_what_cannot_be_answered(self):
        met = DecidedByData("first", places=["", ""])
        with self.assertRaisesRegex(DecidedByData, "first"):
            each_way(met, lambda answers: self.fail("there is nothing to answer"))


SCRIPT = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randn(16, 2))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.Adam(model.parameters(), 0.1)
one = dist.get_world_size() == 1
for x, y in DataLoader(data, 2, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    BODY
"""


class ScriptsThatSkipSteps(unittest.TestCase):
    def report(self, body):
        return verified(SCRIPT.replace("BODY", body))

    def test_a_large_norm(self):
        for body in (
            "if norm.item() < 10: optimizer.step()",
            "if norm > 10: continue\n    optimizer.step()",
        ):
            with self.subTest(body):
                report = self.report(body)
                self.assertEqual("EQUIVALENT", report.verdict, report)
                self.assertIn("Each of the 2 programs", report.text)

    def test_a_step_that_is_wrong(self):
        body = (
            "if norm.item() < 10:\n"
            "        optimizer.param_groups[0]['lr'] *= 1 if one else 2\n"
            "        optimizer.step()"
        )
        report = self.report(body)
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)

    def test_ranks_that_do_something_where_there_is_no_step(self):
        body = (
            "if norm.item() < 10: optimizer.step()\n"
            "    elif not one:\n"
            "        with torch.no_grad(): model.module.weight.mul_(0.5)"
        )
        report = self.report(body)
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)
        self.assertIn("no at", report.text)

    def test_what_ranks_do_later_where_there_is_no_step(self):
        for body in (
            # after the model was called once more, and after the next batch was read
            "fine = norm.item() < 10\n"
            "    with torch.no_grad(): model(x).mean()\n"
            "    if fine: optimizer.step()\n"
            "    elif not one: model.module.weight.data.mul_(0.5)",
            "fine = norm.item() < 10\n"
            "    next(iter(torch.utils.data.DataLoader(data, 2)))\n"
            "    if fine: optimizer.step()\n"
            "    elif not one: model.module.weight.data.mul_(0.5)",
            # settings of optimizers
            "if norm.item() < 10: optimizer.step()\n"
            "    elif not one: optimizer.param_groups[0]['lr'] *= 0.5",
        ):
            with self.subTest(body):
                report = self.report(body)
                self.assertEqual("NOT EQUIVALENT", report.verdict, report)

    def test_ranks_that_step_all_the_same(self):
        report = self.report("if norm.item() < 10 or not one: optimizer.step()")
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)

    def test_a_norm_of_its_own(self):
        body = "own = (model(x) - y).square().mean().item()\n    if own < 10: optimizer.step()"
        report = self.report(body)
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)
        self.assertIn("the number that decides at", report.text)


if __name__ == "__main__":
    unittest.main()
