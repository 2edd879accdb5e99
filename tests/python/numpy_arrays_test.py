# SPDX-License-Identifier: Apache-2.0

"""Arrays of NumPy that depend on data, in a training step."""

import unittest

import numpy as np
import shardproof.torch as sp
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLLOWED = {
    "arithmetic": lambda a, n: (1 - a / 2 + np.float32(1) * a - np.ones(4)).mean(),
    "in place": lambda a, n: a.__iadd__(1),
    "comparison": lambda a, n: ((a > 0.5) & (a < 1)).sum() / len(n),
    "right answers": lambda a, n: (a.argmax(axis=1) == n).mean(),
    "means of a list": lambda a, n: np.mean([a.mean(), a.sum()]),
    "put together": lambda a, n: np.concatenate([a, a])[:2].reshape(-1)[np.argsort(n)],
    "functions": lambda a, n: np.exp(a.max()) + np.sqrt(np.abs(a)).std() + np.linalg.norm([3, 4]),
    "lists": lambda a, n: sum(n.tolist()) + a[0].tolist()[1] + a.item(0),
    "text": lambda a, n: f"{a.mean():.3f} {n} {a.dtype} {a.shape}",
    "a decision that changes nothing": lambda a, n: 1 if a.mean() < 0.5 else 2,
    "a copy": lambda a, n: a.copy().astype(np.float64).T,
    "written": lambda a, n: a.__setitem__((0, 1), 3.0),
}
REFUSED = {
    "chooses": lambda a, n: a[a > 0],
    "numpy.unique": lambda a, n: np.unique(n),
    "numpy.add.at": lambda a, n: np.add.at(np.zeros(4), n, 1),
    "written to one that is not": lambda a, n: np.zeros(4).__iadd__(a[0]),
    "becomes a tensor": lambda a, n: torch.from_numpy(a),
    "what the program does next": lambda a, n: np.zeros(4)[int(n[0])],
    "method tobytes": lambda a, n: a.tobytes(),
}


def step_with(read, also=lambda found, model, world: None):
    def step(world):
        model = nn.Linear(3, 4)
        wrapped = model if world.single else DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = world.input("x", (8, 3), shard={"dp": 0})
        labels = world.input("labels", (8,), torch.long, shard={"dp": 0}, high=4)
        out = wrapped(x)
        F.cross_entropy(out, labels).backward()
        optimizer.step()
        also(read(out.detach().cpu().numpy(), labels.numpy()), model, world)

    return step


def verified(step):
    return sp.verify(step, mesh={"dp": 2}, arguments=["--diagnose", "off"])


def clamped(of):
    def also(found, model, world):
        with torch.no_grad():
            for p in model.parameters():
                if of(found, world):
                    p.clamp_(-1, 1)

    return also


class Arrays(unittest.TestCase):
    def test_what_is_followed(self):
        def read(a, n):
            for function in FOLLOWED.values():
                function(a, n)

        right = verified(step_with(read, clamped(lambda found, world: True)))
        self.assertEqual("EQUIVALENT", right.verdict, right)
        wrong = verified(step_with(read, clamped(lambda found, world: world.rank == 0)))
        self.assertEqual("NOT EQUIVALENT", wrong.verdict, wrong)

    def test_what_is_refused(self):
        for text, read in REFUSED.items():
            with self.subTest(text), self.assertRaisesRegex(sp.CaptureError, text):
                sp.capture(step_with(read), mesh={"dp": 2})

    def test_a_decision(self):
        """With the other answer it is another program."""
        decided = clamped(lambda found, world: found > 0.5)
        with self.assertRaisesRegex(sp.CaptureError, "what the program does next depends on data"):
            sp.capture(step_with(lambda a, n: a.mean(), decided), mesh={"dp": 2})

    def test_constants(self):
        def read(a, n):
            numbers = torch.arange(4).numpy()
            return a if numbers[1:].tolist() == [1, 2, 3] else torch.from_numpy(a)

        self.assertEqual("EQUIVALENT", verified(step_with(read)).verdict)


if __name__ == "__main__":
    unittest.main()
