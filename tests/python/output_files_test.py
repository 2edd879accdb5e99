# SPDX-License-Identifier: Apache-2.0
"""The files that a report is written to: those of the run that the report is about."""

import json
import pathlib
import tempfile
import unittest
from xml.etree import ElementTree

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from command import run_command
from recorder_steps import MESH
from shardproof.program import ProgramError

SCRIPT = """
import torch, torch.distributed as dist, torch.nn.functional as F
dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
torch.manual_seed(dist.get_rank())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8 // world, 8), torch.randn(8 // world, 4)
loss = F.mse_loss(model(x), y)
loss.backward()
for p in model.parameters():
    dist.all_reduce(p.grad)
    p.grad /= WORLD
optimizer.step()
"""


def ignored(world):
    """Right where all labels count: verified twice."""
    model = torch.nn.Linear(4, 3)
    x = world.input("x", (8, 4), shard={"dp": 0})
    y = world.input("y", (8,), torch.int64, shard={"dp": 0})
    loss = F.cross_entropy(torch.nn.parallel.DistributedDataParallel(model)(x), y)
    loss.backward()
    return loss


def early(world):
    """Reads before its reduction is over: refuted without a run of `shardproof verify`."""
    model = torch.nn.Linear(4, 3)
    loss = model(world.input("x", (8, 4), shard={"dp": 0})).square().mean()
    if not world.single:
        torch.distributed.all_reduce(loss, async_op=True)
        loss = loss / 2
    return loss


class OutputFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_of_a_script(self):
        script = self.folder / "train.py"
        for factor, verdict, failures in (("world", "equivalent", 0), ("1", "not-equivalent", 4)):
            script.write_text(SCRIPT.replace("WORLD", factor))
            files = {o: self.folder / f"report{o}" for o in ("json", "html", "junit", "sarif")}
            options = [a for o, f in files.items() for a in (f"--{o}", str(f))]
            done = run_command("--mesh", "dp=2", *options, "--explain-parameters", str(script))
            self.assertIn(" at train.py:13", done.stdout.partition("Gradients of parameters")[2])
            report = json.loads(files["json"].read_text())
            self.assertEqual(report["verdict"], verdict)
            self.assertEqual(report["exit_code"], done.returncode)
            self.assertIn(f'failures="{failures}"', files["junit"].read_text())
            self.assertIn(str(script), files["junit"].read_text())
            self.assertEqual(
                bool(failures), bool(json.loads(files["sarif"].read_text())["runs"][0]["results"])
            )
            self.assertIn("<html", files["html"].read_text())

    def test_the_run_that_the_report_is_about(self):
        file = self.folder / "junit.xml"
        report = sp.verify(ignored, mesh=MESH, arguments=["--junit", str(file)])
        self.assertEqual(report.verdict, "CONDITIONAL")
        self.assertIn("labels-valid", file.read_text())

    def test_a_verdict_of_no_run(self):
        files = {o: self.folder / f"report.{o}" for o in ("json", "junit", "sarif", "html")}
        arguments = [word for o, file in files.items() for word in (f"--{o}", str(file))]
        report = sp.verify(early, mesh=MESH, arguments=arguments)
        self.assertEqual(report.verdict, "NOT EQUIVALENT")
        self.assertEqual(json.loads(files["json"].read_text())["verdict"], "not-equivalent")
        suite = ElementTree.parse(files["junit"]).getroot().find("testsuite")
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("1", "1"))
        self.assertIn(report.reason, suite.find("testcase/failure").text)
        (result,) = json.loads(files["sarif"].read_text())["runs"][0]["results"]
        self.assertEqual((result["ruleId"], result["level"]), ("async", "error"))
        where = result["locations"][0]["physicalLocation"]
        self.assertTrue(where["artifactLocation"]["uri"].endswith("output_files_test.py"))
        self.assertGreater(where["region"]["startLine"], 1)
        self.assertIn("NOT EQUIVALENT", files["html"].read_text())

    def test_no_output_overwrites_the_script(self):
        script = self.folder / "train.py"
        script.write_text(SCRIPT.replace("WORLD", "world"))
        done = run_command("--mesh", "dp=2", "--html", str(script), str(script))
        self.assertEqual(done.returncode, 2)
        self.assertIn("is the script: name another file", done.stderr)
        self.assertIn("import torch", script.read_text())
        with self.assertRaisesRegex(ProgramError, "there is no directory"):
            sp.verify(ignored, mesh=MESH, arguments=["--json", str(self.folder / "no" / "x.json")])


if __name__ == "__main__":
    unittest.main()
