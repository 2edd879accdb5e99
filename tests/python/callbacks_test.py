# SPDX-License-Identifier: Apache-2.0
"""A script that verifies itself before its first step (`shardproof.torch.callbacks`)."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from shardproof.torch.callbacks import NotVerified, this_run, verify_this_run
from shardproof.torch.compat.private import RECORDING

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from shardproof.torch.callbacks import verify_this_run

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
verify_this_run(mesh="dp=2")
for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).square()
    (loss.sum() if "wrong" in sys.argv else loss.mean()).backward()
    optimizer.step()
print("trained on rank", dist.get_rank())
"""


def run(*arguments):
    """The script, as two processes by torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "train.py"
        path.write_text(SCRIPT)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return subprocess.run(
            [*launcher, "--nproc-per-node=2", str(path), *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
        )


class ThisRun(unittest.TestCase):
    def test_goes_on_if_it_is_equivalent(self):
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("trained on rank"), 2)
        self.assertEqual(done.stderr.count("EQUIVALENT: "), 1, done.stderr)

    def test_is_stopped_on_all_ranks_if_it_is_not(self):
        done = run("wrong")
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("trained on rank", done.stdout)
        self.assertIn("this run is stopped before its first step", done.stderr)
        self.assertIn("Likely mistake: the loss at train.py:17 is a sum", done.stderr)

    def test_does_nothing_while_the_script_is_recorded(self):
        with (
            mock.patch.dict(os.environ, {RECORDING: "1"}),
            mock.patch.object(this_run, "_verified") as verified,
        ):
            self.assertEqual(verify_this_run(mesh="dp=2"), "")
        verified.assert_not_called()

    def test_other_verdicts_warn_or_stop(self):
        with mock.patch.object(this_run, "_verified", return_value=("CONDITIONAL", "if padding")):
            with self.assertWarnsRegex(UserWarning, "if padding"):
                self.assertEqual(verify_this_run(mesh="dp=2"), "CONDITIONAL")
            with self.assertRaises(NotVerified):
                verify_this_run(mesh="dp=2", stop_on=("NOT EQUIVALENT", "CONDITIONAL"))

    def test_the_mesh_is_that_of_the_run(self):
        with (
            mock.patch.object(this_run.dist, "is_initialized", return_value=True),
            mock.patch.object(this_run.dist, "get_world_size", return_value=3),
            self.assertRaisesRegex(ValueError, "has 2 ranks, this run 3"),
        ):
            verify_this_run(mesh="dp=2")

    def test_a_script_that_takes_too_long_is_no_verdict(self):
        with mock.patch.object(sys.modules["__main__"], "__file__", __file__):
            verdict, text = this_run._verified({"dp": 2}, [], 0.01)
        self.assertEqual(verdict, this_run.ERROR)
        self.assertIn("was not verified within", text)


if __name__ == "__main__":
    unittest.main()
