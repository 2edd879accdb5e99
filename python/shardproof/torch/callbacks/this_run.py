# SPDX-License-Identifier: Apache-2.0
"""The script that is running, verified with its own arguments in a process beside it.

The first rank starts `python -m shardproof.torch` on the script, on a CPU. All ranks wait for the
verdict. While the script is recorded there, this does nothing.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch.distributed as dist

from ..compat.private import RECORDING
from ..distributed.mesh import Mesh

_VERDICTS = {0: "EQUIVALENT", 4: "CONDITIONAL", 5: "UNDECIDED", 10: "NOT EQUIVALENT"}
ERROR = "ERROR"  # in the place of a verdict: there is none
# What launchers tell a process, which is none of theirs.
_OF_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_BEGINNINGS = ("TORCHELASTIC_", "ACCELERATE_", "SLURM_", "OMPI_", "PMI_")


class NotVerified(RuntimeError):
    """The step of this run has a verdict with which it is not to go on. verdict, text: which."""

    def __init__(self, verdict: str, text: str) -> None:
        super().__init__(f"shardproof: this run is stopped before its first step\n\n{text}")
        self.verdict, self.text = verdict, text


def verify_this_run(
    mesh: Mapping[str, int] | str | None = None,
    *,
    stop_on: Sequence[str] = ("NOT EQUIVALENT",),
    options: Sequence[str] = (),
    seconds: float = 480.0,
) -> str:
    """Verifies one step of the script that runs, and stops it if the verdict is among `stop_on`.

    To be called by all ranks, after `init_process_group`. mesh: axes and sizes, as of `verify`
    (None: all ranks are data parallel). options: of `python -m shardproof.torch`, such as
    `["--accept", "padding"]`. seconds: that it may take; process groups wait no longer than their
    own time limit. stop_on: verdicts, or "ERROR" for a script that cannot be verified.

    Returns the verdict, or "ERROR"; "" while the script is recorded. Other verdicts than EQUIVALENT
    that do not stop it are warnings. Raises NotVerified, and ValueError for a mesh of another
    number of ranks than the run has.
    """
    if os.environ.get(RECORDING):
        return ""
    world = dist.get_world_size() if dist.is_initialized() else 1
    axes = Mesh.parse(mesh).sizes if isinstance(mesh, str) else dict(mesh or {"dp": world})
    if world > 1 and math.prod(axes.values()) != world:
        raise ValueError(f"the mesh {axes} has {math.prod(axes.values())} ranks, this run {world}")
    found: list[str] = ["", ""]
    if world == 1 or dist.get_rank() == 0:
        found = list(_verified(axes, options, seconds))
    if world > 1:
        dist.broadcast_object_list(found, src=0)
    verdict, text = found
    if verdict in stop_on:
        raise NotVerified(verdict, text)
    if world == 1 or dist.get_rank() == 0:
        if verdict == "EQUIVALENT":
            print(text.partition("\n")[0], file=sys.stderr)
        else:
            warnings.warn(f"shardproof: {text}", stacklevel=2)
    return verdict


def _verified(axes: Mapping[str, int], options: Sequence[str], seconds: float) -> tuple[str, str]:
    """The verdict and the report."""
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if not script.is_file():
        return ERROR, "there is no script to verify (an interactive session?)"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_LAUNCHERS and not name.startswith(_BEGINNINGS)
    }
    environment["CUDA_VISIBLE_DEVICES"] = ""
    package = str(Path(__file__).resolve().parents[3])
    environment["PYTHONPATH"] = os.pathsep.join(
        [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    command = [
        sys.executable,
        "-m",
        "shardproof.torch",
        "--mesh",
        ",".join(f"{axis}={size}" for axis, size in axes.items()),
        "--quiet",
        *options,
        str(script),
        *sys.argv[1:],
    ]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return ERROR, f"{script} was not verified within {seconds:.0f} s"
    verdict = _VERDICTS.get(done.returncode, ERROR)
    if verdict != ERROR and not done.stdout.startswith(f"{verdict}:"):
        return ERROR, f"{script} was not verified: {(done.stderr or done.stdout).strip()}"
    return verdict, (done.stderr if verdict == ERROR else done.stdout).strip()


__all__ = ["ERROR", "NotVerified", "verify_this_run"]
