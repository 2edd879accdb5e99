# SPDX-License-Identifier: Apache-2.0
"""Every operator of the registry against PyTorch and its autograd, forward and backward.

In doubles, at random shapes and attributes. Both implementations are compared: the operators of
ops/, which proofs use, and the executor's (src/explanation/executor/).

An operator without a generator in operator_cases.py fails, as does an attribute that no case sets
or leaves out. Not compared:

    dropout with 0 < p < 1    the mask is an opaque function of seed, p and position, not PyTorch's
                              generator. Compared is PyTorch's formula for the mask that was drawn,
                              forward and backward, and that the mask depends on the seed only
    communication             no operator of the registry: tests/stages/
"""

import collections
import dataclasses
import json
import math
import unittest
import zlib

import support  # first of these: changes to the interpreter that has PyTorch

# isort: split
import executor
import operator_cases
import torch
from operator_cases import MAY_BE_ONE, WITHOUT_BACKWARD, Case, Random

CASES = 40  # of each operator
SEED = 20260


class Model:
    """Many small calls in one model, so that one process evaluates them all."""

    def __init__(self):
        self.tensors, self.nodes, self.outputs, self.inputs = {}, [], [], {}

    def given(self, tensor):
        if tensor is None:
            return None
        name = f"in{len(self.inputs)}"
        self.tensors[name] = {
            "shape": list(tensor.shape),
            "kind": "input",
            "dtype": support.DTYPES[tensor.dtype],
        }
        self.inputs[name] = tensor
        return name

    def produced(self, shape):
        name = f"out{len(self.outputs)}"
        self.tensors[name] = {"shape": list(shape)}
        self.outputs.append(name)
        return name

    def node(self, op, operands, attributes, shapes):
        """`shapes`: of the results, None: not wanted. Returns their names."""
        results = [None if shape is None else self.produced(shape) for shape in shapes]
        self.nodes.append({"op": op, "in": operands, "out": results, "attrs": attributes})
        return results

    def evaluate(self, evaluate):
        model = {
            "format": "shardproof-model",
            "version": 1,
            "tensors": self.tensors,
            "nodes": self.nodes,
            "outputs": self.outputs,
        }
        return evaluate(model, self.inputs)


@dataclasses.dataclass
class Comparison:
    op: str
    results: list  # names in the model, None: not asked for
    expected: list
    case: Case


def declared_shape(case, result):
    return [1] if case.declared_one and list(result.shape) == [] else list(result.shape)


def some_left_out(r, items):
    """Some replaced by None, never all: what a node does not want or is not given."""
    keep = r.choice([i for i, item in enumerate(items) if item is not None])
    return [item if i == keep or r.chance(0.8) else None for i, item in enumerate(items)]


def add_forward(r, model, case, operands, expected):
    wanted = some_left_out(r, expected) if len(expected) > 1 else expected
    wanted = [None if e is None else e.reshape(declared_shape(case, e)) for e in wanted]
    names = model.node(
        case.op, operands, case.attributes, [None if e is None else e.shape for e in wanted]
    )
    return Comparison(case.op, names, wanted, case)


def add_backward(r, model, case, operands, expected):
    """The product of random gradients with the Jacobian, for every operand that has a gradient."""
    gradients = some_left_out(
        r, [r.real(declared_shape(case, e)) if e.dtype == torch.float64 else None for e in expected]
    )
    flowing = [
        (e, g.reshape(e.shape))
        for e, g in zip(expected, gradients, strict=True)
        if g is not None and e.requires_grad
    ]
    leaves = [(i, x) for i, x in enumerate(case.operands) if x is not None and x.requires_grad]
    wanted = [None] * len(case.operands)
    for i, x in leaves:
        wanted[i] = torch.zeros_like(x)
    if flowing:
        found = torch.autograd.grad(
            [e for e, _ in flowing],
            [x for _, x in leaves],
            [g for _, g in flowing],
            allow_unused=True,
        )
        for (i, _), gradient in zip(leaves, found, strict=True):
            if gradient is not None:
                wanted[i] = gradient
    wanted = some_left_out(r, wanted)
    given = [model.given(g) for g in gradients]
    op = case.op + "_backward"
    # Copies: the operand is not listed, or need not be.
    if case.op == "multiref" or case.op in ("identity", "to", "contiguous", "float") and r.chance():
        names = model.node(op, given, {}, [case.operands[0].shape])
    else:
        names = model.node(
            op, given + operands, case.attributes, [None if w is None else w.shape for w in wanted]
        )
    return Comparison(op, names, wanted, case)


def add_case(r, model, case):
    differentiable = case.op not in WITHOUT_BACKWARD
    for i, x in enumerate(case.operands):
        if x is not None and x.dtype == torch.float64 and differentiable and i not in case.constant:
            x.requires_grad_()
    case.declared_one = case.op in MAY_BE_ONE and r.chance(0.3)
    expected = case.reference(*case.operands)
    expected = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    operands = [model.given(x) for x in case.operands]
    comparisons = [add_forward(r, model, case, operands, expected)]
    if differentiable and any(x is not None and x.requires_grad for x in case.operands):
        comparisons.append(add_backward(r, model, case, operands, expected))
    return comparisons


class OperatorsTest(unittest.TestCase):
    evaluate = staticmethod(support.evaluate)

    @classmethod
    def setUpClass(cls):
        cls.registry = json.loads(support.run(support.EVALUATE_MODEL, "--operators"))
        cls.model, cls.comparisons = Model(), []
        # A generator for each operator: a new operator does not change the others' cases.
        for op, generator in operator_cases.GENERATORS.items():
            r = Random(zlib.crc32(op.encode()) ^ SEED)
            for _ in range(CASES):
                cls.comparisons += add_case(r, cls.model, generator(r, op))
        cls.found = cls.model.evaluate(cls.evaluate)

    def test_every_operator_computes_what_pytorch_computes(self):
        for c in self.comparisons:
            with self.subTest(op=c.op, case=str(c.case)):
                for i, (name, expected) in enumerate(zip(c.results, c.expected, strict=True)):
                    if name is None:
                        continue
                    problem = support.difference(self.found[name], expected)
                    self.assertIsNone(problem, f"{c.op}, result {i}: {problem}")

    def test_every_operator_of_the_registry_is_compared(self):
        compared = collections.Counter(c.op for c in self.comparisons)
        self.assertEqual(
            set(compared),
            set(self.registry),
            "operators without a case in operator_cases.py, or cases without an operator",
        )
        for op, count in compared.items():
            self.assertGreaterEqual(count, CASES // 3, op)
        forward = {op for op in self.registry if not op.endswith("_backward")}
        self.assertEqual(
            {op for op in forward if op + "_backward" not in self.registry}, WITHOUT_BACKWARD
        )

    def test_every_attribute_is_varied(self):
        seen = collections.defaultdict(set)
        for c in self.comparisons:
            for attribute in self.registry[c.op]:
                seen[c.op, attribute].add(repr(c.case.attributes.get(attribute)))
        for op, attributes in self.registry.items():
            for attribute in attributes:
                with self.subTest(op=op, attribute=attribute):  # left out is a value too
                    self.assertGreaterEqual(len(seen[op, attribute]), 2)

    def test_every_result_is_different_from_zero_somewhere(self):
        """Else a result left at zero would pass."""
        alive = collections.defaultdict(bool)
        for c in self.comparisons:
            for i, (name, expected) in enumerate(zip(c.results, c.expected, strict=True)):
                if name is not None:
                    alive[c.op, i] |= bool((expected != 0).any())
        for (op, i), is_alive in alive.items():
            self.assertTrue(is_alive, f"{op}, result {i}")

    def test_a_wrong_result_is_noticed(self):
        x = torch.tensor([1.0, -2.0, 0.0, -math.inf])
        self.assertIsNone(support.difference(x, x.clone()))
        self.assertIsNone(
            support.difference(x, torch.tensor([1.0 + 1e-13, -2.0, 1e-13, -math.inf]))
        )
        for wrong in (
            [1.0 + 1e-7, -2.0, 0.0, -math.inf],
            [1.0, 2.0, 0.0, -math.inf],
            [1.0, -2.0, 1e-6, -math.inf],
            [1.0, -2.0, 0.0, math.inf],
            [1.0, -2.0, 0.0, 0.0],
            [math.nan, -2.0, 0.0, -math.inf],
        ):
            self.assertIsNotNone(support.difference(torch.tensor(wrong), x), wrong)
        self.assertIsNotNone(support.difference(x, x.reshape(2, 2)))


class DropoutTest(unittest.TestCase):
    """0 < p < 1: the mask is the operator's own."""

    evaluate = staticmethod(support.evaluate)

    def test_the_drawn_mask_is_applied_as_pytorch_does(self):
        r, model, drawn = Random(SEED), Model(), []
        for _ in range(CASES):
            shape, p, seed = (
                r.shape(0, 4),
                r.choice([0.1, 0.5, r.number(0.01, 0.99)]),
                r.integer(0, 10**9),
            )
            x, gradient, attributes = r.real(shape), r.real(shape), {"p": p, "seed": seed}
            operands = [model.given(x)]
            (y,) = model.node("dropout", operands, attributes, [shape])
            (dx,) = model.node(
                "dropout_backward", [model.given(gradient), *operands], attributes, [shape]
            )
            drawn.append((x, gradient, p, y, dx))
        found = model.evaluate(self.evaluate)
        kept = 0
        for x, gradient, p, y, dx in drawn:
            mask = (found[y] != 0).double()
            kept += mask.sum().item()
            x.requires_grad_()
            expected = x * mask / (1 - p)
            self.assertIsNone(support.difference(found[y], expected))
            self.assertIsNone(
                support.difference(found[dx], torch.autograd.grad(expected, x, gradient)[0])
            )
        total = sum(x.numel() for x, *_ in drawn)
        self.assertTrue(0 < kept < total, f"{kept} of {total} elements kept: the mask is constant")

    def test_the_mask_depends_on_seed_probability_and_position_alone(self):
        r, model, shape = Random(SEED), Model(), [8, 8]

        def mask_of(x, **attributes):
            return model.node("dropout", [model.given(x)], attributes, [shape])[0]

        first = mask_of(r.positive(shape), p=0.5, seed=1)
        again = mask_of(r.positive(shape), p=0.5, seed=1)
        others = [
            mask_of(r.positive(shape), p=0.5, seed=2),
            mask_of(r.positive(shape), p=0.25, seed=1),
        ]
        found = {name: t != 0 for name, t in model.evaluate(self.evaluate).items()}
        self.assertTrue(torch.equal(found[first], found[again]))
        for other in others:
            self.assertFalse(torch.equal(found[first], found[other]))


class ExecutorOperatorsTest(OperatorsTest):
    evaluate = staticmethod(executor.evaluate)


class ExecutorDropoutTest(DropoutTest):
    evaluate = staticmethod(executor.evaluate)


if __name__ == "__main__":
    unittest.main(argv=support.UNITTEST_ARGUMENTS)
