# SPDX-License-Identifier: Apache-2.0
"""Traces a training script as it runs, on the user's own machines.

    torchrun --nproc-per-node 8 -m shardproof.torch.trace --mesh dp=2,tp=4 --out candidate train.py
    python -m shardproof.torch.trace --perturb 3 --out reference train.py

Options stand before the script; everything after its name is its own. The script runs unchanged,
as __main__, until each of its optimizers has stepped, and is then stopped.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import torch.distributed as dist

from ..compat import private
from ..distributed.mesh import Mesh
from ..session.capture import CaptureError
from ..session.rest_of_step import OptimizerSteps
from ..session.script import _arguments, _run
from ..step.world import World
from .layout import LayoutError
from .reference_values import ReferenceValues, UnusableReference
from .trace_file import TraceWriter
from .tracer import Tracer
from .traces import draw_folder, forget_draws


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Ends the process with exit code 2 where they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m shardproof.torch.trace",
        allow_abbrev=False,
        usage="%(prog)s --out DIR [options] SCRIPT [arguments of the script]",
        description="Runs a PyTorch training script up to its optimizers' first step and writes "
        "what each rank held, for `shardproof compare`. Under torchrun, or alone.",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder of the traces")
    parser.add_argument(
        "--mesh",
        metavar="AXES",
        help="axes and sizes of the script's ranks, slowest first: dp=2,tp=4 (default: one axis)",
    )
    parser.add_argument(
        "--perturb",
        type=int,
        default=0,
        metavar="N",
        help="with one rank, the reference: run the script N more times, moved by a rounding each",
    )
    parser.add_argument(
        "--draw",
        type=int,
        default=0,
        metavar="K",
        help="write the K-th perturbed trace only: for a reference of several ranks, one torchrun "
        "for each of 1, 2, ...",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="record names that match (*, ?, [...]) only; may be given several times",
    )
    parser.add_argument(
        "--values",
        choices=("own", "drawn"),
        default="own",
        help="own: parameters and states begin with the script's numbers, which have to be the "
        "same on both sides; drawn: with numbers that depend on their names (default: own)",
    )
    parser.add_argument(
        "--modules",
        action="store_true",
        help="record what each module takes as well, with its gradient; --isolate needs it of the "
        "reference and of the candidate before",
    )
    parser.add_argument(
        "--isolate",
        metavar="REPORT",
        help="the report of shardproof compare --json: what modules take and return becomes the "
        "reference's, so that compare lists the modules that are wrong by themselves",
    )
    parser.add_argument(
        "--sketches",
        action="store_true",
        help="of each large tensor write 1,024 sums in place of its elements (8 KB), which are "
        "compared where the tensor's layout is known",
    )
    parser.add_argument("script", metavar="SCRIPT", help="run as __main__")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="arguments of the script: all that comes after its name",
    )
    options = parser.parse_args(argv)
    if options.perturb < 0 or options.draw < 0 or options.perturb and options.draw:
        parser.error("--perturb and --draw are not negative, and not given both")
    if options.isolate and (options.perturb or options.draw):
        parser.error("--isolate is of a candidate, --perturb and --draw are of a reference")
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if options.perturb and world > 1:
        parser.error(
            f"--perturb: {world} ranks run; a reference of several ranks takes one torchrun for "
            "each of --draw 1, --draw 2, ..."
        )
    try:
        options.mesh = Mesh.parse(options.mesh) if options.mesh else Mesh({"rank": world})
    except ValueError as e:
        parser.error(str(e))
    if options.mesh.world != world:
        parser.error(
            f"--mesh has {options.mesh.world} ranks, and WORLD_SIZE is {world}: "
            + ("run it under torchrun" if world == 1 else "state the mesh of all ranks")
        )
    if not os.path.isfile(options.script):
        parser.error(f"{options.script}: there is no such file")
    return options


def _alone() -> None:
    """Without torchrun, the script is rank 0 of 1."""
    if "RANK" in os.environ:
        return
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE="1",
        LOCAL_WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )


def _perturbed(options: argparse.Namespace) -> int:
    """Runs the script once more for each perturbed trace, in a process of its own."""
    environment = {
        k: v
        for k, v in os.environ.items()
        # torchrun's store has been used by the first run
        if not k.startswith(("TORCHELASTIC_", "MASTER_")) and k not in ("RANK", "WORLD_SIZE")
    }
    shared = ["--out", options.out, "--values", options.values]
    shared += ["--modules"] if options.modules else []
    shared += ["--sketches"] if options.sketches else []
    shared += [f"--only={pattern}" for pattern in options.only]
    for draw in range(1, options.perturb + 1):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "shardproof.torch.trace",
                f"--draw={draw}",
                *shared,
                options.script,
                *options.arguments,
            ],
            env=environment,
            check=False,
        )
        if done.returncode:
            return done.returncode
    return 0


def trace_script(options: argparse.Namespace) -> None:
    """Writes the trace of this rank.

    Raises CaptureError for a script that ends before an optimizer steps, LayoutError for a DTensor
    on ranks that are not along axes of the mesh, UnusableReference for a report to isolate by that
    cannot be used, and what the script raises.
    """
    rank = int(os.environ["RANK"])
    folder = draw_folder(options.out, options.draw)
    reference = None
    if options.isolate:
        reference = ReferenceValues(options.isolate, options.mesh, rank, folder)
    if not options.draw:
        forget_draws(options.out, options.mesh, rank)
    writer = TraceWriter(folder, options.mesh, rank, options.only, options.sketches)
    writer.isolated = reference is not None
    side = Tracer(
        options.mesh,
        rank,
        writer,
        options.draw,
        options.values == "own",
        options.modules,
        reference,
    )
    steps = OptimizerSteps(World(options.mesh, rank, side), 1)
    with side.listening(own_random_state=True), steps.watched():
        with _arguments(options.script, options.arguments):
            _run(options.script, steps)
        if not steps.done:
            raise CaptureError(f"{options.script} ended before any of its optimizers stepped")
        side.finish(None)
    writer.note(
        "the script was stopped after the first step of each of its optimizers; what it does "
        "later was not recorded"
    )
    for optimizer in steps.there:
        if not steps.count(optimizer):
            writer.note(f"{type(optimizer).__name__} made no step and was not recorded")
    writer.close()
    if dist.is_initialized():
        dist.barrier()  # no rank leaves while another one may still wait for it
        dist.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0, or 2 where the script cannot be traced."""
    if not private.is_known():
        print(f"shardproof.torch.trace: {private.versions()}", file=sys.stderr)
        private.accept()
    options = _options(argv)
    _alone()
    try:
        trace_script(options)
    except (CaptureError, LayoutError, UnusableReference) as e:
        print(f"shardproof: {e}", file=sys.stderr)
        return 2
    return _perturbed(options)
