#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How HLO instructions are read, executed and compared with what jax computed.

hlo_operators.py PROGRAM: shardproof's path. The cases are hlo/operators.json.gz, which
hlo/make_operators.py writes.
"""

import ast
import gzip
import io
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hlo", "operators.json.gz")


def npy(entry):
    """The bytes of a NumPy array."""
    kind, letter = ("<i8", "q") if entry["integer"] else ("<f8", "d")
    header = repr({"descr": kind, "fortran_order": False, "shape": tuple(entry["shape"])})
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    values = [int(v) for v in entry["values"]] if entry["integer"] else entry["values"]
    return (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", len(header))
        + header.encode()
        + struct.pack(f"<{len(values)}{letter}", *values)
    )


def values_of(data):
    length = struct.unpack("<H", data[8:10])[0]
    header = ast.literal_eval(data[10 : 10 + length].decode())
    assert not header["fortran_order"], header
    letter = {"<f8": "d", "<i8": "q"}[header["descr"]]
    body = data[10 + length :]
    return list(header["shape"]), list(struct.unpack(f"<{len(body) // 8}{letter}", body))


def parameters(hlo):
    """Names by number, of the entry computation; of a complex array those of its parts."""
    entry = hlo[hlo.index("\nENTRY ") :]
    found = {}
    for name, kind, number, rest in re.findall(
        r"%([\w.-]+) = (\w+)\S* parameter\((\d+)\)(.*)", entry
    ):
        operation = re.search(r'op_name="([^"]*)"', rest)
        name = operation.group(1).replace("\\'", "'") if operation else name
        complex_ = kind in ("c64", "c128")
        found[int(number)] = [f"{name} real", f"{name} imaginary"] if complex_ else [name]
    return [name for k in sorted(found) for name in found[k]]


def check(shardproof, case, directory):
    program, inputs, outputs = (
        os.path.join(directory, n) for n in ("program.hlo", "in.npz", "out.npz")
    )
    with open(program, "w") as file:
        file.write(case["hlo"])
    with zipfile.ZipFile(inputs, "w") as archive:
        for name, entry in zip(parameters(case["hlo"]), case["inputs"], strict=True):
            if entry["integer"]:
                model = converted(shardproof, program, directory)
                for model_name, model_entry in integers(model, name, entry):
                    archive.writestr(model_name + ".npy", npy(model_entry))
            else:
                archive.writestr(name + ".npy", npy(entry))
    done = subprocess.run(
        [shardproof, "run", "-m", program, "-p", program, "--inputs", inputs, "--outputs", outputs],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        return f"exit code {done.returncode}:\n{done.stdout}{done.stderr}"
    with zipfile.ZipFile(outputs) as archive:
        for k, expected in enumerate(case["outputs"]):
            for side in ("model", "rank0"):
                shape, found = values_of(archive.read(f"{side}/out.{k}.npy"))
                if shape != expected["shape"]:
                    return f"{side}: result {k} has shape {shape}, expected {expected['shape']}"
                for place, (a, b) in enumerate(zip(found, expected["values"], strict=True)):
                    if not math.isclose(a, b, rel_tol=1e-7, abs_tol=1e-9):
                        return f"{side}: result {k}, element {place}: {a}, expected {b}"
    return None


def converted(shardproof, program, directory):
    subprocess.run(
        [shardproof, "convert", "-m", program, "-p", program, "-o", directory],
        check=True,
        capture_output=True,
    )
    with open(os.path.join(directory, "converted.model.json")) as file:
        return json.load(file)["tensors"]


def integers(tensors, name, entry):
    """The inputs that the model has for one of the HLO program.

    Integers are moved so that they are not negative. An index that is used as others are becomes
    the next lower one, or the least. The numbers are added if they count.
    """
    found = re.compile(re.escape(name) + r"( \+ (\d+))?")
    index = next((n for n in tensors if found.fullmatch(n)), name)
    moved = int(found.fullmatch(index).group(2) or 0)
    within = tensors.get(index, {}).get("known", {}).get("within")
    values = [int(v) + moved for v in entry["values"]]
    if within:
        values = [
            v
            if any(low <= v < high for low, high in within)
            else max((high - 1 for _, high in within if high <= v), default=within[0][0])
            for v in values
        ]
    yield index, {**entry, "values": values}
    if index + " as a number" in tensors:
        yield index + " as a number", {**entry, "integer": False}


def main():
    shardproof = os.path.abspath(sys.argv[1])
    with gzip.open(DATA) as file:
        cases = json.load(io.TextIOWrapper(file))
    assert len(cases) > 60, len(cases)
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        for case in cases:
            problem = check(shardproof, case, directory)
            if problem:
                failed += 1
                print(f"{case['name']}: {problem}")
    print(f"{len(cases) - failed} of {len(cases)} programs as jax computes them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
