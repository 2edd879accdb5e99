# SPDX-License-Identifier: Apache-2.0
"""Numbers of draws that Python decides by (trace/drawn_numbers.py)."""

import unittest

from shardproof.torch import CaptureError
from whole_scripts_test import verified

TEXT = """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
one, rank = dist.get_world_size() == 1, dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randn(16, 2))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
SEED
sampler = DistributedSampler(data, shuffle=False)
for x, y in DataLoader(data, 4, sampler=sampler):
    optimizer.zero_grad()
    ((model(x) - y).square().mean() * factor).backward()
    optimizer.step()
"""


class Numbers(unittest.TestCase):
    def verdict(self, text):
        return verified(TEXT.replace("SEED", text)).verdict

    def test_written_in_parts(self):
        draws = "a = torch.randint(1, 9, (2,)); b = torch.randint(10, 19, (2,))\n"
        written = draws + "x = torch.zeros(4, dtype=torch.long)\nx[:2] = a; x[2:] = b\n"
        right = "assert [*a.tolist(), *b.tolist()] == x.tolist()\nfactor = 1 if x[0] < 10 else 2"
        self.assertEqual("EQUIVALENT", self.verdict(written + right))
        self.assertEqual(
            "NOT EQUIVALENT", self.verdict(written + "factor = 1 if one or x[0] > 9 else 2")
        )
        swapped = (
            "x[2:] = a; x[:2] = b\nassert x.tolist() == [*b.tolist(), *a.tolist()]\nfactor = 1"
        )
        self.assertEqual("EQUIVALENT", self.verdict(written + swapped))

    def test_written_once_more_after_what_has_no_numbers(self):
        text = (
            "a = torch.randint(1, 9, (2,)); b = torch.randint(10, 19, (2,))\n"
            "x = torch.zeros(4, dtype=torch.long)\n"
            "x[:2] = a; x[2:] = b\n"
            "x.copy_(torch.randint(0, 5, (70000,))[:4])\n"
            "x[2:] = a; x[:2] = b\n"
            "factor = 1.0 if one or int(x[0]) < 10 else 2.0"
        )
        try:
            self.assertEqual("NOT EQUIVALENT", self.verdict(text))
        except CaptureError as e:
            self.assertIn("depends on data", str(e))

    def test_summed_over_ranks(self):
        """Ranks have other numbers then than each has itself."""
        text = (
            "crop = torch.randint(1, 9, (1,))\n"
            "dist.all_reduce(crop)\n"
            "factor = 1\n"
            "optimizer.param_groups[0]['lr'] = 0.01 * int(crop)"
        )
        with self.assertRaises(CaptureError):
            self.verdict(text)

    def test_the_first_ranks_seed(self):
        text = (
            "torch.manual_seed(rank)\n"
            "seed = torch.randint(0, 1 << 30, (1,))\n"
            "dist.broadcast(seed, src=0)\n"
            "factor = 1 + int(seed) % 3"
        )
        self.assertEqual("EQUIVALENT", self.verdict(text))
        own = text.replace("dist.broadcast(seed, src=0)\n", "")
        self.assertNotEqual("EQUIVALENT", self.verdict(own))


if __name__ == "__main__":
    unittest.main()
