# SPDX-License-Identifier: Apache-2.0
"""Scripts for a GPU: while a step is recorded, "cuda" is the CPU.

What only concerns the device does nothing. Nothing is computed while a step is recorded, so the
place of tensors makes no difference. Streams and events are not followed.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
import torch.cuda.nccl
import torch.cuda.nvtx
import torch.distributed as dist
from torch.cuda.amp import common as amp
from torch.overrides import TorchFunctionMode

from ..compat.refusals import fail
from ..compat.user_code import is_own
from .data_number import DataNumber, holds_one, is_arithmetic, with_numbers
from .row_count import RowCount, count_among, sized_call

CPU = torch.device("cpu")
_MEMORY = 80 << 30  # what the device reports; nothing is stored there
_NCCL = (2, 27, 0)  # its version
_MARKS = ("range_push", "range_pop", "range_start", "range_end", "mark")  # of a profiler
_DEVICE, _CUDA, _PIN_MEMORY = torch.device, torch.Tensor.cuda, torch.Tensor.pin_memory
# whose first argument may be the number of a GPU (nn.Module.to calls the second)
_TO = frozenset({torch.Tensor.to, torch._C._nn._parse_to})
_TENSOR = torch.tensor  # which is another function while arrays are followed (data_array.py)
_MAKE_TENSORS = frozenset({_TENSOR, torch.as_tensor})


def _is_cuda(x: Any) -> bool:
    return (
        isinstance(x, torch.device)
        and x.type == "cuda"
        or isinstance(x, str)
        and (x == "cuda" or x.startswith("cuda:"))
    )


def on_cpu(x: Any) -> Any:
    """A device as it is meant here. There is one CPU, whose number tensors do not have."""
    if _is_cuda(x) or isinstance(x, str) and x.startswith("cpu:"):
        return CPU
    return CPU if isinstance(x, torch.device) and x.type == "cpu" else x


def _sizes(x: Any) -> Any:
    """Sizes that are tensors of one integer, in a list of sizes, as their numbers."""
    if isinstance(x, (list, tuple)) and type(x) is not torch.Size:
        return type(x)(
            y.item() if isinstance(y, torch.Tensor) and y.dim() == 0 else _sizes(y) for y in x
        )
    return x


def _of_tensors(args: Any, kwargs: Any) -> torch.Tensor | None:
    """torch.tensor of a list (of lists) of tensors that are real numbers: their stack, not
    differentiated.

    None for anything else, which PyTorch reads itself.
    """

    def stacked(x: Any) -> torch.Tensor:
        return torch.stack([stacked(y) for y in x]) if isinstance(x, (list, tuple)) else x.detach()

    def numbers(x: Any) -> bool:
        return (
            bool(x) and all(map(numbers, x))
            if isinstance(x, (list, tuple))
            else isinstance(x, torch.Tensor) and x.dim() == 0 and x.dtype.is_floating_point
        )

    dtype = kwargs.get("dtype")
    if (
        len(args) != 1
        or type(args[0]) not in (list, tuple)
        or kwargs.get("requires_grad")
        or dtype is not None
        and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point)
        or not numbers(args[0])
    ):
        return None
    return stacked(args[0]).to(dtype) if dtype is not None else stacked(args[0])


class Devices(Protocol):
    """Follows what concerns devices (randomness.py)."""

    def device_seeded(self, seed: int, cpu: bool) -> None:
        """The program seeds "cuda". cpu: so does it the CPU."""

    def on_device(self) -> contextlib.AbstractContextManager[None]:
        """What is drawn inside is drawn on "cuda"."""

    def placed_there(self, made: Any) -> None:
        """A tensor that was made on "cuda" or moved there."""

    def moved(self, made: Any) -> Any:
        """What the program has of a tensor that it moved to a device."""

    def sized(self, func: Any, size: Any, args: Any) -> Any:
        """A size that the program asks for, which may depend on data."""

    def of_rows(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call with numbers of rows, or tensors with rows; NotImplemented for any other."""


# functions that give sizes: of a tensor's dimensions, or its number of elements
SIZES = {
    torch.Tensor.size: "size",
    torch.Tensor.shape.__get__: "shape",
    torch.Tensor.numel: "numel",
    torch.Tensor.nelement: "numel",
    torch.Tensor.__len__: "len",
    torch.numel: "numel",
}
# functions that cut tensors, and that put them one after another
SPLITS = (torch.Tensor.split, torch.split, torch.functional.split)
JOINS = (torch.cat, torch.concat, torch.concatenate)
# and that give a tensor the shape of another one
LIKE = (
    torch.Tensor.expand_as,
    torch.Tensor.view_as,
    torch.Tensor.reshape_as,
    torch.broadcast_tensors,
    torch.functional.broadcast_tensors,
)
# that make tensors of sizes
_SIZED = frozenset({torch.empty, torch.zeros, torch.Tensor.new_empty, torch.Tensor.new_zeros})
_CUTS_OR_JOINS = frozenset((*SPLITS, *JOINS, *LIKE, torch.Tensor.__getitem__))


class OnCPU(TorchFunctionMode):
    """Replaces "cuda" by the CPU in calls of PyTorch."""

    def __init__(self, devices: Devices) -> None:
        super().__init__()
        self.devices = devices

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        try:
            return self._called(func, args, kwargs)
        except Exception as e:
            if any(isinstance(x, torch.Tensor) for x in args):
                fail(e)  # of a fake tensor's, which real ones may not have: .numpy()
            raise

    def _called(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if func is _DEVICE:
            given = (*args, *(kwargs or {}).values())
            if len(given) == 1 and type(given[0]) is int:
                return CPU  # the number of a GPU
            return on_cpu(func(*args, **(kwargs or {})))
        if func is _CUDA or func is _PIN_MEMORY:
            if func is _CUDA:
                self.devices.placed_there(args[0])
                return self.devices.moved(args[0])
            return args[0]
        if func in SIZES:
            return self.devices.sized(
                func, func(*args, **(kwargs or {})), (*args, *(kwargs or {}).values())
            )
        if func in _CUTS_OR_JOINS:
            out = self.devices.of_rows(func, args, kwargs or {})
            if out is not NotImplemented:
                return out
        if func in _SIZED:
            own = func in (torch.Tensor.new_empty, torch.Tensor.new_zeros)  # the first is no size
            args = (*args[:own], *_sizes(args[own:]))
            kwargs = {k: _sizes(v) for k, v in (kwargs or {}).items()}
        if (count := count_among((*args, *(kwargs or {}).values()))) is not None:
            if len(args) == 2 and any(type(x) is RowCount for x in args) and is_arithmetic(func):
                args = tuple(x.data_number() if type(x) is RowCount else x for x in args)
                return with_numbers(func, args, kwargs or {})
            there = dict(kwargs or {})
            if "device" in there:
                there["device"] = CPU if type(there["device"]) is int else on_cpu(there["device"])
            return sized_call(func, count, args, there)
        on_cuda = False
        moves = func is torch.Tensor.to and (
            "device" in (kwargs or {}) or any(type(x) in (str, _DEVICE, int) for x in args[1:2])
        )
        if func in _TO and any(type(x) is int for x in args):
            args = tuple(CPU if type(x) is int else x for x in args)
            on_cuda = True
        for x in args:
            kind = type(x)
            if kind is str or kind is _DEVICE:
                on_cuda = on_cuda or any(map(_is_cuda, args))
                args = tuple(on_cpu(a) for a in args)
                break
            if kind is DataNumber or kind is list and x and type(x[0]) is DataNumber:
                return with_numbers(func, args, kwargs or {})
        if func in _MAKE_TENSORS and args and type(args[0]) in (list, tuple) and holds_one(args):
            return with_numbers(func, args, kwargs or {})
        if func is _TENSOR and (made := _of_tensors(args, kwargs or {})) is not None:
            return made
        if not kwargs and not on_cuda:
            return self.devices.moved(func(*args)) if moves else func(*args)
        kwargs = kwargs or {}
        if type(kwargs.get("alpha")) is DataNumber:
            return with_numbers(func, args, kwargs)
        if "device" in kwargs:
            on_cuda = on_cuda or type(kwargs["device"]) is int or _is_cuda(kwargs["device"])
            kwargs = {
                **kwargs,
                "device": CPU if type(kwargs["device"]) is int else on_cpu(kwargs["device"]),
            }
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if on_cuda:
            with self.devices.on_device():
                made = func(*args, **kwargs)
            self.devices.placed_there(made)
        else:
            made = func(*args, **kwargs)
        return self.devices.moved(made) if moves else made


class _Nothing:
    """A stream, an event or a context of a device: does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device, self.cuda_stream, self.stream_id = CPU, 0, 0

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *args: Any) -> None:
        """Nothing to leave."""

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event if event is not None else _Nothing()

    def elapsed_time(self, other: Any) -> float:
        return 0.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def _rng_state(*args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    torch.set_rng_state(state)


def _seeding(devices: Devices) -> Callable[[int], None]:
    def seed(seed: int) -> None:
        # torch.manual_seed seeds all devices
        devices.device_seeded(
            int(seed), sys._getframe(1).f_globals.get("__name__") == "torch.random"
        )
        torch.default_generator.manual_seed(int(seed))

    return seed


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What concerns the device only."""


_ANSWERS: dict[str, Any] = {
    "current_device": lambda: 0,
    "device_count": lambda: 1,  # replaced where a script is recorded
    "set_device": _nothing,
    "synchronize": _nothing,
    "empty_cache": _nothing,
    "reset_peak_memory_stats": _nothing,
    "memory_allocated": lambda *a, **k: 0,
    "max_memory_allocated": lambda *a, **k: 0,
    "memory_reserved": lambda *a, **k: 0,
    "max_memory_reserved": lambda *a, **k: 0,
    "memory_stats": lambda *a, **k: collections.Counter(),
    "reset_accumulated_memory_stats": _nothing,
    "mem_get_info": lambda *a, **k: (_MEMORY, _MEMORY),
    "memory_summary": lambda *a, **k: "",
    "memory_snapshot": lambda *a, **k: [],
    "reset_max_memory_allocated": _nothing,
    "set_per_process_memory_fraction": _nothing,
    "ipc_collect": _nothing,
    "utilization": lambda *a, **k: 0,
    "is_bf16_supported": lambda *a, **k: True,
    "can_device_access_peer": lambda *a, **k: True,
    "get_device_properties": lambda *a, **k: types.SimpleNamespace(
        name="cpu", major=9, minor=0, total_memory=_MEMORY, multi_processor_count=1
    ),
    "get_device_name": lambda *a, **k: "cpu",
    "get_device_capability": lambda *a, **k: (9, 0),
    "is_current_stream_capturing": lambda: False,
    "current_stream": _Nothing,
    "default_stream": _Nothing,
    "Stream": _Nothing,
    "Event": _Nothing,
    "stream": _Nothing,
    "device": _Nothing,
    "set_stream": _nothing,
    "get_rng_state": _rng_state,
    "set_rng_state": _set_rng_state,
    "initial_seed": torch.initial_seed,
    "_lazy_init": _nothing,
    "init": _nothing,
    "is_initialized": lambda: True,
    "_exchange_device": lambda *a: -1,
    "_maybe_exchange_device": lambda *a: -1,
    "default_generators": (torch.default_generator,),
}


# of torch.accelerator, beside what `as_cpu` knows
_OF_THE_ACCELERATOR: dict[str, Any] = {
    **dict.fromkeys(
        ("set_device_index", "set_device_idx", "set_stream", "synchronize", "empty_cache"), _nothing
    ),
    **dict.fromkeys(("current_device_index", "current_device_idx"), lambda: 0),
    "current_stream": _Nothing,
    "device_index": _Nothing,
}


def _available(original: Callable[..., bool]) -> Callable[..., bool]:
    """Whether there is a GPU (a backend of its): yes, to the script, which is meant to run on one.

    Libraries have the true answer, as they would go on to kernels that are not there.
    """

    def is_available(*args: Any, **kwargs: Any) -> bool:
        return is_own(sys._getframe(1).f_code.co_filename) or original(*args, **kwargs)

    return is_available


def _own(given: dict[str, Any]) -> dict[str, Any]:
    """Each name with a function or class of its own.

    TorchDynamo, which some packages import late, looks up functions of PyTorch by their names, and
    refuses one that it finds twice.
    """
    made: dict[str, Any] = {}
    for name, f in given.items():
        if isinstance(f, types.FunctionType):
            f = types.FunctionType(f.__code__, f.__globals__, name, f.__defaults__, f.__closure__)
        elif f is _Nothing:
            f = type(name, (_Nothing,), {})
        made[name] = f
    return made


def _accelerator(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.accelerator.current_accelerator: the CPU to a program, and what there is to PyTorch."""

    def current_accelerator(*args: Any, **kwargs: Any) -> Any:
        own = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] == "torch"
        return original(*args, **kwargs) if own else CPU

    return current_accelerator


@contextlib.contextmanager
def as_cpu(
    devices: Devices, count: int = 1, counted: Callable[[], None] = _nothing
) -> Iterator[None]:
    """ "cuda" is the CPU inside; where there is a GPU, too.

    count: of devices. counted: is called where the script's own files ask for it.
    """

    def device_count() -> int:
        if is_own(sys._getframe(1).f_code.co_filename):
            counted()
        return count

    answers = {
        **_own(_ANSWERS),
        "device_count": device_count,
        "manual_seed": _seeding(devices),
        "manual_seed_all": _seeding(devices),
        "is_available": _available(torch.cuda.is_available),
    }
    accelerator = {
        **_own(_OF_THE_ACCELERATOR),
        "device_count": device_count,
        "current_accelerator": _accelerator(torch.accelerator.current_accelerator),
        "is_available": _available(torch.accelerator.is_available),
    }
    given = (
        (torch.cuda, answers),
        (torch.cuda.random, answers),
        (amp, {"amp_definitely_not_available": lambda: False}),  # else scalers do nothing
        (torch.cuda.nccl, {"version": lambda *a, **k: _NCCL}),
        (torch.cuda.nvtx, _own(dict.fromkeys(_MARKS, _nothing) | {"range": _Nothing})),
        (torch.accelerator, accelerator),
        (dist, {"is_nccl_available": _available(dist.is_nccl_available)}),
    )
    replaced = [
        (module, name, getattr(module, name), new)
        for module, functions in given
        for name, new in functions.items()
        if hasattr(module, name)
    ]
    # torch.random.fork_rng() queries the device's module, which is the CPU's then.
    added = [name for name in ("get_rng_state", "set_rng_state") if not hasattr(torch.cpu, name)]
    for module, name, _, new in replaced:
        setattr(module, name, new)
    for name in added:
        setattr(torch.cpu, name, answers[name])
    try:
        with OnCPU(devices):
            yield
    finally:
        for module, name, old, _ in replaced:
            setattr(module, name, old)
        for name in added:
            delattr(torch.cpu, name)
