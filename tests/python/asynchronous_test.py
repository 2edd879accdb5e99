# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: B023 (steps run within the iteration that defines them)
"""Collectives that the program waits for later, or never."""

import gzip
import tempfile
import unittest

import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from recorder_steps import MESH, RecorderTest, train

CPU = torch.device("cpu")


class Waits(RecorderTest):
    """What is read or written before a collective's wait."""

    def test_reading_an_asynchronous_result_before_its_wait(self):
        import torch.distributed._functional_collectives as functional

        def change(world, model):
            if not world.single:
                raw = torch.ops._c10d_functional.all_reduce(
                    model.up.weight.grad, "avg", dist.group.WORLD.group_name
                )
                model.up.weight.grad.copy_(raw)
            _ = functional

        self.refuse(change, "before its wait")

    def test_a_missing_wait(self):
        def change(world, model, wait=False):
            if not world.single:
                work = dist.all_reduce(model.up.weight.grad, async_op=True)
                if wait:
                    work.wait()
                model.up.weight.grad.mul_(0.5)

        self.refuse(change, "asynchronous allreduce still writes is written before its wait")
        sp.assert_equivalent(lambda world: train(world, lambda w, m: change(w, m, True)), mesh=MESH)

    def test_a_result_read_before_its_wait_is_a_defect(self):
        def change(world, model, wait=False):
            if not world.single:
                work = dist.all_reduce(model.up.weight.grad, async_op=True)
                if wait:
                    work.wait()
                model.up.weight.grad = model.up.weight.grad * 0.5

        self.refuse(change, "asynchronous allreduce is read before its wait")
        report = sp.verify(lambda world: train(world, change), mesh=MESH)
        self.assertEqual(("NOT EQUIVALENT", "async"), (report.verdict, report.defects[0].kind))
        self.assertIn("asynchronous_test.py", report.defects[0].places[0])
        sp.assert_equivalent(lambda world: train(world, lambda w, m: change(w, m, True)), mesh=MESH)

    def test_a_write_to_what_is_being_sent_is_a_defect(self):
        def change(world, model, wait=False):
            if not world.single:
                sent, got = model.up.weight.grad / 2, torch.empty(2, *model.up.weight.shape)
                work = dist.all_gather_into_tensor(got, sent, async_op=True)
                if wait:
                    work.wait()
                sent.zero_()
                work.wait()
                model.up.weight.grad = got.sum(0)

        report = sp.verify(lambda world: train(world, change), mesh=MESH)
        self.assertEqual(("NOT EQUIVALENT", "async"), (report.verdict, report.defects[0].kind))
        self.assertIn("still sends is written", report.defects[0].text)
        sp.assert_equivalent(lambda world: train(world, lambda w, m: change(w, m, True)), mesh=MESH)

    def test_another_part_of_a_buffer_that_is_under_way(self):
        def change(world, model):
            if not world.single:
                buffer = torch.cat([model.up.weight.grad.flatten(), torch.zeros(4)])
                work = dist.all_reduce(buffer[:512], async_op=True)
                buffer[512:] += 1
                work.wait()
                model.up.weight.grad.copy_(buffer[:512].view(32, 16) / world.size * buffer[512])

        sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)

    def test_operands_of_functional_collectives_are_not_overwritten(self):
        for operator in ("all_gather_into_tensor", "reduce_scatter_tensor"):

            def step(world, early):
                x = world.input("x", (4, 8))
                if not world.single:
                    name = world.group("dp").group_name
                    a = x.clone()
                    f = getattr(torch.ops._c10d_functional, operator)
                    made = f(a, 2, name) if operator.startswith("all") else f(a, "sum", 2, name)
                    if early:
                        a.zero_()
                    made = torch.ops._c10d_functional.wait_tensor(made)
                    a.zero_()  # by now it was sent
                    x = (
                        made[:4]
                        if operator.startswith("all")
                        else torch.cat([made, made]) / 2 * 0 + x
                    )
                world.output("o", x * 1, mean=())

            with self.subTest(operator):
                self.assertEqual(
                    "EQUIVALENT", sp.verify(lambda world: step(world, False), mesh=MESH).verdict
                )
                self.assertEqual(
                    "NOT EQUIVALENT", sp.verify(lambda world: step(world, True), mesh=MESH).verdict
                )


class Calls(RecorderTest):
    """Collectives by other calls: methods of a group, coalesced, begun."""

    def test_methods_of_the_group(self):
        """These calls name their own reduction, whatever the call before did.

        They have to be waited for.
        """

        def change(world, model, wait=True, factor=2):
            if not world.single:
                group = world.group("dp")
                dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX, group=group)
                work = group.allreduce([model.up.weight.grad])
                if wait:
                    work.wait()
                model.up.weight.grad = model.up.weight.grad / factor
                work.wait()

        sp.assert_equivalent(lambda world: train(world, change), mesh=MESH)
        for wrong in ({"wait": False}, {"factor": 1}):
            report = sp.verify(
                lambda world, wrong=wrong: train(world, lambda w, m: change(w, m, **wrong)),
                mesh=MESH,
            )
            self.assertEqual("NOT EQUIVALENT", report.verdict)

    def test_calls_that_a_group_takes_together(self):
        """With a device the backend learns of the first and the last call, and gives one work."""

        def change(world, model, waits=True, factor=2, asynchronous=True, device=CPU):
            if not world.single:
                gradients = [p.grad for p in model.parameters()]
                with dist.distributed_c10d._coalescing_manager(
                    world.group("dp"), device, async_ops=asynchronous
                ) as together:
                    for g in gradients:
                        dist.all_reduce(g, group=world.group("dp"))
                if asynchronous and waits:
                    together.wait()
                torch._foreach_div_(gradients, factor)

        for right in ({}, {"asynchronous": False}, {"asynchronous": False, "device": None}):
            sp.assert_equivalent(
                lambda world: train(world, lambda w, m: change(w, m, **right)), mesh=MESH
            )
        for wrong in ({"waits": False}, {"factor": 1}):
            self.assertEqual(
                "NOT EQUIVALENT",
                sp.verify(
                    lambda world: train(world, lambda w, m: change(w, m, **wrong)), mesh=MESH
                ).verdict,
            )

    def test_collectives_that_are_begun(self):
        """Stage 1 begins a collective of both, then sends what stage 0 needs before it joins."""
        functional = torch.ops._c10d_functional

        def step(world, how="all_reduce", early=False, batch=False, another=False, factor=2.0):
            stages = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            rank = world.coordinates["pp"]
            model = world.parameters(
                torch.nn.ModuleDict(
                    {str(i): m for i, m in enumerate(stages) if world.single or rank == i}
                )
            )
            x, y = (world.input(name, (4, 8)) for name in "xy")
            if world.single:
                loss = F.mse_loss(stages[1](stages[0](x).relu()), y)
                loss.backward()
                world.output("shared", loss.expand(4) * 2, mean=())
            else:

                def begin(t):
                    if how == "functional":
                        whole = functional.all_reduce(t, "sum", dist.group.WORLD.group_name)
                        return lambda: functional.wait_tensor(whole)
                    parts = [torch.empty(4) for _ in range(2)]
                    flat = torch.cat([t, t + 1])
                    works = (
                        [dist.all_gather(parts, t, async_op=True)]
                        if how == "all_gather"
                        else [dist.all_reduce(flat, async_op=True)]
                    )
                    if another:
                        works.append(dist.all_reduce(torch.ones(1), async_op=True))

                    def end():
                        for work in works:
                            work.wait()
                        return (
                            parts[0] + parts[1]
                            if how == "all_gather"
                            else (flat[:4] + flat[4:] - 2) / 2
                        )

                    return end

                if rank == 0:
                    h = stages[0](x).relu()
                    dist.send(h.detach(), dst=1)
                    grad = torch.empty_like(h)
                    dist.recv(grad, src=1)
                    h.backward(grad)
                    shared = begin(torch.zeros(4))()
                else:
                    h = torch.empty(4, 8)
                    dist.recv(h, src=0)
                    loss = F.mse_loss(stages[1](h.requires_grad_()), y)
                    loss.backward()
                    end = begin(loss.detach().expand(4).clone())
                    shared = end() if early else None
                    if batch:
                        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, h.grad, 0)]):
                            work.wait()
                    else:
                        dist.send(h.grad, dst=0)
                    shared = end() if shared is None else shared
                world.output("shared", shared * factor, mean=())
            torch.optim.SGD(model.parameters(), lr=0.1).step()

        cases = [
            ({"how": how}, "EQUIVALENT", "") for how in ("all_reduce", "all_gather", "functional")
        ]
        cases += [
            ({"how": how, "early": True}, "NOT EQUIVALENT", "deadlock")
            for how in ("all_reduce", "all_gather", "functional")
        ]
        cases += [
            ({"another": True}, "EQUIVALENT", ""),
            ({"factor": 1.0}, "NOT EQUIVALENT", "lineage"),
            ({"how": "functional", "factor": 1.0}, "NOT EQUIVALENT", "lineage"),
        ]
        # It is for the communicator of the collectives.
        cases += [({"batch": True}, "NOT EQUIVALENT", "deadlock")]
        for changes, verdict, kind in cases:
            with self.subTest(changes):
                report = sp.verify(
                    lambda world, changes=changes: step(world, **changes),
                    mesh={"pp": 2},
                    arguments=["--confirm", "off"],
                )
                self.assertEqual(report.verdict, verdict, str(report))
                self.assertEqual([d.kind for d in report.defects[:1]], [kind] if kind else [])

    def test_handles_that_change_nothing(self):
        """Collectives of one group are in order anyway."""

        def change(world, model):
            if not world.single:
                works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
                for p, work in zip(model.parameters(), works, strict=True):
                    work.wait()
                    p.grad /= world.size

        with tempfile.TemporaryDirectory() as folder:
            sp.capture(lambda world: train(world, change), mesh=MESH).write(f"{folder}/step")
            with gzip.open(f"{folder}/step.plan.json.gz", "rt") as f:
                self.assertNotIn('"handle"', f.read())


if __name__ == "__main__":
    unittest.main()
