# SPDX-License-Identifier: Apache-2.0
"""Labels beside classes, joined integers, booleans, casts inside operators."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F


class NumbersAndTruth(unittest.TestCase):
    """Joined integers, facts about reals, places written twice, casts within operators."""

    MESH = {"dp": 2}

    def verdict(self, single, ranks=None):
        steps = [
            lambda world, f=f: world.output("out", f(world), mean=())
            for f in (single, ranks or single)
        ]
        return sp.verify(*steps, mesh=self.MESH).verdict

    def refused(self, f, text):
        with self.assertRaisesRegex(sp.CaptureError, text):
            self.verdict(f)

    @staticmethod
    def language(shift, loss):
        def step(world):
            tokens = world.input("tokens", (4, 6), torch.long, shard={"dp": 0})
            model = torch.nn.Sequential(
                torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16, bias=False)
            )
            total = loss(model(tokens).flatten(0, 1), shift(tokens).flatten())
            total.backward()
            for p in model.parameters():
                if not world.single:
                    dist.all_reduce(p.grad)
                    p.grad /= world.size
            return total

        return step

    def test_labels_beside_a_number_that_is_no_class(self):
        def written(tokens):
            labels = tokens.clone()
            labels[:, :-1], labels[:, -1] = tokens[:, 1:], -100
            return labels

        def filled(tokens):
            labels = torch.full_like(tokens, -100)
            labels[:, :-1] = tokens[:, 1:]
            return labels

        def of_all(x, y):
            return F.cross_entropy(x, y, reduction="sum") / y.numel()

        def of_counted(x, y):
            return F.cross_entropy(x, y, reduction="sum") / (y.numel() * 5 / 6)

        for shift in (
            lambda t: F.pad(t[:, 1:], (0, 1), value=-100),
            lambda t: F.pad(t, (0, 1), value=-100)[:, 1:],
            written,
            filled,
        ):
            step = self.language(shift, F.cross_entropy)
            self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)
            self.assertEqual(
                "EQUIVALENT",
                sp.verify(step, self.language(shift, of_counted), mesh=self.MESH).verdict,
            )
            self.assertEqual(
                "NOT EQUIVALENT",
                sp.verify(step, self.language(shift, of_all), mesh=self.MESH).verdict,
            )

    def test_such_labels_in_losses_by_hand(self):
        def by_hand(x, labels, counted=lambda labels: (labels != -100).sum()):
            of_each = x.log_softmax(-1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
            return -(of_each * (labels != -100)).sum() / counted(labels)

        shift = lambda t: F.pad(t[:, 1:], (0, 1), value=-100)  # noqa: E731
        step = self.language(shift, by_hand)
        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)
        self.assertEqual(
            "NOT EQUIVALENT",
            sp.verify(
                step,
                self.language(shift, lambda x, y: by_hand(x, y, lambda labels: labels.numel())),
                mesh=self.MESH,
            ).verdict,
        )

    def test_such_labels_that_data_ignores_too(self):
        def shift(tokens):
            return F.pad(tokens.masked_fill(tokens == 0, -100)[:, 1:], (0, 1), value=-100)

        def counted(x, labels):
            n = (labels != -100).sum()
            size = dist.get_world_size()
            if size > 1:
                dist.all_reduce(n)
            return F.cross_entropy(x, labels, reduction="sum") / n * size

        self.assertEqual(
            "EQUIVALENT", sp.verify(self.language(shift, counted), mesh=self.MESH).verdict
        )
        self.assertEqual(
            "NOT EQUIVALENT",
            sp.verify(self.language(shift, F.cross_entropy), mesh=self.MESH).verdict,
        )

    def test_numbers_of_right_answers(self):
        def step(world, all_count=False):
            x, y = (
                world.input("x", (4, 5), shard={"dp": 0}),
                world.input("y", (4,), torch.long, shard={"dp": 0}, high=5),
            )
            y = F.pad(y[:, None], (0, 1), value=-100).flatten()
            found = F.pad(x.argmax(1)[:, None], (0, 1)).flatten()
            right = (found == y) | (y == -100) if all_count and not world.single else found == y
            world.output("right", right.float().sum(), sum=["dp"])

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)
        self.assertEqual(
            "NOT EQUIVALENT",
            sp.verify(step, lambda world: step(world, True), mesh=self.MESH).verdict,
        )

    def test_masked_tokens(self):
        """Some tokens are replaced, by number or by a mask that is drawn, and padded ones, too."""

        def step(world, mask=1, count=None):
            tokens = world.input("tokens", (4, 6), torch.long, shard={"dp": 0}, high=16)
            hidden = world.input("hidden", (4, 6), torch.bool, shard={"dp": 0})
            padded = torch.arange(6) >= world.input(
                "length", (4, 1), torch.long, shard={"dp": 0}, high=7
            )
            model = torch.nn.Sequential(
                torch.nn.Embedding(16, 8, padding_idx=0), torch.nn.Linear(8, 16)
            )
            labels = tokens.masked_fill(~hidden, -100)
            seen = tokens.masked_fill(hidden, mask).masked_fill(padded, 0)
            n = (labels != -100).sum()
            if not world.single:
                (count or dist.all_reduce)(n)
            loss = F.cross_entropy(model(seen).flatten(0, 1), labels.flatten(), reduction="sum") / n
            loss.backward()
            for p in model.parameters():
                if not world.single:
                    dist.all_reduce(p.grad)
            world.output("loss", loss, sum=["dp"])

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)
        for wrong in ({"mask": 2}, {"count": lambda n: n.mul_(2)}):
            with self.subTest(wrong):
                verdict = sp.verify(step, lambda w, wrong=wrong: step(w, **wrong), mesh=self.MESH)
                self.assertEqual("NOT EQUIVALENT", verdict.verdict)

    def test_positions_that_are_counted(self):
        """Positions of tokens from the sum of a mask, as of sequences that are padded on the left,
        which index an embedding.
        """

        def step(world, first=1):
            mask = world.input("mask", (4, 6), torch.long, shard={"dp": 0}, high=2)
            positions = (mask.cumsum(-1) - first).clamp(min=0).masked_fill(mask == 0, 1)
            model = torch.nn.Embedding(6, 3)
            loss = (model(positions) * mask[..., None]).square().mean()
            loss.backward()
            if not world.single:
                dist.all_reduce(model.weight.grad)
                model.weight.grad /= world.size
            world.output("loss", loss, mean=["dp"])

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(step, lambda w: step(w, 0), mesh=self.MESH).verdict
        )

    def test_integers_of_several_inputs(self):
        def numbers(world, change=0):
            given = {
                name: world.input(name, (4, 3), torch.long, shard={"dp": 0}, high=5)
                for name in ("a", "b")
            }
            return given["a"] * given["b"] + given["a"] - (0 if world.single else change)

        def step(world, change=0):
            n = numbers(world, change)
            world.output("parts", (n > 6).float() + n % 3, shard={"dp": 0})
            world.output("sum", n.sum(), sum=["dp"])
            world.output("cut off", (n / 2).long().sum(), sum=["dp"])

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)
        self.assertEqual(
            "NOT EQUIVALENT", sp.verify(step, lambda w: step(w, 1), mesh=self.MESH).verdict
        )

    def test_labels_that_were_declared_with_one_more_class(self):
        def step(world):
            x = world.input("x", (8, 3), shard={"dp": 0})
            return F.cross_entropy(
                x, world.input("labels", (8,), torch.long, shard={"dp": 0}, high=4), ignore_index=3
            )

        self.assertEqual("NOT EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)

    def test_means_of_counts_over_ranks(self):
        def step(world):
            n = torch.tensor(7 if world.single else 3 + world.rank)
            if not world.single:
                dist.all_reduce(n, op=dist.ReduceOp.AVG)
            world.output("y", world.input("x", (4,)) * (n / 2 if world.single else n), mean=())

        with self.assertRaisesRegex(sp.CaptureError, "a mean of integers over ranks"):
            sp.verify(step, mesh=self.MESH)

    def test_long_sequences_of_such_labels(self):
        def step(world):
            x = world.input("x", (4, 2048, 3), shard={"dp": 0}).requires_grad_()
            labels = F.pad(
                world.input("labels", (4, 2047), torch.long, shard={"dp": 0}), (0, 1), value=-100
            )
            return F.cross_entropy(x.flatten(0, 1), labels.flatten())

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=self.MESH).verdict)

    def test_integers_of_two_ranges(self):
        def both(world):
            return torch.cat(
                [
                    world.input("few", (4,), torch.long, high=2),
                    world.input("many", (4,), torch.long, high=9),
                ]
            )

        self.assertNotEqual(
            "EQUIVALENT",
            self.verdict(lambda w: (both(w) >= 2).float(), lambda w: both(w).float() * 0),
        )
        self.assertEqual("EQUIVALENT", self.verdict(lambda w: (both(w) >= 2).float()))

    def test_what_is_true_of_reals(self):
        def of(f):
            return lambda world: f(world.input("x", (4,)), world.input("y", (4,))).float()

        self.assertNotEqual("EQUIVALENT", self.verdict(of(torch.logical_and), of(torch.mul)))
        self.assertNotEqual(
            "EQUIVALENT",
            self.verdict(of(lambda x, y: torch.logical_not(x)), of(lambda x, y: 1 - x)),
        )
        self.assertEqual(
            "EQUIVALENT",
            self.verdict(of(torch.logical_and), of(lambda x, y: (x.abs() > 0) & (y.abs() > 0))),
        )

    def test_places_that_may_be_written_twice(self):
        places = lambda w: w.input("x", (3, 4)).topk(2, 1).indices  # noqa: E731
        for write in (
            lambda w: torch.zeros(4).scatter(0, places(w).flatten(), 1.0),
            lambda w: torch.zeros(4, 2).scatter(0, places(w), 1.0),
            lambda w: torch.zeros(3, 4).scatter(1, places(w)[:, [0, 0]], 1.0),
        ):
            self.refused(write, "positions that may be the same")
        self.assertEqual(
            "EQUIVALENT", self.verdict(lambda w: torch.zeros(3, 4).scatter(1, places(w), 1.0))
        )
        self.assertEqual(
            "EQUIVALENT", self.verdict(lambda w: torch.zeros(4, 3).scatter(0, places(w).T, 1.0))
        )

    def test_casts_inside_of_other_operators(self):
        def pieces(world, dtype):
            buffer = torch.zeros(8)
            buffer[:4], buffer[4:] = world.input("x", (4,)), world.input("y", (4,))
            return buffer.to(dtype).float()

        def copied(world, dtype):
            target = torch.zeros(4, dtype=dtype)
            torch._foreach_copy_([target], [world.input("x", (4,))])
            return target.float()

        for f in (pieces, copied):
            for dtype in (torch.bool, torch.int64):
                self.assertNotEqual(
                    "EQUIVALENT",
                    self.verdict(
                        lambda w, f=f, d=dtype: f(w, d), lambda w, f=f: f(w, torch.float64)
                    ),
                )
            self.assertEqual(
                "EQUIVALENT",
                self.verdict(
                    lambda w, f=f: f(w, torch.int64), lambda w, f=f: f(w, torch.float64).trunc()
                ),
            )
        for f in (
            torch.sum,
            torch.prod,
            lambda x, dtype: x.cumsum(0, dtype=dtype),
            lambda x, dtype: x.cumprod(0, dtype=dtype),
        ):
            cut_off = lambda w, f=f: f(w.input("x", (4,)), dtype=torch.int64).float()  # noqa: E731
            of = lambda w, f=f: f(w.input("x", (4,)).trunc(), dtype=torch.float64)  # noqa: E731
            self.assertEqual("EQUIVALENT", self.verdict(cut_off, of))
            self.assertNotEqual(
                "EQUIVALENT",
                self.verdict(cut_off, lambda w, f=f: f(w.input("x", (4,)), dtype=torch.float64)),
            )
        self.assertEqual(
            "EQUIVALENT",
            self.verdict(lambda w: (w.input("x", (4,)) > 0).float().sum(dtype=torch.float64)),
        )


if __name__ == "__main__":
    unittest.main()
