# SPDX-License-Identifier: Apache-2.0
"""Traces of steps and scripts that really run, and `shardproof compare` of them."""

import contextlib
import functools
import importlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from forked_ranks import compare, in_precision, on_ranks
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.numbers import layout
from shardproof.torch.numbers.perturbation import PerturbedOperators, moved, moved_cast
from shardproof.torch.numbers.reference_values import ReferenceValues, UnusableReference
from shardproof.torch.numbers.sketch import sketch
from shardproof.torch.numbers.trace_file import TraceWriter
from shardproof.torch.numbers.traces import draw_folder, trace_rank
from shardproof.torch.session.numeric import draw
from shardproof.torch.step.flat_parameters import Stretch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

# step on two ranks, in bf16 autocast, what is wrong: the first tensor and its kind
CASES = [
    ("right_llama_tp_sp", False, None),
    ("right_llama_tp_sp", True, None),
    ("right_fsdp1", False, None),
    ("right_pipeline_1f1b", False, None),
    ("right_tokens_counted_over_accumulation", True, None),
    ("wrong_local_positions", False, "loss (result)"),
    ("wrong_zero1_sum_for_mean", False, "up.weight.new (parameter)"),
    ("wrong_norm_gradient_not_summed", True, "layers.0.attention_norm.weight.grad (gradient)"),
]


def traced(rank, which, folder):
    """Traces of all cases, one after another: a process takes seconds to start."""
    for name, bf16, _ in CASES:
        module = importlib.import_module(name)
        step = in_precision(
            getattr(module, which, None) or module.step, "autocast" if bf16 else "fp32"
        )
        mesh = dict.fromkeys(module.MESH, 1 if which == "single" else 2)
        for number in range(4 if which == "single" else 1):
            out = draw_folder(f"{folder}/{name} {bf16} {which}", number)
            trace_rank(step, mesh, rank, out, number)


class Steps(unittest.TestCase):
    def test_right_steps_agree_and_wrong_ones_differ(self):
        with tempfile.TemporaryDirectory() as folder:
            for which, world in (("single", 1), ("step", 2)):
                work = functools.partial(traced, which=which, folder=folder)
                self.assertTrue(on_ranks(world, work))
            for name, bf16, wrong in CASES:
                with self.subTest(name, bf16=bf16):
                    case = f"{folder}/{name} {bf16}"
                    code, text, report = compare(f"{case} single", f"{case} step")
                    self.assertEqual(code, 10 if wrong else 0, text)
                    first = text.splitlines()[0]
                    if wrong:
                        self.assertTrue(first.endswith(f"; first: {wrong}"), text)
                    else:
                        self.assertTrue(first.startswith("AGREES: "), text)
                        self.check_coverage(name, report)
                    if name == "wrong_norm_gradient_not_summed":
                        self.assertIn("rank 1 has other numbers than rank 0", text)
                    if name == "wrong_local_positions":  # where positions matter first
                        self.assertIn("the computation\n    wo.in (input)", text)

    def check_coverage(self, name, report):
        """What a trace has of a right step."""
        names = {t["name"]: t for t in report["tensors"]}
        kinds = {t["kind"] for t in report["tensors"] if t["status"] == "agrees"}
        self.assertLessEqual({"initial", "gradient", "parameter", "result"}, kinds)
        if name == "right_llama_tp_sp":
            self.assertLessEqual({"output", "output gradient", "unclipped gradient"}, kinds)
            ffn = names["layers.1.feed_forward.w1.out"]
            self.assertEqual(ffn["layout"], "cut over tp in dimension 2")
            self.assertFalse(ffn["decides"])
            self.assertTrue(names["layers.1.feed_forward.w1.weight.grad"]["decides"])
            self.assertEqual([row["layer"] for row in report["growth"]], ["layers.0", "layers.1"])
        if name == "right_pipeline_1f1b":  # four microbatches
            self.assertEqual(names["layers.3.out"]["layout"], "cut over calls in dimension 0")


def tiny(world):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(world.input("x", (8, 4), shard={"dp": 0})).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def failing(world):
    raise RuntimeError("the step's own error")


class Trace(unittest.TestCase):
    def test_only_what_is_wanted(self):
        with tempfile.TemporaryDirectory() as folder:
            out = sp.trace(tiny, mesh="dp=1", out=f"{folder}/t", perturb=1, only=["*.grad", "loss"])
            sp.trace(tiny, mesh="dp=1", out=f"{folder}/all")
            code, text, report = compare(out, f"{folder}/all")
            self.assertEqual(code, 0, text)
            self.assertEqual(
                {t["name"] for t in report["tensors"]}, {"loss", "weight.grad", "bias.grad"}
            )

    def test_recording_anew_removes_perturbed_traces(self):
        """They are of another run, and its numbers would make tolerances large."""
        with tempfile.TemporaryDirectory() as folder:
            sp.trace(tiny, mesh="dp=1", out=folder, perturb=2, seed=1)
            Path(folder, "draw2", "of the user").touch()
            sp.trace(tiny, mesh="dp=1", out=folder, perturb=1)
            self.assertTrue(list(Path(folder, "draw1").glob("*.safetensors")))
            self.assertEqual(["of the user"], [p.name for p in Path(folder, "draw2").iterdir()])
            sp.trace(tiny, mesh="dp=1", out=folder)
            code, text, _ = compare(folder, folder)
            self.assertEqual(code, 2, text)
            self.assertFalse(Path(folder, "draw1").exists())

    def test_seeds(self):
        first, again, other = (draw("w", (4,), seed=seed) for seed in (0, 0, 1))
        self.assertTrue(torch.equal(first, again))
        self.assertFalse(torch.equal(first, other))

    def test_a_step_that_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(sp.TraceError, "the step's own error"):
                sp.trace(failing, mesh="dp=1", out=folder)
            with self.assertRaisesRegex(TypeError, "a function at the top of a module"):
                sp.trace(lambda world: None, mesh="dp=1", out=folder)

    def test_a_reference_that_is_not_perturbed(self):
        with tempfile.TemporaryDirectory() as folder:
            TraceWriter(folder, Mesh({"dp": 1}), 0).close()
            code, text, _ = compare(folder, folder)
            self.assertEqual(code, 2)
            self.assertIn("has no perturbed traces", text)


SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))
net = model if "--wrong" in sys.argv else DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
for _ in range(1000):
    net(x.chunk(world)[rank]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
raise SystemExit("this is not reached")
"""


def run_script(folder, world, *arguments):
    """python -m shardproof.torch.trace on each of so many ranks, as torchrun starts them."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "shardproof.torch.trace", *arguments],
            env={
                **os.environ,
                **({} if world == 1 else {"RANK": str(r), "WORLD_SIZE": str(world)}),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(world)
    ]
    errors = [r.communicate(timeout=600)[1] for r in ranks]
    return [r.returncode for r in ranks], "".join(errors)


class Scripts(unittest.TestCase):
    def test_a_script_alone_and_on_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            script = f"{folder}/train.py"
            Path(script).write_text(SCRIPT)
            for out, world, options, arguments in (
                ("reference", 1, ["--perturb=2", "--modules"], []),
                ("candidate", 2, ["--mesh=dp=2", "--modules"], []),
                ("wrong", 2, ["--mesh=dp=2", "--modules"], ["--wrong"]),
            ):
                codes, errors = run_script(
                    folder, world, f"--out={folder}/{out}", *options, script, *arguments
                )
                self.assertEqual(codes, [0] * world, errors)
            code, text, report = compare(f"{folder}/reference", f"{folder}/candidate")
            self.assertEqual(code, 0, text)
            self.assertIn("candidate: the script was stopped after the first step", text)
            names = {t["name"]: t for t in report["tensors"]}
            self.assertEqual(names["model.in"]["layout"], "cut over dp in dimension 0")
            self.assertEqual(names["loss"]["layout"], "mean over dp")
            self.check_explained(folder)
            # A copy on each rank that was not reduced: no "mean over dp", which would fit.
            code, text, report = compare(f"{folder}/reference", f"{folder}/wrong")
            self.assertEqual(code, 10, text)
            names = {t["name"]: t for t in report["tensors"]}
            self.assertEqual(names["0.weight.grad"]["status"], "differs")
            self.assertEqual(names["0.out"]["status"], "agrees")
            self.assertEqual(names["2.in"]["layout"], "cut over dp in dimension 0")
            # The same once more, with the reference's numbers in all modules.
            isolate = f"--isolate={folder}/wrong.json"
            out = f"{folder}/isolated"
            codes, errors = run_script(
                folder, 2, f"--out={out}", "--mesh=dp=2", isolate, script, "--wrong"
            )
            self.assertEqual(codes, [0, 0], errors)
            code, text, report = compare(f"{folder}/reference", out)
            self.assertEqual(code, 10, text)
            named = [m["module"] for m in report["modules"]["wrong"]]
            self.assertEqual(named, ["0", "2"], text)
            self.assertEqual(report["modules"]["not_judged"], [], text)

    def check_explained(self, folder):
        """What `shardproof explain` writes of a reference and of a comparison."""

        def explained(*arguments):
            done = subprocess.run(
                [os.environ["SHARDPROOF"], "explain", *arguments],
                capture_output=True,
                text=True,
                check=False,
            )
            return done.returncode, done.stdout + done.stderr

        code, text = explained(f"{folder}/reference", "--difference", "3e-3")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"loss \(result, F32\): rounding moves it by up to .*e-0[678]")
        self.assertIn("times that: more than rounding", text)
        code, text = explained(f"{folder}/candidate.json", "--tensor", "0.weight.grad")
        self.assertEqual(code, 0, text)
        self.assertIn("is within that: rounding explains it", text)
        code, text = explained(f"{folder}/reference", "--tensor", "there is none")
        self.assertEqual(code, 2, text)
        self.assertIn("is no tensor of the trace, expected one of ", text)

    def test_options_that_are_wrong(self):
        for options, message in (
            (["--mesh=dp=2"], "--mesh has 2 ranks, and WORLD_SIZE is 1"),
            (["--perturb=1", "--draw=1"], "not given both"),
            (["--perturb=1", "--isolate=report.json"], "--isolate is of a candidate"),
            (["--mesh=dp"], "a mesh is written like dp=2,tp=4"),
            ([], "train.py: there is no such file"),
        ):
            codes, errors = run_script("", 1, "--out=x", *options, "train.py")
            self.assertEqual(codes, [2])
            self.assertIn(message, errors)


def loop(rank, world, out, draw=0, wrong=False, together=False):
    """A loop of three iterations, whose second is recorded. Returns the last loss."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8))
    net = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(1))
    here = sp.tracing(net, out=out, mesh={"dp": world}, draw=draw)
    with here if together else contextlib.nullcontext():
        for i in range(3):
            x = batches[i].chunk(world)[rank]
            with here if i == 1 and not together else contextlib.nullcontext():
                optimizer.zero_grad()
                loss = net(x).square().mean()
                (loss * 2 if wrong and i == 1 else loss).backward()
                optimizer.step()
    return loss.item()


class Loops(unittest.TestCase):
    def test_one_iteration_of_a_loop_that_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            for draw in range(3):
                work = functools.partial(loop, world=1, out=f"{folder}/reference", draw=draw)
                self.assertTrue(on_ranks(1, work))
            for out, wrong in (("right", False), ("wrong", True)):
                work = functools.partial(loop, world=2, out=f"{folder}/{out}", wrong=wrong)
                self.assertTrue(on_ranks(2, work))
            code, text, report = compare(f"{folder}/reference", f"{folder}/right")
            self.assertEqual(code, 0, text)
            names = {t["name"] for t in report["tensors"] if t["decides"]}
            expected = {"0.weight", "0.weight.grad", "0.weight.new", "0.weight.exp_avg.new"}
            self.assertLessEqual(expected, names)
            code, text, report = compare(f"{folder}/reference", f"{folder}/wrong")
            self.assertEqual(code, 10, text)
            ratios = {t["name"]: t.get("ratio") for t in report["tensors"]}
            self.assertAlmostEqual(ratios["0.weight.grad"], 2, places=4)

    def test_it_encloses_one_step(self):
        def work(rank):
            with tempfile.TemporaryDirectory() as folder:
                with self.assertRaisesRegex(sp.TraceError, r"made \[3\] steps inside"):
                    loop(rank, 1, folder, together=True)
                message = "mesh has 4 ranks, and the process group has 1"
                with (
                    self.assertRaisesRegex(ValueError, message),
                    sp.tracing(out=folder, mesh="dp=4"),
                ):
                    pass

        self.assertTrue(on_ranks(1, work))


def wide(world, wrong=False):
    """Large parameters, cut by FSDP2, and one that each rank has."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(96, 96), torch.nn.Linear(96, 64))
    if world.sizes["dp"] > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (world.sizes["dp"],)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = model(world.input("x", (64, 96), shard={"dp": 0})).square().mean()
    (loss * (1.01 if wrong else 1)).backward()
    optimizer.step()
    return loss


class Sketches(unittest.TestCase):
    def test_they_are_compared_with_elements_and_with_sketches(self):
        with tempfile.TemporaryDirectory() as folder:

            def work(rank, out, draws, world, wrong, sketches):
                for draw in range(draws):
                    trace_rank(
                        functools.partial(wide, wrong=wrong),
                        {"dp": world},
                        rank,
                        draw_folder(f"{folder}/{out}", draw),
                        draw,
                        sketches=sketches,
                    )

            for out, draws, world, wrong, sketches in (
                ("elements", 3, 1, False, False),
                ("sketches", 3, 1, False, True),
                ("right", 1, 2, False, True),
                ("wrong", 1, 2, True, True),
            ):
                done = functools.partial(
                    work, out=out, draws=draws, world=world, wrong=wrong, sketches=sketches
                )
                self.assertTrue(on_ranks(world, done))
            for reference in ("elements", "sketches"):
                with self.subTest(reference):
                    code, text, report = compare(f"{folder}/{reference}", f"{folder}/right")
                    self.assertEqual(code, 0, text)
                    self.assertIn("were compared by sketches of 1024 sums", text)
                    code, text, report = compare(f"{folder}/{reference}", f"{folder}/wrong")
                    self.assertEqual(code, 10, text)
                    ratios = {t["name"]: t.get("ratio") for t in report["tensors"]}
                    self.assertAlmostEqual(ratios["0.weight.grad"], 1.01, places=4)
            sizes = [
                sum(p.stat().st_size for p in Path(folder, out).glob("*.safetensors"))
                for out in ("elements", "sketches")
            ]
            self.assertLess(sizes[1], sizes[0] / 2)
            with self.assertRaisesRegex(UnusableReference, "has sketches"):
                compare(f"{folder}/sketches", f"{folder}/right")
                ReferenceValues(f"{folder}/right.json", Mesh({"dp": 2}), 0, f"{folder}/isolated")

    def test_of_boxes_and_stretches(self):
        t = torch.randn(6, 10, 7, dtype=torch.float64)
        whole = sketch(t, layout.of_shard(t, None, Mesh({"dp": 1}), 0))
        boxes = [
            sketch(t[a:b, c:d], layout.box(t.shape, (a, c, 0), (b - a, d - c, 7)))
            for a, b in ((0, 2), (2, 6))
            for c, d in ((0, 5), (5, 10))
        ]
        torch.testing.assert_close(sum(boxes), whole)
        stretches = [
            sketch(
                t.reshape(-1)[begin:end],
                layout.of_stretch(Stretch("w", tuple(t.shape), 0, begin, end - begin)),
            )
            for begin, end in ((0, 33), (33, 420))
        ]
        torch.testing.assert_close(sum(stretches), whole)
        self.assertAlmostEqual(whole.norm().item() / t.norm().item(), 1, delta=0.1)


def low_precision(rank, world, out, draw=0, wrong=False):
    """Parameters in bf16, whose main copies the optimizer steps. The two norms begin alike."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 16),
        torch.nn.LayerNorm(16),
        torch.nn.Linear(16, 16),
        torch.nn.LayerNorm(16),
    ).bfloat16()
    main = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(main, lr=1e-2)
    x, y = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    with sp.tracing(model, out=out, mesh={"dp": world}, draw=draw):
        made = model(x.chunk(world)[rank]).float()
        loss = (made - y.chunk(world)[rank]).square().mean()
        loss.backward()
        for i, (p, copy) in enumerate(zip(model.parameters(), main)):
            copy.grad = p.grad.float()
            if world > 1 and not (wrong and i == 2):
                torch.distributed.all_reduce(copy.grad)
                copy.grad /= world
        optimizer.step()
        with torch.no_grad():
            for p, copy in zip(model.parameters(), main):
                p.copy_(copy)


class MainCopies(unittest.TestCase):
    def test_of_a_loop_in_low_precision(self):
        with tempfile.TemporaryDirectory() as folder:
            for draw in range(4):
                work = functools.partial(
                    low_precision, world=1, out=f"{folder}/reference", draw=draw
                )
                self.assertTrue(on_ranks(1, work))
            for out, wrong in (("right", False), ("wrong", True)):
                work = functools.partial(low_precision, world=2, out=f"{folder}/{out}", wrong=wrong)
                self.assertTrue(on_ranks(2, work))
            _, text, report = compare(f"{folder}/reference", f"{folder}/right")
            found = {t["name"]: t for t in report["tensors"]}
            for name in ("0.weight.main", "0.weight.main.grad", "3.bias.main.new"):
                self.assertEqual(found[name]["status"], "agrees", text)
                self.assertEqual(found[name]["dtype"], "F32")
            self.assertEqual(found["0.weight.main.exp_avg.new"]["kind"], "main copy")
            code, text, report = compare(f"{folder}/reference", f"{folder}/wrong")
            self.assertEqual(code, 10, text)
            found = {t["name"]: t["status"] for t in report["tensors"]}
            self.assertEqual(found["1.weight.main.grad"], "differs")
            self.assertFalse([n for n in found if re.match(r"optimizer0\.\d+\.new", n)], found)
            self.assertNotEqual(found["3.weight.main.grad"], "differs")


class Perturbation(unittest.TestCase):
    def test_each_element_moves_by_an_epsilon_at_most(self):
        t = torch.linspace(1, 1000, 10_000)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            there = moved(t.to(dtype), "t")
            change = (there.double() / t.to(dtype).double() - 1).abs()
            self.assertLess(change.max(), 1.51 * torch.finfo(dtype).eps)
            self.assertGreater((change > 0).double().mean(), 0.4)
        self.assertTrue(torch.equal(moved(t, "t"), moved(t, "t")))
        self.assertFalse(torch.equal(moved(t, "t"), moved(t, "other")))
        self.assertIs(moved(numbers := torch.arange(3), "t"), numbers)

    def test_casts_to_float8(self):
        x = torch.randn(10_000)
        with PerturbedOperators(1):
            cast = x.to(torch.float8_e4m3fn)
        plain = torch.from_numpy(x.numpy()).to(torch.float8_e4m3fn)
        change = (cast.double() / plain.double() - 1).abs()
        self.assertLess(change.nan_to_num().max(), 0.26)  # one place of three bits, or two
        self.assertAlmostEqual((change > 0).double().mean().item(), 1 / 64, delta=0.005)
        first, second = (moved_cast(plain, "t").double() for _ in range(2))
        self.assertTrue(torch.equal(first, second))

    def test_operators_that_round(self):
        torch.manual_seed(0)
        x = torch.randn(64, 64, dtype=torch.bfloat16, requires_grad=True)

        def step():
            y = F.softmax(x @ x, -1).sum()
            (gradient,) = torch.autograd.grad(y, x)
            return x.detach() @ x.detach(), gradient

        plain = step()
        with PerturbedOperators(1):
            first = step()
        with PerturbedOperators(1):
            again = step()
        for a, b, c in zip(plain, first, again):
            self.assertFalse(torch.equal(a, b))
            self.assertTrue(torch.equal(b, c))

    def test_operators_that_do_not(self):
        x = torch.randn(8, 8)
        with PerturbedOperators(1):
            self.assertTrue(torch.equal(torch.cat([x, x])[8:], x))
            self.assertTrue(torch.equal(x.t().clone().t().reshape(64), x.reshape(64)))
            self.assertTrue(torch.equal(x.double(), x.to(torch.float64)))
            self.assertTrue(torch.equal(torch.ones(3), torch.tensor([1.0, 1, 1])))
            self.assertFalse(torch.equal(x * 3, torch.from_numpy(x.numpy() * 3)))
            y = x.clone()
            y.add_(1)
            self.assertTrue(torch.equal(y, torch.from_numpy(x.numpy() + 1)))


class Layouts(unittest.TestCase):
    def test_of_declared_shards(self):
        mesh = Mesh({"dp": 2, "tp": 2})
        found = layout.of_shard(torch.zeros(2, 3), {"dp": 0, "tp": 0}, mesh, 3)
        self.assertEqual(found.shape, (8, 3))
        self.assertEqual(found.parts, ((0, (6, 0), (2, 3)),))
        found = layout.of_shard(torch.zeros(2, 3), {"tp": 1}, mesh, 2)
        self.assertEqual(found.shape, (2, 6))
        self.assertEqual(found.parts, ((0, (0, 0), (2, 3)),))

    def test_of_a_stretch(self):
        found = layout.of_stretch(Stretch("w", (3, 4), 5, 2, 7))
        self.assertEqual(found.shape, (3, 4))
        self.assertEqual(
            found.parts, ((0, (0, 2), (1, 2)), (2, (1, 0), (1, 4)), (6, (2, 0), (1, 1)))
        )


if __name__ == "__main__":
    unittest.main()
