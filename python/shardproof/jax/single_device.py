# SPDX-License-Identifier: Apache-2.0
"""The program of one device that a lowered program for many devices stands for.

Shardings state where data is, not what is computed. Shardy and GSPMD define every annotation as the
identity of whole arrays, so without them the module is the program of one device. This holds
outside of shard_map only: its body is written for one device's piece and has collectives, and the
arrays that enter and leave it have other sizes there. Such a program is refused here, as is
everything of Shardy's that is not in the tables below.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ..program import ProgramError
from .modules import bytecode, copy_of, devices_of, hlo_classes, place_of, target_of

# Operations that return their operand, whatever sharding they state.
_IDENTITIES = frozenset({"sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier"})
# Custom calls that do so: shardings in the form of GSPMD and of exported programs, and in which
# memory a value is kept.
_IDENTITY_TARGETS = frozenset(
    {
        "Sharding",
        "xla.sdy.FuncResultSharding",
        "xla.sdy.PropagationBarrier",
        "annotate_device_placement",
    }
)
_NOTHING = frozenset({"sdy.mesh", "sdy.sharding_group"})  # operations without results
_NOTHING_TARGETS = frozenset({"xla.sdy.ShardingGroup"})
_SHARD_MAP = frozenset({"sdy.manual_computation"})
_SHARD_MAP_TARGETS = frozenset(
    {
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
    }
)
_NEEDS_SINGLE = "; pass single=, the same computation for one device"


@dataclasses.dataclass(frozen=True)
class SingleDevice:
    """The program of one device. removed: where the step's own text states shardings."""

    module: Any
    removed: tuple[str, ...]


def single_device(module: Any) -> SingleDevice:
    """`module`, a lowered program, without shardings. `module` itself stays as it is.

    Raises ProgramError for a program with shard_map, or with an operation of which it is not known
    that it is the identity on one device.
    """
    from jaxlib.mlir import ir

    devices_of(module)
    copy = copy_of(module)
    with copy.context:
        operations: list[Any] = []

        def enter(operation: Any) -> Any:
            operations.append(operation)
            return ir.WalkResult.ADVANCE

        copy.operation.walk(enter, ir.WalkOrder.PRE_ORDER)
        removed: dict[str, None] = {}
        erased = []
        for operation in operations:
            _remove_attributes(operation)
            if _is_identity(operation):
                operation.results[0].replace_all_uses_with(operation.operands[0])
                removed[place_of(operation)] = None
            elif not _is_nothing(operation):
                continue
            erased.append(operation)
        for operation in erased:
            operation.erase()
        copy.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(
            ir.IntegerType.get_signless(32), 1
        )
        copy.operation.verify()
    return SingleDevice(copy, tuple(p for p in removed if p))


def _is_identity(operation: Any) -> bool:
    name, target = operation.name, target_of(operation)
    if name in _SHARD_MAP or target in _SHARD_MAP_TARGETS:
        raise ProgramError(
            f"found a shard_map{_at(operation)}, whose program on one device cannot be derived"
            + _NEEDS_SINGLE
        )
    if target == "CustomSPMDPartitioning":
        raise ProgramError(
            f"found a function with custom_partitioning{_at(operation)}, whose program on one "
            "device is not in the lowered program" + _NEEDS_SINGLE
        )
    if name not in _IDENTITIES and target not in _IDENTITY_TARGETS:
        if (name.startswith("sdy.") or target.startswith("xla.sdy.")) and not _is_nothing(
            operation
        ):
            raise ProgramError(
                f"found {target or name}{_at(operation)}, which is not supported" + _NEEDS_SINGLE
            )
        return False
    if len(operation.operands) != 1 or len(operation.results) != 1:
        raise ProgramError(f"found {target or name}{_at(operation)}, expected one operand")
    if operation.operands[0].type != operation.results[0].type:
        raise ProgramError(
            f"found {target or name}{_at(operation)} from {operation.operands[0].type} to "
            f"{operation.results[0].type}, expected the same type"
        )
    return True


def _is_nothing(operation: Any) -> bool:
    return operation.name in _NOTHING or target_of(operation) in _NOTHING_TARGETS


def _at(operation: Any) -> str:
    place = place_of(operation)
    return f" at {place}" if place else ""


def _is_sharding(name: str) -> bool:
    return name.startswith("sdy.") or name == "mhlo.sharding"


def _remove_attributes(operation: Any) -> None:
    from jaxlib.mlir import ir

    attributes = operation.attributes
    for name in [n for n in attributes if _is_sharding(n)]:
        if operation.name not in _IDENTITIES | _NOTHING:
            del attributes[name]
    if "mhlo.frontend_attributes" in attributes:
        # Others than Shardy's are part of what a custom call computes.
        kept = {
            a.name: a.attr
            for a in ir.DictAttr(attributes["mhlo.frontend_attributes"])
            if not a.name.startswith("xla.sdy.")
        }
        del attributes["mhlo.frontend_attributes"]
        if kept:
            attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(kept)
    for of in ("arg_attrs", "res_attrs"):
        if of not in attributes:
            continue
        rows = [
            ir.DictAttr.get({a.name: a.attr for a in ir.DictAttr(row) if not _drops(a.name)})
            for row in ir.ArrayAttr(attributes[of])
        ]
        attributes[of] = ir.ArrayAttr.get(rows)


def _drops(name: str) -> bool:
    return _is_sharding(name) or name in ("mhlo.frontend_attributes", "mhlo.memory_kind")


def text_of_single(single: SingleDevice) -> str:
    """The program as HLO text, which XLA reads of it without compiling."""
    from jaxlib import _jax

    computation = _jax.mlir.mlir_module_to_xla_computation(
        bytecode(single.module), use_tuple_args=False, return_tuple=False
    )
    options = hlo_classes().HloPrintOptions()
    options.print_large_constants = True
    options.print_metadata = True
    return str(computation.get_hlo_module().to_string(options))
