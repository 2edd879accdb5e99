# SPDX-License-Identifier: Apache-2.0
"""Models of `shardproof generate` against independent PyTorch models (reference_models.py).

Compared in doubles: loss, gradients, gradient norm, clipped gradients, updated parameters and
optimizer states. PyTorch's come from autograd, clip_grad_norm_ and its optimizers.
"""

import json
import pathlib
import re
import shlex
import subprocess
import tempfile
import unittest
import zlib

import support  # first of these: changes to the interpreter that has PyTorch

# isort: split
import executor
import torch
from operator_cases import Random
from reference_models import ARCHITECTURES, GivenDropout

SIZES = {
    "mlp": {"layers": 2, "dim": 6, "hidden": 10, "batch": 4},
    "llama3": {
        "layers": 2,
        "dim": 16,
        "hidden": 12,
        "heads": 4,
        "kv-heads": 2,
        "seq": 6,
        "vocab": 14,
        "batch": 4,
    },
    "gpt": {
        "layers": 2,
        "dim": 12,
        "hidden": 20,
        "heads": 2,
        "seq": 6,
        "vocab": 14,
        "batch": 4,
        "dropout": 0.1,
    },
    "deepseek-v3": {
        "size": "16B",
        "layers": 2,
        "dim": 12,
        "hidden": 20,
        "heads": 2,
        "seq": 6,
        "vocab": 14,
        "batch": 4,
        "dense-layers": 1,
        "experts": 8,
        "active-experts": 3,
        "shared-experts": 2,
        "expert-hidden": 4,
        "expert-groups": 1,
        "active-groups": 1,
        "query-rank": 0,
        "kv-rank": 6,
        "nope-dim": 4,
        "rope-dim": 2,
        "value-dim": 6,
    },
}
SPARSE = {
    "layers": 2,
    "dim": 12,
    "hidden": 20,
    "heads": 4,
    "kv-heads": 2,
    "head-dim": 4,
    "seq": 6,
    "vocab": 14,
    "batch": 4,
    "experts": 4,
    "active-experts": 2,
    "expert-hidden": 6,
}
SIZES |= {"mixtral": SPARSE, "qwen3-moe": SPARSE, "gpt-oss": SPARSE}
GROUPS = {"query-rank": 10, "expert-groups": 4, "active-groups": 2}
V2, V3 = {"size": "236B", **GROUPS}, {"size": "671B", **GROUPS}
# Losses besides the cross entropy.
LOSSES = {"mtp": 1, "balance-loss": 0.05}
# What replaces these sizes, and further options. Degrees of parallelism do not change what the
# model computes, but how it is written.
TRAINING = [
    [],
    ["--optimizer", "sgd", "--clip", "0"],
    ["--optimizer", "adamw", "--clip", "0"],
    ["--optimizer", "sgd", "--clip", "0.01"],
    ["--optimizer", "adamw", "--clip", "0.01"],
    ["--optimizer", "adamw", "--clip", "1e3"],
    ["--lr", "0.5", "--weight-decay", "0"],
    ["--lr", "1e-3", "--weight-decay", "0.3", "--optimizer", "adamw"],
]
PARALLEL = [
    ["--dp", "2", "--tp", "2", "--microbatches", "2"],
    ["--dp", "2", "--pp", "2", "--microbatches", "2", "--zero", "1"],
    ["--dp", "2", "--zero", "3", "--recompute"],
    ["--pp", "2", "--schedule", "1f1b", "--microbatches", "4"],
]
VOCABULARY_PARALLEL = [
    ["--tp", "2", "--vocab-parallel"],
    ["--tp", "2", "--vocab-parallel", "--sequence-parallel", "--dp", "2"],
]
VARIANTS = {
    "mlp": [({}, options) for options in TRAINING + PARALLEL]
    + [({"layers": 1}, []), ({"layers": 4, "dim": 3, "hidden": 7, "batch": 1}, [])],
    "llama3": [({}, options) for options in TRAINING + PARALLEL + VOCABULARY_PARALLEL]
    + [
        ({"kv-heads": 4}, []),
        ({"kv-heads": 1}, []),
        ({"layers": 1, "heads": 1, "kv-heads": 1, "seq": 1, "batch": 1}, []),
        (
            {
                "layers": 3,
                "dim": 12,
                "heads": 6,
                "kv-heads": 3,
                "hidden": 5,
                "seq": 7,
                "vocab": 9,
                "batch": 3,
            },
            [],
        ),
        (
            {"layers": 4},
            [
                *shlex.split(
                    "--pp 2 --schedule interleaved --virtual-stages 2 --microbatches 4 --recompute"
                ),
            ],
        ),
    ],
    "gpt": [({}, options) for options in TRAINING + PARALLEL + VOCABULARY_PARALLEL]
    + [
        ({"dropout": 0}, []),
        ({"dropout": 0.5}, []),
        ({"layers": 1, "heads": 1, "seq": 1, "batch": 1}, []),
        ({"layers": 3, "dim": 9, "heads": 3, "hidden": 5, "seq": 7, "vocab": 9, "batch": 3}, []),
    ],
    "deepseek-v3": [({}, options) for options in TRAINING + PARALLEL]
    + [(V3 | LOSSES, options) for options in PARALLEL + VOCABULARY_PARALLEL]
    + [(variant, ["--tp", "2", "--ep", "2"]) for variant in (V2, V2 | LOSSES, V3)]
    + [
        ({"balance-loss": 0.05}, ["--dp", "2", "--ep", "2", "--tp", "2", "--expert-tp", "2"]),
        ({"mtp": 1}, []),
        (
            V3 | LOSSES,
            shlex.split(
                "--dp 2 --tp 2 --ep 4 --pp 2 --microbatches 2 --zero 1 --sequence-parallel "
                "--vocab-parallel --recompute"
            ),
        ),
        (V2 | {"shared-experts": 0, "dense-layers": 0, "layers": 1, "seq": 1, "batch": 1}, []),
        (V3 | {"dense-layers": 2, "batch": 3, "seq": 5, "mtp": 1}, []),
    ],
}
CONTEXT_PARALLEL = [
    ["--cp", "3"],
    ["--cp", "3", "--cp-balanced", "--dp", "2"],
    shlex.split("--cp 3 --tp 2 --sequence-parallel --vocab-parallel"),
]
VARIANTS["llama3"] += [({}, options) for options in CONTEXT_PARALLEL]
VARIANTS["llama3"] += [
    ({"seq": 8}, shlex.split("--cp 2 --cp-balanced --tp 2 --sequence-parallel --zero 1")),
]
VARIANTS["deepseek-v3"] += [(V3 | {"batch": 1, "mtp": 1}, shlex.split("--cp 3 --tp 2 --ep 2"))]
BY_NUMBER = [["--tp", "2", "--ep", "2"], shlex.split("--dp 2 --tp 2 --ep 4 --microbatches 2")]
VARIANTS["mixtral"] = [
    ({}, options) for options in [[], *PARALLEL, *VOCABULARY_PARALLEL, *BY_NUMBER]
] + [
    ({"dense-layers": 1, "balance-loss": 0.05}, ["--dp", "2"]),
    ({"batch": 2}, shlex.split("--cp 3 --cp-balanced --dp 2 --tp 2 --ep 2")),
]
VARIANTS["qwen3-moe"] = [({}, options) for options in [[], *PARALLEL, *BY_NUMBER]] + [
    ({"kv-heads": 1}, shlex.split("--tp 2 --ep 2 --sequence-parallel"))
]
VARIANTS["gpt-oss"] = [
    ({}, options) for options in [[], ["--dp", "2", "--zero", "3"], *BY_NUMBER]
] + [
    ({"batch": 1}, shlex.split("--cp 3 --tp 2 --ep 2 --sequence-parallel")),
]


def known_architectures():
    refused = subprocess.run(
        [support.SHARDPROOF, "generate", "none", "-o", "none"], capture_output=True, text=True
    )
    return re.search(r"not in \{([^}]*)\}", refused.stderr + refused.stdout).group(1).split(",")


def option(options, name, otherwise):
    return options[options.index(name) + 1] if name in options else otherwise


class Step:
    """One training step in PyTorch, from the same values as the model."""

    def __init__(self, architecture, sizes, options, graph, r, evaluate=support.evaluate):
        """`graph`: only the names of parameters, their gradients and dropouts are used.

        `evaluate`: gives the dropout masks.
        """
        self.model = ARCHITECTURES[architecture](
            **{key.replace("-", "_"): n for key, n in sizes.items()}
        )
        inputs = self.model.random_inputs(r)
        self.values = dict(inputs)
        gradients = {t["grad_of"]: name for name, t in graph["tensors"].items() if "grad_of" in t}
        # Small enough that no softmax saturates.
        parameters = {name: 0.4 * r.real(graph["tensors"][name]["shape"]) for name in gradients}
        # The same parameters, of the same shapes.
        self.model.load_state_dict(parameters, strict=True)
        self.values.update(parameters)
        named = dict(self.model.named_parameters())

        transformer = architecture != "mlp"
        kind = option(options, "--optimizer", "adamw" if transformer else "sgd")
        clip = float(option(options, "--clip", 1.0 if transformer else 0))
        settings = {
            "lr": float(option(options, "--lr", 1e-4)),
            "weight_decay": float(option(options, "--weight-decay", 0.1)),
        }
        if kind == "adamw":
            optimizer = torch.optim.AdamW(named.values(), **settings)
            for name, p in named.items():
                first, second = r.real(p.shape), r.positive(p.shape)
                self.values |= {name + ".exp_avg": first, name + ".exp_avg_sq": second}
                optimizer.state[p] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": first.clone(),
                    "exp_avg_sq": second.clone(),
                }
        else:
            optimizer = torch.optim.SGD(named.values(), **settings)

        self.set_masks(graph, evaluate)
        loss = self.model(**inputs)
        loss.backward()
        self.expected = {"loss": loss.detach()}
        losses = getattr(self.model, "losses", {})
        if len(losses) > 1:
            self.expected |= {name: part.detach() for name, part in losses.items()}
        for name, p in named.items():
            self.expected[gradients[name]] = p.grad.clone()
        if clip != 0:
            self.expected["grad_norm"] = torch.nn.utils.clip_grad_norm_(named.values(), clip)
            for name, p in named.items():
                self.expected[name + ".grad.clipped"] = p.grad.clone()
        optimizer.step()
        for name, p in named.items():
            self.expected[name + ".new"] = p.detach()
            if kind == "adamw":
                for state in ("exp_avg", "exp_avg_sq"):
                    self.expected[f"{name}.{state}.new"] = optimizer.state[p][state]

    def set_masks(self, graph, evaluate):
        """Dropout masks are the model's own: those it has drawn are given to PyTorch."""
        dropouts = [
            module
            for module in self.model.modules()
            if isinstance(module, GivenDropout) and module.p != 0
        ]
        results = [node["out"][0] for node in graph["nodes"] if node["op"] == "dropout"]
        if len(dropouts) != len(results):
            raise AssertionError(
                f"the model has {len(results)} dropouts, PyTorch's {len(dropouts)}"
            )
        if results:
            drawn = evaluate(graph, self.values, results)
            for module, name in zip(dropouts, results, strict=True):
                module.mask = (drawn[name] != 0).double()


class GeneratedModelsTest(unittest.TestCase):
    def compare(self, architecture, sizes, options):
        with tempfile.TemporaryDirectory() as directory:
            prefix = pathlib.Path(directory) / "g"
            given = [f"--{key}={n}" for key, n in sizes.items()]
            support.run(
                support.SHARDPROOF, "generate", architecture, "-o", prefix, *given, *options
            )
            file = pathlib.Path(f"{prefix}.model.json")
            graph = json.loads(file.read_text())
            step = Step(
                architecture,
                sizes,
                options,
                graph,
                Random(zlib.crc32(f"{sizes} {options}".encode())),
            )
            missing = set(graph["outputs"]) - set(step.expected)
            self.assertFalse(missing, "outputs of the model that nothing is compared with")
            found = support.evaluate(file, step.values, sorted(step.expected))
        for name, expected in step.expected.items():
            problem = support.difference(found[name], expected)
            self.assertIsNone(problem, f"{name}: {problem}")

    def compare_executed(self, architecture, sizes, options):
        """The executor: model and plan compute what PyTorch computes, rank by rank."""
        with tempfile.TemporaryDirectory() as directory:
            prefix = pathlib.Path(directory) / "g"
            given = [f"--{key}={n}" for key, n in sizes.items()]
            support.run(
                support.SHARDPROOF, "generate", architecture, "-o", prefix, *given, *options
            )
            graph, plan = (
                json.loads(pathlib.Path(f"{prefix}.{kind}.json").read_text())
                for kind in ("model", "plan")
            )

        def evaluate(model, inputs, wanted):  # the masks are the same whatever the inputs are
            found = executor.execute(model, inputs, plan)
            return {name: found["model/" + name] for name in wanted}

        step = Step(
            architecture,
            sizes,
            options,
            graph,
            Random(zlib.crc32(f"{sizes} {options}".encode())),
            evaluate,
        )
        found = executor.execute(graph, step.values, plan)
        for name, expected in step.expected.items():
            problem = support.difference(found["model/" + name], expected)
            self.assertIsNone(problem, f"{name}: {problem}")
        self.assertTrue(any(name.startswith("rank0/") for name in found))

    def compare_variants(self, architecture):
        for sizes, options in VARIANTS[architecture]:
            with self.subTest(architecture=architecture, sizes=sizes, options=" ".join(options)):
                self.compare(architecture, SIZES[architecture] | sizes, options)
            with self.subTest(
                architecture=architecture, sizes=sizes, options=" ".join(options), executed=True
            ):
                self.compare_executed(architecture, SIZES[architecture] | sizes, options)

    def test_mlp(self):
        self.compare_variants("mlp")

    def test_llama3(self):
        self.compare_variants("llama3")

    @unittest.skipUnless("gpt" in known_architectures(), "generate has no gpt")
    def test_gpt(self):
        self.compare_variants("gpt")

    @unittest.skipUnless("deepseek-v3" in known_architectures(), "generate has no deepseek-v3")
    def test_deepseek_v3(self):
        self.compare_variants("deepseek-v3")

    def test_mixtral(self):
        self.compare_variants("mixtral")

    def test_qwen3_moe(self):
        self.compare_variants("qwen3-moe")

    def test_gpt_oss(self):
        self.compare_variants("gpt-oss")

    def test_every_architecture_is_compared(self):
        self.assertEqual(set(VARIANTS), set(ARCHITECTURES))
        for architecture in known_architectures():
            self.assertIn(architecture, ARCHITECTURES)
            name = architecture.replace("-", "_")
            self.assertTrue(hasattr(self, f"test_{name}"), architecture)

    def test_another_architecture_is_noticed(self):
        """Neighbouring values of the generator's constants: each changes some result."""
        for wrong in (
            {"eps": 1e-4},
            {"scalar": 0.25},
            {"max_norm": 0.02},
            {"lr": 0.001},
            {"weight_decay": 0.2},
            {"step": 2},
        ):
            with self.subTest(**wrong), tempfile.TemporaryDirectory() as directory:
                ((key, value),) = wrong.items()
                sizes, options = SIZES["llama3"], ["--clip", "0.01"]
                prefix = pathlib.Path(directory) / "g"
                support.run(
                    support.SHARDPROOF,
                    "generate",
                    "llama3",
                    "-o",
                    prefix,
                    *[f"--{k}={n}" for k, n in sizes.items()],
                    *options,
                )
                graph = json.loads(pathlib.Path(f"{prefix}.model.json").read_text())
                step = Step("llama3", sizes, options, graph, Random(1))
                touched = [node for node in graph["nodes"] if key in node.get("attrs", {})]
                self.assertTrue(touched)
                for node in touched:
                    self.assertNotEqual(node["attrs"][key], value)
                    node["attrs"][key] = value
                found = support.evaluate(graph, step.values, sorted(step.expected))
                self.assertTrue(
                    any(
                        support.difference(found[name], expected)
                        for name, expected in step.expected.items()
                    )
                )


if __name__ == "__main__":
    unittest.main(argv=support.UNITTEST_ARGUMENTS)
