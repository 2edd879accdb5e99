# SPDX-License-Identifier: Apache-2.0
"""The files that `shardproof verify` is asked to write about a step: `--html`, `--json`, ...

A step may be verified as several programs (with each answer about data, for instance), and the
report is about one of them. Each run writes into a folder of its own, and the files of the run
whose report is shown are moved to where they belong.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...program import ProgramError
from ...report import VERDICTS, Report
from .report_files import WRITERS

OPTIONS = ("--json", "--html", "--junit", "--sarif")
_WITH_NAMES = ("--json", "--junit", "--sarif")  # of the recorded file


class OutputFiles:
    """Made once for a step. Use as a context manager."""

    def __init__(self, arguments: Sequence[str], steps: Sequence[Any]) -> None:
        """arguments: options of `shardproof verify`. steps: what is verified; no output overwrites
        their scripts.

        Raises ProgramError for a file that cannot be written.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for option in OPTIONS:
            parser.add_argument(option)
        known, self.others = parser.parse_known_args(list(arguments))
        self._targets = {
            option: Path(path).absolute()
            for option in OPTIONS
            if (path := getattr(known, option.lstrip("-"))) is not None
        }
        scripts = {
            os.path.realpath(source)
            for step in steps
            if isinstance(source := getattr(step, "source", None), str)
        }
        for option, path in self._targets.items():
            if not path.parent.is_dir():
                raise ProgramError(f"{option}: {path}: there is no directory {path.parent}")
            if os.path.realpath(path) in scripts:
                raise ProgramError(f"{option}: {path} is the script: name another file")
        self._folder = tempfile.TemporaryDirectory()
        self._runs: list[tuple[dict[str, Any], Path, Path]] = []  # raw report, its folder, the plan
        self._made = 0

    def __enter__(self) -> OutputFiles:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._folder.cleanup()

    def begin(self) -> tuple[Path, list[str]]:
        """A folder for one run, and the options with files in it."""
        self._made += 1
        folder = Path(self._folder.name) / str(self._made)
        folder.mkdir()
        arguments: list[str] = []
        for option in self._targets:
            if option != "--json":  # the run has it anyway
                arguments += [option, str(folder / option.lstrip("-"))]
        return folder, arguments

    def made(self, report: Report, folder: Path, plan: Path) -> None:
        """What a run wrote is about this report."""
        self._runs.append((report.raw, folder, plan))

    def publish(self, report: Report, source: str) -> None:
        """Writes the files of the report that is shown. source: what it is about."""
        folder, plan = next(((f, p) for raw, f, p in self._runs if raw is report.raw), (None, None))
        verdict = VERDICTS.get(report.raw.get("verdict", ""))
        for option, target in self._targets.items():
            if option == "--json":
                text = json.dumps(report.raw, indent=1, ensure_ascii=False) + "\n"
            elif folder is None or report.verdict != verdict:
                text = WRITERS[option](report, source)  # reached without `shardproof verify`
            else:
                text = (folder / option.lstrip("-")).read_text()
            if option in _WITH_NAMES and plan is not None:
                text = text.replace(str(plan), source)
            partial = target.with_name(f".{target.name}.{os.getpid()}")
            partial.write_text(text)
            os.replace(partial, target)


__all__ = ["OPTIONS", "OutputFiles"]
