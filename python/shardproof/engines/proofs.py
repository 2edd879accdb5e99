# SPDX-License-Identifier: Apache-2.0
"""Proofs of a plan's stages by workers.

`shardproof verify --open-stages` lists the stages that are to be proved, by their canonical forms.
`shardproof worker` proves some, anywhere: the result is a proof cache. The verification itself is
then an ordinary one that is given this cache, so it alone decides. A stage that is lost, wrong, or
cut only later is proved or refuted there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
import zlib
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from ..program import ProgramError, run_program
from .proof_cache import merge
from .tasks import Lost, map_tasks

# Each task costs a worker the start of a process; larger stages are dealt to all tasks.
MOST_TASKS = 256
FEWEST_STAGES = 16  # of a task, and of a plan whose proofs are worth sending


def prove_stages(list_of_stages: bytes, arguments: Sequence[str]) -> bytes:
    """In the worker: proves a list of stages, compressed. Returns a proof cache, compressed.

    arguments: further ones of `shardproof worker`. Raises ProgramError.
    """
    with tempfile.TemporaryDirectory(prefix="shardproof-stages-") as folder:
        stages, cache = Path(folder) / "stages", Path(folder) / "cache"
        stages.write_bytes(zlib.decompress(list_of_stages))
        done = run_program(["worker", stages, "--cache", cache, "-j1", *arguments])
        if done.returncode != 0 or not cache.exists():
            raise ProgramError(
                f"shardproof worker ended with exit code {done.returncode}: {done.stderr.strip()}"
            )
        return zlib.compress(cache.read_bytes(), 1)


def prove_elsewhere(
    executor: Executor,
    plan: str | os.PathLike[str],
    model: str | os.PathLike[str] | None,
    arguments: Sequence[str],
    cache: Path,
) -> int:
    """Fills a proof cache with proofs of a plan's stages.

    arguments: of `shardproof verify`. cache: a file; what it has is not proved once more. Returns
    how many stages were given to workers: none where they are too few. Raises EngineError.
    """
    options = _options(arguments)
    if options.no_classes:
        return 0
    with tempfile.TemporaryDirectory(prefix="shardproof-open-") as folder:
        listed = Path(folder) / "stages"
        done = run_program(
            [
                "verify",
                "--plan",
                plan,
                *(["--model", model] if model else []),
                *_without_cache(arguments),
                "--cache",
                cache,
                "--open-stages",
                listed,
                "--quiet",
            ]
        )
        if done.returncode != 0 or not listed.exists():
            return 0  # the verification itself meets the error, and reports it
        head, forms = _read(listed.read_bytes())
        if len(forms) < FEWEST_STAGES:
            return 0
        limits = []
        for name in ("stage-timeout", "memory", "memory-limit"):
            if (value := getattr(options, name.replace("-", "_"))) is not None:
                limits.append(f"--{name}={value}")
        count = min(MOST_TASKS, -(-len(forms) // FEWEST_STAGES))
        forms.sort(key=len, reverse=True)
        tasks = {
            k: (zlib.compress(head + b"".join(forms[k::count]), 1), limits) for k in range(count)
        }
        parts = []
        for key, result in map_tasks(executor, prove_stages, tasks, doing="proving"):
            if isinstance(result, Lost):
                warnings.warn(
                    f"{len(forms[key::count])} stages are proved by this machine: no worker proved "
                    f"them in {result.attempts} attempts: {result.failure}",
                    stacklevel=2,
                )
                continue
            part = Path(folder) / f"part-{key}"
            part.write_bytes(zlib.decompress(result))
            parts.append(part)
        if parts and merge(cache, parts) is None:
            warnings.warn(f"{cache}: the proofs of workers cannot be merged into it", stacklevel=2)
        return len(forms)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--stage-timeout", "--memory", "--memory-limit", "--cache"):
        parser.add_argument(name)
    parser.add_argument("--no-classes", action="store_true")
    return parser.parse_known_args(list(arguments))[0]


def cache_of(arguments: Sequence[str]) -> str | None:
    """The file of --cache among arguments of `shardproof verify`."""
    found: str | None = _options(arguments).cache
    return found


def _without_cache(arguments: Sequence[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cache")
    return parser.parse_known_args(list(arguments))[1]


def _read(content: bytes) -> tuple[bytes, list[bytes]]:
    """The head of a list of stages, and each stage with its length (verify/open_stages.h)."""
    at = 0
    for _ in range(3):
        at = content.index(b"\n", at) + 1
    head, forms = content[:at], []
    while at < len(content):
        end = content.index(b"\n", at) + 1
        end += int(content[at:end]) + 1
        forms.append(content[at:end])
        at = end
    return head, forms


__all__ = ["cache_of", "prove_elsewhere", "prove_stages"]
