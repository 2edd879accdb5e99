# SPDX-License-Identifier: Apache-2.0
import math
import random
import unittest

import torch
from shardproof.torch.conversion.rearrangement import NotRegular, OnTensors, rearrangement


def numbered(**shapes):
    """Tensors of these shapes, whose elements have different numbers."""
    found, start = {}, 100
    for name, shape in shapes.items():
        found[name] = torch.arange(start, start + math.prod(shape)).reshape(shape)
        start += math.prod(shape)
    return found


class Rearrangements(unittest.TestCase):
    def both_ways(self, sources, target, pieces=None):
        there = rearrangement(target, sources)
        torch.testing.assert_close(there.made(sources, OnTensors()), target)
        # what it finds moves other numbers in the same way
        other = {n: torch.rand(t.shape, dtype=torch.float64) for n, t in sources.items()}
        made = there.made(other, OnTensors())
        for name in there.sources():
            back = rearrangement(sources[name], {"target": target})
            torch.testing.assert_close(back.made({"target": made}, OnTensors()), other[name])
        if pieces is not None:
            self.assertEqual(pieces, len(there.pieces))
        return there

    def test_fused_by_group(self):
        groups, queries, size, dim = 2, 3, 4, 6
        s = numbered(q=(groups * queries * size, dim), k=(groups * size, dim), v=(8, dim))
        parts = [s[n].view(groups, -1, dim) for n in "qkv"]
        self.both_ways(s, torch.cat(parts, 1).reshape(-1, dim), pieces=3)

    def test_fused_along_either_dimension(self):
        s = numbered(gate=(5, 6), up=(5, 6))
        self.both_ways(s, torch.cat([s["gate"], s["up"]]), pieces=2)
        self.both_ways(s, torch.cat([s["gate"], s["up"]], 1), pieces=2)
        self.both_ways(s, torch.stack([s["gate"], s["up"]], 1).reshape(10, 6), pieces=2)

    def test_transposed_and_interleaved(self):
        s = numbered(a=(8, 6))
        self.both_ways(s, s["a"].t().contiguous(), pieces=1)
        self.both_ways(s, s["a"].view(2, 2, 2, 6).transpose(1, 2).reshape(8, 6), pieces=1)
        self.both_ways(s, s["a"].reshape(-1), pieces=1)
        self.both_ways(s, s["a"].flip(0), pieces=8)

    def test_stacked_experts(self):
        s = numbered(**{f"e{i}": (4, 6) for i in range(8)})
        self.both_ways(s, torch.stack([s[f"e{i}"].t() for i in range(8)]), pieces=8)

    def test_a_number(self):
        s = numbered(scale=())
        self.both_ways(s, s["scale"])
        self.both_ways(s, s["scale"].view(1))

    def test_renamed(self):
        s = numbered(a=(4, 6), b=(4, 6))
        shapes = {n: tuple(t.shape) for n, t in s.items()}
        self.assertEqual("b", rearrangement(s["b"], s).renames(shapes))
        self.assertIsNone(rearrangement(s["b"].view(6, 4), s).renames(shapes))
        self.assertIsNone(rearrangement(s["b"][:2], s).renames(shapes))
        self.assertIsNone(rearrangement(s["b"].view(2, 2, 6).flip(0).view(4, 6), s).renames(shapes))

    def test_without_order(self):
        s = numbered(a=(64, 64))
        torch.manual_seed(0)
        with self.assertRaises(NotRegular):
            rearrangement(s["a"].view(-1)[torch.randperm(64 * 64)].view(64, 64), s)

    def test_random_views(self):
        """Compositions of views, permutations and slices: the result is right, or there is none."""
        chosen, found = random.Random(0), 0
        for _ in range(200):
            s = numbered(a=(4, 6), b=(2, 6), c=(12,))
            pieces = []
            for name in chosen.sample("abc", 2):
                t = s[name].reshape(-1, 2, 3)
                dims = chosen.sample(range(3), 3)
                t = t.permute(dims).reshape(-1, 6)
                pieces.append(t[: chosen.randint(1, len(t))])
            target = torch.cat(pieces)
            try:
                made = rearrangement(target, s)
            except NotRegular:
                continue
            found += 1
            torch.testing.assert_close(made.made(s, OnTensors()), target)
        self.assertGreater(found, 60)  # others are rows of other lengths than the parts


if __name__ == "__main__":
    unittest.main()
