# SPDX-License-Identifier: Apache-2.0
"""What is done with versions of PyTorch that shardproof is not tested with."""

import unittest
import warnings
from unittest import mock

import shardproof.torch as sp
import torch
from shardproof.torch.compat import private
from shardproof.torch.session import self_test


def verdict_of(step, mesh):
    return sp.verify(step, mesh=mesh, arguments=self_test.QUICK, numbers=False).verdict


def step(world):
    return torch.nn.Linear(2, 2)(world.input("x", (2, 2))).sum()


class Steps(unittest.TestCase):
    def test_all_have_their_verdict(self):
        self.assertEqual([], self_test.failures(verdict_of))

    def test_a_verdict_that_is_none_of_theirs(self):
        found = self_test.failures(lambda step, mesh: "EQUIVALENT")
        self.assertEqual(len(self_test.STEPS), len(found))
        self.assertIn("data parallelism, a wrong step: EQUIVALENT", found)

    def test_an_error(self):
        def fails(step, mesh):
            raise ValueError("moved\nelsewhere")

        found = self_test.failures(fails)
        self.assertEqual(2 * len(self_test.STEPS), len(found))
        self.assertEqual("data parallelism: ValueError: moved", found[0])


class AnotherVersion(unittest.TestCase):
    def setUp(self):
        patched = mock.patch.object(private, "TESTED", ("1.0",))
        patched.start()
        self.addCleanup(patched.stop)
        self.addCleanup(private.accept, False)

    def test_that_passes(self):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            report = sp.verify(step, mesh={"tp": 2})
            sp.verify(step, mesh={"tp": 2})
        self.assertEqual("EQUIVALENT", report.verdict)
        texts = [str(w.message) for w in warned if "self-test" in str(w.message)]
        self.assertEqual(1, len(texts))
        self.assertIn(f"this is torch {torch.__version__}", texts[0])

    def test_that_fails(self):
        broken = mock.patch.object(
            self_test, "STEPS", (self_test.Known("broken", {"dp": 2}, lambda world, wrong: 1 / 0),)
        )
        with broken, self.assertRaisesRegex(private.VersionError, "2 of 2 steps.*broken: "):
            sp.verify(step, mesh={"tp": 2})
        self.assertFalse(private.is_known())


if __name__ == "__main__":
    unittest.main()
