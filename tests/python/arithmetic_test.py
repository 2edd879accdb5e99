# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Lowerings of operators where ranks have parts: right and wrong steps."""

import functools
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from recorder_steps import MESH


class Operators(unittest.TestCase):
    """Operators that scripts for several ranks use, each right and wrong."""

    def verdict(self, step, single=None):
        return sp.verify(*([single] if single else []), step, mesh=MESH).verdict

    def test_gradients_of_slices_with_a_step(self):
        def step(world, right=True):
            model = torch.nn.Linear(7, 7)
            x = model(world.input("x", (4, 7), shard={"dp": 0}))
            even, odd = x[:, 0::2], x[:, 1:6:3]
            loss = (
                even.square().mean()
                + (odd if right or world.single else x[:, 1:6:4]).sum(1).square().mean()
            )
            loss.backward()
            if not world.single:
                for p in model.parameters():
                    dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            return loss

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_operators_that_come_whole_from_below_autograd(self):
        """Such as flatten, which copies here, as DTensor's own code calls it."""

        def step(world, right=True):
            x = world.input("x", (4, 3, 8), shard={"dp": 0})
            with torch._C._AutoDispatchBelowAutograd():
                flat = x.transpose(1, 2).flatten(1)
            world.output(
                "y",
                flat.view(-1, 8, 3).transpose(1, 2) * (1 if right or world.single else 2),
                shard={"dp": 0},
            )

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_writes_to_diagonals(self):
        """No order of the view's dimensions is that of memory, as in the gradient of a diagonal."""

        def step(world, right=True):
            v = world.input("v", (2, 3))
            if world.single:
                z = torch.stack(
                    [
                        torch.stack([v[:, e] if e == f else torch.zeros(2) for f in range(3)], -1)
                        for e in range(3)
                    ]
                )
            else:
                z = torch.zeros(3, 2, 3)
                torch.diagonal(z, dim1=0, dim2=2).copy_(v if right else v.view(3, 2).t())
            world.output("z", z, mean=())

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_log_sum_exps_that_are_added(self):
        def single(world):
            return world.output(
                "y", torch.softmax(world.input("s", (3, 8)), -1) @ world.input("v", (8, 2))
            )

        def step(world, right=True):
            s, v = (
                world.input("s", (3, 8), shard={"dp": 1}),
                world.input("v", (8, 2), shard={"dp": 0}),
            )
            lse = torch.logsumexp(s, -1)
            every = [torch.empty_like(lse) for _ in range(2)]
            dist.all_gather(every, lse)
            whole = torch.logaddexp(*every) if right else torch.maximum(*every)
            out = torch.exp(s - whole[:, None]) @ v
            dist.all_reduce(out)
            world.output("y", out)

        self.assertEqual("EQUIVALENT", self.verdict(step, single))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False), single))

    def test_factors_of_what_a_vocabulary_has_are_not_rounded(self):
        """0.9 / 8 is no number of 32 bits."""

        def step(world, factor=0.9):
            part = 12 // world.size
            table, t = (
                world.input("table", (12, 5), shard={"dp": 0}),
                world.input("t", (8,), torch.long, high=12) - world.rank * part,
            )
            inside = (t >= 0) & (t < part)
            y = F.embedding(torch.where(inside, t, 0), table) * (inside * (factor / 8))[:, None]
            if not world.single:
                dist.all_reduce(y)
            world.output("y", y, mean=())

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual(
            "NOT EQUIVALENT", self.verdict(step, lambda world: step(world, 0.9 + 1e-5))
        )

    def test_integers_of_which_bits_and_remainders_are_taken(self):
        def step(world, function, other):
            t = world.input("t", (8,), torch.long, shard={"dp": 0}, high=6)
            world.output(
                "y",
                (other if world.rank else function)(t).float()
                * world.input("x", (8,), shard={"dp": 0}),
                shard={"dp": 0},
            )

        for function, same, other in (
            (lambda t: t & 1, lambda t: t % 2, lambda t: t != 0),
            (lambda t: t | 4, lambda t: 4 + t % 4, lambda t: t != -1),
            (lambda t: ~t, lambda t: -1 - t, lambda t: t == 0),
            (lambda t: t ^ 1, lambda t: t + 1 - 2 * (t & 1), lambda t: t != 1),
            (
                lambda t: t >> 1,
                lambda t: t // 2,
                lambda t: torch.div(t + 1, 2, rounding_mode="floor"),
            ),
            (
                lambda t: torch.div(t - 3, 2, rounding_mode="floor"),
                lambda t: (t - 3 - (t - 3) % 2) // 2,
                lambda t: torch.div(t - 3, 2, rounding_mode="trunc"),
            ),
            (
                lambda t: torch.fmod(t - 3, 2),
                lambda t: t - 3 - 2 * torch.div(t - 3, 2, rounding_mode="trunc"),
                lambda t: torch.remainder(t - 3, 2),
            ),
        ):
            self.assertEqual(
                "EQUIVALENT", self.verdict(functools.partial(step, function=function, other=same))
            )
            self.assertEqual(
                "NOT EQUIVALENT",
                self.verdict(functools.partial(step, function=function, other=other)),
            )

    def test_integers_that_are_computed_with_reals(self):
        def step(world, other=0):
            t = world.input("t", (8,), torch.long, shard={"dp": 0}, high=6)
            x = world.input("x", (8,), shard={"dp": 0})
            world.output("y", x * (t % 2) + (t + other * world.rank) // 2, shard={"dp": 0})

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(functools.partial(step, other=1)))

    def test_lengths_that_are_compared_with_positions(self):
        """Also where the last position's comparison has one answer only."""

        def single(world):
            lengths, x = world.input("lengths", (4,), torch.long, high=6), world.input("x", (4, 6))
            seen = torch.stack([lengths > i for i in range(6)], 1)
            world.output("y", (x * seen).sum(), mean=())
            world.output("z", x.masked_fill(~seen, 2.0))

        def step(world, right=True):
            lengths, x = (
                world.input("lengths", (4,), torch.long, high=6),
                world.input("x", (4, 6), shard={"dp": 1}),
            )
            seen = torch.arange(3)[None] + (3 * world.rank if right else 0) < lengths[:, None]
            y = (x * seen).sum()
            dist.all_reduce(y)
            world.output("y", y, mean=())
            world.output("z", x.masked_fill(~seen, 2.0), shard={"dp": 1})

        self.assertEqual("EQUIVALENT", self.verdict(step, single))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False), single))

    def test_masks_along_later_dimensions(self):
        """Of constants they are no positions; of data they choose as torch.where does."""

        def step(world, mask, other):
            x, v = world.input("x", (4, 2, 3), shard={"dp": 0}) * 1, world.input("v", (2, 3))
            if world.single:
                x = torch.where(mask(v), 0.5, x)
            else:
                x[:, other(v)] = 0.5
            world.output("y", x, shard={"dp": 0})

        first = torch.tensor([True, False])
        both = torch.tensor([True, True])
        for mask, other in (
            (lambda v: first[:, None], lambda v: first),
            (lambda v: v > 0, lambda v: v > 0),
            (lambda v: v[:, :1] > 0, lambda v: v[:, 0] > 0),
        ):
            self.assertEqual(
                "EQUIVALENT", self.verdict(functools.partial(step, mask=mask, other=other))
            )
        for mask, other in (
            (lambda v: both[:, None], lambda v: first),
            (lambda v: v > 0, lambda v: v < 0),
        ):
            self.assertEqual(
                "NOT EQUIVALENT", self.verdict(functools.partial(step, mask=mask, other=other))
            )

    def test_constants_that_were_rounded(self):
        """0.7 / 12, and half of 0.7 / 6: for each position, and for some (joined with zeros)."""

        def step(world, weight=0.7):
            model = torch.nn.Linear(5, 4)
            x, y = (
                world.input("x", (12, 5), shard={"dp": 0}),
                world.input("y", (12,), torch.long, shard={"dp": 0}, high=4),
            )
            z = world.parameters(model)(x)
            loss = (
                0.3 * F.cross_entropy(z, y)
                + weight * F.cross_entropy(z, y.flip(0) if world.size > 2 else y)
                - 0.1 * (z[:, :2] - z[:, 2:] ** 2).mean()
            )
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            return loss

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, 0.7001), step))

    def test_decimals_that_were_rounded_to_float32(self):
        """A kernel takes 1e-5 as a float32, which PyTorch shows of some (rms_norm) and not of
        others.
        """

        def step(world, factor=0.3, epsilon=1e-5):
            model = torch.nn.Linear(5, 4, bias=False)
            y = world.parameters(model)(world.input("x", (4, 5))) * factor
            y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + epsilon)
            loss = (y * torch.full((4,), factor)).square().mean() * factor
            loss.backward()
            return loss

        def rounded(number):
            return torch.tensor(number, dtype=torch.float32).item()

        def near(world):
            return step(world, rounded(0.3), rounded(1e-5))

        self.assertNotEqual(0.3, rounded(0.3))
        self.assertEqual("EQUIVALENT", self.verdict(step, near))
        for other in ((0.30001, 1e-5), (0.3, 1.0001e-5), (0.3000001, 1e-5)):
            with self.subTest(other):
                self.assertEqual(
                    "NOT EQUIVALENT", self.verdict(step, lambda world, o=other: step(world, *o))
                )

    def test_what_has_a_value_for_classes_only(self):
        """The logarithm of a label's probability, and powers of it."""

        def step(world, function, divided=True):
            model = torch.nn.Linear(5, 4)
            x, y = (
                world.input("x", (8, 5), shard={"dp": 0}),
                world.input("y", (8,), torch.long, shard={"dp": 0}),
            )
            loss = function(F.softmax(world.parameters(model)(x), -1).gather(1, y[:, None]))
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                if divided:
                    p.grad /= world.size
            return loss

        for function in (lambda p: -p.log().mean(), lambda p: (1 - p**0.7).mean()):
            self.assertEqual("EQUIVALENT", self.verdict(functools.partial(step, function=function)))
            self.assertEqual(
                "NOT EQUIVALENT",
                self.verdict(functools.partial(step, function=function, divided=False)),
            )

    def test_factors_of_lists_of_tensors_that_are_numbers_of_data(self):
        """As Adafactor with foreach has them."""

        def step(world, averaged=True):
            model = torch.nn.Linear(4, 3)
            optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1, foreach=True)
            world.parameters(model)(
                world.input("x", (8, 4), shard={"dp": 0})
            ).square().mean().backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                if averaged:
                    p.grad /= world.size
            optimizer.step()

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_labels_of_points(self):
        """Of images, and of sequences whose classes come second."""

        def step(world, ignore=-100, weight=None):
            model = torch.nn.Conv1d(2, 3, 1)
            world.parameters(model)
            y = model(world.input("x", (4, 2, 6), shard={"dp": 0}))
            t = world.input("t", (4, 6), torch.long, shard={"dp": 0}, high=3)
            loss = (
                F.cross_entropy(y, t, weight=weight, ignore_index=ignore, reduction="none").sum()
                / 24
                * world.size
            )
            loss.backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size
            return loss

        weight = torch.tensor([1.0, 2.0, 3.0])
        for options in {}, {"ignore": 2}, {"weight": weight}:
            self.assertEqual(
                "EQUIVALENT", self.verdict(functools.partial(step, **options)), options
            )
        self.assertEqual(
            "NOT EQUIVALENT", self.verdict(functools.partial(step, weight=weight), step)
        )

    def test_causal_attention_of_three_dimensions(self):
        def step(world, right=True):
            q, k, v = (world.input(n, (2, 6, 4), shard={"dp": 0}) for n in "qkv")
            world.output(
                "y",
                F.scaled_dot_product_attention(q, k, v, is_causal=right or world.single),
                shard={"dp": 0},
            )

        self.assertEqual("EQUIVALENT", self.verdict(step))
        self.assertEqual("NOT EQUIVALENT", self.verdict(lambda world: step(world, False)))

    def test_gradients_of_attention_by_its_result(self):
        """The sum of result * gradient equals autograd's sum of weights * their gradients.

        Kernels use the former, and rings that join the softmax from parts.
        """

        class ByHand(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v, right):
                s = q @ k.transpose(-1, -2) / 2
                lse = torch.logsumexp(s, -1, keepdim=True)
                out = torch.exp(s - lse) @ v
                ctx.right = right
                ctx.save_for_backward(q, k, v, out, lse)
                return out

            @staticmethod
            def backward(ctx, grad):
                q, k, v, out, lse = ctx.saved_tensors
                p = torch.exp(q @ k.transpose(-1, -2) / 2 - lse)
                ds = (
                    p
                    * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True) * ctx.right)
                    / 2
                )
                return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ grad, None

        attentions = {
            "torch": F.scaled_dot_product_attention,
            "softmax": lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v,
            "by hand": lambda q, k, v: ByHand.apply(q, k, v, 1),
            "wrong": lambda q, k, v: ByHand.apply(q, k, v, 0),
        }

        def step(world, attention):
            model = torch.nn.ModuleDict(
                {name: torch.nn.Linear(8, 8, bias=False) for name in "qkvo"}
            )
            world.parameters(model)
            x = world.input("x", (4, 8, 8), shard={"dp": 0})
            q, k, v = (model[name](x).view(len(x), 8, 2, 4).transpose(1, 2) for name in "qkv")
            model["o"](
                attentions[attention](q, k, v).transpose(1, 2).reshape(len(x), 8, 8)
            ).square().mean().backward()
            for p in model.parameters() if not world.single else ():
                dist.all_reduce(p.grad)
                p.grad /= world.size

        for one in ("torch", "softmax"):
            for other in ("torch", "softmax", "by hand", "wrong"):
                with self.subTest(one, other=other):
                    report = sp.verify(
                        lambda world: step(world, one),
                        lambda world: step(world, other),
                        mesh=MESH,
                        arguments=["--stage-timeout", "5"],
                    )
                    self.assertEqual(
                        "NOT EQUIVALENT" if other == "wrong" else "EQUIVALENT",
                        report.verdict,
                        str(report),
                    )

    def test_a_softmax_of_rows_of_which_all_are_masked(self):
        def step(world, above=-1):
            q, k, v = (world.input(n, (2, 6, 4), shard={"dp": 0}) for n in "qkv")
            # The first row sees nothing: torch's result is zero there.
            mask = torch.ones(6, 6, dtype=torch.bool).tril(-1 if world.single else above)
            world.output(
                "y", F.scaled_dot_product_attention(q, k, v, attn_mask=mask), shard={"dp": 0}
            )

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=MESH).verdict)
        wrong = sp.verify(lambda world: step(world, 0), mesh=MESH)
        self.assertEqual("NOT EQUIVALENT", wrong.verdict)


if __name__ == "__main__":
    unittest.main()
