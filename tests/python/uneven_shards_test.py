# SPDX-License-Identifier: Apache-2.0
"""FSDP2 over more ranks than there are rows.

Which ranks are recorded, stretches of an axis in plans, and verdicts. They equal those with all
ranks recorded, and those of real processes.
"""

import functools
import json
import sys
import tempfile
import unittest
import unittest.mock

import shardproof.torch as sp
import torch
import torch.nn.functional as F
from models import MLP
from shardproof.program import verify_files
from shardproof.torch import numeric
from shardproof.torch.intercept import fully_sharded as patches
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def nothing(world, has_rows, loss):
    return loss


def twice_without_rows(world, has_rows, loss):
    """Ranks that have no row of the first weight add twice their part of the gradient."""
    return loss if has_rows else loss * 2


def twice_on(coordinate):
    def changed(world, has_rows, loss):
        return loss * 2 if world.coordinates["dp"] == coordinate else loss

    return changed


def train(world, hidden, change=nothing, after=None):
    """FSDP2 over dp of a model that tp, where there is one, has cut before."""
    model = MLP(dim=6, hidden=hidden, bias=True)
    if not world.single:
        if "tp" in world.sizes:
            parallelize_module(
                model, world.mesh("tp"), {"up": ColwiseParallel(), "down": RowwiseParallel()}
            )
        fully_shard(model, mesh=world.mesh("dp"))
    has_rows = world.single or model.up.weight.to_local().numel() > 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = (world.input(name, (48, 6), shard={"dp": 0}) for name in "xy")
    loss = F.mse_loss(model(x), y)
    (loss if world.single else change(world, has_rows, loss)).backward()
    if after is not None and not world.single:
        after(world, model)
    optimizer.step()
    return loss


def train_table(world, after=None):
    """FSDP2 over dp of a table with windows over tp.

    Of 4 rows, each of 8 ranks along dp has one or none.
    """
    model = torch.nn.Module()
    model.table, model.out = torch.nn.Embedding(16, 6), torch.nn.Linear(6, 8)
    model.forward = lambda ids: model.out(model.table(ids))
    if not world.single:
        parallelize_module(
            model,
            world.mesh("tp"),
            {"table": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate())},
        )
        fully_shard(model, mesh=world.mesh("dp"))
    ids, y = (
        world.input("ids", (16, 3), torch.int64, shard={"dp": 0}, high=16),
        world.input("y", (16, 3, 8), shard={"dp": 0}),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loss = F.mse_loss(model(ids), y)
    loss.backward()
    if after is not None and not world.single:
        after(world, model)
    optimizer.step()
    return loss


def load(name, which):
    return {
        "right": functools.partial(train, hidden=3),
        "wrong": functools.partial(train, hidden=3, change=twice_without_rows),
    }[name]


class UnevenShards(unittest.TestCase):
    def capture(self, mesh, hidden, **options):
        step = functools.partial(
            train, hidden=hidden, **{k: options.pop(k) for k in ("change", "after") if k in options}
        )
        return sp.capture(step, mesh=mesh, ranks=options.pop("ranks", "classes"), **options)

    def verdict(self, captured):
        with tempfile.TemporaryDirectory() as folder:
            _, plan = captured.write(f"{folder}/step")
            return verify_files(plan, arguments=["--confirm", "off"]).verdict

    def stretches(self, captured):
        return [p.get("at", {}).get("dp") for p in captured.plan["programs"]]

    def test_stretches(self):
        """Of 6 columns and rows one rank has one each; hidden rows end earlier."""
        for mesh, hidden, expected, recorded in (
            ({"dp": 8}, 4, [[0, 4], [4, 6], [6, 8]], {0, 1, 3, 4, 5, 6, 7}),
            ({"dp": 12}, 5, [[0, 5], 5, [6, 12]], {0, 1, 4, 5, 6, 7, 11}),
            ({"dp": 6}, 4, [[0, 4], [4, 6]], {0, 1, 3, 4, 5}),
            ({"dp": 4}, 10, [[0, 3], 3], {0, 1, 2, 3}),
        ):
            captured = self.capture(mesh, hidden)
            self.assertEqual(expected, self.stretches(captured))
            self.assertEqual(recorded, set(captured.recorded))
            self.assertEqual(2, captured.plan["version"])
            self.assertTrue(
                any(
                    f"within {expected[0][0]} to {expected[0][1] - 1}" in a.text
                    for a in captured.assumptions
                ),
                captured.assumptions,
            )
            self.assertEqual("EQUIVALENT", self.verdict(captured))

    def test_all_ranks_report_the_same(self):
        for mesh, hidden, tp in (({"dp": 6}, 4, 1), ({"dp": 8, "tp": 2}, 10, 2)):
            for change, verdict in (
                (nothing, "EQUIVALENT"),
                (twice_without_rows, "NOT EQUIVALENT"),
            ):
                with self.subTest(mesh=mesh, change=change.__name__):
                    few = self.capture(mesh, hidden, change=change)
                    self.assertEqual(verdict, self.verdict(few))
                    self.assertTrue(any(isinstance(s, list) for s in self.stretches(few)))
                    if tp == 1:
                        every = self.capture(mesh, hidden, change=change, ranks="all")
                        self.assertEqual(verdict, self.verdict(every))
                        self.assertLess(len(few.recorded), len(every.recorded))
                        self.assertFalse(any(isinstance(s, list) for s in self.stretches(every)))

    def test_jobs(self):
        one, two = (self.capture({"dp": 8}, 4, jobs=jobs) for jobs in (1, 2))
        self.assertEqual(json.dumps(one.plan), json.dumps(two.plan))

    def test_ranks_are_recorded_once(self):
        """Programs of ranks without rows have their own shapes.

        The programs of all ranks are made a second time, from what was kept of them.
        """
        module = sys.modules["shardproof.torch.session.capture"]
        with unittest.mock.patch.object(
            module, "recorded_ranks", wraps=module.recorded_ranks
        ) as recorded:
            captured = self.capture({"dp": 8}, 4, jobs=2)
        self.assertEqual(1, recorded.call_count)
        self.assertEqual("EQUIVALENT", self.verdict(captured))

    def test_pieces_of_parameters(self):
        """FSDP2 makes all pieces of a parameter to take one."""
        for rows in range(9):
            for pieces in range(1, 7):
                for dim, shape in ((0, (rows, 3)), (1, (2, rows))):
                    tensor = torch.arange(rows * shape[1 - dim]).reshape(shape)
                    expected, found = (
                        _chunk_with_empty(tensor, pieces, dim=dim),
                        patches.Pieces(tensor, pieces, dim=dim),
                    )
                    self.assertEqual([x.tolist() for x in expected], [x.tolist() for x in found])
                    self.assertEqual([x.shape for x in expected], [x.shape for x in found])
                    self.assertEqual(
                        [x.shape for x in expected[-1:]], [x.shape for x in found[-1:]]
                    )

    def test_another_program_at_the_end_of_a_stretch(self):
        """By their sizes ranks 0 to 3 do the same; the last of them does not: all are recorded."""
        captured = self.capture({"dp": 8}, 4, change=twice_on(3))
        self.assertEqual(list(range(8)), captured.recorded)
        self.assertEqual("NOT EQUIVALENT", self.verdict(captured))

    def test_another_program_far_from_the_first(self):
        """The last rank of a stretch is examined in the last coordinates of all other axes, too."""

        def changed(world, has_rows, loss):
            return loss * 2 if world.coordinates == {"dp": 4, "tp": 1} else loss

        with self.assertRaisesRegex(sp.CaptureError, "differ only in dp"):
            self.capture({"dp": 8, "tp": 2}, 10, change=changed)

    def test_ranks_that_follow_others_evenly(self):
        """Windows of the vocabulary move along tp.

        Between its ends only the first ranks along dp are recorded; the plan equals the one with
        all ranks recorded.
        """
        few = sp.capture(train_table, mesh={"dp": 8, "tp": 4}, ranks="classes")
        self.assertEqual({0, 1, 2, 3, 4, 12, 15, 16, 17, 19, 20, 28, 31}, set(few.recorded))
        self.assertTrue(any("move evenly" in a.text for a in few.assumptions), few.assumptions)
        self.assertEqual("EQUIVALENT", self.verdict(few))
        self.assertEqual([[0, 4], [4, 8]], self.stretches(few))
        # multiples are lineage in the one, and nodes beside stretches
        mesh = {"dp": 8, "tp": 4}
        few, every = (
            sp.capture(train_table, mesh=mesh, ranks=ranks, checkpoints=False)
            for ranks in ("classes", "all")
        )
        for program in few.plan["programs"]:
            like = next(
                p for p in every.plan["programs"] if p["at"] == {"dp": program["at"]["dp"][0]}
            )
            nodes = [n for n in program["nodes"] if "/ 8" not in str(n["out"])]
            self.assertEqual(like["nodes"], nodes)

    def test_ranks_that_do_not_follow_evenly(self):
        """Where the last or second rank along tp breaks the even spacing, all are recorded."""

        def changed(coordinates, world, model):
            if world.coordinates["dp"] >= 4 and world.coordinates["tp"] in coordinates:
                with torch.no_grad():
                    model.out.weight.grad.to_local().mul_(2)

        for coordinates in ((3,), (1, 2)):
            captured = sp.capture(
                functools.partial(train_table, after=functools.partial(changed, coordinates)),
                mesh={"dp": 8, "tp": 4},
                ranks="classes",
            )
            self.assertLess({4 * 4 + k for k in range(4)}, set(captured.recorded))
            self.assertFalse(
                any("move evenly" in a.text for a in captured.assumptions), captured.assumptions
            )
            self.assertEqual("NOT EQUIVALENT", self.verdict(captured))

    def test_gradients_wrong_in_one_stretch(self):
        def after(world, model):
            with torch.no_grad():
                for p in model.parameters():
                    if p.grad.to_local().numel() and world.coordinates["dp"] >= 4:
                        p.grad.to_local().mul_(2)

        self.assertEqual("NOT EQUIVALENT", self.verdict(self.capture({"dp": 8}, 4, after=after)))

    def test_real_processes(self):
        found = numeric.compare(load, {"right": {"dp": 4}, "wrong": {"dp": 4}})
        self.assertLess(found["right"][0], 1e-4)
        self.assertGreater(found["wrong"][0], 3e-4)
        for name, verdict in (("right", "EQUIVALENT"), ("wrong", "NOT EQUIVALENT")):
            for ranks in ("all", "classes"):
                self.assertEqual(
                    verdict,
                    self.verdict(sp.capture(load(name, "step"), mesh={"dp": 4}, ranks=ranks)),
                )


if __name__ == "__main__":
    unittest.main()
