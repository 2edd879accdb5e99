"""Everything of PyTorch that is not public: other versions may have it elsewhere or not at all.

Checked with torch 2.13. `require()` is called before anything is recorded.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import sys
from typing import Any, Callable, Iterator, Protocol

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
import torch.distributed.distributed_c10d as c10d
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

__all__ = [
    "AsyncCollectiveTensor", "DTensor", "Partial", "FakeTensor", "FakeTensorMode", "TorchDispatchMode", "_StridedShard", "tree_flatten", "tree_map", "tree_unflatten",
    "VersionError", "require", "outside", "patched", "fake_group", "group_ranks", "reduction_name", "sequence_number", "current_node", "storage_key", "torch_folder",
]

SUPPORTED = ("2.13",)
torch_folder = os.path.dirname(torch.__file__)


class VersionError(RuntimeError):
    """The installed torch is not one that this front end knows."""


def require() -> None:
    """Raises VersionError for a version of torch whose internals were not checked."""
    if not torch.__version__.startswith(tuple(v + "." for v in SUPPORTED)) and os.environ.get("SHARDPROOF_ANY_TORCH") != "1":
        raise VersionError(f"shardproof.torch knows the internals of torch {', '.join(SUPPORTED)}; this is {torch.__version__}. "
                           "SHARDPROOF_ANY_TORCH=1 tries all the same")


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Real tensors and no recording inside."""
    with unset_fake_temporarily(), _disable_current_modes():
        yield


def sequence_number() -> int:
    """Of the autograd node that the running operator belongs to."""
    return torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]


def current_node() -> Any:
    """The autograd node whose backward runs, or None."""
    return torch._C._current_autograd_node()  # type: ignore[attr-defined]


def storage_key(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata


# ---- reductions: opaque objects in dispatch, so what was asked for is noted when the options are filled ----
_last_reduction: list[Any] = [None]


def reduction_name() -> tuple[str, float | None]:
    """The reduction of the collective that is being issued, and the factor of a premultiplied sum."""
    op = _last_reduction[0]
    if op is None:
        return "sum", None
    if isinstance(op, dist.ReduceOp.RedOpType):
        return op.name.lower(), None
    state = op.__getstate__()
    if op == dist.ReduceOp.PREMUL_SUM:
        return "premul_sum", float(state[1])
    for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"):
        if op == getattr(dist.ReduceOp, name):
            return name.lower(), None
    return str(op), None


def _noting(cls: type) -> type:
    class Options(cls):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _last_reduction[0] = None

        def __setattr__(self, key: str, value: Any) -> None:
            if key == "reduceOp":
                _last_reduction[0] = value
            super().__setattr__(key, value)

    return Options


def group_ranks(group: Any) -> tuple[int, ...]:
    """The ranks of a process group, as an object, a name or what dispatch hands over."""
    if isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    return tuple(dist.get_process_group_ranks(group))


# ---- patches that hold while a step is recorded ----
def _unfaked(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        with outside():
            return f(*args, **kwargs)

    return call


def _replace_everywhere(old: Any, new: Any, undo: list[tuple[Any, str, Any]]) -> None:
    """In every module that has imported the object by name."""
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is old:
                undo.append((module, name, old))
                setattr(module, name, new)


def _set(owner: Any, name: str, value: Any, undo: list[tuple[Any, str, Any]]) -> None:
    undo.append((owner, name, owner.__dict__[name] if name in vars(owner) else getattr(owner, name)))
    setattr(owner, name, value)


_all_used: list[Any] = []  # models that were wrapped with find_unused_parameters=True


def _require_all_used() -> None:
    for model in _all_used:
        for name, p in model.module.named_parameters():
            if p.requires_grad and p.grad is None:
                raise NotImplementedError(f"shardproof: DistributedDataParallel(find_unused_parameters=True) with a parameter that is not used, {name!r}, is not supported")


def _ddp(undo: list[tuple[Any, str, Any]]) -> None:
    """DistributedDataParallel: no exchange at construction; its own default all-reduce, as a hook whose future is done; no bucket rebuilding (it reads data)."""
    ddp = torch.nn.parallel.DistributedDataParallel
    original = ddp.__init__
    original_register = ddp.register_comm_hook

    class Reducer:
        def __init__(self, reducer: Any) -> None:
            self.__dict__["reducer"] = reducer

        def __getattr__(self, name: str) -> Any:
            return (lambda: False) if name == "_rebuild_buckets" else getattr(self.reducer, name)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["init_sync"] = False
        if kwargs.pop("find_unused_parameters", False):
            _all_used.append(self)  # which parameters are used is data to the reducer; it makes no difference where all are
        original(self, *args, **kwargs)

        def average(state: Any, bucket: Any) -> Any:
            buffer = bucket.buffer()
            buffer.div_(dist.get_world_size(self.process_group))
            dist.all_reduce(buffer, group=self.process_group)
            future: Any = torch.futures.Future()
            future.set_result(buffer)
            return future

        average.__annotations__.clear()  # DDP looks at them as types
        if not isinstance(self.reducer, Reducer):
            original_register(self, None, average)
            self.__dict__["_shardproof_default_hook"] = True
            self.reducer = Reducer(self.reducer)

    def register(self: Any, state: Any, hook: Any) -> None:
        raise NotImplementedError("shardproof: DistributedDataParallel with a communication hook of its own is not supported")

    _set(ddp, "__init__", init, undo)
    _set(ddp, "register_comm_hook", register, undo)


class Asynchronous(Protocol):
    """begin: a call is made; end: it was made and is (or is not) to be waited for, under the token that is returned; wait: it was waited for."""

    def begin(self) -> None: ...

    def end(self, pending: bool) -> object: ...

    def wait(self, token: object) -> None: ...


class _Pending(dist.Work):
    """What an asynchronous call returns: the operator's own work, whose wait is noted."""

    def __init__(self, work: Any, token: object, listener: Asynchronous) -> None:
        super().__init__()
        self._work, self._token, self._listener = work, token, listener

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self._listener.wait(self._token)
        return self._work.wait(*args, **kwargs)

    def block_current_stream(self, *args: Any, **kwargs: Any) -> Any:
        self._listener.wait(self._token)

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()

    def get_future(self) -> Any:
        self._listener.wait(self._token)  # whoever takes the future waits for it in ways that are not seen
        return self._work.get_future()


_ISSUING = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "broadcast", "all_to_all", "all_to_all_single", "reduce", "gather", "scatter",
            "irecv", "_all_gather_base", "_reduce_scatter_base")


def _waits(undo: list[tuple[Any, str, Any]], listener: Asynchronous) -> None:
    """Asynchronous calls give a work of ours, so that what is read before its wait is known."""
    for name in _ISSUING:
        original = getattr(c10d, name, None)
        if original is None:
            continue

        def call(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            listener.begin()
            work: Any = None
            try:
                work = _original(*args, **kwargs)
            finally:
                pending = isinstance(work, dist.Work)
                token = listener.end(pending)
            return _Pending(work, token, listener) if pending else work

        _replace_everywhere(original, functools.wraps(original)(call), undo)


def _shape_propagation(undo: list[tuple[Any, str, Any]], quiet: Callable[[], Any]) -> None:
    """DTensor finds the shapes of results by running operators on tensors of its own: no part of the program."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    for name in ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta"):
        if name in vars(ShardingPropagator):
            original = vars(ShardingPropagator)[name]

            def propagate(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                with quiet():
                    return _original(self, *args, **kwargs)

            _set(ShardingPropagator, name, propagate, undo)


class MissingMetadata(RuntimeError):
    """A pipeline's stage asks another rank for the shapes of its inputs, and that rank was not run yet. peer: that rank."""

    def __init__(self, source: int, target: int, peer: int) -> None:
        super().__init__(f"pipeline stage {target} waits for the shapes that stage {source} on rank {peer} sends, which never comes")
        self.peer = peer


Mailbox = dict[Any, Any]  # what ranks have told others while they were recorded; ("stage", sending stage, receiving stage) -> shapes


def _pipelines(undo: list[tuple[Any, str, Any]], quiet: Callable[[], Any], mailbox: Mailbox) -> None:
    """Stages that were not given shapes ask each other: answered by what the other ranks' recordings left in the mailbox, and no part of the program."""
    import torch.distributed.pipelining.schedules as schedules
    import torch.distributed.pipelining.stage as stages

    def warmup(self: Any, own: Any, has_backward: Any, p2p_done: Any) -> None:
        for stage in own:
            stage._inference_mode = schedules.InferenceMode.DYNAMIC if schedules.InferenceMode.needs_dynamic(stage._user_meta, has_backward) else schedules.InferenceMode.STATIC

    def send(self: Any, meta: Any, target: int) -> None:
        mailbox[("stage", self.stage_index, target)] = copy.deepcopy(meta)

    def receive(self: Any, source: int) -> Any:
        key = ("stage", source, self.stage_index)
        if key not in mailbox:
            raise MissingMetadata(source, self.stage_index, self._resolve_peer_global_rank(source))
        return copy.deepcopy(mailbox[key])

    forward = stages.PipelineStage._forward_metadata_inference

    def shapes(self: Any, *args: Any, **kwargs: Any) -> Any:
        with quiet():
            result = forward(self, *args, **kwargs)
        self._fwd_outputs_for_bwd_meta = self._fwd_inputs_for_bwd_meta = None
        return result

    def gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Gradients have the shapes of what they are gradients of."""
        self._stage_meta.input_grads = stages._derive_grad_metas(self._stage_meta.inputs)
        self._stage_meta.output_grads = None if self.is_last else stages._derive_grad_metas(self._stage_meta.outputs)
        return stages._StageBackwardMeta(backward_metas=self._stage_meta.input_grads)

    for cls in list(vars(schedules).values()):
        if isinstance(cls, type) and "_warmup_p2p" in vars(cls):
            _set(cls, "_warmup_p2p", warmup, undo)
    for name, f in (("_send_meta", send), ("_recv_meta", receive), ("_forward_metadata_inference", shapes), ("_backward_metadata_inference", gradients)):
        _set(stages.PipelineStage, name, f, undo)


def _deepcopy(undo: list[tuple[Any, str, Any]]) -> None:
    """copy.deepcopy of a tensor clones it: torch's own gives memory that changes its identity with every view."""

    def deepcopy(self: Any, memo: dict[Any, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("only tensors that are leaves of the graph can be copied by copy.deepcopy")
        key = ("shardproof memory", storage_key(self))
        if key in memo:
            raise NotImplementedError("shardproof: copy.deepcopy of two tensors that share memory is not supported")
        memo[key] = True
        with torch.no_grad():
            new = self.detach().clone(memory_format=torch.preserve_format)
        for name, value in self.__dict__.items():
            if name not in new.__dict__:
                new.__dict__[name] = copy.deepcopy(value, memo)
        if self.requires_grad:
            new.requires_grad_()
        if self.grad is not None:
            new.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = new
        return new

    _set(FakeTensor, "__deepcopy__", deepcopy, undo)


@contextlib.contextmanager
def patched(on_free: Callable[[int], None], on_batch: Callable[[bool], None], quiet: Callable[[], Any],
            after_backward: Callable[[], None], asynchronous: Asynchronous, mailbox: Mailbox) -> Iterator[None]:
    """All patches. mailbox: what stages of pipelines on other ranks have sent; asynchronous: is told of c10d's asynchronous calls and their waits; after_backward: called when a whole backward pass has ended; on_free: called with the key of a storage whose memory is given back; on_batch: at the begin and end of batch_isend_irecv; quiet: nothing is recorded inside."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for name in ("AllreduceOptions", "ReduceScatterOptions", "ReduceOptions", "AllreduceCoalescedOptions"):
            if hasattr(c10d, name):
                _set(c10d, name, _noting(getattr(c10d, name)), undo)
        mesh = device_mesh.DeviceMesh
        for name in ("__init__", "__getitem__", "_flatten", "_unflatten", "get_group", "get_local_rank", "size", "get_coordinate"):
            if name in vars(mesh):
                _set(mesh, name, _unfaked(vars(mesh)[name]), undo)
        _replace_everywhere(device_mesh.init_device_mesh, _unfaked(device_mesh.init_device_mesh), undo)
        old_batch = c10d.batch_isend_irecv

        @functools.wraps(old_batch)
        def batch(operations: Any) -> Any:
            on_batch(True)
            try:
                return old_batch(operations)
            finally:
                on_batch(False)

        _replace_everywhere(old_batch, batch, undo)
        storage = torch.UntypedStorage
        old_resize = storage.resize_

        def resize(self: Any, size: Any) -> Any:
            if int(size) == 0:
                on_free(self._cdata)
            return old_resize(self, size)

        _set(storage, "resize_", resize, undo)
        old_backward = torch.autograd.backward

        @functools.wraps(old_backward)
        def backward(*args: Any, **kwargs: Any) -> None:
            old_backward(*args, **kwargs)
            if current_node() is None:
                _require_all_used()
                after_backward()

        _replace_everywhere(old_backward, backward, undo)
        _waits(undo, asynchronous)
        _shape_propagation(undo, quiet)
        _all_used.clear()
        _ddp(undo)
        _pipelines(undo, quiet, mailbox)
        _deepcopy(undo)
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


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


@contextlib.contextmanager
def fake_group(rank: int, world_size: int) -> Iterator[None]:
    """A default process group that answers at once, for one rank of `world_size`. A script's own init_process_group is answered by it."""
    environment = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size),
                   "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    before = {k: os.environ.get(k) for k in environment}
    undo: list[tuple[Any, str, Any]] = []
    if dist.is_initialized():
        raise RuntimeError("shardproof: a process group exists already; record before init_process_group, or in a process of its own")
    os.environ.update(environment)
    try:
        clear_caches()
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())

        def init(*args: Any, **kwargs: Any) -> None:
            """The group is there."""

        _replace_everywhere(c10d.init_process_group, init, undo)
        destroy = c10d.destroy_process_group

        def keep(group: Any = None) -> None:
            """The group stays until the recording ends."""

        _replace_everywhere(destroy, keep, undo)
        try:
            yield
        finally:
            for owner, name, value in reversed(undo):
                setattr(owner, name, value)
            dist.destroy_process_group()
    finally:
        for k, v in before.items():
            if v is None:
                os.environ.pop(k, None)
            else:
                os.environ[k] = v


def placement_of(t: Any) -> tuple[list[tuple[int, ...]], tuple[Any, ...], tuple[int, ...], tuple[int, ...]]:
    """Of a DTensor, on this rank: for each mesh dimension the ranks of its group, the placements, the global shape, and where the local tensor starts in it."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    with outside():
        mesh = t.device_mesh
        groups = [tuple(dist.get_process_group_ranks(mesh.get_group(d))) for d in range(mesh.ndim)]
        shape, offset = compute_local_shape_and_global_offset(tuple(t.shape), mesh, t.placements)
        if tuple(shape) != tuple(t._local_tensor.shape):
            raise RuntimeError(f"shardproof: a DTensor of shape {tuple(t.shape)} with placements {t.placements} has a local tensor of shape "
                               f"{tuple(t._local_tensor.shape)}, not {tuple(shape)}")
        return groups, tuple(t.placements), tuple(int(n) for n in t.shape), tuple(int(n) for n in offset)
