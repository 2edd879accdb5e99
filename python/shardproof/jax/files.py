# SPDX-License-Identifier: Apache-2.0
"""Programs that were written to files, as modules.

| content | how it is read |
| --- | --- |
| an artifact of jax.export | its module; also an `Exported` itself |
| StableHLO as text, as bytecode of MLIR, as portable bytecode | parsed |
| HLO as text, from before partitioning | converted to StableHLO |
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..program import ProgramError
from .modules import hlo_classes

_BYTECODE = b"ML\xefR"
_PORTABLE = b"StableHLO_v"  # what wrote the bytecode, in its first bytes


def is_written(step: Any) -> bool:
    """Whether `step` is a program rather than a function: a path, or what jax.export makes."""
    return isinstance(step, (str, os.PathLike)) or hasattr(step, "mlir_module_serialized")


def module_of(step: Any, same_parameters: bool) -> Any:
    """The module of a path or of an `Exported`. Raises ProgramError for another content.

    same_parameters: another program has to have the same ones, so none may have been dropped. Only
    what jax.export made shows that.
    """
    if not isinstance(step, (str, os.PathLike)):
        if same_parameters:
            _check_parameters(step)
        return _parsed(bytes(step.mlir_module_serialized), "the exported program", False)
    try:
        content = Path(step).read_bytes()
    except OSError as error:
        raise ProgramError(f"{os.fspath(step)}: {error.strerror}") from error
    return _parsed(content, os.fspath(step), same_parameters)


def _check_parameters(exported: Any) -> None:
    found, expected = len(exported.module_kept_var_idx), len(exported.in_avals)
    if found != expected:
        raise ProgramError(
            f"found {found} parameters in an exported function of {expected} arguments: those that "
            "it does not use are dropped; jit it with keep_unused=True"
        )


def _parsed(content: bytes, name: str, same_parameters: bool) -> Any:
    try:
        if content.startswith(_BYTECODE):
            return _parsed_bytecode(content)
        text = _text(content)
        if text is None:
            return _exported(content, same_parameters)
        if re.match(r"\s*(//[^\n]*\n\s*)*HloModule\b", text):
            return _converted(text)
        return _module(text)
    except ProgramError as error:
        raise ProgramError(f"{name}: {error}") from error
    except Exception as error:  # of MLIR's and of JAX's parsers
        raise ProgramError(
            f"{name}: expected StableHLO, HLO text or an artifact of jax.export: {error}"
        ) from error


def _text(content: bytes) -> str | None:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _module(source: str | bytes) -> Any:
    from jax.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir

    with make_ir_context():
        return ir.Module.parse(source)


def _parsed_bytecode(content: bytes) -> Any:
    if _PORTABLE not in content[:64]:
        return _module(content)
    from jax.interpreters.mlir import make_ir_context
    from jaxlib import _jax

    with make_ir_context():
        return _jax.mlir.deserialize_portable_artifact(content)


def _exported(content: bytes, same_parameters: bool) -> Any:
    import jax.export

    exported = jax.export.deserialize(bytearray(content))
    if same_parameters:
        _check_parameters(exported)
    return _parsed_bytecode(bytes(exported.mlir_module_serialized))


def _converted(text: str) -> Any:
    """HLO before partitioning. Its number of devices is stated, or follows from its meshes."""
    from jaxlib import _jax
    from jaxlib.mlir import ir

    header = text[: text.index("\n")] if "\n" in text else text
    if found := re.search(
        r"\b(partition-id|replica-id|(all|collective|ragged-all|reduce-scatter)[a-z-]*)\(", text
    ):
        raise ProgramError(
            f"found {found[1]}, expected a program from before partitioning, without shard_map"
        )
    parsed = hlo_classes().hlo_module_from_text(text)
    module = _module(_jax.mlir.hlo_to_stablehlo(parsed.as_serialized_hlo_module_proto()))
    stated = re.search(r"\bnum_partitions=(\d+)", header)
    if stated:
        with module.context:
            module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(
                ir.IntegerType.get_signless(32), int(stated[1])
            )
    return module
