# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Which parameter is which, and what of a step is compared: whatever order parts are called in, and
whether they are called at all."""

import collections
import copy
import dataclasses
import pathlib
import tempfile
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from command import run_command
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

MESH = {"dp": 2}
ARGUMENTS = ["--stage-timeout", "30", "--diagnose", "off"]


class Net(nn.Module):
    """Parts that a method calls, a parameter that only it uses, and a buffer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("seen", torch.zeros(4))

    def run(self, x):
        return self.b(torch.tanh(self.a(x))) * self.scale

    def forward(self, x):
        return self.run(x)

    def functional(self, x):
        h = torch.tanh(F.linear(x, self.a.weight, self.a.bias))
        return F.linear(h, self.b.weight, self.b.bias) * self.scale


def loss_of(y):
    return (y * y).mean()


def averaged(world, parameters, gradient=lambda p: p.grad):
    for p in parameters if not world.single else ():
        dist.all_reduce(gradient(p), op=dist.ReduceOp.AVG)


class Verdicts(unittest.TestCase):
    def report(self, *steps, mesh=MESH, **options):
        return sp.verify(*steps, mesh=mesh, arguments=ARGUMENTS, **options)

    def right_and_wrong(self, step, mesh=MESH):
        """step(world, right): right ones compare everything."""
        right = self.report(lambda world: step(world, True), mesh=mesh)
        self.assertEqual(("EQUIVALENT", []), (right.verdict, right.not_compared), str(right))
        wrong = self.report(lambda world: step(world, False), mesh=mesh)
        self.assertEqual("NOT EQUIVALENT", wrong.verdict, str(wrong))


class Orders(Verdicts):
    """The ranks call layers in another order than the single device."""

    def layers(self, make, world, right):
        layers, parts = make()
        x = world.input("x", (8, 4))
        order = list(range(len(parts)))
        for i in order if world.single or right else order[::-1]:
            x = torch.tanh(parts[i](x))
        loss = loss_of(x)
        loss.backward()
        return loss

    def test_layers_that_are_called_one_by_one(self):
        def two():
            return None, [nn.Linear(4, 4), nn.Linear(4, 4)]

        def a_list():
            layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
            return layers, layers

        def a_slice():
            layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
            return layers, [*layers[:2], layers[2]]

        def a_copy():
            layers = copy.deepcopy(nn.ModuleList([nn.Linear(4, 4) for _ in range(2)]))
            return layers, layers

        def parts_of_a_model():
            model = Net()
            return model, [model.a, model.b]

        for make in (two, a_list, a_slice, a_copy, parts_of_a_model):
            with self.subTest(make.__name__):
                self.right_and_wrong(lambda world, right: self.layers(make, world, right))

    def test_two_networks(self):
        def step(world, right):
            generator, critic = nn.Linear(4, 4), nn.Linear(4, 4)
            nets = (generator, critic) if world.single or right else (critic, generator)
            loss = loss_of(nets[1](torch.tanh(nets[0](world.input("x", (8, 4))))))
            loss.backward()
            return loss

        self.right_and_wrong(step)

    def test_a_network_that_is_trained_alone(self):
        def step(world, right):
            nets = nn.Linear(4, 4), nn.Linear(4, 4)
            optimizer = torch.optim.SGD(
                nets[0 if world.single or right else 1].parameters(), lr=0.1
            )
            loss = loss_of(nets[1](torch.tanh(nets[0](world.input("x", (8, 4))))))
            loss.backward()
            optimizer.step()
            return loss

        self.right_and_wrong(step)

    def test_layers_that_are_sharded_one_by_one(self):
        def step(world, right):
            layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
            for layer in layers:
                fully_shard(layer, mesh=world.mesh("dp"))
            optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
            x = world.input("x", (8, 4), shard={"dp": 0})
            for i in (0, 1, 2) if world.single or right else (0, 2, 1):
                x = x + torch.tanh(layers[i](x))
            loss = loss_of(x)
            loss.backward()
            optimizer.step()
            return loss

        self.right_and_wrong(step)

    def test_tensor_parallel_layers(self):
        def step(world, right):
            layers = nn.ModuleDict({n: nn.Linear(4, 4, bias=False) for n in ("up", "down")})
            names = ("up", "down") if world.single or right else ("down", "up")
            plan = {names[0]: ColwiseParallel(), names[1]: RowwiseParallel()}
            parallelize_module(layers, world.mesh("dp"), plan)
            h = torch.tanh(layers[names[0]](world.input("x", (8, 4))))
            loss = loss_of(layers[names[1]](h))
            loss.backward()
            return loss

        self.right_and_wrong(step)

    def test_averages_that_are_written_in_another_order(self):
        """An average is known by its place in its model, not by when it is written."""

        def step(world, right):
            models = [nn.Linear(4, 4), nn.Linear(4, 4)]
            averages = [copy.deepcopy(m) for m in models]
            loss = loss_of(models[1](torch.tanh(models[0](world.input("x", (8, 4))))))
            loss.backward()
            torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1).step()
            with torch.no_grad():
                for i in (0, 1) if world.single else (1, 0):
                    source = models[i if right or world.single else 1 - i]
                    for p, q in zip(averages[i].parameters(), source.parameters(), strict=True):
                        p.lerp_(q, 0.1)
            return loss

        self.right_and_wrong(step)

    def test_wrapped_one_by_one(self):
        """Each network in a wrapper of its own: names are those without it."""

        def step(world, right):
            nets = nn.ModuleDict({"g": nn.Linear(4, 4), "d": nn.Linear(4, 4)})
            used = dict(nets)
            if not world.single:
                used = {n: nn.parallel.DistributedDataParallel(m) for n, m in nets.items()}
            first, last = ("g", "d") if world.single or right else ("d", "g")
            x = world.input("x", (8, 4), shard={"dp": 0})
            loss = loss_of(used[last](torch.tanh(used[first](x))))
            loss.backward()
            return loss

        self.right_and_wrong(step)

    @staticmethod
    def stages(world, said, right=True):
        """A pipeline of which each rank makes its own layer only."""
        numbers = (0, 1) if world.single else (world.rank,)
        layers = {i: nn.Linear(4, 4, bias=False) for i in numbers}
        for i, layer in layers.items() if said else ():
            world.parameters(layer, name=f"layer{i if right or world.single else 1 - i}")
        x = world.input("x", (8, 4))
        if world.single:
            return loss_of(layers[1](torch.tanh(layers[0](x))))
        if world.rank == 0:
            dist.send(torch.tanh(layers[0](x)).detach(), 1)
            return None
        h = torch.empty(8, 4)
        dist.recv(h, 0)
        return loss_of(layers[1](h))

    def test_stages_that_are_made_apart(self):
        with self.assertRaisesRegex(
            sp.CaptureError,
            r"several models have a parameter or buffer 'weight'.*world.parameters\(model, name=",
        ):
            self.report(lambda world: self.stages(world, False), mesh={"pp": 2})
        self.right_and_wrong(lambda world, right: self.stages(world, True, right), mesh={"pp": 2})

    def test_parts_that_are_declared_in_another_order(self):
        def step(world):
            model = Net()
            for part in (model.a, model.b) if world.single else (model.b, model.a):
                world.parameters(part)
            return loss_of(model.run(world.input("x", (8, 4))))

        with self.assertRaisesRegex(sp.CaptureError, "one of them is a part of another model"):
            self.report(step)

    def test_models_that_are_made_in_another_order(self):
        """What each begins with is then another one's."""

        def step(world, right):
            first = nn.Linear(4, 4)
            second = nn.Linear(4, 4)
            if not world.single and not right:
                first, second = second, first
            loss = loss_of(second(torch.tanh(first(world.input("x", (8, 4))))))
            loss.backward()
            return loss

        self.right_and_wrong(step)

    def test_stages_of_a_model_that_all_make(self):
        """A stage consists of layers of the model.

        A rank leaves those of other stages as they are.
        """

        def step(world, right):
            layers = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(4)])
            optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
            x = world.input("x", (8, 4))
            if world.single:
                loss = loss_of(nn.Sequential(*layers)(x))
                loss.backward()
                optimizer.step()
                return loss
            stage = nn.Sequential(*layers[:2]) if world.rank == 0 else nn.Sequential(*layers[2:])
            if not right and world.rank:
                stage = nn.Sequential(layers[3], layers[2])
            loss = None
            if world.rank == 0:
                h = stage(x)
                dist.send(h.detach(), 1)
                gradient = torch.empty(8, 4)
                dist.recv(gradient, 1)
                h.backward(gradient)
            else:
                h = torch.empty(8, 4)
                dist.recv(h, 0)
                h.requires_grad_()
                loss = loss_of(stage(h))
                loss.backward()
                dist.send(h.grad, 0)
            optimizer.step()
            return loss

        self.right_and_wrong(step, mesh={"pp": 2})


class NeverCalled(Verdicts):
    """What no module that is called has is compared, too."""

    def trained(self, world, forward, but=(), update=None):
        """but: parameters that the ranks do not average."""
        model = Net()
        loss = loss_of(forward(model, world.input("x", (8, 4), shard={"dp": 0})))
        loss.backward()
        averaged(world, [p for n, p in model.named_parameters() if n not in but])
        if update is not None:
            update(model)
        return loss

    def test_methods(self):
        for forward in (Net.run, Net.forward, Net.functional):
            with self.subTest(forward.__name__):
                self.right_and_wrong(
                    lambda world, right: self.trained(world, forward, () if right else ("scale",))
                )

    def test_methods_that_are_recomputed(self):
        def recomputed(model, x):
            return checkpoint(model.run, x, use_reentrant=False)

        self.right_and_wrong(
            lambda world, right: self.trained(world, recomputed, () if right else ("scale",))
        )

    def test_updates_by_hand(self):
        def assigned(model):
            for p in model.parameters():
                p.data = p.data - 0.1 * p.grad
            model.zero_grad()

        def of_a_vector(model):
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
            vector = nn.utils.parameters_to_vector(model.parameters()) - 0.1 * gradient
            nn.utils.vector_to_parameters(vector, model.parameters())
            model.zero_grad()

        def replaced(model):
            for n, p in list(model.named_parameters()):
                path, _, name = n.rpartition(".")
                new = nn.Parameter((p - 0.1 * p.grad).detach())
                setattr(model.get_submodule(path), name, new)

        for update in (assigned, of_a_vector, replaced):
            with self.subTest(update.__name__):
                self.right_and_wrong(
                    lambda world, right: self.trained(
                        world, Net.run, () if right else ("scale",), update
                    )
                )

    def test_a_method_that_fsdp_takes_for_a_forward(self):
        def step(world, right):
            model = Net()
            fully_shard(model, mesh=world.mesh("dp"))
            register_fsdp_forward_method(model, "run")
            if not world.single and not right:
                model.set_gradient_divide_factor(1.0)
            loss = loss_of(model.run(world.input("x", (8, 4), shard={"dp": 0})))
            loss.backward()
            return loss

        self.right_and_wrong(step)

    def test_bare_parameters(self):
        def step(world, right, make):
            parameters = make()
            w = torch.stack(parameters) if len(parameters) > 1 else parameters[0]
            x = world.input("x", (8, 4), shard={"dp": 0})
            loss = loss_of(nn.functional.gelu(x @ w))
            loss.backward()
            if right:
                averaged(world, parameters)
            return loss

        for make in (
            lambda: [nn.Parameter(torch.randn(4, 4))],
            lambda: [torch.randn(4, 4, requires_grad=True)],
            lambda: [nn.Parameter(torch.randn(4)) for _ in range(4)],
        ):
            self.right_and_wrong(lambda world, right: step(world, right, make))

    def test_a_bare_distributed_parameter(self):
        def step(world, right):
            w = nn.Parameter(distribute_tensor(torch.randn(8, 4), world.mesh("dp"), [Shard(0)]))
            x = distribute_tensor(world.input("x", (8, 4)), world.mesh("dp"))
            loss = loss_of(x @ w.t())
            loss.backward()
            if not world.single and not right:
                w.grad.mul_(3)
            return loss

        self.right_and_wrong(step)

    def test_a_temperature_of_a_criterion(self):
        class Criterion(nn.Module):
            def __init__(self):
                super().__init__()
                self.temperature = nn.Parameter(torch.ones(()))

            def loss(self, y):
                return loss_of(y * self.temperature)

        def step(world, right):
            model, criterion = nn.Linear(4, 4), Criterion()
            loss = criterion.loss(model(world.input("x", (8, 4), shard={"dp": 0})))
            loss.backward()
            averaged(world, [*model.parameters(), *(criterion.parameters() if right else ())])
            return loss

        self.right_and_wrong(step)

    def test_buffers(self):
        def step(world, right, keep):
            model = Net()
            x = world.input("x", (8, 4), shard={"dp": 0})
            mean = x.mean(0)
            if right and not world.single:
                dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            keep(model, mean)
            return loss_of(model.b(torch.tanh(model.a(x))))

        def added(model, mean):
            model.seen += mean

        def put(model, mean):
            model.seen = model.seen + mean

        for keep in (added, put):
            self.right_and_wrong(lambda world, right: step(world, right, keep))

    def test_buffers_of_a_module_without_parameters(self):
        class Metric(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("total", torch.zeros(()))

        def step(world, right):
            metric = Metric()
            loss = loss_of(world.input("x", (8, 4), shard={"dp": 0}))
            total = loss.detach().clone()
            if right and not world.single:
                dist.all_reduce(total, op=dist.ReduceOp.AVG)
            metric.total += total
            return loss

        self.right_and_wrong(step)

    def test_gradients_kept_apart(self):
        def step(world, right):
            model = nn.Linear(4, 4)
            for p in model.parameters():
                p.main_grad = torch.zeros_like(p)
            loss_of(model(world.input("x", (8, 4), shard={"dp": 0}))).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.main_grad.add_(p.grad)
                    p.grad = None
            averaged(world, model.parameters() if right else (), lambda p: p.main_grad)

        self.right_and_wrong(step)

    def test_gradients_of_the_batch(self):
        def step(world, factor=1, shard=None):
            x = world.input("x", (8, 4), shard=shard).requires_grad_()
            loss = loss_of(x) * (1 if world.single else factor)
            loss.backward()
            return loss.detach() / (1 if world.single else factor)

        self.assertEqual("EQUIVALENT", self.report(step).verdict)
        self.assertEqual("NOT EQUIVALENT", self.report(lambda world: step(world, 3)).verdict)
        cut = self.report(lambda world: step(world, shard={"dp": 0}))
        self.assertEqual("CONDITIONAL", cut.verdict)
        self.assertIn("x.grad is not compared: the batch is cut", cut.not_compared[0])


class Results(Verdicts):
    """All that a step returns is compared, or named."""

    def returned(self, result, **options):
        def step(world):
            return result(world, world.input("x", (8, 4), shard={"dp": 0}))

        return self.report(step, **options)

    def test_containers(self):
        class Holder:
            def __init__(self, total):
                self.total = total

        Pair = collections.namedtuple("Pair", "mean total")
        for wrap in (
            lambda t: {"a": [t]},
            collections.UserList,
            lambda t: collections.deque([t]),
            lambda t: collections.UserDict(total=t),
            Holder,
            lambda t: Pair(t, t),
        ):
            report = self.returned(
                lambda world, x: wrap([x.sum()] if wrap is collections.UserList else x.sum())
            )
            self.assertEqual("NOT EQUIVALENT", report.verdict, str(report))

    def test_numbers_and_texts(self):
        same = self.returned(lambda world, x: (x.mean(), {"width": x.shape[1], "name": "net"}))
        self.assertEqual(("EQUIVALENT", []), (same.verdict, same.not_compared))
        other = self.returned(lambda world, x: {"loss": x.mean(), "rows": x.shape[0]})
        self.assertEqual("CONDITIONAL", other.verdict)
        self.assertIn(
            "the step's result 'rows' is not compared: it is 4 on rank 0 and 8 on the"
            " single device",
            other.not_compared,
        )
        text = self.returned(lambda world, x: {"loss": x.mean(), "text": f"{x.sum().item():.3f}"})
        self.assertEqual("CONDITIONAL", text.verdict)
        self.assertIn("the step's result 'text'", text.not_compared[0])

    def test_tensors_of_one_integer(self):
        for number, verdict in (
            (lambda world, x: x.shape[1], "EQUIVALENT"),
            (lambda world, x: x.shape[0], "NOT EQUIVALENT"),
            (lambda world, x: 3 + world.rank, "NOT EQUIVALENT"),
        ):
            report = self.returned(
                lambda world, x, number=number: {
                    "loss": x.mean(),
                    "n": torch.tensor(number(world, x)),
                }
            )
            self.assertEqual(verdict, report.verdict, str(report))

    def test_what_nothing_is_known_of(self):
        for wrap in (
            iter,
            set,
            lambda ts: (t for t in ts),
            lambda ts: lambda: ts,
            lambda ts: dict.fromkeys(ts, 1),
        ):
            report = self.returned(lambda world, x: {"loss": x.mean(), "more": wrap([x.sum()])})
            self.assertEqual("CONDITIONAL", report.verdict)
            self.assertIn("the step's result 'more", report.not_compared[0])

    def test_attributes_beside_items(self):
        class Dict(dict):
            """A dictionary with attributes."""

        class List(list):
            """A list with attributes."""

        @dataclasses.dataclass
        class Out:
            loss: torch.Tensor

        for make in (lambda loss: Dict(loss=loss), lambda loss: List([loss]), Out):
            for right in (True, False):

                def result(world, x):
                    out = make(x.mean())
                    out.more = x.mean() if right else x.sum()
                    return out

                report = self.returned(result)
                self.assertEqual(
                    "EQUIVALENT" if right else "NOT EQUIVALENT", report.verdict, str(report)
                )

    def test_modules(self):
        def step(world, change):
            model = Net()
            loss = loss_of(model(world.input("x", (8, 4))))
            loss.backward()
            return {"loss": loss, "model": change(world, model, loss)}

        def attribute(world, model, loss):
            model.last_loss = loss * world.size
            return model

        def copied(world, model, loss):
            other = nn.Linear(4, 4)
            with torch.no_grad():
                other.weight.copy_(model.a.weight * world.size)
            return other

        report = self.report(lambda world: step(world, lambda world, model, loss: model))
        self.assertEqual(("EQUIVALENT", []), (report.verdict, report.not_compared), str(report))
        for change, said in ((attribute, "'model.last_loss'"), (copied, "'model'")):
            report = self.report(lambda world: step(world, change))
            self.assertNotEqual("EQUIVALENT", report.verdict, str(report))
            if report.verdict == "CONDITIONAL":
                self.assertIn(said, report.not_compared[0])

    def test_a_model_that_a_rank_leaves_alone(self):
        """That is a risk; a rank that has a part of it to do is compared in that."""

        def step(world, otherwise=None):
            model, average = Net(), Net()
            loss = loss_of(model(world.input("x", (8, 4))))
            loss.backward()
            with torch.no_grad():
                if world.rank == 0 or otherwise is None:
                    for p, q in zip(average.parameters(), model.parameters(), strict=True):
                        p.mul_(0.9).add_(q, alpha=0.1)
                else:
                    otherwise(average)
            return loss

        said = "rank 1: model2.scale"
        all_ranks = self.report(step)
        self.assertEqual("EQUIVALENT", all_ranks.verdict)
        self.assertFalse(any("not used" in a for a in all_ranks.assumptions))
        some = self.report(lambda world: step(world, lambda average: None))
        self.assertEqual("CONDITIONAL", some.verdict)
        self.assertIn("trained-by-some", some.text)
        self.assertTrue(any(said in a for a in some.assumptions), some.assumptions)
        wrong = self.report(lambda world: step(world, lambda average: average.a.weight.mul_(0.5)))
        self.assertEqual("NOT EQUIVALENT", wrong.verdict)

    def test_states_that_are_lists(self):
        class History(torch.optim.Optimizer):
            """Keeps the last gradients of each parameter in a list."""

            def __init__(self, parameters, factor):
                super().__init__(parameters, {"lr": 0.1})
                self.factor = factor

            @torch.no_grad()
            def step(self, closure=None):
                for p in self.param_groups[0]["params"]:
                    state = self.state[p]
                    state.setdefault("mean", torch.zeros_like(p)).mul_(0.9).add_(p.grad)
                    state.setdefault("last", []).append(p.grad * self.factor)
                    p.sub_(0.1 * p.grad)

        def step(world):
            model = nn.Linear(4, 4)
            optimizer = History(model.parameters(), world.size)
            loss = loss_of(model(world.input("x", (8, 4))))
            loss.backward()
            optimizer.step()
            return loss

        report = self.report(step)
        self.assertEqual("NOT EQUIVALENT", report.verdict, str(report))
        self.assertIn("mul at identity_test.py", report.text)

    def test_none_in_the_place_of_a_number(self):
        with self.assertRaisesRegex(sp.CaptureError, "'result.1' of the single device is on no"):
            self.returned(lambda world, x: (x.mean(), x.sum() if world.single else None))

        def some(world):
            x = world.input("x", (8, 4))
            return x.mean(), x.sum() if world.rank == 0 else None

        report = self.report(some)
        self.assertEqual("CONDITIONAL", report.verdict)
        self.assertIn(
            "the step's result 'result.1' is not compared: rank 1 returns None",
            report.not_compared[0],
        )


class Nothing(Verdicts):
    """A verdict about nothing is none."""

    def test_nothing_is_computed(self):
        with self.assertRaisesRegex(sp.CaptureError, "nothing is computed"):
            self.report(lambda world: world.input("x", (8, 4)))

    def test_an_optimizer_that_never_steps(self):
        def step(world):
            model = nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss = loss_of(model(world.input("x", (8, 4))))
            loss.backward()
            optimizer.zero_grad()
            return loss

        report = self.report(step)
        self.assertEqual("CONDITIONAL", report.verdict)
        self.assertIn("the step of SGD of 2 parameters is not compared", report.not_compared[0])

    def test_a_script_that_communicates_nothing(self):
        script = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 4)).square().mean().backward()
optimizer.step()
"""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.py"
            path.write_text(script)
            done = run_command("--mesh", "dp=2", str(path))
        self.assertEqual(2, done.returncode, done.stdout + done.stderr)
        self.assertIn("no collective was issued on 2 ranks", done.stderr)


if __name__ == "__main__":
    unittest.main()
