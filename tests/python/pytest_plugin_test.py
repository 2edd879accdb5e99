# SPDX-License-Identifier: Apache-2.0
"""The fixture `assert_equivalent` and the marker `shardproof` of pytest."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

STEPS = """
import pytest, torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.shardproof(mesh={"dp": 2})


def step(world, wrong=False):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = world.input("x", (8, 4), shard={"dp": 0})
    (model if wrong else DistributedDataParallel(model))(x).square().mean().backward()
    optimizer.step()


def test_right(assert_equivalent):
    assert assert_equivalent(step).outputs > 0


@pytest.mark.shardproof(mesh="dp=4")
def test_nearest_marker(assert_equivalent):
    assert "dp 4" in assert_equivalent(step).text


def test_call_before_marker(assert_equivalent):
    assert "dp 8" in assert_equivalent(step, mesh="dp=8").text


def test_wrong(assert_equivalent):
    assert_equivalent(lambda world: step(world, wrong=True))
"""

WITHOUT_MESH = """
def test_step(assert_equivalent):
    assert_equivalent(lambda world: None)
"""


def run(text, *options):
    """The folder in which pytest ran a file with this text, and what it printed."""
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "test_steps.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "shardproof.pytest_plugin",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "--strict-markers", *options], cwd=folder, capture_output=True, text=True
    )
    return folder, done.stdout + done.stderr


class Plugin(unittest.TestCase):
    def test_verdicts_and_reports(self):
        folder, text = run(STEPS, "--shardproof-reports", "reports")
        self.assertIn("1 failed, 3 passed", text)
        self.assertIn("FAILED test_steps.py::test_wrong - AssertionError: NOT EQUIVALENT", text)
        self.assertNotIn("capture.py", text)  # no lines of this package around the report
        pages = sorted(p.name for p in (folder / "reports").glob("*.html"))
        self.assertEqual(len(pages), 4)
        report = json.loads((folder / "reports" / "test_steps.py_test_wrong.json").read_text())
        self.assertEqual(report["verdict"], "not-equivalent")

    def test_markers_select_tests(self):
        _, text = run(STEPS, "-m", "not shardproof")
        self.assertIn("4 deselected", text)

    def test_a_mesh_is_needed(self):
        _, text = run(WITHOUT_MESH)
        self.assertIn("assert_equivalent needs a mesh", text)


if __name__ == "__main__":
    unittest.main()
