# SPDX-License-Identifier: Apache-2.0
"""Constants that ranks reduce or gather are numbers to the script (shared_constants.py)."""

import unittest

import torch
from shardproof.torch.distributed.shared_constants import SharedConstants, constants_apart
from shardproof.torch.terms.values import Known, Named
from whole_scripts_test import verified

TEXT = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randn(16, 2))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data, 4, sampler=DistributedSampler(data))
total = torch.tensor(len(loader.sampler))
dist.all_reduce(total)
most = torch.tensor([len(loader.sampler)])
dist.all_reduce(most, dist.ReduceOp.MAX)
lengths = [torch.zeros(1, dtype=torch.long) for _ in range(dist.get_world_size())]
dist.all_gather(lengths, torch.tensor([len(loader.sampler)]))
assert int(total) == sum(x.item() for x in lengths) == int(most.item()) * dist.get_world_size()
for x, y in loader:
    optimizer.zero_grad()
    ((model(x) - y).square().sum() * DIVIDED / 16).backward()
    optimizer.step()
"""


class Scripts(unittest.TestCase):
    def verdict(self, divided, *others):
        text = TEXT.replace("DIVIDED", divided)
        return verified(text, *others).verdict

    def test_lengths(self):
        self.assertEqual("EQUIVALENT", self.verdict("dist.get_world_size()"))
        self.assertEqual("NOT EQUIVALENT", self.verdict("1"))

    def test_a_number_of_the_program(self):
        """Twice as many samples as rank 0 has."""
        self.assertEqual("EQUIVALENT", self.verdict("(int(total) // len(loader.sampler))"))
        self.assertEqual("EQUIVALENT", self.verdict("(2 if total > 8 and len(lengths) > 1 else 1)"))
        self.assertEqual("NOT EQUIVALENT", self.verdict("(2 if total > 16 else 1)"))

    def test_what_depends_on_the_rank(self):
        rank = "(1 + (int(total) - len(loader.sampler)) // 8 * dist.get_rank())"
        self.assertEqual("NOT EQUIVALENT", self.verdict(rank))

    def test_four_ranks(self):
        self.assertEqual("EQUIVALENT", self.verdict("(int(total) // len(loader.sampler))", "dp=4"))

    def test_what_depends_on_data_is_no_number(self):
        with self.assertRaisesRegex(Exception, "depends on data"):
            verified(TEXT.replace("DIVIDED", "len(range(int(model(x).sum())))"))


class Unit(unittest.TestCase):
    def results(self, give):
        """What ranks 0 and 1 get at first, and when rank 0 wants it."""
        mailbox: dict = {}

        def recorded(rank):
            side = SharedConstants(mailbox, rank)
            return side, side.result("dp 1", (0, 1), "sum", give(rank), Named("%0", (1,)))

        (first, before), (_, other) = recorded(0), recorded(1)
        with self.assertRaisesRegex(Exception, "waits for rank 0"):
            first.want(["%0"])
        return [before, other, recorded(0)[1], recorded(1)[1]]

    def test_sums(self):
        found = self.results(lambda rank: Known(torch.tensor([rank + 3])))
        self.assertEqual([Named, Named, Known, Known], [type(v) for v in found])
        self.assertEqual([7, 7], [v.data.item() for v in found[2:]])

    def test_tensors_of_other_kinds(self):
        found = self.results(lambda rank: Known(torch.tensor([3 if rank else 3.0])))
        self.assertEqual({Named}, {type(v) for v in found})

    def test_what_was_given_before(self):
        used = {0: {"dp 1": {0: "a", 1: "b"}}, 1: {"dp 1": {1: "b"}}}
        self.assertIsNone(constants_apart(used))
        used[1]["dp 1"][1] = "c"
        self.assertEqual(("dp 1", 0, 1), constants_apart(used))


if __name__ == "__main__":
    unittest.main()
