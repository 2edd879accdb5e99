# SPDX-License-Identifier: Apache-2.0
"""Batches of DataLoaders: how those of ranks make the single device's (trace/batches.py)."""

import collections
import dataclasses
import unittest

import numpy as np
import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from shardproof.torch.trace import collation
from shardproof.torch.trace.batches import Batch, Cut, Loaded, Shared, cut_of
from shardproof.torch.trace.containers import mapped
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def graphs(items):
    """One graph of many: the edges are numbered through."""
    nodes, edges, labels = zip(*items)
    firsts = [sum(map(len, nodes[:i])) for i in range(len(nodes))]
    return {
        "nodes": torch.cat(nodes),
        "edges": torch.cat([e + n for e, n in zip(edges, firsts)], 1),
        "label": torch.stack(labels),
    }


class Collation(unittest.TestCase):
    def items(self):
        return [
            (torch.randn(3, 2), torch.randint(0, 3, (2, 2)), torch.tensor(float(i)))
            for i in range(2)
        ]

    def found(self, collate, items=None, mixed=()):
        found = collation.sample_dimensions(collate, items or self.items())
        self.assertEqual(set(mixed), {path for path, of in found.items() if of.mixed})
        return {path: of.dim for path, of in found.items()}

    def test_samples_that_come_into_others(self):
        """Of which batches of ranks are no parts."""
        for name, collate in {
            "mean": lambda x: x - x.mean(0),
            "deviation": lambda x: x / x.std(),
            "largest": lambda x: x / x.abs().max(),
            "neighbour": lambda x: x * x.roll(1, 0),
            "sum": lambda x: x / x.sum(0),
        }.items():
            for count in (1, 2):
                with self.subTest(name, count=count):
                    items = self.items()[:count]
                    of = self.found(lambda i, f=collate: f(torch.stack([x[0] for x in i])), items)
                    self.assertEqual({"": None}, of)

    def test_negatives_of_the_same_batch(self):
        def negatives(items):
            x = torch.stack([i[0] for i in items])
            return x, x.roll(1, 0)

        self.assertEqual({"0": 0, "1": None}, self.found(negatives))

    def test_samples_that_are_mixed_at_random(self):
        def mixed(items):
            x = torch.stack([i[0] for i in items])
            return x + x[torch.randperm(len(x))]

        items = [*self.items(), *self.items(), *self.items()]
        self.assertEqual({"": 0}, self.found(mixed, items, [""]))

    def test_of_graphs(self):
        self.assertEqual({"nodes": 0, "edges": None, "label": 0}, self.found(graphs))

    def test_sequences_side_by_side(self):
        def sequences(items):
            return torch.nn.utils.rnn.pad_sequence([i[0] for i in items]), len(items)

        self.assertEqual({"0": 1}, self.found(sequences))

    def test_an_order_of_its_own(self):
        def longest_first(items):
            return torch.stack(sorted((i[0] for i in items), key=lambda x: -float(x.sum())))

        self.assertEqual({"": 0}, self.found(longest_first))

    def test_what_is_drawn(self):
        def noisy(items):
            return torch.stack([i[0] for i in items], 1) + torch.rand(1)

        before = torch.get_rng_state()
        items = self.items()
        after = torch.get_rng_state()
        self.assertEqual({"": 1}, self.found(noisy, items))
        self.assertTrue(torch.equal(after, torch.get_rng_state()))
        self.assertFalse(torch.equal(before, after))

    def test_means_over_samples(self):
        def centered(items):
            x = torch.stack([i[0] for i in items])
            return x, x.mean(0)

        self.assertEqual({"0": 0, "1": None}, self.found(centered))

    def test_samples_that_are_taken_apart(self):
        def popping(items):
            return torch.stack([i.pop("x") for i in items])

        items = [{"x": torch.ones(2)}, {"x": torch.zeros(2)}]
        self.assertEqual({"": 0}, self.found(popping, items))
        self.assertEqual([["x"], ["x"]], [list(i) for i in items])

    def test_an_error_is_none_of_the_step(self):
        self.assertEqual({}, collation.sample_dimensions(lambda items: items[7], self.items()))

    def test_places(self):
        shapes = {"x": Loaded((2, 6), ""), "y": Loaded((2, 4), ""), "z": Loaded((4, 4), "")}
        dims = {"x": collation.Samples(None), "y": collation.Samples(1)}
        both = tuple(Batch((0, 1), shapes, dims=dims) for _ in range(2))
        self.assertIsNone(cut_of(both, "x", 0))
        self.assertEqual(Cut(1, 4, (2, 8), 4), cut_of(both, "y", 1))
        self.assertEqual(Cut(0, 4, (8, 4), 4), cut_of(both, "z", 1))


class AsTheyWereRead(unittest.TestCase):
    """The step cannot be followed for all labels: those that were read are looked at."""

    def verdict(self, scale=1, draws=False):
        class Labels(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, i):
                g = None if draws else torch.Generator().manual_seed(i)
                return torch.randn(3, generator=g), i % 3

        def step(world):
            torch.manual_seed(0)
            model = DDP(torch.nn.Linear(3, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * scale ** (not world.single))
            loader = DataLoader(Labels(), 2, sampler=DistributedSampler(Labels(), shuffle=False))
            for x, y in loader:
                each = model(x).squeeze(1)
                loss = 0.0
                for label in torch.unique(y).tolist():
                    loss = loss + (each * (y == label)).square().sum() / len(y)
                loss.backward()
                optimizer.step()
                break

        return sp.verify(step, mesh={"dp": 2})

    def test_of_the_same_samples(self):
        found = self.verdict()
        self.assertEqual("CONDITIONAL", found.verdict, str(found))
        self.assertIn("batches-as-read", str(found))
        self.assertEqual("NOT EQUIVALENT", self.verdict(scale=2).verdict)

    def test_of_samples_that_are_drawn(self):
        with self.assertRaisesRegex(sp.CaptureError, "depends on data"):
            self.verdict(draws=True)


def batch(samples, **shapes):
    return Batch(tuple(range(samples)), {path: Loaded(s, "") for path, s in shapes.items()})


class Places(unittest.TestCase):
    def test_rows_follow_each_other(self):
        both = batch(4, x=(4, 6)), batch(4, x=(4, 6))
        self.assertEqual(Cut(0, 0, (8, 6), 4), cut_of(both, "x", 0))
        self.assertEqual(Cut(0, 4, (8, 6), 4), cut_of(both, "x", 1))

    def test_uneven_batches(self):
        both = batch(4, x=(4, 6)), batch(3, x=(3, 6))
        self.assertEqual(Cut(0, 4, (7, 6), 3), cut_of(both, "x", 1))

    def test_tensors_that_are_padded_to_lengths_of_their_own(self):
        dims = {"x": collation.Samples(0, ordered=True)}
        both = tuple(Batch((0, 1), {"x": Loaded((2, n), "")}, dims=dims) for n in (5, 7))
        self.assertEqual(Cut(0, 2, (4, 7), 2, (5, 7)), cut_of(both, "x", 1))
        self.assertEqual((2, 7), cut_of(both, "x", 1).shape(single=False))
        dims["x"] = collation.Samples(0)  # in another order together
        self.assertIsNone(cut_of(both, "x", 1))
        self.assertIsNone(cut_of((batch(2, x=(2, 5)), batch(2, x=(2, 7))), "x", 1))

    def test_several_rows_of_a_sample(self):
        both = batch(2, x=(4, 6)), batch(1, x=(2, 6))
        self.assertEqual(Cut(0, 4, (6, 6), 2), cut_of(both, "x", 1))

    def test_samples_in_another_dimension(self):
        both = batch(4, x=(9, 4)), batch(4, x=(9, 4))
        self.assertEqual(Cut(1, 4, (9, 8), 4), cut_of(both, "x", 1))

    def test_the_dimension_that_is_as_long_as_there_are_samples(self):
        both = batch(4, x=(8, 4)), batch(4, x=(8, 4))
        self.assertEqual(Cut(1, 4, (8, 8), 4), cut_of(both, "x", 1))
        both = batch(4, x=(4, 4)), batch(4, x=(4, 4))
        self.assertEqual(Cut(0, 4, (8, 4), 4), cut_of(both, "x", 1))

    def test_no_place(self):
        for shapes in (((4, 7), (4, 9)), ((), ()), ((3,), (3,)), ((4, 6), (4,))):
            with self.subTest(shapes):
                self.assertIsNone(cut_of(tuple(batch(4, x=s) for s in shapes), "x", 0))
        self.assertIsNone(cut_of((batch(4, x=(4,)), batch(4, y=(4,))), "x", 0))

    def test_one_after_another(self):
        first, second = (batch(4, x=(4, 6)), batch(4, x=(4, 6))), (batch(4), batch(4))
        shared = Shared(("dp",), (first, second), False, frozenset({2}), 2, 4)
        self.assertEqual((first[1],), shared.of_single(1))
        self.assertEqual((second[0],), shared.of_single(2))
        self.assertIsNone(shared.of_single(4))
        self.assertEqual(3, shared.number_of(1, 1))
        self.assertEqual([False, False, True], [shared.ends_at(n) for n in (2, 3, 4)])

    def test_integers(self):
        read = [
            Batch((0,), {"y": Loaded((1,), "", below, by)}) for below, by in ((4, True), (7, False))
        ]
        shared = Shared((), ((read[0],), (read[1],)), True, frozenset(), None, 1)
        self.assertEqual((7, False), shared.below("y"))
        unknown = Batch((0,), {"y": Loaded((1,), "")})
        self.assertEqual(
            (None, False), dataclasses.replace(shared, batches=((read[0],), (unknown,))).below("y")
        )


class Structures(unittest.TestCase):
    def test_each_tensor_by_its_path(self):
        Pair = collections.namedtuple("Pair", "a b")
        data = {"x": torch.zeros(2), "more": [torch.ones(1), Pair(torch.zeros(3), "text")]}
        paths = []
        made = mapped(data, lambda path, t: paths.append(path) or t + 1)
        self.assertEqual(["x", "more.0", "more.1.a"], paths)
        self.assertEqual([1, 1], made["x"].tolist())
        self.assertIsInstance(made["more"][1], Pair)
        self.assertEqual("text", made["more"][1].b)
        self.assertEqual([0, 0], data["x"].tolist())

    def test_what_is_no_dictionary_stays_what_it_is(self):
        data = collections.UserDict(x=torch.zeros(2))
        made = mapped(data, lambda path, t: t + 1)
        self.assertIs(data, made)
        self.assertEqual([1, 1], made["x"].tolist())


class Stream(IterableDataset):
    """Each rank takes its samples of one stream."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def __iter__(self):
        generator = torch.Generator().manual_seed(3)
        for i in range(64):
            sample = torch.randn(6, generator=generator), torch.randn(4, generator=generator)
            if i % self.size == self.rank:
                yield sample


class Batches(unittest.TestCase):
    """What a step computes from a loader's batches."""

    def verdict(self, load, mesh="dp=2", parallel=DDP, **options):
        def step(world):
            model = torch.nn.Linear(6, 4)
            model = parallel(model) if parallel else model
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for x, y in load(world):
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                break

        return sp.verify(step, mesh=mesh, **options)

    def check(self, verdict, report, *texts):
        self.assertEqual(verdict, report.verdict, str(report))
        for text in texts:
            self.assertTrue(any(text in a for a in report.assumptions), report.assumptions)

    @staticmethod
    def data(seed=0, n=32):
        generator = torch.Generator().manual_seed(seed)
        return TensorDataset(
            torch.randn(n, 6, generator=generator), torch.randn(n, 4, generator=generator)
        )

    def test_a_stream(self):
        report = self.verdict(lambda w: DataLoader(Stream(w.rank, w.size), batch_size=4))
        self.check("EQUIVALENT", report, "batch of 8 = 2 x 4 (ranks along dp, in order)")

    def test_a_stream_that_all_ranks_read_alike(self):
        report = self.verdict(lambda w: DataLoader(Stream(0, 1), batch_size=4))
        self.check("CONDITIONAL", report, "taken to be the same on all ranks along dp")

    def test_a_sampler_with_a_seed_of_its_own(self):
        def load(world):
            generator = torch.Generator().manual_seed(world.rank)
            return DataLoader(self.data(), batch_size=4, shuffle=True, generator=generator)

        self.check("EQUIVALENT", self.verdict(load), "batch of 8 = 2 x 4")

    def test_requested(self):
        def load(world):
            return DataLoader(self.data(), batch_size=4)

        self.check("CONDITIONAL", self.verdict(load), "taken to be the same")
        self.check(
            "EQUIVALENT", self.verdict(load, batch={"dp": "same"}), "the same as on every rank"
        )
        self.check("EQUIVALENT", self.verdict(load, batch={"dp": "concat"}), "batch of 8 = 2 x 4")
        for wrong in ({"tp": "same"}, {"dp": "both"}):
            with self.assertRaisesRegex(ValueError, "concat or same"):
                self.verdict(load, batch=wrong)

    def test_the_last_batches_of_ranks_differ(self):
        """The mean of the means of 4 and of 3 rows is not the mean of all."""

        def load(world):
            rows = slice(0, 7) if world.single else (slice(0, 4), slice(4, 7))[world.rank]
            x, y = self.data().tensors
            return DataLoader(TensorDataset(x[rows], y[rows]), batch_size=7)

        report = self.verdict(load)
        self.assertEqual("NOT EQUIVALENT", report.verdict, str(report))
        self.assertTrue(any("batch of 7 = 4 + 3" in a for a in report.assumptions))

    def test_tensor_parallel_ranks_read_the_same(self):

        def step(world, seed):
            from torch.distributed.tensor.parallel import (
                ColwiseParallel,
                RowwiseParallel,
                parallelize_module,
            )

            model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 4))
            parallelize_module(
                model, world.mesh("tp"), {"0": ColwiseParallel(), "1": RowwiseParallel()}
            )
            generator = torch.Generator().manual_seed(seed(world.rank))
            loader = DataLoader(self.data(), batch_size=4, shuffle=True, generator=generator)
            x, y = next(iter(loader))
            F.mse_loss(model(x), y).backward()

        self.check("EQUIVALENT", sp.verify(lambda w: step(w, lambda r: 5), mesh="tp=2"))
        wrong = sp.verify(lambda w: step(w, lambda r: 5 + r), mesh="tp=2")
        self.assertEqual("NOT EQUIVALENT", wrong.verdict)
        self.assertIn("read different samples", wrong.defects[0].text)

    def test_samplers_that_disagree(self):
        def load(world):
            sampler = DistributedSampler(self.data(), seed=world.rank)
            return DataLoader(self.data(), batch_size=4, sampler=sampler)

        report = self.verdict(load)
        self.assertEqual("NOT EQUIVALENT", report.verdict)
        self.assertIn("DistributedSampler has seed", report.defects[0].text)

    def test_a_sampler_of_too_few_ranks(self):
        def load(world):
            size = 1 if world.single else 2
            sampler = DistributedSampler(self.data(), size, world.rank % size)
            return DataLoader(self.data(), batch_size=4, sampler=sampler)

        self.check("CONDITIONAL", self.verdict(load, "dp=4"), "deals out samples to 2 ranks")

    def test_lists_and_numbers_beside_tensors(self):
        """On the single device lists have the entries of all ranks."""

        def collate(samples):
            x, y = (torch.stack(column) for column in zip(*samples))
            return {"x": x, "y": y, "names": [f"sample {i}" for i in range(len(samples))]}

        def step(world):
            model = DDP(torch.nn.Linear(6, 4))
            sampler = DistributedSampler(self.data())
            for b in DataLoader(self.data(), batch_size=4, sampler=sampler, collate_fn=collate):
                assert len(b["names"]) == b["x"].shape[0]
                F.mse_loss(model(b["x"]), b["y"]).backward()
                break

        self.check("EQUIVALENT", sp.verify(step, mesh="dp=2"), "batch of 8 = 2 x 4")

    def test_the_length_of_a_loader_is_a_ranks(self):
        """A schedule that it sets is the same on both sides."""

        def step(world):
            sampler = DistributedSampler(self.data())
            loader = DataLoader(self.data(), batch_size=4, sampler=sampler)
            model = DDP(torch.nn.Linear(6, 4))
            optimizer = torch.optim.SGD(model.parameters(), 1 / len(loader))
            for x, y in loader:
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                break

        self.check("EQUIVALENT", sp.verify(step, mesh="dp=2"))

    def test_more_batches_on_one_device(self):
        """A script that accumulates over as many batches on one device as ranks read together."""

        def step(world, count):
            sampler = DistributedSampler(self.data())
            loader = DataLoader(self.data(), batch_size=4, sampler=sampler)
            model = DDP(torch.nn.Linear(6, 4))
            times = count(world)
            for (x, y), _ in zip(loader, range(times)):
                (F.mse_loss(model(x), y) / times).backward()

        right = sp.verify(lambda w: step(w, lambda w: 4 // w.size), mesh="dp=2")
        self.check("EQUIVALENT", right, "those of the ranks along dp one after another")

    def test_arrays_of_ranks(self):
        """Positions that one rank counts from another number on, say, or samples that numbers of
        its own choose: whether these are samples is for the user to say.
        """

        def step(world, drawn):
            model = DDP(torch.nn.Linear(6, 4))
            torch.manual_seed(7 + world.rank)
            begin = int(torch.randint(40, (1,))) if drawn else world.rank
            x = torch.from_numpy(np.arange(begin, begin + 24, dtype=np.float32).reshape(4, 6))
            model(x.to("cuda")).square().mean().backward()

        drawn = sp.verify(lambda w: step(w, True), mesh="dp=2")
        self.check(
            "CONDITIONAL",
            drawn,
            "batch of 8 = 2 x 4",
            "samples of each rank",
            "random numbers of their own",
        )
        self.check(
            "CONDITIONAL", sp.verify(lambda w: step(w, False), mesh="dp=2"), "samples of each rank"
        )

    def test_arrays_of_one_number(self):
        """Flags of samples that happen to be equal on one rank are samples all the same."""

        def step(world, scale=1):
            model = DDP(torch.nn.Linear(6, 4))
            x = torch.from_numpy(np.arange(24, dtype=np.float32).reshape(4, 6) + 24 * world.rank)
            done = [world.rank] * 4 * 2 if not world.single else [0, 1] * 4
            weights = torch.tensor(done, dtype=torch.float32).reshape(4, 2)[:, :1]
            loss = model(x.to("cuda")).square() * (1 - weights.to("cuda"))
            (loss.mean() * (1 if world.single else scale)).backward()

        report = sp.verify(step, mesh="dp=2")
        self.check("CONDITIONAL", report, "samples of each rank")
        wrong = sp.verify(lambda w: step(w, 2), mesh="dp=2")
        self.assertEqual("NOT EQUIVALENT", wrong.verdict, wrong)

    def test_arrays_that_are_not_moved(self):
        def step(world, cut):
            model = DDP(torch.nn.Linear(6, 4))
            data = torch.from_numpy(np.arange(48, dtype=np.float32).reshape(8, 6))
            data = data if world.single or not cut else data.chunk(2)[world.rank]
            model(data).square().mean().backward()

        self.check(
            "CONDITIONAL", sp.verify(lambda w: step(w, True), mesh="dp=2"), "arrays of their own"
        )
        alike = sp.verify(lambda w: step(w, False), mesh="dp=2", accept=["same-batch"])
        self.check("EQUIVALENT", alike, "numbers of this run")

    def test_draws_while_a_batch_is_read(self):
        """Collation masks tokens by random numbers, as for masked language models."""

        def collate(samples):
            ids = torch.stack([x for x, _ in samples]).long().clamp(0, 9)
            labels = ids.clone()
            masked = torch.bernoulli(torch.full(ids.shape, 0.5)).bool()
            labels[~masked] = -100
            words = torch.randint(10, ids.shape)
            ids[masked] = words[masked]
            return {"ids": ids, "labels": labels}

        def step(world, everywhere):
            torch.manual_seed(0)
            loader = DataLoader(
                self.data(), 4, sampler=DistributedSampler(self.data()), collate_fn=collate
            )
            model = DDP(torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10)))
            batch = next(iter(loader))
            count = (batch["labels"] != -100).sum()
            if everywhere:
                dist.all_reduce(count)
                count = count / world.size
            scores = model(batch["ids"]).flatten(0, 1)
            (F.cross_entropy(scores, batch["labels"].flatten(), reduction="sum") / count).backward()

        self.check("EQUIVALENT", sp.verify(lambda w: step(w, True), mesh="dp=2"))
        self.assertEqual("NOT EQUIVALENT", sp.verify(lambda w: step(w, False), mesh="dp=2").verdict)

    def test_what_is_no_tensor_of_samples(self):
        """A count that collation gives, as a number: it is that of the batch that was read."""
        for count in (
            lambda x: len(x) + int(x[0, 0] > 100),
            lambda x: torch.tensor(float(len(x))),
            lambda x: [len(x)],
        ):

            def collate(samples, count=count):
                x = torch.stack([x for x, _ in samples])
                return {"x": x, "count": count(x)}

            def step(world, collate=collate):
                data = self.data()
                loader = DataLoader(data, 4, sampler=DistributedSampler(data), collate_fn=collate)
                model = DDP(torch.nn.Linear(6, 4))
                batch = next(iter(loader))
                n = batch["count"]
                n = n[0] if isinstance(n, list) else n
                (model(batch["x"]).square().sum() / n).backward()

            report = sp.verify(step, mesh="dp=2")
            self.assertIn("batch-constants", str(report))
            self.assertNotEqual("EQUIVALENT", report.verdict)

    def test_batches_that_cannot_be_followed(self):
        def step(world):
            size = 8 // world.size
            loader = DataLoader(self.data(), size, sampler=DistributedSampler(self.data()))
            model = DDP(torch.nn.Linear(6, 4))
            x, y = next(iter(loader))
            kept = y[:, 0] > -100
            F.mse_loss(model(x)[kept], y[kept]).backward()

        self.check("CONDITIONAL", sp.verify(step, mesh="dp=2"), "nothing is known of other batches")

    def test_a_loader_that_deals_to_all(self):
        def step(world):
            data = self.data()
            model = DDP(torch.nn.Linear(6, 4))
            x, y = next(iter(DataLoader(data, 4, sampler=DistributedSampler(data))))
            more, _ = next(iter(DataLoader(data, 4)))
            (F.mse_loss(model(x), y) + model(more).square().mean()).backward()

        self.check("CONDITIONAL", sp.verify(step, mesh="dp=2"), "all ranks along dp read the same")

    def test_samples_that_are_not_first(self):
        """[time, samples, 6] of 4 samples and 8 times: samples are what the sampler counts."""

        def collate(samples):
            return (
                torch.stack([x for x, _ in samples])[None].expand(8, -1, -1)
                + torch.arange(8.0)[:, None, None]
            )

        def step(world):
            data = self.data()
            loader = DataLoader(data, 4, sampler=DistributedSampler(data), collate_fn=collate)
            model = DDP(torch.nn.Linear(6, 4))
            x = next(iter(loader))
            model(x - x.mean(self.dim, keepdim=True)).square().mean().backward()

        self.dim = 0
        self.check("EQUIVALENT", sp.verify(step, mesh="dp=2"), "along dimension 1")
        self.dim = 1
        self.assertEqual("NOT EQUIVALENT", sp.verify(step, mesh="dp=2").verdict)

    def test_samples_of_several_lengths(self):
        """Each rank pads to the longest of its own."""
        lengths = [3, 5, 4, 2, 5, 3, 2, 4] * 2
        data = [(torch.randn(n, 6), torch.tensor(n)) for n in lengths]

        def collate(samples):
            x = torch.nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
            sizes = torch.stack([n for _, n in samples])
            return {"x": x, "seen": torch.arange(x.shape[1]) < sizes[:, None]}

        def step(world, of_tokens=False):
            sampler = DistributedSampler(data, shuffle=False)
            loader = DataLoader(data, 2, sampler=sampler, collate_fn=collate)
            model = DDP(torch.nn.Linear(6, 1))
            for batch in loader:
                seen = batch["seen"].float()
                each = model(batch["x"]).squeeze(-1).square() * seen
                if of_tokens:
                    loss = each.sum() / seen.sum()
                else:
                    loss = (each.sum(1) / (1 + seen.sum(1))).mean()
                loss.backward()
                break

        report = sp.verify(step, mesh="dp=2")
        self.check("CONDITIONAL", report, "to lengths of their own (4, 5)")
        self.assertIn("x [2, 4, 6], seen [2, 4]", report.text)
        wrong = sp.verify(lambda w: step(w, of_tokens=True), mesh="dp=2")
        self.assertEqual("NOT EQUIVALENT", wrong.verdict, wrong)

    def test_samples_that_are_cut_to_the_shortest(self):
        """Ranks cut to lengths of their own, the single device to the shortest of all: a sum over
        what is left is another one.
        """
        lengths = [3, 5, 4, 2, 5, 3, 2, 4] * 2
        data = [torch.randn(n, 6) for n in lengths]

        def collate(samples):
            return torch.stack([x[: min(map(len, samples))] for x in samples])

        def step(world):
            sampler = DistributedSampler(data, shuffle=False)
            loader = DataLoader(data, 2, sampler=sampler, collate_fn=collate)
            model = DDP(torch.nn.Linear(6, 1))
            model(next(iter(loader))).square().sum((1, 2)).mean().backward()

        self.assertEqual("NOT EQUIVALENT", sp.verify(step, mesh="dp=2").verdict)

    def test_samples_that_are_written_piece_by_piece(self):
        """Tokens of a fixed seed between others; a collation chooses some by their number."""

        class Tokens(torch.utils.data.Dataset):
            def __init__(self):
                self.rows = torch.full((16, 8), 3)
                g = torch.Generator().manual_seed(0)
                for row in self.rows:
                    row[1:6] = torch.randint(4, 9, (5,), generator=g)
                    row[0] = 1

            def __len__(self):
                return 16

            def __getitem__(self, i):
                return self.rows[i]

        def collate(samples):
            ids = torch.stack(samples)
            assert int((ids == 1).sum()) == len(samples) and int((ids[ids > 3]).max()) < 9
            return ids

        def step(world, scale=1):
            data = Tokens()
            loader = DataLoader(data, 4, sampler=DistributedSampler(data), collate_fn=collate)
            model = DDP(torch.nn.Embedding(9, 2))
            (model(next(iter(loader))).square().mean() * (1 if world.single else scale)).backward()

        self.check("EQUIVALENT", sp.verify(step, mesh="dp=2"), "batch of 8 = 2 x 4")
        wrong = sp.verify(lambda w: step(w, 2), mesh="dp=2")
        self.assertEqual("NOT EQUIVALENT", wrong.verdict, wrong)

    def test_loaders_on_other_lines(self):
        def step(world):
            data = self.data()
            if world.single:
                loader = DataLoader(data, 8)
            else:
                loader = DataLoader(data, 4, sampler=DistributedSampler(data))
            model = DDP(torch.nn.Linear(6, 4))
            x, y = next(iter(loader))
            F.mse_loss(model(x), y).backward()

        self.check("EQUIVALENT", sp.verify(step, mesh="dp=2"), "batch of 8 = 2 x 4")

    def test_missing_reduction(self):
        def load(world):
            return DataLoader(self.data(), batch_size=4, sampler=DistributedSampler(self.data()))

        self.assertEqual("NOT EQUIVALENT", self.verdict(load, parallel=None).verdict)


if __name__ == "__main__":
    unittest.main()
