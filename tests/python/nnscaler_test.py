# SPDX-License-Identifier: Apache-2.0
"""Pickled execution plans of nnScaler."""

import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

import nnscaler_stubs as stubs
import shardproof.nnscaler as sn
from shardproof.inert_pickle import Global, Inert, PickleError, read_pickle


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.single = self.write("single", stubs.single())

    def write(self, name, x):
        path = self.folder / f"{name}.pkl"
        path.write_bytes(x if isinstance(x, bytes) else stubs.dumped(x))
        return path

    def verify(self, x):
        return sn.verify(self.single, self.write("parallel", x))

    def refused(self, message, x):
        with self.assertRaisesRegex(sn.PlanError, message) as caught:
            self.verify(x)
        self.assertIn("parallel.pkl: ", str(caught.exception))

    def test_right(self):
        for replicas, microbatches in ((1, 1), (2, 1), (1, 2), (2, 2)):
            with self.subTest(replicas=replicas, microbatches=microbatches):
                report = self.verify(stubs.parallel(replicas=replicas, microbatches=microbatches))
                self.assertEqual("EQUIVALENT", report.verdict, report)
                self.assertEqual(3, report.outputs)
                self.assertEqual(2, len(report.assumptions))

    def test_live_plans(self):
        """They are pickled, and nothing else of them is used."""
        with stubs.importable():
            report = sn.verify(stubs.single(), stubs.parallel())
            self.assertEqual("EQUIVALENT", report.verdict, report)
            report = sn.verify(self.single, stubs.parallel("no-reducer"))
            self.assertEqual("NOT EQUIVALENT", report.verdict, report)
            with self.assertRaisesRegex(sn.PlanError, "the IRFullTensor: .* expected a ModuleCode"):
                sn.verify(self.single, stubs.made("IRFullTensor"))
        with self.assertRaisesRegex(sn.PlanError, "the function cannot be pickled"):
            sn.verify(self.single, lambda: None)

    def test_order(self):
        """By what runs, pieces are in the order of ranks."""
        for swapped, order, verdict in (
            (False, "runtime", "EQUIVALENT"),
            (False, "annotation", "CONDITIONAL"),
            (True, "runtime", "NOT EQUIVALENT"),
            (True, "annotation", "CONDITIONAL"),
        ):
            with self.subTest(swapped=swapped, order=order):
                path = self.write("parallel", stubs.gathered(swapped))
                report = sn.verify(self.single, path, order=order)
                self.assertEqual(verdict, report.verdict, report)
        with self.assertRaisesRegex(sn.PlanError, "order is 'other'"):
            sn.verify(self.single, path, order="other")

    def test_pipeline(self):
        report = self.verify(stubs.pipeline())
        self.assertEqual("EQUIVALENT", report.verdict, report)

    def test_wrong(self):
        for bug in ("no-reduction", "no-reducer", "weight-not-reduced", "reduced-over-parts"):
            with self.subTest(bug):
                self.assertEqual("NOT EQUIVALENT", self.verify(stubs.parallel(bug)).verdict)

    def test_wrong_group(self):
        """A gather in a group that is too small, and in one that is too large."""
        report = self.verify(stubs.gathered(False, lambda device: [device]))
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)
        self.refused(
            r"ranks are \[0, 1, 2\], the plan has 2 devices",
            stubs.gathered(False, lambda device: [0, 1, 2]),
        )

    def test_wrong_part(self):
        report = self.verify(stubs.parallel("parts-swapped"))
        self.assertEqual("NOT EQUIVALENT", report.verdict)

    def test_wrong_message(self):
        report = self.verify(stubs.pipeline("other-tensor-sent"))
        self.assertEqual("NOT EQUIVALENT", report.verdict)

    def test_command(self):
        parallel = self.write("parallel", stubs.parallel())
        prefix = self.folder / "written"
        command = [sys.executable, "-m", "shardproof.nnscaler"]
        done = subprocess.run(
            [*command, self.single, parallel, prefix], capture_output=True, text=True, check=False
        )
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("2 x 2 devices, 2 microbatches", done.stdout)
        self.assertTrue((self.folder / "written.plan.json").is_file())
        done = subprocess.run(
            [*command, self.single, __file__, prefix], capture_output=True, text=True, check=False
        )
        self.assertEqual(2, done.returncode)
        self.assertIn("no valid pickle", done.stderr)

    # ---- what is refused

    def test_unsupported(self):
        def changed(edit):
            x = stubs.parallel(replicas=1, microbatches=1)
            edit(x, x.execplan._seq[0][1]._cell._nodes)
            return x

        def name(x, nodes):
            nodes[1].name = "erfinv"

        def signature(x, nodes):
            nodes[1].signature = "model.relu"

        def keyword(x, nodes):
            nodes[0]._kwargs["bias"] = 1

        def unknown_keyword(x, nodes):
            nodes[1]._kwargs["slope"] = 0.1

        def number(x, nodes):
            nodes[1]._inputs.append(3)

        def primitive(x, nodes):
            nodes[3]._prims[0] = stubs.made("ChunkPrim", kwargs={}, _inputs=[], _outputs=[])

        def replicas(x, nodes):
            x.runtime_ndevs = 4

        def part(x, nodes):
            nodes[0]._inputs[1]._indmap._indices = ((0, 30), (0, 4))

        def attribute(x, nodes):
            nodes[0]._inputs[1]._full_tensor.name = "third.weight"

        def gradient(x, nodes):
            nodes[0]._mirror._outputs.append(nodes[2]._inputs[1]._grad)

        for edit, message in (
            (name, "operator erfinv .* is not supported"),
            (signature, "is model.relu, which is not supported"),
            (keyword, "bias is 1, supported is None"),
            (unknown_keyword, "keyword slope, which is not supported"),
            (number, "operand 1 is no tensor"),
            (primitive, "0 operands, 0 results"),
            (replicas, "it is not said that they are replicas"),
            (part, "is no part of"),
            (attribute, "the model has no attribute third.weight"),
            (gradient, "a gradient belongs to no operand"),
        ):
            with self.subTest(edit.__name__):
                self.refused(message, changed(edit))

    def test_batch(self):
        x = stubs.parallel(replicas=2, microbatches=1)
        x.runtime_ndevs = 2
        x.enable_dp = False
        self.refused("data of shape .* is not one of 1 parts", x)

    def test_no_plan(self):
        for x, message in (
            (b"", "no valid pickle|has no end"),
            (b"abc", "no valid pickle"),
            (pickle.dumps([1]), "the pickle is list"),
            (stubs.dumped(stubs.parallel())[:-5], "no valid pickle|has no end"),
            (stubs.dumped(stubs.made("IRObject")), "expected a ModuleCodeGen"),
            (stubs.dumped(stubs.made("ModuleCodeGen")), "ModuleCodeGen.devices is NoneType"),
        ):
            with self.subTest(message):
                self.refused(message, x)


class Caller:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Hostile(unittest.TestCase):
    def test_calls(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = os.path.join(folder, "was here")
            for function, *arguments in (
                (os.system, f"touch '{mark}'"),
                (eval, f"open({mark!r}, 'w')"),
                (exec, f"open({mark!r}, 'w')"),
                (subprocess.check_call, ["touch", mark]),
                (__import__, "os"),
                (os.makedirs, mark),
            ):
                for protocol in range(6):
                    data = pickle.dumps({"a": Caller(function, *arguments)}, protocol)
                    path = pathlib.Path(folder) / "plan.pkl"
                    path.write_bytes(data)
                    with (
                        self.subTest(function=function, protocol=protocol),
                        self.assertRaisesRegex(
                            sn.PlanError, r"plan.pkl: byte \d+: the pickle would call .* refused"
                        ),
                    ):
                        sn.verify(path, path)
                    self.assertFalse(os.path.exists(mark))

    def test_inert(self):
        """Also where a call is known, only its record is made."""
        found = read_pickle(pickle.dumps(Caller(os.makedirs, "/no/such")), lambda *_: True)
        self.assertIsInstance(found, Inert)
        self.assertEqual(
            (Global("os", "makedirs"), ("/no/such",)), (found.made_by, found.arguments)
        )

    def test_instructions(self):
        for data, message in (
            (b"(S'ls'\nios\nsystem\n.", "INST is not supported"),
            (b"(cos\nsystem\nS'ls'\no.", "OBJ is not supported"),
            (b"Pname\n.", "PERSID is not supported"),
            (b"\x80\x02\x82\x01.", "EXT1 is not supported"),
            (b"cos\nsystem\n(S'ls'\ntR.", "would call os.system"),
            (b"\x80\x02cos\nsystem\nS'ls'\n\x85\x81.", "would call os.system"),
            (b"]K\x01b.", "a state for list"),
            (b"K\x01K\x02s.", "no valid pickle"),
            (b"0.", "no valid pickle"),
            (b"j\x00\x00\x00\x00.", "no valid pickle"),
            (b"K\x01", "no end|no valid pickle"),
        ):
            with self.subTest(data), self.assertRaisesRegex(PickleError, message):
                read_pickle(data, lambda *_: False)

    def test_values(self):
        """Plain data of all protocols is what pickle makes of it."""
        x = [1, -(2**70), 1.5, "ä", b"b", None, True, (1, (2,), (3, 4, 5, 6)), {"a": [{}], 2: ()}]
        for protocol in range(6):
            # Protocols before 3 call a function for bytes.
            data = pickle.dumps(x[:4] + x[5:] if protocol < 3 else x, protocol)
            with self.subTest(protocol=protocol):
                self.assertEqual(pickle.loads(data), read_pickle(data, lambda *_: False))


if __name__ == "__main__":
    unittest.main()
