"""The recorder fails closed: what it does not know makes an error, never a verdict; views and in-place writes; scripts."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import MLP
from shardproof.torch.boxes import NoPlace, locate
from shardproof.torch.marks import Mark, Placement
from shardproof.torch.mesh import Mesh
from shardproof.torch.storage import contiguous
from shardproof.torch.values import Filled

MESH = {"dp": 2}


def train(world, change, shard={"dp": 0}):
    """A step of data parallelism by hand; `change` does something to the gradients after they were averaged."""
    model = MLP()
    x, y = (world.input(name, (8, 16), shard=shard) for name in "xy")
    loss = F.mse_loss(model(x), y)
    loss.backward()
    for p in model.parameters():
        if not world.single:
            dist.all_reduce(p.grad)
            p.grad /= world.size
    change(world, model)
    return loss


class FailClosed(unittest.TestCase):
    def refuse(self, change, text):
        with self.assertRaises(sp.CaptureError) as caught:
            sp.capture(lambda world: train(world, change), mesh=MESH)
        self.assertIn(text, str(caught.exception))

    def test_an_operator_without_line_poisons_what_it_writes(self):
        def change(world, model):
            model.up.weight.grad.erfinv_()

        self.refuse(change, "erf_inv")

    def test_sorting_long_rows_is_not_followed(self):
        def change(world, model):
            model.up.weight.grad.copy_(model.up.weight.grad.flatten().sort().values.view_as(model.up.weight))

        self.refuse(change, "a choice among more than")

    def test_labels_that_do_not_count_are_no_numbers(self):
        def change(world, model):
            labels = world.input("classes", (4,), torch.long, high=4)
            model.up.weight.grad.add_(torch.where(world.input("kept", (4,), torch.long, high=2) == 1, labels, -100).sum())

        self.refuse(change, "labels of which some do not count")

    def test_unused_parameters(self):
        def change(world, model):
            wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]), find_unused_parameters=True)
            wrapped.module[0](torch.ones(1, 2)).sum().backward()

        with self.assertRaises(NotImplementedError):
            sp.capture(lambda world: train(world, change), mesh=MESH)

    def test_uninitialised_memory(self):
        def change(world, model):
            model.up.weight.grad.copy_(torch.empty_like(model.up.weight.grad))

        self.refuse(change, "never written")

    def test_partly_initialised_memory(self):
        def change(world, model):
            buffer = torch.empty(32, 16)
            buffer[:31] = model.up.weight.grad[:31]
            model.up.weight.grad.copy_(buffer)

        self.refuse(change, "never written")

    def test_random_numbers_in_the_step(self):
        def change(world, model):
            model.up.weight.grad.add_(torch.randn(32, 16))

        self.refuse(change, "random")

    def test_a_number_that_depends_on_data_goes_nowhere(self):
        def change(world, model):
            model.up.weight.grad.mul_(model.up.weight.grad.sum().item())

        self.refuse(change, "depends on data")

    def test_control_flow_that_depends_on_data(self):
        def change(world, model):
            if bool(model.up.weight.grad.sum() > 0):
                model.up.weight.grad.zero_()

        with self.assertRaisesRegex(RuntimeError, "depends on data"):
            sp.capture(lambda world: train(world, change), mesh=MESH)

    def test_an_output_that_the_ranks_lack(self):
        def change(world, model):
            if not world.single:
                model.up.weight.grad = None

        self.refuse(change, "up.weight.grad")

    def test_an_output_that_one_device_lacks(self):
        def change(world, model):
            if world.single:
                model.up.weight.grad = None

        self.refuse(change, "up.weight.grad")

    def test_reading_an_asynchronous_result_before_its_wait(self):
        import torch.distributed._functional_collectives as functional

        def change(world, model):
            if not world.single:
                raw = torch.ops._c10d_functional.all_reduce(model.up.weight.grad, "avg", dist.group.WORLD.group_name)
                model.up.weight.grad.copy_(raw)
            _ = functional

        self.refuse(change, "before its wait")


    def test_a_missing_wait(self):
        def change(world, model, wait=False):
            if not world.single:
                work = dist.all_reduce(model.up.weight.grad, async_op=True)
                if wait:
                    work.wait()
                model.up.weight.grad.mul_(0.5)

        self.refuse(change, "asynchronous allreduce is read before its wait")
        sp.assert_equivalent(lambda world: train(world, lambda w, m: change(w, m, True)), mesh=MESH)

    def test_another_part_of_a_buffer_that_is_under_way(self):
        def change(world, model):
            if not world.single:
                buffer = torch.cat([model.up.weight.grad.flatten(), torch.zeros(4)])
                work = dist.all_reduce(buffer[:512], async_op=True)
                buffer[512:] += 1
                work.wait()
                model.up.weight.grad.copy_(buffer[:512].view(32, 16) / world.size * buffer[512])

        sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)


class Verdicts(unittest.TestCase):
    def verdict(self, change):
        return sp.verify(lambda world: train(world, change), mesh=MESH, arguments=["--confirm", "off"])

    def test_nothing_changed(self):
        sp.assert_equivalent(lambda world: train(world, lambda w, m: None), mesh=MESH)

    def test_every_way_to_write_is_seen(self):
        """Each spoils one gradient on the ranks only."""
        writes = {
            "slice": lambda g: g[3:5].mul_(2), "column": lambda g: g[:, 1].add_(1), "transposed": lambda g: g.t().mul_(2), "flat": lambda g: g.view(-1)[5:9].zero_(),
            "strided": lambda g: g[::2].mul_(3), "foreach": lambda g: torch._foreach_mul_([g], 2.0), "out": lambda g: torch.add(g, 1.0, out=g), "data": lambda g: g.data.neg_(),
            "index": lambda g: g.__setitem__(0, 0.0), "copy": lambda g: g.copy_(g * 2), "set": lambda g: g.as_strided((4,), (16,), 3).fill_(0.5), "masked": lambda g: g.masked_fill_(g > 0, 0.0),
            "unbind": lambda g: g.unbind(0)[2].mul_(2), "split": lambda g: g.split(8)[1].div_(2), "storage": lambda g: torch.tensor([], dtype=g.dtype).set_(g.untyped_storage(), 0, (16,), (1,)).mul_(2),
        }
        for name, write in writes.items():
            with self.subTest(name):
                def change(world, model, write=write):
                    if not world.single:
                        write(model.up.weight.grad)

                try:
                    report = self.verdict(change)
                except sp.CaptureError:
                    continue  # refused is right, too
                self.assertEqual(report.verdict, "NOT EQUIVALENT", str(report))

    def test_the_same_write_on_both_sides(self):
        def change(world, model):
            grad = model.up.weight.grad
            grad[3:5].mul_(2)
            grad.t()[1].add_(1)
            grad.view(-1)[5:9].zero_()
            grad[::2].mul_(3)

        self.assertEqual(self.verdict(change).verdict, "EQUIVALENT")

    def test_a_step_that_hangs(self):
        def change(world, model):
            if world.rank == 0 and not world.single:
                dist.all_reduce(model.up.weight.grad.clone())

        report = self.verdict(change)
        self.assertEqual(report.verdict, "NOT EQUIVALENT")
        self.assertEqual(report.defects[0].kind, "collective")
        self.assertIn("recorder_test.py", " ".join(report.defects[0].places) + report.text)

    def test_a_model_of_the_users_own_process_group_is_named(self):
        with self.assertRaises(ValueError):
            sp.verify(lambda world: None, mesh="dp=two")


class Boxes(unittest.TestCase):
    def place(self, logical, local, mesh, at, cuts, **placement):
        return locate(Mark("output", "t", Filled(0, local), Placement(**placement)), logical, local, Mesh(mesh), at, cuts)

    def test_said(self):
        self.assertEqual(self.place((8, 6), (4, 2), {"dp": 2, "tp": 3}, {"dp": 1, "tp": 2}, {}, shard={"dp": 0, "tp": 1}).low, (4, 4))
        with self.assertRaises(NoPlace):
            self.place((8, 6), (8, 6), {"dp": 2}, {"dp": 1}, {}, shard={"dp": 0})

    def test_concluded_from_shapes(self):
        box = self.place((8, 6), (4, 6), {"dp": 2, "tp": 2}, {"dp": 1, "tp": 0}, {"dp": {0}})
        self.assertEqual((box.low, box.guessed), ((4, 0), True))
        with self.assertRaises(NoPlace):
            self.place((8, 6), (3, 6), {"dp": 2}, {"dp": 1}, {})

    def test_a_scalar_is_the_mean_over_what_cuts_the_batch(self):
        box = self.place((), (), {"dp": 4, "tp": 2}, {"dp": 1, "tp": 0}, {"dp": {0}})
        self.assertEqual((box.total, box.divisor), (("dp",), 4))

    def test_geometry(self):
        self.assertTrue(contiguous((2, 3), 5).is_dense())
        self.assertEqual(contiguous((2, 3), 5).span(), (5, 11))


SCRIPT = """
import os, torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
world = dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x, y = torch.randn(8 // world, 8), torch.randn(8 // world, 4)
    loss = F.mse_loss(model(x), y) DIVIDED
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.3f}")
dist.destroy_process_group()
"""


class Script(unittest.TestCase):
    def run_script(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.py"
            path.write_text(text)
            return subprocess.run([sys.executable, "-W", "ignore", "-m", "shardproof.torch", str(path), "--mesh", "dp=2"], capture_output=True, text=True, check=False, env=os.environ)

    def test_right_and_wrong(self):
        done = self.run_script(SCRIPT.replace("DIVIDED", ""))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("EQUIVALENT", done.stdout)
        done = self.run_script(SCRIPT.replace("DIVIDED", "/ world"))
        self.assertEqual(done.returncode, 10, done.stdout + done.stderr)
        self.assertIn("train.py:", done.stdout)

    def test_error(self):
        done = self.run_script("raise SystemExit(3)")
        self.assertEqual(done.returncode, 2)


if __name__ == "__main__":
    unittest.main()
