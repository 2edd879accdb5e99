# SPDX-License-Identifier: Apache-2.0
"""Every step of examples/torch/ and tests/examples/: its verdict, and that of real processes."""

import importlib
import pathlib
import time
import unittest

import shardproof.torch as sp
import torch
import torch.distributed._functional_collectives as functional
from shardproof.torch.session import numeric

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = sorted(
    p.stem
    for folder in (ROOT / "examples" / "torch", ROOT / "tests" / "examples")
    for p in folder.glob("*.py")
    if p.stem.startswith(("right_", "wrong_"))
)
UNDECIDED: set = set()


def load(name, which):
    module = importlib.import_module(name)
    return getattr(module, which, None) or module.step


class Verdicts(unittest.TestCase):
    def test_verdict(self):
        for name in EXAMPLES:
            with self.subTest(name):
                module = importlib.import_module(name)
                steps = [module.single, module.step] if hasattr(module, "single") else [module.step]
                report = sp.verify(
                    *steps, mesh=module.MESH, arguments=["--stage-timeout", "5", "--confirm", "off"]
                )
                self.assertEqual(
                    report.verdict, "UNDECIDED" if name in UNDECIDED else module.EXPECT, str(report)
                )
                self.assertEqual(module.EXPECT == "EQUIVALENT", name.startswith("right_"))
                if report.verdict == "NOT EQUIVALENT":
                    first = report.defects[0]
                    cause = next(
                        (b for b in report.text.split("\n\n") if b.startswith("Cause")), ""
                    )
                    self.assertIn(
                        module.NAMES, cause + first.text + " ".join(first.places), str(report)
                    )

    def test_a_step_equals_itself(self):
        for name in ("right_tensor_parallel", "right_llama_tp_sp"):
            module = importlib.import_module(name)
            report = sp.verify(
                module.step, mesh=dict.fromkeys(module.MESH, 1), arguments=["--confirm", "off"]
            )
            self.assertEqual(report.verdict, "EQUIVALENT", str(report))


class Truth(unittest.TestCase):
    """Real gloo processes.

    Right steps agree with one device, wrong ones do not (where it is a race, they need not).
    """

    def test_real_processes(self):
        found = numeric.compare(
            load, {name: importlib.import_module(name).MESH for name in EXAMPLES}
        )
        for name in EXAMPLES:
            difference, place = found[name]
            with self.subTest(name, difference=difference, place=place):
                if importlib.import_module(name).EXPECT == "EQUIVALENT":
                    self.assertLess(difference, 1e-4)
                elif not getattr(importlib.import_module(name), "RACE", False):
                    self.assertGreater(difference, 3e-4)


def reduced_late(world):
    """A functional collective that nothing has waited for at the end of the step.

    The other rank is late.
    """
    model = torch.nn.Linear(16, 4)
    world.parameters(model)
    y = model(world.input("x", (8, 16), shard={"dp": 0})).detach()
    if world.single:
        world.output("y", y[:4] + y[4:])
        return
    time.sleep(0.5 * world.rank)
    world.output(
        "y", functional.reduce_scatter_tensor(y, "sum", 0, world.group("dp")), shard={"dp": 0}
    )


class Average(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean.mul_(self.factor).add_(x.mean(0))
        return x


def averages_of_zeros(world):
    """A rank's factor of what an average holds, which is nothing at first."""
    Average(0.9 if world.rank == 0 else 0.8)(world.input("x", (8, 4)))


class Numbers(unittest.TestCase):
    def test_buffers_that_begin_with_other_numbers(self):
        (without, _), (difference, place) = (
            numeric.compare(load_here, {"averages_of_zeros": {"dp": 2}}, any_buffers)[
                "averages_of_zeros"
            ]
            for any_buffers in (False, True)
        )
        self.assertLess(without, 1e-4)
        self.assertGreater(difference, 3e-4, place)

    def test_results_are_waited_for(self):
        difference, place = numeric.compare(load_here, {"reduced_late": {"dp": 2}})["reduced_late"]
        self.assertLess(difference, 1e-4, place)


def load_here(name, which):
    return globals()[name]


if __name__ == "__main__":
    unittest.main()
