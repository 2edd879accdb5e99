# SPDX-License-Identifier: Apache-2.0
"""Where ranks' parameters lie in the single device's, by first values and by how they are split."""

import pathlib
import unittest

import torch
from shardproof.torch.export.split_weights import Uses
from shardproof.torch.terms.positions import Elements, numbered, stretches_in
from whole_scripts_test import verified

FUSED = pathlib.Path(__file__).resolve().parents[1] / "whole_scripts" / "fused_weights.py"


def node(op, operands, out, **attrs):
    return {"op": op, "in": operands, "out": [out], "attrs": attrs}


def uses(nodes, **shapes):
    return Uses(nodes, {name: {"shape": list(shape)} for name, shape in shapes.items()})


class Parts(unittest.TestCase):
    def test_slices_of_a_product(self):
        found = uses(
            [
                node("permute", ["w"], "t", dims=[1, 0]),
                node("matmul", ["x", "t"], "y"),
                node("add", ["y", "b"], "z"),
                node("slice", ["z"], "q", dim=-1, start=0, stop=8),
                node("slice", ["z"], "kv", dim=-1, start=8, stop=12),
                node("slice", ["kv"], "k", dim=-1, start=0, stop=2),
            ],
            w=(12, 5), t=(5, 12), x=(2, 3, 5), y=(2, 3, 12), b=(2, 3, 12), z=(2, 3, 12),
            q=(2, 3, 8), kv=(2, 3, 4), k=(2, 3, 2),
        )  # fmt: skip
        self.assertEqual((8, 2, 2), found.parts("w", 0))
        self.assertEqual((5,), found.parts("w", 1))  # what is summed over

    def test_outermost_of_several_dimensions(self):
        nodes = [node("view", ["w"], "v", size=[3, 4, 5])]
        shapes = {"w": (12, 5), "v": (3, 4, 5), "one": (1, 4, 5)}
        nodes.append(node("slice", ["v"], "one", dim=0, start=1, stop=2))
        self.assertEqual((4, 4, 4), uses(nodes, **shapes).parts("w", 0))

    def test_inner_of_several_dimensions(self):
        """Each head has its own queries, keys and values: heads are cut as they lie."""
        nodes = [node("view", ["w"], "v", size=[4, 3, 5])]
        shapes = {"w": (12, 5), "v": (4, 3, 5), "one": (4, 1, 5)}
        nodes.append(node("slice", ["v"], "one", dim=1, start=1, stop=2))
        self.assertEqual((12,), uses(nodes, **shapes).parts("w", 0))

    def test_steps_and_products_by_the_left(self):
        nodes = [
            node("slice", ["w"], "even", dim=0, start=0, stop=12, step=2),
            node("matmul", ["w", "x"], "y"),
            node("slice", ["y"], "a", dim=0, start=0, stop=4),
        ]
        shapes = {"w": (12, 5), "even": (6, 5), "x": (5, 7), "y": (12, 7), "a": (4, 7)}
        self.assertEqual((4, 8), uses(nodes, **shapes).parts("w", 0))


class Numbers(unittest.TestCase):
    whole = torch.arange(48).view(12, 4)

    def test_stretches(self):
        part = torch.cat([self.whole[2:4], self.whole[8:10]])
        self.assertEqual((0, ((0, 2, 2), (2, 8, 2))), stretches_in(self.whole, part, (2, 0)))
        self.assertEqual(
            (1, ((0, 3, 1), (1, 0, 1))), stretches_in(self.whole, self.whole[:, [3, 0]], (0, 3))
        )

    def test_none(self):
        changed = self.whole[2:4].clone()
        changed[1, 1] = 99
        self.assertIsNone(stretches_in(self.whole, changed, (2, 0)))
        self.assertIsNone(stretches_in(torch.zeros(4, 4), torch.zeros(2, 4), (0, 0)))

    def test_what_is_moved_keeps_its_numbers(self):
        nodes = [
            node("permute", ["w"], "t", dims=[1, 0]),
            node("slice", ["t"], "s", dim=0, start=1, stop=3),
            node("exp", ["s"], "e"),
        ]
        elements = Elements(nodes, lambda name: numbered(name, (5, 4)) if name == "w" else None)
        torch.testing.assert_close(elements.of("s"), numbered("w", (5, 4)).T[1:3])
        self.assertIsNone(elements.of("e"))


class Scripts(unittest.TestCase):
    def edited(self, *edits):
        text = FUSED.read_text()
        for before, after in edits:
            self.assertIn(before, text)
            text = text.replace(before, after)
        return verified(text, mesh="tp=2")

    def test_each_rank_draws_its_part(self):
        """The seed is the same on all ranks, so that their parts are: a risk, which is named."""
        world = "dist.get_world_size()"
        report = self.edited(
            ("    apply_tp(model, rank, world)\n", ""),
            ("self.heads, self.dim = heads, dim", f"self.heads, self.dim = heads // {world}, dim"),
            ("nn.Linear(dim, 3 * dim)", f"nn.Linear(dim, 3 * dim // {world})"),
            ("nn.Linear(dim, dim, bias=False)", f"nn.Linear(dim // {world}, dim, bias=False)"),
            ("nn.Linear(dim, 8 * dim, bias", f"nn.Linear(dim, 8 * dim // {world}, bias"),
            ("nn.Linear(4 * dim, dim, bias", f"nn.Linear(4 * dim // {world}, dim, bias"),
        )
        self.assertEqual("CONDITIONAL", report.verdict, report.text)
        self.assertIn("placement-from-shape", report.text)
        self.assertIn("initial-values", report.text)

    def test_one_part_that_is_split_as_all(self):
        report = self.edited(("EACH = True", "EACH = False"))
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("blocks.0.attn.wqkv.weight is 3 weights in one", report.text)

    def test_a_part_that_two_ranks_have(self):
        report = self.edited(("OWN = True", "OWN = False"))
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertRegex(
            report.text, r"no rank has the element at \[\d+, 0\] of blocks.0.*ranks 0, 1"
        )

    def test_a_part_of_another_rank(self):
        report = self.edited(
            (
                "    opt = ",
                "    model = nn.parallel.DistributedDataParallel(model)\n    opt = ",
            )
        )
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("rank 1 is given rank 0's first values", report.text)


HALVES = """
rank, world = dist.get_rank(), dist.get_world_size()


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.empty(8 // world, 4))
        self.down = torch.nn.Parameter(torch.empty(4, 8 // world))

    def forward(self, x):
        return Reduce.apply(torch.relu(x @ self.up.T) @ self.down.T)


net = Net()
torch.manual_seed(SEED)
up, down = torch.randn(8, 4) * 0.2, torch.randn(4, 8) * 0.2
GIVEN
net.up.data.copy_(up.chunk(world)[rank])
net.down.data.copy_(DOWN)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
torch.manual_seed(7)
for _ in range(2):
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    loss = torch.nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    AFTER
    optimizer.step()
"""
BROADCAST = "dist.broadcast(up, 0)\ndist.broadcast(down, 0)"
FILES = """
if rank == 0:
    for k in range(world):
        torch.save(down.chunk(world, 1)[k], f"part{k}.pt")
dist.barrier()
"""


class PartsOfAWhole(unittest.TestCase):
    """The whole is drawn on all ranks, and each keeps a part."""

    def report(self, down, seed="0", given="", after="pass"):
        text = HALVES.replace("SEED", seed).replace("GIVEN", given).replace("DOWN", down)
        text = "dist.init_process_group('gloo')\n" + text.replace("AFTER", after)
        return verified(text, mesh="tp=2")

    def test_right_ones(self):
        for seed, given in (("0", ""), ("rank", BROADCAST)):
            report = self.report("down.chunk(world, 1)[rank]", seed, given)
            self.assertEqual("EQUIVALENT", report.verdict, report.text)

    def test_wrong_ones(self):
        """Also where what is cut had been sent by another rank."""
        for seed, given in (("0", ""), ("rank", BROADCAST)):
            for down in (
                "down.view(world, 4, -1)[rank]",
                "down.chunk(world, 1)[rank].T if world > 1 else down",
                "down.chunk(world, 1)[world - 1 - rank]",
                "down.chunk(world, 1)[0]",
            ):
                with self.subTest(down, given=bool(given)):
                    report = self.report(down, seed, given)
                    self.assertEqual("NOT EQUIVALENT", report.verdict, report.text)

    def test_parts_that_are_not_followed(self):
        """They are made of the same numbers, and may be others than the rank's part."""
        gathered = "torch.cat(dist.nn.all_gather(down.chunk(world, 1)[rank].contiguous()), 1)"
        for down in (
            "down.chunk(world, 1)[rank] * (rank + 1)",
            "torch.nn.functional.normalize(down.chunk(world, 1)[world - 1 - rank], dim=1)",
            "up.T.chunk(world, 1)[rank] if world > 1 else down",  # of another parameter
            f"{gathered}.chunk(world, 1)[world - 1 - rank]",
        ):
            with self.subTest(down):
                report = self.report(down, given="import torch.distributed.nn")
                self.assertEqual("CONDITIONAL", report.verdict, report.text)
                self.assertRegex(report.text, "initial-values: the first values of down are taken")

    def test_what_is_told(self):
        report = self.report("down.view(world, 4, -1)[rank]")
        self.assertRegex(
            report.text,
            r"rank 0 begins down, of shape \[4, 4\], with other elements of the single device's "
            r"than its part has: at \[1, 0\] it has the one that is at \[0, 4\] there",
        )

    def test_parts_in_files(self):
        for part, expected in (("rank", "EQUIVALENT"), ("0", "NOT EQUIVALENT")):
            report = self.report(f'torch.load(f"part{{{part}}}.pt")', given=FILES)
            self.assertEqual(expected, report.verdict, report.text)

    def test_gradients_of_parts_are_added_up(self):
        report = self.report(
            "down.chunk(world, 1)[rank]",
            after="[(dist.all_reduce(p.grad), p.grad.div_(world)) for p in net.parameters()]",
        )
        self.assertEqual("NOT EQUIVALENT", report.verdict, report.text)


if __name__ == "__main__":
    unittest.main()
