# SPDX-License-Identifier: Apache-2.0
"""Everything of PyTorch that is not public: other versions may have it elsewhere or not at all.

Checked with torch 2.13 to 2.15. `require()` is called before anything is recorded.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.checkpoint import _StopRecomputationError

from .tested_versions import TESTED, those

__all__ = [
    "RECORDING",
    "AsyncCollectiveTensor",
    "DTensor",
    "FSDPState",
    "Partial",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "_StopRecomputationError",
    "_StridedShard",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
    "VersionError",
    "require",
    "outside",
    "no_stand_in_for_gpus",
    "can_differentiate",
    "hide_gpus",
    "may_have_gpus",
    "fake_group",
    "group_ranks",
    "reduction_name",
    "sequence_number",
    "current_node",
    "storage_key",
    "tensors",
    "plain",
    "initialising",
    "random_tracker",
    "torch_folder",
    "unfaked",
    "unlogged",
    "reducing",
    "flat_parameters",
    "set_attribute",
    "replace_everywhere",
]

torch_folder = os.path.dirname(torch.__file__)
_FAKE = torch._C._TorchDispatchModeKey.FAKE


_accepted = False  # another version, after a self-test (session/self_test.py)


class VersionError(RuntimeError):
    """The installed torch is not one that this front end knows."""


def versions() -> str:
    """Which versions of torch are tested, and which one this is."""
    return f"shardproof.torch is tested with {those()}; this is torch {torch.__version__}"


def is_known() -> bool:
    """Whether this version of torch is one of these, or was accepted."""
    return _accepted or str(torch.__version__).startswith(tuple(v + "." for v in TESTED))


def accept(accepted: bool = True) -> None:
    """Takes another version of torch, too; forked processes know that."""
    global _accepted
    _accepted = accepted


def require() -> None:
    """Raises VersionError for a version of torch whose internals were not checked."""
    if not is_known():
        raise VersionError(versions())


@contextlib.contextmanager
def no_stand_in_for_gpus() -> Iterator[None]:
    """Inside, a fake mode does not put a stand-in for GPUs in place, as it does where torch is
    built for them and there are none. Nothing here is on a GPU, and with GPUs autograd starts
    threads, so that forked processes could not differentiate.
    """
    original = torch._C._ensureCUDADeviceGuardSet
    torch._C._ensureCUDADeviceGuardSet = lambda: None
    try:
        yield
    finally:
        torch._C._ensureCUDADeviceGuardSet = original


# What a device's context applies to is listed once: before any of it is replaced.
_device_constructors()

# Devices of drivers, and what hides GPUs from a process that has not asked for them yet.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg", "/dev/dri")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def may_have_gpus() -> bool:
    """Whether there may be GPUs. No driver is asked: one that was cannot be used in a process that
    is forked afterwards.
    """
    built = torch.version.cuda or torch.version.hip or torch.version.xpu
    return built is not None and any(os.path.exists(path) for path in _DRIVERS)


def hide_gpus() -> None:
    """This process has none from now on, unless it has asked for them before. `os.environ` stays as
    it is for the program.
    """
    for name in _VISIBLE:
        os.putenv(name, "-1")


def can_differentiate() -> bool:
    """Not in a process that was forked when autograd had threads for GPUs."""
    with outside():
        try:
            (torch.ones((), requires_grad=True) * 2).backward()
        except RuntimeError:
            return False
    return True


class outside:
    """Inside, tensors are real and nothing is recorded.

    It does what PyTorch's `unset_fake_temporarily` and `_disable_current_modes` do. It has no
    generators, as it is entered for every tensor that is read or written.
    """

    __slots__ = ("_fake", "_modes")

    def __enter__(self) -> None:
        self._fake = torch._C._unset_dispatch_mode(_FAKE)
        self._modes = [
            torch._C._pop_torch_dispatch_stack(None)
            for _ in range(torch._C._len_torch_dispatch_stack())
        ]

    def __exit__(self, *args: Any) -> None:
        for mode in reversed(self._modes):
            torch._C._push_on_torch_dispatch_stack(mode)
        if self._fake is not None:
            torch._C._set_dispatch_mode(self._fake)


def sequence_number() -> int:
    """Of the autograd node that the running operator belongs to."""
    return int(torch.autograd._get_sequence_nr()) - 1


def current_node() -> Any:
    """The autograd node whose backward runs, or None."""
    return torch._C._current_autograd_node()


def plain(t: torch.Tensor) -> torch.Tensor | None:
    """The tensor that a transformation of torch.func has wrapped.

    None where it stands for several.
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if torch._C._functorch.is_batchedtensor(t):
            return None
        t = torch._C._functorch.get_unwrapped(t)
    return t


def tensors(*operands: Any) -> list[torch.Tensor]:
    """All tensors among operands, in lists and dictionaries, too."""
    found: list[torch.Tensor] = []
    for x in operands:
        if isinstance(x, torch.Tensor):
            found.append(x)
        elif isinstance(x, (list, tuple)):
            found += tensors(*x)
        elif isinstance(x, dict):
            found += tensors(*x.values())
    return found


def initialising() -> bool:
    """Whether torch.nn.init runs."""
    f: Any = sys._getframe(1)
    while f is not None:
        if f.f_code.co_filename == torch.nn.init.__file__:
            return True
        f = f.f_back
    return False


def storage_key(t: torch.Tensor) -> int:
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return int(t.untyped_storage()._cdata)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Errors of fake operators reach the program; they are not logged beside that."""
    before, fake_tensor.log.disabled = fake_tensor.log.disabled, True
    try:
        yield
    finally:
        fake_tensor.log.disabled = before


# ---- reductions: opaque objects in dispatch, so the reduction is noted when the group is
# called ----
_reduction: list[Any] = []


@contextlib.contextmanager
def reducing(args: Any, kwargs: Any) -> Iterator[None]:
    """A method of a process group is called with these arguments, which name the reduction."""
    found = [
        x.reduceOp if hasattr(x, "reduceOp") else x
        for x in (*args, *kwargs.values())
        if hasattr(x, "reduceOp") or isinstance(x, (dist.ReduceOp, dist.ReduceOp.RedOpType))
    ]
    _reduction.append(found[0] if found else dist.ReduceOp.SUM)
    try:
        yield
    finally:
        _reduction.pop()


def reduction_name() -> tuple[str, float | None]:
    """The reduction of the collective that is being issued, and the factor of a premultiplied sum.

    Raises RuntimeError for a collective that no method of Python's issues.
    """
    if not _reduction:
        raise RuntimeError("a reduction that C++ issues, of which is not known what it computes")
    op = _reduction[-1]
    if isinstance(op, dist.ReduceOp.RedOpType):
        return op.name.lower(), None
    state = op.__getstate__()
    if op == dist.ReduceOp.PREMUL_SUM:
        return "premul_sum", float(state[1])
    for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"):
        if op == getattr(dist.ReduceOp, name):
            return name.lower(), None
    return str(op), None


DEPENDS_ON_DATA = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
)


class GroupRanks(tuple[int, ...]):
    """The ranks of a process group.

    which: the index of the group among the groups of these ranks, in the order of their creation.
    Each is a communicator of its own.
    """

    which: int = 0


def group_ranks(group: Any) -> GroupRanks:
    """The ranks of a process group, as an object, a name or what dispatch hands over."""
    if isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    ranks = GroupRanks(dist.get_process_group_ranks(group))
    same_ranks = [
        pg.group_name
        for pg in c10d._world.pg_names
        if tuple(dist.get_process_group_ranks(pg)) == ranks
    ]
    ranks.which = same_ranks.index(group.group_name) if group.group_name in same_ranks else 0
    return ranks


# ---- patches that hold while a step is recorded ----
# owner, name and earlier value of each attribute that was replaced
Undo = list[tuple[Any, str, Any]]


@contextlib.contextmanager
def changes() -> Iterator[Undo]:
    """A list for replace_everywhere and set_attribute, whose changes are undone at the end."""
    undo: Undo = []
    try:
        yield undo
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def unfaked(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        with outside():
            return f(*args, **kwargs)

    return call


class _LoadedModules:
    """Notices that sys.modules has changed by its length and its last key.

    To look at each module would write its count of references: in a forked process that copies the
    memory of all of them, which takes longer than to record a small step.
    """

    def __init__(self) -> None:
        self._seen: tuple[int, str] = (0, "")

    def changed(self) -> bool:
        """Whether any were loaded since the last call."""
        now = (len(sys.modules), next(reversed(sys.modules)))
        before, self._seen = self._seen, now
        return now != before


_of_places, _of_results = _LoadedModules(), _LoadedModules()
# by id: an object, how many modules were looked through, and which of them had it by which name
_found: dict[int, tuple[Any, int, list[tuple[Any, str]]]] = {}
_modules: dict[int, Any] = {}  # all that were seen, by id, in the order in which they were


def _places(wanted: list[Any]) -> list[list[tuple[Any, str]]]:
    """The modules that have each of these objects, and under which name.

    One pass over the modules that are new finds any number of objects. A script goes on to import
    names, and is looked through each time.
    """
    script = sys.modules.get("__main__")
    if _of_places.changed():
        new = [m for m in list(sys.modules.values()) if id(m) not in _modules and m is not script]
        _modules.update({id(m): m for m in new})
    count = len(_modules)
    looking: dict[int, dict[int, list[tuple[Any, str]]]] = {}  # from which module on, for what
    for x in wanted:
        known = _found.get(id(x))
        if known is None or known[0] is not x:
            known = (x, 0, [])
        _found[id(x)] = (x, count, known[2])
        if known[1] < count:
            looking.setdefault(known[1], {})[id(x)] = known[2]
    for first, places in looking.items():
        for module in list(_modules.values())[first:]:
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if id(value) in places:
                    places[id(value)].append((module, name))
    return [
        _found[id(x)][2] + [(script, name) for name, y in list(vars(script).items()) if y is x]
        if script is not None
        else _found[id(x)][2]
        for x in wanted
    ]


def replace_everywhere(pairs: list[tuple[Any, Any]], undo: Undo) -> None:
    """Each first object by the second one, in every module that has imported it by name."""
    script = sys.modules.get("__main__")
    for (old, new), places in zip(pairs, _places([old for old, _ in pairs])):
        for module, name in places:
            if vars(module).get(name) is old:
                undo.append((module, name, old))
                setattr(module, name, new)
        if "<locals>" in getattr(new, "__qualname__", ""):
            # A function made for this is nowhere else: it need not be looked for when it is
            # replaced in its turn. In a forked process a pass over all modules copies their memory.
            at = [(module, name) for module, name in places if module is not script]
            _found[id(new)] = (new, len(_modules), at)


def set_attribute(owner: Any, name: str, value: Any, undo: Undo) -> None:
    undo.append(
        (owner, name, owner.__dict__[name] if name in vars(owner) else getattr(owner, name))
    )
    setattr(owner, name, value)


@contextlib.contextmanager
def random_tracker(tracker: Any) -> Iterator[None]:
    """DTensor queries the tracker for the place of random numbers."""
    import torch.distributed.tensor._random as random

    before, random._rng_tracker = random._rng_tracker, tracker
    try:
        yield
    finally:
        random._rng_tracker = before


def clear_caches() -> None:
    """DTensor remembers how it redistributes by the mesh's sizes, not by the rank."""
    import torch.distributed.tensor._redistribute as redistribute
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()
    for name in ("_gen_transform_infos", "_gen_transform_infos_non_cached"):
        f = getattr(redistribute, name, None)
        clear = getattr(f, "cache_clear", None)
        if clear is not None:
            clear()
    if hasattr(redistribute, "clear_redistribute_planner_cache"):
        redistribute.clear_redistribute_planner_cache()


def _asked_by_torch() -> bool:
    """Whether a module of PyTorch called the function that calls this."""
    caller = str(sys._getframe(2).f_globals.get("__name__", ""))
    return caller == "torch" or caller.startswith("torch.")


RECORDING = "SHARDPROOF_RECORDING"  # is set in the environment while a step is recorded


@contextlib.contextmanager
def fake_group(rank: int, world_size: int, begun: bool) -> Iterator[list[tuple[int, ...]]]:
    """A default process group of fake collectives, for one rank of `world_size`.

    A script's own init_process_group finds it. begun: the group is there from the start. Else the
    program does not see it before that call; PyTorch itself does. Yields the list of the groups
    (their ranks) that it creates, in order. Real groups wait for all ranks to create each of them,
    unless `use_local_synchronization` is set.
    """
    made: list[tuple[int, ...]] = []
    backends: dict[Any, str] = {}  # by group, None for the default one
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        RECORDING: "1",
    }
    before = {k: os.environ.get(k) for k in environment}
    excepthook = sys.excepthook  # each init_process_group puts one around the last
    if dist.is_initialized():
        raise RuntimeError(
            "shardproof: a process group exists already; record before init_process_group, or in a "
            "process of its own"
        )
    os.environ.update(environment)
    try:
        clear_caches()
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())

        is_initialized, get_backend = c10d.is_initialized, c10d.get_backend

        def init(backend: Any = None, *args: Any, **kwargs: Any) -> None:
            """The group is there."""
            nonlocal begun
            begun = True
            if isinstance(backend, str):
                backends[None] = backend

        def initialized() -> bool:
            return is_initialized() and (begun or _asked_by_torch())

        def backend_of(group: Any = None) -> Any:
            """The one that was requested."""
            if _asked_by_torch():
                return get_backend(group)
            default = group is None or group is c10d.GroupMember.WORLD
            of_default = backends.get(None, "gloo")
            return of_default if default else backends.get(id(group), of_default)

        destroy = c10d.destroy_process_group

        def keep(group: Any = None) -> None:
            """The group stays until the recording ends."""
            nonlocal begun
            begun = begun and group is not None

        new_group = c10d.new_group

        @functools.wraps(new_group)
        def group(
            ranks: Any = None,
            timeout: Any = None,
            backend: Any = None,
            pg_options: Any = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            """Whatever backend is requested, the group is a fake one."""
            kwargs.pop("device_id", None)
            if not (args[0] if args else kwargs.get("use_local_synchronization")):
                made.append(tuple(ranks) if ranks is not None else tuple(range(world_size)))
            group = new_group(ranks, None, None, None, *args[:2], **kwargs)
            if isinstance(backend, str):
                backends[id(group)] = backend
            return group

        try:
            with changes() as undo:
                replace_everywhere(
                    [
                        (c10d.init_process_group, init),
                        (destroy, keep),
                        (new_group, group),
                        (is_initialized, initialized),
                        (get_backend, backend_of),
                    ],
                    undo,
                )
                yield made
        finally:
            dist.destroy_process_group()
    finally:
        sys.excepthook = excepthook
        for k, v in before.items():
            if v is None:
                os.environ.pop(k, None)
            else:
                os.environ[k] = v


def python_body(func: Any) -> Any:
    """The function that computes an operator of `torch.library.custom_op` on a CPU; None for any
    other operator.
    """
    from torch._library.custom_ops import OPDEFS

    name = func.name().partition(".")[0]
    found = OPDEFS.get(name)
    if found is None:
        return None
    return found._backend_fns.get("cpu") or found._backend_fns.get(None) or found._init_fn


def strided_rows(t: Any) -> tuple[int, tuple[int, ...]] | None:
    """A dimension of a DTensor of which this rank has rows that do not follow each other (fused
    weights, `_StridedShard`), and these rows. None for any other DTensor.
    """
    strided = [p for p in t.placements if isinstance(p, _StridedShard)]
    if not strided:
        return None
    dim = strided[0].dim % t.dim()
    with outside():
        rows = torch.arange(t.shape[dim])
        at = t.device_mesh.get_coordinate()
        for i, p in enumerate(t.placements):
            if not p.is_replicate() and not p.is_partial() and p.dim % t.dim() == dim:
                # its own dimension is the only one here
                alone = (
                    _StridedShard(0, split_factor=p.split_factor)
                    if isinstance(p, _StridedShard)
                    else type(p)(0)
                )
                pieces, _ = alone._split_tensor(
                    rows, t.device_mesh.size(i), with_padding=False, contiguous=True
                )
                rows = pieces[at[i]]
        found = tuple(rows.tolist())
    if len(found) != t._local_tensor.shape[dim] or not found:
        return None
    return None if found == tuple(range(found[0], found[0] + len(found))) else (dim, found)


def placement_of(
    t: Any,
) -> tuple[list[tuple[int, ...]], tuple[Any, ...], tuple[int, ...], tuple[int, ...]]:
    """The placement of a DTensor on this rank.

    Returns, for each mesh dimension, the ranks of its group; the placements; the global shape; and
    the offset of the local tensor in it, in elements. Raises RuntimeError for an inconsistent
    DTensor.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    with outside():
        mesh = t.device_mesh
        groups = [tuple(dist.get_process_group_ranks(mesh.get_group(d))) for d in range(mesh.ndim)]
        shape, offset = compute_local_shape_and_global_offset(tuple(t.shape), mesh, t.placements)
        if tuple(shape) != tuple(t._local_tensor.shape):
            raise RuntimeError(
                f"shardproof: a DTensor of shape {tuple(t.shape)} with placements {t.placements} "
                "has a local tensor of shape "
                f"{tuple(t._local_tensor.shape)}, not {tuple(shape)}"
            )
        return (
            groups,
            tuple(t.placements),
            tuple(int(n) for n in t.shape),
            tuple(int(n) for n in offset),
        )


def flat_parameters(
    module: torch.nn.Module,
) -> Iterator[tuple[torch.nn.Parameter, list[tuple[str, tuple[int, ...], int, int, int]]]]:
    """The parameters of a module of FSDP's first version that are parts of its flat parameter, or
    that one.

    Yields with each its entries: (name, shape, offset in the rank's tensor, first element, number
    of elements).
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    handle = module._handle if isinstance(module, FullyShardedDataParallel) else None
    if handle is None:
        return
    flat = handle.flat_param
    if handle.uses_sharded_strategy:
        where = [
            (i.offset_in_shard, i.intra_param_start_idx, i.numel_in_shard)
            if i.in_shard
            else (0, 0, 0)
            for i in flat._shard_param_infos
        ]
    else:
        offsets = [
            low
            for (low, _), padding in zip(handle._get_flat_param_offsets(), flat._is_padding_mask)
            if not padding
        ]
        where = [(low, 0, n) for low, n in zip(offsets, flat._numels)]
    entries = [
        (name, tuple(int(n) for n in shape), *place)
        for name, shape, place in zip(flat._fqns, flat._shapes, where)
    ]
    if flat._params is None:
        yield flat, entries
    elif handle.uses_sharded_strategy:  # else they have their own shapes
        for p, (name, shape, _, start, count) in zip(flat._params, entries):
            yield p, [(name, shape, 0, start, count)]


def gathered_parameters(root: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The parameters that FSDP2 has gathered and put in the places of its parts."""
    from torch.distributed.fsdp import FSDPModule

    for module in root.modules():
        if isinstance(module, FSDPModule):
            for group in module._get_fsdp_state()._fsdp_param_groups:
                yield from (
                    p._unsharded_param for p in group.fsdp_params if hasattr(p, "_unsharded_param")
                )


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    """torch.backends.mkldnn.flags(enabled=False), without its setting of TF32 and its warning."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def forget_results() -> None:
    """Clears the functools caches of modules that are neither PyTorch's nor Python's.

    A result that one rank's run left there is no other rank's.
    """
    if _of_results.changed():
        _with_results[:] = [n for n in list(sys.modules) if n.partition(".")[0] not in _OTHERS]
    for name in _with_results:
        module = sys.modules.get(name)
        if not isinstance(module, types.ModuleType):
            continue
        for value in list(vars(module).values()):
            inside = (
                list(vars(value).values())
                if issubclass(type(value), type) and vars(value).get("__module__") == name
                else []
            )
            for f in (value, *inside):
                f = f.__func__ if type(f) in (classmethod, staticmethod) else f
                if type(f) is functools._lru_cache_wrapper:
                    f.cache_clear()


_with_results: list[str] = []  # names of the modules that are looked through
_OTHERS = frozenset(
    {
        "torch",
        "torchgen",
        "functorch",
        "shardproof",
        "numpy",
        "sympy",
        "mpmath",
        *sys.stdlib_module_names,
    }
) - {"__main__"}
