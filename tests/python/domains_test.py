# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Values that may be NaN or infinite: masked scores, domains of functions, rows without keys."""

import math
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from recorder_steps import MESH, RecorderTest
from shardproof.torch.intercept.data_number import DataDependent


class Domains(RecorderTest):
    """Functions that have no value everywhere."""

    def test_domains_are_kept(self):
        other = {
            "root": lambda x: torch.sqrt(x) ** 2,
            "product": lambda x: torch.sqrt(x) * torch.sqrt(x),
            "power": lambda x: (x**0.5) * (x**0.5),
            "logarithm": lambda x: torch.exp(x - torch.log(x)) * x / torch.exp(x) * 1,
        }
        for name, f in other.items():
            with self.subTest(name):
                self.assertNotEqual("EQUIVALENT", self.of_x(lambda x: x * 1, f).verdict)
        self.assertNotEqual(
            "EQUIVALENT",
            self.of_x(
                lambda x: x.sum(-1).sqrt(),
                lambda x: torch.linalg.vector_norm(torch.sqrt(x), dim=-1),
            ).verdict,
        )
        self.assertEqual(
            "EQUIVALENT", self.of_x(lambda x: torch.sqrt(x * x) ** 2, lambda x: x * x).verdict
        )

    def test_a_choice_of_what_may_be_no_number(self):
        chosen, product = (
            lambda x: torch.where(x > 0, torch.log(x), 0.0),
            lambda x: torch.log(x) * (x > 0),
        )
        right = self.of_x(chosen, lambda x: torch.log(x).masked_fill(~(x > 0), 0.0))
        self.assertEqual(
            ("EQUIVALENT", []),
            (right.verdict, [a for a in right.assumptions if "both are numbers" in a]),
            str(right),
        )
        self.assertNotEqual("EQUIVALENT", self.of_x(chosen, product).verdict)
        self.assertNotEqual(
            "EQUIVALENT", self.of_x(chosen, lambda x: torch.where(x > 0, torch.log(x), 1.0)).verdict
        )
        running = self.of_x(lambda x: torch.log(x).cumsum(-1), lambda x: torch.log(x).cumsum(-1))
        self.assertTrue(
            any("both are numbers" in a for a in running.assumptions), running.assumptions
        )

    def test_zero_times_what_is_not_everywhere_a_number(self):
        shown = {
            "number": lambda o: 0 * torch.log(o).mean(),
            "product": lambda o: (torch.zeros(1, len(o)) @ torch.log(o)).sum(),
            "alpha": lambda o: torch.add(torch.zeros(()), torch.log(o).mean(), alpha=0),
        }
        for name, extra in {**shown, "activations": lambda o: 0 * o.sum()}.items():

            def step(world):
                model = torch.nn.Linear(8, 8)
                world.parameters(model)
                out = model(world.input("x", (4, 8), shard={"dp": 0}))
                return out.square().mean() + (0 if world.single else extra(out))

            with self.subTest(name):
                self.assertEqual(
                    "NOT EQUIVALENT" if name in shown else "EQUIVALENT",
                    sp.verify(step, mesh=MESH).verdict,
                )


class Infinities(RecorderTest):
    """Scores that a mask makes infinite, and what is asked of them."""

    def masked_scores(self, change, hidden=None):
        """Attention by hand; `change` does something to the ranks' masked scores."""

        def step(world):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x = world.input("x", (4, 6, 8), shard={"dp": 0})
            kept = torch.ones(6, 6).tril().bool() if hidden is None else hidden(world)
            scores = (model(x) @ x.transpose(-1, -2)).masked_fill(~kept, -math.inf)
            loss = F.mse_loss((scores if world.single else change(scores)).softmax(-1) @ x, x)
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            return loss

        return sp.verify(step, mesh=MESH)

    def test_whether_masked_scores_are_infinite(self):
        shown = {
            "isinf": lambda s: torch.where(torch.isinf(s), 0.0, s),
            "equal": lambda s: s.masked_fill(s == -math.inf, 0.0),
            "isneginf": lambda s: torch.where(torch.isneginf(s), 0.0, s),
            "above": lambda s: torch.where(s > -math.inf, s, 0.0),
            "isfinite": lambda s: torch.where(torch.isfinite(s), s, 0.0),
            "difference": lambda s: torch.where(torch.isnan(s - s), 0.0, s),
            "times 0": lambda s: torch.where(torch.isnan(s * 0), 0.0, s),
            "itself": lambda s: torch.where(s - s == s - s, s, 0.0),
            "nan_to_num": lambda s: torch.nan_to_num(s, neginf=0.0),
            "largest": lambda s: s if math.isfinite(s.sum().item()) else s * 0,
        }
        for name, change in shown.items():
            for hidden in (
                None,
                lambda world: (
                    (
                        world.input("kind", (4, 6), torch.long, shard={"dp": 0}, high=3)[:, None, :]
                        > 0
                    )
                    | torch.eye(6).bool()
                ),
            ):
                with (
                    self.subTest(name, by_data=hidden is not None),
                    self.assertRaises((sp.CaptureError, DataDependent)),
                ):
                    self.masked_scores(change, hidden)
        self.assertEqual("EQUIVALENT", self.masked_scores(lambda s: s).verdict)
        self.assertEqual(
            "EQUIVALENT",
            self.masked_scores(lambda s: torch.where(torch.isnan(s.softmax(-1)), 0.0, s)).verdict,
        )

    def test_whether_what_came_from_other_ranks_is_infinite(self):
        def step(world, masked, hidden=None):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x = world.input("x", (2, 8, 8), shard={"dp": 0})
            scores = model(x)
            if masked:
                scores = scores.masked_fill(
                    torch.ones(8, 8).triu(1).bool() if hidden is None else hidden(world), -math.inf
                )
            if not world.single:
                others = torch.empty_like(scores)
                (dist.send, dist.recv)[world.rank](
                    scores if world.rank == 0 else others, 1 - world.rank
                )
                if world.rank == 1 and torch.isinf(others).any():
                    scores = scores * 2
            return scores.softmax(-1).square().mean()

        sp.assert_equivalent(lambda world: step(world, False), mesh=MESH)
        with self.assertRaisesRegex(sp.CaptureError, "what came from other ranks"):
            sp.capture(lambda world: step(world, True), mesh=MESH)
        with self.assertRaisesRegex(sp.CaptureError, "what is sent cannot be followed"):
            sp.capture(
                lambda world: step(
                    world,
                    True,
                    lambda world: (
                        world.input("kind", (2, 8, 8), torch.long, shard={"dp": 0}, high=2) == 1
                    ),
                ),
                mesh=MESH,
            )

    def test_rows_of_which_all_are_masked(self):
        kept = torch.ones(4, 8).tril(-1).bool()  # of the first row nothing
        softmax = lambda x: x.masked_fill(~kept, -math.inf).softmax(-1)  # noqa: E731
        with self.assertRaisesRegex(sp.CaptureError, "masked scores"):
            self.of_x(lambda x: torch.nan_to_num(softmax(x)), softmax)


class NotNumbers(unittest.TestCase):
    """What is compared or multiplied needs a value, what is not taken needs none.

    NaN on the ranks where the single device has a number is a difference.
    """

    def verdict(self, single, ranks):
        def step(world):
            x, z = (world.input(name, (4, 3)) for name in "xz")
            i = world.input("i", (4, 1), torch.int64, high=3)
            world.output("y", (single if world.single else ranks)(x, z, i), mean=())

        report = sp.verify(step, mesh={"tp": 2})
        self.assertFalse([a for a in report.assumptions if "not-a-number" in a])
        return report.verdict

    def test_roots_that_are_compared(self):
        def itself(x, z, i):
            return z * 1

        for name, number in (
            ("root", torch.sqrt),
            ("power", lambda x: x**0.5),
            ("logarithm", lambda x: torch.log(1 + torch.sqrt(x))),
            ("mean", lambda x: torch.sqrt(x).mean(1, True)),
            ("reciprocal", torch.rsqrt),
        ):

            def compared(x, z, i, number=number):
                return torch.where(number(x) >= 0, z, 2 * z)

            with self.subTest(name):
                self.assertNotEqual("EQUIVALENT", self.verdict(itself, compared))
                self.assertEqual("EQUIVALENT", self.verdict(compared, compared))
        for name, number in (
            ("squares", lambda x: torch.sqrt(x * x)),
            (
                "positive",
                lambda x: torch.log(1 + F.relu(x)) / (1 + x.square()) + torch.rsqrt(1 + x.exp()),
            ),
        ):
            with self.subTest(name):
                self.assertEqual(
                    "EQUIVALENT",
                    self.verdict(
                        itself, lambda x, z, i, number=number: torch.where(number(x) < 0, 2 * z, z)
                    ),
                )

    def test_bounds_that_no_number_is_beyond(self):
        least, most = (getattr(torch.finfo(torch.float32), name) for name in ("min", "max"))

        def itself(x, z, i):
            return z * 1

        for name, expected, f in (
            ("clamp", "EQUIVALENT", lambda x, z, i: (z + x).clamp(least, most) - x),
            ("clamp to a number", "NOT EQUIVALENT", lambda x, z, i: z.clamp(min=-0.5) * 1),
            ("below", "EQUIVALENT", lambda x, z, i: torch.where(x < least, 2 * z, z)),
            ("at least", "EQUIVALENT", lambda x, z, i: torch.where(x.exp() >= least, z, 2 * z)),
            ("above", "EQUIVALENT", lambda x, z, i: torch.where(x > most, 2 * z, z)),
        ):
            with self.subTest(name):
                self.assertEqual(expected, self.verdict(itself, f))
        with self.subTest("a mask that is added twice overflows"):

            def masked(x, z, i):
                scores = torch.where(x > 0, x, least)
                return torch.where(scores + torch.where(z > 0, 0.0, least) >= least, z, 2 * z)

            self.assertNotEqual("EQUIVALENT", self.verdict(itself, masked))
        with self.subTest("not-a-number is not at least it"):
            root = self.verdict(itself, lambda x, z, i: torch.where(x.sqrt() >= least, z, 2 * z))
            self.assertNotEqual("EQUIVALENT", root)

    def test_what_is_not_taken(self):
        def logs(x):
            return torch.log(x)

        def multiplied(x, i):
            return (F.one_hot(i.squeeze(1), 3) * x).sum(1, keepdim=True)

        for name, taken in (
            ("gather", lambda x, i: x.gather(1, i)),
            ("index", lambda x, i: x[torch.arange(4), i.squeeze(1)][:, None]),
            ("nll", lambda x, i: -F.nll_loss(x, i.squeeze(1), reduction="none")[:, None]),
            ("several", lambda x, i: x.gather(1, i.expand(4, 2))[:, :1]),
        ):
            with self.subTest(name):
                self.assertEqual(
                    "EQUIVALENT",
                    self.verdict(
                        lambda x, z, i, taken=taken: taken(logs(x), i),
                        lambda x, z, i, taken=taken: taken(logs(x), i),
                    ),
                )
                self.assertNotEqual(
                    "EQUIVALENT",
                    self.verdict(
                        lambda x, z, i, taken=taken: taken(logs(x), i),
                        lambda x, z, i: multiplied(logs(x), i),
                    ),
                )
                self.assertEqual(
                    "EQUIVALENT",
                    self.verdict(
                        lambda x, z, i, taken=taken: taken(x * 2, i),
                        lambda x, z, i: multiplied(x * 2, i),
                    ),
                )


class RowsOfWhichNothingIsSeen(unittest.TestCase):
    """Attention's kernels give zeros for them, not nothing: what they give there is compared."""

    @staticmethod
    def attended(mask, other=0.0):
        def step(world):
            q, k, v = (
                world.input(n, (4, 2, 5, 8), shard={"dp": 0}).requires_grad_() for n in "qkv"
            )
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask(world))
            loss = (out + (0 if world.single else other) * torch.eye(5)[:, :1]).square().mean()
            loss.backward()
            world.output("grad", q.grad * (1 if world.single else 1 / world.size), shard={"dp": 0})
            return loss

        return step

    def test_by_constants(self):
        for mask in (
            lambda world: torch.ones(5, 5).tril(-1).bool(),
            lambda world: torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu().bool(), -math.inf),
        ):
            self.assertEqual(
                "EQUIVALENT",
                sp.verify(self.attended(mask), mesh=MESH, allow_uncompared=["*.grad"]).verdict,
            )
            self.assertEqual(
                "NOT EQUIVALENT", sp.verify(self.attended(mask, 1.0), mesh=MESH).verdict
            )

    def test_by_data_is_assumed_not_to_happen(self):
        report = sp.verify(
            self.attended(lambda world: world.input("seen", (5, 5)) > 0),
            mesh=MESH,
            allow_uncompared=["*.grad"],
        )
        self.assertEqual("EQUIVALENT", report.verdict)
        self.assertIn(
            "of scores that are masked by data each row has one that is seen", report.assumptions
        )


if __name__ == "__main__":
    unittest.main()
