# SPDX-License-Identifier: Apache-2.0
"""torch's context_parallel on a CPU.

How keys and values go round, masks, more ranks, and wrong steps.
"""

import unittest
from functools import partial

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from shardproof.torch.session import numeric
from torch import nn
from torch.distributed.tensor.experimental import _attention, context_parallel
from torch.distributed.tensor.experimental._attention import (
    context_parallel_unshard,
    set_rotate_method,
)

S = (2, 8, 16)  # batch, sequence, features


def step(world, causal=True, balanced=True, rotation="allgather", reduced=True):
    q, k, v, o = (nn.Linear(16, 16, bias=False) for _ in range(4))
    model = nn.ModuleDict({"q": q, "k": k, "v": v, "o": o})
    world.parameters(model)
    x, y = (world.input(name, S) for name in "xy")

    def backward():
        heads = [layer(x).view(2, -1, 4, 4).transpose(1, 2) for layer in (q, k, v)]
        out = F.scaled_dot_product_attention(*heads, is_causal=causal)
        F.mse_loss(o(out.transpose(1, 2).reshape(x.shape)), y).backward()

    if world.single:
        return backward()
    before = _attention._cp_options.enable_load_balance, _attention._cp_options.rotate_method
    try:
        _attention._cp_options.enable_load_balance = balanced
        set_rotate_method(rotation)
        with context_parallel(world.mesh("cp"), buffers=[x, y], buffer_seq_dims=[1, 1]):
            backward()
    finally:
        _attention._cp_options.enable_load_balance, _attention._cp_options.rotate_method = before
    for p in model.parameters() if reduced else ():
        dist.all_reduce(p.grad, group=world.group("cp"))
        p.grad /= world.size


def unsharded(world, balanced=True):
    """The result in the order of the sequence.

    balanced=False: as if ranks had consecutive pieces.
    """
    q, k, v = (world.input(name, (2, 4, 8, 4)) for name in "qkv")
    if world.single:
        world.output("out", F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return
    with context_parallel(world.mesh("cp"), buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    before = _attention._cp_options.enable_load_balance
    try:
        _attention._cp_options.enable_load_balance = balanced
        world.output("out", context_parallel_unshard(world.mesh("cp"), [out], [2])[0])
    finally:
        _attention._cp_options.enable_load_balance = before


MODES = {
    f"{rotation}{', causal' * causal}{', balanced' * balanced}": {
        "rotation": rotation,
        "causal": causal,
        "balanced": balanced,
    }
    for rotation in ("allgather", "alltoall")
    for causal, balanced in ((False, False), (True, False), (True, True))
}
STEPS = {
    **{
        f"{mode}, {ranks} ranks": (partial(step, **options), {"cp": ranks}, "EQUIVALENT")
        for mode, options in MODES.items()
        for ranks in (2, 4)
    },
    "not reduced": (partial(step, reduced=False), {"cp": 2}, "NOT EQUIVALENT"),
    "not reduced, consecutive": (
        partial(step, reduced=False, balanced=False),
        {"cp": 2},
        "NOT EQUIVALENT",
    ),
    "unsharded": (unsharded, {"cp": 2}, "EQUIVALENT"),
    "unsharded in another order": (partial(unsharded, balanced=False), {"cp": 2}, "NOT EQUIVALENT"),
}


def load(name, which):
    return STEPS[name][0]


class ContextParallel(unittest.TestCase):
    def test_verdicts(self):
        for name, (f, mesh, verdict) in STEPS.items():
            with self.subTest(name):
                report = sp.verify(
                    f, mesh=mesh, arguments=["--stage-timeout", "20", "--confirm", "off"]
                )
                self.assertEqual(verdict, report.verdict, str(report))
                if verdict != "EQUIVALENT":
                    self.assertIn("context_parallel_test.py", " ".join(report.defects[0].places))

    def test_real_processes(self):
        for name, (difference, place) in numeric.compare(
            load, {name: mesh for name, (_, mesh, _) in STEPS.items()}
        ).items():
            with self.subTest(name, difference=difference, place=place):
                self.assertEqual(STEPS[name][2] == "EQUIVALENT", difference < 1e-4)

    def test_handlers_are_taken_away(self):
        before = dict(torch.distributed.tensor.experimental._context_parallel._attention.custom_ops)
        sp.capture(partial(step, balanced=False), mesh={"cp": 2})
        self.assertEqual(
            before, torch.distributed.tensor.experimental._context_parallel._attention.custom_ops
        )


if __name__ == "__main__":
    unittest.main()
