# SPDX-License-Identifier: Apache-2.0
"""Questions about data, and numbers that are drawn (trace/decisions.py, trace/drawn_numbers.py)."""

import random
import types
import unittest

import numpy
import shardproof.torch as sp
import torch
from shardproof.torch.distributed.mailbox import MissingMetadata
from shardproof.torch.session.isolated_processes import Failed, Overrun
from shardproof.torch.session.ranks import check_answers
from shardproof.torch.trace.decisions import Raised, check_decisions
from shardproof.torch.trace.recording import CaptureError, Decision
from torch.nn.parallel import DistributedDataParallel as DDP

LEFT = ("plain", "no_gradient", "changed", "beside", "left_alone", "as_made", "groups_made")


def side(*answers):
    decisions = tuple(Decision("x.py:1", a) for a in answers)
    return types.SimpleNamespace(decisions=decisions, **dict.fromkeys(LEFT))


class Answers(unittest.TestCase):
    """All combinations, each once."""

    def explored(self, program, same=lambda other: True):
        """program(ask): asks questions; returns what it is then."""
        seen = []

        def record(answers):
            given = []

            def ask():
                n = len(given)
                given.append(answers[n] if n < len(answers) else False)
                return given[-1]

            result = program(ask)
            seen.append(tuple(given))
            made = side(*given)
            made.result = result
            return made

        first = record(())
        raising = check_decisions("rank 0", first, record, lambda o: o.result == first.result)
        return seen, raising

    def test_each_combination_once(self):
        seen, _ = self.explored(lambda ask: 0 * sum(ask() for _ in range(3)))
        self.assertEqual(8, len(seen))
        self.assertEqual(8, len(set(seen)))

    def test_questions_that_answers_lead_to(self):
        def program(ask):
            if ask():
                ask()
                ask()
            return 0

        seen, _ = self.explored(program)
        self.assertEqual({(False,), *((True, a, b) for a in (0, 1) for b in (0, 1))}, set(seen))

    def test_two_answers_together(self):
        with self.assertRaisesRegex(CaptureError, "another one"):
            self.explored(lambda ask: [ask(), ask()] == [True, True])

    def test_too_many(self):
        with self.assertRaisesRegex(CaptureError, "more questions"):
            self.explored(lambda ask: 0 * sum(ask() for _ in range(6)))

    def test_an_error_of_the_programs(self):
        def program(ask):
            if ask():
                raise Raised
            return 0

        seen, raising = self.explored(program)
        self.assertEqual([(False,)], seen)
        self.assertEqual(["x.py:1"], raising)


class Recordings(unittest.TestCase):
    """What becomes of a recording with other answers."""

    def answers(self, outcome):
        def record(answers):
            if isinstance(outcome, Overrun):
                raise outcome
            return outcome

        return check_answers("rank 0", side(False), record, lambda other: True)

    def test_an_error_of_the_programs_own_is_assumed_away(self):
        (assumed,) = self.answers(Failed("ValueError: diverged", own=True))
        self.assertEqual("not-raised", assumed.name)

    def test_any_other_error_ends_the_recording(self):
        """One that did not end, too: what the program does then is not known."""
        for outcome in (
            Failed("NotImplementedError: of a library"),
            CaptureError("not followed"),
            Overrun("did not end"),
            MissingMetadata("of another rank", 1),
        ):
            with self.subTest(outcome), self.assertRaisesRegex(CaptureError, "cannot be followed"):
                self.answers(outcome)


class Steps(unittest.TestCase):
    MESH = "tp=2"

    def loss(self, world, model):
        return model(world.input("x", (8, 6))).square().mean()

    def verified(self, use):
        def step(world):
            model = torch.nn.Linear(6, 4)
            loss = self.loss(world, model)
            loss.backward()
            use(world, model, loss)
            return loss

        return sp.verify(step, mesh=self.MESH)

    def test_the_best_loss(self):
        def use(world, model, loss):
            if loss.item() < 3 and bool(loss > 0):
                print("best so far")

        self.assertEqual("EQUIVALENT", self.verified(use).verdict)

    def test_a_step_that_depends_on_it(self):
        def use(world, model, loss):
            if 0 < loss.item() < 3 and not world.single:
                model.weight.grad *= 2

        report = self.verified(use)
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("This is the program for yes at", report.text)

    def test_a_number_that_is_returned(self):
        def step(world):
            model = torch.nn.Linear(6, 4)
            loss = self.loss(world, model)
            return {"loss": loss, "count": 2 if loss.item() > 3 else 1}

        report = sp.verify(step, mesh=self.MESH)
        self.assertEqual("EQUIVALENT", report.verdict)
        self.assertIn("Each of the 2 programs that the answers make was verified", report.text)

    def test_an_assertion(self):
        def use(world, model, loss):
            assert loss.item() < 1e6, "diverged"

        report = self.verified(use)
        self.assertEqual("CONDITIONAL", report.verdict)
        self.assertEqual(1, sum("does not raise an error" in a for a in report.assumptions))

    def test_an_error_of_the_recorders(self):
        """It is none that the program would have."""

        def use(world, model, loss):
            if loss.item() > 3 and not world.single:
                model.weight.grad[model.weight.grad.unique().long()] = 0

        with self.assertRaisesRegex(CaptureError, "cannot be followed"):
            self.verified(use)

    def test_numbers_that_are_drawn(self):
        def step(world):
            torch.manual_seed(3)
            x = world.input("x", (8, 6))
            if torch.rand(1) < 0.5:
                x = x.flip(0)
            at = int(torch.randint(0, 3, (1,)).item())
            rows = [int(i) for i in torch.randint(8, (3,))]
            return torch.nn.Linear(3, 2)(x[rows, at : at + 3]).square().mean()

        report = sp.verify(step, mesh=self.MESH)
        self.assertEqual("EQUIVALENT", report.verdict)
        self.assertTrue(any("drawn at" in a for a in report.assumptions))

    def test_a_seed_that_is_drawn(self):
        """As RandomSampler and accelerate draw it."""

        def step(world, kind):
            torch.manual_seed(3)
            seed = int(torch.empty((), dtype=kind).random_().item())
            limited = int(torch.empty(1, dtype=kind).random_(2, 5)[0])
            order = torch.randperm(8, generator=torch.Generator().manual_seed(seed + limited))
            return torch.nn.Linear(6, 2)(world.input("x", (8, 6))[order]).square().mean()

        for kind in (torch.int64, torch.int32, torch.uint8):
            with self.subTest(kind):
                report = sp.verify(lambda world, kind=kind: step(world, kind), mesh=self.MESH)
                self.assertEqual("EQUIVALENT", report.verdict, str(report))

    def test_ranks_that_decide_by_numbers_of_their_own(self):
        def step(world, seed):
            model = DDP(torch.nn.Linear(4, 2))
            torch.manual_seed(seed + world.rank if seed else 0)
            twice = torch.rand(1).item() < 2.0
            x = world.input("x", (4, 4), shard={"dp": 0})
            loss = model(x).square().mean()
            (loss if twice else 2 * loss).backward()

        for seed, verdict in ((0, "EQUIVALENT"), (16, "CONDITIONAL")):
            report = sp.verify(lambda w, seed=seed: step(w, seed), mesh={"dp": 2})
            self.assertEqual(verdict, report.verdict, str(report))
            self.assertEqual(seed > 0, "drawn-decisions" in str(report))

    def test_numbers_of_python_and_numpy(self):
        def step(world, draw, seed):
            model = DDP(torch.nn.Linear(4, 2))
            if seed:
                random.seed(0)
                numpy.random.seed(0)
            skipped = draw() > 2.0
            x = world.input("x", (4, 4), shard={"dp": 0})
            loss = model(x).square().mean()
            (2 * loss if skipped else loss).backward()

        for draw in (random.random, numpy.random.rand):
            for seed, verdict in ((True, "EQUIVALENT"), (False, "CONDITIONAL")):
                with self.subTest(draw=draw, seed=seed):
                    report = sp.verify(lambda w, d=draw, s=seed: step(w, d, s), mesh={"dp": 2})
                    self.assertEqual(verdict, report.verdict, str(report))
                    self.assertIn("python-random", str(report))

    def test_memory_that_was_written_since(self):
        """What was drawn there before decides nothing."""
        seen = []

        def step(world):
            x = torch.rand(2)
            x.data[0] = 7.0
            x.data[1] = 7.0
            seen.append(bool(x[0] > 2))
            return torch.nn.Linear(6, 4)(world.input("x", (8, 6))).mean()

        sp.verify(step, mesh=self.MESH)
        self.assertEqual({True}, set(seen))


if __name__ == "__main__":
    unittest.main()
