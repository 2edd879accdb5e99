# SPDX-License-Identifier: Apache-2.0
"""A cache of the results of operators on fake tensors. As private as `private`.

Nearly all operators of a step are called with the same shapes in every layer. PyTorch's own cache
takes longer than the rest of a recording.

A result is reused only where PyTorch's own cache has a valid entry for it, so that PyTorch decides
what may be reused. The key here has all of a tensor that PyTorch's key has.

Results of ATen's operators depend on the key alone, as in PyTorch's cache. They serve all
recordings of this process. Forked processes that record ranks get them (`learn`), and give back
what they have found (`learned`): most of the time of a small step is that of its first calls.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    _CacheKeyState,
    _DispatchCacheEntryOutputInfo,
    _DispatchCacheValidEntry,
    extract_tensor_metadata,
)

_FAKE = torch._C._TorchDispatchModeKey.FAKE
_LIFT, _UNSAFE_VIEW = torch.ops.aten.lift_fresh.default, torch.ops.aten._unsafe_view.default
_NUMBERS = frozenset({torch.float32, torch.float64, torch.int32, torch.int64, torch.bool})
_PLAIN = frozenset(
    {
        int,
        float,
        bool,
        str,
        type(None),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
    }
)


class _NotRemembered(Exception):
    """An operand of which a key cannot be made."""


def _operands(key: list[Any], operands: Sequence[Any], mode: FakeTensorMode) -> None:
    for x in operands:
        kind = type(x)
        if kind is FakeTensor:
            if x.constant is not None or x.fake_mode is not mode:
                raise _NotRemembered
            key += (
                x.shape,
                x.stride(),
                x.storage_offset(),
                x.dtype,
                x._fake_device,
                x.layout,
                x.untyped_storage().nbytes(),
                x.requires_grad,
                x.is_conj(),
                x.is_neg(),
                x.is_inference(),
            )
        elif kind in _PLAIN:
            key += (kind, x)  # 1 and 1.0 are equal, and may give tensors of other dtypes
        elif kind is list or kind is tuple:
            key += (kind, len(x))
            _operands(key, x, mode)
        else:
            raise _NotRemembered


_Key = tuple[Any, ...]
_Infos = tuple[Any, ...] | None  # of results; None: torch does not remember it either

_ABSENT: Any = object()
_MOST = 1 << 16  # results that are kept
_of_aten: dict[_Key, _Infos] = {}
_new: list[_Key] = []  # of those, since they were given to another process


def learned() -> bytes:
    """What was found since the last call, for `learn` in another process."""
    found = [(str(key[0]), key[1:], _of_aten[key]) for key in _new if key in _of_aten]
    _new.clear()
    return pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL)


def learn(data: bytes, pass_on: bool = False) -> None:
    """Takes in what another process of this program found. pass_on: `learned` gives it, too."""
    for name, rest, infos in pickle.loads(data):
        namespace, packet, overload = name.split(".")
        key = (getattr(getattr(getattr(torch.ops, namespace), packet), overload), *rest)
        if key not in _of_aten:
            _keep(key, infos, pass_on)


def _keep(key: _Key, infos: _Infos, new: bool) -> None:
    if len(_of_aten) >= _MOST:
        _of_aten.clear()
        _new.clear()
    _of_aten[key] = infos
    if new:
        _new.append(key)


class Answers:
    """Runs operators on fake tensors."""

    def __init__(self) -> None:
        # of operators that are none of ATen's: of collectives, whose groups are this recording's
        self._known: dict[_Key, _Infos] = {}

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """func(*args, **kwargs), below the recorder."""
        mode = torch._C._get_dispatch_mode(_FAKE)
        if mode is None:
            return func(*args, **kwargs)
        if (
            func is _LIFT
            and not kwargs
            and type(args[0]) is torch.Tensor
            and args[0].dim() == 0
            and args[0].dtype in _NUMBERS
            and args[0].device.type == "cpu"
        ):
            return _number(mode, args[0])
        parts: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        try:
            _operands(parts, args, mode)
            if kwargs:
                parts.append(tuple(kwargs))
                _operands(parts, tuple(kwargs.values()), mode)
        except _NotRemembered:
            return func(*args, **kwargs)
        key = tuple(parts)
        infos = _of_aten.get(key, _ABSENT)
        if infos is _ABSENT:
            infos = self._known.get(key, _ABSENT)
        if infos is _ABSENT:
            return self._from_cache(key, mode, func, args, kwargs)
        if infos is None:
            return func(*args, **kwargs)
        if infos[0]:
            return tuple([_made(mode, func, info, args) for info in infos[1:]])
        return _made(mode, func, infos[1], args)

    def _from_cache(
        self, key: tuple[Any, ...], mode: Any, func: Any, args: Any, kwargs: Any
    ) -> Any:
        """Torch's own answer, which is remembered if torch remembers it."""
        try:
            # before: the call may change what it is given
            theirs = mode._cache_key(_CacheKeyState(None), func, args, kwargs)
        except Exception:
            theirs = None
        out = func(*args, **kwargs)
        entry = mode.cache.get(theirs) if theirs is not None else None
        valid = (
            entry is not None
            and isinstance(entry, _DispatchCacheValidEntry)
            and all(
                info.metadata is None
                or not (
                    info.metadata.requires_grad
                    or info.metadata.is_conj
                    or info.metadata.is_neg
                    or info.metadata.is_sparse
                )
                and info.metadata.layout is torch.strided
                for info in entry.output_infos
            )
        )
        infos = (entry.is_output_tuple, *entry.output_infos) if valid and entry else None
        if (
            func is _UNSAFE_VIEW
            and type(out) is FakeTensor
            and out.untyped_storage()._cdata == args[0].untyped_storage()._cdata
        ):
            # not called a view by its schema
            infos = (
                False,
                _DispatchCacheEntryOutputInfo(
                    inplace_idx=None, metadata=extract_tensor_metadata(out), view_idx=0
                ),
            )
        if (
            infos is None
            and type(out) is FakeTensor
            and func.namespace == "_c10d_functional"
            and not any(a.alias_info for a in (*func._schema.arguments, *func._schema.returns))
        ):
            # a new tensor whose sizes follow from the operands, group sizes included; torch
            # remembers no operators but ATen's
            infos = (
                False,
                _DispatchCacheEntryOutputInfo(
                    inplace_idx=None, metadata=extract_tensor_metadata(out), view_idx=None
                ),
            )
        if func.namespace == "aten":
            _keep(key, infos, True)
        else:
            self._known[key] = infos
        return out


def _made(mode: Any, func: Any, info: Any, args: Any) -> Any:
    """One result, as torch's `_get_output_tensor_from_cache_entry` makes it."""
    if info.inplace_idx is not None:
        return args[info.inplace_idx]
    metadata = info.metadata
    if metadata is None:
        return info.constant_value if info.view_idx is None else None
    with torch._C._DisableTorchDispatch():
        if info.view_idx is not None:
            elem = torch.empty(0, dtype=metadata.dtype, device="meta")
            elem.set_(
                args[info.view_idx].untyped_storage(),
                metadata.storage_offset,
                metadata.shape,
                metadata.stride,
            )
        else:
            elem = torch.empty_strided(
                metadata.shape, metadata.stride, dtype=metadata.dtype, device="meta"
            )
    return _fake(mode, elem, metadata.device)


def _number(mode: Any, real: torch.Tensor) -> Any:
    """A number of the program's as a fake tensor that knows it.

    It is made as by PyTorch's `from_real_tensor(make_constant=True)`.
    """
    with torch._C._DisableTorchDispatch():
        constant = real.clone()
        elem = torch.empty((), dtype=real.dtype, device="meta")
    made = _fake(mode, elem, real.device)
    made.constant = constant
    mode.fake_tensor_converter.add_constant_storage_mapping(made)
    return made


def _fake(mode: Any, elem: torch.Tensor, device: torch.device) -> Any:
    """FakeTensor(mode, elem, device), whose attributes are the same for all tensors of a mode."""
    known = mode.__dict__.setdefault("_shardproof_attributes", {})
    attributes = known.get(device)
    if attributes is None:
        made = FakeTensor(mode, elem, device)
        known[device] = dict(made.__dict__)
        return made
    made = torch.Tensor._make_subclass(
        FakeTensor, elem, False, dispatch_device=True, device_for_backend_keys=device
    )
    (
        torch._C._set_warn_deprecated_on_mutable_data_ptr
        if mode._allow_unsafe_data_ptr_access
        else torch._C._set_throw_on_mutable_data_ptr
    )(made)
    made.__dict__.update(attributes)
    return made
