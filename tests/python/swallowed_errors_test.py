# SPDX-License-Identifier: Apache-2.0
"""Errors of the recorder that a program catches: no verdict on what it does then."""

import contextlib
import pathlib
import tempfile
import unittest
import weakref

import numpy
import shardproof.torch as sp
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from command import run_command
from recorder_steps import mean_of_gradients

MESH = {"dp": 2}


class Steps(unittest.TestCase):
    def ends(self, step, said="depends on data"):
        """It is refused. Where it decides by a number, each way is verified, and one is wrong."""
        try:
            report = sp.verify(step, mesh=MESH, arguments=["--stage-timeout", "30"])
        except sp.CaptureError as e:
            self.assertIn(said, str(e))
            return str(e)
        self.assertEqual("NOT EQUIVALENT", report.verdict, report.text)
        self.assertIn("Decided by data", report.text)
        return report.text

    def of_a_number(self, twice, said="depends on data"):
        """`twice(x)` says in some way that catches errors whether the ranks' result is doubled."""

        def step(world):
            x = world.input("x", (6,)).mean()
            return x * 2 if twice(x) and not world.single else x

        return self.ends(step, said)

    def test_except_exception(self):
        def spike(x):
            try:
                return x.item() > 7
            except Exception:
                return False

        self.of_a_number(spike)

    def test_except_runtime_error(self):
        def spike(x):
            try:
                return bool(x > 7)
            except RuntimeError:
                return True

        self.of_a_number(spike)

    def test_suppress(self):
        def spike(x):
            with contextlib.suppress(Exception):
                return float(x) > 7
            return False

        self.of_a_number(spike)

    def test_bare_except(self):
        def spike(x):
            try:
                return x.item() > 7
            except:  # noqa: E722
                return False

        self.assertIn("This is the program for yes", self.of_a_number(spike))

    def test_finally_that_returns(self):
        """The answer to the question makes no difference."""

        def step(world):
            x = world.input("x", (6,)).mean()
            try:
                return x * 2 if x.item() > 7 else x
            finally:
                return x  # noqa: B012, SIM107

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=MESH).verdict)

    def test_another_error_in_its_place(self):
        def spike(x):
            try:
                return x.item() > 7
            except BaseException as e:
                raise ValueError("no number") from e

        self.of_a_number(spike)

    def test_text_of_a_number(self):
        def spike(x):
            try:
                return f"{x.item():.3f}" == "nan"
            except:  # noqa: E722
                return False

        self.of_a_number(spike, "text of a number")

    def test_shape_by_data(self):
        def several(x):
            try:
                return len((x.reshape(1) > 0).nonzero()) > 1
            except Exception:
                return False

        self.of_a_number(several)

    def test_numpy(self):
        def spike(x):
            try:
                return bool(x.detach().numpy() > 7)
            except Exception:
                return False

        self.assertIn("swallowed_errors_test.py", self.of_a_number(spike))

    def test_array(self):
        def spike(x):
            try:
                return bool(numpy.asarray(x.detach()) > 7)
            except Exception:
                return False

        self.of_a_number(spike)

    def test_a_function_of_numpy(self):
        def spike(x):
            try:
                return len(numpy.unique(x.detach().numpy())) > 7
            except Exception:
                return False

        self.of_a_number(spike, "a tensor becomes an array of NumPy")

    def test_finalizer(self):
        """Python itself catches what a finalizer raises."""

        class Held:
            pass

        def spike(x):
            held, found = Held(), []
            weakref.finalize(held, lambda: found.append(x.item() > 7))
            del held
            return bool(found and found[0])

        self.of_a_number(spike)

    def test_loop_until_it_converges(self):
        def step(world):
            x = world.input("x", (6,))
            y = x
            for _ in range(5):
                try:
                    if (y.abs().max() < 1e-3).item():
                        break
                except Exception:
                    pass
                y = y * 0.5
            return y.sum() if world.single else x.sum() / 32

        self.ends(step)

    def trained(self, change):
        def step(world):
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss = model(world.input("x", (8, 4), shard={"dp": 0})).square().mean()
            change(world, model, optimizer, loss)
            return loss

        return step

    def test_guard_of_the_whole_step(self):
        def change(world, model, optimizer, loss):
            try:
                if loss.item() > 1e6:
                    return
                loss.backward()  # and no rank's gradient goes to the others
                optimizer.step()
            except Exception as e:
                print("skipped", e)

        self.ends(self.trained(change))

    def test_guard_of_the_norm(self):
        def change(world, model, optimizer, loss):
            loss.backward()
            mean_of_gradients(world, model)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            try:
                spike = float(norm) > 100
            except RuntimeError:
                spike = False
            if not spike or world.single:
                optimizer.step()

        self.ends(self.trained(change))

    def test_hook(self):
        def change(world, model, optimizer, loss):
            def hook(grad):
                try:
                    if grad.abs().max().item() > 7 and not world.single:
                        return grad * 0
                except:  # noqa: E722
                    pass
                return grad

            model.weight.register_hook(hook)
            loss.backward()
            mean_of_gradients(world, model)

        self.ends(self.trained(change))

    def test_backward_as_a_whole(self):
        """An error that goes through C++."""

        class Guarded(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                return grad * 0 if grad.sum().item() > 7 else grad

        def change(world, model, optimizer, loss):
            with contextlib.suppress(Exception):
                Guarded.apply(loss).square().backward()

        self.ends(self.trained(change))

    def test_checkpointed(self):
        def part(x):
            try:
                return x * 2 if x.sum().item() > 7 else x
            except BaseException:
                return x

        def change(world, model, optimizer, loss):
            torch.utils.checkpoint.checkpoint(part, loss, use_reentrant=False).backward()
            mean_of_gradients(world, model)

        self.ends(self.trained(change))

    def test_a_name_that_is_used_twice(self):
        def step(world):
            x = world.input("x", (6,)).mean()
            if not world.single:
                with contextlib.suppress(Exception):
                    world.input("x", (6,))
            return x

        self.ends(step, "used twice")

    def test_what_is_sent_in_an_object(self):
        def step(world):
            x = world.input("x", (6,)).mean()
            with contextlib.suppress(Exception):
                dist.all_gather_object([None] * world.size, x)
            return x

        self.ends(step, "inside of a Python object")

    def test_errors_of_the_programs_own(self):
        """They are raised on real devices, too."""

        def step(world):
            x = world.input("x", (6,)).mean()
            try:
                raise ValueError("no configuration")
            except ValueError:
                return x

        self.assertEqual("EQUIVALENT", sp.verify(step, mesh=MESH).verdict)

    def test_on_ranks_only(self):
        def step(world):
            x = world.input("x", (6,)).mean()
            if not world.single:
                with contextlib.suppress(BaseException):
                    hash(x.item() + 1)
            return x

        self.ends(step)


SCRIPT = """
import sys, torch, torch.distributed as dist
def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size(); torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=.1)
    x = torch.randn(8, 4).chunk(ranks)[rank]
    loss = model(x).square().mean()
    GUARD
    loss.backward()
    SUMMED
    optimizer.step()
try:
    main()
except HANDLED:
    print("failed")
finally:
    if dist.is_initialized():
        dist.destroy_process_group()
ENDED
"""
SUMMED = "[dist.all_reduce(p.grad.div_(ranks)) for p in model.parameters()]"


class Scripts(unittest.TestCase):
    def run_script(self, guard="", summed="", handled="Exception as e", ended=""):
        text = (
            SCRIPT.replace("GUARD", guard)
            .replace("SUMMED", summed)
            .replace("HANDLED", handled)
            .replace("ENDED", ended)
        )
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.py"
            path.write_text(text)
            done = run_command("--mesh", "dp=2", str(path))
        return done.returncode, done.stdout + done.stderr

    def test_what_is_raised_is_reported(self):
        code, text = self.run_script("if ranks < 4: raise ValueError('too few ranks')")
        self.assertEqual(code, 2, text)
        self.assertIn("ValueError: too few ranks was raised at train.py:10", text)

    def test_a_spike_guard(self):
        code, text = self.run_script("if loss.item() > 1e6: raise RuntimeError('spike')")
        self.assertEqual(code, 2, text)
        self.assertIn("train.py:10", text)

    def test_the_end_is_not_swallowed(self):
        for handled in ("Exception as e", "BaseException as e"):
            self.assertEqual(
                self.run_script(summed=SUMMED.replace(".div_(ranks)", ""), handled=handled)[0], 10
            )
            code, text = self.run_script(summed=SUMMED, handled=handled)
            self.assertIn(code, (0, 4), text)

    def test_the_end_is_taken_for_a_failure(self):
        code, text = self.run_script(
            summed=SUMMED, handled="BaseException as e", ended="sys.exit(1)"
        )
        self.assertIn(code, (0, 4), text)

    def test_the_process_is_left(self):
        """No exit code of the script's is a verdict."""
        for code in (0, 4):
            found, text = self.run_script(f"import os; os._exit({code})")
            self.assertEqual(found, 2, text)

    def test_only_ranks_fail(self):
        code, text = self.run_script("if ranks > 1: raise ValueError('no backend')")
        self.assertEqual(code, 2, text)
        self.assertIn("no backend", text)


if __name__ == "__main__":
    unittest.main()
