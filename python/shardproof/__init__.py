"""shardproof: proves that a distributed training plan computes exactly what its single-device model says."""

from .program import ProgramError, find_program, verify_files
from .report import Defect, Report

__version__ = "0.1.0"
__all__ = ["Defect", "ProgramError", "Report", "find_program", "verify_files"]
