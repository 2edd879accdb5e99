# SPDX-License-Identifier: Apache-2.0
"""Replacing functions in all modules, and what makes that fast in a forked process."""

import functools
import os
import sys
import types
import unittest
from unittest import mock

import torch
from shardproof.torch.compat import private
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.trace.record import record


def original():
    return "original"


def module_with(name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    return module


class WithoutGPUs(unittest.TestCase):
    """PyTorch as PyPI has it is built for GPUs, and a fake mode would tell autograd that there are
    eight: it would start threads, and no forked process could differentiate."""

    def test_no_stand_in_for_them(self):
        def step(world):
            torch.nn.Linear(2, 2)(world.input("x", (2, 2))).sum().backward()

        with mock.patch.object(torch._C, "_ensureCUDADeviceGuardSet") as asked:
            record(step, Mesh({"dp": 1}), 0)
            asked.assert_not_called()
            with torch._subclasses.FakeTensorMode():
                pass
            asked.assert_called()  # so that it is known when PyTorch asks otherwise

    def test_those_that_are_there_are_hidden_from_forked_processes(self):
        pid = os.fork()
        if pid == 0:
            before = os.environ.get("CUDA_VISIBLE_DEVICES")
            private.hide_gpus()
            same = before == os.environ.get("CUDA_VISIBLE_DEVICES")
            os._exit(0 if same else 1)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        for drivers, expected in (((__file__,), True), (("/missing",), False)):
            with (
                mock.patch.object(torch.version, "cuda", "13.0"),
                mock.patch.object(private, "_DRIVERS", drivers),
            ):
                self.assertEqual(expected, private.may_have_gpus())

    def test_forked_processes_differentiate(self):
        self.assertTrue(private.can_differentiate())
        pid = os.fork()
        if pid == 0:
            os._exit(0 if private.can_differentiate() else 1)
        self.assertEqual(0, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


class Replacing(unittest.TestCase):
    def setUp(self):
        self.names = []
        self.addCleanup(lambda: [sys.modules.pop(n, None) for n in self.names])

    def load(self, name, **contents):
        module = module_with(name, **contents)
        sys.modules[name] = module
        self.names.append(name)
        return module

    def test_a_replacement_is_replaced_in_its_turn(self):
        here = sys.modules[__name__]
        early = self.load("shardproof_test_early", called=original)
        with private.changes() as undo:

            def first():
                return "first"

            private.replace_everywhere([(original, first)], undo)
            self.assertEqual(("first", "first"), (early.called(), here.original()))
            late = self.load("shardproof_test_late", called=first)  # as `from ... import` would
            with private.changes() as inner:
                private.replace_everywhere([(first, lambda: "second")], inner)
                self.assertEqual(["second"] * 3, [early.called(), late.called(), here.original()])
            self.assertEqual(["first"] * 3, [early.called(), late.called(), here.original()])
        self.assertEqual(("original", "original"), (early.called(), here.original()))

    def test_a_function_that_was_there_before_is_looked_for(self):
        """Only one made for the purpose is known to be nowhere else."""
        kept = self.load("shardproof_test_kept", other=private.unfaked, called=original)
        with private.changes() as undo:
            private.replace_everywhere([(original, private.unfaked)], undo)
            private.replace_everywhere([(private.unfaked, lambda: "third")], undo)
            self.assertEqual(("third", "third"), (kept.other(), kept.called()))
        self.assertIs(original, kept.called)

    def test_a_module_in_the_place_of_another_one(self):
        self.load("shardproof_test_one", called=original)
        with private.changes() as undo:
            private.replace_everywhere([(original, lambda: "once")], undo)
        del sys.modules["shardproof_test_one"]
        other = self.load("shardproof_test_two", called=original)
        with private.changes() as undo:
            private.replace_everywhere([(original, lambda: "twice")], undo)
            self.assertEqual("twice", other.called())


class Results(unittest.TestCase):
    def test_results_of_modules_that_come_later(self):
        calls = []

        def cached(name):
            @functools.lru_cache
            def f():
                calls.append(name)

            return f

        for name in ("shardproof_tests_one", "shardproof_tests_two"):
            f = cached(name)
            sys.modules[name] = module_with(name, f=f)
            self.addCleanup(sys.modules.pop, name)
            for _ in range(2):  # the second time no module is new
                private.forget_results()
                f()
                f()
        self.assertEqual(["shardproof_tests_one"] * 2 + ["shardproof_tests_two"] * 2, calls)


if __name__ == "__main__":
    unittest.main()
