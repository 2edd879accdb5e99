# SPDX-License-Identifier: Apache-2.0
"""What the tests against PyTorch share: its environment, running models, comparing results.

Import this first: it changes to the interpreter of the virtual environment that has PyTorch
(scripts/setup_pytorch), or reports why it cannot.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77


def _enter_environment():
    if len(sys.argv) < 4:
        sys.exit(f"usage: {sys.argv[0]} ENVIRONMENT EVALUATE_MODEL SHARDPROOF [unittest arguments]")
    if os.environ.get("SHARDPROOF_NO_PYTORCH") == "1":
        print("SKIPPED: SHARDPROOF_NO_PYTORCH=1: nothing was compared with PyTorch")
        sys.exit(SKIPPED)
    environment = pathlib.Path(sys.argv[1])
    if not (environment / "installed_requirements.txt").exists():
        sys.exit(
            f"{environment} has no PyTorch: run scripts/setup_pytorch, or set "
            f"SHARDPROOF_NO_PYTORCH=1 to skip these tests"
        )
    if not os.path.samefile(sys.prefix, environment):
        python = environment / "bin" / "python"
        os.execv(python, [str(python), *sys.argv])


_enter_environment()

import warnings  # noqa: E402

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # no test uses it
import torch  # noqa: E402

torch.set_num_threads(1)  # tiny tensors
torch.set_default_dtype(torch.float64)

EVALUATE_MODEL, SHARDPROOF = sys.argv[2:4]
UNITTEST_ARGUMENTS = [sys.argv[0], *sys.argv[4:]]

DTYPES = {torch.float64: "float64", torch.int64: "int64", torch.complex128: "complex128"}
_SPECIAL = {math.inf: "inf", -math.inf: "-inf"}


def run(*command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(
            f"{' '.join(map(str, command))}: exit code {result.returncode}\n"
            f"{result.stdout[-2000:]}{result.stderr[-2000:]}"
        )
    return result.stdout


def to_numbers(tensor):
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return [_SPECIAL.get(x, x) for x in tensor.reshape(-1).tolist()]


def evaluate(model, inputs, wanted=()):
    """Runs a model (the JSON, or a file) with {name: tensor}.

    Returns {name: tensor of float64}; complex ones have a last dimension of 2.
    """
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        if isinstance(model, dict):
            (directory / "m.model.json").write_text(json.dumps(model))
            model = directory / "m.model.json"
        (directory / "inputs.json").write_text(
            json.dumps({name: to_numbers(t) for name, t in inputs.items()})
        )
        found = json.loads(run(EVALUATE_MODEL, model, directory / "inputs.json", *wanted))
    results = {}
    for name, tensor in found.items():
        values = torch.tensor([float(x) for x in tensor["values"]], dtype=torch.float64)
        shape = list(tensor["shape"])
        results[name] = values.reshape(shape if values.numel() == math.prod(shape) else [*shape, 2])
    return results


def difference(found, expected, relative=1e-9, absolute=1e-11):
    """None where both are equal but for rounding, else a sentence.

    Infinities must be equal; NaN is never right.
    """
    if expected.is_complex():
        expected = torch.view_as_real(expected)
    expected = expected.detach().to(torch.float64)
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, PyTorch has {list(expected.shape)}"
    finite = torch.isfinite(expected)
    # Cancellation inside a tensor leaves errors of the size of its largest element.
    scale = expected[finite].abs().max().item() if finite.any() else 0.0
    good = torch.where(
        finite,
        (found - expected).abs() <= relative * expected.abs() + 1e-3 * relative * scale + absolute,
        found == expected,
    )
    if bool(good.all()):
        return None
    at = (~good).reshape(-1).nonzero()[0].item()
    return (
        f"element {at} is {found.reshape(-1)[at].item()!r}, PyTorch has "
        f"{expected.reshape(-1)[at].item()!r}"
    )
