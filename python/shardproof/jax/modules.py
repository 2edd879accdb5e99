# SPDX-License-Identifier: Apache-2.0
"""StableHLO modules, as JAX lowers them: what the other files here need of them."""

from __future__ import annotations

import io
import math
import os
import re
from typing import Any

from ..program import ProgramError


def hlo_classes() -> Any:
    """jaxlib's module of HLO; older versions have one for all."""
    try:
        from jaxlib import _hlo

        return _hlo
    except ImportError:
        from jaxlib import _jax

        return _jax


def bytecode(module: Any) -> bytes:
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue()


def copy_of(module: Any) -> Any:
    """A copy in the same context, which the caller may change."""
    from jaxlib.mlir import ir

    with module.context:
        return ir.Module.parse(bytecode(module))


def devices_of(module: Any) -> int:
    """For how many devices a module is: stated, or those of its meshes, which may be abstract.

    Raises ProgramError if it has replicas (pmap).
    """
    attributes = module.operation.attributes
    replicas, partitions = (
        int(attributes[name].value) if name in attributes else 1
        for name in ("mhlo.num_replicas", "mhlo.num_partitions")
    )
    if replicas > 1:
        raise ProgramError(
            "found a program of several replicas (pmap), expected one that is partitioned: write "
            "it with shard_map"
        )
    if partitions > 1:
        return partitions
    counts = [1]
    for operation in module.body.operations:
        if operation.operation.name == "sdy.mesh":
            counts.append(_devices_of_mesh(str(operation.operation.attributes["mesh"])))
    # The same as text, in modules that were HLO.
    if "mhlo.frontend_attributes" in attributes:
        front = str(attributes["mhlo.frontend_attributes"])
        counts += [_devices_of_mesh(m) for m in re.findall(r"#sdy\.mesh<[^>]*>", front)]
    return max(counts)


def _devices_of_mesh(mesh: str) -> int:
    """Of `#sdy.mesh<["dp"=2, "tp"=4]>`."""
    return math.prod(int(size) for size in re.findall(r"=(\d+)", mesh))


def main_of(module: Any) -> Any:
    """The function that the program is."""
    for operation in module.body.operations:
        attributes = operation.operation.attributes
        if operation.operation.name == "func.func" and attributes["sym_name"].value == "main":
            return operation.operation
    raise ProgramError("found a module without a function main")


def attributes_of_arguments(function: Any) -> list[dict[str, Any]]:
    return [_row(function, "arg_attrs", k) for k in range(len(_kind(function).inputs))]


def attributes_of_results(function: Any) -> list[dict[str, Any]]:
    return [_row(function, "res_attrs", k) for k in range(len(_kind(function).results))]


def target_of(operation: Any) -> str:
    """What a custom call calls; nothing for another operation."""
    if operation.name != "stablehlo.custom_call":
        return ""
    return str(operation.attributes["call_target_name"].value)


def place_of(operation: Any) -> str:
    """`FILE:LINE` of the innermost known place that an operation comes from, or nothing."""
    for file, line in re.findall(r'"([^"]+)":(\d+):\d+', str(operation.location)):
        if os.path.dirname(file) != os.path.dirname(__file__):
            return f"{file}:{line}"
    return ""


def _kind(function: Any) -> Any:
    from jaxlib.mlir import ir

    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def _row(function: Any, of: str, number: int) -> dict[str, Any]:
    from jaxlib.mlir import ir

    if of not in function.attributes:
        return {}
    row = ir.DictAttr(ir.ArrayAttr(function.attributes[of])[number])
    return {a.name: a.attr for a in row}
