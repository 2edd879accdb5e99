# SPDX-License-Identifier: Apache-2.0
"""nnScaler's graph as the pickle states it: the few fields that are read, checked.

nnScaler pickles a `ModuleCodeGen`: an execution plan with, for each device, the sequence of cells
that it runs. A cell is a segment (forward operators or their backward), an adapter (communication),
a read of the data loader, or a reducer of weight gradients. With several microbatches, cells are
wrapped: an `ExeReuseCell` is one execution of a cell, with tensors of its own.

A tensor of a cell (`IRSubTensor`) is a part of a full tensor: a box of it, and one of n terms of a
sum.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import pickle
from typing import Any

from ..inert_pickle import Global, Inert, PickleError, read_pickle


class PlanError(ValueError):
    """A pickle is no execution plan, or has something that is not supported."""


# What the pickle of a plan calls to make its objects. Nothing of this is imported or called here.
_IR = {
    "nnscaler.codegen.frontend_mapping": {"Sign2EmitRule"},
    "nnscaler.codegen.module.module": {"ModuleCodeGen"},
    "nnscaler.codegen.syntax.symtable": {"SymbolTable"},
    "nnscaler.execplan.execplan": {"ExecutionPlan", "ExeReuseCell"},
    "nnscaler.graph.function.dimops": {
        *("DimAnno", "DimAnno.ReduceType", "DimopSplit", "IRDimops", "OpAnno", "ShapeAnno"),
        "TransformRule",
    },
    "nnscaler.graph.gener.utils": {"DummyInputOuput"},
    "nnscaler.graph.graph": {"IRGraph"},
    "nnscaler.graph.schedule.schedplan": {"Block", "ScheduleDependency", "SchedulePlan"},
    "nnscaler.graph.segment": {"IRSegment"},
    "nnscaler.ir.adapter.adapter": {"IRAdapter", "IRWeightReducer"},
    "nnscaler.ir.adapter.prim": {
        *("AllGatherPrim", "AllGatherReduceScatterPrim", "AllGatherSplitPrim"),
        *("AllReduceAllReducePrim", "AllReduceIdentityPrim", "AllReducePrim"),
        *("AllToAllAllToAllPrim", "AllToAllPrim", "BroadcastPrim", "ChunkPrim", "IdentityPrim"),
        *("IdentityAllreducePrim", "MergeDimPrim", "MovePrim", "ReduceScatterAllGatherPrim"),
        *("ReduceScatterPrim", "SelectPrim", "SplitAllGatherPrim", "SumPrim"),
    },
    "nnscaler.ir.cten": {"IRCell", "IRObject"},
    "nnscaler.ir.operator": {"IRBpOperation", "IRDataOperation", "IRFwOperation"},
    "nnscaler.ir.tensor": {"IRFullTensor", "IRSubTensor", "IndexMap", "ValueMap"},
    # Parts of the code generator, which are not read.
    "builtins": {"getattr"},
    "collections": {"OrderedDict", "defaultdict"},
    "dill._dill": {"_create_cell", "_create_code", "_create_function", "_load_type"},
    "numpy": {"dtype"},
    "numpy.core.multiarray": {"scalar"},
    "numpy._core.multiarray": {"scalar"},
    "torch._utils": {"_rebuild_tensor_v2"},
    "torch.nn.modules.module": {"Module"},
    "torch.storage": {"_load_from_bytes"},
}


def known(module: str, name: str) -> bool:
    return name in _IR.get(module, ())


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A part of a full tensor.

    number: its own; equal numbers on one device are one variable. full: the number of the full
    tensor, of name and shape full_name and full_shape. box: the part's range in each dimension.
    part: (i, n): the i-th of n terms of a sum. gradient: the number of its gradient, if it has one.
    """

    number: int
    full: int
    full_name: str
    full_shape: tuple[int, ...]
    box: tuple[tuple[int, int], ...]
    part: tuple[int, int]
    is_attribute: bool
    is_gradient: bool
    is_loss: bool
    dtype: str
    gradient: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(high - low for low, high in self.box)


def read_plan(source: Any) -> tuple[str, Inert]:
    """What errors call a plan, and its `ModuleCodeGen`. Raises PlanError, and OSError of a file.

    source: the path of a pickle, or the live object, which is pickled here (by dill where it is
    installed, as nnScaler does). Its pickle is read like a file's.
    """
    if isinstance(source, (str, os.PathLike)):
        path = pathlib.Path(source)
        name, data = str(path), path.read_bytes()
    else:
        name = f"the {type(source).__name__}"
        data = _pickled(name, source)
    try:
        found = read_pickle(data, known)
    except PickleError as error:
        raise PlanError(f"{name}: {error}") from None
    if not isinstance(found, Inert) or found.kind != "ModuleCodeGen":
        raise PlanError(f"{name}: the pickle is {kind_of(found)}, expected a ModuleCodeGen")
    return name, found


def _pickled(name: str, x: Any) -> bytes:
    try:
        import dill
    except ImportError:
        dill = pickle
    try:
        data: bytes = dill.dumps(x)
    except Exception as e:
        raise PlanError(f"{name} cannot be pickled: {type(e).__name__}: {e}") from e
    return data


def kind_of(x: Any) -> str:
    return x.kind or "an object" if isinstance(x, Inert) else type(x).__name__


def field(x: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """An attribute that has to be there, of that type."""
    value = x.get(name) if isinstance(x, Inert) else None
    if not isinstance(value, kind) or isinstance(value, bool) and kind is int:
        raise PlanError(f"{kind_of(x)}.{name} is {kind_of(value)}")
    return value


def integer(x: Any) -> int:
    """A number, of Python or numpy."""
    if isinstance(x, Inert) and x.kind == "scalar" and len(x.arguments) == 2:
        dtype, raw = x.arguments
        if isinstance(dtype, Inert) and dtype.arguments[:1] in (("i8",), ("i4",)):
            state = dtype.state.get("")
            little = not (isinstance(state, tuple) and len(state) > 1 and state[1] == ">")
            if isinstance(raw, bytes) and len(raw) == int(dtype.arguments[0][1]):
                return int.from_bytes(raw, "little" if little else "big", signed=True)
    if not isinstance(x, int) or isinstance(x, bool):
        raise PlanError(f"a number is {kind_of(x)}")
    return x


def integers(x: Any) -> list[int]:
    if not isinstance(x, (list, tuple)):
        raise PlanError(f"a list of numbers is {kind_of(x)}")
    return [integer(y) for y in x]


def is_tensor(x: Any) -> bool:
    return isinstance(x, Inert) and x.kind == "IRSubTensor"


def tensor(x: Any) -> Tensor:
    if not is_tensor(x):
        raise PlanError(f"a tensor is {kind_of(x)}")
    full = field(x, "_full_tensor", Inert)
    box = field(field(x, "_indmap", Inert), "_indices", tuple)
    part = integers(field(field(x, "_valmap", Inert), "_weight", tuple))
    gradient = x.get("_grad")
    dtype = full.get("_dtype")
    made = Tensor(
        number=field(x, "_id", int),
        full=field(full, "_id", int),
        full_name=field(full, "name", str),
        full_shape=tuple(integers(field(full, "_shape", tuple))),
        box=tuple((integer(low), integer(high)) for low, high in box),
        part=(part[0], part[1]),
        is_attribute=bool(full.get("_is_attr")),
        is_gradient=bool(full.get("_is_grad")),
        is_loss=bool(full.get("_is_loss")),
        dtype=dtype.name if isinstance(dtype, Global) and dtype.module == "torch" else "",
        gradient=field(gradient, "_id", int) if is_tensor(gradient) else None,
    )
    inside = len(made.box) == len(made.full_shape) and all(
        0 <= low < high <= n for (low, high), n in zip(made.box, made.full_shape)
    )
    if not inside:
        raise PlanError(f"tensor {made.full_name}: {made.box} is no part of {made.full_shape}")
    return made


def tensors(x: Inert, name: str) -> list[Tensor]:
    """The tensors of a cell's inputs or outputs; other values are left out."""
    return [tensor(t) for t in field(x, name, (list, tuple)) if is_tensor(t)]
