# SPDX-License-Identifier: Apache-2.0
"""Collectives: memory layouts, groups, objects, uneven pieces."""

import math
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
from models import MLP
from recorder_steps import MESH, RecorderTest


class Layouts(RecorderTest):
    """Tensors with other strides on some ranks."""

    def test_collectives_of_tensors_with_other_layouts(self):
        """Backends pair elements by their offset in memory (seen with gloo).

        So the ranks' layouts must be equal.
        """

        def whole(x, strided):
            return x.t().contiguous().t() if strided else x.clone()

        def reduced(x, strided):
            t = whole(x, strided)
            dist.all_reduce(t)
            return t / dist.get_world_size()

        def at_one(x, strided):
            t = whole(x, strided)
            dist.reduce(t, 0)
            t = t.contiguous() / dist.get_world_size()
            dist.broadcast(t, 0)
            return t

        def sent(x, strided):
            t = whole(x, strided)
            dist.broadcast(t, 0)
            return t

        def scattered(x, strided):
            part, t = torch.zeros(len(x) // dist.get_world_size(), 4), torch.zeros(4, 4)
            dist.reduce_scatter_tensor(part, whole(x, strided))
            dist.all_gather_into_tensor(t, part)
            return t / dist.get_world_size()

        def step(world, change, strided):
            x = world.input("x", (4, 4))
            world.output(
                "result", x * 1 if world.single else change(x, strided(world.rank)), mean=()
            )

        for change, alike in ((reduced, True), (at_one, True), (sent, True), (scattered, False)):
            for ranks in ("all", "classes"):
                with self.subTest(change.__name__, ranks=ranks):
                    for one in (0, 1, 2) if ranks == "all" else (0, 1, 3):
                        # Of classes rank 2 is not recorded.
                        with self.assertRaisesRegex(
                            sp.CaptureError, r"contiguous\(\).* at collectives_test.py"
                        ):
                            sp.capture(
                                lambda world, c=change, one=one: step(
                                    world, c, lambda rank: rank == one
                                ),
                                mesh={"dp": 4},
                                ranks=ranks,
                            )
                    sp.assert_equivalent(
                        lambda world, c=change: step(world, c, lambda rank: False),
                        mesh={"dp": 4},
                        ranks=ranks,
                    )
                    if alike:
                        sp.assert_equivalent(
                            lambda world, c=change: step(world, c, lambda rank: True),
                            mesh={"dp": 4},
                            ranks=ranks,
                        )

    def test_collectives_of_tensors_that_are_not_contiguous(self):
        """Backends take elements in memory order (seen with gloo), the program in tensor order."""

        def exchanged(world, model):
            out = torch.empty_like(model.up.weight.grad.t())
            dist.all_to_all_single(out, model.up.weight.grad.t().contiguous())
            model.up.weight.grad.copy_(out.t())

        def reduced(world, model):
            dist.all_reduce(model.up.weight.grad[:, 1:3])

        def scattered(world, model):
            parts = [model.down.weight.grad.t(), model.down.weight.grad.t() * 2]
            dist.reduce_scatter(model.up.weight.grad, parts)

        for change in (exchanged, reduced, scattered):
            with self.subTest(change.__name__):
                self.refuse(
                    lambda world, model, change=change: (
                        None if world.single else change(world, model)
                    ),
                    "cannot be followed",
                )

        def step(world):
            model = MLP()
            world.parameters(model)
            model(world.input("x", (4, 16), shard={"dp": 0})).square().mean().backward()
            for p in model.parameters():
                if not world.single:
                    # Dense, and equal on all ranks: each element with its own.
                    dist.all_reduce(p.grad.t())
                    p.grad /= world.size

        sp.assert_equivalent(step, mesh=MESH)


class Groups(RecorderTest):
    """Several communicators of the same ranks, and Python objects of other ranks."""

    def test_two_communicators_of_the_same_ranks(self):
        def step(world, crossed):
            x = world.input("x", (4, 8), shard={"dp": 0})
            a, b = x.sum(), x.square().sum()
            if not world.single:
                groups = [dist.group.WORLD, dist.new_group([0, 1])]
                order = [(a, groups[0]), (b, groups[1])]
                for t, group in (
                    order if world.rank == 0 or not crossed else [(a, groups[1]), (b, groups[0])]
                ):
                    dist.all_reduce(t, group=group)
            world.output("a", a, mean=())
            world.output("b", b, mean=())

        self.assertEqual(
            "EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict
        )
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(lambda world: step(world, True), mesh=MESH).verdict
        )

    def objects(self, use):
        """`use` exchanges objects and returns the learning rate."""

        def step(world):
            model = torch.nn.Linear(8, 8)
            world.parameters(model)
            x = world.input("x", (8, 8), shard={"dp": 0})
            loss = model(x).square().mean()
            rate = use(world, x, loss)
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad, dist.ReduceOp.AVG)
            torch.optim.SGD(model.parameters(), lr=rate).step()
            return loss

        return sp.verify(step, mesh={"dp": 4})

    def test_objects_of_other_ranks(self):
        def gathered(world, x, loss):
            found = [None] * world.size
            for i in range(2):
                dist.all_gather_object(
                    found, {"rank": world.rank, "rows": len(x), "round": i, "loss": loss.item()}
                )
                self.assertEqual(
                    [(r, i) for r in range(world.size)], [(o["rank"], o["round"]) for o in found]
                )
            return 0.8 / sum(o["rows"] for o in found)

        def broadcast(world, x, loss, own=False):
            found = [0.1 * (world.rank + 1), "name"]
            dist.broadcast_object_list(found, src=0)
            return 0.1 * (world.rank + 1) if own else found[0]

        def scattered(world, x, loss):
            found, rows = [None], [None] * world.size if world.rank == 0 else None
            dist.gather_object(len(x), rows, dst=0)
            dist.scatter_object_list(
                found, [0.1 * sum(rows) / 8] * world.size if world.rank == 0 else None, src=0
            )
            return found[0]

        for use in (gathered, broadcast, scattered):
            with self.subTest(use.__name__):
                report = self.objects(use)
                self.assertEqual("EQUIVALENT", report.verdict, str(report))
        self.assertEqual(
            "NOT EQUIVALENT",
            self.objects(lambda world, x, loss: broadcast(world, x, loss, True)).verdict,
        )

    def test_objects_that_never_come_or_hold_tensors(self):
        def exchange(world, obj):
            dist.all_gather_object([None] * world.size, obj)
            return 0.1

        with self.assertRaisesRegex(sp.CaptureError, "which never calls it"):
            self.objects(
                lambda world, x, loss: 0.1 if world.single or world.rank else exchange(world, 1)
            )
        with self.assertRaisesRegex(sp.CaptureError, "inside of a Python object"):
            self.objects(lambda world, x, loss: exchange(world, {"loss": loss}))


class OverRanks(unittest.TestCase):
    """Collectives that the format does not have, each right and wrong."""

    def test_products(self):
        def step(world, wrong=False, functional=False):
            x = world.input("x", (12, 6), shard={"dp": 0})
            pieces = x.chunk(3 if world.single else 1)
            whole = math.prod(pieces[1:], start=pieces[0])
            if functional and not world.single:
                whole = torch.distributed._functional_collectives.all_reduce(
                    x, "product", world.group("dp")
                )
            elif not world.single:
                whole = x.clone()
                dist.all_reduce(whole, dist.ReduceOp.SUM if wrong else dist.ReduceOp.PRODUCT)
            world.output("p", whole, mean=())

        def scattered(world, wrong=False):
            x = world.input("x", (9, 6), shard={"dp": 0})
            if world.single:
                world.output("p", x[:3] * x[3:6] * x[6:], mean=())
            else:
                out = torch.empty(1, 6)
                dist.reduce_scatter_tensor(out, x, dist.ReduceOp.PRODUCT)
                world.output("p", out * x[:1] if wrong else out, shard={"dp": 0})

        for right, wrong in (
            (step, lambda world: step(world, wrong=not world.single)),
            (lambda world: step(world, functional=True), None),
            (scattered, lambda world: scattered(world, wrong=True)),
        ):
            self.assertEqual("EQUIVALENT", sp.verify(right, mesh={"dp": 3}).verdict)
            if wrong:
                self.assertEqual("NOT EQUIVALENT", sp.verify(wrong, mesh={"dp": 3}).verdict)

    SENT = ((1, 3, 0), (2, 1, 1), (0, 2, 2))  # rows from each rank to each

    def exchanged(self, sent=SENT, swapped=False, waits=True, how="c10d"):
        """Rows that ranks give each other, so many each."""
        n, rows_each = len(sent), sum(sent[0])

        def step(world):
            x = world.input("x", (rows_each * n, 6), shard={"ep": 0})
            at = [[rows_each * a + sum(sent[a][:b]) for b in range(n)] for a in range(n)]
            if world.single:
                rows = [
                    torch.cat([x[at[a][b] : at[a][b] + sent[a][b]] for a in range(n)])
                    for b in range(n)
                ]
            else:
                gives, gets = sent[world.rank], [sent[a][world.rank] for a in range(n)]
                if how == "functional":
                    out = torch.distributed._functional_collectives.all_to_all_single(
                        x, gets, gives, world.group("ep")
                    )
                elif how == "lists":
                    parts = [torch.empty(k, 6) for k in gets]
                    dist.all_to_all(parts, [t.contiguous() for t in x.split(gives)])
                    out = torch.cat(parts)
                else:
                    out = torch.empty(sum(gets), 6)
                    work = dist.all_to_all_single(out, x, gets, gives, async_op=True)
                    if waits:
                        work.wait()
                rows = [out]
            weights = [torch.arange(1.0, len(r) + 1)[:, None] for r in rows]
            sums = torch.stack(
                [
                    (r.flip(0) if swapped and not world.single else r).mul(w).sum(0)
                    for r, w in zip(rows, weights, strict=True)
                ]
            )
            world.output("sums", sums, shard={"ep": 0})

        return sp.verify(step, mesh={"ep": n})

    def test_uneven_all_to_all(self):
        for how in ("c10d", "functional", "lists"):
            with self.subTest(how):
                self.assertEqual("EQUIVALENT", self.exchanged(how=how).verdict)
                self.assertEqual("NOT EQUIVALENT", self.exchanged(how=how, swapped=True).verdict)
        report = self.exchanged(waits=False)
        self.assertEqual(("NOT EQUIVALENT", "async"), (report.verdict, report.defects[0].kind))

    def test_an_all_to_all_that_is_uneven_on_some_ranks_only(self):
        with self.assertRaisesRegex(
            sp.CaptureError,
            "collectives_test.py.*unequal sizes on rank 1 and of equal ones on rank 0",
        ):
            self.exchanged(((2, 2, 2), (2, 1, 3), (2, 3, 1)))

    def test_lists_of_unequal_tensors(self):
        """Rows of a weight that no number of ranks divides.

        Gradients go to their owners, and weights back.
        """

        def step(world, of=0, mean=True):
            model = torch.nn.Linear(4, 7, bias=False)
            weight = model.weight
            loss = model(world.input("x", (9, 4), shard={"dp": 0})).square().mean()
            loss.backward()
            if world.single:
                new = weight.detach() - 0.1 * weight.grad
            else:
                rows = (2, 4, 1)
                mine = torch.empty(rows[world.rank], 4)
                dist.reduce_scatter(mine, list(weight.grad.split(rows)))
                owned = weight.detach().split(rows)[world.rank] - 0.1 * (mine / 3 if mean else mine)
                parts = [torch.empty(n, 4) for n in rows]
                dist.all_gather(parts, owned.contiguous())
                new = torch.cat(parts[of:] + parts[:of])
            with torch.no_grad():
                weight.copy_(new)
            weight.grad = None
            return loss

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh={"dp": 3}).verdict)
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(lambda world: step(world, of=1), mesh={"dp": 3}).verdict
        )
        self.assertEqual(
            "NOT EQUIVALENT",
            sp.verify(lambda world: step(world, mean=False), mesh={"dp": 3}).verdict,
        )

    def test_memory_that_is_sent_and_never_written(self):
        """A list that is padded to the number of ranks: right where nobody reads the padding."""

        def step(world):
            xs = [world.input(f"x{i}", (2, 3)) for i in range(3)]
            padded = [x.clone() for x in xs] + [torch.empty(2, 3)]
            if not world.single:
                for first in range(0, 4, world.size):
                    group = padded[first : first + world.size]
                    dist.all_gather(group, group[world.rank])
            world.output("sum", sum(padded[:3]), mean=())

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh={"dp": 2}).verdict)

        def reads(world):
            padded = [world.input("x", (2, 3)).clone(), torch.empty(2, 3)]
            if world.single:
                padded[1].zero_()
            else:
                dist.all_gather(padded, padded[world.rank])
            world.output("sum", padded[0] + padded[1], mean=())

        report = sp.verify(reads, mesh={"dp": 2})
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)

    def test_pieces_that_are_not_the_tensor(self):
        def step(world):
            x, out = world.input("x", (4, 6)), torch.empty(4, 6)
            if not world.single:
                dist.all_to_all_single(out, x, [1, 1], [1, 1])
            world.output("o", x if world.single else out, mean=())

        with self.assertRaisesRegex(sp.CaptureError, "pieces of 1, 1 rows, of a tensor of 4"):
            sp.verify(step, mesh=MESH)


if __name__ == "__main__":
    unittest.main()
