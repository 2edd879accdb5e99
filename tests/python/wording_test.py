# SPDX-License-Identifier: Apache-2.0
"""Reports use the names of the user's call.

The verdict's first paragraph, options of the command, warnings.
"""

import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from shardproof.report import Report
from shardproof.torch.session.wording import Wording, parameters
from torch import nn

MESH = {"dp": 2}
FILES = re.compile(r"/tmp|\.json")

# One of its optimizers never steps.
SCRIPT = """
import sys, warnings
import torch, torch.distributed as dist, torch.nn.functional as F
print("arguments", sys.argv[1:])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
idle = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(idle.parameters(), lr=0.1)
warnings.warn("the script's own")
idle(torch.ones(1, 2)).sum().backward()
for _ in range(20):
    x, y = torch.randn(8, 4)[rank::ranks], torch.randn(8, 3)[rank::ranks]
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
"""


def classified(world):
    """Equivalent if no label is ignored."""
    model = nn.Linear(4, 3)
    wrapped = model if world.single else nn.parallel.DistributedDataParallel(model)
    x, y = (
        world.input("x", (8, 4), shard={"dp": 0}),
        world.input("y", (8,), torch.int64, shard={"dp": 0}),
    )
    loss = F.cross_entropy(wrapped(x), y)
    loss.backward()
    return loss


def summed(world, factor=1):
    """Wrong, as the gradients are not divided."""
    model = nn.Linear(4, 3)
    loss = model(world.input("x", (8, 4), shard={"dp": 0})).square().mean() * factor
    loss.backward()
    for p in model.parameters():
        torch.distributed.all_reduce(p.grad)
    return loss


class Headline(unittest.TestCase):
    def head(self, *steps, mesh=MESH, **options):
        report = sp.verify(*steps, mesh=mesh, **options)
        return report.text.partition("\n\n")[0].rstrip("\n")

    def test_conditional(self):
        self.assertEqual(
            "CONDITIONAL: classified on mesh dp 2 computes what its single device computes (5 of "
            '5 outputs proved) if: labels-valid; to accept: accept=["labels-valid"]',
            self.head(classified),
        )

    def test_accepted(self):
        self.assertEqual(
            "EQUIVALENT: classified on mesh dp 2, tp 1 computes what its single device computes, "
            "for every input (5 of 5 outputs proved)",
            self.head(classified, mesh="dp=2,tp=1", accept=["labels-valid"]),
        )

    def test_not_equivalent(self):
        self.assertRegex(
            self.head(summed),
            r"^NOT EQUIVALENT: summed on mesh dp 2 does not compute what its single device "
            r"computes \(\d+ defects?, \d of 5 outputs proved\)$",
        )

    def test_two_functions(self):
        def reference(world):
            return classified(world)

        self.assertIn(
            " classified on mesh dp 2 computes what reference computes on a single device (",
            self.head(reference, classified),
        )

    def test_without_a_name(self):
        self.assertIn(
            " the step on mesh dp 2 does not compute",
            self.head(functools.partial(summed, factor=2)),
        )

    def test_other_forms(self):
        quiet = sp.verify(classified, mesh=MESH, arguments=["--quiet"])
        self.assertEqual(1, quiet.text.count("\n"))
        self.assertIn('to accept: accept=["labels-valid"]\n', quiet.text)
        coloured = self.head(classified, arguments=["--color", "always"])
        self.assertIn("\033[0m classified on mesh dp 2 computes", coloured)
        narrow = self.head(classified, arguments=["--width", "60"])
        self.assertLessEqual(max(map(len, narrow.split("\n"))), 60)
        self.assertEqual(self.head(classified), " ".join(narrow.split()))

    def test_files_that_are_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            prefix = pathlib.Path(folder) / "kept"
            head = self.head(classified, keep=prefix)
            self.assertIn(
                f"plan {prefix}.plan.json.gz computes what model {prefix}.model.json.gz computes",
                head,
            )
            self.assertIn('to accept: accept=["labels-valid"]', head)

    def test_names_the_source(self):
        self.assertEqual("classified", sp.verify(classified, mesh=MESH).raw["source"])

    def test_parameters(self):
        raw = {
            "assumptions": [
                {"name": name, "class": kind, "accepted": accepted}
                for name, kind, accepted in (
                    ("a", "risk", False),
                    ("a", "risk", False),
                    ("b", "risk", True),
                    ("c", "checkable", False),
                    ("d", "risk", False),
                )
            ],
            "not_compared": [
                {"what": 'the "x"', "allowed": False},
                {"what": "y", "allowed": False},
                {"what": "z", "allowed": True},
            ],
        }
        self.assertEqual(
            'accept=["a", "d"], allow_uncompared=["the \\"x\\"", "y"]', parameters(raw)
        )
        self.assertEqual(
            'accept=["a", "d"], allow_uncompared=["the \\"x\\"", ...]', parameters(raw, 3)
        )
        self.assertEqual('accept=["a", ...]', parameters(raw, 1))

    def test_undecided(self):
        text = (
            "UNDECIDED: whether plan /tmp/a b/step.plan.json.gz computes what model /tmp/a "
            "b/step.model.json.gz says could not be settled (0 of 1 output proved): to accept: "
            "no advice\n\nmore plan a computes what model b computes\n"
        )
        report = Report("UNDECIDED", "", 1, 0, [], text, {})
        Wording("train.py", "dp 2", "its single device computes", False, True).put(report)
        self.assertEqual(
            "UNDECIDED: whether train.py on mesh dp 2 computes what its single device computes "
            "could not be settled (0 of 1 output proved): to accept: no advice\n\n"
            "more plan a computes what model b computes\n",
            report.text,
        )


class Command(unittest.TestCase):
    def run_script(self, *arguments, text=SCRIPT, warnings="ignore"):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "train.py").write_text(text)
            command = [sys.executable, "-m", "shardproof.torch", *arguments]
            return subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                cwd=folder,
                env={**os.environ, "PYTHONWARNINGS": warnings},
            )

    def test_conditional(self):
        done = self.run_script("--mesh", "dp=2", "train.py")
        self.assertEqual(4, done.returncode, done.stdout + done.stderr)
        head = next(line for line in done.stdout.split("\n") if line.startswith("CONDITIONAL: "))
        self.assertTrue(
            head.startswith(
                "CONDITIONAL: train.py on mesh dp 2 computes what its single device computes ("
            ),
            head,
        )
        self.assertTrue(
            head.endswith("; to accept: --allow-uncompared 'the step of SGD of 2 parameters'"), head
        )
        self.assertNotRegex(done.stdout, FILES)

    def test_the_advice_is_right(self):
        done = self.run_script(
            "--mesh",
            "dp=2",
            "--allow-uncompared",
            "nothing",
            "--allow-uncompared",
            "the step of SGD of 2 parameters",
            "train.py",
        )
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_accepted(self):
        text = (
            SCRIPT.replace("torch.randn(8, 3)", "torch.randint(0, 3, (8,))")
            .replace("F.mse_loss(", "F.cross_entropy(")
            .replace("torch.manual_seed(0)\n", "")
            .replace("idle(", "0 and idle(")
            .replace("torch.randn(8, 4)[rank::ranks]", "torch.randn(8, 4)")
        )
        text = text.replace("torch.randint(0, 3, (8,))[rank::ranks]", "torch.randint(0, 3, (8,))")
        self.assertIn(
            self.run_script(
                "--mesh",
                "dp=2",
                "--accept",
                "labels-valid",
                "--accept=same-batch",
                "--allow-uncompared=*",
                "train.py",
                text=text,
            ).returncode,
            (0,),
        )

    def test_the_first_step(self):
        one = SCRIPT.replace("idle(", "0 and idle(").replace("other = ", "0 and ")
        for options, told in (
            ((), "only the first step of each optimizer was verified"),
            (("--steps", "2"), "only the first 2 steps of each optimizer were verified"),
        ):
            done = self.run_script(
                "--mesh",
                "dp=2",
                *options,
                "train.py",
                text=SCRIPT.replace("    optimizer.step()", "    optimizer.step(); other.step()"),
            )
            self.assertIn(
                f"Assumed (checkable): rest-of-script: {told}, with what the script then does to "
                "models, optimizers, and the copies of weights and printed numbers that are listed "
                "as compared, until it calls a model again at train.py:",
                done.stdout,
            )
            self.assertIn("nor what it does afterwards; --steps N verifies more\n", done.stdout)
        done = self.run_script("--mesh", "dp=2", "train.py", text=one)
        self.assertIn("only the first optimizer step was verified, with what", done.stdout)

    def test_arguments_of_the_script(self):
        given = ["-x", "--mesh", "tp=4", "--", "--help", "name", "--accept=a"]
        done = self.run_script("--mesh=dp=2", "train.py", *given)
        self.assertIn(f"arguments {given}\n", done.stdout, done.stderr)

    def test_options_after_the_script(self):
        """Where the mesh is not before it, options are what they are called wherever they stand."""
        done = self.run_script("train.py", "-x", "--steps", "1", "--lr=3", "--mesh", "dp=2", "name")
        self.assertIn("arguments ['-x', '--lr=3', 'name']\n", done.stdout, done.stderr)
        self.assertIn(" on mesh dp 2 ", done.stdout)

    def test_wrong_options(self):
        for arguments, told in (
            (["--strct", "--mesh", "dp=2", "train.py"], "unknown option --strct"),
            (["--mes", "dp=2", "train.py"], "unknown option --mes"),
            (["--mesh", "dp=2", "--lr", "0.1", "train.py"], "unknown option --lr"),
            (
                ["train.py"],
                "--mesh is missing, as in: python -m shardproof.torch --mesh dp=2 train.py",
            ),
            (["--mesh", "dp=2"], "the script is missing"),
            (["--mesh", "dp=2", "--steps", "0", "train.py"], "--steps: at least 1"),
            (
                ["--mesh", "dp=2", "--capture", "out", "--accept", "a", "train.py"],
                "with --capture there is none",
            ),
            (["--mesh", "dp2", "train.py"], "a mesh is written like dp=2"),
        ):
            with self.subTest(arguments=arguments):
                done = self.run_script(*arguments)
                self.assertEqual(2, done.returncode, done.stdout + done.stderr)
                self.assertIn(told, done.stderr)
                self.assertEqual("", done.stdout)

    def test_warnings(self):
        done = self.run_script("--mesh", "dp=2", "train.py", warnings="always")
        told = [line for line in done.stderr.split("\n") if "Warning" in line]
        self.assertTrue(told)  # one for each time that the script ran
        for line in told:
            self.assertIn("UserWarning: the script's own", line)


if __name__ == "__main__":
    unittest.main()
