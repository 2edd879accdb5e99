# SPDX-License-Identifier: Apache-2.0
"""Traces of steps by forked processes: what is imported once serves all of them."""

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import safetensors.torch  # noqa: F401
import torch
import torch._dynamo
from shardproof.torch.distributed.mesh import Mesh
from shardproof.torch.numbers.traces import draw_folder, trace_rank
from shardproof.torch.session.isolated_processes import fork
from shardproof.torch.session.numeric import in_process_group
from torch.utils._python_dispatch import TorchDispatchMode


def on_ranks(world, work):
    """Calls work(rank) in so many processes of one group. Returns whether all ended well."""

    def process(rank, store):
        try:
            with in_process_group(rank, world, store):
                work(rank)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    with tempfile.TemporaryDirectory() as store:
        children = []
        for rank in range(world):
            if (child := fork()) == 0:
                process(rank, store)
            children.append(child)
        ended = [os.waitpid(child, 0)[1] for child in children]  # all, before their folder goes
        return not any(ended)


def traced(step, mesh, out, draws=(0,), isolate=None, seed=0, modules=True):
    """Traces a step on all ranks of a mesh, a folder for each draw. Returns whether all ended."""

    def work(rank):
        for draw in draws:
            folder = draw_folder(out, draw)
            trace_rank(step, mesh, rank, folder, draw, (), modules, isolate, seed)

    return on_ranks(Mesh(mesh).world, work)


def compare(reference, candidate):
    """The exit code, the text, and the JSON report, which is beside the candidate."""
    report = Path(f"{candidate}.json")
    done = subprocess.run(
        [os.environ["SHARDPROOF"], "compare", reference, candidate, "--json", report],
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        done.returncode,
        done.stdout + done.stderr,
        json.loads(report.read_text()) if report.exists() else None,
    )


def _input_in_bf16(given, name, shape, dtype=torch.bfloat16, **more):
    return given(name, shape, torch.bfloat16 if dtype == torch.float32 else dtype, **more)


class Float8Products(TorchDispatchMode):
    """Inside, matrix products have operands that are rounded to float8 (E4M3), in the forward and
    the backward pass. Each tensor has one scale, from its largest element.
    """

    _PRODUCTS = frozenset(
        (torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm, torch.ops.aten.baddbmm)
    )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in self._PRODUCTS:
            args = (*args[:-2], *map(_in_float8, args[-2:]))
        return func(*args, **(kwargs or {}))


def _in_float8(t):
    if not t.is_floating_point() or not t.numel():
        return t
    dtype = torch.float8_e4m3fn
    scale = torch.finfo(dtype).max / t.detach().abs().amax().float().clamp(min=1e-12)
    # .to() is no operator of its own where a mode handles another one
    rounded = torch.ops.aten._to_copy(t * scale, dtype=dtype)
    return (rounded.to(torch.float32) / scale).to(t.dtype)


def in_precision(step, precision):
    """precision: fp32, autocast (to bf16), bf16 (parameters, inputs and states, too), or fp8 (of
    matrix products, the rest in fp32).
    """

    @functools.wraps(step)
    def wrapped(world):
        before = torch.get_default_dtype()
        if precision == "bf16":
            torch.set_default_dtype(torch.bfloat16)
            world.input = functools.partial(_input_in_bf16, world.input)
        try:
            with (
                torch.autocast("cpu", torch.bfloat16)
                if precision == "autocast"
                else Float8Products()
                if precision == "fp8"
                else contextlib.nullcontext()
            ):
                return step(world)
        finally:
            torch.set_default_dtype(before)

    return wrapped
