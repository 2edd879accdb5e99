# SPDX-License-Identifier: Apache-2.0
"""What is changed in torch while a step is recorded: DistributedDataParallel, waits, pipelines, deep copies, meshes. As private as `_private`."""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from typing import Any, Callable, Iterator, Protocol, Sequence

import torch
import torch.distributed as dist
import torch.distributed.device_mesh as device_mesh
import torch.distributed.distributed_c10d as c10d
import torch.distributed.utils as utils
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..compat.context_parallel import on_cpu
from ..compat.data_loading import Dealing, in_this_process
from .devices import Devices, OnCPU
from .data_number import DataDependent
from ..compat.private import changes, current_node, reducing, replace_everywhere, set_attribute, storage_key, unfaked
from ..compat.refusals import fail
from ..distributed.mailbox import Mailbox, MissingMetadata

_may_be_unused: dict[int, Any] = {}  # DistributedDataParallel with find_unused_parameters=True, by id
_unused_now: list[tuple[Any, str]] = []  # parameters that the last forward of such a model did not use, and had no gradient


class _Touch(torch.autograd.Function):
    """The identity, with gradients of zero for parameters that are not used."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *unused: torch.Tensor) -> torch.Tensor:
        ctx.shapes = [(p.shape, p.dtype) for p in unused]
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return (grad, *[torch.zeros(shape, dtype=dtype) for shape, dtype in ctx.shapes])


def _reached(outputs: list[torch.Tensor]) -> set[int]:
    """Ids of the leaves whose gradients the outputs' backward makes."""
    todo, seen, leaves = [t.grad_fn for t in outputs if t.grad_fn is not None], set(), set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        todo += [n for n, _ in node.next_functions if n is not None]
    return leaves


def _touched(model: Any, output: Any, note: Callable[[str], None]) -> Any:
    """What the reducer does with parameters that were not used: they count as gradients of zero, and what no rank used keeps what it had."""
    leaves, spec = tree_flatten(output)
    tensors = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if not tensors or not torch.is_grad_enabled() or not model.require_backward_grad_sync:
        return output
    reached = _reached(tensors)
    unused = [(n, p) for n, p in model.module.named_parameters() if p.requires_grad and id(p) not in reached]
    for name, p in unused:
        note(name)
        if p.grad is None:
            _unused_now.append((p, name))
    if not unused:
        return output
    first = next(i for i, t in enumerate(leaves) if isinstance(t, torch.Tensor) and t.requires_grad)
    leaves[first] = _Touch.apply(leaves[first], *[p for _, p in unused])
    return tree_unflatten(leaves, spec)


def _circular(old: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch.nn.functional.pad: circular padding as parts of the tensor, one beside the other. ATen writes it piece by piece, and reads what it has not written yet."""

    @functools.wraps(old)
    def pad(input: torch.Tensor, pad: Any, mode: str = "constant", value: Any = None) -> torch.Tensor:
        sides = [(d, int(before), int(behind)) for d, before, behind in zip(range(-1, -len(pad), -1), pad[::2], pad[1::2])]
        if mode != "circular" or any(not 0 <= n <= input.shape[d] for d, before, behind in sides for n in (before, behind)):
            return old(input, pad, mode, value)
        for d, before, behind in sides:
            n = input.shape[d]
            input = torch.cat([input.narrow(d, n - before, before), input, input.narrow(d, 0, behind)], d)
        return input

    return pad


def _after_ddp() -> None:
    for p, _ in _unused_now:
        p.grad = None
    _unused_now.clear()


def _mean_over_ranks(group: Any) -> Callable[[Any, Any], Any]:
    """What DistributedDataParallel does without a communication hook, as one."""

    def average(state: Any, bucket: Any) -> Any:
        buffer = bucket.buffer()
        buffer.div_(dist.get_world_size(group))
        dist.all_reduce(buffer, group=group)
        future: Any = torch.futures.Future()
        future.set_result(buffer)
        return future

    return average


def _ddp(undo: list[tuple[Any, str, Any]], unused: Callable[[str], None], synchronised: Callable[[Sequence[torch.Tensor], Any, int], None]) -> None:
    """DistributedDataParallel: what it gives to all ranks at construction is told of; its own default all-reduce as a hook whose future is done, until the user registers one; no bucket rebuilding (it reads data)."""
    ddp = torch.nn.parallel.DistributedDataParallel
    original = ddp.__init__
    original_register = ddp.register_comm_hook

    class Reducer:
        def __init__(self, reducer: Any) -> None:
            self.__dict__["reducer"] = reducer

        def __getattr__(self, name: str) -> Any:
            return (lambda: False) if name == "_rebuild_buckets" else getattr(self.reducer, name)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        gives = kwargs.get("init_sync", True)
        kwargs["init_sync"] = False
        args = (args[0], *(None for _ in args[1:3]), *args[3:]) if args else args  # devices: all are the CPU here
        kwargs.update({k: None for k in ("device_ids", "output_device") if k in kwargs})
        # which parameters are used is data to the reducer (of a static graph, too, in its first step): here those that are not are used with zeros
        if any([kwargs.pop("find_unused_parameters", False), kwargs.pop("static_graph", False)]):
            _may_be_unused[id(self)] = self
        original(self, *args, **kwargs)
        synchronised([], self.process_group, 0)
        if gives:
            utils._sync_module_states(self.module, self.process_group, 0, 0, self.parameters_to_ignore, kwargs.get("forward_sync_buffers") is not None or self.forward_sync_buffers)
        if not isinstance(self.reducer, Reducer):
            hooks = [(None, _mean_over_ranks(self.process_group))]
            self.__dict__["_shardproof_hooks"] = hooks

            def run(state: Any, bucket: Any) -> Any:
                given, hook = hooks[-1]
                return hook(given, bucket)

            run.__annotations__.clear()  # DDP looks at them as types
            original_register(self, None, run)
            self.reducer = Reducer(self.reducer)

    def register(self: Any, state: Any, hook: Any) -> None:
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        if len(self._shardproof_hooks) > 1:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._shardproof_hooks.append((state, hook))

    def register_builtin(self: Any, kind: Any) -> None:
        register(self, None, _mean_over_ranks(self.process_group))  # with half precision or without: casts are the identity

    def sync(group: Any, tensors: Sequence[torch.Tensor], size: int, src: int, **options: Any) -> None:
        synchronised(tensors, group, src)

    replace_everywhere([(utils._sync_params_and_buffers, sync)], undo)
    original_post = ddp._post_forward

    def post_forward(self: Any, output: Any) -> Any:
        return original_post(self, _touched(self, output, unused) if id(self) in _may_be_unused else output)

    set_attribute(ddp, "_post_forward", post_forward, undo)
    set_attribute(ddp, "__init__", init, undo)
    set_attribute(ddp, "register_comm_hook", register, undo)
    set_attribute(ddp, "_register_builtin_comm_hook", register_builtin, undo)


class Asynchronous(Protocol):
    """begin: a call is made; end: it was made and is (or is not) to be waited for, under the token that is returned; wait: it was waited for; given_away: it is waited for in ways that are not seen."""

    def begin(self) -> None: ...

    def end(self, pending: bool) -> object: ...

    def wait(self, token: object) -> None: ...

    def given_away(self, token: object) -> None: ...


class _Pending(dist.Work):
    """What an asynchronous call returns: the operator's own work, whose wait is noted."""

    def __init__(self, work: Any, token: object, listener: Asynchronous, written: list[torch.Tensor]) -> None:
        super().__init__()
        self._work, self._token, self._listener, self._written = work, token, listener, written

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self._listener.wait(self._token)
        return self._work.wait(*args, **kwargs)

    def block_current_stream(self, *args: Any, **kwargs: Any) -> Any:
        self._listener.wait(self._token)

    def is_completed(self) -> bool:
        raise DataDependent("the program asks whether communication is done (Work.is_completed()): what it does next depends on time")

    def is_success(self) -> bool:
        return self._work.is_success()

    def get_future(self) -> Any:
        """A future that is done, with what the operator writes: whoever takes it waits for it in ways that are not seen."""
        self._listener.given_away(self._token)
        future: Any = torch.futures.Future()
        future.set_result(self._written)
        return future


class _Several(dist.Work):
    """Of several asynchronous calls that are waited for together."""

    def __init__(self, works: list[Any]) -> None:
        super().__init__()
        self._works = works

    def wait(self, *args: Any, **kwargs: Any) -> bool:
        for work in self._works:
            work.wait(*args, **kwargs)
        return True

    def is_completed(self) -> bool:
        return True


def _first_tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """What a method of a process group writes: the tensors of its first operand that has any."""
    for operand in (*args, *kwargs.values()):
        found = [t for t in tree_flatten(operand)[0] if isinstance(t, torch.Tensor)]
        if found:
            return found
    return []


_METHODS = ("allreduce", "allgather", "allgather_coalesced", "all_gather_single", "_allgather_base", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "broadcast", "alltoall",
            "alltoall_base", "all_to_all_single", "reduce", "gather", "scatter")
_COALESCED = {"allreduce_coalesced": "allreduce", "all_gather_single_coalesced": "all_gather_single", "allgather_into_tensor_coalesced": "all_gather_single",
              "reduce_scatter_single_coalesced": "reduce_scatter_single", "reduce_scatter_tensor_coalesced": "reduce_scatter_single"}
_MESSAGES = ("irecv", "isend")


def _waits(undo: list[tuple[Any, str, Any]], listener: Asynchronous) -> None:
    """Methods of process groups, which all of torch.distributed calls, give a work of ours, so that what is read before its wait is known; so do messages (not the group's own: a batch calls them, too)."""

    def issuing(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            listener.begin()
            work: Any = None
            try:
                with reducing(args, kwargs):
                    work = original(*args, **kwargs)
            finally:
                pending = isinstance(work, dist.Work)
                token = listener.end(pending)
            if not pending:
                return work
            ours = _Pending(work, token, listener, _first_tensors(args, kwargs))
            if args and id(args[0]) in together:
                together[id(args[0])].append(ours)
            return ours

        return call

    def start(group: Any, *args: Any) -> None:
        together[id(group)] = []

    def end(group: Any, *args: Any) -> Any:
        return _Several(together.pop(id(group), []))

    together: dict[int, list[Any]] = {}  # what a group has begun since it was told to take calls together, which are waited for at once
    for name, f in (("_start_coalescing", start), ("_end_coalescing", end)):
        set_attribute(dist.ProcessGroup, name, f, undo)

    def one_by_one(single: str) -> Any:
        """Fake tensors have no coalesced collectives: each of theirs."""

        def call(self: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if single == "allreduce":
                options = c10d.AllreduceOptions()
                options.reduceOp = next((x.reduceOp for x in (*args, *kwargs.values()) if hasattr(x, "reduceOp")), dist.ReduceOp.SUM)
                return _Several([self.allreduce([t], options) for t in tensors])
            return _Several([getattr(self, single)(out, source, *args[1:], **kwargs) for out, source in zip(tensors, args[0])])

        return call

    for name, single in _COALESCED.items():
        if hasattr(dist.ProcessGroup, name):
            set_attribute(dist.ProcessGroup, name, one_by_one(single), undo)
    for name in _METHODS:
        if hasattr(dist.ProcessGroup, name):
            set_attribute(dist.ProcessGroup, name, issuing(getattr(dist.ProcessGroup, name)), undo)
    replace_everywhere([(getattr(c10d, name), issuing(getattr(c10d, name))) for name in _MESSAGES], undo)


def _shape_propagation(undo: list[tuple[Any, str, Any]], quiet: Callable[[], Any]) -> None:
    """DTensor finds the shapes of results by running operators on tensors of its own: no part of the program."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    for name in ("_propagate_tensor_meta_non_cached", "_propagate_tensor_meta"):
        if name in vars(ShardingPropagator):
            original = vars(ShardingPropagator)[name]

            def propagate(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                with quiet():
                    return _original(self, *args, **kwargs)

            set_attribute(ShardingPropagator, name, propagate, undo)


def _sharding_strategies(undo: list[tuple[Any, str, Any]]) -> None:
    """DTensor's strategies of an operator are a function of its operands' placements and shapes: found once for the hundreds of parameters of a foreach operator, of which most are alike."""
    import torch.distributed.tensor._ops.utils as utils
    import torch.distributed.tensor._sharding_prop as propagation
    from torch.distributed.tensor._op_schema import OpStrategy

    original = utils.expand_to_full_mesh_op_strategy
    known: dict[Any, Any] = {}

    @functools.wraps(original)
    def expand(mesh: Any, op_schema: Any, single: Any, **options: Any) -> Any:
        operands = (*op_schema.args_strategy, *op_schema.kwargs_strategy)
        simple = options.get("is_valid_strategy_cb") is None and options.get("different_mesh_args") is None and not op_schema.is_out_variant_op()
        if not simple or any(len(operand.strategies) != 1 for operand in operands):
            return original(mesh, op_schema, single, **options)
        specs = tuple((spec, spec.tensor_meta, spec.shard_order) for spec in (operand.strategies[0].output_spec for operand in operands))
        try:
            key = (mesh, op_schema.op, specs, tuple(map(tuple, single)), tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(options.items())))
            if key not in known:
                known[key] = original(mesh, op_schema, single, **options).strategies
        except TypeError:  # an operand that has no hash
            return original(mesh, op_schema, single, **options)
        return OpStrategy(list(known[key]))

    flags = propagation._propagate_use_strided_shard_flag
    looked_through: list[Any] = [None, False]  # the operator that was last asked about, and whether there is anything to do

    @functools.wraps(flags)
    def propagate_flags(op_strategy: Any, op_schema: Any) -> None:
        if looked_through[0] is not op_schema:  # asked for each tensor of a foreach operator, about all of them
            looked_through[:] = op_schema, any(isinstance(p, propagation._StridedShard) for spec in op_schema.args_spec for p in spec.placements)
        if looked_through[1]:
            flags(op_strategy, op_schema)

    replace_everywhere([(original, expand), (flags, propagate_flags)], undo)


def _pipelines(undo: list[tuple[Any, str, Any]], unmarked: Callable[[], Any], mailbox: Mailbox) -> None:
    """Stages that were not given shapes ask each other: answered by what the other ranks' recordings left in the mailbox. The forward that finds them out is a part of the program, for what it leaves in buffers and caches."""
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
            peer = self._resolve_peer_global_rank(source)
            raise MissingMetadata(f"pipeline stage {self.stage_index} waits for the shapes that stage {source} on rank {peer} sends, which never comes", peer)
        return copy.deepcopy(mailbox[key])

    forward = stages.PipelineStage._forward_metadata_inference

    def shapes(self: Any, *args: Any, **kwargs: Any) -> Any:
        with unmarked():
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
            set_attribute(cls, "_warmup_p2p", warmup, undo)
    for name, f in (("_send_meta", send), ("_recv_meta", receive), ("_forward_metadata_inference", shapes), ("_backward_metadata_inference", gradients)):
        set_attribute(stages.PipelineStage, name, f, undo)


class Pieces(Sequence[torch.Tensor]):
    """The pieces that torch.chunk cuts a tensor into, and as many empty ones as it has fewer: each cut when it is asked for."""

    def __init__(self, tensor: torch.Tensor, pieces: int, dim: int) -> None:
        self._tensor, self._pieces, self._dim = tensor, pieces, dim

    def __len__(self) -> int:
        return self._pieces

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(self._pieces))]
        i = range(self._pieces)[i]
        extent = self._tensor.size(self._dim)
        most = -(-extent // self._pieces)
        start = min(i * most, extent)
        if extent and start == extent:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(most, extent - start))


def _fsdp(undo: list[tuple[Any, str, Any]], unreduced: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    """FSDP2 tells of a gathered parameter's gradient when it is about to be reduced; of the pieces of a parameter it makes those that it takes."""
    from torch.distributed.fsdp._fully_shard import _fsdp_common
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    replace_everywhere([(_fsdp_common._chunk_with_empty, Pieces)], undo)

    original = FSDPParam._get_grad_inner_tensor

    def inner(self: Any, grad: torch.Tensor) -> torch.Tensor:
        local = original(self, grad)
        if not self.mesh_info.is_spmd_mesh:
            unreduced(self._unsharded_param, local)
        return local

    set_attribute(FSDPParam, "_get_grad_inner_tensor", inner, undo)


def _eager(undo: list[tuple[Any, str, Any]]) -> None:
    """torch.compile, torch.jit.script and torch.jit.trace compile nothing.

    What they give (for torch.compile with its names of parameters) runs eagerly.
    """

    def compile(model: Any = None, **options: Any) -> Any:
        return torch._dynamo.disable(model) if model is not None else torch._dynamo.disable  # type: ignore[no-untyped-call]

    def compile_module(self: torch.nn.Module, *args: Any, **options: Any) -> None:
        """Stays as it is."""

    def uncompiled(obj: Any, *args: Any, **options: Any) -> Any:
        return obj

    replace_everywhere([(torch.compile, compile), (torch.jit.script, uncompiled), (torch.jit.trace, uncompiled)], undo)
    set_attribute(torch.nn.Module, "compile", compile_module, undo)


def _deepcopy(undo: list[tuple[Any, str, Any]]) -> None:
    """copy.deepcopy of a tensor clones it: torch's own gives memory that changes its identity with every view."""

    def deepcopy(self: Any, memo: dict[Any, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("only tensors that are leaves of the graph can be copied by copy.deepcopy")
        key = ("shardproof memory", storage_key(self))
        if key in memo:
            raise fail(NotImplementedError("shardproof: copy.deepcopy of two tensors that share memory is not supported"))
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

    set_attribute(FakeTensor, "__deepcopy__", deepcopy, undo)


def _format(undo: list[tuple[Any, str, Any]]) -> None:
    """f"{loss:.3f}" prints a number; torch knows only of plain tensors that they are."""

    def as_text(self: Any, spec: str) -> str:
        return self.item().__format__(spec) if self.dim() == 0 else object.__format__(self, spec)

    set_attribute(FakeTensor, "__format__", as_text, undo)


@contextlib.contextmanager
def patched(on_free: Callable[[int], None], on_batch: Callable[[Sequence[Any] | None], None], quiet: Callable[[], Any],
            after_backward: Callable[[], None], asynchronous: Asynchronous, mailbox: Mailbox, unused: Callable[[str], None], known: Callable[[Any], Any],
            unreduced: Callable[[torch.Tensor, torch.Tensor], None], unmarked: Callable[[], Any], synchronised: Callable[[Sequence[torch.Tensor], Any, int], None], dealing: Dealing, devices: Devices) -> Iterator[None]:
    """All patches. devices: is told of what lies on "cuda"; dealing: of samples; synchronised: called with what DistributedDataParallel or FSDP's first version gives to all ranks of a group when it is made, and by which of them; unreduced: called with a parameter that FSDP2 gathered and its gradient, before it is reduced; known: a constant tensor's numbers, which say which ranks a mesh has; unused: called with the name of each parameter that DistributedDataParallel finds not used; mailbox: what stages of pipelines on other ranks have sent; asynchronous: is told of c10d's asynchronous calls and their waits; after_backward: called when a whole backward pass has ended; on_free: called with the key of a storage whose memory is given back; on_batch: at the beginning (with the operations) and the end (None) of batch_isend_irecv; quiet: nothing is recorded inside; unmarked: what modules compute inside is no part of what the single device computes."""
    with changes() as undo:
        mesh = device_mesh.DeviceMesh
        for name in ("__init__", "__getitem__", "_flatten", "_unflatten", "get_group", "get_local_rank", "size", "get_coordinate"):
            if name in vars(mesh):
                set_attribute(mesh, name, unfaked(vars(mesh)[name]), undo)
        old_batch = c10d.batch_isend_irecv

        @functools.wraps(old_batch)
        def batch(operations: Any) -> Any:
            on_batch(operations)
            try:
                return old_batch(operations)
            finally:
                on_batch(None)

        storage = torch.UntypedStorage
        old_resize = storage.resize_

        def resize(self: Any, size: Any) -> Any:
            if int(size) == 0:
                on_free(self._cdata)
            return old_resize(self, size)

        set_attribute(storage, "resize_", resize, undo)
        old_backward = torch.autograd.backward

        @functools.wraps(old_backward)
        def backward(*args: Any, **kwargs: Any) -> None:
            old_backward(*args, **kwargs)
            if current_node() is None:
                _after_ddp()
                after_backward()

        old_run = torch.autograd.graph._engine_run_backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            with OnCPU(devices):  # Tensor.backward has left the mode that is around the step
                return old_run(*args, **kwargs)

        make, old_init = unfaked(device_mesh.init_device_mesh), mesh.__init__

        def init_device_mesh(device_type: Any, *args: Any, **kwargs: Any) -> Any:
            return make("cpu", *args, **kwargs)

        def mesh_init(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
            old_init(self, "cpu", *[known(x) for x in args], **{k: known(x) for k, x in kwargs.items()})

        set_attribute(mesh, "__init__", mesh_init, undo)
        replace_everywhere([(device_mesh.init_device_mesh, init_device_mesh), (old_batch, batch), (old_backward, backward), (old_run, run_backward), (torch.nn.functional.pad, _circular(torch.nn.functional.pad))], undo)
        _waits(undo, asynchronous)
        set_attribute(torch.utils, "weakref", types.SimpleNamespace(getweakrefs=lambda t: []), undo)  # fake tensors are referred to by their mode: module.to_empty() swaps them all the same
        _shape_propagation(undo, quiet)
        _sharding_strategies(undo)
        _may_be_unused.clear()
        _unused_now.clear()
        _ddp(undo, unused, synchronised)
        _pipelines(undo, unmarked, mailbox)
        _deepcopy(undo)
        _format(undo)
        _eager(undo)
        _fsdp(undo, unreduced)
        in_this_process(undo, dealing)
        on_cpu(undo)
        set_attribute(torch.distributions.Distribution, "_validate_args", False, undo)  # what it looks at is data; nothing is computed differently
        yield
