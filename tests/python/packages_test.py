# SPDX-License-Identifier: Apache-2.0
"""Code from PyPI, unmodified, right and with a wrong edit.

The steps are in examples/torch/packages/, whole scripts in tests/whole_scripts/packages/.
What is not installed is skipped.
"""

import importlib
import pathlib
import sys
import unittest

import shardproof.torch as sp
from script_cases import SCRIPTS, check_scripts

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples" / "torch" / "packages"


class Packages(unittest.TestCase):
    def check(self, name):
        sys.path.insert(0, str(FOLDER))
        try:
            module = importlib.import_module(name)
        except ImportError as e:
            self.skipTest(f"{name}: {e}")
        finally:
            sys.path.remove(str(FOLDER))
        for case, (step, mesh, expected, *options) in module.CASES.items():
            with self.subTest(case):
                report = sp.verify(
                    *(step if isinstance(step, tuple) else (step,)),
                    mesh=mesh,
                    arguments=["--stage-timeout", "20", "--confirm", "off"],
                    **(options[0] if options else {}),
                )
                self.assertEqual(expected, report.verdict, str(report))

    def test_each(self):
        for name in sorted(p.stem for p in FOLDER.glob("*.py")):
            with self.subTest(name):
                self.check(name)

    def test_whole_scripts(self):
        check_scripts(self, SCRIPTS / "packages")


if __name__ == "__main__":
    unittest.main()
