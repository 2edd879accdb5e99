# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own sample calls of its operators, and their gradients, against what is recorded.

PyTorch tests itself with a list of operators (`OpInfo`), each with sample arguments. A few samples
of each are recorded as steps of one device, and executed by `shardproof run` on PyTorch's numbers.
What is recorded has to be what PyTorch computes. That a call is refused is no failure, but most
must not be.
"""

import collections
import contextlib
import copy
import dataclasses
import io
import json
import math
import pathlib
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from shardproof.program import ProgramError, execute_files
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.export.model_file import model_of
from shardproof.torch.trace.record import record
from shardproof.torch.trace.recording import CaptureError
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "plans" / "lib"))
from self_plan import self_plan

DTYPE = torch.float64
SAMPLES = 2  # of each operator
FEWEST = 1_300  # calls of which all numbers agree
TOGETHER = 64  # programs that are executed as one
LARGEST = 700.0  # a larger number's exponential is no double
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2}  # results are rounded to these
ONE = Mesh({"dp": 1})

# Not the real function of real numbers that is recorded.
NOT_THESE = {
    "torch.ops.aten._safe_softmax.default": "rows that are masked as a whole",
    "masked.logaddexp": "what is masked is minus infinity",
    "logcumsumexp": "its gradient chooses between logarithms of which one is not defined",
}


@dataclasses.dataclass
class Call:
    label: str
    model: dict[str, Any]
    names: list[str | None]  # of the results
    inputs: dict[str, np.ndarray]
    expected: list[torch.Tensor]


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]


def is_variable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == DTYPE and value.numel() > 0


def caller(op: Any, sample: Any, gradients: bool) -> Callable[..., list[torch.Tensor]]:
    """The call, as a function of what gives each of its tensors of numbers by name."""
    values, structure = tree_flatten((sample.input, sample.args, sample.kwargs))

    def call(give: Callable[[str, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        given = [give(f"x{i}", v) if is_variable(v) else v for i, v in enumerate(values)]
        leaves = [g for g, v in zip(given, values) if is_variable(v)]
        if gradients:
            for leaf in leaves:
                leaf.requires_grad_()
        first, others, named = tree_unflatten(given, structure)
        results = tensors_of(op.op(first, *others, **named))
        differentiable = [t for t in results if t.requires_grad and t.is_floating_point()]
        found = [t.detach() for t in results]
        if gradients and differentiable:
            total = sum((t * t).sum() for t in differentiable)
            found += [
                g for g in torch.autograd.grad(total, leaves, allow_unused=True) if g is not None
            ]
        return [t for t in found if not t.is_complex()]

    return call


def number(t: torch.Tensor) -> np.ndarray:
    t = torch.zeros(t.shape, dtype=t.dtype) if t._is_zerotensor() else t.detach()
    return (t.double() if t.is_floating_point() else t.long()).resolve_neg().numpy()


def recorded(label: str, call: Callable[..., list[torch.Tensor]]) -> Call | str:
    """The call as a model, or why there is none."""
    inputs: dict[str, np.ndarray] = {}

    def give(name: str, t: torch.Tensor) -> torch.Tensor:
        inputs[name] = number(t)
        return t.detach().clone()

    try:
        torch.manual_seed(1)
        expected = call(give)
    except Exception:
        return "PyTorch refuses it"  # a gradient, as a rule
    if not inputs or not expected:
        return "nothing is computed of numbers"
    if not all(np.isfinite(x).all() for x in inputs.values()):
        return "its numbers are no real ones"

    def step(world: Any) -> None:
        results = call(lambda name, t: world.input(name, tuple(t.shape), t.dtype))
        for i, t in enumerate(results):
            world.output(f"out{i}", t)

    try:
        torch.manual_seed(1)
        with contextlib.redirect_stderr(io.StringIO()):
            side = record(step, ONE, 0)
            model = model_of(side, "m")
    except CaptureError:
        return "refused"
    except (NotImplementedError, RuntimeError):
        return "it does not run on fake tensors"
    inputs.update((name, number(t)) for name, t in model.constants)
    wanted = {
        name: t
        for name, t in model.json["tensors"].items()
        if t.get("kind") in ("input", "parameter")
    }
    if not wanted.keys() <= inputs.keys():
        return "a function of which nothing is known, or random numbers"
    return Call(
        label,
        model.json,
        [model.tied.get(("output", f"out{i}", 0)) for i in range(len(expected))],
        {name: inputs[name] for name in wanted},
        expected,
    )


def one_model(calls: list[Call]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """All of them side by side, and their inputs."""
    model = {**calls[0].model, "tensors": {}, "nodes": [], "outputs": []}
    inputs: dict[str, np.ndarray] = {}
    for i, call in enumerate(calls):
        renamed = {name: f"m{i}/{name}" for name in call.model["tensors"]}
        for name, tensor in call.model["tensors"].items():
            model["tensors"][renamed[name]] = copy.deepcopy(tensor)
        for node in copy.deepcopy(call.model["nodes"]):
            node["in"] = [n if n is None else renamed[n] for n in node["in"]]
            node["out"] = [n if n is None else renamed[n] for n in node["out"]]
            model["nodes"].append(node)
        model["outputs"] += [renamed[name] for name in call.model["outputs"]]
        inputs.update((renamed[name], x) for name, x in call.inputs.items())
    return model, inputs


def executed(calls: list[Call]) -> Iterator[tuple[Call, dict[str, np.ndarray] | str]]:
    """What `shardproof run` computes of each, by name; or why it computes nothing."""
    model, inputs = one_model(calls)
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        (folder / "m.model.json").write_text(json.dumps(model))
        plan = folder / "p.plan.json"
        plan.write_text(json.dumps(self_plan(model, "m.model.json", lambda name: False)))
        np.savez(folder / "in.npz", **inputs)
        files = ["--inputs", str(folder / "in.npz"), "--outputs", str(folder / "out.npz")]
        try:
            execute_files(plan, files)
        except ProgramError as e:
            if len(calls) == 1:
                yield calls[0], str(e)
                return
            half = len(calls) // 2  # one of them has no result
            yield from executed(calls[:half])
            yield from executed(calls[half:])
            return
        with np.load(folder / "out.npz") as found:
            for i, call in enumerate(calls):
                at = f"model/m{i}/"
                yield call, {n.removeprefix(at): found[n] for n in found if n.startswith(at)}


def difference(call: Call, found: dict[str, np.ndarray]) -> str:
    """Where they are not PyTorch's; empty: they are."""
    large = any(x.size and np.abs(x).max() > LARGEST for x in call.inputs.values())
    for i, (name, t) in enumerate(zip(call.names, call.expected)):
        if name is None:  # the same tensor as another result
            continue
        real, ours = number(t).astype(float), found[name].astype(float)
        if ours.size != real.size:
            return f"result {i} has the shape {list(ours.shape)}, PyTorch {list(real.shape)}"
        ours = ours.reshape(real.shape)
        allowed = max(TOLERANCE.get(u.dtype, 1e-6) for u in call.expected)
        same = np.isclose(ours, real, rtol=allowed, atol=1e-8, equal_nan=True)
        if large:
            same |= ~np.isfinite(ours)
        if not same.all():
            at = tuple(int(k) for k in np.argwhere(~same)[0])
            return f"result {i} at {list(at)} is {ours[at]:.9g}, in PyTorch {real[at]:.9g}"
    return ""


def samples_of(op: Any) -> list[Any]:
    torch.manual_seed(0)
    samples = list(op.sample_inputs("cpu", DTYPE, requires_grad=False))
    chosen = min(len(samples), SAMPLES)
    return [samples[math.floor(i * len(samples) / chosen)] for i in range(chosen)]


class SampleCalls(unittest.TestCase):
    def test_all(self):
        calls: list[Call] = []
        outcomes: collections.Counter[str] = collections.Counter()
        for op in op_db:
            if DTYPE not in op.dtypes or op.name in NOT_THESE:
                continue
            for i, sample in enumerate(samples_of(op)):
                for gradients in (False, True) if op.supports_autograd else (False,):
                    label = f"{op.name} {op.variant_test_name} [{i}]{' backward' * gradients}"
                    made = recorded(label, caller(op, sample, gradients))
                    if isinstance(made, Call):
                        calls.append(made)
                    else:
                        outcomes[made] += 1
        wrong = []
        for begin in range(0, len(calls), TOGETHER):
            for call, found in executed(calls[begin : begin + TOGETHER]):
                text = found if isinstance(found, str) else difference(call, found)
                if text:
                    wrong.append(f"{call.label}: {text}")
                outcomes["agrees"] += not text
        self.assertEqual(wrong, [], f"\n{dict(outcomes)}\n" + "\n".join(wrong))
        self.assertGreater(outcomes["agrees"], FEWEST, dict(outcomes))


if __name__ == "__main__":
    unittest.main()
