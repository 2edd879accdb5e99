# SPDX-License-Identifier: Apache-2.0
"""The recorder fails closed: what it does not know is an error, never a verdict."""

import json
import threading
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from recorder_steps import MESH, RecorderTest, train

left_behind: dict = {}


class FailClosed(RecorderTest):
    """Operators without a lowering, memory without values, indices outside."""

    def test_an_operator_without_lowering_poisons_what_it_writes(self):
        def change(world, model):
            grad = model.up.weight.grad
            torch.lgamma(grad[:16], out=grad[16:])

        self.refuse(change, "no line in the table of operators")

    def test_what_one_rank_gives_to_a_collective(self):
        """The others' programs have the collective: that is no defect of the step."""

        def step(world):
            model = torch.nn.Linear(4, 4)
            h = model(world.input("x", (4, 4)))
            if world.rank == 1:
                h = h.masked_fill(torch.eye(4).bool(), float("-inf")) * h
            if not world.single:
                dist.all_reduce(h)
            world.output("row", model.bias * 2)

        with self.assertRaisesRegex(
            sp.CaptureError, "all_reduce at .*what rank 1 gives cannot be followed: .*infinities"
        ):
            sp.verify(step, mesh=MESH)

    def test_sorting_long_rows_is_not_followed(self):
        def change(world, model):
            model.up.weight.grad.copy_(
                model.up.weight.grad.flatten().sort().values.view_as(model.up.weight)
            )

        self.refuse(change, "a choice among more than")

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

    def test_indices_outside(self):
        for name, f in {
            "index": lambda x: x[torch.tensor([4, 5])],
            "below": lambda x: x[torch.tensor([-5, 0])],
            "both": lambda x: x[torch.tensor([4, 0]), torch.tensor([1, 2])],
            "select": lambda x: x.index_select(0, torch.tensor([4])),
            "embedding": lambda x: F.embedding(torch.tensor([-1]), x),
            "write": lambda x: x.clone().index_put_((torch.tensor([4, 5]),), x[:2]),
        }.items():
            with self.subTest(name), self.assertRaisesRegex((sp.CaptureError, IndexError), "index"):
                self.of_x(f, f)

    def test_a_penalty_on_gradients(self):
        """Gradients that are differentiated again do not have the loss's scale.

        Nothing is claimed of them.
        """

        def step(world, total=True):
            model = world.parameters(
                torch.nn.Sequential(
                    torch.nn.Linear(4, 6), torch.nn.Softplus(), torch.nn.Linear(6, 1)
                )
            )
            x = world.input("x", (6, 4), shard={"dp": 0}).requires_grad_()
            out = model(x)
            (grad,) = torch.autograd.grad(out.sum() if total else out.mean(), x, create_graph=True)
            loss = F.softplus(-out).mean() + grad.square().sum(1).mean()
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            return loss

        report = sp.verify(step, mesh=MESH, allow_uncompared=["x.grad"])
        self.assertEqual("EQUIVALENT", report.verdict)
        self.assertNotIn("Wrong lineage", report.text)
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict
        )

    def test_an_embedding_whose_gradient_counts_the_batch(self):
        def step(world):
            model = torch.nn.Embedding(8, 4, scale_grad_by_freq=True)
            world.parameters(model)
            model(
                world.input("t", (4,), torch.long, shard={"dp": 0}, high=8)
            ).square().sum().backward()

        with self.assertRaisesRegex(sp.CaptureError, "scale_grad_by_freq"):
            sp.capture(step, mesh=MESH)


class NotFollowed(unittest.TestCase):
    """What real processes do otherwise than the recording would have it."""

    def refused(self, change, text, mesh=MESH):
        def step(world):
            x = world.input("x", (8, 4), shard={"dp": 0})
            world.output("y", x if world.single else change(world, x), shard={"dp": 0})

        with self.assertRaisesRegex(sp.CaptureError, text):
            sp.capture(step, mesh=mesh)

    def test_memory_of_any_layout_that_nothing_wrote(self):
        """ATen's decompositions allocate memory under other names: its content is no constant."""
        for how in (
            lambda x: torch.empty_strided((4, 4), (4, 1)),
            lambda x: x.new_empty_strided((4, 4), (4, 1)),
            lambda x: torch.empty_strided((4, 4), (4, 1)) * 0,
            lambda x: torch.Tensor(4, 4),
        ):
            self.refused(lambda world, x, how=how: x + how(x), "never written")

    def test_other_threads(self):
        def change(world, x):
            thread = threading.Thread(target=lambda: x.mul_(2))
            thread.start()
            thread.join()
            return x

        self.refused(change, "in another thread")

    def test_sums_of_booleans(self):
        self.refused(lambda world, x: ((x > 0) + (x < 1)).float(), "sum of booleans")
        self.refused(
            lambda world, x: x * (x > 0).sum(0, dtype=torch.bool).float(), "sum of booleans"
        )
        self.refused(
            lambda world, x: (
                torch.zeros(4, dtype=torch.bool)
                .index_add(0, torch.tensor([0, 0]), x[0, :2] > 0)
                .float()
                * x
            ),
            "sum of booleans",
        )

        def reduced(world, x):
            positive = x > 0
            dist.all_reduce(positive)
            return positive.float()

        self.refused(reduced, "booleans that are added up")

    def test_memory_seen_as_another_dtype(self):
        self.refused(
            lambda world, x: x.view(torch.int32).float(),
            "a view of torch.float32 memory as torch.int32",
        )

    def test_ranks_that_communicate_other_dtypes(self):
        def reduced(world, x):
            y = x.double() if world.rank == 0 else x.clone()
            dist.all_reduce(y)
            return y.float()

        def sent(world, x):
            y = x.half() if world.rank == 0 else x.clone()
            (dist.send if world.rank == 0 else dist.recv)(y, 1 - world.rank)
            return y.float()

        self.refused(reduced, "rank 1 gives torch.float32 .* rank 0 torch.float64")
        self.refused(sent, "torch.float16")

    def test_groups_that_not_all_ranks_make(self):
        def one(world, x):
            if world.rank == 0:
                dist.new_group([0, 1])
            return x

        def own(world, x):
            dist.new_group([0, 1] if world.rank < 2 else [2, 3])
            return x

        self.refused(one, "dist.new_group")
        self.refused(own, "dist.new_group", {"dp": 4})

    def test_what_a_middle_rank_finds_of_others(self):
        def step(world):
            x = world.input("x", (8, 4), shard={"dp": 0})
            if world.rank == 0:
                left_behind["factor"] = 2.0
            world.output(
                "y",
                x * (2.0 if world.single or world.rank == 3 else left_behind.get("factor", 3.0)),
                shard={"dp": 0},
            )

        for jobs in (1, 2):
            left_behind.clear()
            self.assertEqual(
                "NOT EQUIVALENT",
                sp.verify(
                    step, mesh={"dp": 4}, jobs=jobs, arguments=["--stage-timeout", "10"]
                ).verdict,
            )

    def test_decisions_by_numbers_in_an_interval(self):
        def by(decide, who=lambda world: True):
            def change(world, model):
                number = json.loads(json.dumps((model.up.weight.grad.norm()).item()))
                if who(world) and decide(number):
                    model.up.weight.grad.mul_(3)
                if not world.single:
                    dist.broadcast(model.up.weight.grad, 0)

            return lambda world: train(world, change)

        def spike(number):
            if abs(number) > 1e6:
                raise FloatingPointError
            return number > 0.85

        for step in (
            by(lambda n: 0 <= n < 0.85),
            by(lambda n: n > 0.85, lambda world: world.rank == 0),
            by(spike),
        ):
            with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
                sp.capture(step, mesh=MESH)

    def test_results_within_results(self):
        def step(change):
            def run(world):
                y = world.input("x", (), high=None)
                return {
                    "a": {"b": y * (1 if world.single else change)},
                    "c": [y, (y, y * change)] if world.single else [y, (y, y * change * change)],
                    "d": (y * (2 if world.single else 2 * change)).item(),
                }

            return run

        self.assertEqual("EQUIVALENT", sp.verify(step(1), mesh=MESH).verdict)
        captured = sp.capture(step(2), mesh=MESH)
        self.assertEqual({"a.b", "c.0", "c.1.0", "c.1.1", "d"}, set(captured.names))
        self.assertEqual("NOT EQUIVALENT", sp.verify(step(2), mesh=MESH).verdict)


if __name__ == "__main__":
    unittest.main()
