"""`python -m shardproof.torch train.py --mesh dp=2,tp=2 [arguments of the script]`: verifies a script that runs as under torchrun.

The script is run as it is, with world size 1 and then as each rank of the mesh; its own init_process_group is answered. It is recorded until each of its optimizers has stepped (those that it
has made by then; at the latest until one is about to step for the seventeenth time), and then stopped.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

from ..program import ProgramError
from . import assumptions
from .capture import Capture, CaptureError, capture
from .mesh import Mesh
from .record import Step
from .world import World


MOST_STEPS = 16  # of one optimizer, while others wait for their first


def script_step(path: str, arguments: list[str]) -> Step:
    """The script as a step: run as __main__ until its optimizer has stepped."""

    def step(world: World) -> Any:
        from torch.optim import optimizer as optim

        class Stepped(BaseException):
            """Ends the script."""

        there: list[Any] = []  # optimizers, in the order in which they were made; one may hold others, as ZeroRedundancyOptimizer does
        under_way: list[Any] = []
        done: list[Any] = []
        make = optim.Optimizer.__init__

        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            there.append(self)

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            if world._backend.binding.priming:
                return  # no step of the script's
            if sum(o is optimizer for o in done) == MOST_STEPS:
                raise Stepped
            under_way.append(optimizer)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            if world._backend.binding.priming:
                return
            under_way.pop()
            done.append(optimizer)
            if not under_way and not waiting():
                raise Stepped

        def waiting() -> list[Any]:
            return [o for o in there if not any(o is d for d in done)]

        before_argv, before_path = sys.argv, list(sys.path)
        handles = [optim.register_optimizer_step_pre_hook(before), optim.register_optimizer_step_post_hook(after)]
        optim.Optimizer.__init__ = made  # type: ignore[method-assign]
        try:
            sys.argv = [path, *arguments]
            sys.path.insert(0, str(Path(path).resolve().parent))
            runpy.run_path(path, run_name="__main__")
        except Stepped:
            pass
        except SystemExit as e:
            if e.code not in (None, 0):
                raise CaptureError(f"{path} ended with exit code {e.code}") from None
        finally:
            for handle in handles:
                handle.remove()
            optim.Optimizer.__init__ = make  # type: ignore[method-assign]
            g = world._backend.recorder.g
            g.assume(assumptions.REST_OF_SCRIPT)
            for o in waiting():
                idle = assumptions.no_step(type(o).__name__, sum(len(group["params"]) for group in o.param_groups))
                g.leave_out(idle.what, idle.because)
            sys.argv, sys.path[:] = before_argv, before_path

    step.__name__ = Path(path).stem
    step.whole_script = True  # type: ignore[attr-defined]
    step.own_random_state = True  # type: ignore[attr-defined]  # as each of its processes would have
    return step


def main(argv: list[str] | None = None) -> int:
    """Exit codes are those of `shardproof verify`; 2 also for what cannot be captured."""
    parser = argparse.ArgumentParser(prog="python -m shardproof.torch", description="Verifies a PyTorch training script on a CPU, with no process but this one.")
    parser.add_argument("script", help="run as __main__; arguments after it are its own")
    parser.add_argument("--mesh", required=True, help="axes and sizes, slowest first: dp=2,tp=4")
    parser.add_argument("--ranks", default="all", help="which ranks are recorded: all, or classes (those along an axis that turns out not to matter, or not between the ends of shards, are taken to be alike)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many processes record ranks")
    parser.add_argument("--strict", action="store_true", help="operators of which nothing is known but that they are functions are an error")
    parser.add_argument("--capture", metavar="PREFIX", help="write PREFIX.model.json.gz and PREFIX.plan.json.gz and do not verify")
    parser.add_argument("--verify", metavar="OPTIONS", default="", help="further options of shardproof verify, in one argument")
    options, rest = parser.parse_known_args(argv)
    try:
        step = script_step(options.script, rest)
        if options.capture:
            done: Capture = capture(step, mesh=Mesh.parse(options.mesh).sizes, ranks=options.ranks, jobs=options.jobs, strict=options.strict)
            for path in done.write(options.capture):
                print(path)
            return 0
        from .capture import verify

        report = verify(step, mesh=options.mesh, ranks=options.ranks, arguments=options.verify.split(), jobs=options.jobs, strict=options.strict)
    except (CaptureError, ProgramError, ValueError) as e:
        print(f"shardproof.torch: {e}", file=sys.stderr)
        return 2
    print(report)
    return {"EQUIVALENT": 0, "CONDITIONAL": 4, "NOT EQUIVALENT": 10, "UNDECIDED": 5}[report.verdict]


if __name__ == "__main__":
    sys.exit(main())
