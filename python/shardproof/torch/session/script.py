# SPDX-License-Identifier: Apache-2.0
"""Verifies a training script that runs under torchrun.

    python -m shardproof.torch --mesh dp=2,tp=2 train.py [arguments of the script]

Options stand before the script, as torchrun's do:
everything after its name is its own. If `--mesh` is not among them, all options are searched after
the script's name, too.

The script runs unchanged, with world size 1 and then as each rank of the mesh; its own
init_process_group gets a group. It is recorded until each of its optimizers has stepped, or has
made `--steps` steps, and it begins its next step (rest_of_step.py); then it is stopped. These are
the optimizers that it has created by then. At the latest it is stopped before the seventeenth step
of one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ...engines.addresses import FORMS, engine
from ...engines.tasks import EngineError
from ...program import ProgramError
from ..compat.user_code import is_pythons, user_place
from ..distributed.mesh import Mesh
from ..intercept.conversions import own_conversions
from ..step.world import World
from ..trace.recording import Step
from .capture import Capture, CaptureError, capture, verify
from .output_files import OPTIONS
from .prints import Prints
from .rest_of_step import OptimizerSteps, Stepped, Steps


def script_step(
    path: str,
    arguments: list[str],
    steps: int | None = None,
    devices: int = 1,
    quiet: bool = False,
) -> Step:
    """The script as a step: it runs as __main__ until each of its optimizers has made `steps`
    steps (None: one, or two where the second shows what the first leaves).

    devices: what torch.cuda.device_count() gives, on the single device, too. quiet: what it prints
    is left out.
    """
    prints = Prints(quiet)

    def step(world: World) -> None:
        optimizers = Steps(world, steps)
        with (
            optimizers.watched(),
            _arguments(path, arguments),
            prints.of(world),
            own_conversions(),
        ):
            try:
                left = _run(path, optimizers)
            except Exception as e:
                if not isinstance(e, CaptureError):
                    e.raised_on = "the single device" if world.single else f"rank {world.rank}"  # type: ignore[attr-defined]
                raise
            optimizers.ended(left)
            if optimizers.there and not optimizers.done and not optimizers.idle:
                raise optimizers.without_step(path) or CaptureError(
                    f"{path} ended before any of its optimizers stepped{_raised(path)}"
                )
        optimizers.leave_out()

    step.__name__ = Path(path).stem
    step.source = path  # type: ignore[attr-defined]
    step.whole_script = True  # type: ignore[attr-defined]
    step.prints = prints  # type: ignore[attr-defined]
    step.devices = devices  # type: ignore[attr-defined]
    # as each of its processes would have
    step.own_random_state = True  # type: ignore[attr-defined]
    return step


@contextlib.contextmanager
def _arguments(path: str, arguments: list[str]) -> Iterator[None]:
    process = os.getpid()

    def leave(code: int) -> None:
        if os.getpid() != process:
            before_exit(code)  # a process that the script has forked
        raise SystemExit(code)  # else the exit code would be taken for a verdict

    def replace(*args: Any) -> None:
        raise CaptureError(
            "the script replaces its process by another program (os.exec): give what it starts, in "
            "the environment that it sets"
        )

    before_argv, before_path, before_exit = sys.argv, list(sys.path), os._exit
    before_exec = os.execv, os.execve
    try:
        os._exit = leave  # type: ignore[assignment]
        os.execv = os.execve = replace  # type: ignore[assignment]  # which the others call
        sys.argv = [path, *arguments]
        sys.path.insert(0, str(Path(path).resolve().parent))
        yield
    finally:
        sys.argv, sys.path[:], os._exit = before_argv, before_path, before_exit
        os.execv, os.execve = before_exec


def _run(path: str, optimizers: OptimizerSteps) -> dict[str, Any]:
    """The variables that the script leaves, where it ends by itself."""
    try:
        return runpy.run_path(path, run_name="__main__")
    except Stepped:
        pass
    except (Exception, SystemExit) as e:
        if optimizers.stopped:
            return {}  # it caught what ended it, and goes by that
        if not isinstance(e, SystemExit):
            raise
        if e.code not in (None, 0):
            raise CaptureError(f"{path} ended with exit code {e.code}") from None
    return {}


def _raised(path: str) -> str:
    """The last error that the script caught, and where it was raised.

    The script runs once more, with a trace.
    """
    found: list[BaseException] = []
    places: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> Any:
        place = user_place(frame)
        if (
            event == "exception"
            and place
            and isinstance(argument[1], Exception)
            and not isinstance(argument[1], StopIteration)
            and not is_pythons(frame.f_code.co_filename)  # weakref tries and catches
            and (not found or found[-1] is not argument[1])  # not where it only passes
        ):
            found.append(argument[1])
            places.append(place)
        return trace if place else None

    if dist.is_initialized():
        dist.destroy_process_group()
    before = sys.gettrace()
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        try:
            sys.settrace(trace)
            runpy.run_path(path, run_name="__main__")
        except BaseException:  # it ended without one before: this is about what it catches
            pass
        finally:
            sys.settrace(before)
    return f": {type(found[-1]).__name__}: {found[-1]} was raised at {places[-1]}" if found else ""


def _with_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "--mesh", metavar="AXES", help="required; axes and sizes, slowest first: dp=2,tp=4"
    )
    parser.add_argument(
        "--ranks",
        default="all",
        help="which ranks are recorded: all, or classes (those along an axis that turns out not to "
        "matter, or not between the ends of shards, are taken to be alike)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="look at so many steps of each optimizer, as one program (default: one, or two where "
        "the second shows what the first leaves)",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="so many processes record ranks"
    )
    parser.add_argument(
        "--batch",
        metavar="AXIS=HOW",
        action="append",
        default=[],
        help="concat: the batches that ranks along this axis read are parts of the single "
        "device's, one after another; same: each is all of it (default: what they read decides); "
        "may be given several times",
    )
    parser.add_argument(
        "--single",
        metavar="SCRIPT",
        help="what the single device runs, where the script itself cannot run on one: a script "
        "that computes the same there, with its own arguments, in one argument",
    )
    parser.add_argument(
        "--convert",
        metavar="FILE.py:FUNCTION",
        help="with --single, whose model is another implementation: the function that gives the "
        "script's parameters of its parameters, as {name: tensor}",
    )
    parser.add_argument("--quiet", action="store_true", help="leave out what the script prints")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="operators of which nothing is known but that they are functions are an error",
    )
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="NAME",
        help="accept an assumption of class risk: it no longer makes the verdict CONDITIONAL; "
        "may be given several times",
    )
    parser.add_argument(
        "--allow-uncompared",
        action="append",
        default=[],
        metavar="PATTERN",
        help="accept that what matches (*, ?, [...]) is not compared; may be given several times",
    )
    parser.add_argument(
        "--capture",
        metavar="PREFIX",
        help="write PREFIX.model.json.gz and PREFIX.plan.json.gz and do not verify",
    )
    for option, what in {
        "--json": "the complete report as JSON",
        "--html": "the report as one page for a browser",
        "--junit": "a JUnit file for CI: a case for each output",
        "--sarif": "the findings as SARIF 2.1.0, for code hosts",
    }.items():
        parser.add_argument(option, metavar="FILE", help=what)
    parser.add_argument(
        "--engine",
        metavar="ADDRESS",
        help=f"whose workers prove stages (docs/engines.md): {FORMS}",
    )
    parser.add_argument(
        "--explain-parameters",
        action="store_true",
        help="for each parameter and axis: whether backward makes all of its gradient, a part of a "
        "sum or a part of the tensor, and what reduces it",
    )
    parser.add_argument(
        "--verify",
        metavar="OPTIONS",
        default="",
        help="further options of shardproof verify, in one argument",
    )
    return parser


def _options(argv: list[str] | None) -> argparse.Namespace:
    """The options, the script and its arguments.

    Ends the process with exit code 2 where they are wrong.
    """
    named: dict[str, Any] = {"prog": "python -m shardproof.torch", "allow_abbrev": False}
    parser = _with_options(
        argparse.ArgumentParser(
            **named,
            usage="%(prog)s --mesh AXES [options] SCRIPT [arguments of the script]",
            description="Verifies a PyTorch training script on a CPU, with no process but "
            "this one.",
            epilog="With --mesh after the script the options stand among the script's arguments: "
            "those that are none of these are the script's.",
        )
    )
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="run as __main__")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="arguments of the script: all that comes after its name",
    )
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(f"unknown option {unknown[0]}: options of the script come after its name")
    if options.script is None:
        parser.error("the script is missing")
    if options.mesh is None:
        after = _with_options(argparse.ArgumentParser(**named, add_help=False))
        options, options.arguments = after.parse_known_args(options.arguments, options)
    if options.mesh is None:
        parser.error(
            f"--mesh is missing, as in: python -m shardproof.torch --mesh dp=2 {options.script}"
        )
    if options.convert and options.single is None:
        parser.error("--convert: it gives parameters of those of another script: --single OTHER.py")
    if options.steps is not None and options.steps < 1:
        parser.error("--steps: at least 1")
    if options.capture and (options.accept or options.allow_uncompared):
        parser.error(
            "--accept and --allow-uncompared are about a verdict: with --capture there is none; "
            "give them to `shardproof verify` with the files"
        )
    reports = [o for o in OPTIONS if vars(options)[o.lstrip("-")]]
    if options.capture and reports:
        parser.error(
            f"{reports[0]} is about a verdict: with --capture there is none; give it to "
            "`shardproof verify` with the files"
        )
    return options


def _function(text: str) -> Callable[..., Any]:
    """FILE.py:FUNCTION. Raises ValueError where there is none."""
    path, _, name = text.rpartition(":")
    if not Path(path).is_file():
        raise ValueError(f"--convert {text}: expected FILE.py:FUNCTION, and {path!r} is no file")
    found: Callable[..., Any] | None = runpy.run_path(path).get(name)
    if not callable(found):
        raise ValueError(f"--convert {text}: {path} has no function {name!r}")
    return found


def main(argv: list[str] | None = None) -> int:
    """The command; its exit codes are those of `shardproof verify`.

    2 is also for wrong options and for what cannot be captured.
    """
    options = _options(argv)
    try:
        with engine(options.engine) if options.engine else contextlib.nullcontext() as executor:
            return _verified(options, executor)
    except EngineError as e:
        print(f"shardproof.torch: {e}", file=sys.stderr)
        return 2


def _verified(options: argparse.Namespace, executor: Executor | None) -> int:
    """The exit code. Raises EngineError."""
    batch = {axis: how for axis, _, how in (text.partition("=") for text in options.batch)}
    try:
        convert = _function(options.convert) if options.convert else None
        devices = Mesh.parse(options.mesh).world
        step = script_step(options.script, options.arguments, options.steps, devices, options.quiet)
        functions = [step]
        if options.single is not None:
            other, *arguments = shlex.split(options.single)
            functions = [
                script_step(other, arguments, options.steps, devices, options.quiet),
                step,
            ]
        if options.capture:
            done: Capture = capture(
                *functions,
                mesh=Mesh.parse(options.mesh).sizes,
                ranks=options.ranks,
                jobs=options.jobs,
                strict=options.strict,
                batch=batch,
                convert=convert,
                executor=executor,
            )
            for path in done.write(options.capture):
                print(path)
            return 0
        report = verify(
            *functions,
            mesh=options.mesh,
            ranks=options.ranks,
            arguments=[
                *(a for o in OPTIONS if (f := vars(options)[o.lstrip("-")]) for a in (o, f)),
                *(["--explain-parameters"] if options.explain_parameters else []),
                *shlex.split(options.verify),
            ],
            jobs=options.jobs,
            strict=options.strict,
            batch=batch,
            accept=options.accept,
            allow_uncompared=options.allow_uncompared,
            convert=convert,
            executor=executor,
        )
    except EngineError:
        raise
    except Exception as e:
        where = getattr(e, "raised_on", "")
        if isinstance(e, (CaptureError, ProgramError)) or isinstance(e, ValueError) and not where:
            print(f"shardproof.torch: {e}", file=sys.stderr)
            return 2
        # the script's own, as Python shows it: from where the script begins
        trace = e.__traceback__
        while trace is not None and not user_place(trace.tb_frame):
            trace = trace.tb_next
        if trace is None and not isinstance(e, SyntaxError):  # that one names the line itself
            trace = e.__traceback__
        traceback.print_exception(type(e), e, trace)
        script = options.script
        hint = ""
        if where == "the single device" and options.single is not None:
            script = options.single
        elif where == "the single device":
            hint = (
                ", where it runs with world size 1. If it needs more processes than one, give what "
                "one device computes in a script of its own: --single OTHER.py"
            )
        print(
            f"shardproof.torch: {script} raised {type(e).__name__}"
            f"{f' on {where}' if where else ''}{hint}",
            file=sys.stderr,
        )
        return 2
    print(report)
    return {"EQUIVALENT": 0, "CONDITIONAL": 4, "NOT EQUIVALENT": 10, "UNDECIDED": 5}[report.verdict]
