# SPDX-License-Identifier: Apache-2.0
"""The program of each device: XLA's text after its pass spmd-partitioning.

XLA has no call that partitions and no more. So the program is compiled, XLA writes the text after
that pass, and a callback before code is generated (jax.extend.xla) ends the compilation by raising.
That leaves out nearly all of the time. Only passes that follow the partitioner are switched off, so
the text is the one of a complete compilation. Versions of JAX without the callback compile to the
end.

A module for CPUs is compiled by a client of its own with as many devices as the module asks for,
whatever devices the process has.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import itertools
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..program import ProgramError
from .modules import (
    attributes_of_arguments,
    attributes_of_results,
    bytecode,
    copy_of,
    devices_of,
    main_of,
    target_of,
)

_PASS = "spmd-partitioning"
_OPTIONS = {
    "xla_dump_hlo_as_text": True,
    "xla_dump_large_constants": True,
    "xla_dump_hlo_pass_re": _PASS,
    "xla_keep_shardings_after_spmd": True,
}
# Passes that come after the partitioner only, and without which the compiler reaches the callback.
# Unknown names are ignored.
_LATER_PASSES = (
    "algsimp",
    "batched_gather_scatter_normalizer",
    "copy-insertion",
    "cpu-all-reduce-combiner",
    "cpu-parallel-task-assigner",
    "dot_decomposer",
    "dot-library-rewriter",
    "dynamic-dimension-simplifier",
    "fusion",
    "fusion-wrapper",
    "layout-assignment",
    "post_scatter_expansion_simplification",
    "reshape-decomposer",
    "scatter_simplifier",
    "shape-canonicalizer",
    "simplification",
    "transpose-folding",
)

_lock = threading.Lock()  # of the callback: modules of other threads go on
_numbers = itertools.count()


class _Stop(Exception):
    """Ends a compilation. XLA's error has its name in the text."""


def text_of_module(module: Any) -> str:
    """Partitions a module for CPUs with XLA, of any number of devices."""
    import numpy as np
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    devices = devices_of(module)
    if devices == 1:
        raise ProgramError("found a program for one device, expected one for several")
    copy = copy_of(module)
    with copy.context:
        # A compilation is known by its module's name.
        old = str(copy.operation.attributes["sym_name"].value)
        name = f"shardproof_{os.getpid()}_{next(_numbers)}"
        copy.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        copy.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(
            ir.IntegerType.get_signless(32), devices
        )
        arguments, results = _stated(copy)
        code = bytecode(copy)
    client = _client(devices)
    on = xla_client.DeviceList(tuple(client.devices()))
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, devices
    options.device_assignment = xla_client.DeviceAssignment.create(
        np.arange(devices, dtype=np.int32).reshape(1, devices)
    )
    build = options.executable_build_options
    build.use_spmd_partitioning = True
    # Shardings are stated in the form of Shardy, or only in that of its predecessor.
    build.use_shardy_partitioner = b"sdy" in code or b"mhlo.sharding" not in code
    # The partitioner chooses where nothing is stated, as it does for jit.
    build.allow_spmd_sharding_propagation_to_parameters = [not a for a in arguments]
    build.allow_spmd_sharding_propagation_to_output = [not r for r in results]
    callback = _callback()
    with tempfile.TemporaryDirectory(prefix="shardproof-") as folder:
        overrides: dict[str, Any] = {**_OPTIONS, "xla_dump_to": folder}
        if callback is not None:  # nothing is generated of what these passes leave
            overrides["xla_disable_hlo_passes"] = ",".join(_LATER_PASSES)
        options.env_option_overrides = list(overrides.items())

        def compile_it() -> None:
            with _ending(name, callback):
                client.compile_and_load(copy, on, options)

        text = _text_written(folder, compile_it)
    return re.sub(r"\AHloModule \S*?(?=,|\s)", f"HloModule {old}", text)


def text_of_lowered(lowered: Any) -> str:
    """Partitions what jit lowered, for the devices that it is for: of accelerators, too."""
    with tempfile.TemporaryDirectory(prefix="shardproof-") as folder:
        return _text_written(
            folder, lambda: lowered.compile(compiler_options={**_OPTIONS, "xla_dump_to": folder})
        )


def _text_written(folder: str, compile_it: Callable[[], Any]) -> str:
    """What XLA writes to `folder` while it compiles."""
    failure: Exception | None = None
    try:
        compile_it()
    except Exception as error:  # also _Stop, which XLA turns into an error of its own
        failure = error
    pattern = os.path.join(glob.escape(folder), f"*.after_{_PASS}.*.txt")
    found = sorted(glob.glob(pattern))
    if len(found) != 1:
        reason = f": {failure}" if failure is not None else ""
        raise ProgramError(
            f"XLA wrote {len(found)} texts after {_PASS}, expected one "
            f"(is the program for several devices?){reason}"
        ) from failure
    with open(found[0], encoding="utf-8") as file:
        return file.read()


@functools.lru_cache(maxsize=1)
def _callback() -> Any:
    """JAX's module of callbacks before code is generated, of version 0.10.2 and later.

    None where it does not end a small compilation: without it a program whose passes are switched
    off would reach the code generator, which aborts the process.
    """
    try:
        from jax.extend import xla
        from jax.interpreters.mlir import make_ir_context
        from jaxlib import xla_client
        from jaxlib.mlir import ir

        with make_ir_context():
            module = ir.Module.parse(
                "module @shardproof_small { func.func public @main(%x: tensor<f32>) -> tensor<f32> "
                "{ return %x : tensor<f32> } }"
            )
            client = _client(1)
            on = xla_client.DeviceList(tuple(client.devices()))
            try:
                with _ending("shardproof_small", xla):
                    client.compile_and_load(module, on, xla_client.CompileOptions())
            except Exception as error:
                return xla if _Stop.__name__ in str(error) else None
    except (ImportError, AttributeError):
        pass
    return None


@contextlib.contextmanager
def _ending(name: str, callback: Any) -> Iterator[None]:
    """Compilations of the module of this name end before code is generated."""
    if callback is None:
        yield
        return
    wanted = name.encode()

    def stop(module: bytes) -> None:
        if wanted in module[:256]:  # the name is the first field
            raise _Stop

    with _lock:
        callback.register_hlo_module_transformation(stop, name="shardproof", platforms="cpu")
        try:
            yield
        finally:
            callback.clear_hlo_module_transformation("shardproof", platforms="cpu")


@functools.lru_cache(maxsize=4)
def _client(devices: int) -> Any:
    from jaxlib import xla_client

    return xla_client.make_cpu_client(num_devices=devices)


def _states_sharding(attributes: dict[str, Any]) -> bool:
    from jaxlib.mlir import ir

    if "sdy.sharding" in attributes or "mhlo.sharding" in attributes:
        return True
    front = attributes.get("mhlo.frontend_attributes")
    return front is not None and any(a.name == "xla.sdy.sharding" for a in ir.DictAttr(front))


def _stated(module: Any) -> tuple[list[bool], list[bool]]:
    """Of which arguments and results of a module the sharding is stated."""
    main = main_of(module)
    arguments = [_states_sharding(a) for a in attributes_of_arguments(main)]
    returned = main.regions[0].blocks[0].operations
    values = list(returned[len(returned) - 1].operands)
    results = [
        _states_sharding(a) or _target_behind(v) == "xla.sdy.FuncResultSharding"
        for a, v in zip(attributes_of_results(main), values)
    ]
    return arguments, results


def _target_behind(value: Any) -> str:
    owner = value.owner
    return target_of(owner) if hasattr(owner, "attributes") else ""
