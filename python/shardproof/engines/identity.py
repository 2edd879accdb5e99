# SPDX-License-Identifier: Apache-2.0
"""Whether a worker has the same shardproof: results of another one are never taken.

Compared by content, as two builds of one version can differ.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sys
from pathlib import Path

from ..program import ProgramError, find_program


@dataclasses.dataclass(frozen=True)
class Identity:
    """package: SHA-256 of the Python sources. program: of the program. python: its version."""

    package: str
    program: str
    python: str


@functools.cache
def _package() -> str:
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


@functools.cache
def _program(path: str, size: int, modified: int) -> str:
    return digest_of(path)


def digest_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def identity() -> Identity:
    """Of this process. A program that is missing has the digest "none"."""
    try:
        path = find_program()
        status = os.stat(path)
        program = _program(path, status.st_size, status.st_mtime_ns)
    except (ProgramError, OSError):
        program = "none"
    return Identity(_package(), program, f"{sys.version_info[0]}.{sys.version_info[1]}")


def difference(wanted: Identity, found: Identity) -> str:
    """How a worker differs, and what to change; empty where it does not."""
    for what, a, b in (
        ("the Python package shardproof", wanted.package[:12], found.package[:12]),
        ("the program shardproof", wanted.program[:12], found.program[:12]),
        ("Python", wanted.python, found.python),
    ):
        if a != b:
            return (
                f"{what} is another one: found {b}, expected {a}; install the same shardproof for "
                "the same Python on all workers"
            )
    return ""


__all__ = ["Identity", "difference", "digest_of", "identity"]
