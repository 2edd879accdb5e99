# SPDX-License-Identifier: Apache-2.0
"""Buffers that a step puts together itself are sent, cut and scaled as their tensors."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))


def step(world, reduce):
    x = world.input("x", (8, 4), shard={"dp": 0})
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net(x).square().mean().backward()
    reduce(world, [p.grad for p in net.parameters()])
    optimizer.step()


def by_vector(world, gradients):
    flat = parameters_to_vector(gradients)
    dist.all_reduce(flat)
    vector_to_parameters(flat / world.size, gradients)


def scaled_before(world, gradients):
    flat = torch.cat([g.flatten() for g in gradients]) / world.size
    dist.all_reduce(flat)
    at = 0
    for g in gradients:
        g.copy_(flat[at : at + g.numel()].view_as(g))
        at += g.numel()


def clipped(world, gradients):
    """What is multiplied is one number for all of them, which all of them make."""
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= world.size
    flat = flat * torch.clamp(1 / (flat.norm() + 1e-6), max=1.0)
    vector_to_parameters(flat, gradients)


def all_but_the_last(world, gradients):
    flat = parameters_to_vector(gradients)
    part = flat[:-1].clone()
    dist.all_reduce(part)
    vector_to_parameters(torch.cat([part, flat[-1:]]) / world.size, gradients)


def in_another_order(world, gradients):
    """The same on both ranks but for the order."""
    order = gradients if world.rank == 0 else gradients[::-1]
    flat = torch.cat([g.flatten() for g in order])
    dist.all_reduce(flat)
    vector_to_parameters(flat / world.size, gradients)


def put_together_otherwise(world, gradients):
    """Equal buffers, of other pieces on each rank."""
    pieces = [g.flatten() for g in gradients]
    if world.rank == 1:
        pieces = [half for p in pieces for half in p.split((p.numel() + 1) // 2)]
    flat = torch.cat(pieces)
    dist.all_reduce(flat)
    vector_to_parameters(flat / world.size, gradients)


class FlatBuffers(unittest.TestCase):
    def verdict(self, reduce, mesh="dp=2"):
        return sp.verify(lambda world: step(world, reduce), mesh=mesh)

    def test_right(self):
        for reduce in (by_vector, scaled_before, clipped, put_together_otherwise):
            with self.subTest(reduce.__name__):
                report = self.verdict(reduce)
                self.assertEqual("EQUIVALENT", report.verdict, str(report))

    def test_wrong(self):
        for reduce in (all_but_the_last, in_another_order):
            with self.subTest(reduce.__name__):
                report = self.verdict(reduce)
                self.assertEqual("NOT EQUIVALENT", report.verdict, str(report))

    def test_each_tensor_is_sent_by_itself(self):
        for reduce, count in ((by_vector, 4), (put_together_otherwise, 1)):
            with self.subTest(reduce.__name__):
                plan = sp.capture(lambda w, r=reduce: step(w, r), mesh="dp=2").plan
                for program in plan["programs"]:
                    sent = [n for n in program["nodes"] if n["op"] == "all_reduce"]
                    self.assertEqual(count, len(sent))

    def test_slices_of_what_is_computed_of_a_concatenation(self):
        """The other tensors do not come into it."""

        def sliced(world):
            x, y = world.input("x", (3, 4)), world.input("y", (5, 4))
            joined = torch.cat([x, y]).exp() * world.input("z", (8, 4)) / world.input("n", ())
            world.output("whole", joined[3:])
            world.output("half", joined[1:3])
            world.output("across", joined[2:6])

        made = sp.capture(sliced, mesh="dp=2")
        report = sp.verify(sliced, mesh="dp=2")
        self.assertEqual("EQUIVALENT", report.verdict, str(report))
        outputs = {n["out"][0]: n for n in made.model["nodes"]}

        def inputs(name):
            node = outputs.get(name)
            return {name} if node is None else set().union(*(inputs(i) for i in node["in"]))

        tied = made.names
        self.assertNotIn("x", inputs(tied["whole"]))
        self.assertNotIn("y", inputs(tied["half"]))
        self.assertLessEqual({"x", "y"}, inputs(tied["across"]))


if __name__ == "__main__":
    unittest.main()
