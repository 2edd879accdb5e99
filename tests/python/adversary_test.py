# SPDX-License-Identifier: Apache-2.0
"""Random training steps, right and wrong ones, whose truth numbers decide (adversary/).

An EQUIVALENT where numbers differ is a wrong verdict, and there must be none. A NOT EQUIVALENT
where no number differs is a false alarm. SHARDPROOF_ADVERSARY_STEPS: how many steps of each class.
"""

import os
import types
import unittest

import torch
from adversary import campaign
from adversary.steps import HEAD
from adversary.truth import Case, Judge, _leaf, _leaves
from shardproof.torch.distributed.mesh import Mesh

STEPS = int(os.environ.get("SHARDPROOF_ADVERSARY_STEPS", "24"))


class Judging(unittest.TestCase):
    """The judge itself: it has to tell what is right from what is wrong."""

    def same(self, wanted, *ranks):
        return _leaf(wanted, ranks, Mesh({"dp": 2})) < 1e-8

    def test_numbers(self):
        self.assertTrue(self.same(2.0, 2.0, 2.0))
        self.assertTrue(self.same(2.0, 1.0, 3.0))  # a mean of means
        self.assertFalse(self.same(2.0, 1.0, 1.0))
        self.assertFalse(self.same(4, 2, 6))
        self.assertFalse(self.same("a", "a", "b"))
        self.assertFalse(self.same(1.0, None, None))
        self.assertTrue(self.same(1.0, None, 1.0))
        self.assertFalse(self.same(None, 1.0, 1.0))

    def test_tensors(self):
        t = torch.arange(8.0).reshape(4, 2)
        self.assertTrue(self.same(t, t, t))
        self.assertTrue(self.same(t, t[:2], t[2:]))
        self.assertTrue(self.same(t, t[:, :1], t[:, 1:]))
        self.assertFalse(self.same(t, t[2:], t[:2]))
        self.assertFalse(self.same(t, t[:2], t[:2]))

    def test_objects(self):
        held = types.SimpleNamespace(a=1, b=[{"c": 2.0}])
        self.assertEqual(_leaves(held), [(".a", 1), (".b length", 1), (".b[0]['c']", 2.0)])
        self.assertEqual(_leaves(iter([1, 2])), [(" length", 2), ("[0]", 1), ("[1]", 2)])

    def test_steps(self):
        body = """
def step(world):
    m = [nn.Parameter(torch.ones(4, 4)) for _ in range(2)]
    watch("a", m[0])
    watch("b", m[1])
    x = world.input("x", (8, 4), shard={"dp": 0})
    loss = (torch.tanh(x @ m[ORDER]) @ m[1]).pow(2).mean()
    loss.backward()
    for p in m:
        dist.all_reduce(p.grad, op=dist.ReduceOp.OPERATOR)
    AFTER
    return loss
"""
        stuck = "if world.rank == 1:\n        dist.barrier()"
        truths = {}
        with Judge() as judge:
            for order, operator, after in (
                ("0", "AVG", "pass"),
                ("0", "SUM", "pass"),
                ("0 if world.single else 1", "AVG", "pass"),
                ("0", "AVG", stuck),
            ):
                source = HEAD + body.replace("ORDER", order).replace("OPERATOR", operator).replace(
                    "AFTER", after
                )
                truths[order, operator, after] = judge.truth(
                    Case("test", 0, source, {"dp": 2})
                ).same
        self.assertEqual(list(truths.values()), [True, False, False, False], truths)


class Verdicts(unittest.TestCase):
    """Each class of steps."""

    def of(self, kind):
        results = campaign.run([campaign.case(kind, seed) for seed in range(STEPS)])
        text = "\n".join(campaign.table(results))
        print(f"\n{text}", flush=True)
        wrong = [r for r in results if r.wrong]
        for r in [*wrong, *(r for r in results if r.alarm or r.failure)]:
            print(
                f"{r.case.name} ({r.case.note}): {r.truth}, {r.verdict}: {r.why}\n{r.case.source}",
                flush=True,
            )
        self.assertEqual([r.case.name for r in wrong], [], "EQUIVALENT, and numbers differ")
        self.assertEqual([r.case.name for r in results if r.failure], [])
        self.assertEqual(
            [r.case.name for r in results if r.alarm], [], "NOT EQUIVALENT, and no number differs"
        )
        # Both kinds are there, and most of them get a verdict.
        self.assertGreater(sum(r.truth.same is True for r in results), STEPS // 10)
        self.assertGreater(sum(r.truth.same is False for r in results), STEPS // 10)


for _kind in campaign.CLASSES:
    setattr(Verdicts, f"test_{_kind}", lambda self, kind=_kind: self.of(kind))


if __name__ == "__main__":
    unittest.main()
