# SPDX-License-Identifier: Apache-2.0
"""Finding and running the `shardproof` program."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from .progress import Progress, showing
from .report import VERDICTS, Defect, Report


class ProgramError(RuntimeError):
    """The program is not there, or could not read its input; the message is its own."""


def find_program() -> str:
    """The program's path: $SHARDPROOF, the program installed with this package, or the one in PATH.

    Raises ProgramError where there is none.
    """
    named = os.environ.get("SHARDPROOF")
    if named:
        return named
    for candidate in (
        Path(__file__).parent / "bin" / "shardproof",
        Path(sys.executable).parent / "shardproof",
    ):
        if candidate.is_file():
            return str(candidate)
    found = shutil.which("shardproof")
    if found is None:
        raise ProgramError(
            "the program shardproof is not found: install the package with its program, put it "
            "into the PATH, or name it in $SHARDPROOF"
        )
    return found


# What the program takes at most to end, and to remove its files, after SIGTERM.
_SECONDS_TO_END = 10.0


def run_program(
    arguments: Sequence[str | os.PathLike[str]], folder: str | os.PathLike[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `shardproof` with these arguments, in a folder, and captures what it writes.

    Where this process is interrupted meanwhile, it is ended like by Ctrl-C, so that it removes its
    temporary files. Raises ProgramError where there is no program.
    """
    command = [find_program(), *(os.fspath(a) for a in arguments)]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            output, errors = running.communicate()
        except BaseException:
            running.terminate()
            try:
                running.communicate(timeout=_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                running.kill()
            raise
    return subprocess.CompletedProcess(command, running.returncode, output, errors)


def run_verify(
    plan: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
    program: str | None = None,
    executor: Executor | None = None,
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Runs `shardproof verify`. Returns the JSON report and the finished process.

    What it writes about its progress goes to standard error as it comes. program: its path.
    executor: its workers prove stages before (engines/proofs.py). Raises ProgramError as
    verify_files does, and EngineError where the workers cannot.
    """
    with tempfile.TemporaryDirectory() as folder:
        if executor is not None:
            from .engines.proofs import cache_of, prove_elsewhere

            cache = cache_of(arguments) or str(Path(folder) / "proofs")
            with showing():
                proved = prove_elsewhere(executor, plan, model, arguments, Path(cache))
            if proved and cache_of(arguments) is None:
                arguments = [*arguments, "--cache", cache]
        result = Path(folder) / "report.json"
        command = [
            program or find_program(),
            "verify",
            "--plan",
            os.fspath(plan),
            *(["--model", os.fspath(model)] if model else []),
            "--json",
            str(result),
            *arguments,
        ]
        with showing() as progress:
            progress.phase("proving")
            done = _run(command, progress)
        if done.returncode not in (0, 4, 5, 10) or not result.is_file():
            raise ProgramError(
                f"shardproof verify ended with exit code {done.returncode}: "
                f"{(done.stderr or done.stdout).strip()}"
            )
        return json.loads(result.read_text()), done


def _run(command: Sequence[str], progress: Progress) -> subprocess.CompletedProcess[str]:
    errors: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:

        def follow(stream: Any) -> None:
            for line in stream:
                if _PROGRESS.match(line):
                    progress.line(line.rstrip("\n"))
                else:
                    errors.append(line)

        reader = threading.Thread(target=follow, args=(running.stderr,))
        reader.start()
        try:
            output = running.stdout.read() if running.stdout is not None else ""
        except BaseException:
            running.terminate()
            raise
        finally:
            reader.join()
        code = running.wait()
    return subprocess.CompletedProcess(command, code, output, "".join(errors))


_PROGRESS = re.compile(r"shardproof: \d[^:]*: ")  # the time since it began, and what is done


def verify_files(
    plan: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] = (),
    executor: Executor | None = None,
) -> Report:
    """Runs `shardproof verify` on two files.

    model: None where the plan names it. arguments: further options. executor: its workers prove
    stages (docs/engines.md). Raises ProgramError if the files cannot be read or the program fails,
    and EngineError where the workers are of another version.
    """
    raw, done = run_verify(plan, model, arguments, executor=executor)
    return report_of(raw, done.stdout)


def execute_files(plan: str | os.PathLike[str], arguments: Sequence[str] = ()) -> None:
    """Runs `shardproof run` on a plan and the model that it names.

    arguments: further options. Raises ProgramError if the files cannot be read, the program fails,
    or the plan is not executed.
    """
    command = [find_program(), "run", "--plan", os.fspath(plan), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 5, 10):
        raise ProgramError(
            f"shardproof run ended with exit code {done.returncode}: "
            f"{(done.stderr or done.stdout).strip()}"
        )


def report_of(raw: dict[str, Any], text: str) -> Report:
    """The JSON report as an object."""
    defects = [
        Defect(d.get("kind", ""), d.get("message", ""), d.get("tensor", ""), _places(d), d)
        for d in raw["defects"]
    ]
    return Report(
        VERDICTS[raw["verdict"]],
        raw["reason"],
        raw["outputs"],
        raw["outputs_proved"],
        defects,
        text,
        raw,
        [a["text"] for a in raw["assumptions"]],
        [f"{n['what']} is not compared: {n['because']}" for n in raw["not_compared"]],
    )


def _places(defect: dict[str, Any]) -> list[str]:
    """The `loc` of each node that the defect names."""
    found: list[str] = []

    def walk(x: Any) -> None:
        if isinstance(x, dict):
            if isinstance(x.get("loc"), str) and x["loc"]:
                found.append(x["loc"])
            for y in x.values():
                walk(y)
        elif isinstance(x, list):
            for y in x:
                walk(y)

    walk(defect)
    return list(dict.fromkeys(found))


def main() -> None:
    """The command `shardproof` of an environment. The process becomes the installed program."""
    program = Path(__file__).parent / "bin" / "shardproof"
    os.execv(program, ["shardproof", *sys.argv[1:]])
