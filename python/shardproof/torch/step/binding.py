# SPDX-License-Identifier: Apache-2.0
"""Finds models, their parameters and their optimizers while a step runs.

It uses PyTorch's global hooks, and is the same for recording and for real processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.modules import module as nn_module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.optim import optimizer as optim

from ..compat import private
from ..compat.refusals import tried
from ..intercept.data_number import DataNumber
from .flat_parameters import Stretch, stretches

# What is in a group of an optimizer's parameters and does not determine the next step's numbers:
# parameters, steps that were made, and by which code it runs.
NOT_COMPARED = frozenset({"params", "step", "foreach", "fused", "capturable", "differentiable"})
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def _holds_tensors(value: Any) -> bool:
    """Whether it is a list or a dictionary with tensors in it."""
    return isinstance(value, (list, tuple, dict)) and bool(private.tensors(value))


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What lists and dictionaries of tensors hold, with its place: ("Q.0", tensor)."""
    if _holds_tensors(value):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            yield from _parts(f"{name}.{key}", part)
    elif not isinstance(value, (list, tuple, dict)) or value:
        yield name, value


class Gone(Exception):
    """A parameter is no part of its model any more."""


def _is_number(v: Any) -> bool:
    return (
        isinstance(v, (torch.Tensor, DataNumber))
        or isinstance(v, (bool, int, float))
        and math.isfinite(v)
    )


def _named_now(root: nn.Module, clean: Callable[[str], str]) -> dict[str, torch.Tensor]:
    """The tensors in the modules of a model by names without wrappers: parameters, and what
    replaced them.
    """
    found: dict[str, torch.Tensor] = {}
    for path, m in root.named_modules(remove_duplicate=False):
        for key, t in [*vars(m).items(), *m._buffers.items(), *m._parameters.items()]:
            if isinstance(t, torch.Tensor):
                found[clean(f"{path}.{key}" if path else key)] = t
    return found


def _being_made() -> bool:
    """Whether a module is under construction.

    It then calls a part of it to see what shapes it gives, or a parametrization to check it.
    """
    f: Any = sys._getframe(2)
    while f is not None:
        if (
            f.f_code.co_name == "__init__"
            and f.f_code.co_varnames
            and isinstance(f.f_locals.get(f.f_code.co_varnames[0]), nn.Module)
        ):
            return True
        f = f.f_back
    return False


def _local(t: torch.Tensor) -> torch.Tensor:
    return t._local_tensor if isinstance(t, private.DTensor) else t


def _has_memory(t: torch.Tensor) -> bool:
    """Whether memory identifies the tensor.

    A parameter that is not made yet, or of which this rank has no elements, has none.
    """
    return (
        not torch.nn.parameter.is_lazy(t) and t.layout == torch.strided and 0 not in _local(t).shape
    )


@dataclasses.dataclass
class _AroundStep:
    """A gradient, and what it held before and after a step of an optimizer."""

    parameter: nn.Parameter
    gradient: torch.Tensor
    before: Any
    after: Any
    optimizer: str


def _parameters_of(optimizer: optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


class Listener(Protocol):
    """What is done with what is found.

    now: what a tensor holds; same: whether two such are one; hold: puts it back.
    """

    def bound(self, parameters: dict[str, nn.Parameter]) -> None: ...

    def buffers(self, buffers: dict[str, tuple[torch.Tensor, bool]]) -> None: ...

    def states(
        self, optimizer: optim.Optimizer, states: list[tuple[str, str, torch.Tensor, nn.Parameter]]
    ) -> None: ...

    def fresh(self, optimizer: optim.Optimizer, why: str) -> None: ...

    def alone(self, tensors: dict[str, torch.Tensor]) -> None: ...

    def quiet(self) -> Any: ...

    def now(self, t: torch.Tensor) -> Any: ...

    def same(self, a: Any, b: Any) -> bool: ...

    def hold(self, t: torch.Tensor, what: Any) -> None: ...

    def forward(
        self, name: str, module: nn.Module, args: Any, output: Any, final: bool
    ) -> None: ...


class Binding:
    """Names of everything that was found.

    A parameter's name is that in `named_parameters` of the outermost module that has it, without
    wrappers, whichever part is called first. Models that have parameters of one name are told apart
    by the order in which they were made, unless `world.parameters` has named them: with one seed,
    the same parameters of two processes are those that are made at the same place. Whether the
    ranks make the same models as the single device is checked where it matters (`order`).
    """

    def __init__(self, listener: Listener, primes: bool = True) -> None:
        """primes: the state of optimizers is an input of the step, and made before it."""
        self.listener, self.primes = listener, primes
        self.parameters: dict[str, nn.Parameter] = {}
        # of a parameter, and of each further name of it: the model, what names there are without
        # wrappers, and its own
        self._places: dict[str, tuple[nn.Module, Callable[[str], str], str]] = {}
        self._same: dict[str, str] = {}  # further names of parameters (tied ones) -> the first one
        # models, and what theirs is called without wrappers
        self._kept: list[tuple[nn.Module, Callable[[str], str]]] = []
        # module and what the buffer is there -> its name
        self._buffers: dict[tuple[int, str], str] = {}
        self.shards: dict[str, dict[str, int]] = {}
        self.stretches: dict[str, list[Stretch]] = {}  # of parameters in flat ones
        self.modules: dict[int, str] = {}
        self.optimizers: list[optim.Optimizer] = []
        # what optimizers change that is no called module's
        self.alone: dict[str, torch.Tensor] = {}
        self._stepped: list[optim.Optimizer] = []  # those that hold no others
        self._holders: list[optim.Optimizer] = []  # the others
        self.without_step = False  # a script's optimizers make no step in what is recorded
        self._primed: list[optim.Optimizer] = []  # those whose state is an input
        # of each parameter: its gradient around its optimizer's last step
        self._gradients: dict[int, _AroundStep] = {}
        self.stack: list[str] = []
        self._roots: list[nn.Module] = []
        self._made: list[weakref.ref[nn.Parameter]] = []
        # those that were called with computed tensors in place of parameters
        self._lent: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # modules, and what they were made parts of
        self._inside: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[nn.Module]]] = (
            weakref.WeakKeyDictionary()
        )
        # modules in the order in which they were made
        self._there: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._counted = itertools.count()
        # of models
        self._prefixes: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        # those that no one has named, in the order in which they were made: prefixes, and names of
        # what each has
        self._models: list[tuple[weakref.ref[nn.Module], str, frozenset[str]]] = []
        self._taken: set[str] = set()  # names with prefixes
        # models of which only parts were called, or used
        self._partly: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._read: dict[int, torch.Tensor] = {}  # leaves of autograd that were computed with
        self._owners: dict[int, weakref.ref[nn.Module]] | None = None  # of parameters, by id
        # memory of what models hold that are not taken in yet
        self._not_kept: dict[int, nn.Module] | None = None
        self.made_optimizers: list[optim.Optimizer] = []
        self.priming = False
        self.begun = False  # the step has its inputs, or a model was called

    def shard_of(self, name: str) -> dict[str, int] | None:
        return self.shards.get(name)

    def held(self) -> dict[str, torch.Tensor]:
        """What the models have now by the names of their parameters.

        A step may put another tensor or module there. What FSDP2 gathered stands for its parameter.
        Further names of a parameter are included where they are another tensor by now. Raises Gone.
        """
        now = {id(root): _named_now(root, clean) for root, clean, _ in self._places.values()}
        gathered = {id(p) for p in self.gathered()}
        found: dict[str, torch.Tensor] = {}
        for name, (root, _, path) in self._places.items():
            p = self.parameters[self._same.get(name, name)]
            held = now[id(root)].get(path)
            if held is None and name not in self.stretches:
                raise Gone(f"the model has no parameter {name!r} any more at the end of the step")
            found[name] = (
                p if held is None or name in self.stretches or id(held) in gathered else held
            )
        return {
            name: t
            for name, t in found.items()
            if name not in self._same or t is not found[self._same[name]]
        }

    def further_names(self) -> list[str]:
        """Of parameters that models have more than once: "first name as other name"."""
        return [*self._same]

    def parameters_now(self) -> list[torch.Tensor]:
        """The parameters, and what stands in their places now, where something does."""
        try:
            held = list(self.held().values())
        except Gone:
            held = []
        return [*self.parameters.values(), *held]

    def gathered(self) -> list[torch.Tensor]:
        """Whole parameters as FSDP2 has them."""
        return [p for root, _ in self._kept for p in private.gathered_parameters(root)]

    def models(self) -> list[nn.Module]:
        """Those that were taken in."""
        return [root for root, _ in self._kept]

    def buffers(self) -> dict[str, tuple[torch.Tensor, bool]]:
        """Buffers of all models as their modules have them now, and whether each is saved with the
        model.

        A cache is not saved.
        """
        found: dict[str, tuple[torch.Tensor, bool]] = {}
        for i, (root, clean) in enumerate(self._kept):
            for path, m in root.named_modules():
                for key, b in m._buffers.items():
                    if b is None or torch.nn.parameter.is_lazy(b):
                        continue
                    name = self._buffers.get((id(m), key))
                    if name is None:
                        name = self._prefix(root, clean) + clean(f"{path}.{key}" if path else key)
                        if name in self._buffers.values():
                            name = f"model{i}.{name}"
                        self._buffers[id(m), key] = name
                    found[name] = b, key not in m._non_persistent_buffers_set
        return found

    def of_optimizers(self) -> dict[str, Any]:
        """What optimizers change beside parameters of modules that were called.

        Those are other tensors, and the numbers that they go by in the next step.
        """
        bound = {id(p) for p in self.parameters.values()}
        found: dict[str, Any] = {name: p for name, p in self.alone.items() if id(p) not in bound}
        own = self.made_optimizers if self.without_step else self._stepped
        settings = {f"optimizer{i}": self._groups_of(o) for i, o in enumerate(own)}
        # Those that hold others have groups of their own, which a scheduler may change.
        theirs = {id(group) for groups in settings.values() for group in groups}
        for i, o in enumerate(self._holders):
            groups = [group for group in o.param_groups if id(group) not in theirs]
            settings[f"optimizer{len(own) + i}"] = groups
        for prefix, groups in settings.items():
            for j, group in enumerate(groups):
                for key, value in group.items():
                    if key not in NOT_COMPARED:
                        parts = (
                            {f".{k}": v for k, v in enumerate(value)}
                            if isinstance(value, (tuple, list))
                            else {"": value}
                        )
                        found.update(
                            {
                                f"{prefix}.groups.{j}.{key}{k}": v
                                for k, v in parts.items()
                                if _is_number(v)
                            }
                        )
        return found

    def _groups_of(self, optimizer: optim.Optimizer) -> list[dict[str, Any]]:
        """Its groups of parameters, with the settings that its next step takes."""
        # Importing it makes PyTorch warn; who holds one has done so.
        sharded = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
        for holder in self._holders:
            # its step begins with copying its own settings into those of the optimizer it holds
            copies = sharded is not None and isinstance(holder, sharded.ZeroRedundancyOptimizer)
            if copies and getattr(holder, "optim", None) is optimizer:
                return list(holder.param_groups)
        return list(optimizer.param_groups)

    def later_states(
        self, known: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], tuple[torch.Tensor, nn.Parameter]]:
        """States that optimizers create in the step itself, of parameters of modules.

        By (parameter, name of the state), beside those that are known.
        """
        names = {id(p): n for n, p in self.parameters.items()}
        have = set(known)
        return {
            (name, "." + key): (value, p)
            for o in self._primed
            for p, state in o.state.items()
            if (name := names.get(id(p))) is not None
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and key != "step" and (name, "." + key) not in have
        }

    def other_states(self) -> Iterator[tuple[optim.Optimizer, str, Any]]:
        """State that is no tensor, of optimizers whose tensors of state are inputs: (optimizer,
        name, state).
        """
        names = {id(p): n for n, p in self.parameters.items()}
        for o in self._primed:
            for p, state in o.state.items():
                for key, value in (
                    state.items() if isinstance(state, dict) and id(p) in names else ()
                ):
                    if key != "step" and not isinstance(value, torch.Tensor):
                        yield o, f"state {key} of {names[id(p)]}", value

    def first_states(self) -> Iterator[tuple[optim.Optimizer, str, torch.Tensor, str, Any]]:
        """State of optimizers whose state was not made an input.

        (optimizer, name of the parameter, parameter, name of the state, state)
        """
        names = {
            **{id(p): n for n, p in self.alone.items()},
            **{id(p): n for n, p in self.parameters.items()},
        }
        for o in self._stepped:
            if not any(o is primed for primed in self._primed):
                for p, state in o.state.items():
                    for key, value in state.items() if id(p) in names else ():
                        if key != "step":
                            for path, part in _parts(key, value):
                                yield o, names[id(p)], p, path, part

    def _keep(self, root: nn.Module, clean: Callable[[str], str]) -> None:
        """Its buffers are looked at from here on."""
        before = set(self._buffers.values())
        self._kept.append((root, clean))
        self.listener.buffers({n: found for n, found in self.buffers().items() if n not in before})

    def bind(
        self,
        root: nn.Module,
        shard: Mapping[str, Mapping[str, int]] | None = None,
        called: str = "",
    ) -> None:
        """Takes a model in: its parameters and buffers hold the step's inputs from here on.

        called: what their names begin with. Raises ValueError for names that cannot be told apart.
        """
        if any(root is r for r in self._roots):
            known = True
        else:
            known = False
            self._roots.append(root)
        clean = self._clean(root)

        def clean_module(name: str) -> str:
            return clean(name + ".").removesuffix(".")

        if called:
            self._call(root, called)
        prefix = self._prefix(root, clean)
        names = {prefix + clean(n): p for n, p in root.named_parameters() if self._is_own(p)}
        already = {id(p) for p in self.parameters.values()}
        new = {n: p for n, p in names.items() if id(p) not in already}
        if any(n in self.parameters for n in new):
            new = {f"model{len(self._roots)}.{n}": p for n, p in new.items()}
        first = {id(p): n for n, p in new.items()}
        own = {id(p): clean(n) for n, p in root.named_parameters()}
        for n, p in root.named_parameters(remove_duplicate=False):
            if id(p) in first:
                name = first[id(p)] if clean(n) == own[id(p)] else f"{first[id(p)]} as {clean(n)}"
                self._places[name] = root, clean, clean(n)
                if name != first[id(p)]:
                    self._same[name] = first[id(p)]
        for n, p in new.items():
            self._note_shard(n, own[id(p)], shard)
        for n, _ in root.named_buffers():
            self._note_shard(prefix + clean(n), clean(n), shard)
        lent = root in self._lent
        if any(not self._is_own(p) for p in root.parameters()):
            self._lent.add(root)  # some of its parameters are elsewhere while it is called now
        else:
            self._lent.discard(root)
        if known and not shard and not (lent and new):
            return
        flat = stretches(root, lambda n: prefix + clean(n))
        self.stretches.update({n: flat[id(p)] for n, p in new.items() if id(p) in flat})
        for n, m in root.named_modules():
            n = clean_module(n)
            if isinstance(m, FullyShardedDataParallel):
                n = ""  # the module inside has the name
            if id(m) not in self.modules:
                self.modules[id(m)] = (prefix + n).removesuffix(".")
                if n:
                    m.register_forward_hook(self._after_own(self.modules[id(m)]))
        self.parameters.update(new)
        self.begun = True
        self._not_kept = None
        self.listener.bound(new)
        self._keep(root, clean)

    @staticmethod
    def _clean(root: nn.Module) -> Callable[[str], str]:
        """What the names of a model's parameters and buffers are without wrappers."""
        data_parallel = [
            f"{path}." if path else ""
            for path, m in root.named_modules()
            if isinstance(m, nn.parallel.DistributedDataParallel)
        ]

        def clean(name: str) -> str:
            for path in reversed(data_parallel):
                if name.startswith(f"{path}module."):
                    name = path + name[len(path) + len("module.") :]
            for wrapper in _WRAPPERS:
                name = name.replace(wrapper, "")
            return name

        return clean

    # ---- models, and what distinguishes them ----
    def _call(self, root: nn.Module, name: str) -> None:
        """`world.parameters` names a model."""
        given = f"{name}."
        before = self._prefixes.get(root)
        if before == given:
            return
        if before is not None and any(where is root for where, _, _ in self._places.values()):
            raise ValueError(
                f"world.parameters(name={name!r}): the model was used before, as "
                f"{before.removesuffix('.')!r}"
                if before
                else f"world.parameters(name={name!r}): the model was used before"
            )
        for i, (model, prefix, names) in enumerate(self._models):
            if model() is root:
                self._taken -= {prefix + n for n in names}
                del self._models[i]
                break
        self._prefixes[root] = given

    def _prefix(self, root: nn.Module, clean: Callable[[str], str]) -> str:
        """What the names of a model begin with: nothing, unless an earlier model has the same
        names.
        """
        if root not in self._prefixes:
            mine = {id(p) for p in root.parameters()}
            for model in self._made_models():
                # put together anew, under the names of the whole
                part = model is not root and mine.issuperset(map(id, model.parameters()))
                if model not in self._prefixes and not part:
                    self._count(model, self._clean(model))
            if root not in self._prefixes:
                self._count(root, clean, part=self._outermost(root) is not root)
        return self._prefixes[root]

    def _count(self, model: nn.Module, clean: Callable[[str], str], part: bool = False) -> None:
        names = frozenset(
            clean(n) for n, _ in itertools.chain(model.named_parameters(), model.named_buffers())
        )
        prefixes = itertools.chain([""], (f"model{k}." for k in itertools.count(2)))
        if part and not self._taken.isdisjoint(names):
            raise ValueError(
                f"several models have a parameter or buffer {min(self._taken & names)!r}, and one "
                'of them is a part of another model: world.parameters(model, name="...") tells '
                "them apart"
            )
        prefix = next(p for p in prefixes if self._taken.isdisjoint(p + n for n in names))
        self._prefixes[model] = prefix
        self._models.append((weakref.ref(model), prefix, names))
        self._taken.update(prefix + n for n in names)

    def _made_models(self) -> list[nn.Module]:
        """The outermost modules of all that have parameters or buffers.

        They are in the order in which the first module of each was made.
        """
        found: dict[nn.Module, None] = {}
        for m in list(self._there):
            if any(
                t is not None for t in itertools.chain(m._parameters.values(), m._buffers.values())
            ):
                found.setdefault(self._outermost(m))
        return list(found)

    def _notice(self, module: nn.Module) -> None:
        self._owners = self._not_kept = None
        if module not in self._there:
            self._there[module] = next(self._counted)

    def _note_shard(
        self, name: str, own: str, shard: Mapping[str, Mapping[str, int]] | None
    ) -> None:
        for pattern, where in (shard or {}).items():
            if re.fullmatch(pattern, own) or re.fullmatch(pattern, name):
                self.shards[name] = dict(where)
                return

    def _after_own(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if private.current_node() is None:
                self.listener.forward(name, module, (), output, final=True)

        return hook

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """The hooks are in place inside."""
        handles = [
            nn_module.register_module_forward_pre_hook(self._before),
            nn_module.register_module_forward_hook(self._after, always_call=True),
            optim.register_optimizer_step_pre_hook(self._before_step),
            optim.register_optimizer_step_post_hook(self._after_step),
            nn_module.register_module_module_registration_hook(self._registered),
            nn_module.register_module_parameter_registration_hook(self._parameter_made),
            nn_module.register_module_buffer_registration_hook(self._buffer_made),
        ]
        unshard, pre_forward, set_state, make = (
            FSDPModule.unshard,
            private.FSDPState._pre_forward,
            nn.Module.__setstate__,
            optim.Optimizer.__init__,
        )
        infer = LazyModuleMixin._infer_parameters

        def bind_whole(module: Any) -> None:
            """What is gathered before a model is called first is gathered of the step's inputs,
            too.
            """
            if isinstance(module, nn.Module) and id(module) not in self.modules and not self.stack:
                self.bind(self._whole(module))

        def before_unshard(module: FSDPModule, *args: Any, **kwargs: Any) -> Any:
            bind_whole(module)
            return unshard(module, *args, **kwargs)

        def before_forward(state: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
            bind_whole(module)  # by a method that was registered as a forward
            return pre_forward(state, module, args, kwargs)

        def copied(module: nn.Module, state: Any) -> None:
            set_state(module, state)
            self._notice(module)
            for p in module._parameters.values():
                self._parameter_made(module, "", p)
            for part in module._modules.values():
                self._registered(module, "", part)

        def made(optimizer: optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            self.made_optimizers.append(optimizer)
            make(optimizer, *args, **kwargs)

        def inferred(lazy: Any, *args: Any, **kwargs: Any) -> None:
            """A lazy module has its parameters from its first call on, when its model is taken in
            already.
            """
            infer(lazy, *args, **kwargs)
            model = self._whole(lazy)
            if any(model is r for r in self._roots):
                self.bind(model)

        try:
            with private.changes() as undo:
                private.set_attribute(LazyModuleMixin, "_infer_parameters", inferred, undo)
                private.set_attribute(FSDPModule, "unshard", before_unshard, undo)
                private.set_attribute(private.FSDPState, "_pre_forward", before_forward, undo)
                private.set_attribute(nn.Module, "__setstate__", copied, undo)
                private.set_attribute(optim.Optimizer, "__init__", made, undo)
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _parameter_made(self, module: nn.Module, name: str, p: nn.Parameter | None) -> None:
        if p is not None:
            self._made.append(weakref.ref(p))
            self._notice(module)

    def _buffer_made(self, module: nn.Module, name: str, b: torch.Tensor | None) -> None:
        if module._buffers.get(name) is not None and self.begun and not _being_made():
            self._change(module)  # a new one takes its place
        self._notice(module)

    def _is_own(self, p: torch.Tensor) -> bool:
        """Whether it is a parameter, or its memory is one's.

        It is none where it was computed and put in a parameter's place for a call
        (torch.func.functional_call), or is of a lazy module and not made yet.
        """
        if torch.nn.parameter.is_lazy(p):
            return False
        while torch._C._functorch.is_functorch_wrapped_tensor(p):
            if torch._C._functorch.is_batchedtensor(p):
                return False
            p = torch._C._functorch.get_unwrapped(p)
        if isinstance(p, nn.Parameter):
            return True
        return p.grad_fn is None and any(
            private.storage_key(q) == private.storage_key(p)
            for made in self._made
            if (q := made()) is not None and not isinstance(q, private.DTensor)
        )

    def _registered(self, module: nn.Module, name: str, part: nn.Module | None) -> None:
        if part is not None:
            self._inside.setdefault(part, []).append(weakref.ref(module))
            self._notice(module)

    def _outermost(self, part: nn.Module) -> nn.Module:
        """The module that a module is a part of, of which that is a part, and so on.

        Of several it is the first that it was made a part of.
        """
        seen = {part}
        while True:
            outer = next(
                (
                    m
                    for r in self._inside.get(part, ())
                    if (m := r()) is not None
                    and m not in seen
                    and any(q is part for q in m._modules.values())
                ),
                None,
            )
            if outer is None:
                return part
            part = outer
            seen.add(part)

    def _whole(self, part: nn.Module) -> nn.Module:
        """The model whose names the parameters of a module have.

        Where it was put together of parts of another model (a stage of a pipeline, a wrapper), that
        is this other model.
        """
        holder = next((m for m in part.modules() if m._parameters), part)
        outer, here = self._outermost(holder), self._outermost(part)
        if outer is here:
            return here
        theirs = {id(p) for p in outer.parameters()}
        return outer if all(id(p) in theirs for p in part.parameters()) else here

    def reads(self, tensors: Iterable[Any]) -> None:
        """An operator is about to compute with these outside of backward.

        A parameter may be one of a model that is never called.
        """
        for t in tensors:
            if isinstance(t, (list, tuple)):
                self.reads(t)
            elif (
                isinstance(t, torch.Tensor)
                and t.requires_grad
                and t.is_leaf
                and id(t) not in self._read
                and (self.begun or self._owner(t) is None)
            ):
                self._read[id(t)] = t
                self._use(t)

    def _use(self, p: torch.Tensor) -> None:
        if any(
            p is q for q in self.parameters.values()
        ) or torch._C._functorch.is_functorch_wrapped_tensor(p):
            return
        owner = self._owner(p)
        if owner is None or id(owner) in self.modules or _being_made():
            return
        model = self._whole(owner)
        if not any(model is r for r in self._roots):
            self._partly.add(model)
            self.bind(model)

    def _owner(self, p: torch.Tensor) -> nn.Module | None:
        if self._owners is None:
            self._owners = {
                id(q): weakref.ref(m)
                for m in list(self._there)
                for q in m._parameters.values()
                if q is not None
            }
        owner = self._owners.get(id(p), lambda: None)()
        return (
            owner if owner is not None and any(q is p for q in owner._parameters.values()) else None
        )

    def writes(self, tensors: Iterable[torch.Tensor], differentiated: bool) -> None:
        """An operator is about to write these after the step has its inputs.

        They are buffers, and parameters after a backward; before it parameters are being made.
        """
        if self.priming or not differentiated and _being_made():
            return
        for t in tensors:
            if self._not_kept is None:
                self._not_kept = self._memory_of_others()
            module = self._not_kept.get(private.storage_key(_local(t)))
            if module is not None and not (differentiated and _being_made()):
                holds = any(
                    private.storage_key(_local(b)) == private.storage_key(_local(t))
                    for b in module._buffers.values()
                    if b is not None
                )
                if holds or differentiated:
                    self._change(module, parameters=not holds)

    def uses(self, tensors: Iterable[torch.Tensor]) -> None:
        """An operator is about to compute with these after a script's optimizers have stepped.

        A model may be used whose parameters nothing has read: an average of weights that is loaded
        into another model.
        """
        for t in tensors:
            if self._not_kept is None:
                self._not_kept = self._memory_of_others()
            module = self._not_kept.get(private.storage_key(_local(t)))
            if module is not None and not _being_made():
                self._change(module, parameters=True)

    def _memory_of_others(self) -> dict[int, nn.Module]:
        return {
            private.storage_key(_local(t)): m
            for m in list(self._there)
            if id(m) not in self.modules
            for t in itertools.chain(m._parameters.values(), m._buffers.values())
            if t is not None and _has_memory(t)
        }

    def _change(self, module: nn.Module, parameters: bool = False) -> None:
        """What a module holds that was never called is about to be changed."""
        model = self._whole(module)
        if parameters and not any(model is r for r in self._roots):
            self._partly.add(model)
            self.bind(model)
        elif not parameters and all(model is not root for root, _ in self._kept):
            self._keep(model, self._clean(model))
            self._not_kept = None

    def order(self) -> list[tuple[str, frozenset[str]]]:
        """Models without a name of the user's, in the order in which they were made.

        For each, what its names begin with, and which these are. Left out are those whose
        parameters have the names of another model.
        """
        holder = {
            id(p): self._places[n][0] for n, p in self.parameters.items() if n in self._places
        }

        def elsewhere(model: nn.Module | None) -> bool:
            theirs = [holder.get(id(p)) for p in model.parameters()] if model is not None else []
            return bool(theirs) and all(h is not None and h is not model for h in theirs)

        return [(prefix, names) for ref, prefix, names in self._models if not elsewhere(ref())]

    def not_taken_in(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers of models of which nothing was called, used or changed."""
        known = {id(p) for p in (*self.parameters.values(), *self.gathered())}
        return {
            f"{type(model).__name__} {name}": t
            for model in self._made_models()
            if all(model is not root for root, _ in self._kept)
            for name, t in itertools.chain(model.named_parameters(), model.named_buffers())
            if id(t) not in known and _has_memory(t)
        }

    def left_alone(self) -> frozenset[str]:
        """Names in models that were made, and of which nothing was called, used or changed."""
        taken = {id(root) for root, _ in self._kept}
        return frozenset(
            prefix + n
            for ref, prefix, names in self._models
            if id(ref()) not in taken
            for n in names
        )

    def only_used(self, name: str) -> bool:
        """Whether only parts of a parameter's model were called."""
        return self._places[name][0] in self._partly if name in self._places else False

    def model_of(self, name: str) -> nn.Module:
        """The model that has a parameter, or a further name of one."""
        return self._places[name][0]

    def has(self, module: nn.Module) -> bool:
        """Whether a module is a part of a model that was taken in."""
        return any(module is m for root, _ in self._kept for m in root.modules())

    def leaves_read(self) -> list[torch.Tensor]:
        """Leaves of autograd that were computed with and are no parameters of models that were
        taken in.

        Whole parameters that FSDP gathered of these are none, either.
        """
        known = {id(p) for p in [*self.parameters.values(), *self.gathered()]}
        return [t for t in self._read.values() if id(t) not in known]

    def idle_optimizers(self) -> list[optim.Optimizer]:
        """Those that have parameters to train and never stepped."""
        return [
            o
            for o in self.made_optimizers
            if all(o is not d for d in self.optimizers)
            and any(
                p.requires_grad for group in getattr(o, "param_groups", ()) for p in group["params"]
            )
        ]

    def _before(self, module: nn.Module, args: Any) -> None:
        if id(module) not in self.modules or module in self._lent:
            if not self.stack and any(True for _ in module.parameters()) and not _being_made():
                model = self._whole(module)
                if model is not module and not any(model is r for r in self._roots):
                    self._partly.add(model)
                self.bind(model)
            elif (
                not self.stack
                and any(True for _ in module.buffers())
                and all(module is not root for root, _ in self._kept)
            ):
                self._change(module)
        if not self.stack:
            self._partly.discard(module)
        self.stack.append(self.modules.get(id(module), ""))

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        name = self.modules.get(id(module), "")
        while self.stack:
            if self.stack.pop() == name:
                break
        if name and output is not None and private.current_node() is None:
            self.listener.forward(name, module, args, output, final=False)

    def _after_step(self, optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.priming:
            return
        for p in _parameters_of(optimizer):
            found = self._gradients.get(id(p))
            if found is not None and p.grad is found.gradient:
                found.after = self.listener.now(p.grad)

    def take_back_gradients(self) -> list[str]:
        """Gradients that an optimizer's step changed become what they were before it, as they are
        what the step was given. Returns the names of such optimizers.
        """
        changed: dict[str, None] = {}
        for found in self._gradients.values():
            t = found.parameter.grad
            if (
                t is None
                or t is not found.gradient
                or self.listener.same(found.before, found.after)
                or not self.listener.same(found.after, self.listener.now(t))
            ):
                continue
            self.listener.hold(t, found.before)
            changed[found.optimizer] = None
        return list(changed)

    def _before_step(self, optimizer: optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.priming:
            return
        for p in _parameters_of(optimizer):
            if p.grad is not None:
                now = self.listener.now(p.grad)
                self._gradients[id(p)] = _AroundStep(p, p.grad, now, now, type(optimizer).__name__)
        if any(optimizer is o for o in self.optimizers):
            return
        self.optimizers.append(optimizer)
        if any(
            isinstance(o, optim.Optimizer)
            for held in vars(optimizer).values()
            for o in (held if isinstance(held, (list, tuple)) else (held,))
        ):
            # ZeroRedundancyOptimizer, torchtitan's OptimizersContainer: those that it holds have
            # the state
            self._holders.append(optimizer)
            return
        mine = _parameters_of(optimizer)
        for p in mine:
            self._use(p)
        names = {id(p): n for n, p in self.parameters.items()}
        alone = [
            p for p in mine if id(p) not in names and not any(p is q for q in self.alone.values())
        ]
        named = {f"optimizer{len(self._stepped)}.{i}": p for i, p in enumerate(alone)}
        self.alone.update(named)
        self.listener.alone(named)
        self._stepped.append(optimizer)
        why = (
            "it has parameters that are no module's"
            if any(id(p) not in names for p in mine)
            else self._not_primed(optimizer, mine)
        )
        if why:
            self.listener.fresh(optimizer, why)
            return
        self._primed.append(optimizer)
        states = [
            (names[id(p)], key, value, p)
            for p in mine
            for key, value in optimizer.state.get(p, {}).items()
            if isinstance(value, torch.Tensor)
        ]
        self.listener.states(optimizer, states)

    def _not_primed(self, optimizer: optim.Optimizer, parameters: list[nn.Parameter]) -> str:
        """Makes the state, or returns why it stays unchanged."""
        if not self.primes:
            return "its state is the script's own"
        if any(optimizer.state.get(p) for p in parameters):
            return "it has some already"
        if isinstance(optimizer, torch.optim.LBFGS):
            return "its step needs a closure"
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return "it has hooks of its own, which making it would run"
        if isinstance(optimizer, torch.optim.Rprop):
            return "it chooses by products with gradients before, which are zero at first"
        why = ""
        try:
            with tried():
                self._prime(optimizer, parameters)
        except private.DEPENDS_ON_DATA:
            why = "making it takes numbers of the data"
        if any(
            isinstance(value, torch.Tensor) and value.numel() == 1 < p.numel() and key != "step"
            for p in parameters
            for key, value in optimizer.state.get(p, {}).items()
        ):
            why = "it keeps numbers of its own, which only steps before make"
        if any(
            _holds_tensors(value)
            for p in parameters
            for value in optimizer.state.get(p, {}).values()
        ):
            why = "it keeps lists of tensors"
        if why:
            for p in parameters:
                optimizer.state.pop(p, None)
        return why

    def _prime(self, optimizer: optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        """One step with zero gradients and no learning rate creates the state.

        Its numbers are then the step's inputs.
        """
        self.priming = True
        gradients = [p.grad for p in parameters]
        saved = [
            {k: group[k] for k in ("lr", "weight_decay") if k in group}
            for group in optimizer.param_groups
        ]
        try:
            with self.listener.quiet():
                for p in parameters:
                    p.grad = torch.zeros_like(p)
                for group in optimizer.param_groups:
                    for key in ("lr", "weight_decay"):
                        if key in group and not isinstance(group[key], torch.Tensor):
                            group[key] = 0.0
                optimizer.step()
        finally:
            for p, grad in zip(parameters, gradients):
                p.grad = grad
            for group, old in zip(optimizer.param_groups, saved):
                group.update(old)
            self.priming = False
