# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel while a step is recorded. As private as `compat.private`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import utils
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..compat.private import Undo, replace_everywhere, set_attribute
from .hooks import Hooks

# DistributedDataParallel with find_unused_parameters=True, by id
_may_be_unused: dict[int, Any] = {}
# parameters that the last forward of such a model did not use, and had no gradient
_unused_now: list[tuple[Any, str]] = []


class _Touch(torch.autograd.Function):
    """The identity, with gradients of zero for parameters that are not used."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *unused: torch.Tensor) -> torch.Tensor:
        ctx.shapes = [(p.shape, p.dtype) for p in unused]
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
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
    """The output, whose backward gives gradients of zero to parameters that were not used.

    That is what the reducer does, whichever part of the output the loss is computed of. A parameter
    that no rank used keeps the gradient that it had.
    """
    leaves, spec = tree_flatten(output)
    tensors = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if not tensors or not torch.is_grad_enabled() or not model.require_backward_grad_sync:
        return output
    reached = _reached(tensors)
    unused = [
        (n, p)
        for n, p in model.module.named_parameters()
        if p.requires_grad and id(p) not in reached
    ]
    for name, p in unused:
        note(name)
        if p.grad is None:
            _unused_now.append((p, name))
    if not unused:
        return output
    touched = [
        _Touch.apply(t, *[p for _, p in unused])
        if isinstance(t, torch.Tensor) and t.requires_grad
        else t
        for t in leaves
    ]
    return tree_unflatten(touched, spec)


def forget_unused() -> None:
    """A recording begins."""
    _may_be_unused.clear()
    _unused_now.clear()


def after_backward() -> None:
    """A backward pass has ended: gradients that no rank computed become None."""
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


def patch_ddp(undo: Undo, hooks: Hooks) -> None:
    """DistributedDataParallel reports what it gives to all ranks at construction.

    Its default all-reduce is a communication hook whose future is done, until the user registers
    one. It does not rebuild buckets, which reads data.
    """
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
        # devices: all are the CPU here
        args = (args[0], *(None for _ in args[1:3]), *args[3:]) if args else args
        kwargs.update({k: None for k in ("device_ids", "output_device") if k in kwargs})
        # which parameters are used is data to the reducer (of a static graph, too, in its first
        # step): here those that are not are used with zeros
        if any([kwargs.pop("find_unused_parameters", False), kwargs.pop("static_graph", False)]):
            _may_be_unused[id(self)] = self
        original(self, *args, **kwargs)
        hooks.synchronised([], self.process_group, 0)
        if gives:
            utils._sync_module_states(
                self.module,
                self.process_group,
                0,
                0,
                self.parameters_to_ignore,
                kwargs.get("forward_sync_buffers") is not None or self.forward_sync_buffers,
            )
        if not isinstance(self.reducer, Reducer):
            ours = [(None, _mean_over_ranks(self.process_group))]
            self.__dict__["_shardproof_hooks"] = ours

            def run(state: Any, bucket: Any) -> Any:
                given, hook = ours[-1]
                return hook(given, bucket)

            run.__annotations__.clear()  # DDP looks at them as types
            original_register(self, None, run)
            self.reducer = Reducer(self.reducer)

    def register(self: Any, state: Any, hook: Any) -> None:
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")
        if len(self._shardproof_hooks) > 1:
            raise RuntimeError(
                "register_comm_hook or register_builtin_comm_hook can only be called once."
            )
        self._shardproof_hooks.append((state, hook))

    def register_builtin(self: Any, kind: Any) -> None:
        # with half precision or without: casts are the identity
        register(self, None, _mean_over_ranks(self.process_group))

    def sync(
        group: Any, tensors: Sequence[torch.Tensor], size: int, src: int, **options: Any
    ) -> None:
        hooks.synchronised(tensors, group, src)

    replace_everywhere([(utils._sync_params_and_buffers, sync)], undo)
    original_post = ddp._post_forward

    def post_forward(self: Any, output: Any) -> Any:
        return original_post(
            self, _touched(self, output, hooks.unused) if id(self) in _may_be_unused else output
        )

    set_attribute(ddp, "_post_forward", post_forward, undo)
    set_attribute(ddp, "__init__", init, undo)
    set_attribute(ddp, "register_comm_hook", register, undo)
    set_attribute(ddp, "_register_builtin_comm_hook", register_builtin, undo)
