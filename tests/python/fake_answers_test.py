# SPDX-License-Identifier: Apache-2.0
"""Results of operators on fake tensors, of this process and of others."""

import unittest
from unittest import mock

import torch
from shardproof.torch.compat import fake_answers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class Recording(TorchDispatchMode):
    """As the recorder does: each operator by the answers."""

    def __init__(self):
        super().__init__()
        self.answers = fake_answers.Answers()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.answers(func, args, kwargs or {})


def run(rows=6):
    """Metadata of some results, whether one that is written in place is its operand, and which
    operators ran.
    """
    with FakeTensorMode() as mode:
        given = mode.from_tensor(torch.ones(rows, 4)), mode.from_tensor(torch.ones(5, 4))
        made = fake_answers.Answers._from_cache
        calls = []

        def from_cache(self, key, *rest):
            if key[0].namespace == "aten":
                calls.append(str(key[0]))
            return made(self, key, *rest)

        with mock.patch.object(fake_answers.Answers, "_from_cache", from_cache), Recording():
            x, w = given
            y = torch.relu(x @ w.T)
            values, places = y.topk(2, 1)
            found = [y, y.sum(0), y[1:].t(), values, places, x.add_(1), torch.full((3,), 2.0)]
        same = found[5] is x
    return [(t.shape, t.stride(), t.dtype, t.storage_offset()) for t in found], same, calls


class Answers(unittest.TestCase):
    def setUp(self):
        patches = (
            mock.patch.object(fake_answers, "_of_aten", {}),
            mock.patch.object(fake_answers, "_new", []),
        )
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)

    def test_serve_later_recordings(self):
        first, same, calls = run()
        self.assertTrue(same)
        self.assertIn("aten.mm.default", calls)
        again, same, calls = run()
        self.assertTrue(same)
        self.assertEqual(first, again)
        self.assertEqual([], calls)
        other, _, calls = run(7)
        self.assertNotEqual(first, other)
        self.assertIn("aten.mm.default", calls)

    def test_are_given_to_other_processes(self):
        first, _, _ = run()
        data = fake_answers.learned()
        with (
            mock.patch.object(fake_answers, "_of_aten", {}),
            mock.patch.object(fake_answers, "_new", []),
        ):
            fake_answers.learn(data)
            again, same, calls = run()
            self.assertEqual((first, True, []), (again, same, calls))
            nothing = fake_answers.learned()
        self.assertNotEqual(data, nothing)
        fake_answers.learn(nothing, pass_on=True)
        self.assertEqual(nothing, fake_answers.learned())

    def test_are_passed_on(self):
        run()
        data = fake_answers.learned()
        with (
            mock.patch.object(fake_answers, "_of_aten", {}),
            mock.patch.object(fake_answers, "_new", []),
        ):
            fake_answers.learn(data, pass_on=True)
            self.assertEqual(data, fake_answers.learned())

    def test_are_not_kept_without_end(self):
        with mock.patch.object(fake_answers, "_MOST", 3):
            for rows in range(6, 12):
                run(rows)
            self.assertLessEqual(len(fake_answers._of_aten), 3)
            fake_answers.learned()


if __name__ == "__main__":
    unittest.main()
