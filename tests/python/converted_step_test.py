# SPDX-License-Identifier: Apache-2.0
"""Two implementations of one model: `sp.verify(single, step, convert=...)`."""

import pathlib
import tempfile
import types
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from command import run_command
from megatron_parallel import CopyToGroup, ReduceFromGroup
from shardproof.torch import CaptureError
from torch import nn

DIM, HEADS, GROUPS, HIDDEN, LAYERS = 16, 4, 2, 24, 2
SIZE = DIM // HEADS
MESH = {"tp": 2}


def attention(q, k, v):
    batch, length = q.shape[:2]
    q, k, v = (t.reshape(batch, length, -1, SIZE).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
    found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return found.transpose(1, 2).reshape(batch, length, -1)


class Layer(nn.Module):
    """With a matrix for each of queries, keys, values, gate and up."""

    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.q_proj = nn.Linear(DIM, DIM, bias=False)
        self.k_proj = nn.Linear(DIM, GROUPS * SIZE, bias=False)
        self.v_proj = nn.Linear(DIM, GROUPS * SIZE, bias=False)
        self.o_proj = nn.Linear(DIM, DIM, bias=False)
        self.gate_proj = nn.Linear(DIM, HIDDEN, bias=False)
        self.up_proj = nn.Linear(DIM, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x):
        y = self.input_layernorm(x)
        x = x + self.o_proj(attention(self.q_proj(y), self.k_proj(y), self.v_proj(y)))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.norm = nn.RMSNorm(DIM)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class ParallelLayer(nn.Module):
    """With fused matrices: by group queries, key and value; gate and up in turn."""

    def __init__(self, tp, group):
        super().__init__()
        self.tp, self.group = tp, group
        self.input_norm, self.mlp_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.linear_qkv = nn.Linear(DIM, (HEADS + 2 * GROUPS) * SIZE // tp, bias=False)
        self.linear_proj = nn.Linear(DIM // tp, DIM, bias=False)
        self.linear_fc1 = nn.Linear(DIM, 2 * HIDDEN // tp, bias=False)
        self.linear_fc2 = nn.Linear(HIDDEN // tp, DIM, bias=False)

    def forward(self, x):
        batch, length = x.shape[:2]
        y = CopyToGroup.apply(self.input_norm(x), self.group)
        y = self.linear_qkv(y).view(batch, length, GROUPS // self.tp, -1, SIZE)
        q, k, v = y.split([HEADS // GROUPS, 1, 1], 3)
        x = x + ReduceFromGroup.apply(self.linear_proj(attention(q, k, v)), self.group)
        y = self.linear_fc1(CopyToGroup.apply(self.mlp_norm(x), self.group))
        gate, up = y.view(batch, length, -1, 2).unbind(-1)
        return x + ReduceFromGroup.apply(self.linear_fc2(F.silu(gate) * up), self.group)


class ParallelModel(nn.Module):
    def __init__(self, tp, group):
        super().__init__()
        self.decoder = nn.ModuleList([ParallelLayer(tp, group) for _ in range(LAYERS)])
        self.final_norm = nn.RMSNorm(DIM)

    def forward(self, x):
        for layer in self.decoder:
            x = layer(x)
        return self.final_norm(x)


def to_parallel(source):
    made = {"final_norm.weight": source["norm.weight"]}
    for i in range(LAYERS):
        own = {n.removeprefix(f"layers.{i}."): t for n, t in source.items()}
        q, k, v = (own[f"{x}_proj.weight"].view(GROUPS, -1, SIZE, DIM) for x in "qkv")
        fused = torch.stack([own["gate_proj.weight"], own["up_proj.weight"]], 1)
        layer = {
            "input_norm": own["input_layernorm.weight"],
            "mlp_norm": own["post_attention_layernorm.weight"],
            "linear_qkv": torch.cat([q, k, v], 1).reshape(-1, DIM),
            "linear_proj": own["o_proj.weight"],
            "linear_fc1": fused.reshape(-1, DIM),
            "linear_fc2": own["down_proj.weight"],
        }
        made |= {f"decoder.{i}.{n}.weight": t for n, t in layer.items()}
    return made


def not_by_group(source):
    """Queries, keys and values one after another."""
    made = to_parallel(source)
    for i in range(LAYERS):
        made[f"decoder.{i}.linear_qkv.weight"] = torch.cat(
            [source[f"layers.{i}.{x}_proj.weight"] for x in "qkv"]
        )
    return made


def train(model, world):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loss = model(world.input("x", (2, 4, DIM))).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def single(world):
    torch.manual_seed(0)
    return train(Model(), world)


def step(world, tp=2):
    torch.manual_seed(0)
    model = ParallelModel(tp, world.group("tp"))
    cut = {"linear_qkv": 0, "linear_proj": 1, "linear_fc1": 0, "linear_fc2": 1}
    world.parameters(
        model,
        shard={
            f"decoder.{i}.{n}.weight": {"tp": dim} for i in range(LAYERS) for n, dim in cut.items()
        },
    )
    return train(model, world)


def unreduced(world):
    """The sum over ranks is missing behind the second layer's last matrix."""
    before = ParallelLayer.forward

    def forward(self, x):
        batch, length = x.shape[:2]
        made = before(self, x)
        return made if self is not first[-1] else made * 1.5 - 0.5 * x

    first = []
    init = ParallelLayer.__init__

    def __init__(self, *arguments):
        init(self, *arguments)
        first.append(self)

    ParallelLayer.forward, ParallelLayer.__init__ = forward, __init__
    try:
        return step(world)
    finally:
        ParallelLayer.forward, ParallelLayer.__init__ = before, init


def verified(convert, one=single, several=step, **options):
    return sp.verify(one, several, mesh=MESH, convert=convert, accept=["initial-values"], **options)


class Implementations(unittest.TestCase):
    def test_a_right_step(self):
        report = verified(to_parallel)
        self.assertEqual("EQUIVALENT", report.verdict, report)
        self.assertIn("13 gradients, 13 new parameters, 26 optimizer states", report.text)
        self.assertIn("to_parallel gives of the single device's (13 tensors, 4 of", report.text)

    def test_a_wrong_conversion(self):
        report = verified(not_by_group)
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)

    def test_a_wrong_step(self):
        report = verified(to_parallel, several=unreduced)
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)


def tiny(world, bias=True, frozen=(), names=("a", "b"), tie=False, build=None):
    model = nn.Module()
    for name in names:
        setattr(model, name, nn.Linear(4, 4, bias=bias))
    for name in frozen:
        getattr(model, name).weight.requires_grad_(False)
    if tie:
        model.b.weight = model.a.weight
    world.parameters(model)
    return model


def two_matrices(world, **options):
    model = tiny(world, bias=False, **options)
    return product(world, model, [p for p in model.parameters() if p.requires_grad])


def product(world, model, groups):
    """A step of the loss of a product, in which ranks have parts of the batch."""
    optimizer = torch.optim.Adagrad(groups, 0.1)
    x = world.input("x", (4, 4), shard={"tp": 0})
    loss = (model.a(x) * model.b(x)).square().mean()
    loss.backward()
    reduce_gradients(world, model)
    optimizer.step()
    return loss


def reduce_gradients(world, model):
    for p in model.parameters():
        if p.grad is not None and not world.single:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


class Stacked(nn.Module):
    def __init__(self, frozen=False):
        super().__init__()
        self.both = nn.Parameter(torch.zeros(2, 4, 4), requires_grad=not frozen)


def stacked(world, model=None, decay=0.0):
    model = model or Stacked()
    world.parameters(model)
    optimizer = torch.optim.Adagrad(
        [p for p in model.parameters() if p.requires_grad] or [nn.Parameter(torch.zeros(1))],
        0.1,
        weight_decay=decay,
    )
    x = world.input("x", (4, 4), shard={"tp": 0})
    loss = (x @ model.both[0].T * (x @ model.both[1].T)).square().mean()
    if model.both.requires_grad:
        loss.backward()
        reduce_gradients(world, model)
        optimizer.step()
    return loss


def stack(source):
    return {"both": torch.stack([source["a.weight"], source["b.weight"]])}


class Tensors(unittest.TestCase):
    def verdict(self, convert, one=two_matrices, several=stacked):
        report = verified(convert, one, several, arguments=["--diagnose", "off"])
        return report.verdict

    def test_stacked(self):
        self.assertEqual("EQUIVALENT", self.verdict(stack))

    def test_exchanged_matrices_that_are_multiplied(self):
        """The loss is the same, but not which parameter has which gradient."""
        exchanged = lambda s: {"both": torch.stack([s["b.weight"], s["a.weight"]])}  # noqa: E731
        self.assertEqual("EQUIVALENT", self.verdict(exchanged))  # a product, so that both are right
        turned = lambda s: {"both": torch.stack([s["b.weight"], s["a.weight"].T])}  # noqa: E731
        self.assertEqual("NOT EQUIVALENT", self.verdict(turned))

    def test_a_rounding_cast_is_no_difference(self):
        cast = lambda s: {"both": stack(s)["both"].bfloat16()}  # noqa: E731
        self.assertEqual("EQUIVALENT", self.verdict(cast))

    def test_another_optimizer(self):
        def decayed(world):
            return stacked(world, decay=0.1)

        self.assertEqual("NOT EQUIVALENT", self.verdict(stack, several=decayed))

    def test_other_groups_of_parameters(self):
        """One for each matrix, and one for both: settings are compared where they are alike."""

        def grouped(world):
            model = tiny(world, bias=False)
            return product(world, model, [{"params": [p]} for p in model.parameters()])

        report = verified(stack, grouped, stacked)
        self.assertEqual("CONDITIONAL", report.verdict, report)
        report = verified(stack, grouped, stacked, allow_uncompared=["optimizer*.groups.*"])
        self.assertEqual("EQUIVALENT", report.verdict, report)

    def test_one_that_is_not_trained(self):
        def half(world):
            return two_matrices(world, frozen=["b"])

        with self.assertRaisesRegex(CaptureError, r"'both.grad' of the step is made of 'a.weight"):
            self.verdict(stack, one=half)

    def test_a_tied_matrix(self):
        def tied(world):
            return two_matrices(world, tie=True)

        def one_matrix(world):
            model = tiny(world, bias=False, names=("only",))
            used = types.SimpleNamespace(a=model.only, b=model.only, parameters=model.parameters)
            return product(world, used, model.parameters())

        for name in ("a.weight", "b.weight"):
            convert = lambda s, name=name: {"only.weight": s[name]}  # noqa: E731
            self.assertEqual("EQUIVALENT", self.verdict(convert, tied, one_matrix))


def normalised(world, turned_first=False, train=False):
    """Statistics that begin with any value: here rows are in another order than in `weight`."""
    model = nn.Module()
    model.lin, model.bn = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4, affine=False)
    world.parameters(model)
    model.bn.train(train)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    y = model.lin(world.input("x", (4, 4)))
    if not world.single and turned_first:
        y = y.roll(2, 1)
    y = model.bn(y)
    if not world.single and not turned_first:
        y = y.roll(2, 1)
    loss = (y * torch.arange(4.0)).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def rolled(source):
    return {n: t.roll(2, 0) if t.dim() else t for n, t in source.items()}


class Buffers(unittest.TestCase):
    """Buffers that a step only reads are converted, too."""

    def test_are_converted(self):
        for train in (False, True):
            for turned_first, expected in ((False, "EQUIVALENT"), (True, "NOT EQUIVALENT")):

                def several(world, turned_first=turned_first, train=train):
                    return normalised(world, turned_first, train)

                def one(world, train=train):
                    return normalised(world, train=train)

                with self.subTest(train=train, turned_first=turned_first):
                    report = verified(rolled, one, several, arguments=["--diagnose", "off"])
                    self.assertEqual(expected, report.verdict, report)

    def test_that_are_left_out(self):
        with self.assertRaisesRegex(CaptureError, r"bn.running_mean\[0\] .* is in no tensor"):
            verified(lambda s: {"lin.weight": s["lin.weight"]}, normalised, normalised)


class Names(unittest.TestCase):
    def test_a_tied_tensor_under_both_names(self):
        def tied(world):
            return two_matrices(world, tie=True)

        for convert in (dict, lambda s: {n: t.T for n, t in s.items()}):
            right = convert is dict
            report = verified(convert, tied, tied, arguments=["--diagnose", "off"])
            self.assertEqual(
                "EQUIVALENT" if right else "NOT EQUIVALENT", report.verdict, report.text
            )

    def test_a_result_that_is_called_as_a_parameter(self):
        def one(world):
            world.output("a.weight", world.input("y", (2, 2)) * 2)
            return two_matrices(world)

        def several(world, factor=2):
            world.output("a.weight", world.input("y", (2, 2)) * factor)
            return stacked(world)

        report = verified(stack, one, several)
        self.assertEqual("EQUIVALENT", report.verdict, report)
        report = verified(stack, one, lambda world: several(world, 3))
        self.assertEqual("NOT EQUIVALENT", report.verdict, report)


class Refusals(unittest.TestCase):
    def refused(self, convert, text):
        with self.assertRaisesRegex(CaptureError, text):
            verified(convert, two_matrices, stacked)

    def test_what_it_raises(self):
        self.refused(lambda s: s["c"], "raised KeyError: 'c'; the tensors of the single device are")

    def test_what_it_returns(self):
        self.refused(lambda s: [*s.values()], "returned a list, expected a dictionary")

    def test_constants(self):
        zeros = lambda s: {"both": torch.stack([s["a.weight"], torch.zeros(4, 4)])}  # noqa: E731
        self.refused(zeros, r"both\[1, 0, 0\] holds the constant 0")

    def test_arithmetic(self):
        self.refused(lambda s: {"both": stack(s)["both"] * 2}, "cannot be followed")

    def test_what_is_left_out(self):
        self.refused(lambda s: {"both": s["a.weight"]}, r"b.weight\[0, 0\] .* is in no tensor")

    def test_what_is_there_twice(self):
        def twice(s):
            return {**stack(s), "other": s["a.weight"][:2]}

        self.refused(twice, r"a.weight\[0, 0\] .* is in 2 places")

    def test_a_tensor_that_no_rank_has(self):
        named = lambda s: {"stack": stack(s)["both"]}  # noqa: E731
        self.refused(named, "'both' .* is not on the single device: <lambda> gives stack$")

    def test_a_tensor_of_another_shape(self):
        self.refused(lambda s: {"both": stack(s)["both"].view(8, 4)}, r"shape \[2, 4, 4\]")

    def test_no_regular_order(self):
        order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
        mixed = lambda s: {"both": stack(s)["both"].view(-1)[order].view(2, 4, 4)}  # noqa: E731
        self.refused(mixed, "in no regular order")

    def test_one_step(self):
        with self.assertRaisesRegex(TypeError, "convert is for two steps"):
            sp.verify(stacked, mesh=MESH, convert=stack)


SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from data import batch
dist.init_process_group("gloo")
torch.manual_seed(0)
MODEL
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(batch(dist.get_rank())).square().mean().backward()
optimizer.step()
"""
DATA = """
import torch
def batch(rank):
    torch.manual_seed(1 + rank)
    return torch.randn(4, 2)
"""
SEPARATE = "model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))"
TRANSPOSED = """
class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.empty(2, 3)), nn.Parameter(torch.zeros(3))
        self.w2, self.b2 = nn.Parameter(torch.empty(3, 2)), nn.Parameter(torch.zeros(2))
        nn.init.normal_(self.w1)
        nn.init.normal_(self.w2)
    def forward(self, x):
        return (x @ self.w1 + self.b1).tanh() @ self.w2 + self.b2
model = Transposed()
"""
CONVERT = """
def convert(s):
    return {"w1": s["0.weight"].T, "b1": s["0.bias"], "w2": s["2.weight"].T, "b2": s["2.bias"]}
def swapped(s):
    return {"w1": s["0.weight"].reshape(2, 3), "b1": s["0.bias"], "w2": s["2.weight"].T,
            "b2": s["2.bias"]}
"""


class Scripts(unittest.TestCase):
    def run_scripts(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            (place / "one.py").write_text(SCRIPT.replace("MODEL", SEPARATE))
            (place / "train.py").write_text(SCRIPT.replace("MODEL", TRANSPOSED))
            (place / "data.py").write_text(DATA)
            (place / "names.py").write_text(CONVERT)
            options = [o.replace("FOLDER", folder) for o in options]
            return run_command("--mesh", "dp=2", *options, f"{folder}/train.py")

    def test_two_scripts(self):
        single = ("--single", "FOLDER/one.py")
        done = self.run_scripts(*single, "--convert", "FOLDER/names.py:convert")
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        done = self.run_scripts(*single, "--convert", "FOLDER/names.py:swapped")
        self.assertEqual(10, done.returncode, done.stdout + done.stderr)

    def test_wrong_options(self):
        single = ("--single", "FOLDER/one.py")
        for options, text in (
            (("--convert", "FOLDER/names.py:convert"), "--single OTHER.py"),
            ((*single, "--convert", "FOLDER/names.py:other"), "has no function 'other'"),
            ((*single, "--convert", "names.py:convert"), "'names.py' is no file"),
        ):
            done = self.run_scripts(*options)
            self.assertEqual(2, done.returncode, done.stdout)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
