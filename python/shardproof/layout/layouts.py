# SPDX-License-Identifier: Apache-2.0
"""Layouts of checkpoints, and how they are read from metadata. No weights are read."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..inert_pickle import Global, Inert, PickleError, read_pickle


class LayoutError(ValueError):
    """Metadata cannot be read, or a call is wrong."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A box of a tensor. where: the file or rank that has it."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    where: str


@dataclasses.dataclass
class TensorLayout:
    shape: tuple[int, ...]
    dtype: str  # as PyTorch calls it, "bfloat16"
    pieces: list[Piece]


@dataclasses.dataclass
class Layout:
    """Which boxes of which tensors a checkpoint has.

    name: for reports. problems: what the metadata itself contradicts: (name, sentence), where the
    name is a tensor's or "". others: names of values that are no tensors.
    """

    tensors: dict[str, TensorLayout]
    name: str = "checkpoint"
    problems: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    others: list[str] = dataclasses.field(default_factory=list)

    @staticmethod
    def whole(tensors: Mapping[str, tuple[Sequence[int], str]], name: str = "model") -> Layout:
        """A layout with each tensor in one piece. tensors: name to shape and dtype."""
        return Layout(
            {
                n: TensorLayout(tuple(shape), dtype, [Piece((0,) * len(shape), tuple(shape), name)])
                for n, (shape, dtype) in tensors.items()
            },
            name,
        )

    @staticmethod
    def safetensors(
        path: str | os.PathLike[str],
        tensors: Mapping[str, tuple[Sequence[int], str]] | None = None,
    ) -> Layout:
        """Of a `.safetensors` file, a `.safetensors.index.json`, or a folder with one of them.

        Only headers of files are read. tensors: name to shape and dtype, for an index whose files
        are not there. Raises LayoutError if a file cannot be read.
        """
        return _safetensors(pathlib.Path(path), tensors)

    @staticmethod
    def dcp(path: str | os.PathLike[str]) -> Layout:
        """Of a folder that torch.distributed.checkpoint wrote, by its `.metadata`, which is not
        executed. Raises LayoutError if it cannot be read."""
        return _dcp(pathlib.Path(path))

    @staticmethod
    def megatron(ranks: Sequence[Any], name: str = "ranks") -> Layout:
        """Of the sharded state dicts of all ranks, in the order of ranks.

        Tensors are objects with the fields of Megatron's `ShardedTensor`: `key`, `dtype`,
        `local_shape`, `global_shape`, `global_offset`, `replica_id`, `prepend_axis_num`,
        `flattened_range` (None). Raises LayoutError for other objects that have a `key`.
        """
        return _megatron(ranks, name)


# ---- safetensors

# a dtype as the format names it: (as PyTorch does, bytes)
SAFETENSORS = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "F32": ("float32", 4),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "F64": ("float64", 8),
}
_BYTES = dict(SAFETENSORS.values())
_HEADER = 100_000_000  # bytes, the format's own limit


def _json(text: bytes | str, path: pathlib.Path) -> Any:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(found)
        if len(made) != len(found):
            raise LayoutError(f"{path}: a key occurs twice in one object")
        return made

    try:
        return json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        if isinstance(error, LayoutError):
            raise
        raise LayoutError(f"{path}: no valid JSON: {error}") from None


def _sizes(x: Any, place: str) -> tuple[int, ...]:
    if not isinstance(x, (list, tuple)) or not all(type(n) is int and n >= 0 for n in x):
        raise LayoutError(f"{place} is no list of sizes")
    return tuple(x)


def _header(path: pathlib.Path, problems: list[tuple[str, str]]) -> dict[str, TensorLayout]:
    """The tensors of one file. What its header contradicts is added to the problems."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
            if length > min(size - 8, _HEADER):
                raise LayoutError(f"{path}: the header's length is {length:,} bytes")
            raw = _json(file.read(length), path)
    except OSError as error:
        raise LayoutError(f"{path}: {error.strerror}") from None
    if not isinstance(raw, dict):
        raise LayoutError(f"{path}: the header is no object")
    tensors = {}
    spans = []
    for name, entry in raw.items():
        if name == "__metadata__":
            continue
        place = f"{path}: tensor {name}"
        if not isinstance(entry, dict) or entry.get("dtype") not in SAFETENSORS:
            raise LayoutError(f"{place} has no known dtype")
        dtype, width = SAFETENSORS[entry["dtype"]]
        shape = _sizes(entry.get("shape"), f"{place}: shape")
        span = _sizes(entry.get("data_offsets"), f"{place}: data_offsets")
        if len(span) != 2 or span[1] - span[0] != math.prod(shape) * width:
            problems.append((name, f"{path.name}: data_offsets {list(span)} are not its size"))
        else:
            spans.append((*span, name))
        tensors[name] = TensorLayout(shape, dtype, [Piece((0,) * len(shape), shape, path.name)])
    end = 0
    for low, high, name in sorted(spans):
        if low < end:
            problems.append((name, f"{path.name}: its bytes are also those of another tensor"))
        elif low > end:
            problems.append((name, f"{path.name}: {low - end:,} bytes before it are no tensor's"))
        end = max(end, high)
    if 8 + length + end != size:
        problems.append(
            ("", f"{path.name} has {size:,} bytes, its header needs {8 + length + end:,}")
        )
    return tensors


def _safetensors(
    path: pathlib.Path, given: Mapping[str, tuple[Sequence[int], str]] | None
) -> Layout:
    if path.is_dir():
        indices = sorted(path.glob("*.safetensors.index.json"))
        files = sorted(path.glob("*.safetensors"))
        if len(indices) > 1 or not indices and len(files) != 1:
            raise LayoutError(f"{path}: {len(indices)} indices and {len(files)} files")
        path = indices[0] if indices else files[0]
    layout = Layout({}, path.name)
    if path.suffix != ".json":
        layout.tensors = _header(path, layout.problems)
        return layout
    try:
        index = _json(path.read_bytes(), path)
    except OSError as error:
        raise LayoutError(f"{path}: {error.strerror}") from None
    held = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(held, dict) or not all(isinstance(f, str) for f in held.values()):
        raise LayoutError(f"{path}: weight_map is no object with names of files")
    names = sorted(set(held.values()))
    for name in names:
        if pathlib.PurePath(name).name != name:
            raise LayoutError(f"{path}: file {name!r} is not in the index's folder")
    if given is None:
        for name in names:
            for tensor, entry in _header(path.parent / name, layout.problems).items():
                if held.get(tensor) != name:
                    layout.problems.append((tensor, f"{name} has it, the index has it elsewhere"))
                if tensor in layout.tensors:
                    layout.tensors[tensor].pieces += entry.pieces
                else:
                    layout.tensors[tensor] = entry
    else:
        for tensor, name in held.items():
            if tensor in given:
                shape = tuple(given[tensor][0])
                piece = Piece((0,) * len(shape), shape, name)
                layout.tensors[tensor] = TensorLayout(shape, given[tensor][1], [piece])
        for tensor in sorted(held.keys() - given.keys()):
            layout.problems.append((tensor, "the index has it, but its shape is not given"))
    if given is None:
        for tensor in sorted(held.keys() - layout.tensors.keys()):
            layout.problems.append((tensor, f"the index has it in {held[tensor]}, which has not"))
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is not None:
        for tensor, entry in layout.tensors.items():
            if entry.dtype not in _BYTES:
                raise LayoutError(f"{path}: {tensor}: no known dtype {entry.dtype}")
        needed = sum(math.prod(t.shape) * _BYTES[t.dtype] for t in layout.tensors.values())
        if total != needed:
            layout.problems.append(
                ("", f"the index's total_size is {total} bytes, its tensors have {needed}")
            )
    return layout


# ---- torch.distributed.checkpoint

_CALLED = {
    "builtins": {"getattr"},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "WindowsPath"},
    "torch": {"Size"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
        *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.serialization": {"_get_layout"},
}


def _size(x: Any, place: str) -> tuple[int, ...]:
    """A torch.Size."""
    if isinstance(x, Inert) and x.kind == "Size" and len(x.arguments) <= 1:
        x = x.arguments[0] if x.arguments else ()
    return _sizes(x, place)


def _dcp(path: pathlib.Path) -> Layout:
    file = path / ".metadata" if path.is_dir() else path
    try:
        raw = read_pickle(file.read_bytes(), lambda m, n: n in _CALLED.get(m, ()))
    except OSError as error:
        raise LayoutError(f"{file}: {error.strerror}") from None
    except PickleError as error:
        raise LayoutError(f"{file}: {error}") from None
    held = raw.get("state_dict_metadata") if isinstance(raw, Inert) else None
    if not isinstance(held, dict):
        raise LayoutError(f"{file}: no metadata of a checkpoint")
    layout = Layout({}, path.name)
    stored = _stored(raw, file, layout)
    for name, entry in held.items():
        place = f"{file}: {name}"
        kind = entry.kind if isinstance(entry, Inert) else ""
        if kind == "BytesStorageMetadata":
            if (name, ()) not in stored:
                raise LayoutError(f"{place}: storage_data has no entry for it")
            layout.others.append(name)
            continue
        if kind != "TensorStorageMetadata":
            raise LayoutError(f"{place} is no tensor and no bytes")
        properties = entry.get("properties")
        state = properties.get("") if isinstance(properties, Inert) else None
        dtype = state[0] if isinstance(state, tuple) and state else None
        if dtype is None and isinstance(properties, Inert):
            dtype = properties.get("dtype")
        if not isinstance(dtype, Global) or dtype.module != "torch":
            raise LayoutError(f"{place} has no dtype")
        tensor = TensorLayout(_size(entry.get("size"), f"{place}: size"), dtype.name, [])
        chunks = entry.get("chunks")
        if not isinstance(chunks, list):
            raise LayoutError(f"{place} has no chunks")
        for chunk in chunks:
            if not isinstance(chunk, Inert):
                raise LayoutError(f"{place} has no chunks")
            offset = _size(chunk.get("offsets"), f"{place}: offsets")
            if (name, offset) not in stored:
                raise LayoutError(f"{place}: storage_data has no piece at {list(offset)}")
            where, length = stored[name, offset]
            size = _size(chunk.get("sizes"), f"{place}: sizes")
            # torch.save puts a header around the numbers, so that the length may be larger.
            needed = math.prod(size) * _BYTES.get(tensor.dtype, 1)
            if length is not None and length < needed:
                raise LayoutError(
                    f"{place}: its piece at {list(offset)} has {length:,} bytes in {where}, "
                    f"{list(size)} of {tensor.dtype} need {needed:,}"
                )
            tensor.pieces.append(Piece(offset, size, where))
        layout.tensors[name] = tensor
    return layout


def _stored(
    raw: Inert, file: pathlib.Path, layout: Layout
) -> dict[tuple[str, tuple[int, ...]], tuple[str, int | None]]:
    """Which file has a piece, and how many bytes of it (None: transformed, as by compression). Two
    pieces that share bytes of a file are a problem."""
    found: dict[tuple[str, tuple[int, ...]], tuple[str, int | None]] = {}
    spans: dict[str, list[tuple[int, int, str]]] = {}
    entries = raw.get("storage_data")
    for key, info in (entries if isinstance(entries, dict) else {}).items():
        if not isinstance(key, Inert) or not isinstance(info, Inert):
            raise LayoutError(f"{file}: storage_data is not understood")
        name, offset = key.get("fqn"), key.get("offset")
        where, low, length = (info.get(k) for k in ("relative_path", "offset", "length"))
        if not isinstance(name, str) or not isinstance(where, str):
            raise LayoutError(f"{file}: storage_data is not understood")
        if type(low) is not int or type(length) is not int or low < 0 or length < 0:
            raise LayoutError(f"{file}: {name}: no place in {where} (offset {low}, {length} bytes)")
        spans.setdefault(where, []).append((low, low + length, name))
        place = () if offset is None else _size(offset, f"{file}: {name}: offset")
        found[name, place] = (where, None if info.get("transform_descriptors") else length)
    for where, parts in spans.items():
        end = 0
        for low, high, name in sorted(parts):
            if low < end:
                layout.problems.append((name, f"its bytes in {where} are also another's"))
            end = max(end, high)
        path = file.parent / where
        if not path.is_file():
            raise LayoutError(f"{file}: the file {where}, which has pieces, is not there")
        if path.stat().st_size < end:
            layout.problems.append(
                ("", f"{where} has {path.stat().st_size:,} bytes, its pieces need {end:,}")
            )
    return found


# ---- Megatron


def _leaves(x: Any, path: tuple[str, ...] = ()) -> Iterable[tuple[str, Any]]:
    """Each leaf with its keys, joined by slashes."""
    if isinstance(x, Mapping):
        for key, value in x.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(x, (list, tuple)):
        for i, value in enumerate(x):
            yield from _leaves(value, (*path, str(i)))
    else:
        yield "/".join(path), x


def _megatron(ranks: Sequence[Any], name: str) -> Layout:
    layout = Layout({}, name)
    mains: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    pieces: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for rank, state in enumerate(ranks):
        for path, leaf in _leaves(state):
            key = getattr(leaf, "key", None)
            if not isinstance(key, str):
                if hasattr(leaf, "shape"):
                    raise LayoutError(f"rank {rank}: {path} is no sharded tensor")
                layout.others.append(path)
                continue
            place = f"rank {rank}: {key}"
            if not hasattr(leaf, "global_shape"):
                if hasattr(leaf, "data") or hasattr(leaf, "build_fn"):
                    layout.others.append(key)
                    continue
                raise LayoutError(f"{place} is no sharded tensor")
            if getattr(leaf, "flattened_range", None) is not None:
                raise LayoutError(f"{place}: flattened_range is not supported")
            if getattr(leaf, "allow_shape_mismatch", False):
                raise LayoutError(f"{place}: allow_shape_mismatch is not supported")
            shape = _sizes(tuple(leaf.global_shape), f"{place}: global_shape")
            offset = _sizes(tuple(leaf.global_offset), f"{place}: global_offset")
            extra = getattr(leaf, "prepend_axis_num", 0)
            own = (1,) * extra + _sizes(tuple(leaf.local_shape), f"{place}: local_shape")
            dtype = re.sub(r"^torch\.", "", str(leaf.dtype))
            tensor = layout.tensors.setdefault(key, TensorLayout(shape, dtype, []))
            if (tensor.shape, tensor.dtype) != (shape, dtype):
                layout.problems.append(
                    (
                        key,
                        f"rank {rank} has shape {list(shape)}, {dtype}; another rank has "
                        f"{list(tensor.shape)}, {tensor.dtype}",
                    )
                )
                continue
            box = (key, offset, own)
            replica = getattr(leaf, "replica_id", 0)
            numbers = replica if isinstance(replica, (tuple, list)) else (replica,)
            main = all(n == 0 for n in numbers)
            mains[box] = mains.get(box, 0) + main
            pieces.setdefault(box, []).append(rank)
    for (key, offset, own), holders in pieces.items():
        count = mains[key, offset, own]
        where = f"rank {holders[0]}"
        if count != 1:
            layout.problems.append(
                (
                    key,
                    f"its piece at {list(offset)} is of {len(holders)} state dicts, {count} of "
                    "them as the main replica (replica_id 0), expected 1",
                )
            )
        layout.tensors[key].pieces.append(Piece(offset, own, where))
    return layout
