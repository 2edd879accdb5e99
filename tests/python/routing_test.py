# SPDX-License-Identifier: Apache-2.0
"""Rows that data chooses or orders (terms/rows.py): mixtures of experts as people write them."""

import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron_parallel import ReduceFromGroup
from routing_models import (
    DIM,
    EXPERTS,
    FORMS,
    MORE_FORMS,
    TOKENS,
    Experts,
    arranged,
    chunks,
    exchanged,
    functional,
    keys_exchanged,
    split,
    swapped,
    wrong_places,
)
from shardproof.torch import numeric

ACCEPT = ["rows-present", "initial-values"]
ARGUMENTS = ["--timeout", "40", "--confirm", "off"]


def data_parallel(form, change=lambda name, p: None):
    """Each rank has a part of the batch. change: of averaged gradients."""

    def step(world):
        torch.manual_seed(0)
        model = Experts(form)
        x, y = (world.input(name, (TOKENS, DIM), shard={"dp": 0}) for name in "xy")
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if not world.single:
            for name, p in model.named_parameters():
                if change(name, p) != "left":
                    dist.all_reduce(p.grad)
                    p.grad /= world.size
        return loss

    return step


def expert_parallel(form, owner=lambda rank, size: rank, router=True):
    """Each rank has a part of the experts, and all tokens."""

    def step(world):
        torch.manual_seed(0)
        each = EXPERTS // world.size
        first = owner(world.rank, world.size) * each
        model = Experts(form, first, first + each)
        world.parameters(model, shard={"w[12]": {"ep": 0}})
        x, y = (world.input(name, (TOKENS, DIM)) for name in "xy")
        out = model(x)
        if not world.single:
            out = ReduceFromGroup.apply(out, None)
        loss = F.mse_loss(out, y)
        loss.backward()
        if not world.single and router:
            dist.all_reduce(model.router.weight.grad)
        return loss

    return step


def other_owner(rank, size):
    return (rank + 1) % size


def tokens_exchanged(form, experts=True, router=True):
    """Each rank has a part of the experts and a part of the batch."""

    def step(world):
        torch.manual_seed(0)
        each = EXPERTS // world.size
        model = Experts(form, world.rank * each, (world.rank + 1) * each)
        world.parameters(model, shard={"w[12]": {"ep": 0}})
        x, y = (world.input(name, (TOKENS, DIM), shard={"ep": 0}) for name in "xy")
        loss = F.mse_loss(model(x), y)
        loss.backward()
        if not world.single:
            if router:
                dist.all_reduce(model.router.weight.grad)
                model.router.weight.grad /= world.size
            for p in (model.w1, model.w2):
                p.grad /= world.size if experts else 1
        return loss

    return step


class Routing(unittest.TestCase):
    def check(self, verdict, single, step, mesh):
        report = sp.verify(single, step, mesh=mesh, accept=ACCEPT, arguments=ARGUMENTS)
        self.assertEqual(verdict, report.verdict, str(report))
        return report


class Numbers(unittest.TestCase):
    def test_forms_compute_the_same(self):
        """In PyTorch itself, on the CPU."""
        torch.manual_seed(1)
        x = torch.randn(TOKENS, DIM)
        results = {}
        for name, form in (FORMS | MORE_FORMS).items():
            torch.manual_seed(0)
            model = Experts(form)
            out = model(x)
            out.square().sum().backward()
            results[name] = [out, *(p.grad for p in model.parameters())]
        for name, tensors in results.items():
            for a, b in zip(results["dense"], tensors):
                self.assertTrue(torch.allclose(a, b, atol=1e-5), name)


CASES = {
    "exchanged": (tokens_exchanged(exchanged), {"ep": 2}, True),
    "exchanged by functions": (tokens_exchanged(functional), {"ep": 2}, True),
    "exchanged with keys": (tokens_exchanged(keys_exchanged), {"ep": 2}, True),
    "exchanged by masks": (tokens_exchanged(chunks), {"ep": 2}, True),
    "exchanged and arranged": (tokens_exchanged(arranged), {"ep": 2}, True),
    "hit": (expert_parallel(FORMS["hit"]), {"ep": 2}, True),
    "not divided": (tokens_exchanged(exchanged, experts=False), {"ep": 2}, False),
    "own tokens": (tokens_exchanged(exchanged, router=False), {"ep": 2}, False),
    "own experts": (expert_parallel(FORMS["hit"], router=False), {"ep": 2}, False),
    "other experts": (
        expert_parallel(FORMS["skipped"], lambda r, n: (r + 1) % n),
        {"ep": 2},
        False,
    ),
}


def case(name, which):
    return CASES[name][0]


class RealProcesses(unittest.TestCase):
    def test_each(self):
        """What is proved below agrees on gloo processes with one device, what is refuted not."""
        found = numeric.compare(case, {name: mesh for name, (_, mesh, _) in CASES.items()})
        for name, (_, _, right) in CASES.items():
            difference, place = found[name]
            with self.subTest(name, difference=difference, place=place):
                if right:
                    self.assertLess(difference, 1e-4)
                else:
                    self.assertGreater(difference, 3e-4)


class Forms(Routing):
    def test_each_against_the_dense_one(self):
        """Single device: what is recorded is what the code computes."""
        for name in FORMS:
            with self.subTest(name):
                single, step = (data_parallel(FORMS[n]) for n in ("dense", name))
                self.check("EQUIVALENT", single, step, {"dp": 1})

    def test_data_parallel(self):
        for single, step in (
            ("hit", "hit"),
            ("skipped", "grouped"),
            ("split", "split"),
        ):
            with self.subTest(f"{single}, {step}"):
                both = (data_parallel(FORMS[n]) for n in (single, step))
                self.check("EQUIVALENT", *both, {"dp": 2})

    def test_more_forms(self):
        """Each against itself: `Numbers` has them compute what the others do."""
        for name, form in MORE_FORMS.items():
            with self.subTest(name):
                report = sp.verify(
                    data_parallel(form), mesh={"dp": 2}, accept=ACCEPT, arguments=ARGUMENTS
                )
                self.assertEqual("EQUIVALENT", report.verdict, str(report))

    def test_masks_and_pieces(self):
        report = sp.verify(
            tokens_exchanged(chunks), mesh={"ep": 2}, accept=ACCEPT, arguments=ARGUMENTS
        )
        self.assertEqual("EQUIVALENT", report.verdict, str(report))

    def test_gradients_that_nothing_reduces(self):
        step = data_parallel(FORMS["grouped"], lambda name, p: "left" if "router" in name else "")
        report = self.check("NOT EQUIVALENT", data_parallel(FORMS["grouped"]), step, {"dp": 2})
        self.assertIn("router.weight.grad", str(report))

    def test_expert_parallel(self):
        for name in ("hit", "skipped"):
            with self.subTest(name):
                both = (expert_parallel(FORMS[n]) for n in ("hit", name))
                self.check("EQUIVALENT", *both, {"ep": 2})

    def test_experts_of_another_rank(self):
        step = expert_parallel(FORMS["skipped"], other_owner)
        self.check("NOT EQUIVALENT", expert_parallel(FORMS["skipped"]), step, {"ep": 2})

    def test_router_gradient_of_own_experts(self):
        step = expert_parallel(FORMS["hit"], router=False)
        report = self.check("NOT EQUIVALENT", expert_parallel(FORMS["hit"]), step, {"ep": 2})
        self.assertIn("router.weight.grad", str(report))

    def test_tokens_exchanged(self):
        for ranks, form in (
            (2, exchanged),
            (2, keys_exchanged),
            (4, functional),
            (2, arranged),
        ):
            with self.subTest(f"{ranks}, {form.__name__}"):
                both = (tokens_exchanged(f) for f in (split, form))
                self.check("EQUIVALENT", *both, {"ep": ranks})

    def test_expert_gradients_not_divided(self):
        step = tokens_exchanged(exchanged, experts=False)
        report = self.check("NOT EQUIVALENT", tokens_exchanged(split), step, {"ep": 2})
        self.assertIn("scaled by 2 = ep size", str(report))

    def test_router_gradient_of_own_tokens(self):
        step = tokens_exchanged(exchanged, router=False)
        report = self.check("NOT EQUIVALENT", tokens_exchanged(split), step, {"ep": 2})
        self.assertIn("router.weight.grad", str(report))

    def test_sizes_swapped(self):
        with self.assertRaisesRegex(sp.CaptureError, "routing_models.py"):
            sp.verify(tokens_exchanged(split), tokens_exchanged(swapped), mesh={"ep": 2})

    def test_places_of_other_rows(self):
        with self.assertRaisesRegex(sp.CaptureError, "not known to be the positions"):
            sp.verify(tokens_exchanged(split), tokens_exchanged(wrong_places), mesh={"ep": 2})

    def test_conditional(self):
        """That there are rows is a risk, with its line."""
        step = data_parallel(FORMS["skipped"])
        report = sp.verify(step, mesh={"dp": 2}, arguments=ARGUMENTS)
        self.assertEqual("CONDITIONAL", report.verdict)
        self.assertTrue(any("routing_models.py" in a for a in report.assumptions))


def selected(use):
    """A step that uses the tokens that data chooses. use: (tokens, their mask, world)."""

    def step(world):
        torch.manual_seed(0)
        layer = torch.nn.Linear(DIM, 1)
        x = world.input("x", (TOKENS, DIM))
        score = layer(x)
        loss = use(x * score, score.squeeze(-1) > 0)
        loss.backward()
        return loss

    return step


def first_rows(x, mask):
    out = torch.zeros_like(x)
    rows = x[mask]
    out[: rows.shape[0]] = rows
    return out.softmax(-1).sum()


def put_back_by_the_order(m, x, weights, chosen):
    """Wrong: the order in place of its inverse."""
    order = chosen.flatten().argsort()
    ends = chosen.flatten().bincount(minlength=EXPERTS).cumsum(0).to(torch.int32)
    y = F.grouped_mm(F.grouped_mm(x[order // 2], m.w1, offs=ends), m.w2, offs=ends)
    return (y[order].view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def groups_of_the_first_choice(m, x, weights, chosen):
    """Wrong: the sizes of groups count another tensor than the one that is sorted."""
    order = chosen.flatten().argsort()
    ends = chosen[:, 0].bincount(minlength=EXPERTS).cumsum(0).to(torch.int32)
    y = F.grouped_mm(F.grouped_mm(x[order // 2], m.w1, offs=ends), m.w2, offs=ends)
    return (y[order.argsort()].view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def counts_as_offsets(m, x, weights, chosen):
    """Wrong: no running sums."""
    order = chosen.flatten().argsort()
    sizes = chosen.flatten().bincount(minlength=EXPERTS).to(torch.int32)
    y = F.grouped_mm(F.grouped_mm(x[order // 2], m.w1, offs=sizes), m.w2, offs=sizes)
    return (y[order.argsort()].view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def next_expert(m, x, weights, chosen):
    """Wrong: the tokens of an expert go to the next one."""
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        token, position = torch.where(chosen == e)
        y = m.expert((e + 1) % EXPERTS, x[token]) * weights[token, position, None]
        out.index_add_(0, token, y)
    return out


def weights_of_the_first_choice(m, x, weights, chosen):
    """Wrong: each row has the weight of its token's first expert."""
    out = torch.zeros_like(x)
    for e in range(EXPERTS):
        token, _ = torch.where(chosen == e)
        out.index_add_(0, token, m.expert(e, x[token]) * weights[token, 0, None])
    return out


def grouped_choice(world, values=False):
    """A router that chooses among the best groups. values: those that the choice has."""
    torch.manual_seed(0)
    router = torch.nn.Linear(DIM, EXPERTS, bias=False)
    x = world.input("x", (TOKENS, DIM), shard={"dp": 0})
    scores = router(x).sigmoid()
    best = scores.view(-1, 2, EXPERTS // 2).topk(2, -1)[0].sum(-1).topk(1, -1)[1]
    mask = torch.zeros(len(x), 2).scatter(1, best, 1)
    mask = mask[..., None].expand(-1, -1, EXPERTS // 2).reshape(-1, EXPERTS)
    seen, chosen = scores.masked_fill(~mask.bool(), float("-inf")).topk(3, -1)
    loss = (seen if values else scores.gather(1, chosen)).square().sum() / TOKENS
    loss.backward()
    if not world.single:
        dist.all_reduce(router.weight.grad)
    world.output("loss", loss, sum=["dp"])


class Choices(Routing):
    def test_among_groups(self):
        report = sp.verify(grouped_choice, mesh={"dp": 2}, accept=ACCEPT, arguments=ARGUMENTS)
        self.assertEqual("EQUIVALENT", report.verdict, str(report))

    def test_values(self):
        """A group has too few experts: minus infinities are among the values."""
        with self.assertRaisesRegex(sp.CaptureError, "minus infinities"):
            sp.verify(lambda world: grouped_choice(world, True), mesh={"dp": 2})


class Refused(Routing):
    """What is not row by row is an error with its line, never a number of slots."""

    def test_rows(self):
        for name, use in {
            "mean": lambda x, mask: x[mask].mean(),
            "sum with a gradient": lambda x, mask: x[mask].sum(),
            "softmax over rows": lambda x, mask: x[mask].softmax(0).square().sum(1).sum(),
            "maximum": lambda x, mask: x[mask].amax(0).sum(),
            "two masks": lambda x, mask: x.index_add(
                0, mask.nonzero()[:, 0], x[mask] + x[~mask]
            ).sum(),
            "rows of rows": lambda x, mask: x[mask][x[mask][:, 0] > 1].square().sum(1).sum(),
            "all rows": lambda x, mask: x.index_add(0, mask.nonzero()[:, 0], x[mask] + x).sum(),
            "some rows": lambda x, mask: x[mask][:2].sum(),
            "first rows": first_rows,
            "length": lambda x, mask: (x * torch.arange(len(x[mask])).sum()).sum(),
            "a number as data": lambda x, mask: (x * torch.arange(x[mask].shape[0]).sum()).sum(),
            "a product of sizes": lambda x, mask: x.sum() * (x[mask].shape.numel() - 1),
            "a number that decides": lambda x, mask: (
                x.sum() if x[mask].shape[0] > 3 else x.square().sum()
            ),
            "a number as a multiple": lambda x, mask: x.sum() * (x[mask].numel() // DIM),
            "the shape of rows": lambda x, mask: (
                torch.zeros(1, DIM).expand_as(x[mask]).exp().sum() * x.sum()
            ),
            "rows as a vector": lambda x, mask: x[mask].flatten().square().softmax(0).sum(),
        }.items():
            with (
                self.subTest(name),
                self.assertRaisesRegex(sp.CaptureError, "routing_test.py"),
            ):
                sp.verify(selected(use), mesh={"dp": 1}, arguments=ARGUMENTS)

    def test_wrong_orders(self):
        for form in (put_back_by_the_order, groups_of_the_first_choice, counts_as_offsets):
            with (
                self.subTest(form.__name__),
                self.assertRaisesRegex(sp.CaptureError, "routing_test.py"),
            ):
                sp.verify(data_parallel(form), mesh={"dp": 1}, arguments=ARGUMENTS)


class Exact(Routing):
    def test_pieces_along_other_dimensions(self):
        """Their gradients are put together with zeros."""

        def use(x, mask):
            at = mask.nonzero()[:, 0]
            rows = x[mask]
            y = torch.cat([rows[:, -2:].exp(), rows[:, 1:3] * rows[:, 0, None]], dim=1)
            return torch.zeros(TOKENS, 4).index_add(0, at, y).square().sum()

        def dense(x, mask):
            y = torch.cat([x[:, -2:].exp(), x[:, 1:3] * x[:, 0, None]], dim=1)
            return (y * mask.float()[:, None]).square().sum()

        self.check("EQUIVALENT", selected(dense), selected(use), {"dp": 1})

    def test_wrong_experts_and_weights(self):
        for form in (next_expert, weights_of_the_first_choice):
            with self.subTest(form.__name__):
                single, step = (data_parallel(f) for f in (FORMS["skipped"], form))
                self.check("NOT EQUIVALENT", single, step, {"dp": 1})

    def test_numbers_of_rows(self):
        """Ones for each row add up to their number, not to that of slots."""

        def by_rows(x, mask):
            rows = x.detach()[mask]
            ones = torch.ones(rows.shape[0]).sum() + torch.ones_like(rows[:, 0]).sum()
            return (x * ones).sum() + (x * rows.sum(0)).sum() / rows.shape[0]

        def by_mask(x, mask):
            n = mask.float().sum()
            total = (x.detach() * mask.float()[:, None]).sum(0)
            return (x * (n + n)).sum() + (x * total).sum() / n

        def by_slots(x, mask):
            return (x * 2 * TOKENS).sum() + by_mask(x, mask) - (x * 2 * mask.float().sum()).sum()

        self.check("EQUIVALENT", selected(by_mask), selected(by_rows), {"dp": 1})
        self.check("NOT EQUIVALENT", selected(by_slots), selected(by_rows), {"dp": 1})

    def test_bias_of_rows(self):
        """The gradient of a bias is summed over rows, not over slots."""

        def step(dense):
            def use(x, mask):
                torch.manual_seed(3)
                bias = torch.nn.Parameter(torch.zeros(DIM))
                if dense:
                    y = (x + bias).exp() * mask.float()[:, None]
                else:
                    at = mask.nonzero()[:, 0]
                    y = torch.zeros_like(x).index_add(0, at, (x[mask] + bias).exp())
                loss = y.square().sum()
                return loss

            return selected(use)

        self.check("EQUIVALENT", step(True), step(False), {"dp": 1})


if __name__ == "__main__":
    unittest.main()
