# SPDX-License-Identifier: Apache-2.0
"""Models and plans run by the executor, `shardproof run`.

Arrays go through NumPy's .npz format. The standard library reads and writes it here, so an
independent reader also checks what the project writes.
"""

import ast
import json
import math
import pathlib
import struct
import sys
import tempfile
import zipfile

import torch

import support

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "plans" / "lib"))
from self_plan import self_plan

_CODES = {torch.float64: ("<f8", "d"), torch.int64: ("<i8", "q"), torch.complex128: ("<c16", "d")}


def write_npz(file, tensors):
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, tensor in tensors.items():
            tensor = tensor.detach().contiguous()
            description, code = _CODES[tensor.dtype]
            header = repr(
                {"descr": description, "fortran_order": False, "shape": tuple(tensor.shape)}
            )
            header += " " * (-(len(header) + 11) % 64) + "\n"
            numbers = (
                (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1).tolist()
            )
            archive.writestr(
                name + ".npy",
                b"\x93NUMPY\x01\x00"
                + struct.pack("<H", len(header))
                + header.encode()
                + struct.pack(f"<{len(numbers)}{code}", *numbers),
            )


def read_npz(file):
    """As float64; complex arrays with a last dimension of 2."""
    tensors = {}
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            assert data[:8] == b"\x93NUMPY\x01\x00", name
            (length,) = struct.unpack("<H", data[8:10])
            header = ast.literal_eval(data[10 : 10 + length].decode())
            assert (10 + length) % 64 == 0 and not header["fortran_order"], name
            code = {"<f8": "d", "<i8": "q", "<c16": "d"}[header["descr"]]
            shape = list(header["shape"]) + ([2] if header["descr"] == "<c16" else [])
            numbers = struct.unpack(f"<{math.prod(shape)}{code}", data[10 + length :])
            tensors[name.removesuffix(".npy")] = torch.tensor(numbers, dtype=torch.float64).reshape(
                shape
            )
    return tensors


def execute(model, inputs, plan=None):
    """Runs model and plan, which must agree.

    Both are JSON; without a plan the model is a plan of one rank. Returns every tensor:
    "model/NAME", "rank0/NAME", ...
    """
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        if plan is None:
            plan = self_plan(model, "m.model.json", lambda name: True)
        files = {
            "model": directory / "m.model.json",
            "plan": directory / "p.plan.json",
            "inputs": directory / "in.npz",
            "outputs": directory / "out.npz",
        }
        files["model"].write_text(json.dumps(model))
        files["plan"].write_text(json.dumps(plan))
        write_npz(files["inputs"], inputs)
        support.run(
            support.SHARDPROOF, "run", *[f"--{option}={file}" for option, file in files.items()]
        )
        return read_npz(files["outputs"])


def evaluate(model, inputs, wanted=()):
    """As support.evaluate: what the model computes, which the plan of one rank computes too."""
    found = execute(
        model if isinstance(model, dict) else json.loads(pathlib.Path(model).read_text()), inputs
    )
    if not wanted:
        wanted = model["outputs"]
    for name in wanted:
        # Exit code 0 says so; that what is written is what was compared is seen here.
        problem = support.difference(found["rank0/" + name], found["model/" + name])
        assert problem is None or not bool(torch.isfinite(found["model/" + name]).all()), (
            f"{name}: {problem}"
        )
    return {name: found["model/" + name] for name in wanted}
