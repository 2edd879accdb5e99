# SPDX-License-Identifier: Apache-2.0
"""Lookups at integers of the data: in a part of the vocabulary, as each rank of tensor parallelism
has one, and their gradients."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_parallel import CopyToGroup, ReduceFromGroup

ROWS, WIDTH = 16, 6


def verified(step, mesh):
    """The gradient is compared as a result."""
    return sp.verify(step, mesh=mesh, allow_uncompared=["table.grad"], numbers=True)


def assigned(table, ids, mask):
    rows = table[ids]
    rows[mask, :] = 0.0
    return rows


LOOKUPS = {
    "x[ids], an assignment by a mask": assigned,
    "x[ids], masked_fill": lambda table, ids, mask: table[ids].masked_fill(mask[..., None], 0.0),
    "x[ids], where": lambda table, ids, mask: torch.where(mask[..., None], 0.0, table[ids]),
    "embedding, masked_fill": lambda table, ids, mask: F.embedding(ids, table).masked_fill(
        mask.unsqueeze(-1), 0.0
    ),
    "embedding, a product": lambda table, ids, mask: F.embedding(ids, table) * (~mask)[..., None],
    "index_select": lambda table, ids, mask: (
        table.index_select(0, ids.reshape(-1)).view(*ids.shape, -1).masked_fill(mask[..., None], 0)
    ),
}


def tied(lookup):
    """A vocabulary cut by rows, and the same rows as the last layer."""

    def step(world):
        table = world.input("table", (ROWS, WIDTH), shard={"tp": 0}).requires_grad_()
        tokens = world.input("tokens", (2, 5), torch.long, high=ROWS)
        low = world.rank * table.shape[0]
        mask = (tokens < low) | (tokens >= low + table.shape[0])
        ids = tokens - low
        ids[mask] = 0
        h = ReduceFromGroup.apply(lookup(table, ids, mask), None)
        h = h + F.layer_norm(h, (WIDTH,))
        logits = F.linear(CopyToGroup.apply(h, None), table)
        (logits * logits).sum().backward()
        world.output("table.grad", table.grad, shard={"tp": 0})

    return step


class PartOfAVocabulary(unittest.TestCase):
    def verdict(self, step):
        return verified(step, {"tp": 2}).verdict

    def test_each_form_of_the_lookup(self):
        for name, lookup in LOOKUPS.items():
            with self.subTest(name):
                self.assertEqual("EQUIVALENT", self.verdict(tied(lookup)))

    def test_rows_of_others_that_are_not_masked(self):
        for name in ("x[ids], an assignment by a mask", "embedding, masked_fill"):
            with self.subTest(name):
                wrong = tied(
                    lambda table, ids, mask, f=LOOKUPS[name]: f(table, ids, torch.zeros_like(mask))
                )
                self.assertEqual("NOT EQUIVALENT", self.verdict(wrong))

    def test_other_rows_that_are_masked(self):
        wrong = tied(lambda table, ids, mask: F.embedding(ids, table) * mask[..., None])
        self.assertEqual("NOT EQUIVALENT", self.verdict(wrong))


class GradientsOfLookups(unittest.TestCase):
    """By integers of the data, along any dimension, of tables with any number of dimensions."""

    @staticmethod
    def step(lookup, shape, scale=1):
        def run(world):
            table = world.input("table", shape).requires_grad_()
            ids = world.input("ids", (4, 3), torch.long, shard={"dp": 0}, high=5)
            weights = world.input("weights", (4, 3), shard={"dp": 0})
            rows = lookup(table, ids)
            rest = [1] * (rows.dim() - 2)
            (rows * weights.reshape(*weights.shape, *rest)).sum().backward()
            if not world.single:
                dist.all_reduce(table.grad)
                table.grad *= scale
            world.output("table.grad", table.grad)

        return run

    FORMS = (
        (lambda table, ids: table[ids], (5, 6)),
        (lambda table, ids: table[ids], (5, 2, 3)),
        (lambda table, ids: table[:, ids].movedim(0, -1), (3, 5)),
    )

    def test_are_sums_over_positions(self):
        for i, (lookup, shape) in enumerate(self.FORMS):
            with self.subTest(i):
                found = verified(self.step(lookup, shape), {"dp": 2})
                self.assertEqual("EQUIVALENT", found.verdict)
                self.assertIn("those of the step that ran", str(found.numbers))

    def test_another_factor(self):
        lookup, shape = self.FORMS[1]
        found = verified(self.step(lookup, shape, 2), {"dp": 2})
        self.assertEqual("NOT EQUIVALENT", found.verdict)


class Constants(unittest.TestCase):
    def test_of_fractions_are_folded_as_fractions(self):
        """Adam's second moment where a gradient is constant: 9 * (1 - 0.999), as it is 0.009."""

        def step(world):
            layer = torch.nn.Linear(2, 2)
            optimizer = torch.optim.Adam(layer.parameters())
            layer(world.input("x", (6, 2), shard={"dp": 0})).sum().backward()
            for p in layer.parameters():
                if not world.single:
                    dist.all_reduce(p.grad)
            optimizer.step()

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh={"dp": 2}).verdict)


if __name__ == "__main__":
    unittest.main()
