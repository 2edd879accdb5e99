# SPDX-License-Identifier: Apache-2.0
"""shardproof proves that a distributed training plan computes what its single-device model does."""

import importlib.metadata

from .layout import Layout, LayoutError, LayoutReport, Part, verify_layout
from .program import ProgramError, find_program, verify_files
from .report import Defect, Report

try:
    __version__ = importlib.metadata.version("shardproof")
except importlib.metadata.PackageNotFoundError:  # used from a checkout
    __version__ = "unknown"
__all__ = [
    "Defect",
    "Layout",
    "LayoutError",
    "LayoutReport",
    "Part",
    "ProgramError",
    "Report",
    "find_program",
    "verify_files",
    "verify_layout",
]
