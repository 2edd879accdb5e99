# SPDX-License-Identifier: Apache-2.0
"""What a script does after its optimizer's step: right scripts, and each with one thing wrong.

A script here is a loop with lines before it and lines at its end. In what is wrong, ranks (or the
single device) compute with another number or do not take part.
"""

import pathlib
import tempfile
import unittest

import torch
import torch.distributed as dist
from shardproof.torch.session.capture import verify
from shardproof.torch.session.script import script_step

HEAD = """
import collections, copy, math, torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 3), torch.randint(0, 2, (16,)))
loader = DataLoader(data, batch_size=4 // world, sampler=DistributedSampler(data))
model = DistributedDataParallel(nn.Linear(3, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
BEFORE
for x, y in loader:
    opt.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    opt.step()
    REST
"""
BY_HAND = HEAD.replace("DistributedDataParallel(nn.Linear(3, 2))", "nn.Linear(3, 2)").replace(
    "BEFORE", "for p in model.parameters(): dist.broadcast(p.data, 0)\nBEFORE"
)
REDUCED = BY_HAND.replace(
    "    opt.step()", "    for p in model.parameters(): dist.all_reduce(p.grad)\n    opt.step()"
)


def script(rest, before="", head=HEAD, **words):
    text = head.replace("BEFORE", before.strip("\n"))
    text = text.replace("REST", rest.strip("\n").replace("\n", "\n    "))
    for word, by in words.items():
        text = text.replace(word, by)
    return text


def judged(text, *arguments, **options):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "train.py"
        path.write_text(text)
        quick = ["--confirm", "off", "--diagnose", "off", *arguments]
        return verify(script_step(str(path), [], quiet=True), mesh="dp=2", arguments=quick)


class Case(unittest.TestCase):
    def right(self, text, verdict="EQUIVALENT"):
        report = judged(text)
        self.assertEqual(report.verdict, verdict, report)
        return report

    def wrong(self, text, *expected, verdict="NOT EQUIVALENT"):
        report = judged(text)
        self.assertEqual(report.verdict, verdict, report)
        for part in expected:
            self.assertIn(part, report.text)
        return report

    def pair(self, rest, before, word, right, wrong, head=HEAD, compared=""):
        """The right script, and the wrong one."""
        self.assertIn(compared, self.right(script(rest, before, head, **{word: right})).text)
        return self.wrong(script(rest, before, head, **{word: wrong}))


class Averages(Case):
    """Averages of weights in plain tensors, by whatever holds them."""

    def pair(self, rest, before, head=HEAD, compared="2 copied weights"):
        apart = "(0.9 if rank == 0 else 0.8)"
        return super().pair(rest, before, "DECAY", "0.9", apart, head, compared)

    def test_an_object_that_is_called(self):
        self.pair(
            "ema(model)",
            """
class Ema:
    def __init__(self, m): self.shadow = {n: p.detach().clone() for n, p in m.named_parameters()}
    @torch.no_grad()
    def __call__(self, m):
        for n, p in m.named_parameters(): self.shadow[n].mul_(DECAY).add_(p, alpha=1 - DECAY)
ema = Ema(model)
""",
        )

    def test_a_closure(self):
        self.pair(
            "update()",
            """
def make(m):
    shadow = {p: p.detach().clone() for p in m.parameters()}
    @torch.no_grad()
    def update():
        for p in m.parameters(): shadow[p].lerp_(p, 1 - DECAY)
    return update
update = make(model)
""",
        )

    def test_an_attribute_of_a_module(self):
        self.pair(
            "ema.update(model)",
            """
class Ema(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.shadow = collections.deque(p.detach().clone() for p in m.parameters())
    @torch.no_grad()
    def update(self, m):
        for s, p in zip(self.shadow, m.parameters()): s.lerp_(p, 1 - DECAY)
ema = Ema(model)
""",
        )

    def test_a_vector_of_all_weights(self):
        self.pair(
            "flat = flat * DECAY + vector(model.parameters()).detach() * (1 - DECAY)",
            """
from torch.nn.utils import parameters_to_vector as vector
flat = vector(model.parameters()).detach().clone()
""",
            compared="1 copied weight",
        )

    def test_that_are_made_in_the_first_step(self):
        """How they are updated shows in the second one."""
        self.pair(
            """
for n, p in model.named_parameters():
    shadow[n] = DECAY * shadow[n] + (1 - DECAY) * p.detach() if n in shadow else p.detach().clone()
""",
            "shadow = {}",
        )

    def test_a_model_that_is_copied_in_the_first_step(self):
        self.pair(
            """
if ema is None: ema = copy.deepcopy(model.module)
else:
    with torch.no_grad():
        for e, p in zip(ema.parameters(), model.parameters()): e.lerp_(p, 1 - DECAY)
""",
            "ema = None",
            compared="4 new parameters",
        )

    def test_that_are_updated_before_the_step(self):
        update = """
    for n, p in model.named_parameters():
        shadow[n] = DECAY * shadow[n] + (1 - DECAY) * p.detach()
    opt.zero_grad()
"""
        self.pair(
            "pass",
            "shadow = {n: p.detach().clone() for n, p in model.named_parameters()}",
            head=HEAD.replace("    opt.zero_grad()\n", update),
        )

    def test_that_are_updated_in_the_step(self):
        update = """
    for s, p in zip(shadow, model.parameters()): s.lerp_(p.detach(), 1 - DECAY)
    opt.step()
"""
        self.pair(
            "pass",
            "shadow = [p.detach().clone() for p in model.parameters()]",
            head=HEAD.replace("    opt.step()\n", update),
        )

    def test_a_loop_of_one_step(self):
        """The script ends, and its variables have what it leaves."""
        self.pair(
            """
for s, p in zip(shadow, model.parameters()): s.lerp_(p.detach(), 1 - DECAY)
break
""",
            "shadow = [p.detach().clone() for p in model.parameters()]",
        )

    def test_that_no_variable_is_found_to_hold(self):
        before = """
class Box:
    def __init__(self, t): self.t = t
pairs = {(Box(p.detach().clone()), p) for p in model.parameters()}
def update():
    for b, p in pairs: b.t.lerp_(p.detach(), 0.1)
"""
        report = self.right(script("update()", before), "CONDITIONAL")
        self.assertEqual(2, sum("no variable" in line for line in report.not_compared), report)

    def test_a_copy_of_the_model_in_each_step(self):
        """It is no average."""
        report = self.right(script("best = copy.deepcopy(model.module)", "best = None"))
        self.assertEqual([], report.not_compared)


class Beginning(Case):
    def test_computing_with_parameters_begins_no_step(self):
        self.pair(
            """
norms = [p.norm() for p in model.parameters()]
zeros = [torch.zeros_like(p) for p in model.parameters()]
with torch.no_grad():
    for p in model.parameters(): p.mul_(FACTOR)
""",
            "",
            "FACTOR",
            "0.99",
            "1 - 0.01 * world",
        )

    def test_gradients_that_nobody_clears(self):
        head = REDUCED.replace("loss.backward()", "(loss / world).backward()")
        right, wrong = script("pass", head=head), head.replace("    opt.zero_grad()\n", "")
        self.assertIn("only the first optimizer step was verified", self.right(right).text)
        at_the_end = self.right(script("opt.zero_grad()", head=wrong)).text
        self.assertIn("only the first optimizer step was verified", at_the_end)
        self.wrong(
            script("pass", head=wrong),
            "Likely mistake: no zero_grad clears the gradients of weight, bias between steps",
        )

    def test_gradients_that_are_cleared_in_another_way(self):
        head = HEAD.replace("opt.zero_grad()", "for p in model.parameters(): p.grad = None")
        text = self.right(script("pass", head=head)).text
        self.assertIn("only the first 2 optimizer steps (the last shows what becomes of", text)

    def test_a_loop_of_one_step(self):
        """There is no second step in which gradients that are left would matter."""
        head = HEAD.replace("    opt.zero_grad()\n", "")
        self.assertEqual([], self.right(script("break", head=head)).not_compared)


class RanksApart(Case):
    def test_a_broadcast_from_another_rank(self):
        self.pair(
            """
with torch.no_grad():
    for p in model.parameters():
        IF p.mul_(0.5)
        dist.broadcast(p, src=1)
""",
            "",
            "IF ",
            "",
            "if rank == 0: ",
        )

    def test_an_average_that_one_rank_updates_and_all_use(self):
        self.pair(
            """
IF ema.update_parameters(model.module)
model.module.load_state_dict(ema.module.state_dict())
""",
            "ema = torch.optim.swa_utils.AveragedModel(model.module)",
            "IF ",
            "",
            "if rank == 0: ",
        )

    def test_states_of_an_optimizer(self):
        head = HEAD.replace("torch.optim.SGD", "torch.optim.Adam")
        self.pair("IF opt.state.clear()", "", "IF ", "", "if rank == 0: ", head=head)

    def test_noise(self):
        rest = """
with torch.no_grad():
    for p in model.parameters(): p.add_(torch.randn(p.shape), alpha=0.01)
"""
        wrong = self.pair(rest, "SEED", "SEED", "torch.manual_seed(1)", "torch.manual_seed(rank)")
        self.assertEqual("random", wrong.defects[0].kind)

    def test_ranks_that_go_on_to_other_places(self):
        rest = "if rank == 0: F.linear(x, model.module.weight).sum().backward()"
        report = self.wrong(script(rest), "ranks-apart", verdict="CONDITIONAL")
        self.assertTrue(any("rank 1 until it asks" in a for a in report.assumptions), report)

    def test_an_error_on_one_rank(self):
        rest = "if rank == 1: print(out.detach().numpy().tobytes())"
        report = self.wrong(script(rest), "ranks-apart", verdict="CONDITIONAL")
        self.assertTrue(any("not on rank 0" in a for a in report.assumptions), report)

    def test_an_error_of_all(self):
        report = self.right(script("print(out.detach().numpy().tobytes())"))
        self.assertIn("a tensor becomes an array of NumPy", report.text)
        self.assertNotIn("ranks-apart", report.text)

    def test_a_decision(self):
        rest = """
value = loss.detach().clone()
REDUCE
if value.item() > best: opt.param_groups[0]["lr"] *= 0.5
"""
        right = script(rest, "best = 1.0", REDUCE="dist.all_reduce(value)")
        self.assertNotIn("ranks-apart", self.right(right).text)
        self.wrong(
            script(rest, "best = 1.0", REDUCE="pass"),
            "ranks-apart",
            "ranks decide by numbers of their own",
            verdict="CONDITIONAL",
        )


class Numbers(Case):
    def test_a_list_of_numbers_of_tensors(self):
        self.pair(
            """
total = torch.tensor([loss.item() * len(y), float(len(y))])
dist.all_reduce(total)
print((total[0] / NUMBER).item())
""",
            "",
            "NUMBER",
            "total[1]",
            "len(y)",
            compared="1 printed number",
        )


class Gradients(Case):
    def test_that_are_left_as_those_of_own_samples(self):
        rest = """
with torch.no_grad():
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= DIVISOR
"""
        self.wrong(
            script(rest, head=BY_HAND, DIVISOR="world"), "gradients-left", verdict="CONDITIONAL"
        )
        self.assertNotIn("left", self.wrong(script(rest, head=BY_HAND, DIVISOR="1")).text)

    def test_of_parameters_that_stay_as_they_are(self):
        """Nothing but the gradients is compared."""

        def step(world):
            model = torch.nn.Linear(3, 2)
            model(world.input("x", (4, 3), shard={"dp": 0})).square().mean().backward()
            dist.all_reduce(torch.ones(1))

        self.assertEqual("NOT EQUIVALENT", verify(step, mesh="dp=2").verdict)


if __name__ == "__main__":
    unittest.main()
