# SPDX-License-Identifier: Apache-2.0
"""Whole scripts as people write them, by `python -m shardproof.torch`: `tests/whole_scripts/`.

Each states its mesh, the verdict that is true of it, and an assignment that makes it wrong when it
stands in the place of the script's own.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import torch
from script_cases import SCRIPTS, check_scripts, run
from shardproof.torch import CaptureError
from shardproof.torch.session import capture
from shardproof.torch.session.script import script_step

# Right: each rank takes the mean over samples of its own.
DATA_PARALLEL = """
dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(1 + dist.get_rank())
x = torch.randn(4, 2)
model(x).square().mean().backward()
optimizer.step()
"""


def run_text(text, mesh="dp=2", *options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "train.py"
        path.write_text("import torch, torch.distributed as dist\n" + text)
        return run(str(path), mesh, *options)


def verified(text, mesh="dp=2", **modules):
    """The report on a script, which is recorded in this process. modules: what it can import."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "train.py"
        for name, code in modules.items():
            (path.parent / f"{name}.py").write_text(code)
        path.write_text("import torch, torch.distributed as dist\n" + text)
        return capture.verify(script_step(str(path), [], quiet=True), mesh=mesh)


class WholeScripts(unittest.TestCase):
    def test_all_have_their_verdict(self):
        check_scripts(self, SCRIPTS)


class Tutorials(unittest.TestCase):
    """Scripts that do what PyTorch's official tutorials on distributed training do."""

    def test_all_have_their_verdict(self):
        check_scripts(self, SCRIPTS / "tutorials")


class Files(unittest.TestCase):
    def test_a_data_set_that_is_loaded(self):
        text = """
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
loaded = torch.load(PATH, map_location="cuda:0")
data = TensorDataset(loaded["x"], loaded["y"])
model = DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(data, 2, sampler=DistributedSampler(data)):
    ((model(x) - y).square().SUM()).backward()
    optimizer.step()
"""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "data.pt"
            torch.save({"x": torch.randn(16, 3), "y": torch.randn(16, 2)}, path)
            text = text.replace("PATH", repr(str(path)))
            right = run_text(text.replace("SUM", "mean"))
            self.assertEqual(0, right.returncode, right.stdout + right.stderr)
            wrong = run_text(text.replace("SUM", "sum"))
            self.assertEqual(10, wrong.returncode, wrong.stdout + wrong.stderr)


class FilesOfOtherRanks(unittest.TestCase):
    """Rank 0 saves what it begins with, and the others load it."""

    TEXT = """
import os, pathlib
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randn(16, 2))
torch.manual_seed(rank)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters(), 0.1)
begin = pathlib.Path("of_the_first.pt")
if rank == 0:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "new.pt")
    os.replace("new.pt", begin)
dist.barrier()
if rank != 0 and begin.exists():
    loaded = torch.load(begin, map_location=f"cuda:{rank}")
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
for x, y in DataLoader(data, 2, sampler=DistributedSampler(data)):
    (model(x) - y).square().mean().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
    optimizer.step()
    if rank == 0:
        torch.save(model.state_dict(), "last.pt")
        os.remove("last.pt")
"""

    def test_are_what_it_saved(self):
        report = verified(self.TEXT)
        self.assertEqual("EQUIVALENT", report.verdict, report)

    def test_that_are_removed(self):
        report = verified(
            self.TEXT.replace(
                "dist.barrier()", "dist.barrier()\nif rank == 0: begin.unlink()\ndist.barrier()"
            )
        )
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)
        self.assertIn("ranks 0 and 1 begin with different values of weight", report.text)

    def test_that_are_changed(self):
        changed = self.TEXT.replace(
            "    model.load", "    loaded['model']['weight'] *= 2\n    model.load"
        )
        report = verified(changed)
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)
        self.assertIn("ranks 0 and 1 begin with different values of weight", report.text)

    def test_that_a_rank_computes_with(self):
        with self.assertRaisesRegex(CaptureError, "computes with what rank 0 saved in of_the_fir"):
            verified(
                self.TEXT.replace(
                    "(model(x) - y)", "(model(x) - y - loaded['model']['bias'])"
                ).replace("dist.barrier()", "loaded = {'model': {'bias': 0}}\ndist.barrier()")
            )

    def test_without_a_barrier(self):
        with self.assertRaisesRegex(CaptureError, "no barrier is between"):
            verified(self.TEXT.replace("dist.barrier()", "").replace(" and begin.exists()", ""))


class MixedSamples(unittest.TestCase):
    """Mixup: each rank mixes its own samples with a random permutation of them."""

    TEXT = """
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randint(0, 4, (16,)))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
torch.manual_seed(dist.get_rank())
for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
    order = torch.randperm(len(x))
    out = model(0.7 * x + 0.3 * x[order])
    (0.7 * F.cross_entropy(out, y) + 0.3 * F.cross_entropy(out, y[order])).backward()
    optimizer.step()
"""

    def test_if_each_rank_has_its_own_permutation(self):
        report = verified(self.TEXT)
        self.assertEqual("CONDITIONAL", report.verdict, report)
        self.assertIn("if: permuted-parts; to accept", report.text.replace("\n", " "))

    def test_other_labels(self):
        of_ranks = "y[order] if dist.get_world_size() == 1 else y"
        report = verified(self.TEXT.replace("y[order]", of_ranks))
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)


class ScalersOfGPUs(unittest.TestCase):
    def test_a_loss_that_is_not_scaled(self):
        text = DATA_PARALLEL.replace(
            "optimizer.step()", "scaler.step(optimizer)\nscaler.update()"
        ).replace("model(x)", "scaler = torch.amp.GradScaler('cuda')\nmodel(x)")
        scaled = text.replace("model(x).square().mean()", "scaler.scale(model(x).square().mean())")
        self.assertEqual(verified(scaled).verdict, "EQUIVALENT")
        on_ranks = scaled.replace(
            "scaler.scale(model(x)",
            "(lambda l: scaler.scale(l) if world == 1 else (scaler.scale(l.detach()), l)[1])"
            "(model(x)",
        )
        self.assertEqual(verified(on_ranks).verdict, "NOT EQUIVALENT")


class OverlappingSeeds(unittest.TestCase):
    def test_samples_of_another_microbatch(self):
        report = verified(
            "dist.init_process_group('gloo')\n"
            "torch.manual_seed(0)\n"
            "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "for micro in range(2):\n"
            "    torch.manual_seed(100 + micro + dist.get_rank())\n"
            "    (model(torch.randn(4, 2)).square().mean() / 2).backward()\n"
            "optimizer.step()\n"
        )
        self.assertEqual(report.verdict, "CONDITIONAL")
        self.assertIn("same-seed", report.text)


class OwnSamples(unittest.TestCase):
    def test_minibatches_of_samples_that_ranks_draw_themselves(self):
        with self.assertRaisesRegex(CaptureError, "permute samples that each has drawn itself"):
            verified(
                "dist.init_process_group('gloo')\n"
                "torch.manual_seed(0)\n"
                "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
                "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
                "torch.manual_seed(1 + dist.get_rank())\n"
                "x, order = torch.randn(8, 2), torch.randperm(8)\n"
                "model(x[order[:4]]).square().mean().backward()\n"
                "optimizer.step()\n"
            )


class PlainNumbers(unittest.TestCase):
    """`float(x)` and `int(x)` of tensors, in a script and in a module of its own."""

    TEXT = """
import metrics_of_it
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randint(0, 4, (16,)))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
total, correct = 0.0, int("0")
for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    total += float(loss)
    correct += metrics_of_it.right(out, y)
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    print(total, correct / len(y), int(total), float(mean))
"""
    MODULE = "def right(out, y): return int((out.argmax(1) == y).sum())\n"

    def test_are_printed_and_added_up(self):
        report = verified(self.TEXT, metrics_of_it=self.MODULE)
        self.assertEqual("EQUIVALENT", report.verdict, report)
        self.assertIn("1 printed number", report.text)
        report = verified(self.TEXT.replace("AVG", "SUM"), metrics_of_it=self.MODULE)
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)

    def test_decide_something(self):
        text = self.TEXT.replace("    loss.backward()", "    (loss * (correct > 2)).backward()")
        report = verified(text, metrics_of_it=self.MODULE)  # each rank by a number of its own
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)
        self.assertIn("the number that decides at", report.text)


class LikelyMistakes(unittest.TestCase):
    """The first sentence of the report on a wrong script."""

    TEXT = """
import contextlib
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 3), torch.randn(32, 2))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
mine = list(range(rank, 32, world))
size = SIZE
batches = [mine[i:i + size] for i in range(0, len(mine), size)]
for i, (x, y) in enumerate(DataLoader(data, batch_sampler=batches)):
    with SYNCHRONISED:
        ((model(x) - y).square().mean(1).LOSS / 2).backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
"""

    def sentence(self, size="4", synchronised="contextlib.nullcontext()", loss="mean()"):
        text = self.TEXT.replace("SIZE", size).replace("LOSS", loss)
        report = verified(text.replace("SYNCHRONISED", synchronised))
        if report.verdict != "NOT EQUIVALENT":
            self.assertNotIn("Likely mistake", report.text)
            return report.verdict
        return " ".join(report.text.split("\n\n")[1].split())

    def test_batches_of_different_sizes(self):
        self.assertRegex(
            self.sentence("4 if rank == 0 else 2"),
            r"Likely mistake: ranks read batches of 4 and 2 samples from the DataLoader at "
            r"train.py:14, and each takes the mean of its own \(at train.py:16\): the mean of "
            r"these means is not the mean of all 6\.",
        )

    def test_microbatches_that_are_not_synchronised(self):
        no_sync = "contextlib.nullcontext() if i % 2 {} else model.no_sync()"
        self.assertEqual(self.sentence(synchronised=no_sync.format("")), "EQUIVALENT")
        self.assertRegex(
            self.sentence(synchronised=no_sync.format("== 0")),
            r"Likely mistake: the last backward before the optimizer's step \(at train.py:16\) "
            r"runs without gradient synchronisation \(no_sync, or require_backward_grad_sync = "
            r"False\), so that each rank steps by the gradients of its own samples along dp\.",
        )

    def test_a_summed_loss_of_microbatches(self):
        self.assertRegex(
            self.sentence(loss="sum()"),
            r"Likely mistake: the loss at train.py:16 is a sum over samples, and the gradients are "
            r"averaged over dp: they are 1/2 times what they are on the single device",
        )


class IdleOptimizer(unittest.TestCase):
    """One optimizer never steps, so that all of the loop is recorded, up to the loader's end."""

    TEXT = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randn(16, 2))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
idle = torch.optim.SGD(torch.nn.Linear(3, 2).parameters(), 0.1)
for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    (model(x) - y).square().REDUCED().backward()
    optimizer.step()
"""

    def test_the_single_device_has_the_batches_of_all_ranks(self):
        report = verified(self.TEXT.replace("REDUCED", "mean"))
        self.assertEqual("CONDITIONAL", report.verdict, report)
        self.assertIn("the step of SGD of 2 parameters (not compared)", report.text)
        self.assertIn("batch of 8 = 2 x 4", report.text)
        wrong = verified(self.TEXT.replace("REDUCED", "sum"))
        self.assertEqual("NOT EQUIVALENT", wrong.verdict, wrong)


class ScaledLosses(unittest.TestCase):
    """A loss that is scaled by hand, so that gradients are divided by its scale."""

    TEXT = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 3), torch.randn(32, 2))
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
    optimizer.zero_grad()
    ((model(x) - y).square().mean() * 1024 LOSS).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.mul_(1 / (1024 TIMES))
    optimizer.step()
"""

    def sentence(self, loss="", times="* world"):
        report = verified(self.TEXT.replace("LOSS", loss).replace("TIMES", times))
        return report.verdict, " ".join(report.text.split("\n\n")[1].split())

    def test_right(self):
        self.assertEqual("EQUIVALENT", self.sentence()[0])

    def test_gradients_that_are_divided_twice(self):
        verdict, text = self.sentence(times="* world * world")
        self.assertEqual("NOT EQUIVALENT", verdict)
        self.assertIn("divided by the number of ranks (2) twice", text)
        self.assertIn("they are 1/2 times what they are on the single device", text)

    def test_gradients_of_another_scale(self):
        verdict, text = self.sentence(times="* world * (3 if world > 1 else 1)")
        self.assertEqual("NOT EQUIVALENT", verdict)
        self.assertRegex(
            text,
            r"the gradients are 1/6 times the sum over dp, from their reduction at train.py:14 on. "
            r"The loss at train.py:12 is a mean over a rank's own samples, which needs 1/2: they "
            r"are 1/3 times",
        )

    def test_a_loss_of_another_scale(self):
        verdict, text = self.sentence(loss="* (3 if world > 1 else 1)")
        self.assertEqual("NOT EQUIVALENT", verdict)
        self.assertIn("the loss at train.py:12 is multiplied by 3 at train.py:12", text)


class Single(unittest.TestCase):
    """A script that cannot run on one device, and what one device runs in its place."""

    RANKS = """
import os
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
world = dist.get_world_size()
assert world % 2 == 0, "needs two ranks"
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randn(16, 2))
model = DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
mine = torch.utils.data.DistributedSampler(data)
for x, y in DataLoader(data, batch_size=2, sampler=mine):
    (model(x) - y).square().mean().backward()
    optimizer.step()
"""
    ONE = """
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randn(16, 2))


def train(factor):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(data, batch_size=4):
        loss = (model(x) - y).square().mean() * factor
        loss.backward()
        optimizer.step()


import sys
train(float(sys.argv[1]))
"""

    def test_another_script(self):
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "one.py"
            other.write_text("import torch\n" + self.ONE)
            right = run_text(self.RANKS, "dp=2", "--single", f"{other} 1")
            self.assertIn("EQUIVALENT: ", right.stdout, right.stderr)
            self.assertEqual(0, right.returncode, right.stdout)
            self.assertIn("batch of 4 = 2 x 2", right.stdout)
            wrong = run_text(self.RANKS, "dp=2", "--single", f"{other} 2")
            self.assertEqual(10, wrong.returncode, wrong.stdout)

    def test_which_run_failed(self):
        done = run_text(self.RANKS)
        self.assertEqual(2, done.returncode)
        self.assertIn("raised AssertionError on the single device", done.stderr)
        self.assertIn("--single OTHER.py", done.stderr)
        later = run_text(self.RANKS.replace("assert world % 2 == 0", "assert world == 1"))
        self.assertIn("raised AssertionError on rank 0\n", later.stderr)
        self.assertNotIn("--single", later.stderr)


class RestOfTheLoop(unittest.TestCase):
    """What follows the optimizer's step, where it is not all compared."""

    TEXT = """
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank, world, BATCH = dist.get_rank(), dist.get_world_size(), 4
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 3), torch.randint(0, 2, (32,)))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = len(data) // (BATCH * world)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: (1 - i / steps))
for x, y in DataLoader(data, BATCH, sampler=DistributedSampler(data)):
    out = model(x)
    F.cross_entropy(out, y).backward()
    optimizer.step()
    scheduler.step()
    right = (out.argmax(1) == y).sum()
    dist.all_reduce(right)
    REST
"""

    def test_that_cannot_be_followed(self):
        done = run_text(self.TEXT.replace("REST", "print(out.detach().numpy().tobytes())"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(
            done.stdout,
            r"only the first optimizer step was verified, not what the script does afterwards "
            r"\(until its next batch that is not compared, as it cannot be followed: "
            r"train.py:20: a tensor becomes an array of NumPy",
        )

    def test_that_is_not_decided(self):
        """The step has its own verdict then."""
        judged = capture._judged

        def undecided_with_rest(c, *others):
            report = judged(c, *others)
            if c.with_rest:
                report.verdict = "UNDECIDED"
            return report

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.py"
            text = "import torch, torch.distributed as dist\n" + self.TEXT
            path.write_text(text.replace("REST", "pass"))
            with unittest.mock.patch.object(capture, "_judged", undecided_with_rest):
                report = capture.verify(script_step(str(path), [], quiet=True), mesh="dp=2")
        self.assertEqual(report.verdict, "EQUIVALENT", report)
        self.assertIn("that is not compared, as it was not decided", report.text)

    def test_that_goes_by_the_size_of_a_batch(self):
        """On one device the script would read 4 samples at once and not 8."""
        done = run_text(self.TEXT.replace("REST", "print(right.item() / (BATCH * world))"))
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertIn("schedule: optimizer0.groups.0.lr of the next step is not", done.stdout)
        self.assertIn("counted-samples: the number printed at train.py:20 is not", done.stdout)

    def test_a_schedule_that_is_not_the_same_on_all_ranks(self):
        """No count of batches makes ranks differ from each other."""
        text = self.TEXT.replace("    scheduler.step()", "    if rank == 0: scheduler.step()")
        done = run_text(text.replace("REST", "pass"))
        self.assertEqual(done.returncode, 10, done.stdout + done.stderr)

    def test_a_scheduler_that_is_stepped_for_each_rank(self):
        """No count of batches makes it take other steps: it is for the user to say."""
        text = self.TEXT.replace(
            "    scheduler.step()", "    for _ in range(world): scheduler.step()"
        )
        done = run_text(text.replace("REST", "pass"))
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertIn("scheduler-steps: optimizer0.groups.0.lr of the next step", done.stdout)

    def test_settings_of_an_optimizer_that_holds_another(self):
        """ZeroRedundancyOptimizer takes its own for the next step, not those of the inner one."""
        text = self.TEXT.replace(
            "torch.optim.SGD(model.parameters()",
            "torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD",
        )
        text = "import torch.distributed.optim\n" + text
        text = text.replace("REST", "optimizer.zero_grad()\n    REST")
        right = run_text(text.replace("REST", "pass"))
        self.assertEqual(right.returncode, 0, right.stdout + right.stderr)
        for change in (
            "if rank == 0: scheduler.step()",
            "optimizer.param_groups[0]['weight_decay'] = 0.1 * rank",
        ):
            wrong = run_text(text.replace("REST", change))
            self.assertEqual(wrong.returncode, 10, wrong.stdout + wrong.stderr)


class OwnUpdates(unittest.TestCase):
    """Loops without an optimizer of PyTorch: where a step ends."""

    TEXT = """
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 3), torch.randn(32, 2))
def reduced(model, on=True):
    for p in model.parameters():
        dist.all_reduce(p.grad if on else p.grad.clone())
        p.grad /= dist.get_world_size()
def moved(model, by):
    with torch.no_grad():
        for p in model.parameters():
            p += by * p.grad
            p.grad = None
model, other = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
for x, y in DataLoader(data, 4, sampler=DistributedSampler(data)):
    STEP
"""
    TWO_MODELS = """
    (other(y).mean() - other(model(x).detach()).mean()).backward()
    reduced(other); moved(other, -0.1)
    other(model(x)).mean().backward()
    other.zero_grad()
    reduced(model, REDUCED); moved(model, -0.1)"""
    TWICE = """
    F.mse_loss(model(x), y).backward()
    reduced(model); moved(model, 0.01)
    F.mse_loss(model(x), y).backward()
    reduced(model, REDUCED); moved(model, -0.1)"""
    CLAMPED = """
    with torch.no_grad():
        for p in model.parameters(): p.clamp_(-1, 1)
    (F.mse_loss(model(x), y) / 2).backward()
    count = globals().get("count", 0) + 1
    if count % 2 == 0: reduced(model, REDUCED); moved(model, -0.1)"""

    def test_all_that_a_step_changes(self):
        for name, step in (
            ("two models", self.TWO_MODELS),
            ("two updates of one", self.TWICE),
            ("clamped, and accumulated", self.CLAMPED),
        ):
            for reduced, code in (("True", 0), ("False", 10)):
                with self.subTest(name, reduced=reduced):
                    text = self.TEXT.replace("\n    STEP", step).replace("REDUCED", reduced)
                    done = run_text(text)
                    self.assertEqual(done.returncode, code, done.stdout + done.stderr)


class Output(unittest.TestCase):
    TEXT = (
        "dist.init_process_group('gloo')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "print('two\\nlines')\n"
        "model(torch.randn(2, 2)).mean().backward()\n"
        "optimizer.step()\n"
    )

    def test_each_process_prints_once(self):
        printed = run_text(self.TEXT).stdout.partition("EQUIVALENT")[0].splitlines()
        who = ("single device", "rank 0", "rank 1")
        self.assertEqual(
            printed, [f"[{process}] {word}" for process in who for word in ("two", "lines")]
        )

    def test_loggers_and_numbers_without_a_value(self):
        """A logger keeps the stream that it finds first, and C has no number to print."""
        text = self.TEXT.replace(
            "model(torch.randn(2, 2)).mean().backward()",
            "loss = model(torch.randn(2, 2)).mean()\n"
            "loss.backward()\n"
            "print('loss %.3f' % loss.item(), 'of nancy')\n"
            "import logging\n"
            "logging.basicConfig(format='%(message)s', level=logging.INFO)\n"
            "logging.info('here on %d', dist.get_rank())",
        )
        done = run_text(text)
        self.assertEqual(3, done.stdout.count("loss <depends on data> of nancy"), done.stdout)
        self.assertEqual(2, done.stderr.count("here on 0\n"), done.stderr)
        self.assertEqual(1, done.stderr.count("here on 1\n"), done.stderr)

    def test_quiet(self):
        done = run_text(self.TEXT, "dp=2", "--quiet")
        self.assertTrue(done.stdout.startswith("EQUIVALENT: "), done.stdout)


class Processes(unittest.TestCase):
    def test_an_error_of_the_script_is_its_own(self):
        done = run_text("def f():\n    raise KeyError('no such split')\nf()\n")
        self.assertEqual(done.returncode, 2)
        self.assertIn("KeyError: 'no such split'", done.stderr)
        self.assertIn('train.py", line 3, in f', done.stderr)
        self.assertNotIn("shardproof/torch", done.stderr)

    def test_another_number_of_processes(self):
        done = run_text(
            "import torch.multiprocessing as mp\n"
            "def f(rank):\n"
            "    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
            "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "    model(torch.randn(2, 2)).mean().backward()\n"
            "    optimizer.step()\n"
            "mp.spawn(f, nprocs=3)\n"
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("3 processes, and the mesh has 2 ranks", done.stderr)

    def test_processes_that_are_no_ranks(self):
        done = run_text(
            "from multiprocessing import Process\n"
            "def watch(name):\n    pass\n"
            "Process(target=watch, args=('log',)).start()\n"
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("does not have its rank 0 among its arguments", done.stderr)

    def test_options_of_processes(self):
        text = (
            "import argparse, torch.multiprocessing as mp\n"
            "def f(rank, args):\n"
            "    dist.init_process_group('nccl', rank=rank, world_size=args.world_size)\n"
            "    assert torch.cuda.is_available() and args.batch == 8\n"
            "    torch.manual_seed(0)\n"
            "    model = torch.nn.Linear(2, 2).to(rank)\n"
            "    model = torch.nn.parallel.DistributedDataParallel(model)\n"
            "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "    torch.manual_seed(rank)\n"
            "    model(torch.randn(args.batch // args.world_size, 2)).square().mean().backward()\n"
            "    optimizer.step()\n"
            "args = argparse.Namespace(batch=8, world_size=torch.cuda.device_count())\n"
            "mp.spawn(f, args=(args,), nprocs=args.world_size)\n"
        )
        done = run_text(text)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_what_the_script_leaves_changes_no_exit_code(self):
        text = (
            "import torch, torch.distributed as dist, atexit, os, threading\n"
            "atexit.register(lambda: os._exit(0))\n"
            "threading.Thread(target=threading.Event().wait).start()\n" + DATA_PARALLEL
        )
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.py"
            path.write_text(text.replace("square().mean()", "square().sum()"))
            command = [sys.executable, "-m", "shardproof.torch", "--mesh", "dp=2", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 10, done.stdout + done.stderr)

    def test_a_script_that_replaces_its_process(self):
        done = run_text("import os, sys\nos.execvp(sys.executable, [sys.executable])\n")
        self.assertEqual(done.returncode, 2)
        self.assertIn("replaces its process", done.stderr)

    def test_a_process_that_the_script_forks_ends(self):
        done = run_text("import os\nif os.fork() == 0: os._exit(0)\nos.wait()\n" + DATA_PARALLEL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_file_that_no_process_has_written(self):
        done = run_text("import os\nwhile not os.path.exists('never.pt'): pass\n")
        self.assertEqual(done.returncode, 2)
        self.assertIn("waits for never.pt, which no process has written", done.stderr)

    def test_what_is_computed_with_the_number_of_gpus(self):
        wrong = DATA_PARALLEL.replace("mean()", "mean().div(torch.cuda.device_count())")
        done = run_text(wrong)
        self.assertEqual(done.returncode, 4, done.stdout)
        self.assertIn("with 1 the script computes something else", done.stdout)
        done = run_text("assert torch.cuda.device_count() >= 2\n" + DATA_PARALLEL)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_several_arguments_that_may_be_the_number_of_processes(self):
        body = "".join(f"    {line}\n" for line in DATA_PARALLEL.splitlines())
        done = run_text(
            "import torch.multiprocessing as mp\n"
            f"def f(rank, world, other):\n{body}"
            "mp.spawn(f, args=(2, 2), nprocs=2)\n"
        )
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertIn("several arguments", done.stdout)

    def test_a_world_size_of_its_own(self):
        done = run_text(
            "import os\n"
            "dist.init_process_group('gloo', rank=int(os.environ['RANK']), world_size=2)\n"
            "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
            "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
            "model(torch.randn(2, 2)).mean().backward()\n"
            "optimizer.step()\n"
        )
        self.assertNotIn("\nEQUIVALENT", "\n" + done.stdout)
        self.assertIn("world size 2 on the single device", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
